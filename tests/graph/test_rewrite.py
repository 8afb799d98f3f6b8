"""Decomposition and rewriting: the same function as ONNX Runtime's, out of primitives, with no shape arithmetic left."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

from tests.graph.models import model
from tests.graph.run_graph import front_end, run_graph
from tsc.errors import ModelError
from tsc.graph.decompose import decompose
from tsc.graph.onnx.importer import import_onnx
from tsc.graph.shapes import infer_shapes
from tsc.ir import Graph
from tsc.ops import definition

TRANSFORMERS = ("bert", "albert", "gpt2.", "vit.", "clip_text")


def check(proto: onnx.ModelProto, feeds: dict[str, np.ndarray], tolerance: float = 1e-5) -> Graph:
    """The front end's graph, run by te, agrees with ONNX Runtime; returned for a look at its nodes."""
    graph, env = front_end(proto)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for mine, theirs in zip(run_graph(graph, env, feeds), session.run(None, feeds), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance)
    return graph


def ops(graph: Graph) -> Counter[str]:
    return Counter(n.op for n in graph.nodes)


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def test_compound_operators_become_primitives_with_the_names_of_their_nodes() -> None:
    proto = model("n = LayerNormalization(x, w)\n g = Gelu(n)\n y = Softmax(g)", "float[B, 6] x, float[6] w", "float[B, 6] y",
                  opset=20)
    for node, name in zip(proto.graph.node, ("norm", "act", "soft")):
        node.name = name
    graph, env = import_onnx(proto)
    graph = infer_shapes(decompose(infer_shapes(graph, env), env), env)
    assert all(definition(n).te is not None for n in graph.nodes)
    assert {n.name.split("/")[0] for n in graph.nodes} == {"norm", "act", "soft"}
    assert graph.outputs == ("y",) and {"n", "g"} <= {o for n in graph.nodes for o in n.outputs}
    check(proto, {"x": floats(3, 6), "w": floats(6)})


def test_constants_fold_by_the_meaning_of_their_operators() -> None:
    graph = check(model("t = Transpose<perm = [1, 0]>(w)\n d = Mul(t, t)\n e = Sqrt(d)\n y = MatMul(x, e)",
                        "float[B, 3] x", "float[B, 2] y", "float[2, 3] w = {1, -2, 3, 4, 5, -6}"), {"x": floats(4, 3)})
    assert ops(graph) == {"MatMul": 1} and len(graph.constants) == 1


def test_a_constant_index_out_of_bounds_is_the_models_fault() -> None:
    with pytest.raises(ModelError, match="Gather_0"):
        front_end(model("g = Gather(w, i)\n y = Add(x, g)", "float[n] x", "float[n] y", "float[2] w = {1, 2}, int64 i = {5}"))


def test_what_changes_nothing_goes() -> None:
    graph = check(model("""
        i = Identity(x)
        c = Cast<to = 1>(i)
        t = Transpose<perm = [0, 1]>(c)
        r = Reshape(t, keep)
        s = Slice(r, begin, end)
        m = Mul(s, one)
        d = Dropout(m)
        y = Relu(d)""", "float[B, 3] x", "float[B, 3] y",
        "int64[2] keep = {0, 3}, int64[1] begin = {0}, int64[1] end = {9223372036854775807}, float one = {1}"),
        {"x": floats(4, 3)})
    assert ops(graph) == {"Relu": 1}


def test_a_reversing_slice_is_not_taken_for_none() -> None:
    graph = check(model("y = Slice(x, b, e, a, s)", "float[n] x", "float[n] y",
                        "int64[1] b = {-1}, int64[1] e = {-9223372036854775807}, int64[1] a = {0}, int64[1] s = {-1}"),
                  {"x": floats(5)})
    assert ops(graph) == {"Slice": 1}


def test_names_of_outputs_stay_when_nodes_go() -> None:
    proto = model("a = Relu(x)\n y = Identity(a)\n z = Identity(a)\n p = Identity(x)\n b = Relu(x)\n q = Neg(b)\n r = Neg(a)",
                  "float[n] x", "float[n] y, float[n] z, float[n] p, float[n] q, float[n] r, float[n] x")
    graph = check(proto, {"x": floats(5)})
    assert graph.outputs == ("y", "z", "p", "q", "r", "x")
    assert ops(graph)["Relu"] == ops(graph)["Neg"] == 1


def test_transposes_and_views_compose() -> None:
    graph = check(model("""
        a = Transpose<perm = [0, 2, 1]>(x)
        b = Transpose<perm = [2, 0, 1]>(a)
        c = Unsqueeze(b, axes)
        d = Reshape(c, flat)
        e = Relu(d)
        f = Unsqueeze(e, axes)
        y = Transpose<perm = [1, 0, 2]>(f)""", "float[A, B, 4] x", "float[p, q, r] y",
        "int64[1] axes = {0}, int64[2] flat = {-1, 2}"), {"x": floats(2, 3, 4)})
    assert ops(graph) == {"Transpose": 1, "Reshape": 2, "Relu": 1}


def test_sizes_read_as_data_are_symbolic_constants() -> None:
    graph = check(model("s = Shape(x)\n l = Gather(s, one)\n f = Cast<to = 1>(l)\n m = ReduceSum(x, one)\n y = Div(m, f)\n"
                        " z = Mul(s, s)", "float[B, L] x", "float[B, k] y, int64[2] z", "int64[1] one = {1}"),
                  {"x": floats(3, 5)})
    assert ops(graph)["Shape"] == ops(graph)["Gather"] == 0 and ops(graph)["SymbolicConstant"] == 2


def test_an_expand_that_broadcasting_does_anyway_goes() -> None:
    graph = check(model("s = Shape(x)\n e = Expand(b, s)\n y = Add(x, e)", "float[N, 4] x, float[4] b", "float[N, 4] y"),
                  {"x": floats(3, 4), "b": floats(4)})
    assert ops(graph) == {"Add": 1}
    graph = check(model("e = Expand(b, s)\n y = Add(x, e)", "float[1, 4] x, float[4] b", "float[3, 4] y",
                        "int64[2] s = {3, 4}"), {"x": floats(1, 4), "b": floats(4)})
    assert ops(graph) == {"Add": 1, "Expand": 1}


def test_function_bodies_of_the_standard_serve_where_there_is_no_operator() -> None:
    feeds = {"q": floats(2, 4, 3, 8), "k": floats(2, 4, 5, 8), "v": floats(2, 4, 5, 8)}
    proto = model("y = Attention(q, k, v)", "float[b, 4, l, 8] q, float[b, 4, s, 8] k, float[b, 4, s, 8] v",
                  "float[b, 4, l, 8] y", opset=23)
    graph, env = front_end(proto)
    expected = ReferenceEvaluator(proto).run(None, feeds)
    np.testing.assert_allclose(run_graph(graph, env, feeds)[0], expected[0], rtol=1e-5, atol=1e-5)
    assert not env.remaining_guards()


# -- exporters' graphs -----------------------------------------------------------------------------------------

def entries() -> list[dict[str, object]]:
    folder = Path(__file__).resolve().parents[3] / "shared" / "models"
    if not folder.is_dir():
        return []
    return [e for e in feeds_module(folder).entries() if str(e["name"]).startswith(TRANSFORMERS)]


def feeds_module(folder: Path) -> ModuleType:
    module = ModuleType("feeds")
    module.__file__ = str(folder / "feeds.py")
    exec((folder / "feeds.py").read_text(), module.__dict__)
    return module


@pytest.mark.parametrize("entry", entries(), ids=lambda e: str(e["name"]))
def test_transformers_of_both_exporters(entry: dict[str, object]) -> None:
    folder = Path(__file__).resolve().parents[3] / "shared" / "models"
    feeds = feeds_module(folder)
    path = folder / str(entry["file"])
    graph, env = front_end(path)
    dims = {d for t in graph.types.values() for e in t.shape for d in e.dims()}
    assert len(dims) == (1 if str(entry["name"]).startswith("vit") else 2)
    assert not {"Shape", "Size", "NonZero"} & set(ops(graph))
    produced = {o for n in graph.nodes for o in n.outputs}
    static = {n.inputs[k] for n in graph.nodes for k in definition(n).static_inputs if k < len(n.inputs) and n.inputs[k]}
    assert not static & produced and static <= graph.contents.keys() | graph.constants.keys()
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for shapes in entry["shapes"][:2] + feeds.random_shapes(entry, 1, seed=7):
        given = feeds.feeds(entry, shapes)
        for mine, theirs in zip(run_graph(graph, env, given), session.run(None, given), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=entry["rtol"], atol=entry["atol"])

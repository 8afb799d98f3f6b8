"""Rules that know no operator: what makes use of a trait does so for an operator that nobody has heard of."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from tests.graph.models import model
from tests.graph.run_graph import front_end, run_graph
from tsc import ops
from tsc.graph.rewriting.rewrite import rewrite
from tsc.graph.shapes import infer_shapes
from tsc.ir import Graph, Node, TensorType
from tsc.ops.base import Lowering, OpDef, PatternKind
from tsc.ops.elementwise import elementwise, intrinsic
from tsc.sym import ShapeEnv, SymExpr
from tsc.te.expr import Expr


def check(proto: onnx.ModelProto, feeds: dict[str, Any], constants: dict[str, Any]) -> Counter[str]:
    """The front end's graph gives ONNX Runtime's result, zeros by their signs; the operators left."""
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(c), name) for name, c in constants.items())
    graph, env = front_end(proto)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for mine, theirs in zip(run_graph(graph, env, feeds), session.run(None, feeds), strict=True):
        np.testing.assert_array_equal(mine, theirs)
        assert mine.dtype.kind != "f" or np.array_equal(np.signbit(mine), np.signbit(theirs))
    return Counter(n.op for n in graph.nodes)


ZEROS = np.array([-0.0, 0.0, 1.5], np.float32)


@pytest.mark.parametrize("op, constant, goes", [
    ("Sub(x, c)", 0.0, True), ("Sub(x, c)", -0.0, False), ("Sub(x, c)", [0.0, -0.0, 0.0], False), ("Sub(c, x)", 0.0, False),
    ("Add(x, c)", -0.0, True), ("Add(c, x)", [-0.0, -0.0, -0.0], True), ("Add(x, c)", 0.0, False),
    ("Mul(c, x)", 1.0, True), ("Mul(x, c)", -1.0, False), ("Div(x, c)", 1.0, True), ("Div(c, x)", 1.0, False)])
def test_a_zero_counts_with_its_sign(op: str, constant: Any, goes: bool) -> None:
    x = ZEROS if op != "Div(c, x)" else ZEROS + 2
    left = check(model(f"n = {op}\n y = Neg(n)", "float[3] x", "float[3] y"), {"x": x}, {"c": np.array(constant, np.float32)})
    assert (set(left) == {"Neg"}) == goes


def test_integers_have_one_zero() -> None:
    left = check(model("n = Add(x, c)\n m = Sub(n, c)\n y = Neg(m)", "int64[3] x", "int64[3] y"), {"x": np.arange(3)}, {"c": 0})
    assert set(left) == {"Neg"}


@pytest.mark.parametrize("line, constants", [
    ("Cast<to = 1>(x)", {}), ("CastLike(x, x)", {}), ("Dropout(x)", {}), ("Expand(x, a)", {"a": [1, 3]}),
    ("Slice(x, a, b)", {"a": [0, 0], "b": [9, 9]}), ("Pad(x, a)", {"a": [0, 0, 0, 0]}), ("Pad(x, a, v)", {
        "a": [0, 0, 0, 0], "v": np.float32(7)}), ("Tile(x, a)", {"a": [1, 1]}), ("Concat<axis = 1>(x)", {}),
    ("Split<axis = 1>(x, a)", {"a": [3]}), ("Sum(x)", {}), ("Max(x)", {}), ("Clip(x)", {}),
    ("Transpose<perm = [0, 1]>(x)", {}), ("Reshape(x, a)", {"a": [0, -1]}), ("Gather<axis = 1>(x, a)", {"a": [0, 1, 2]}),
    ("Where(c, x, z)", {"c": True, "z": np.float32(7)}), ("Where(c, z, x)", {"c": [False, False, False], "z": np.float32(7)})])
def test_what_only_copies_goes(line: str, constants: dict[str, Any]) -> None:
    proto = model(f"n = {line}\n y = Neg(n)", "float[2, 3] x", "float[2, 3] y", opset=18)
    left = check(proto, {"x": np.arange(6, dtype=np.float32).reshape(2, 3) - 2}, {k: np.array(v) for k, v in constants.items()})
    assert set(left) == {"Neg"}


@pytest.mark.parametrize("line, constants", [
    ("Slice(x, a, b, c, d)", {"a": [-1], "b": [-9], "c": [1], "d": [-1]}), ("Pad(x, a)", {"a": [0, 1, 0, -1]}),
    ("Gather<axis = 1>(x, a)", {"a": [0, 2, 1]}), ("Cast<to = 6>(x)", {}), ("Where(c, x, z)", {
        "c": [True, False, True], "z": np.float32(7)}), ("Trilu(x)", {})])
def test_what_changes_something_stays(line: str, constants: dict[str, Any]) -> None:
    proto = model(f"n = {line}\n y = Cast<to = 1>(n)", "float[2, 3] x", "float[2, 3] y", opset=18)
    left = check(proto, {"x": np.arange(6, dtype=np.float32).reshape(2, 3) - 2}, {k: np.array(v) for k, v in constants.items()})
    op = line.partition("<")[0].partition("(")[0]
    assert left[{"Trilu": "Triangle"}.get(op, op)] >= 1  # as the primitive is called


def test_an_index_into_a_dim_of_one_is_still_checked() -> None:
    """What is read is the same at every index in bounds; one out of bounds is an error."""
    proto = model("n = Gather(x, i)\n y = Neg(n)", "float[1, 3] x, int64[1] i", "float[1, 3] y")
    assert check(proto, {"x": np.ones((1, 3), np.float32), "i": np.array([-1])}, {})["Gather"] == 1


@pytest.mark.parametrize("line, element", [("CastLike(e, l)", "int32"), ("PRelu(e, l)", "float"), ("PRelu(l, e)", "float")])
def test_an_operand_that_gives_the_shape_stays_expanded(line: str, element: str) -> None:
    feeds = {"x": np.array([-1.5], np.float32), "l": np.arange(4).astype(element.replace("float", "float32"))}
    left = check(model(f"e = Expand(x, s)\n y = {line}", f"float[1] x, {element}[4] l", f"{element}[4] y"), feeds, {"s": [4]})
    assert left["Expand"] == (line != "PRelu(l, e)")


# -- operators that nobody has heard of --------------------------------------------------------------------------

def _turned(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    return lowering.read(0, (*at[1:], at[0]))


STRANGERS = (
    elementwise("Stranger", intrinsic("mul"), samples=tuple, required=2, neutral=(1, 1), linear=(0, 1)),
    OpDef("Turned", PatternKind.INJECTIVE, lambda ctx: (TensorType(ctx.type(0).dtype, (
        ctx.type(0).shape[-1], *ctx.type(0).shape[:-1])),), te=_turned, domain="tsc"))


@pytest.fixture
def strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    for op in STRANGERS:
        monkeypatch.setitem(ops._BY_NAME, ("tsc", op.name), op)


def rewritten(nodes: list[tuple[str, str, str]], shape: tuple[int, ...], **constants: Any) -> tuple[Graph, ShapeEnv]:
    """Nodes (output, operator, operands) over an input `x`, rewritten; the last output is the graph's."""
    arrays = {name: np.asarray(c, np.float32) for name, c in constants.items()}
    types = {n: TensorType("float32", tuple(map(SymExpr.of, s))) for n, s in [("x", shape), *(
        (name, c.shape) for name, c in arrays.items())]}
    made = tuple(Node(op, tuple(inputs.split()), (output,), {}, output) for output, op, inputs in nodes)
    env = ShapeEnv()
    graph = infer_shapes(Graph("g", ("x",), (nodes[-1][0],), made, types, arrays, opset=20, primitives=True), env)
    return rewrite(graph, env), env


@pytest.mark.usefixtures("strangers")
def test_a_neutral_element_of_a_stranger_goes() -> None:
    graph, _ = rewritten([("a", "Stranger", "x c"), ("b", "Stranger", "d a"), ("y", "Neg", "b")], (2, 3), c=1, d=[1, 1, 2])
    assert [(n.op, n.inputs) for n in graph.nodes] == [("Stranger", ("d", "x")), ("Neg", ("b",))]


@pytest.mark.usefixtures("strangers")
def test_a_stranger_that_is_linear_is_put_behind_a_contraction() -> None:
    w = np.arange(12).reshape(3, 4)
    graph, env = rewritten([("a", "Stranger", "x c"), ("t", "Turned", "a"), ("y", "MatMul", "t w")], (3, 2), c=2.5, w=w)
    assert [n.op for n in graph.nodes] == ["Turned", "MatMul", "Stranger"]
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    np.testing.assert_array_equal(run_graph(graph, env, {"x": x})[0], 2.5 * x.T @ w)


@pytest.mark.usefixtures("strangers")
def test_a_strangers_permutation_composes() -> None:
    nodes = [("a", "Turned", "x"), ("b", "Turned", "a"), ("y", "Turned", "b")]
    graph, _ = rewritten([*nodes, ("z", "Neg", "y")], (2, 3, 5))
    assert [n.op for n in graph.nodes] == ["Neg"] and graph.nodes[0].inputs == ("x",)
    graph, env = rewritten(nodes[:2], (2, 3, 5))
    assert len(graph.nodes) == 1
    x = np.arange(30, dtype=np.float32).reshape(2, 3, 5)
    np.testing.assert_array_equal(run_graph(graph, env, {"x": x})[0], x.transpose(1, 2, 0))
    graph, _ = rewritten(nodes[:1], (3, 5, 1))
    assert [n.op for n in graph.nodes] == ["Reshape"], "only a dim of size 1 moves"


@pytest.mark.usefixtures("strangers")
def test_branches_take_a_strangers_step_by_its_neutral_element() -> None:
    weights = {f"w{k}": np.random.default_rng(k).standard_normal((5, 4)) for k in range(3)}
    branches = [(f"h{k}", "MatMul", f"x w{k}") for k in range(3)] + [("a0", "Stranger", "h0 s0"), ("a2", "Stranger", "h2 s2")]
    nodes = [*branches, ("c", "Concat", "a0 h1 a2"), ("t", "Turned", "c"), ("m", "MatMul", "t v"), ("y", "Neg", "m")]
    graph, env = rewritten(nodes, (3, 5), **weights, s0=[1, 2, 3, 4], s2=[5, 6, 7, 8], v=np.ones((9, 1)))
    merged = [n for n in graph.nodes if n.op == "Stranger"]
    assert len(merged) == 1 and sum(n.op == "MatMul" for n in graph.nodes) == 2
    scale = next(graph.constants[i] for i in merged[0].inputs if i in graph.constants)
    np.testing.assert_array_equal(scale, [1, 2, 3, 4, 1, 1, 1, 1, 5, 6, 7, 8])
    assert env.guards == []

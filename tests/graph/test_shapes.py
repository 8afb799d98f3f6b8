"""Shape inference against ONNX Runtime's own shapes, and the facts it must find in exporters' graphs."""

from __future__ import annotations

import time

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.graph.models import model
from tests.graph.run_graph import front_end, run_graph
from tsc.errors import ModelError, ShapeError
from tsc.graph.onnx.importer import import_onnx
from tsc.graph.shapes import infer_shapes
from tsc.sym import ShapeEnv


def inferred(body: str, inputs: str, outputs: str, constants: str = "", **dims: object) -> tuple[dict[str, str], ShapeEnv]:
    """The types of all values as text, and the facts found."""
    graph, env = import_onnx(model(body, inputs, outputs, constants), dims)
    return {name: str(t) for name, t in infer_shapes(graph, env).types.items()}, env


SHAPE_ARITHMETIC = """
    s = Shape(x)
    b = Gather(s, zero)
    l = Gather(s, one)
    bl = Mul(b, l)
    flat = Unsqueeze(bl, axis)
    merged = Concat<axis = 0>(flat, rest)
    h = Reshape(x, merged)
    back = Slice(s, begin, two)
    split = Concat<axis = 0>(back, heads)
    y = Reshape(h, split)"""
CONSTANTS = ("int64 zero = {0}, int64 one = {1}, int64[1] axis = {0}, int64[1] rest = {12}, int64[1] begin = {0},"
             "int64[1] two = {2}, int64[2] heads = {3, -1}")


def test_shape_arithmetic_folds_into_products() -> None:
    types, env = inferred(SHAPE_ARITHMETIC, "float[B, L, 12] x", "float[o, p, q, r] y", CONSTANTS)
    assert types["h"] == "float32[B*L, 12]" and types["y"] == "float32[B, L, 3, 4]"
    assert not env.guards


def test_a_size_computed_in_floats_from_constants() -> None:
    """PyTorch writes the side of a square table of positions so: int(16.0 ** 0.5)."""
    body = """
        side = Pow(count, half)
        size = Cast<to = 7>(side)
        shape = Concat<axis = 0>(size, rest)
        y = Reshape(x, shape)"""
    types, _ = inferred(body, "float[16, L] x", "float[o, p, q] y",
                        "float[1] count = {16.0}, float half = {0.5}, int64[2] rest = {4, -1}")
    assert types["y"] == "float32[4, 4, L]"


def test_operands_that_meet_unify_their_siblings() -> None:
    types, env = inferred("a = Relu(x)\n b = Neg(z)\n s = Shape(z)\n c = Add(a, b)\n y = MatMul(c, w)\n e = Expand(k, s)",
                          "float[n, 4] x, float[m, k] z, float[p, q] w, float k", "float[o, r] y, float[g, h] e")
    assert types["z"] == types["b"] == types["e"] == "float32[n, 4]"  # a sibling, its producer, and shape arithmetic on it
    assert types["w"] == "float32[4, q]" and types["y"] == "float32[n, q]"
    assert {str(env.canon(e)) for e in env.equal.values()} == {"n", "4"}
    assert all("node" in g.reason for g in env.guards)


def test_what_cannot_be_proved_is_guarded_by_the_node() -> None:
    _, env = inferred("y = Slice(x, begin, end)", "float[n] x, float[m] z", "float[k] y",
                      "int64[1] begin = {2}, int64[1] end = {9}")
    types, env = inferred("a = Concat<axis = 0>(x, z)\n y = Add(a, w)", "float[n] x, float[m] z, float[t] w", "float[t] y")
    assert types["y"] == "float32[m + n]" and types["w"] == "float32[m + n]"
    assert [g.reason.split(":")[0] for g in env.guards] == ["node 'Add_1' (Add)"]


@pytest.mark.parametrize(("body", "inputs", "says"), [
    ("y = Add(x, z)", "float[n, 3] x, float[n, 4] z", "Add_0"),
    ("y = MatMul(x, z)", "float[n, 3] x, float[4, n] z", "MatMul_0"),
    ("y = Concat<axis = 0>(x, z)", "float[n, 3] x, float[n, 4] z", "Concat_0"),
    ("y = Transpose<perm = [0, 2]>(x)", "float[n, 3] x, float[n, 4] z", "Transpose_0"),
    ("y = Softmax<axis = 5>(x)", "float[n, 3] x, float[n, 4] z", "Softmax_0"),
    ("y = Add(x, z)", "float[n, 3] x, int64[n, 3] z", "Add_0"),
    ("y, u, v = Relu(x)", "float[n, 3] x, float[n, 4] z", "Relu_0"),
    ("y = Add(x)", "float[n, 3] x, float[n, 4] z", "Add_0"),
    ("y = Concat(x, x)", "float[n, 3] x, float[n, 4] z", "Concat_0.*'axis'"),
    ("y = Relu<axis = 1>(x)", "float[n, 3] x, float[n, 4] z", "Relu_0.*'axis'")])
def test_operands_that_cannot_fit_name_the_node(body: str, inputs: str, says: str) -> None:
    with pytest.raises((ModelError, ShapeError), match=says):
        front_end(model(body, inputs, "float[o, p] y"))


def test_a_mask_read_by_arange_shares_the_batch() -> None:
    """What `mask[arange(batch), :]` exports to: the mask's own batch dim has another name, and must be the same."""
    body = """
        s = Shape<start = 0, end = 1>(ids)
        b = Squeeze(s)
        rows = Range(zero, b, one)
        y = Gather(mask, rows)"""
    types, env = inferred(body, "int64[s10, s11] ids, bool[s86, s11] mask", "bool[o, p] y", "int64 zero = {0}, int64 one = {1}")
    assert types["mask"] == types["y"] == "bool[s10, s11]"
    assert str(env.guards[0]) in ("s10 == s86", "s86 == s10") and "Gather" in env.guards[0].reason


@pytest.mark.parametrize("positions, read", [
    ("p = Cast<to = 6>(rows)", "Gather(mask, p)"), ("r = Unsqueeze(rows, end)\n p = Expand(r, wide)", "Gather(mask, p)"),
    ("r = Reshape(rows, column)\n q = Expand(r, pair)\n p = Concat<axis = -1>(q, q)", "GatherND(square, p)"),
    ("r = Unsqueeze(rows, end)\n p = Transpose(r)", "Gather(mask, p)"),
    ("r = Reshape(rows, column)\n p = Expand(r, wide)", "GatherElements(mask, p)")])
def test_positions_count_through_whatever_moves_them(positions: str, read: str) -> None:
    body = f"s = Shape<start = 0, end = 1>(ids)\n b = Squeeze(s)\n rows = Range(zero, b, one)\n {positions}\n y = {read}"
    types, _ = inferred(body, "int64[n, k] ids, bool[m, 2] mask, bool[m, m, 2] square",
                        "bool[o, p, q] y" if "Unsqueeze" in positions else "bool[o, p] y",
                        "int64 zero = {0}, int64 one = {1}, int64[1] end = {-1}, int64[2] wide = {1, 2}, "
                        "int64[2] pair = {1, 1}, int64[2] column = {-1, 1}")
    assert types["mask"] == "bool[n, 2]" and types["square"] == "bool[n, n, 2]"


@pytest.mark.parametrize("positions", [
    "rows = Range(one, b, one)", "rows = Range(zero, b, two)", "r = Range(zero, b, one)\n rows = Neg(r)",
    "r = Range(zero, b, one)\n rows = CumSum(r, zero)"])
def test_other_positions_say_nothing_of_a_dim(positions: str) -> None:
    types, env = inferred(f"s = Shape<start = 0, end = 1>(ids)\n b = Squeeze(s)\n {positions}\n y = Gather(mask, rows)",
                          "int64[n, k] ids, bool[m, 2] mask", "bool[o, p] y",
                          "int64 zero = {0}, int64 one = {1}, int64 two = {2}")
    assert types["mask"] == "bool[m, 2]" and not env.equal


def test_every_value_agrees_with_onnx_runtime() -> None:
    """Odd sizes and size 1 through shape arithmetic, against the shapes that ONNX Runtime makes."""
    proto = model(SHAPE_ARITHMETIC, "float[B, L, 12] x", "float[o, p, q, r] y", CONSTANTS)
    proto.graph.output.append(onnx.helper.make_tensor_value_info("h", 1, None))
    graph, env = front_end(proto)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for shape in ((1, 1, 12), (3, 7, 12), (1, 5, 12), (5, 1, 12)):
        feeds = {"x": np.arange(np.prod(shape), dtype=np.float32).reshape(shape)}
        for mine, theirs in zip(run_graph(graph, env, feeds), session.run(None, feeds)):
            np.testing.assert_array_equal(mine, theirs)


def test_long_chains_take_linear_time() -> None:
    body = "\n".join(f"h{k + 1} = Add(h{k}, x{k})" for k in range(300)).replace("h0", "x").replace("h300", "y")
    inputs = "float[n] x, " + ", ".join(f"float[d{k}] x{k}" for k in range(300))
    start = time.perf_counter()
    types, env = inferred(body, inputs, "float[m] y")
    assert types["x299"] == "float32[n]" and len(env.equal) == 300
    assert time.perf_counter() - start < 20

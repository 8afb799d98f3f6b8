"""Operators whose legality depends on sizes that only the run knows: computed where the standard gives a meaning, else refused
at the run with the node's name. The oracle is ONNX Runtime, which refuses the same sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import tsc
from tests.ops.test_compiled_samples import model
from tsc.errors import ModelError, ShapeError, UnsupportedError
from tsc.runtime.executable import Executable


def rows(*shape: int) -> np.ndarray[Any, Any]:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def compiled(op: str, static: dict[str, np.ndarray[Any, Any]], attrs: dict[str, Any],
             *others: tuple[str, np.ndarray[Any, Any], list[str | int]]) -> tuple[Executable, onnxruntime.InferenceSession]:
    """x[n, 2], other inputs and constants through one node."""
    x = rows(1, 2)
    feeds = {"x": x} | {name: value for name, value, _ in others}
    shapes: dict[str, list[str | int]] = {"x": ["n", 2]} | {name: shape for name, _, shape in others}
    node = helper.make_node(op, [*feeds, *static], ["y"], "culprit", **attrs)
    made = model([node], feeds, shapes, static, [helper.make_value_info("y", onnx.TypeProto())], 21)
    made = onnx.shape_inference.infer_shapes(made)
    return tsc.compile(made, threads=1), onnxruntime.InferenceSession(made.SerializeToString())


@pytest.mark.defect(11)
@pytest.mark.parametrize(("mode", "pads", "least"), [
    ("reflect", (2, 0, 1, 0), 3), ("reflect", (-1, 0, 2, 0), 4), ("edge", (5, 0, 4, 0), 1), ("wrap", (5, 1, 4, 0), 1),
    ("wrap", (-1, 0, 4, 0), 2), ("edge", (-2, 0, 4, 0), 3)])
def test_a_pad_repeats_only_what_is_there(mode: str, pads: tuple[int, ...], least: int) -> None:
    executable, session = compiled("Pad", {"pads": np.array(pads)}, {"mode": mode})
    for n in (1, 2, 3, 4, 7):
        x = rows(n, 2)
        if n >= least:
            np.testing.assert_array_equal(executable.run(None, {"x": x})[0], session.run(None, {"x": x})[0])
            continue
        with pytest.raises(ShapeError, match=r"'culprit' \(Pad\)"):
            executable.run(None, {"x": x})
        with pytest.raises(Exception, match="Pad"):
            session.run(None, {"x": x})


@pytest.mark.defect(14)
def test_elements_are_gathered_within_symbolic_dims() -> None:
    indices = np.zeros((1, 1), np.int64)
    executable, session = compiled("GatherElements", {}, {"axis": 1}, ("indices", indices, ["m", "k"]))
    for n, m, k in ((1, 1, 1), (5, 5, 3), (5, 2, 7), (4, 3, 1)):
        feeds = {"x": rows(n, 2), "indices": np.random.default_rng(n).integers(-2, 2, (m, k))}
        np.testing.assert_array_equal(executable.run(None, feeds)[0], session.run(None, feeds)[0])
    with pytest.raises(ShapeError, match=r"'culprit' \(GatherElements\)"):
        executable.run(None, {"x": rows(2, 2), "indices": np.zeros((3, 1), np.int64)})


@pytest.mark.defect(14)
@pytest.mark.parametrize(("op", "dtype"), [("MatMul", "uint64"), ("MatMul", "uint32"), ("Add", "uint16"), ("Concat", "uint64")])
def test_unsigned_integers_are_computed_in_vectors(op: str, dtype: str) -> None:
    a, b = (np.random.default_rng(k).integers(0, 99, (3 + 16 * k, 19)).astype(dtype) for k in (0, 1))
    b = b if op == "Concat" else b[:1].repeat(3, 0) if op == "Add" else b.T
    shapes = {"a": ["n", 19], "b": list(b.shape) if op != "Add" else ["n", 19]}
    node = helper.make_node(op, ["a", "b"], ["y"], "node", **({"axis": 0} if op == "Concat" else {}))
    made = model([node], {"a": a, "b": b}, shapes, {}, [helper.make_value_info("y", onnx.TypeProto())])
    want = {"MatMul": np.matmul, "Add": np.add, "Concat": lambda x, y: np.concatenate([x, y])}[op](a, b)
    np.testing.assert_array_equal(tsc.compile(made, threads=1).run(None, {"a": a, "b": b})[0], want)


# -- sizes of 0 ---------------------------------------------------------------------------------------------------

def viewed(target: str, allowzero: int) -> onnx.ModelProto:
    """x[a, b] reshaped to `target`: products of a, b and of z[c]'s size."""
    places = {"a": ("x", 0), "b": ("x", 1), "c": ("z", 0)}
    nodes = [helper.make_node("Shape", [tensor], [name], start=axis, end=axis + 1) for name, (tensor, axis) in places.items()]
    parts = []
    for part in target.split():
        for k in range(1, len(part)):
            nodes.append(helper.make_node("Mul", [part[:k], part[k]], [part[:k + 1]]))
        parts.append(part)
    nodes += [helper.make_node("Concat", parts, ["target"], axis=0),
              helper.make_node("Reshape", ["x", "target"], ["y"], "culprit", allowzero=allowzero)]
    rank = [f"d{k}" for k in range(len(parts))]
    return model(nodes, {"x": rows(1, 1), "z": rows(1)}, {"x": ["a", "b"], "z": ["c"]}, {},
                 [helper.make_tensor_value_info("y", TensorProto.FLOAT, rank)], 17)


@pytest.mark.parametrize("allowzero", [0, 1])
@pytest.mark.parametrize("target", ["c b", "b a", "ab", "a bc", "c ab", "c c", "c c c"])
def test_a_computed_0_is_no_other_size(target: str, allowzero: int) -> None:
    """Without allowzero 0 copies the input's dim. Where that is not 0, the standard's shape is another than the computed sizes
    say, if there is one at all: it is refused. So is what the number of elements tells of sizes where there are none."""
    proto, quiet = viewed(target, allowzero), onnxruntime.SessionOptions()
    quiet.log_severity_level = 4
    executable = tsc.compile(proto, dims=dict.fromkeys("abc", (0, None)), threads=1)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), quiet, providers=["CPUExecutionProvider"])
    empty = 0
    for a, b, c in np.ndindex(4, 4, 4):
        feeds = {"x": rows(a, b), "z": rows(c)}
        try:
            want = session.run(None, feeds)[0]
        except Exception:
            want = None
        computed = tuple(int(np.prod([{"a": a, "b": b, "c": c}[name] for name in part])) for part in target.split())
        if want is not None and want.size and want.shape == computed:
            np.testing.assert_array_equal(executable.run(None, feeds)[0], want)
            continue
        try:
            got = executable.run(None, feeds)[0]
        except ShapeError:
            continue
        assert want is not None and got.shape == want.shape, (a, b, c)
        empty += 1
    assert empty or len(target.split()) > 2  # the input lacks a dim that 0 would copy


@pytest.mark.parametrize(("op", "attrs", "shape", "made"), [
    ("SpaceToDepth", {"blocksize": 2}, (1, 4, 0, 4), (1, 16, 0, 2)),
    ("DepthToSpace", {"blocksize": 2}, (1, 4, 0, 4), (1, 1, 0, 8)),
    ("DepthToSpace", {"blocksize": 2, "mode": "CRD"}, (0, 4, 2, 4), (0, 1, 4, 8)),
    ("GroupNormalization", {"num_groups": 2}, (1, 4, 0, 3), (1, 4, 0, 3)),
    ("GroupNormalization", {"num_groups": 2}, (2, 4, 3, 0), (2, 4, 3, 0))])
def test_an_image_without_pixels_stays_one(op: str, attrs: dict[str, Any], shape: tuple[int, ...],
                                           made: tuple[int, ...]) -> None:
    """Views within an operator take a known 0 for 0: it was taken for 'copy this dim' of another rank."""
    static = {"scale": np.ones(4, np.float32), "bias": np.ones(4, np.float32)} if op == "GroupNormalization" else {}
    x = np.zeros(shape, np.float32)
    proto = model([helper.make_node(op, ["x", *static], ["y"], "node", **attrs)], {"x": x}, {"x": list(shape)}, static,
                  [helper.make_value_info("y", onnx.TypeProto())], 21)
    assert tsc.compile(proto, threads=1).run(None, {"x": x})[0].shape == made


# -- float ranges of sizes ---------------------------------------------------------------------------------------

def ranged(start: Any, limit: Any, step: Any, kind: int) -> onnx.ModelProto:
    """Range over floats; "n" is the size of x as a float."""
    dtype = np.float32 if kind == TensorProto.FLOAT else np.float64
    operands = {"start": start, "limit": limit, "step": step}
    static = {name: np.array(value, dtype) for name, value in operands.items() if value != "n"} | {"zero": np.array(0)}
    nodes = [helper.make_node("Shape", ["x"], ["shape"], "shape"),
             helper.make_node("Gather", ["shape", "zero"], ["n"], "size"),
             helper.make_node("Cast", ["n"], ["real"], "cast", to=kind),
             helper.make_node("Range", ["real" if v == "n" else name for name, v in operands.items()], ["y"], "culprit")]
    return model(nodes, {"x": rows(1)}, {"x": ["n"]}, static, [helper.make_tensor_value_info("y", kind, ["k"])], 17)


@pytest.mark.defect(7)
@pytest.mark.parametrize(("start", "limit", "step", "kind"), [
    (0.0, "n", 1.0, TensorProto.FLOAT), (0.25, "n", 0.75, TensorProto.FLOAT), ("n", 0.0, -1.5, TensorProto.DOUBLE),
    pytest.param(3.0, "n", 2.0, TensorProto.FLOAT, marks=pytest.mark.slow),
    pytest.param(-1.5, "n", 0.1, TensorProto.FLOAT, marks=pytest.mark.slow)])
def test_a_float_range_over_a_size(start: Any, limit: Any, step: Any, kind: int) -> None:
    executable = tsc.compile(ranged(start, limit, step, kind), threads=1)
    for n in (1, 2, 3, 5, 17):
        first, last, by = (float(n) if v == "n" else float(np.array(v, np.float32)) for v in (start, limit, step))
        count = max(int(np.ceil((last - first) / by)), 0)  # as the standard says, and then start + i * step
        got, = executable.run(None, {"x": rows(n)})
        assert got.shape == (count,)
        np.testing.assert_allclose(got, first + np.arange(count) * by, rtol=1e-6)


@pytest.mark.defect(7)
def test_a_size_that_a_float_cannot_hold_is_refused() -> None:
    executable = tsc.compile(ranged(0.0, "n", 1.0, TensorProto.FLOAT), threads=1)
    with pytest.raises(ShapeError, match=r"'culprit' \(Range\): its limit must be exact in float32"):
        executable.run(None, {"x": np.zeros(2**24 + 1, np.float32)})
    with pytest.raises(UnsupportedError, match=r"culprit.*too fine"):
        tsc.compile(ranged(0.0, "n", 0.1, TensorProto.DOUBLE))


def test_a_declared_divisor_that_is_odd_is_known_of_its_size() -> None:
    """Found by random operators: rows of h known to be a multiple of 3 were not known to be 3 times as many as h // 3."""
    node = onnx.helper.make_node("SpaceToDepth", ["x"], ["y"], blocksize=3)
    u8 = onnx.TensorProto.UINT8
    graph = onnx.helper.make_graph([node], "blocks", [onnx.helper.make_tensor_value_info("x", u8, [2, 3, "h", "w"])],
                                   [onnx.helper.make_tensor_value_info("y", u8, [2, 27, None, None])])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    executable = tsc.compile(model, dims={"h": (3, 15, 3), "w": (3, 15, 3)})
    for h, w in ((3, 3), (9, 15), (15, 6)):
        x = np.random.default_rng(h).integers(0, 255, (2, 3, h, w)).astype(np.uint8)
        blocks = x.reshape(2, 3, h // 3, 3, w // 3, 3).transpose(0, 3, 5, 1, 2, 4).reshape(2, 27, h // 3, w // 3)
        np.testing.assert_array_equal(executable.run(None, {"x": x})[0], blocks)


def test_a_reshape_by_what_divides_a_dim_is_read_flat() -> None:
    """Half of the rows' length is a size of its own, which nothing tied to the length of all."""
    proto = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 20]>
        g (float[a,c] x) => (float[a,p,q] y, float[a,p,q] z) <int64[3] s = {0,2,-1}> { y = Reshape (x, s) z = Neg (y) }""")
    executable = tsc.compile(proto, dims={"a": (1, 13), "c": (2, 16, 2)})
    for a, c in ((1, 2), (13, 16), (5, 6)):
        x = np.random.default_rng(0).standard_normal((a, c), "f")
        y, z = executable.run(None, {"x": x})
        np.testing.assert_array_equal(y, x.reshape(a, 2, -1))
        np.testing.assert_array_equal(z, -x.reshape(a, 2, -1))


def test_a_size_that_must_be_a_number_is_that_number() -> None:
    """What a window leaves of w meets 4 elements: that it is 4 was said to the runs, not to the kernel."""
    proto = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 20]>
        g (float[1,1,h,w] x, float[4] c) => (float[1,1,p,q] y)
        { z = MaxPool <kernel_shape = [2,2], strides = [2,2]> (x) y = Add (z, c) }""")
    executable, oracle = tsc.compile(proto), onnxruntime.InferenceSession(proto.SerializeToString())
    rng = np.random.default_rng(0)
    for h, w in ((2, 8), (7, 9), (33, 8)):
        feeds = {"x": rng.standard_normal((1, 1, h, w), "f"), "c": rng.standard_normal(4, "f")}
        np.testing.assert_allclose(executable.run(None, feeds)[0], oracle.run(None, feeds)[0], rtol=1e-6)
    with pytest.raises(ShapeError):
        executable.run(None, {"x": np.zeros((1, 1, 4, 10), "f"), "c": np.zeros(4, "f")})


@pytest.mark.parametrize("most", [0, 3])
@pytest.mark.parametrize("body", [
    "Trilu(x)", "MatMul(x, t)", "MatMul(t, x)", "Softmax <axis = 0> (x)", "ReduceSum <keepdims = 0> (x)",
    "ReduceMax(x, second)",
    "Concat <axis = 0> (x, x)", "CumSum(x, first)", "Relu(t)", "Tile(x, twice)", "Slice(x, rows, rows_end)", "Expand(t, two)"])
def test_dims_that_are_declared_to_be_nothing(body: str, most: int) -> None:
    """Found by random operators: an extent that is 0 at all sizes, and is no constant, was no row of a schedule."""
    made = onnx.parser.parse_model(f'''<ir_version: 8, opset_import: ["" : 18]>
        g (float[a, b] x) => (y)
        <int64[1] rows = {{0}}, int64[1] rows_end = {{9}}, int64[1] second = {{1}}, int64 first = {{0}},
         int64[2] twice = {{2, 2}}, int64[3] two = {{2, 1, 1}}>
        {{ t = Transpose(x)
           y = {body} }}''')
    executable = tsc.compile(made, dims={"a": (0, most), "b": (1, 31)})
    session = onnxruntime.InferenceSession(made.SerializeToString())
    for a, b in ((0, 1), (0, 17), (most, 5)):
        x = rows(a, b)
        np.testing.assert_allclose(executable.run(None, {"x": x})[0], session.run(None, {"x": x})[0], rtol=1e-5)


@pytest.mark.parametrize(("limit", "message"), [
    (np.eye(3, dtype=np.float32), r"a limit of shape \(3, 3\), expected one number"),
    (np.array(np.inf, np.float32), "the limit inf, expected a finite number")])
def test_a_range_of_constants_that_are_no_numbers_is_refused_in_one_sentence(limit: Any, message: str) -> None:
    """Mutated file 7171 of seed 20272403: the array stood in the message."""
    nodes = [helper.make_node("Range", ["start", "limit", "delta"], ["y"], "culprit")]
    held = {"start": np.array(0, np.float32), "limit": limit, "delta": np.array(1, np.float32)}
    graph = helper.make_graph(nodes, "g", [], [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
                              [onnx.numpy_helper.from_array(value, name) for name, value in held.items()])
    with pytest.raises(ModelError, match=message) as error:
        tsc.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    assert "\n" not in str(error.value)

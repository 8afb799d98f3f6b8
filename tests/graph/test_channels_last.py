"""Images whose channels are last in memory: where areas of them begin and end, and that they change no result."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tsc
from tests.machine import runnable
from tsc.config import Options
from tsc.graph.rewriting import channels
from tsc.ir import Graph, format_graph
from tsc.kernels import workshop
from tsc.pipeline import front

Array = np.ndarray[Any, Any]
N = helper.make_node
SIZES = ((1, 7, 7), (2, 14, 9), (3, 1, 1), (1, 23, 31), (2, 2, 5))
PADS = {"kernel_shape": [3, 3], "pads": [1] * 4}


def model(nodes: Sequence[onnx.NodeProto], weights: dict[str, Array | tuple[int, ...]], outputs: Sequence[str] = ("y",),
          depth: int = 8, more: dict[str, tuple[int | str, ...]] | None = None, rank: int = 2,
          shape: tuple[int | str, ...] = ()) -> onnx.ModelProto:
    """Nodes over an image `x` of so many channels, or of that shape; weights by their shapes are drawn."""
    rng = np.random.default_rng(len(weights))
    held = {name: rng.standard_normal(w).astype(np.float32) / 8 if isinstance(w, tuple) else w for name, w in weights.items()}
    given = {"x": shape or ("n", depth, "h", "w", "z")[:2 + rank], **(more or {})}
    graph = helper.make_graph(
        list(nodes), "g", [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in given.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in held.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def conv(x: str, w: str, y: str, **attributes: Any) -> onnx.NodeProto:
    return N("Conv", [x, *w.split()], [y], **{**PADS, **attributes})


def _if() -> onnx.NodeProto:
    """Twice a value of outside, or that value in a convolution."""
    empty: list[onnx.ValueInfoProto] = []
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("p", "q")]
    then = helper.make_graph([N("Add", ["t", "t"], ["p"])], "then", empty, ends[:1])
    other = helper.make_graph([conv("t", "b", "q")], "other", empty, ends[1:])
    return N("If", ["first"], ["y"], then_branch=then, else_branch=other)


def _blocks() -> onnx.ModelProto:
    """Images with channels last as inputs and outputs, between them residual blocks of convolutions by channels."""
    nodes, weights, x = [N("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2])], dict[str, Array | tuple[int, ...]](), "t"
    for b in "pq":
        nodes += [conv(x, f"w{b}", f"c{b}", group=8), N("Transpose", [f"c{b}"], [f"l{b}"], perm=[0, 2, 3, 1]),
                  N("LayerNormalization", [f"l{b}", f"g{b}"], [f"n{b}"]), N("MatMul", [f"n{b}", f"u{b}"], [f"h{b}"]),
                  N("Relu", [f"h{b}"], [f"r{b}"]), N("MatMul", [f"r{b}", f"d{b}"], [f"m{b}"]),
                  N("Transpose", [f"m{b}"], [f"s{b}"], perm=[0, 3, 1, 2]), N("Add", [f"s{b}", x], [f"a{b}"])]
        weights |= {f"w{b}": (8, 1, 3, 3), f"g{b}": (8,), f"u{b}": (8, 32), f"d{b}": (32, 8)}
        x = f"a{b}"
    nodes.append(N("Transpose", [x], ["y"], perm=[0, 2, 3, 1]))
    return model(nodes, weights, shape=("n", "h", "w", 8))


ints = {name: np.array(values, np.int64) for name, values in {
    "low": [1, 1], "high": [-1, 2**40], "axes": [1, 2], "rows": [0, 2, 4, -1], "around": [0, 0, 1, 2, 0, 1, 0, 3]}.items()}
TWO = [conv("x", "a", "t"), N("Relu", ["t"], ["r"])]
CASES: dict[str, onnx.ModelProto] = {
    "one": model([conv("x", "a c", "y")], {"a": (16, 8, 3, 3), "c": (16,)}),
    "pointwise": model([conv("x", "a", "t", kernel_shape=[1, 1], pads=[0] * 4), N("Tanh", ["t"], ["y"])], {"a": (17, 8, 1, 1)}),
    "strided": model([conv("x", "a", "y", strides=[2, 3], pads=[2, 0, 1, 3], kernel_shape=[2, 3])], {"a": (5, 8, 2, 3)}),
    "dilated": model([conv("x", "a", "y", dilations=[2, 1], pads=[2, 1, 2, 1])], {"a": (64, 8, 3, 3)}),
    "residual": model([*TWO, conv("r", "b", "s"), N("Add", ["s", "x"], ["u"]), N("Relu", ["u"], ["y"])],
                      {"a": (16, 8, 3, 3), "b": (8, 16, 3, 3)}, ("y", "r")),
    "branches": model([*TWO, conv("x", "b", "s"), N("Concat", ["r", "x", "s", "z"], ["y"], axis=1)],
                      {"a": (16, 8, 3, 3), "b": (5, 8, 3, 3)}, more={"z": ("n", 3, "h", "w")}),
    "pools": model([*TWO, N("MaxPool", ["r"], ["m"], **PADS, strides=[2, 2]), N("AveragePool", ["m"], ["v"], **PADS),
                    conv("v", "b", "s"), N("GlobalAveragePool", ["s"], ["g"]), N("Flatten", ["g"], ["f"]),
                    N("Gemm", ["f", "d"], ["y"])], {"a": (16, 8, 3, 3), "b": (17, 16, 3, 3), "d": (17, 4)}),
    "excited": model([*TWO, N("GlobalAveragePool", ["r"], ["g"]), N("Sigmoid", ["g"], ["e"]), N("Mul", ["r", "e"], ["m"]),
                      N("Add", ["m", "c"], ["s"]), conv("s", "b", "y")],
                     {"a": (16, 8, 3, 3), "b": (5, 16, 3, 3), "c": (16, 1, 1)}),
    "moved": model([*TWO, N("Pad", ["r", "around"], ["p"]), N("Slice", ["p", "low", "high", "axes"], ["s"]),
                    N("Resize", ["s", "", "twice"], ["y"], mode="nearest", coordinate_transformation_mode="asymmetric",
                      nearest_mode="floor")], {"a": (16, 8, 3, 3), **ints, "twice": np.array([1, 1, 2, 2], np.float32)}),
    "normed": model([*TWO, N("InstanceNormalization", ["r", "c", "d"], ["i"]), conv("i", "b", "y")],
                    {"a": (16, 8, 3, 3), "b": (5, 16, 3, 3), "c": (16,), "d": (16,)}),
    "turned": model([*TWO, N("Transpose", ["r"], ["l"], perm=[0, 2, 3, 1]), N("MatMul", ["l", "d"], ["m"]),
                     N("Transpose", ["m"], ["s"], perm=[0, 3, 1, 2]), conv("s", "b", "y")],
                    {"a": (16, 8, 3, 3), "b": (5, 16, 3, 3), "d": (16, 16)}),
    "tokens": model([*TWO, N("Reshape", ["r", "flat"], ["f"]), N("Transpose", ["f"], ["l"], perm=[0, 2, 1]),
                     N("LayerNormalization", ["l", "g"], ["e"]), N("MatMul", ["e", "d"], ["m"]),
                     N("Transpose", ["m"], ["q"], perm=[0, 2, 1]), N("Shape", ["r"], ["k"]), N("Reshape", ["q", "k"], ["s"]),
                     conv("s", "b", "y")],
                    {"a": (16, 8, 3, 3), "b": (5, 16, 3, 3), "d": (16, 16), "g": (16,), "flat": np.array([0, 16, -1])}),
    "kept": model([*TWO, N("Transpose", ["r"], ["l"], perm=[0, 2, 3, 1]), N("Tanh", ["l"], ["m"]),
                   N("Reshape", ["r", "flat"], ["v"]), conv("r", "b", "s"), N("Transpose", ["s"], ["u"], perm=[0, 2, 3, 1])],
                  {"a": (16, 8, 3, 3), "b": (5, 16, 3, 3), "flat": np.array([0, -1])}, ("l", "m", "v", "u", "s")),
    "windows": model([*TWO, N("Transpose", ["r"], ["l"], perm=[2, 3, 0, 1]), N("MatMul", ["l", "d"], ["m"]),
                      N("Transpose", ["m"], ["s"], perm=[2, 3, 0, 1]), conv("s", "b", "y")],
                     {"a": (16, 8, 3, 3), "b": (5, 16, 3, 3), "d": (16, 16)}),
    "blocks": _blocks(),
    "rows": model([*TWO, N("Transpose", ["r"], ["l"], perm=[0, 2, 3, 1]), conv("l", "b", "s"), N("Relu", ["s"], ["y"])],
                  {"a": (16, 8, 3, 3), "b": (5, 6, 3, 3)}, shape=("n", 8, 6, "w")),
    "back": model([*TWO, N("Transpose", ["r"], ["l"], perm=[0, 3, 1, 2]), conv("l", "b", "s"), N("Relu", ["s"], ["y"])],
                  {"a": (16, 8, 3, 3), "b": (5, 6, 3, 3)}, shape=("n", 8, "h", 6)),
    "shuffled": model([*TWO, N("DepthToSpace", ["r"], ["d"], blocksize=2), conv("d", "b", "y")],
                      {"a": (16, 8, 3, 3), "b": (5, 4, 3, 3)}),
    "grouped": model([*TWO, conv("r", "b", "s", group=16), conv("s", "c", "y", kernel_shape=[1, 1], pads=[0] * 4)],
                     {"a": (16, 8, 3, 3), "b": (16, 1, 3, 3), "c": (5, 16, 1, 1)}),
    "shared": model([conv("x", "a", "t"), conv("t", "a", "s"), N("Mul", ["a", "a"], ["v"]), N("Relu", ["s"], ["y"])],
                    {"a": (8, 8, 3, 3)}, ("y", "v")),
    "branched": model([N("Conv", ["x", "a"], ["t"], **PADS), N("ReduceMax", ["x"], ["m"], keepdims=0),
                       N("Less", ["m", "few"], ["first"]), _if()],
                      {"a": (8, 8, 3, 3), "b": (8, 8, 3, 3), "few": np.array(2.5, np.float32)}),
    "volume": model([N("Conv", ["x", "a"], ["t"], kernel_shape=[3, 1, 2], pads=[1, 0, 1] * 2), N("Relu", ["t"], ["y"])],
                    {"a": (16, 8, 3, 1, 2)}, rank=3),
}
#: Those that the fast suite runs; what the others have the fuzzers draw, too.
FEW = ("residual", "pools", "excited", "turned", "tokens", "blocks", "rows", "grouped", "moved", "branched", "volume")
TARGETS = [spec.name for spec in runnable()]


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """All areas are worth it."""
    monkeypatch.setattr(channels, "WORTH", 0)


def rewritten(given: onnx.ModelProto) -> Graph:
    shop = workshop("cpu", Options())
    return front(given, None, shop.recorder, shop.device)[0]


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize(("name", "target"), [
    *((name, "cpu") for name in FEW), *(pytest.param(name, "cpu", marks=pytest.mark.slow) for name in CASES if name not in FEW),
    *(pytest.param(*pair, marks=pytest.mark.slow) for pair in product(CASES, TARGETS))])
def test_no_result_is_another(name: str, target: str) -> None:
    """Nets compiled once, at several sizes, of one pixel too."""
    made, rng = tsc.compile(CASES[name], target=target), np.random.default_rng(1)
    wanted = onnxruntime.InferenceSession(CASES[name].SerializeToString(), providers=["CPUExecutionProvider"])
    right = 0
    for batch, high, wide in SIZES:
        known = {"n": batch, "h": high, "w": wide, "z": 4}
        feeds = {i.name: rng.standard_normal([known.get(size, size) for size in i.shape]).astype(np.float32)
                 for i in wanted.get_inputs()}
        try:
            expected = wanted.run(None, feeds)
        except onnxruntime.capi.onnxruntime_pybind11_state.RuntimeException:
            continue  # an image that is smaller than the window
        right += 1
        for got, want in zip(made.run(None, feeds), expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
    assert right >= 3


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("name", ["residual", "pools", "grouped"])
@pytest.mark.parametrize("high", [1, 7, "h", *(pytest.param(high, marks=pytest.mark.slow) for high in (3, 14))])
def test_sizes_that_the_model_knows(name: str, high: int | str) -> None:
    """Images of known sizes, among them such as are lines, or too short for a register tile; NaN and infinity go on as they
    do elsewhere; requests together and alone, on one thread or three, have the same bits."""
    given, rng = onnx.ModelProto(), np.random.default_rng(2)
    given.CopyFrom(CASES[name])
    for axis, size in ((2, high), (3, 9)):
        dim = given.graph.input[0].type.tensor_type.shape.dim[axis]
        if isinstance(size, int):
            dim.dim_value = size
    made, again = tsc.compile(given, threads=1), tsc.compile(given, threads=3)
    wanted = onnxruntime.InferenceSession(given.SerializeToString(), providers=["CPUExecutionProvider"])
    x = rng.standard_normal((3, 8, high if isinstance(high, int) else 5, 9)).astype(np.float32)
    x[1, 2, -1, 4], x[2, 0, 0, 0] = np.nan, np.inf
    results = made.run(None, {"x": x})
    for got, want, other in zip(results, wanted.run(None, {"x": x}), again.run(None, {"x": x}), strict=True):
        np.testing.assert_allclose(got[0], want[0], rtol=2e-5, atol=2e-5)
        assert got.tobytes() == other.tobytes() and (np.isfinite(got) <= np.isfinite(want)).all()
    alone = made.run(None, {"x": x[:1]})
    for got, whole in zip(alone, results, strict=True):
        assert got.tobytes() == whole[:1].tobytes()


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize(("name", "begins", "ends"), [
    ("one", "x", "y"), ("residual", "x", "ry"), ("branches", "xz", "y"), ("pools", "x", ""), ("moved", "x", "y"),
    ("normed", "x", "y"), ("excited", "x", "y"), ("turned", "x", "y"), ("tokens", "x", "y"), ("kept", "x", "rs"),
    ("windows", "xs", "ry"), ("blocks", "", ""), ("rows", "xl", "y"), ("back", "x", "ry"), ("shuffled", "xd", "ry"),
    ("grouped", "x", "y"), ("branched", "x", "t"), ("volume", "x", "y")])
def test_areas_end_where_dims_change_places(name: str, begins: str, ends: str) -> None:
    """What is copied where an area begins, and where it ends: once, whoever reads it."""
    copies = [(n.inputs[0], n.outputs[0]) for n in rewritten(CASES[name]).nodes if n.op == "Reorder"]
    assert set(copies) == {*((v, f"{v}.last") for v in begins), *((f"{v}.last", v) for v in ends)}
    assert len(copies) == len(begins + ends)


@pytest.mark.parametrize(("depth", "kernel", "turned"), [(64, 3, True), (8, 3, False), (512, 1, True), (64, 1, False)])
def test_only_what_computes_enough_is_turned(depth: int, kernel: int, turned: bool) -> None:
    node = N("Conv", ["x", "a"], ["y"], kernel_shape=[kernel] * 2, pads=[kernel // 2] * 4)
    assert bool(rewritten(model([node], {"a": (depth, depth, kernel, kernel)}, depth=depth)).orders) == turned


@pytest.mark.usefixtures("everywhere")
def test_what_is_seen_of_it() -> None:
    """The order stands beside a value's type, and copies are kernels of their own."""
    assert "x.last: float32[n, 8, h, w], in memory by dims (0, 2, 3, 1) = Reorder(x)" in format_graph(rewritten(CASES["one"]))
    assert [launch.kernel.split("_")[0] for launch in tsc.compile(CASES["one"]).launches] == ["opaque", "contraction", "opaque"]

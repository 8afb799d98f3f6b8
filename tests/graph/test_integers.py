"""Products of whole numbers: which are computed as such, two terms at a time, and that all of them are exact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tsc
from tests.machine import runnable
from tests.runtime.plans import plan_of
from tsc.codegen_c.specs import CPU_SPECS
from tsc.graph.dataflow import Element, element_of
from tsc.graph.rewriting import apart, integers
from tsc.ir import Graph, Node
from tsc.loop_ir.marks import QUAD_TILE
from tsc.sym import ShapeEnv
from tsc.te.expr import Buffer, Const, Load, add, call, index, select
from tsc.te.expr import Cast as Converted
from tsc.te.passes.narrow import ends_of

Arrays = Mapping[str, np.ndarray[Any, Any]]
RNG = np.random.default_rng(0)
SCALE, ZERO = np.float32(0.03), np.uint8(121)


def model(nodes: Sequence[tuple[Any, ...]], held: Arrays, shapes: Mapping[str, Sequence[int | str]]) -> onnx.ModelProto:
    """Nodes (operator, inputs, output, attributes) over uint8 inputs of these shapes; `y` is the output."""
    made = [helper.make_node(op, inputs.split(), [out], **(rest[0] if rest else {})) for op, inputs, out, *rest in nodes]
    kinds = {name: TensorProto.UINT8 for name in shapes}
    graph = helper.make_graph(made, "g", [helper.make_tensor_value_info(n, kinds[n], s) for n, s in shapes.items()],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
                              [numpy_helper.from_array(np.asarray(a), n) for n, a in held.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def is_whole(executable: tsc.Executable) -> bool:
    """Whether the model's product is one of whole numbers, in pairs."""
    return "/float32" in executable.explain()


def octets(*shape: int) -> np.ndarray[Any, Any]:
    """Bytes, of which some are at the ends."""
    found = RNG.integers(0, 256, shape, np.uint8)
    return np.where(RNG.random(shape) < 0.2, RNG.choice(np.array([0, 255], np.uint8), shape), found).astype(np.uint8)


def centred(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return (x.astype(np.int64) - int(ZERO)) * np.float64(SCALE)


PAIR = [("DequantizeLinear", "x s z", "a"), ("DequantizeLinear", "w ws wz", "b", {"axis": 1})]


@pytest.mark.parametrize("depth", [1, 2, 7, 64, 65])
@pytest.mark.parametrize("columns", [(), (9,)])
@pytest.mark.parametrize("signed", [True, False])
def test_pairs_of_quantisations_around_a_product(depth: int, columns: tuple[int, ...], signed: bool) -> None:
    """Weights of any size stay whole numbers: `DequantizeLinear` of them is not folded before it is seen what for."""
    kind = np.int8 if signed else np.uint8
    w = octets(depth, 9).view(kind)
    scales = RNG.uniform(0.01, 0.1, columns).astype(np.float32)
    zeros = np.zeros(columns, kind) if signed else RNG.integers(0, 256, columns).astype(kind)
    held = {"s": SCALE, "z": ZERO, "w": w, "ws": scales, "wz": zeros}
    made = tsc.compile(model([*PAIR, ("MatMul", "a b", "y")], held, {"x": ("n", depth)}))
    assert is_whole(made) or depth == 1
    weights = (w.astype(np.int64) - zeros.astype(np.int64)) * scales.astype(np.float64)
    for n in (1, 6, 7, 40):
        x = octets(n, depth)
        found, = made.run(None, {"x": x})
        np.testing.assert_allclose(found, centred(x) @ weights, rtol=1e-6, atol=1e-6 * np.abs(weights).max() * depth)


def test_extreme_bytes_sum_up_exactly() -> None:
    """33,000 products of 255 * 255, which are more than a float holds; one more term than int32 does is left to floats."""
    for depth, whole in ((33024, True), (33026, False)):
        held = {"s": np.float32(1), "z": np.uint8(0), "w": np.full((depth, 9), 255, np.uint8), "ws": np.float32(1),
                "wz": np.uint8(0)}
        made = tsc.compile(model([*PAIR, ("MatMul", "a b", "y")], held, {"x": ("n", depth)}))
        assert is_whole(made) == whole
        found, = made.run(None, {"x": np.full((3, depth), 255, np.uint8)})
        np.testing.assert_allclose(found, float(255 * 255 * depth), rtol=1e-7 if whole else 1e-4)


@pytest.mark.parametrize(("channels", "out", "group"), [(1, 3, 1), (2, 5, 1), (3, 4, 1), (8, 8, 1), (8, 8, 2), (4, 4, 4)])
def test_convolutions(channels: int, out: int, group: int) -> None:
    """With a scale for each kernel; padding is a number less its zero point, which is 0."""
    w = octets(out, channels // group, 3, 3).view(np.int8)
    scales = RNG.uniform(0.01, 0.1, out).astype(np.float32)
    held = {"s": SCALE, "z": ZERO, "w": w, "ws": scales, "wz": np.zeros(out, np.int8)}
    nodes = [PAIR[0], ("DequantizeLinear", "w ws wz", "b", {"axis": 0}),
             ("Conv", "a b", "y", {"pads": (1, 1, 1, 1), "group": group})]
    made = tsc.compile(model(nodes, held, {"x": ("n", channels, "h", "v")}))
    assert is_whole(made) == (channels > group)  # channels one by one are read in vectors where they stand
    ends = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, None) for name in "aby"]
    node = helper.make_node("Conv", ["a", "b"], ["y"], pads=(1, 1, 1, 1), group=group)
    plain = helper.make_model(helper.make_graph([node], "g", ends[:2], ends[2:]), opset_imports=[helper.make_opsetid("", 17)])
    weights = w.astype(np.float64) * scales.reshape(-1, 1, 1, 1)
    scale = np.abs(weights).max()
    for n, h, v in ((1, 5, 7), (2, 16, 9), (1, 1, 1)):
        x = octets(n, channels, h, v)
        found, = made.run(None, {"x": x})
        expected, = ReferenceEvaluator(plain).run(None, {"a": centred(x), "b": weights})
        np.testing.assert_allclose(found, expected, rtol=1e-6 if channels > group else 1e-5, atol=1e-6 * 9 * channels * scale)


def test_products_of_two_values_that_are_fed() -> None:
    """As attention has: one of them turned, over batches."""
    nodes = [("DequantizeLinear", "x s z", "a"), ("DequantizeLinear", "k s z", "c"),
             ("Transpose", "c", "t", {"perm": (0, 2, 1)}), ("MatMul", "a t", "y")]
    made = tsc.compile(model(nodes, {"s": SCALE, "z": ZERO}, {"x": ("n", "l", 24), "k": ("n", "l", 24)}))
    assert is_whole(made)
    for n, length in ((1, 1), (2, 17), (3, 40)):
        x, k = octets(n, length, 24), octets(n, length, 24)
        found, = made.run(None, {"x": x, "k": k})
        np.testing.assert_allclose(found, centred(x) @ centred(k).transpose(0, 2, 1), rtol=1e-6, atol=1e-4)


def test_what_was_made_for_a_product_that_stays_is_there_for_the_next() -> None:
    """Turned bytes, multiplied by floats first, by bytes then."""
    nodes = [("Cast", "x", "a", {"to": TensorProto.FLOAT}), ("Transpose", "a", "t", {"perm": (0, 2, 1)}), ("Sqrt", "a", "e"),
             ("MatMul", "t e", "p"), ("MatMul", "t a", "q"), ("Add", "p q", "y")]
    made = tsc.compile(model(nodes, {}, {"x": (2, 24, 24)}))
    assert is_whole(made)
    x = octets(2, 24, 24).astype(np.float64)
    expected = x.transpose(0, 2, 1) @ np.sqrt(x) + x.transpose(0, 2, 1) @ x
    np.testing.assert_allclose(made.run(None, {"x": x.astype(np.uint8)})[0], expected, rtol=1e-5)


def test_gemm_with_turned_weights() -> None:
    held = {"s": SCALE, "z": ZERO, "w": octets(9, 30).view(np.int8), "ws": np.float32(0.07), "wz": np.int8(0),
            "c": np.arange(9, dtype=np.float32)}
    made = tsc.compile(model([*PAIR, ("Gemm", "a b c", "y", {"transB": 1})], held, {"x": ("n", 30)}))
    assert is_whole(made)
    x = octets(11, 30)
    expected = centred(x) @ (held["w"].astype(np.float64) * np.float64(np.float32(0.07))).T + held["c"]
    np.testing.assert_allclose(made.run(None, {"x": x})[0], expected, rtol=1e-6, atol=1e-4)


def test_what_is_not_quantised_on_both_sides_stays_a_product_of_floats() -> None:
    held = {"w": octets(30, 9), "ws": SCALE, "wz": ZERO}
    graph = model([PAIR[1], ("Cast", "x", "f", {"to": TensorProto.FLOAT}), ("Exp", "f", "a"), ("MatMul", "a b", "y")], held,
                  {"x": ("n", 30)})
    assert not is_whole(tsc.compile(graph))


@pytest.mark.parametrize("target", [spec.name for spec in runnable()])
def test_steps_are_taken_together(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A product of bytes has one instruction for two steps, or for four where there is one, and a single step behind them where
    depth is odd; one of int32 has none."""
    rng = np.random.default_rng(1)
    for kind, depth, pairs in (("uint8", 40, True), ("uint8", 42, True), ("uint8", 41, True), ("int32", 40, False)):
        quads = depth == 40 and pairs and QUAD_TILE in CPU_SPECS[target].intrinsics
        dump = tmp_path / f"{kind}{depth}"
        monkeypatch.setenv("TSC_DUMP", str(dump))
        number = getattr(TensorProto, kind.upper())
        x = helper.make_tensor_value_info("x", number, ["n", depth])
        y = helper.make_tensor_value_info("y", TensorProto.INT32, None)
        op = "MatMulInteger" if pairs else "MatMul"
        graph = helper.make_graph([helper.make_node(op, ["x", "w"], ["y"])], "g", [x], [y],
                                  [numpy_helper.from_array(rng.integers(0, 99, (depth, 24)).astype(kind), "w")])
        made = tsc.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), target=target)
        assert ("int16" in made.explain() or "uint8" in made.explain()) == pairs and len(plan_of(made._package).launches) == 1
        source = "".join(path.read_text() for path in dump.glob("*.c"))
        assert ("tsc_dot_bytes_int32" in source) == ("tsc_side_by_side_int32" in source) == quads
        assert ("tsc_pairs_of_int8" in source) == (pairs and depth % 2 == 0 and not quads)
        assert ("tsc_dot_int32" in source) == (pairs and not quads)
        assert ("tsc_accumulate_int32" in source) == (not pairs or depth % 2 == 1)


def test_weights_of_what_stays_a_product_of_floats_are_folded() -> None:
    """A scale that is fed does not go behind the product: nothing brings weights to floats in each run then."""
    nodes = [("Cast", "u", "s", {"to": TensorProto.FLOAT}), ("DequantizeLinear", "x s z", "a"), PAIR[1], ("MatMul", "a b", "y")]
    held = {"z": ZERO, "w": octets(30, 9), "ws": SCALE, "wz": ZERO}
    made = tsc.compile(model(nodes, held, {"x": ("n", 30), "u": ()}))
    assert not is_whole(made) and {array.dtype.name for array in made._package.constants.values()} == {"float32"}
    x = octets(5, 30)
    expected = (x.astype(np.float64) - 121) * 3 @ centred(held["w"])
    np.testing.assert_allclose(made.run(None, {"x": x, "u": np.array(3, np.uint8)})[0], expected, rtol=1e-5, atol=1e-2)


def test_ends_of_whole_numbers() -> None:
    byte, signed, wide = (Load(Buffer("b", dtype, ()), ()) for dtype in ("uint8", "int8", "int32"))
    less = call("sub", Converted(byte, "int32"), Converted(byte, "int32"))
    assert ends_of(less) == (-255, 255) and ends_of(add(less, less)) == (-510, 510)
    assert ends_of(Converted(less, "int16")) == (-255, 255) and ends_of(Converted(less, "int8")) == (-128, 127)
    assert ends_of(wide) is None and ends_of(Converted(wide, "int16")) == (-32768, 32767)
    assert ends_of(select(call("lt", index(0), index(1)), Converted(signed, "int32"), Const(300, "int32"))) == (-128, 300)
    assert ends_of(Converted(Converted(byte, "float32"), "int32")) is None
    assert ends_of(call("mul", byte, byte)) is None


@pytest.mark.parametrize("op", ["Mul", "Add"])
def test_values_that_are_used_again_and_again_are_looked_at_once(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 40 nodes reads the one before twice: followed along each way there would be 2^16 to look at."""
    looked: list[str] = []

    def counted(graph: Graph, env: ShapeEnv, node: Node, output: int) -> Element:
        looked.append(node.name)
        return element_of(graph, env, node, output)

    for module in (integers, apart):
        monkeypatch.setattr(module, "element_of", counted)
    kind = TensorProto.FLOAT if op == "Mul" else TensorProto.INT32
    nodes: list[tuple[Any, ...]] = [("Cast", "x", "f", {"to": kind})]
    nodes += [(op, f"{'f' if k == 0 else f't{k}'} {'f' if k == 0 else f't{k}'}", f"t{k + 1}") for k in range(40)]
    nodes += [("MatMul", "t40 w", "p"), ("Cast", "p", "y", {"to": TensorProto.FLOAT})]
    weights = np.ones((30, 9), np.float32 if op == "Mul" else np.int32)
    tsc.compile(model(nodes, {"w": weights}, {"x": ("n", 30)}))
    assert 16 <= len(looked) < 200

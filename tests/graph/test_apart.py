"""Products of bytes, four steps at a time: what zero points and signs add is summed up apart, and no bit differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tsc
from tests.machine import runnable
from tests.runtime.plans import plan_of
from tsc.codegen_c.specs import CPU_SPECS, host_spec
from tsc.loop_ir.marks import QUAD_TILE

Array = np.ndarray[Any, Any]
TARGETS = [spec.name for spec in runnable()]
QUADS = [name for name in TARGETS if QUAD_TILE in CPU_SPECS[name].intrinsics]


def ends_often(dtype: str, *shape: int) -> Array:
    """Bytes, many of which are the least or the greatest."""
    rng, info = np.random.default_rng(len(shape) + sum(shape)), np.iinfo(dtype)
    found = rng.integers(info.min, info.max + 1, shape)
    return np.where(rng.random(shape) < 0.3, rng.choice(np.array([info.min, info.max]), shape), found).astype(dtype)


def model(nodes: list[onnx.NodeProto], inputs: dict[str, tuple[str, tuple[int | str, ...]]], held: dict[str, Array],
          outputs: dict[str, str]) -> onnx.ModelProto:
    """Inputs and outputs by name, of a dtype."""
    number = {name: getattr(TensorProto, name.upper()) for name in ("int8", "uint8", "int32", "float")}
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(n, number[dtype], shape) for n, (dtype, shape) in inputs.items()],
        [helper.make_tensor_value_info(n, number[dtype], None) for n, dtype in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in held.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("zero", ["none", "constant", "fed", "rows"])
@pytest.mark.parametrize("rows", ["uint8", "int8"])
@pytest.mark.parametrize(("columns", "shift"), [("int8", 0), ("uint8", 128), ("int8", 3)])
def test_whole_products(zero: str, rows: str, columns: str, shift: int) -> None:
    """Weights of which all fit into bytes with a sign, less their zero point, and such as do not."""
    for depth, wide, batch in ((4, 1, (3,)), (42, 70, ()), (68, 65, (2, 3))):
        w = ends_often(columns, depth, wide)
        inputs: dict[str, tuple[str, tuple[int | str, ...]]] = {"x": (rows, (*batch, "n", depth))}
        held = {"w": w, "wz": np.array(shift, columns)}
        if zero == "constant":
            held["z"] = np.array(np.iinfo(rows).max - 2, rows)
        elif zero != "none":
            inputs["z"] = (rows, ("n",) if zero == "rows" else ())
        node = helper.make_node("MatMulInteger", ["x", "w", "" if zero == "none" else "z", "wz"], ["y"])
        made = tsc.compile(model([node], inputs, held, {"y": "int32"}))
        for n in (1, 6, 7, 33):
            x, z = ends_often(rows, *batch, n, depth), ends_often(rows, n) if zero == "rows" else ends_often(rows, 1)[0]
            feeds = {"x": x} | ({"z": np.asarray(z)} if "z" in inputs else {})
            less = np.asarray({"none": 0, "constant": held.get("z", 0)}.get(zero, z), np.int64)
            expected = (x.astype(np.int64) - (less[:, None] if zero == "rows" else less)) @ (w.astype(np.int64) - shift)
            np.testing.assert_array_equal(made.run(None, feeds)[0], expected.astype(np.int32))


@pytest.mark.parametrize(("columns", "shift"), [("int8", 0), ("uint8", 128), ("int8", -3), ("uint8", 17)])
def test_large_weights(columns: str, shift: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of more than a megabyte, which are not folded to wider ones, are bytes with a sign where they fit, with whatever
    zero point; two products share them."""
    monkeypatch.setenv("TSC_DUMP", str(tmp_path))
    depth, wide = 1024, 300
    w = np.clip(ends_often(columns, depth, wide), *((0, 255) if shift == 17 else (shift - 128, shift + 127))).astype(columns)
    held = {"w": w, "wz": np.array(shift, columns)}
    nodes = [helper.make_node("MatMulInteger", [x, "w", "", "wz"], [y]) for x, y in (("x", "y"), ("u", "v"))]
    made = tsc.compile(model(nodes, {"x": ("uint8", ("n", depth)), "u": ("int8", ("n", depth))}, held,
                             {"y": "int32", "v": "int32"}))
    source = "".join(path.read_text() for path in tmp_path.glob("*.c"))
    assert ("tsc_dot_bytes" in source) == (shift != 17 and host_spec().name in QUADS)
    x, u = ends_often("uint8", 7, depth), ends_often("int8", 7, depth)
    for found, rows in zip(made.run(None, {"x": x, "u": u}), (x, u)):
        np.testing.assert_array_equal(found, rows.astype(np.int64) @ (w.astype(np.int64) - shift))


@pytest.mark.parametrize("fed", [True, False])
@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_differences_that_wrap_around_as_bytes(kind: str, fed: bool) -> None:
    """Bytes less a byte, as bytes, are no bytes less what is summed up apart; without rows, too."""
    less, w = np.array(100, kind), np.random.default_rng(0).integers(-9, 9, (8, 5)).astype(np.float32)
    nodes = [helper.make_node("Sub", ["x", "z"], ["d"]), helper.make_node("Cast", ["d"], ["f"], to=TensorProto.FLOAT),
             helper.make_node("MatMul", ["f", "w"], ["y"])]
    given: dict[str, tuple[str, tuple[int | str, ...]]] = {"x": (kind, ("n", 8))} | ({"z": (kind, ())} if fed else {})
    made = tsc.compile(model(nodes, given, {"w": w} | ({} if fed else {"z": less}), {"y": "float"}), dims={"n": (0, None)})
    for n in (0, 1, 7):
        x = ends_often(kind, n, 8)
        found, = made.run(None, {"x": x} | ({"z": less} if fed else {}))
        np.testing.assert_array_equal(found, (x - less).astype(np.float32) @ w)


@pytest.mark.parametrize("target", TARGETS)
def test_sums_wrap_around(target: str) -> None:
    """33,000 products of 255 and -128 leave int32 in both parts, which are apart by 2^32."""
    depth = 70000
    node = helper.make_node("MatMulInteger", ["x", "w", "z"], ["y"])
    held = {"w": np.full((depth, 3), -128, np.int8), "z": np.array(255, np.uint8)}
    made = tsc.compile(model([node], {"x": ("uint8", ("n", depth))}, held, {"y": "int32"}), target=target)
    for value in (0, 254, 255):
        x = np.full((2, depth), value, np.uint8)
        expected = (x.astype(np.int64) - 255) @ held["w"].astype(np.int64)
        np.testing.assert_array_equal(made.run(None, {"x": x})[0], expected.astype(np.int32))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ["uint8", "int8"])
def test_pairs_of_quantisations(target: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Floats that are quantised and multiplied three times: one kernel makes the bytes, and is read by all products."""
    monkeypatch.setenv("TSC_DUMP", str(tmp_path))
    depth, wide, step = 64, 32, np.float32(0.02)
    zero = np.array(100, kind)
    held: dict[str, Array] = {"s": np.asarray(step), "z": zero, "ws": np.full(wide, 0.01, np.float32),
                              "wz": np.zeros(wide, np.int8)}
    held |= {f"w{k}": ends_often("int8", depth, wide) for k in range(3)}
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
             helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"])]
    for k in range(3):
        nodes += [helper.make_node("DequantizeLinear", [f"w{k}", "ws", "wz"], [f"f{k}"], axis=1),
                  helper.make_node("MatMul", ["d", f"f{k}"], [f"y{k}"])]
    made = tsc.compile(model(nodes, {"x": ("float", ("n", depth))}, held, {f"y{k}": "float" for k in range(3)} | {"q": kind}),
                       target=target)
    source = "".join(path.read_text() for path in tmp_path.glob("*.c"))
    assert ("tsc_dot_bytes" in source) == (target in QUADS)
    # what the products read is made once
    assert len(plan_of(made._package).launches) == 4 + (target not in QUADS or kind == "int8")
    info = np.iinfo(kind)
    for n in (1, 7, 30):
        x = np.random.default_rng(n).standard_normal((n, depth)).astype(np.float32) * 3
        *found, q = made.run(None, {"x": x})
        expected: Array = np.clip(np.rint(x / step) + int(zero), info.min, info.max)
        np.testing.assert_array_equal(q, expected.astype(kind))
        for k in range(3):
            whole = (expected.astype(np.int64) - int(zero)) @ held[f"w{k}"].astype(np.int64)
            np.testing.assert_allclose(found[k], whole * np.float64(step) * 0.01, rtol=1e-6, atol=1e-6)

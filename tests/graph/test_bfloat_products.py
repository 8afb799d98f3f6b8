"""`precision="bf16"`: products with constant weights have factors of bfloat16, two steps at a time, and sums of float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tsc
from tsc.codegen_c.specs import BFLOAT_SPECS, CPU_SPECS, host_spec
from tsc.errors import LaunchError
from tsc.runtime.drivers.cpu import read_cpu_flags

Array = np.ndarray[Any, Any]
OPTIONS = tsc.Options(precision="bf16")
(SPEC,) = BFLOAT_SPECS.values()
needs_bfloats = pytest.mark.skipif(not set(SPEC.cpu_flags) <= read_cpu_flags(), reason="needs a CPU with AVX-512 BF16")
RNG = np.random.default_rng(0)


def model(body: list[onnx.NodeProto], x: tuple[str, tuple[int | str, ...]], **held: Array) -> onnx.ModelProto:
    """`x` is the input and `y` the output, both of one dtype."""
    kind = getattr(TensorProto, x[0].upper())
    graph = helper.make_graph(body, "g", [helper.make_tensor_value_info("x", kind, x[1])],
                              [helper.make_tensor_value_info("y", kind, None)],
                              [numpy_helper.from_array(array, name) for name, array in held.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def product(x: tuple[str, tuple[int | str, ...]], w: Array, *more: onnx.NodeProto) -> onnx.ModelProto:
    return model([helper.make_node("MatMul", ["x", "w"], ["a" if more else "y"]), *more], x, w=w)


def rounded(array: Array) -> Array:
    return array.astype(ml_dtypes.bfloat16).astype(np.float64)


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def source_of(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.glob("*.c"))


@needs_bfloats
@pytest.mark.parametrize(("batch", "depth", "wide"), [
    ((), 64, 64), ((3,), 40, 24), ((), 2, 5), ((2, 3), 770, 1), ((), 384, 100)])
def test_products(batch: tuple[int, ...], depth: int, wide: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of exact products of rounded factors, within what float32 rounds of so many terms."""
    monkeypatch.setenv("TSC_DUMP", str(tmp_path))
    w = normal(depth, wide)
    made = tsc.compile(product(("float", (*batch, "n", depth)), w, helper.make_node("Relu", ["a"], ["y"])), options=OPTIONS)
    assert ("tsc_dot_bfloat_float32x16" in source_of(tmp_path)) == (wide > 1)  # one column is a sum for each row
    assert "tsc_to_bfloat_float32x16" in source_of(tmp_path)
    for n in (1, 6, 7, 29):
        x = normal(*batch, n, depth)
        exact, size = rounded(x) @ rounded(w), np.abs(rounded(x)) @ np.abs(rounded(w))
        found = made.run(None, {"x": x})[0]
        assert (np.abs(found - np.maximum(exact, 0)) <= 2.0 ** -24 * depth * size).all()


@needs_bfloats
def test_what_is_no_such_product_stays_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Odd depth, weights that are fed, and convolutions."""
    monkeypatch.setenv("TSC_DUMP", str(tmp_path))
    w = normal(41, 24)
    x = normal(5, 41)
    found, = tsc.compile(product(("float", ("n", 41)), w), options=OPTIONS).run(None, {"x": x})
    np.testing.assert_allclose(found, x.astype(np.float64) @ w, rtol=1e-5, atol=1e-5)
    square = model([helper.make_node("MatMul", ["x", "x"], ["y"])], ("float", ("n", "n")))
    found, = tsc.compile(square, options=OPTIONS).run(None, {"x": x[:, :5]})
    np.testing.assert_allclose(found, x[:, :5].astype(np.float64) @ x[:, :5], rtol=1e-5, atol=1e-5)
    image = normal(1, 4, 6, 6)
    conv = model([helper.make_node("Conv", ["x", "k"], ["y"])], ("float", ("n", 4, 6, 6)), k=normal(8, 4, 1, 1))
    tsc.compile(conv, options=OPTIONS).run(None, {"x": image})
    assert "bfloat" not in source_of(tmp_path)


@needs_bfloats
def test_what_is_no_number_or_too_large() -> None:
    """Numbers that float32 has and bfloat16 has not become infinite in a run; constants the greatest that there is."""
    w = np.full((4, 3), 3.4e38, np.float32) * np.array([1, -1, 0], np.float32)
    made = tsc.compile(product(("float", ("n", 4)), w), options=OPTIONS)
    x = np.array([[0.25, 0, 0, 0], [np.nan, 0, 0, 0], [np.inf, 0, 0, 0], [3.4e38, 0, 0, 0], [0, 0, 0, 0]], np.float32)
    found, = made.run(None, {"x": x})
    greatest = float.fromhex("0x1.fep127")
    np.testing.assert_array_equal(found[0], np.array([greatest / 4, -greatest / 4, 0], np.float32))
    assert np.isnan(found[1]).all() and np.isnan(found[2:4, 2]).all()
    np.testing.assert_array_equal(found[2:4, :2], [[np.inf, -np.inf]] * 2)
    np.testing.assert_array_equal(found[4], [0, 0, 0])


@needs_bfloats
def test_files_in_bfloat16_are_not_rounded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The product reads what is fed where it lies: nothing is converted for it."""
    monkeypatch.setenv("TSC_DUMP", str(tmp_path))
    w = normal(32, 16).astype(ml_dtypes.bfloat16)
    made = tsc.compile(product(("bfloat16", ("n", 32)), w), options=OPTIONS)
    x = normal(7, 32).astype(ml_dtypes.bfloat16)
    found, = made.run(None, {"x": x})
    exact = x.astype(np.float64) @ w.astype(np.float64)
    np.testing.assert_allclose(found.astype(np.float64), exact, rtol=2.0 ** -8, atol=1e-3)
    assert "tsc_dot_bfloat_float32x16" in source_of(tmp_path) and len(list(tmp_path.glob("*.c"))) == 1


@needs_bfloats
def test_batches_and_threads_change_no_bit() -> None:
    w = normal(128, 96)
    one, two = (tsc.compile(product(("float", ("n", 128)), w), options=OPTIONS, threads=n) for n in (1, 2))
    x = normal(300, 128)
    whole, = one.run(None, {"x": x})
    for part in (slice(0, 1), slice(5, 12), slice(0, 299)):
        assert one.run(None, {"x": x[part]})[0].tobytes() == two.run(None, {"x": x[part]})[0].tobytes() == whole[part].tobytes()


@pytest.mark.parametrize("target", ["cpu-avx2", "cpu-avx512-vnni", "sm_90a", "emu:sm_80"])
def test_others_refuse(target: str) -> None:
    with pytest.raises(LaunchError, match=f"'{target}' in bf16.*cpu-avx512-bf16"):
        tsc.compile(product(("float", ("n", 4)), normal(4, 4)), target=target, options=OPTIONS)


def test_a_machine_without_refuses(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("flags\t\t: avx avx2 fma avx512f avx512vl avx512dq avx512bw avx512_vnni\n")
    assert host_spec(info) == CPU_SPECS["cpu-avx512-vnni"]
    with pytest.raises(LaunchError, match=r"cpu-avx512-bf16.*lacks avx512_bf16"):
        host_spec(info, BFLOAT_SPECS)

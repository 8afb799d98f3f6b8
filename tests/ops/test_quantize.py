"""Quantised numbers: ties, ends of types, blocks, and what is refused; a quantised net beside ONNX Runtime at any batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import tsc
from tsc.errors import ModelError, ShapeError, UnsupportedError

Array = np.ndarray[Any, Any]


def model(signature: str, body: str, opset: int = 21) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> g {signature} {{ {body} }}')


BYTES = {
    "quantised": ("float[n] x", "uint8[n] y", "y = QuantizeLinear(x, s, z)"),
    "floats": ("uint8[n] x", "float[n] y", "y = DequantizeLinear(x, s, z)"),
    "product": ("uint8[n, 64] x", "uint8[n, 48] y", "y = QLinearMatMul(x, s, z, w, s, zs, s, z)"),
    "sums": ("uint8[n, 64] x", "int32[n, 48] y", "y = MatMulInteger(x, w, z, zs)"),
    "pairs": ("float[n, 64] x", "float[n, 48] y", """q = QuantizeLinear(x, s, z) a = DequantizeLinear(q, s, z)
        b = DequantizeLinear(w, s, zs) p = MatMul(a, b) r = QuantizeLinear(p, s, z) y = DequantizeLinear(r, s, z)"""),
    "point": ("uint8[1, 64, h, k] x", "uint8[1, 48, h, k] y", "y = QLinearConv(x, s, z, v, s, zs, s, z)"),
    "window": ("uint8[1, 64, h, k] x", "uint8[1, 48, h, k] y",
               "y = QLinearConv <pads = [1, 1, 1, 1]> (x, s, z, u, s, zs, s, z)")}


@pytest.mark.parametrize("name", BYTES)
def test_bytes_are_computed_in_vectors(name: str) -> None:
    """No loop over many elements is left scalar: a conversion or a choice without a vector form costs ten times as much."""
    x, y, body = BYTES[name]
    proto = model(f"({x}) => ({y}) <float s = {{0.05}}, uint8 z = {{128}}, int8 zs = {{0}}>", body)
    rng = np.random.default_rng(0)
    for weights, shape in (("w", (64, 48)), ("v", (48, 64, 1, 1)), ("u", (48, 64, 3, 3))):
        if f" {weights}," in body or f"({weights}," in body:
            proto.graph.initializer.append(onnx.numpy_helper.from_array(rng.integers(-63, 64, shape).astype(np.int8), weights))
    found = tsc.compile(proto, target="cpu-avx2").explain()
    assert "stays scalar" not in found and "not vectorized" not in found


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16"])
def test_ties_go_to_the_even_before_the_zero_point_is_added(dtype: str) -> None:
    limits, zero = np.iinfo(dtype), 3
    proto = model(f"(float[n] x) => ({dtype}[n] y) <float s = {{0.5}}, {dtype} z = {{{zero}}}>", "y = QuantizeLinear(x, s, z)")
    x = np.array([0.25, 0.75, 1.25, -0.25, -0.75, -1.25, 1e9, -1e9, np.inf, -np.inf, 0.0, -0.0], np.float32)
    want = np.clip(np.rint(x.astype(np.float64) / 0.5) + zero, limits.min, limits.max).astype(dtype)
    np.testing.assert_array_equal(tsc.compile(proto).run(None, {"x": x})[0], want)


def test_blocks_of_any_length() -> None:
    """The last block may be short, the axis symbolic."""
    proto = model("(uint8[m, n] x, float[m, b] s, uint8[m, b] z) => (float[m, n] y)",
                  "y = DequantizeLinear<axis = 1, block_size = 4>(x, s, z)")
    executable, rng = tsc.compile(proto), np.random.default_rng(0)
    for m, n in ((1, 1), (3, 4), (2, 7), (5, 16)):
        blocks = -(-n // 4)
        x, z = (rng.integers(0, 256, (m, k)).astype(np.uint8) for k in (n, blocks))
        s = rng.uniform(0.1, 1, (m, blocks)).astype(np.float32)
        spread = [np.repeat(v, 4, axis=1)[:, :n] for v in (s, z)]
        np.testing.assert_array_equal(executable.run(None, {"x": x, "s": s, "z": z})[0],
                                      (x.astype(np.float32) - spread[1].astype(np.float32)) * spread[0])


def test_a_quantised_net() -> None:
    """As quantisers write it: weights in bytes, activations between pairs of nodes, at any batch."""
    rng = np.random.default_rng(3)
    w, bias = rng.integers(-127, 128, (6, 3, 3, 3)).astype(np.int8), rng.integers(-500, 500, 6).astype(np.int32)
    v = rng.integers(-127, 128, (6, 5)).astype(np.int8)
    constants = {"w": w, "bias": bias, "v": v, "sx": np.float32(0.25), "zx": np.uint8(128), "sw": np.full(6, 0.125, np.float32),
                 "zw": np.zeros(6, np.int8), "sb": np.full(6, 0.03125, np.float32), "zb": np.zeros(6, np.int32),
                 "sv": np.float32(0.0625), "zv": np.int8(0)}
    proto = model("(float[n, 3, h, k] x) => (float[n, 5] y)", """
        q = QuantizeLinear(x, sx, zx) d = DequantizeLinear(q, sx, zx)
        dw = DequantizeLinear<axis = 0>(w, sw, zw) db = DequantizeLinear<axis = 0>(bias, sb, zb)
        c = Conv<pads = [1, 1, 1, 1]>(d, dw, db) r = Relu(c) p = GlobalAveragePool(r) f = Flatten(p)
        dv = DequantizeLinear(v, sv, zv) y = MatMul(f, dv)""")
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items())
    options = onnxruntime.SessionOptions()  # its fusions quantise what the model does not
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    executable = tsc.compile(proto)
    for n, h, k in ((1, 5, 5), (4, 8, 3)):
        x = rng.standard_normal((n, 3, h, k)).astype(np.float32) * 8
        np.testing.assert_allclose(executable.run(None, {"x": x})[0], session.run(None, {"x": x})[0], rtol=1e-4, atol=1e-3)


def test_products_of_bytes() -> None:
    rng = np.random.default_rng(5)
    signature = "(uint8[m, k] a, int8[k, n] b, uint8 za, int8[n] zb) => (int32[m, n] y)"
    fed = [{"a": rng.integers(0, 256, (m, k)).astype(np.uint8), "b": rng.integers(-128, 128, (k, n)).astype(np.int8),
            "za": np.array(7, np.uint8), "zb": rng.integers(-9, 9, n).astype(np.int8)} for m, k, n in ((1, 1, 1), (5, 33, 17))]
    columns = tsc.compile(model(signature, "y = MatMulInteger(a, b, za, zb)"))
    for feeds in fed:  # by NumPy: where ONNX Runtime has only AVX2 to multiply bytes, sums of two products saturate
        a, b, za, zb = (feeds[name].astype(np.int64) for name in ("a", "b", "za", "zb"))
        np.testing.assert_array_equal(columns.run(None, feeds)[0], (a - za) @ (b - zb))
    rows = tsc.compile(model(signature.replace("uint8 za", "uint8[m] za"), "y = MatMulInteger(a, b, za, zb)"))
    for feeds in fed:  # a zero point a row, which ONNX Runtime refuses and the reference broadcasts along columns
        feeds["za"] = rng.integers(0, 256, len(feeds["a"])).astype(np.uint8)
        a, b, za, zb = (feeds[name].astype(np.int64) for name in ("a", "b", "za", "zb"))
        np.testing.assert_array_equal(rows.run(None, feeds)[0], (a - za[:, None]) @ (b - zb))


@pytest.mark.parametrize(("signature", "body", "error", "words"), [
    ("(float[m, 4] x, float[3] s) => (uint8[m, 4] y)", "QuantizeLinear(x, s)", ShapeError, "a number for each place"),
    ("(float[m, 4] x, float[2, 2] s) => (uint8[m, 4] y)", "QuantizeLinear(x, s)", ModelError, "of rank 2, expected one"),
    ("(float[3, 4] x, float[3, 3] s) => (uint8[3, 4] y)", "QuantizeLinear<block_size = 2>(x, s)", ShapeError, "each block"),
    ("(uint8[1, 4] x, int8[4, 5] w, uint8[2] z) => (int32[1, 5] y)", "MatMulInteger(x, w, z)", ShapeError, "input 2"),
    ("(uint8[m, 4] x, int8[4, 1] w, uint8 z, int8[3] p) => (int32[m, 1] y)", "MatMulInteger(x, w, z, p)",
     ShapeError, "input 3"),
    ("(uint8[m, 4] x, int8[4, 5] w, uint8[2, 2, 1] z) => (int32[m, 5] y)", "MatMulInteger(x, w, z)", ModelError, "of rank 3"),
    ("(uint8[m, 4] x, float s, uint8 z, int8[4, 1] w, float[3] t, int8 p) => (uint8[m, 1] y)",
     "QLinearMatMul(x, s, z, w, t, p, s, z)", ShapeError, "input 4 has a number"),
    ("(uint8[1, 4, 3, 3] x, int8[1, 4, 1, 1] w, uint8 z, int8[2] p) => (int32[1, 1, 3, 3] y)", "ConvInteger(x, w, z, p)",
     ShapeError, "input 3 has a number"),
    ("(float[m] x, float s) => (int4[m] y)", "QuantizeLinear<output_dtype = 22>(x, s)", UnsupportedError, "22|int4"),
    ("(float[m] x, float s, int8 z) => (int8[m] y)", "QuantizeLinear<output_dtype = 2>(x, s, z)", ModelError, "expected one")])
def test_what_is_refused(signature: str, body: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        tsc.compile(model(signature, f"y = {body}"))

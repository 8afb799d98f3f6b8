"""Recipes of quantised operators. Scales are such that no result lies near a tie but those that lie on one in any arithmetic:
the standard does not say in which precision what is rounded is computed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from tests.fuzz.operators.case import Dims, Draft
from tests.fuzz.operators.elementwise import Recipe, rank
from tests.fuzz.operators.layers import kernel_and_image, window
from tests.fuzz.operators.values import Array, Draw, Sizes, within

#: Powers of two: what is divided or multiplied by them is exact.
EXACT = (0.25, 0.5, 1.0, 2.0)
_BYTES = ("uint8", "int8")


def among(values: Sequence[float], dtype: str) -> Draw:
    """Some of a few values."""
    def made(gen: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
        return np.asarray(gen.choice(np.asarray(values, dtype), shape), dtype)
    return made


def _parameter(d: Draft, values: Sequence[float], dtype: str, dims: Sequence[str | int] = ()) -> str:
    role = "feed" if d.chance(0.3) else d.rng.choice(("initializer", "node"))
    return d.operand(dims, dtype, among(values, dtype), role)


def _points(dtype: str) -> tuple[float, ...]:
    return (0, 0, 3, 128, 255) if dtype.startswith("u") else (0, 0, 3, -7, -128)


def _linear(d: Draft) -> tuple[list[str | int], list[str | int], dict[str, object]]:
    """The dims of numbers, those of their scales, and attributes."""
    dims = list(d.extents(rank(d, 1)))
    form = d.rng.choice(("one", "one", "axis", *(("blocks",) if d.opset >= 21 else ())))
    if form == "one" or d.opset < 13:
        return dims, [], {}
    axis = d.rng.randrange(len(dims))
    given = axis - len(dims) if d.chance(0.3) else axis
    if form == "axis":
        return dims, [dims[axis]], {"axis": given}
    count, block = d.rng.choice((1, 2, 3)), d.rng.choice((1, 2, 4))
    dims[axis] = count * block
    return dims, [*dims[:axis], count, *dims[axis + 1:]], {"axis": given, "block_size": block}


def quantize(d: Draft) -> None:
    """Ties among the quotients, numbers beyond the type, and (special) what is no number nowhere: no type holds it."""
    dims, scales, attributes = _linear(d)
    dtype = d.rng.choice((*_BYTES, *(("int16", "uint16") if d.opset >= 21 else ())))
    x = d.operand(dims, "float32", among([k / 8 for k in range(-40, 41)] + [1000.0, -1000.0, 7e4], "float32"))
    inputs = [x, _parameter(d, EXACT, "float32", scales)]
    if d.chance(0.7) or dtype != "uint8":
        inputs.append(_parameter(d, _points(dtype), dtype, scales))
    d.node("QuantizeLinear", inputs, **attributes)


def pairs(d: Draft) -> None:
    """Two factors that were quantised, multiplied as floats: weights may have a scale for each column, or kernel."""
    if d.chance(0.4):
        (x, w), points, attributes = _convolved(d)
        op, axis, inner, kinds = "Conv", 0, d.dims[w][:1], [d.dtypes[i] for i in (x, w)]
    else:
        (rows, depth, columns), role, kinds = _product(d)
        x, w = octets(d, (*d.extents(d.rng.choice((0, 1))), rows, depth), kinds[0]), octets(d, (depth, columns), kinds[1], role)
        op, axis, inner, points, attributes = "MatMul", 1, (columns,), [], {}
    each = tuple(inner) if d.chance(0.5) else ()
    left = [x, _parameter(d, (0.3, *EXACT), "float32"), *(points[:1] or [_parameter(d, _points(kinds[0]), kinds[0])])]
    right = [w, _parameter(d, (0.07, *EXACT), "float32", each), _parameter(d, _points(kinds[1]), kinds[1], each)]
    factors = [*d.node("DequantizeLinear", left), *d.node("DequantizeLinear", right, axis=axis if each else None)]
    d.node(op, factors, **attributes)


def dequantize(d: Draft) -> None:
    if d.generation >= 9 and d.opset >= 13 and d.chance(0.5):
        return pairs(d)
    dims, scales, attributes = _linear(d)
    dtype = d.rng.choice((*_BYTES, "int32", *(("int16", "uint16") if d.opset >= 21 else ())))
    limits = np.iinfo(dtype)
    x = d.operand(dims, dtype, within(dtype, max(limits.min, -2**20), min(limits.max, 2**20)))
    inputs = [x, _parameter(d, (0.3, 0.07, *EXACT), "float32", scales)]
    if dtype != "int32" and d.chance(0.7):
        inputs.append(_parameter(d, _points(dtype), dtype, scales))
    d.node("DequantizeLinear", inputs, **attributes)


def octets(d: Draft, dims: Sequence[str | int], dtype: str, role: str | None = None) -> str:
    limits = np.iinfo(dtype)
    return d.operand(dims, dtype, within(dtype, limits.min, limits.max + 1), role)


def _product(d: Draft) -> tuple[Dims, str | None, list[str]]:
    """Rows, depth and columns, the role of weights, if it is none by chance, and the dtypes of both factors: every second time
    weights are constant and of a depth of which no step is left over."""
    (rows, depth, columns), kinds = d.extents(3), [d.rng.choice(_BYTES) for _ in range(2)]
    if d.generation < 10 or d.chance(0.5):
        return (rows, depth, columns), None, kinds
    return (rows, 4 * d.rng.choice((1, 2, 3, 9, 16, 25)), columns), d.rng.choice(("initializer", "node")), kinds


def differences(d: Draft) -> None:
    """A factor that is a sum or a difference, of bytes, which wraps around, or of what bytes are as int32."""
    (rows, depth, columns), role, kinds = _product(d)
    x, w = octets(d, (*d.extents(d.rng.choice((0, 1))), rows, depth), kinds[0]), octets(d, (depth, columns), kinds[1], role)
    other = d.rng.choice(((), (1,), (depth,), (rows, 1)))
    op, wide = d.rng.choice(("Sub", "Sub", "Add")), d.chance(0.3)
    y = d.operand(other, "int32", within("int32", -300, 300)) if wide else octets(d, other, kinds[0])
    if wide:
        x, = d.node("Cast", [x], to=TensorProto.INT32)
    factor, = d.node(op, [x, y] if d.chance(0.7) else [y, x])
    if not wide and d.chance(0.3):
        d.node("MatMulInteger", [factor, w])
        return
    kind = TensorProto.INT32 if wide or d.chance(0.2) else TensorProto.FLOAT  # sums of these are whole, and exact
    if not wide:
        factor, = d.node("Cast", [factor], to=kind)
    d.node("MatMul", [factor, *d.node("Cast", [w], to=kind)])


def matmul_integer(d: Draft) -> None:
    if d.generation >= 11 and d.chance(0.5):
        d.opset = max(d.opset, 14)  # which adds bytes
        return differences(d)
    (rows, depth, columns), role, kinds = _product(d)
    batch = d.extents(d.rng.choice((0, 0, 1)))
    inputs = [octets(d, (*batch, rows, depth), kinds[0]), octets(d, (depth, columns), kinds[1], role)]
    if d.chance(0.7):
        inputs += [_parameter(d, _points(kind), kind) for kind in kinds[:d.rng.choice((1, 2))]]
    d.node("MatMulInteger", inputs)


def _result(d: Draft, factor: float) -> list[str]:
    """Scale and zero point of a result: a third of what is summed up is never near a half."""
    kind = d.rng.choice(_BYTES)
    return [_parameter(d, (3 * factor,), "float32"), _parameter(d, _points(kind), kind)]


def qlinear_matmul(d: Draft) -> None:
    (rows, depth, columns), role, kinds = _product(d)
    d.node("QLinearMatMul", [
        octets(d, (rows, depth), kinds[0]), _parameter(d, (0.5,), "float32"), _parameter(d, _points(kinds[0]), kinds[0]),
        octets(d, (depth, columns), kinds[1], role), _parameter(d, (2.0,), "float32"),
        _parameter(d, _points(kinds[1]), kinds[1]),
        *_result(d, 1.0)])


def _convolved(d: Draft) -> tuple[list[str], list[str], dict[str, object]]:
    """An image and kernels, their zero points, and attributes."""
    kernel, dilations, image = kernel_and_image(d, 2)
    group, inner, outer, kind = d.rng.choice((1, 1, 2)), d.rng.choice((1, 2, 3)), d.rng.choice((1, 2, 5)), d.rng.choice(_BYTES)
    x = octets(d, (d.rng.choice((1, 2)), group * inner, *image), "uint8")
    w = octets(d, (group * outer, inner, *kernel), kind)
    points = [_parameter(d, _points("uint8"), "uint8"), _parameter(d, (0,) if kind == "int8" else _points(kind), kind)]
    return [x, w], points, {"group": group, **window(d, 2, kernel, dilations)}


def conv_integer(d: Draft) -> None:
    operands, points, attributes = _convolved(d)
    d.node("ConvInteger", [*operands, *points[:d.rng.choice((0, 1, 2))]], **attributes)


def qlinear_conv(d: Draft) -> None:
    (x, w), (x_point, w_point), attributes = _convolved(d)
    inputs = [x, _parameter(d, (0.5,), "float32"), x_point, w, _parameter(d, (2.0,), "float32"), w_point, *_result(d, 1.0)]
    if d.chance(0.5):
        inputs.append(d.operand(d.dims[w][:1], "int32", within("int32", -999, 1000), d.rng.choice(("initializer", "node"))))
    d.node("QLinearConv", inputs, **attributes)


RECIPES: dict[str, Recipe] = {
    "QuantizeLinear": quantize, "DequantizeLinear": dequantize, "MatMulInteger": matmul_integer,
    "QLinearMatMul": qlinear_matmul, "ConvInteger": conv_integer, "QLinearConv": qlinear_conv}

"""Operators on numbers of few bits: elementwise ones, pools and what joins tensors, each between two scales."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tsc.ops.base import Builder, OpDef, PatternKind, Sample
from tsc.ops.form import BYTES, FLOAT32, Form
from tsc.ops.microsoft.domain import MICROSOFT
from tsc.ops.movement import reshape
from tsc.ops.quantize import centred, in_shape, rounded
from tsc.ops.reduce import cast, count, reduction, softmax_axes_of
from tsc.ops.samples import bools, floats, ints, octets, scalar, scales
from tsc.ops.shapes import HALVES, NUMBERS, canonical, expect_rank
from tsc.sym import ONE

# -- scales ------------------------------------------------------------------------------------------------------

def one(builder: Builder, i: int) -> str:
    """Input `i`, which is one number, as a scalar."""
    name = builder.infer.node.inputs[i]
    return reshape(builder, name, ()) if builder.infer.type(i).rank else name


def dequantised(builder: Builder, i: int) -> str:
    """The numbers that input `i` stands for, whose scale and zero point are the inputs behind it."""
    zero_point = [one(builder, i + 2)] if builder.infer.has(i + 2) else []
    return builder.emit("DequantizeLinear", builder.infer.node.inputs[i], one(builder, i + 1), *zero_point)


def quantised(builder: Builder, value: str, scale: int, dtype: str) -> str:
    """Numbers in few bits, by the scale that is input number `scale` and the zero point behind it."""
    zero_point = [one(builder, scale + 1)] if builder.infer.has(scale + 1) else []
    return builder.emit("QuantizeLinear", value, one(builder, scale), *zero_point, output_dtype=NUMBERS[dtype])


def in_scale(builder: Builder, value: str, scale: int, dtype: str) -> str:
    """The same where the zero point is added before what is made is rounded, as ONNX Runtime does for sums and products."""
    value = builder.emit("Div", value, one(builder, scale))
    if builder.infer.has(scale + 1):
        value = builder.emit("Add", value, cast(builder, one(builder, scale + 1), dtype, "float32"))
    return rounded(builder, value, "float32", None, dtype)


# -- to few bits and back ----------------------------------------------------------------------------------------

def _quantize(builder: Builder) -> tuple[str, ...]:
    ctx = builder.infer
    precision = {"precision": NUMBERS["float32"]} if ctx.type(0).dtype in HALVES else {}
    return (builder.emit("QuantizeLinear", *ctx.node.inputs, axis=ctx.attr("axis", 1), **precision),)


def _dequantize(builder: Builder) -> tuple[str, ...]:
    ctx = builder.infer
    return (builder.emit("DequantizeLinear", *ctx.node.inputs, axis=ctx.attr("axis", 1)),)


# -- elementwise -------------------------------------------------------------------------------------------------

def _binary(op: str) -> Callable[[Builder], tuple[str, ...]]:
    def decompose(builder: Builder) -> tuple[str, ...]:
        made = builder.emit(op, dequantised(builder, 0), dequantised(builder, 3))
        return (in_scale(builder, made, 6, builder.infer.type(0).dtype),)

    return decompose


def _unary(op: str, *reads: str) -> Callable[[Builder], tuple[str, ...]]:
    def decompose(builder: Builder) -> tuple[str, ...]:
        attrs = {name: builder.infer.attr(name) for name in reads}
        made = builder.emit(op, dequantised(builder, 0), **attrs)
        return (quantised(builder, made, 3, builder.infer.type(0).dtype),)

    return decompose


def _where(builder: Builder) -> tuple[str, ...]:
    """Each side is brought to the scale of the result before one is chosen."""
    ctx = builder.infer
    sides = [quantised(builder, dequantised(builder, i), 7, ctx.type(1).dtype) for i in (1, 4)]
    return (builder.emit("Where", ctx.node.inputs[0], *sides),)


def _concat(builder: Builder) -> tuple[str, ...]:
    """Tensors, each with its scale and zero point, in the first scale."""
    ctx = builder.infer
    parts = [quantised(builder, dequantised(builder, i), 0, ctx.type(1).dtype) for i in range(2, len(ctx.node.inputs), 3)]
    return (builder.emit("Concat", *parts, axis=ctx.attr("axis")),)


# -- pools and shares --------------------------------------------------------------------------------------------

def _softmax(builder: Builder) -> tuple[str, ...]:
    """Along one axis, or, as the standard's before opset 13, along all from an axis on."""
    ctx = builder.infer
    axes = softmax_axes_of(ctx, int(ctx.attr("opset")), int(ctx.attr("axis")))
    steps = cast(builder, ctx.node.inputs[0], ctx.type(0).dtype, "int32")  # a zero point is of no consequence
    below = builder.emit("Sub", steps, reduction(builder, "ReduceMax", steps, axes))
    shares = builder.emit("Exp", builder.emit("Mul", cast(builder, below, "int32", "float32"), one(builder, 1)))
    total = reduction(builder, "ReduceSum", shares, axes)
    return (quantised(builder, builder.emit("Div", shares, total), 3, ctx.type(0).dtype),)


def channels_first(builder: Builder, value: str, back: bool = False) -> str:
    """An image with its channels, which are its last axis where an attribute says so, before its other axes; or `back`."""
    ctx = builder.infer
    if not ctx.attr("channels_last"):
        return value
    expect_rank(ctx, 0, 3)
    rank = ctx.type(0).rank
    return builder.emit("Transpose", value, perm=(0, *range(2, rank), 1) if back else (0, rank - 1, *range(1, rank - 1)))


def _average(builder: Builder) -> tuple[str, ...]:
    ctx = builder.infer
    attrs = {name: value for name, value in ctx.node.attrs.items() if name != "channels_last"}
    made = builder.emit("AveragePool", channels_first(builder, dequantised(builder, 0)), **attrs)
    return (channels_first(builder, quantised(builder, made, 3, ctx.type(0).dtype), back=True),)


def _global_average(builder: Builder) -> tuple[str, ...]:
    """Sums are exact before they are scaled."""
    ctx = builder.infer
    expect_rank(ctx, 0, 3)
    first = 1 if ctx.attr("channels_last") else 2
    axes = range(first, first + ctx.type(0).rank - 2)
    total = cast(builder, reduction(builder, "ReduceSum", centred(builder, 0, 2, ()), axes), "int32", "float32")
    step = builder.emit("Div", one(builder, 1), count(builder, axes, "float32"))
    return (quantised(builder, builder.emit("Mul", total, step), 3, ctx.type(0).dtype),)


# -- products ----------------------------------------------------------------------------------------------------

def product_in_floats(builder: Builder, factors: tuple[int, int], zero_points: tuple[int, int], steps: tuple[int, int],
                      bias: int) -> str:
    """An exact product of two inputs less their zero points, in the product of their scales, with a bias; the second one may
    have a scale and a zero point for each column. All are numbers of inputs, which may be left out but for scales."""
    ctx = builder.infer
    columns = canonical(ctx, zero_points[1]) if ctx.has(zero_points[1]) else ()
    left = centred(builder, factors[0], zero_points[0], ())
    product = builder.emit("MatMul", left, centred(builder, factors[1], zero_points[1], columns))
    scale = cast(builder, one(builder, steps[0]), ctx.type(steps[0]).dtype, "float32")
    return _scaled(builder, product, scale, factors[1], steps[1], bias)


def _scaled(builder: Builder, product: str, scale: str, w: int, columns: int, bias: int) -> str:
    """An int32 product with input `w` in floats by a scale and those of columns, with a bias."""
    ctx = builder.infer
    each = in_shape(builder, columns, canonical(ctx, columns), canonical(ctx, w))
    other = cast(builder, each, ctx.type(columns).dtype, "float32")
    value = builder.emit("Mul", cast(builder, product, "int32", "float32"), builder.emit("Mul", scale, other))
    if not ctx.has(bias):
        return value
    added = in_shape(builder, bias, canonical(ctx, bias), canonical(ctx, w))
    return builder.emit("Add", value, cast(builder, added, ctx.type(bias).dtype, "float32"))


def _to_float(builder: Builder) -> tuple[str, ...]:
    return (cast(builder, product_in_floats(builder, (0, 1), (4, 5), (2, 3), 6), "float32", builder.infer.type(2).dtype),)


def _dynamic(builder: Builder) -> tuple[str, ...]:
    """The first operand is brought to 8 bits by the span of its numbers and 0."""
    ctx = builder.infer
    whole, scale = spanned(builder, ctx.node.inputs[0], ctx.type(0).rank)
    columns = canonical(ctx, 3) if ctx.has(3) else ()
    return (_scaled(builder, builder.emit("MatMul", whole, centred(builder, 1, 3, columns)), scale, 1, 2, 4),)


def spanned(builder: Builder, x: str, rank: int) -> tuple[str, str]:
    """Numbers as int32 in steps of a scale, 255 of which span all of them and 0; and that scale."""
    zero, unit, most = (builder.constant(np.array(n, np.float32)) for n in (0, 1, 255))
    low = builder.emit("Min", reduction(builder, "ReduceMin", x, range(rank), keepdims=0), zero)
    high = builder.emit("Max", reduction(builder, "ReduceMax", x, range(rank), keepdims=0), zero)
    scale = builder.emit("Div", builder.emit("Sub", high, low), most)
    scale = builder.emit("Where", builder.emit("Equal", high, low), unit, scale)
    zero_point = builder.emit("Round", builder.emit("Clip", builder.emit("Div", builder.emit("Neg", low), scale), zero, most))
    steps = builder.emit("Add", builder.emit("Round", builder.emit("Div", x, scale)), zero_point)
    whole = builder.emit("Sub", builder.emit("Clip", steps, zero, most), zero_point)
    return cast(builder, whole, "float32", "int32"), scale


def _gemm(builder: Builder) -> tuple[str, ...]:
    """alpha * (A' @ B' + C) in the product of both scales; in few bits where the result has a zero point."""
    ctx = builder.infer
    a = centred(builder, 0, 2, ())
    if ctx.attr("transA"):
        a = builder.emit("Transpose", a, perm=(1, 0))
    zero_points = canonical(ctx, 5)
    b = centred(builder, 3, 5, (*zero_points, ONE) if ctx.attr("transB") else zero_points)
    if ctx.attr("transB"):
        b = builder.emit("Transpose", b, perm=(1, 0))
    product = builder.emit("Gemm", a, b, *(ctx.node.inputs[6:7] if ctx.has(6) else ()))
    columns = canonical(ctx, 3)[:1] if ctx.attr("transB") else canonical(ctx, 3)
    factor = builder.emit("Mul", one(builder, 1), in_shape(builder, 4, canonical(ctx, 4), columns))
    factor = builder.emit("Mul", factor, builder.constant(np.array(ctx.attr("alpha"), np.float32)))
    if ctx.has(7):
        factor = builder.emit("Div", factor, one(builder, 7))
    value = builder.emit("Mul", cast(builder, product, "int32", "float32"), factor)
    if not ctx.has(8):
        return (value,)
    dtype = ctx.type(8).dtype
    return (rounded(builder, value, "float32", cast(builder, one(builder, 8), dtype, "float32"), dtype),)


def _conv(builder: Builder) -> tuple[str, ...]:
    ctx = builder.infer
    attrs = {name: value for name, value in ctx.node.attrs.items() if name != "channels_last"}
    x = channels_first(builder, ctx.node.inputs[0])
    return (channels_first(builder, builder.emit("QLinearConv", x, *ctx.node.inputs[1:], **attrs), back=True),)


def _wide_product(builder: Builder) -> tuple[str, ...]:
    return (builder.emit("MatMul", *(cast(builder, x, "int16", "int32") for x in builder.infer.node.inputs)),)


# -- samples -----------------------------------------------------------------------------------------------------

def _weights(*shape: int, signed: bool = True) -> NDArray[np.integer]:
    """So small that no sum of two products overflows int16, in which ONNX Runtime adds them on some CPUs."""
    return ints(*shape, low=-60 if signed else 0, high=60, dtype="int8" if signed else "uint8")


def _quantizes() -> Sequence[Sample]:
    x = floats(3, 4, 5) * 7
    return [Sample([x, scales(), octets()]), Sample([x, scales()]), Sample([x, scales(4), octets(4, signed=True)]),
            Sample([x, scales(3), octets(3)], {"axis": 0})]


def _dequantizes() -> Sequence[Sample]:
    return [Sample([octets(3, 4, 5), scales(), octets()]), Sample([octets(3, 4, 5, signed=True), scales(5)], {"axis": 2}),
            Sample([octets(3, 4), scales(4), octets(4)]), Sample([ints(3, 4, dtype="int32"), scales()])]


def _binaries() -> Sequence[Sample]:
    a, b = octets(2, 3, 7), octets(3, 1)
    first, second = _zero_points(3, 130)
    found = [Sample([a, scalar(0.031), first, b, scalar(0.017), second, scalar(step), first]) for step in (0.0521, 1.83)]
    left, right = octets(5, 4, signed=True), octets(4, signed=True)
    signed = _zero_points(3, -7, dtype="int8")
    return [*found, Sample([left, scalar(0.031), signed[0], right, scalar(0.05), signed[1], scalar(0.077), signed[1]]),
            # many results lie between two steps
            Sample([a, scalar(0.5), first, b, scalar(0.25), second, scalar(1.0), first])]


def _zero_points(*values: int, dtype: str = "uint8") -> list[NDArray[np.generic]]:
    return [scalar(value, dtype) for value in values]


def _unaries() -> Sequence[Sample]:
    return [Sample([octets(2, 3, 7), scalar(0.05), scalar(128, "uint8"), scalar(1 / 256), scalar(0, "uint8")]),
            Sample([octets(5, 4, signed=True), scalar(0.05), scalar(3, "int8"), scalar(1 / 128), scalar(-128, "int8")])]


def _leaky() -> Sequence[Sample]:
    return [Sample([octets(2, 3, 7), scalar(0.05), scalar(128, "uint8"), scalar(0.0353), scalar(40, "uint8")]),
            Sample([octets(5, 4, signed=True), scalar(0.05), scalar(3, "int8"), scalar(0.0647), scalar(-9, "int8")], {
                "alpha": 0.3})]


def _choices() -> Sequence[Sample]:
    x, y = octets(2, 3, 7), octets(3, 1)
    first, second, third = _zero_points(3, 200, 100)
    signed = _zero_points(3, 4, -5, dtype="int8")
    return [Sample([bools(2, 3, 7), x, scalar(0.031), first, y, scalar(0.053), second, scalar(0.0971), third]),
            Sample([bools(7), x.astype("int8"), scalar(0.02), signed[0], y.astype("int8"), scalar(0.02), signed[1],
                    scalar(0.02), signed[2]])]


def _concats() -> Sequence[Sample]:
    first, second, third = _zero_points(30, 3, 9)
    low, high = _zero_points(1, -7, dtype="int8")
    return [Sample([scalar(0.061), first, octets(2, 3, 4), scalar(0.033), second, octets(2, 1, 4), scalar(0.0917), third],
                   {"axis": 1}),
            Sample([scalar(0.05), low, octets(3, 5, signed=True), scalar(0.05), low, octets(2, 5, signed=True), scalar(0.0713),
                    high, octets(1, 5, signed=True), scalar(0.05), high], {"axis": -2})]


def _softmaxes() -> Sequence[Sample]:
    x, places, (zero_point, none) = octets(2, 3, 5, 7), scalar(1 / 256), _zero_points(3, 0)
    given = [x, scalar(0.1), zero_point, places, none]
    return [Sample(given, {"opset": 13}), Sample(given, {"opset": 13, "axis": 1}), Sample(given, {"opset": 11, "axis": 2}),
            Sample([octets(6, 9, signed=True), scalar(0.05), scalar(3, "int8"), places, scalar(-128, "int8")], {"opset": 13})]


def _averaged() -> Sequence[Sample]:
    x, (before, after), signed = octets(2, 3, 7, 8), _zero_points(100, 90), _zero_points(3, -2, dtype="int8")
    given = [x, scalar(0.071), before, scalar(0.0437), after]
    padded = {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}
    return [Sample(given, {"kernel_shape": (2, 3)}), Sample(given, padded), Sample(given, {**padded, "count_include_pad": 1}),
            Sample(given, {**padded, "channels_last": 1}), Sample(given, {"kernel_shape": (3, 2), "strides": (2, 3),
                                                                         "ceil_mode": 1}),
            Sample([octets(1, 2, 9, signed=True), scalar(0.071), signed[0], scalar(0.0637), signed[1]], {
                "kernel_shape": (3,), "auto_pad": "SAME_UPPER"})]


def _wholes() -> Sequence[Sample]:
    (before, after), signed = _zero_points(100, 90), _zero_points(3, -2, dtype="int8")
    given = [octets(2, 3, 5, 4), scalar(0.071), before, scalar(0.0437), after]
    return [Sample(given), Sample(given, {"channels_last": 1}),
            Sample([octets(2, 5, 3, signed=True), scalar(0.071), signed[0], scalar(0.0437), signed[1]])]


def _products() -> Sequence[Sample]:
    a, b, step = octets(3, 7), _weights(7, 5), scales()
    return [Sample([a, b, step, scales(5), octets(), _weights(5), floats(5)]), Sample([a, b, step, step]),
            Sample([octets(2, 3, 7), b, step, scales(5), octets()]),
            Sample([octets(3, 7, signed=True), b, step, scales(1), None, _weights(1), floats(5)])]


def _dynamics() -> Sequence[Sample]:
    a, b = floats(3, 7), _weights(7, 5)
    return [Sample([a, b, scales(5), _weights(5), floats(5)]), Sample([a, _weights(7, 5, signed=False), scales()]),
            Sample([floats(2, 3, 7, low=1), b, scales(1), _weights(1)]), Sample([a * 0, b, scales()])]


def _gemms() -> Sequence[Sample]:
    a, b, c, step = octets(3, 7), _weights(7, 5), ints(5, low=-999, high=999, dtype="int32"), scales()
    turned = octets(7, 3), _weights(5, 7)
    whole = ints(3, 5, low=-999, high=999, dtype="int32")
    return [Sample([a, step, octets(), b, scales(5), _weights(5), c], {"alpha": 0.5}),
            Sample([a, step, octets(), b, step, _weights(), c, step * 40, octets()]),
            Sample([turned[0], step, octets(), turned[1], scales(5), _weights(5), whole, step * 40, octets()], {
                "transA": 1, "transB": 1}),
            Sample([a, step, octets(), b, step, _weights(), None, step])]


def _convs() -> Sequence[Sample]:
    x, w, bias = octets(1, 4, 6, 5), _weights(6, 4, 3, 3), ints(6, low=-999, high=999, dtype="int32")
    step = scales()
    each = [step, octets(), w, scales(6), _weights(6) * 0, step * 40, octets(), bias]
    last = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    grouped = [step, octets(), w[:, :2], step, _weights(), step * 40, octets()]
    return [Sample([x, *each], {"pads": (1, 1, 1, 1)}), Sample([last, *each], {"pads": (1, 1, 1, 1), "channels_last": 1}),
            Sample([last, *grouped], {"group": 2, "strides": (2, 1), "channels_last": 1}),
            Sample([x, *grouped], {"group": 2, "auto_pad": "SAME_UPPER"})]


_T = {"T": BYTES, "F": FLOAT32}
_UNARY = "X:T X_scale:F X_zero_point?:T Y_scale:F Y_zero_point?:T"
_BINARY = "A:T A_scale:F A_zero_point?:T B:T B_scale:F B_zero_point?:T C_scale:F C_zero_point?:T"
_POOL = "X:T x_scale:F x_zero_point{}:T y_scale:F y_zero_point{}:T"
_WIDE = ("uint8", "int8", "uint16", "int16")
_WINDOWS = {"kernel_shape": "ints", "pads": "ints", "strides": "ints"}
_AXIS = {"axis": "int"}

OPS: tuple[OpDef, ...] = (
    OpDef("QuantizeLinear", PatternKind.INJECTIVE, decompose=_quantize, samples=_quantizes, domain=MICROSOFT, reads=("axis",),
          form=Form("x:F y_scale:F y_zero_point?:T", "y:T", {"F": ("float32", "float16"), "T": _WIDE}, {}, _AXIS)),
    OpDef("DequantizeLinear", PatternKind.INJECTIVE, decompose=_dequantize, samples=_dequantizes, domain=MICROSOFT,
          reads=("axis",), form=Form("x:T x_scale:F x_zero_point?:T", "y:F", {
              "F": ("float32", "float16"), "T": (*_WIDE, "int32")}, {}, _AXIS)),
    OpDef("QLinearAdd", PatternKind.ELEMENTWISE, decompose=_binary("Add"), samples=_binaries, domain=MICROSOFT,
          form=Form(_BINARY, "C:T", _T)),
    OpDef("QLinearMul", PatternKind.ELEMENTWISE, decompose=_binary("Mul"), samples=_binaries, domain=MICROSOFT,
          form=Form(_BINARY, "C:T", _T)),
    OpDef("QLinearSigmoid", PatternKind.ELEMENTWISE, decompose=_unary("Sigmoid"), samples=_unaries, domain=MICROSOFT,
          form=Form(_UNARY, "Y:T", _T)),
    OpDef("QLinearLeakyRelu", PatternKind.ELEMENTWISE, decompose=_unary("LeakyRelu", "alpha"), samples=_leaky, domain=MICROSOFT,
          form=Form(_UNARY, "Y:T", _T, {"alpha": 0.01}), reads=("alpha",)),
    OpDef("QLinearSoftmax", PatternKind.REDUCE, decompose=_softmax, samples=_softmaxes, domain=MICROSOFT,
          reads=("opset", "axis"),
          form=Form("X:T X_scale:F x_zero_point?:T y_scale:F y_zero_point:T", "Y:T", _T, {"axis": -1}, {}, {"opset": "int"})),
    OpDef("QLinearGlobalAveragePool", PatternKind.REDUCE, decompose=_global_average, samples=_wholes, domain=MICROSOFT,
          reads=("channels_last",), form=Form(_POOL.format("", ""), "Y:T", _T, {"channels_last": 0})),
    OpDef("QLinearAveragePool", PatternKind.REDUCE, decompose=_average, samples=_averaged, domain=MICROSOFT,
          reads=("channels_last", "auto_pad", "ceil_mode", "count_include_pad", *_WINDOWS),
          form=Form(_POOL.format("?", "?"), "Y:T", _T, {
              "channels_last": 0, "auto_pad": "NOTSET", "ceil_mode": 0, "count_include_pad": 0}, {
              "pads": "ints", "strides": "ints"}, {"kernel_shape": "ints"})),
    OpDef("QLinearConcat", PatternKind.INJECTIVE, decompose=_concat, samples=_concats, domain=MICROSOFT, reads=("axis",),
          form=Form("Y_scale:F Y_zero_point:T inputs**:V", "Y:T", {**_T, "V": (*BYTES, "float32")}, {}, {}, _AXIS)),
    OpDef("QLinearWhere", PatternKind.ELEMENTWISE, decompose=_where, samples=_choices, domain=MICROSOFT,
          form=Form("condition:B X:T x_scale:F x_zero_point:T Y:T y_scale:F y_zero_point:T z_scale:F z_zero_point:T", "Z:T",
                    {**_T, "B": ("bool",)})),
    OpDef("MatMulIntegerToFloat", PatternKind.CONTRACTION, decompose=_to_float, samples=_products, domain=MICROSOFT,
          form=Form("A:A B:B a_scale:F b_scale:F a_zero_point?:A b_zero_point?:B bias?:F", "Y:F", {
              "A": BYTES, "B": BYTES, "F": ("float32", "float16")})),
    OpDef("DynamicQuantizeMatMul", PatternKind.CONTRACTION, decompose=_dynamic, samples=_dynamics, domain=MICROSOFT,
          form=Form("A:F B:T b_scale:F b_zero_point?:T bias?:F", "Y:F", _T)),
    OpDef("QGemm", PatternKind.CONTRACTION, decompose=_gemm, samples=_gemms, domain=MICROSOFT,
          reads=("transA", "transB", "alpha"),
          form=Form("A:A a_scale:F a_zero_point:A B:B b_scale:F b_zero_point:B C?:I y_scale?:F y_zero_point?:Z", "Y:Y", {
              "A": BYTES, "B": BYTES, "F": FLOAT32, "I": ("int32",), "Z": BYTES, "Y": (*FLOAT32, *BYTES)},
              {"transA": 0, "transB": 0, "alpha": 1.0})),
    OpDef("QLinearConv", PatternKind.CONTRACTION, decompose=_conv, samples=_convs, domain=MICROSOFT,
          reads=("channels_last", "auto_pad", "group", "dilations", *_WINDOWS),
          form=Form("x:X x_scale:F x_zero_point:X w:W w_scale:F w_zero_point:W y_scale:F y_zero_point:Y B?:I", "y:Y", {
              "X": BYTES, "W": BYTES, "Y": BYTES, "F": FLOAT32, "I": ("int32",)},
              {"channels_last": 0, "auto_pad": "NOTSET", "group": 1}, {**_WINDOWS, "dilations": "ints"})),
    OpDef("MatMulInteger16", PatternKind.CONTRACTION, decompose=_wide_product, domain=MICROSOFT,
          samples=lambda: [Sample([ints(3, 7, dtype="int16") * 99, ints(7, 5, dtype="int16") * 99]),
                           Sample([ints(2, 3, 7, dtype="int16"), ints(7, 5, dtype="int16")])],
          form=Form("A:A B:B", "Y:Y", {"A": ("int16",), "B": ("int16",), "Y": ("int32",)})),
)

"""Linear quantisation: what is stored in few bits stands for (number - zero point) * scale.

Numbers are widened, computed with and rounded by primitives: what is made of quantised numbers alone is exact in int32,
products with scales are rounded as floats, and a result is the nearest integer (ties to even) plus its zero point, cut to its
type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from tsc.errors import ModelError, UnsupportedError
from tsc.ir import TensorType
from tsc.ops.base import Builder, InferContext, Lowering, OpDef, PatternKind, Sample
from tsc.ops.contraction import conv_types, matmul_types, scalar_operand
from tsc.ops.movement import reshape
from tsc.ops.reduce import cast
from tsc.ops.samples import floats, ints, octets, scales
from tsc.ops.shapes import Shape, canonical, element_type, is_float, tensor, unify, where
from tsc.sym import ONE, ceildiv
from tsc.te.expr import Expr, call, index

_STORED = ("uint8", "int8", "uint16", "int16")


# -- parameters ------------------------------------------------------------------------------------------------

def _axis(ctx: InferContext) -> int:
    return ctx.axis(int(ctx.attr("axis", 1)), ctx.type(0).rank)


def _check_parameters(ctx: InferContext, numbers: Sequence[int]) -> None:
    """Raise ModelError where a scale or zero point is neither one number nor one along the axis or for each block."""
    shape, block = canonical(ctx, 0), int(ctx.attr("block_size", 0))
    for i in numbers:
        own = canonical(ctx, i)
        if not own or own == (ONE,):
            continue
        if len(own) == 1 and not block:
            unify(ctx.env, own[0], shape[_axis(ctx)], f"{where(ctx)}: input {i} has a number for each place of the axis")
        elif block > 0 and len(own) == len(shape):
            for k, (extent, d) in enumerate(zip(own, shape)):
                expected = ceildiv(d, block) if k == _axis(ctx) else d
                unify(ctx.env, extent, expected, f"{where(ctx)}: input {i} has a number for each block")
        else:
            raise ModelError(f"{where(ctx)} has an input {i} of rank {len(own)}, expected one number, a list or, with a "
                             f"block_size, rank {len(shape)}")


def _spread(builder: Builder, i: int) -> str:
    """A scale or zero point, input `i`, as broadcasting takes it beside input 0."""
    ctx = builder.infer
    own, shape, name = canonical(ctx, i), canonical(ctx, 0), builder.infer.node.inputs[i]
    if not own:
        return name
    if len(own) == 1 and not ctx.attr("block_size", 0):
        return reshape(builder, name, () if own == (ONE,) else (*own, *(ONE,) * (len(shape) - 1 - _axis(ctx))))
    return builder.emit("BlockRepeat", name, axis=_axis(ctx), block=int(ctx.attr("block_size")), length=shape[_axis(ctx)])


def _repeat_types(ctx: InferContext) -> tuple[TensorType, ...]:
    shape, axis = canonical(ctx, 0), ctx.attr("axis")
    return tensor(ctx.type(0).dtype, (*shape[:axis], ctx.env.canon(ctx.attr("length")), *shape[axis + 1:]))


def _repeat_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    axis = lowering.infer.attr("axis")
    return lowering.read(0, (*at[:axis], call("floordiv", at[axis], index(lowering.infer.attr("block"))), *at[axis + 1:]))


# -- to few bits and back --------------------------------------------------------------------------------------

def _stored_type(ctx: InferContext, zero_point: int) -> str:
    """The type of a quantised result, which its zero point, input number `zero_point`, has or an attribute says."""
    given = ctx.attr("output_dtype", 0)
    found = ctx.type(zero_point).dtype if ctx.has(zero_point) else element_type(ctx, given) if given else "uint8"
    if given and element_type(ctx, given) != found:
        raise ModelError(f"{where(ctx)} has output_dtype {element_type(ctx, given)} and a zero point of {found}, expected one "
                         "type")
    if found not in _STORED:
        raise UnsupportedError(f"{where(ctx)} quantises to {found}, which is not supported; use one of {', '.join(_STORED)}")
    return found


def _quantize_types(ctx: InferContext) -> tuple[TensorType, ...]:
    _check_parameters(ctx, [i for i in (1, 2) if ctx.has(i)])
    return tensor(_stored_type(ctx, 2), canonical(ctx, 0))


def rounded(builder: Builder, value: str, working: str, zero_point: str | None, dtype: str) -> str:
    """The nearest integers of `value`, of type `working`, plus a zero point in it, cut to what `dtype` holds; what is no number
    becomes the least, as in ONNX Runtime."""
    made = builder.emit("Round", value)
    made = made if zero_point is None else builder.emit("Add", made, zero_point)
    low, high = (scalar_operand(builder, float(end), working) for end in (np.iinfo(dtype).min, np.iinfo(dtype).max))
    above = builder.emit("Where", builder.emit("Less", low, made), made, low)
    return cast(builder, builder.emit("Min", above, high), working, dtype)


def _quantize(builder: Builder) -> tuple[str, ...]:
    ctx = builder.infer
    own, scale = ctx.type(0).dtype, ctx.type(1).dtype
    precision = ctx.attr("precision", 0)
    working = element_type(ctx, precision) if precision else own if is_float(own) else scale
    if working not in ("float32", "float64"):
        raise UnsupportedError(f"{where(ctx)} divides in {working}, which is not supported; use precision=1 (float32)")
    divided = builder.emit("Div", cast(builder, ctx.node.inputs[0], own, working),
                           cast(builder, _spread(builder, 1), scale, working))
    dtype = _stored_type(ctx, 2)
    zero_point = cast(builder, _spread(builder, 2), dtype, working) if ctx.has(2) else None
    return (rounded(builder, divided, working, zero_point, dtype),)


def _dequantize_types(ctx: InferContext) -> tuple[TensorType, ...]:
    _check_parameters(ctx, [i for i in (1, 2) if ctx.has(i)])
    if ctx.type(0).dtype not in (*_STORED, "int32"):
        raise UnsupportedError(f"{where(ctx)} has numbers of {ctx.type(0).dtype}, which is not supported")
    given = ctx.attr("output_dtype", 0)
    return tensor(element_type(ctx, given) if given else ctx.type(1).dtype, canonical(ctx, 0))


def _dequantize(builder: Builder) -> tuple[str, ...]:
    ctx = builder.infer
    own, scale = ctx.type(0).dtype, ctx.type(1).dtype
    value = ctx.node.inputs[0]
    if ctx.has(2):
        wide = "int64" if own == "int32" else "int32"
        value, own = builder.emit("Sub", *(cast(builder, x, own, wide) for x in (value, _spread(builder, 2)))), wide
    value = cast(builder, value, own, scale)
    return (cast(builder, builder.emit("Mul", value, _spread(builder, 1)), scale, _dequantize_types(ctx)[0].dtype),)


# -- products --------------------------------------------------------------------------------------------------

def _among(ctx: InferContext, *inputs: int) -> InferContext:
    """The same with some of the inputs alone."""
    return replace(ctx, types=tuple(ctx.types[i] if i < len(ctx.types) else None for i in inputs))


def _product(result: Callable[[InferContext], tuple[TensorType, ...]], w: int, quantised: bool,
             ) -> Callable[[InferContext], tuple[TensorType, ...]]:
    """The types of a product of inputs 0 and `w`: int32, or the type of the zero point that is input 7."""
    def types(ctx: InferContext) -> tuple[TensorType, ...]:
        shape = result(_among(ctx, 0, w))[0].shape
        return tensor(_stored_type(ctx, 7) if quantised else "int32", shape)
    return types


def centred(builder: Builder, i: int, zero_point: int, shape: Shape) -> str:
    """Input `i` less its zero point, in `shape`, as int32."""
    ctx = builder.infer
    value = cast(builder, ctx.node.inputs[i], ctx.type(i).dtype, "int32")
    if not ctx.has(zero_point):
        return value
    less = cast(builder, in_shape(builder, zero_point, shape, canonical(ctx, i)), ctx.type(zero_point).dtype, "int32")
    return builder.emit("Sub", value, less)


def in_shape(builder: Builder, i: int, shape: Shape, beside: Shape = ()) -> str:
    """Input `i`, in `shape` where it is a list of several numbers; one number is a scalar. It has no more numbers than what it
    is `beside` has places, which broadcasting would allow. Raises ModelError for one of more axes."""
    ctx = builder.infer
    own, name = canonical(ctx, i), ctx.node.inputs[i]
    if own == (ONE,):
        return reshape(builder, name, ())
    spread = shape if len(own) == 1 else own
    if len(spread) > len(beside):
        raise ModelError(f"{where(ctx)} has an input {i} of rank {len(own)}, more than what its numbers are for")
    for size, extent in zip(reversed(spread), reversed(beside)):
        if size != ONE:
            unify(ctx.env, size, extent, f"{where(ctx)}: input {i} has a number for each place of an axis")
    return reshape(builder, name, shape) if len(own) == 1 else name


def _scaled(builder: Builder, product: str, w: int, shape: Shape, rows: Shape, columns: Shape) -> str:
    """An int32 product of inputs 0 and `w`, each before its scale, in the scale of the result; that of `w` in `shape`. The
    scales are beside `rows` and `columns`."""
    ctx = builder.infer
    dtype = ctx.type(1).dtype
    left = in_shape(builder, 1, (*canonical(ctx, 1), ONE), rows)
    factor = builder.emit("Mul", left, in_shape(builder, w + 1, shape, columns))
    factor = builder.emit("Div", factor, in_shape(builder, 6, ()))
    value = builder.emit("Mul", cast(builder, product, "int32", dtype), factor)
    stored = _stored_type(ctx, 7)
    return rounded(builder, value, dtype, cast(builder, in_shape(builder, 7, ()), stored, dtype), stored)


def _matmul_integer(builder: Builder) -> tuple[str, ...]:
    """Zero points of the first operand may be one a row, of the second one a column."""
    ctx = builder.infer
    rows = (*canonical(ctx, 2), ONE) if ctx.has(2) else ()
    columns = canonical(ctx, 3) if ctx.has(3) else ()
    return (builder.emit("MatMul", centred(builder, 0, 2, rows), centred(builder, 1, 3, columns)),)


def _qlinear_matmul(builder: Builder) -> tuple[str, ...]:
    ctx = builder.infer
    rows, columns = (*canonical(ctx, 2), ONE), canonical(ctx, 5)
    product = builder.emit("MatMul", centred(builder, 0, 2, rows), centred(builder, 3, 5, columns))
    return (_scaled(builder, product, 3, canonical(ctx, 4), (*canonical(ctx, 0)[:-1], ONE), canonical(ctx, 3)),)


def _kernels(ctx: InferContext, i: int, w: int) -> Shape:
    """The shape in which a list of a number for each kernel of input `w` is beside it."""
    return (*canonical(ctx, i), *(ONE,) * (ctx.type(w).rank - 1))


def _conv_integer(builder: Builder) -> tuple[str, ...]:
    ctx = builder.infer
    w = centred(builder, 1, 3, _kernels(ctx, 3, 1) if ctx.has(3) else ())
    return (builder.emit("Conv", centred(builder, 0, 2, ()), w, **ctx.node.attrs),)


def _qlinear_conv(builder: Builder) -> tuple[str, ...]:
    ctx = builder.infer
    bias = ctx.node.inputs[8:9] if ctx.has(8) else ()
    x, w = centred(builder, 0, 2, ()), centred(builder, 3, 5, _kernels(ctx, 5, 3))
    product = builder.emit("Conv", x, w, *bias, **ctx.node.attrs)
    scales = _kernels(ctx, 4, 3)[:-1]
    return (_scaled(builder, product, 3, scales, (), (*canonical(ctx, 3)[:1], *scales[1:])),)


# -- samples ---------------------------------------------------------------------------------------------------

def _quantizes() -> Sequence[Sample]:
    x = floats(3, 4, 5) * 7
    return [Sample([x, scales(), octets()]), Sample([x, scales()]), Sample([x, scales(4), octets(4, signed=True)]),
            Sample([x, scales(3), octets(3)], {"axis": -3})]


def _dequantizes() -> Sequence[Sample]:
    return [Sample([octets(3, 4, 5), scales(), octets()]), Sample([octets(3, 4, 5, signed=True), scales(5)], {"axis": 2}),
            Sample([octets(3, 4), scales(4), octets(4)]), Sample([ints(3, 4, dtype="int32"), scales()]),
            Sample([octets(3, 8), scales(3, 3), octets(3, 3)], {"block_size": 3})]


def _integer_products() -> Sequence[Sample]:
    a, b = octets(3, 7), octets(7, 5, signed=True)
    return [Sample([a, b]), Sample([a, b, octets(), octets(signed=True)]), Sample([a, b, octets(), octets(5, signed=True)]),
            Sample([octets(2, 3, 7), b, octets()])]


def _quantised_products() -> Sequence[Sample]:
    a, b = octets(3, 7), octets(7, 5, signed=True)
    return [Sample([a, scales(), octets(), b, scales(), octets(signed=True), scales(), octets()]),
            Sample([a, scales(), octets(), b, scales(5), octets(5, signed=True), scales(), octets()])]


def _integer_convolutions() -> Sequence[Sample]:
    x, w = octets(1, 2, 6, 5), octets(4, 2, 3, 3)
    return [Sample([x, w, octets(), octets()], {"pads": (1, 1, 1, 1)}), Sample([x, w], {"strides": (2, 1)})]


def _quantised_convolutions() -> Sequence[Sample]:
    x, w, bias = octets(1, 2, 6, 5), octets(4, 2, 3, 3, signed=True), ints(4, low=-999, high=999, dtype="int32")
    return [Sample([x, scales(), octets(), w, scales(4), octets(4, signed=True) * 0, scales() * 9, octets(), bias],
                   {"pads": (1, 1, 1, 1)}),
            Sample([x, scales(), octets(), w, scales(), octets(signed=True), scales() * 9, octets()])]


_WINDOWS = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")

OPS: tuple[OpDef, ...] = (
    OpDef("QuantizeLinear", PatternKind.INJECTIVE, _quantize_types, decompose=_quantize, samples=_quantizes,
          reads=("axis", "block_size", "output_dtype", "precision"), ignores=("saturate",)),
    OpDef("DequantizeLinear", PatternKind.INJECTIVE, _dequantize_types, decompose=_dequantize, samples=_dequantizes,
          reads=("axis", "block_size", "output_dtype")),
    OpDef("BlockRepeat", PatternKind.INJECTIVE, _repeat_types, te=_repeat_te, domain="tsc"),
    OpDef("MatMulInteger", PatternKind.CONTRACTION, _product(matmul_types, 1, False), decompose=_matmul_integer,
          samples=_integer_products),
    OpDef("QLinearMatMul", PatternKind.CONTRACTION, _product(matmul_types, 3, True), decompose=_qlinear_matmul,
          samples=_quantised_products),
    OpDef("ConvInteger", PatternKind.CONTRACTION, _product(conv_types, 1, False), decompose=_conv_integer,
          samples=_integer_convolutions, reads=_WINDOWS),
    OpDef("QLinearConv", PatternKind.CONTRACTION, _product(conv_types, 3, True), decompose=_qlinear_conv,
          samples=_quantised_convolutions, reads=_WINDOWS),
)

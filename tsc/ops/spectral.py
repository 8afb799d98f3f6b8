"""DFT and STFT: products with matrices of cosines and sines, which are computed where the lengths are known; mel bands."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tsc.errors import ModelError
from tsc.ir import TensorType
from tsc.ops.base import Builder, InferContext, Lowering, OpDef, PatternKind, Sample
from tsc.ops.generate import converted, typed
from tsc.ops.movement import positions, reshape, size_operand
from tsc.ops.reduce import cast
from tsc.ops.samples import floats, scalar
from tsc.ops.shapes import (
    NUMBERS,
    Shape,
    as_object,
    canonical,
    element_type,
    expect_list,
    known_ints,
    named,
    scalar_contents,
    tensor,
    where,
)
from tsc.ops.told_axes import are_told, around, replaced
from tsc.sym import ONE, SymExpr, product
from tsc.te.expr import Cast, Expr, add, call, index, mul, select

REAL, COMPLEX = ONE, SymExpr.of(2)


def _parts(ctx: InferContext) -> SymExpr:
    """Whether the elements of input 0 are numbers or pairs: its last axis."""
    last = canonical(ctx, 0)[-1]
    if last not in (REAL, COMPLEX):
        raise ModelError(f"{where(ctx)} has elements of {last} parts, expected 1 (real) or 2 (complex)")
    return last


def _matrix(builder: Builder, taken: SymExpr, made: SymExpr, length: SymExpr, parts: SymExpr, inverse: bool, halves: bool,
            dtype: str) -> str:
    """What `taken` elements of so many `parts` are multiplied with, of shape [taken, parts, made, parts of the result]: a root
    of unity of order `length` to the power of both places. With `halves` elements stand for their conjugates, too, and the
    result is real."""
    wide = "float64"
    rows, columns = positions(builder, taken, 1), positions(builder, made)
    order = size_operand(builder, as_object(length), "int64")
    turns = cast(builder, builder.emit("Mod", builder.emit("Mul", rows, columns), order), "int64", wide)
    size = cast(builder, order, "int64", wide)
    angle = builder.emit("Div", builder.emit("Mul", turns, builder.constant(np.array(2 * math.pi))), size)
    cosine, sine = builder.emit("Cos", angle), builder.emit("Sin", angle)
    weight = builder.constant(np.array(1.0))
    if inverse:
        weight = builder.emit("Div", weight, size)
    if halves:  # the first and, of an even length, the middle one are their own conjugates
        twice = builder.emit("Mod", builder.emit("Mul", rows, builder.constant(np.array(2))), order)
        own = builder.emit("Equal", twice, builder.constant(np.array(0)))
        weight = builder.emit("Mul", weight, builder.emit("Where", own, builder.constant(np.array(1.0)),
                                                          builder.constant(np.array(2.0))))
    used = size_operand(builder, as_object(length // 2 + 1 if halves else length), "int64")
    weight = builder.emit("Where", builder.emit("Less", rows, used), weight, builder.constant(np.array(0.0)))
    cosine, sine = (builder.emit("Mul", part, weight) for part in (cosine, sine))
    negative = builder.emit("Neg", sine)
    turned, back = (negative, sine) if inverse else (sine, negative)
    real = [cosine, turned] if parts == COMPLEX else [cosine]
    imaginary = [back, cosine] if parts == COMPLEX else [back]
    columns_of = [real] if halves else [real, imaginary]
    stacked = []
    for column in columns_of:
        apart = [builder.emit("Unsqueeze", part, axes=(1, 3)) for part in column]
        stacked.append(apart[0] if len(apart) == 1 else builder.emit("Concat", *apart, axis=1))
    whole = stacked[0] if len(stacked) == 1 else builder.emit("Concat", *stacked, axis=3)
    return cast(builder, whole, wide, dtype)


# -- DFT -------------------------------------------------------------------------------------------------------

def _dft_axis(ctx: InferContext) -> int:
    rank = ctx.type(0).rank
    if ctx.opset < 20:
        axis = ctx.axis(int(ctx.attr("axis", 1)), rank)
    elif ctx.has(2):
        given = known_ints(ctx, 2, "axis", scalar=True)
        if len(given) != 1:
            raise ModelError(f"{where(ctx)} has {len(given)} axes, expected one")
        axis = ctx.axis(given[0], rank)
    else:
        axis = rank - 2
    if rank < 2 or axis == rank - 1:
        raise ModelError(f"{where(ctx)} has axis {axis}, expected one before the last, which holds the parts of a number")
    return axis


def _dft_lengths(ctx: InferContext, own: SymExpr) -> tuple[SymExpr, SymExpr]:
    """The length of the transform of `own` elements, and how many it gives."""
    inverse, onesided = ctx.attr("inverse", 0), ctx.attr("onesided", 0)
    if ctx.has(1):
        length = scalar_contents(ctx, 1, "dft_length")
    else:
        length = ctx.env.canon(2 * (own - 1)) if inverse and onesided else own
    ctx.env.assume_le(1, length, f"{where(ctx)}: a transform has elements")
    return length, ctx.env.canon(length // 2 + 1) if onesided and not inverse else length


def _dft_types(ctx: InferContext) -> tuple[TensorType, ...]:
    halves = ctx.attr("inverse", 0) and ctx.attr("onesided", 0)
    if halves and (last := canonical(ctx, 0)[-1:]) and last[0].as_int() is None:
        ctx.env.assume_eq(last[0], COMPLEX, f"{where(ctx)}: what an inverse makes reals of are complex numbers")
    _parts(ctx)
    shape, parts = canonical(ctx, 0), REAL if halves else COMPLEX
    if are_told(ctx, 2):
        made = _dft_lengths(ctx, around(ctx, 2, shape[:-1])[1])[1]
        return tensor(ctx.type(0).dtype, (*replaced(ctx, 2, shape[:-1], made), parts))
    axis = _dft_axis(ctx)
    _, made = _dft_lengths(ctx, shape[axis])
    return tensor(ctx.type(0).dtype, (*shape[:axis], made, *shape[axis + 1:-1], parts))


def _dft(builder: Builder) -> tuple[str, ...]:
    """The axis is moved beside the parts, and both are multiplied with one matrix."""
    ctx = builder.infer
    axis, shape, parts = _dft_axis(ctx), canonical(ctx, 0), _parts(ctx)
    length, made = _dft_lengths(ctx, shape[axis])
    inverse, rank = bool(ctx.attr("inverse", 0)), len(shape)
    halves = inverse and bool(ctx.attr("onesided", 0))
    matrix = _matrix(builder, shape[axis], made, length, parts, inverse, halves, ctx.type(0).dtype)
    kept = REAL if halves else COMPLEX
    matrix = reshape(builder, matrix, (shape[axis] * parts, made * kept))
    moved = (*(k for k in range(rank - 1) if k != axis), axis, rank - 1)
    outer: Shape = tuple(shape[k] for k in moved[:-2])
    value = builder.emit("Transpose", ctx.node.inputs[0], perm=moved)
    value = builder.emit("MatMul", reshape(builder, value, (product(outer), shape[axis] * parts)), matrix)
    value = reshape(builder, value, (*outer, made, kept))
    return (builder.emit("Transpose", value, perm=tuple(int(k) for k in np.argsort(moved))),)


def _dft_told(builder: Builder) -> tuple[str, ...]:
    """Where only a run knows the axis: between what is before and what is behind it."""
    ctx = builder.infer
    shape = canonical(ctx, 0)
    view = reshape(builder, ctx.node.inputs[0], (*around(ctx, 2, shape[:-1]), shape[-1]))
    made = builder.emit("DFT", view, ctx.node.inputs[1] if ctx.has(1) else "", builder.constant(np.array(1)), **ctx.node.attrs)
    return (reshape(builder, made, _dft_types(ctx)[0].shape),)


# -- STFT ------------------------------------------------------------------------------------------------------

def _stft_lengths(ctx: InferContext) -> tuple[SymExpr, SymExpr]:
    """How long a frame is, and how far the next one begins behind it."""
    if ctx.has(3):
        length = scalar_contents(ctx, 3, "frame_length")
    elif ctx.has(2):
        length = canonical(ctx, 2)[0]
    else:
        raise ModelError(f"{where(ctx)} has neither a window nor a frame_length, expected one")
    step = scalar_contents(ctx, 1, "frame_step")
    if ctx.env.prove_lt(step, 1):
        raise ModelError(f"{where(ctx)} has frame_step {step}, expected at least 1")
    ctx.env.assume_le(1, step, f"{where(ctx)}: frame_step is at least 1")
    return length, step


def _stft_types(ctx: InferContext) -> tuple[TensorType, ...]:
    signal, (length, step) = canonical(ctx, 0), _stft_lengths(ctx)
    if len(signal) != 3:
        raise ModelError(f"{where(ctx)} has a signal of rank {len(signal)}, expected batch, length and parts of a number")
    _parts(ctx)
    if ctx.has(2):
        expect_list(ctx, 2, length)
    ctx.env.assume_le(1, length, f"{where(ctx)}: a frame has elements")
    ctx.env.assume_le(length, signal[1], f"{where(ctx)}: a frame must fit into the signal")
    frames = ctx.env.canon((signal[1] - length) // step + 1)
    frames = frames if step.as_int() is not None else named(ctx, "frames", frames)
    return tensor(ctx.type(0).dtype, (signal[0], frames, _stft_made(ctx, length), COMPLEX))


def _stft_made(ctx: InferContext, length: SymExpr) -> SymExpr:
    return ctx.env.canon(length // 2 + 1) if ctx.attr("onesided", 1) else length


def _stft(builder: Builder) -> tuple[str, ...]:
    """A convolution whose kernels are the rows of the matrix, times the window; where the step between frames is no constant,
    they are copied, and multiplied."""
    ctx = builder.infer
    (length, step), parts, dtype = _stft_lengths(ctx), _parts(ctx), ctx.type(0).dtype
    batch, frames, made, _ = _stft_types(ctx)[0].shape
    matrix = _matrix(builder, length, made, length, parts, False, False, dtype)
    if ctx.has(2):
        matrix = builder.emit("Mul", matrix, reshape(builder, ctx.node.inputs[2], (length, ONE, ONE, ONE)))
    if step.as_int() is None:
        listed = builder.emit("Frames", ctx.node.inputs[0], frames=frames, length=length, step=step)
        listed = reshape(builder, listed, (batch, frames, length * parts))
        matrix = reshape(builder, matrix, (length * parts, made * COMPLEX))
        return (reshape(builder, builder.emit("MatMul", listed, matrix), (batch, frames, made, COMPLEX)),)
    kernels = reshape(builder, builder.emit("Transpose", matrix, perm=(2, 3, 1, 0)), (made * 2, parts, length))
    signal = builder.emit("Transpose", ctx.node.inputs[0], perm=(0, 2, 1))
    found = builder.emit("Convolve", signal, kernels, strides=(step.as_int(),))
    return (reshape(builder, builder.emit("Transpose", found, perm=(0, 2, 1)), (batch, frames, made, COMPLEX)),)


def _frames_types(ctx: InferContext) -> tuple[TensorType, ...]:
    batch, _, parts = canonical(ctx, 0)
    return tensor(ctx.type(0).dtype, (batch, *(ctx.env.canon(ctx.attr(name)) for name in ("frames", "length")), parts))


def _frames_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    batch, frame, position, part = at
    step = lowering.infer.env.canon(lowering.infer.attr("step"))
    return lowering.read(0, (batch, add(mul(frame, index(step)), position), part))


# -- MelWeightMatrix -------------------------------------------------------------------------------------------

def _mel_lengths(ctx: InferContext) -> Shape:
    """How many bands there are, and how long the transformed signal was."""
    bands, length = (scalar_contents(ctx, i, what) for i, what in enumerate(("num_mel_bins", "dft_length")))
    for size, what in ((bands, "num_mel_bins"), (length, "dft_length")):
        ctx.env.assume_le(0, size, f"{where(ctx)}: {what} is not negative")
    return bands, length


def _mel_types(ctx: InferContext) -> tuple[TensorType, ...]:
    bands, length = _mel_lengths(ctx)
    return tensor(element_type(ctx, ctx.attr("output_datatype", 1)), (ctx.env.canon(length // 2 + 1), bands))


def _mel(builder: Builder) -> tuple[str, ...]:
    ctx = builder.infer
    bands, length = _mel_lengths(ctx)
    for i, what in zip(range(2, 5), ("sample_rate", "lower_edge_hertz", "upper_edge_hertz")):
        if any(size != ONE for size in canonical(ctx, i)):
            raise ModelError(f"{where(ctx)}: {what} has shape {[str(size) for size in canonical(ctx, i)]}, expected one number")
    edges = builder.emit("MelEdges", *ctx.node.inputs[2:5], bands=bands, length=length)
    made, = _mel_types(ctx)
    return (builder.emit("Cast", builder.emit("MelWeights", edges, rows=made.shape[0]), to=NUMBERS[made.dtype]),)


def _mel_edges_types(ctx: InferContext) -> tuple[TensorType, ...]:
    return tensor("int64", (ctx.env.canon(ctx.attr("bands") + 2),))


def _mel_edges_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    """The bin in which edge i of the bands lies, evenly apart in mels, of which f hertz are 2595 log10(1 + f / 700)."""
    ctx = lowering.infer
    rate, low, high = (Cast(lowering.read(i, (index(0),) * ctx.type(i).rank), "float64") for i in range(3))
    bands, length = (ctx.env.canon(ctx.attr(name)) for name in ("bands", "length"))
    first, last = (call("log", add(_double(1), call("div", hertz, _double(700)))) for hertz in (low, high))
    apart = call("div", call("sub", last, first), converted(index(bands + 2), "float64"))
    hertz = mul(_double(700), call("sub", call("exp", add(mul(converted(at[0], "float64"), apart), first)), _double(1)))
    return Cast(call("floor", call("div", mul(converted(index(length + 1), "float64"), hertz), rate)), "int64")


def _mel_weights_types(ctx: InferContext) -> tuple[TensorType, ...]:
    return tensor("float64", (ctx.env.canon(ctx.attr("rows")), ctx.env.canon(canonical(ctx, 0)[0] - 2)))


def _mel_weights_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    """A triangle over each band: up from its first edge to the second, where it is 1, and down to the third."""
    row, band = at
    first, middle, last = (lowering.read(0, (add(band, index(k)),)) for k in range(3))
    up, down = (_share(call("sub", a, b), call("sub", c, d))
                for a, b, c, d in ((row, first, middle, first), (last, row, last, middle)))
    rises = call("and", call("le", first, row), call("le", row, middle))
    falls = call("and", call("le", middle, row), call("lt", row, last))
    return select(call("eq", row, middle), _double(1), select(falls, down, select(rises, up, _double(0))))


def _share(part: Expr, whole: Expr) -> Expr:
    return call("div", Cast(part, "float64"), Cast(call("max", whole, index(1)), "float64"))


def _double(value: float) -> Expr:
    return typed(value, "float64")


# -- samples ---------------------------------------------------------------------------------------------------

def _dfts() -> Sequence[Sample]:
    real, pairs = floats(2, 7, 3, 1), floats(2, 6, 3, 2)
    axis, last = scalar(1, "int64"), scalar(-2, "int64")
    return [Sample([real, None, axis]), Sample([real, None, axis], {"onesided": 1}),
            Sample([pairs, None, axis], {"inverse": 1}), Sample([pairs, scalar(9, "int64"), axis]),
            Sample([pairs, scalar(4, "int64"), last]),
            Sample([pairs, scalar(10, "int64"), axis], {"inverse": 1, "onesided": 1}),
            Sample([pairs, scalar(11, "int64"), axis], {"inverse": 1, "onesided": 1})]


def _stfts() -> Sequence[Sample]:
    signal, step = floats(2, 20, 1), scalar(3, "int64")
    return [Sample([signal, step, floats(8)]), Sample([signal, step, floats(7), scalar(7, "int64")], {"onesided": 0}),
            Sample([signal, step, None, scalar(5, "int64")])]


def _mels() -> Sequence[Sample]:
    return [Sample([*(scalar(v, "int64") for v in (bands, length, rate)), *(scalar(v, "float32") for v in (low, high))], attrs)
            for bands, length, rate, low, high, attrs in (
                (8, 16, 8192, 0, 4096, {}), (5, 32, 16000, 100, 7000, {"output_datatype": 11}), (3, 3, 100, 1, 40, {}))]


OPS: tuple[OpDef, ...] = (
    OpDef("DFT", PatternKind.CONTRACTION, _dft_types, decompose=_dft, samples=_dfts, told=_dft_told, axes=2,
          static_inputs=(1, 2),
          reads=("axis", "inverse", "onesided")),
    OpDef("STFT", PatternKind.CONTRACTION, _stft_types, decompose=_stft, samples=_stfts, static_inputs=(1, 3),
          reads=("onesided",)),
    OpDef("Frames", PatternKind.INJECTIVE, _frames_types, te=_frames_te, domain="tsc"),
    OpDef("MelWeightMatrix", PatternKind.INJECTIVE, _mel_types, decompose=_mel, samples=_mels, static_inputs=(0, 1),
          reads=("output_datatype",)),
    OpDef("MelEdges", PatternKind.ELEMENTWISE, _mel_edges_types, te=_mel_edges_te, domain="tsc"),
    OpDef("MelWeights", PatternKind.INJECTIVE, _mel_weights_types, te=_mel_weights_te, domain="tsc"),
)

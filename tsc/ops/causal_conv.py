"""CausalConvWithState: a depthwise convolution of what came before, whose last elements are the state for what comes next."""

from __future__ import annotations

from collections.abc import Sequence

from tsc.errors import ModelError
from tsc.ir import TensorType
from tsc.ops.base import Builder, InferContext, OpDef, PatternKind, Sample
from tsc.ops.movement import shape_operand
from tsc.ops.samples import floats
from tsc.ops.shapes import canonical, unify, where
from tsc.sym import ONE, ZERO, SymExpr

_ACTIVATIONS = ("none", "silu", "swish")


def _types(ctx: InferContext) -> tuple[TensorType, ...]:
    for i, rank in enumerate((3, 3, 1, 3)):
        if ctx.has(i) and ctx.type(i).rank != rank:
            raise ModelError(f"{where(ctx)} has an input {i} of rank {ctx.type(i).rank}, expected {rank}")
    if (given := ctx.attr("activation", "none")) not in _ACTIVATIONS:
        raise ModelError(f"{where(ctx)} has activation '{given}', expected one of {', '.join(_ACTIVATIONS)}")
    batch, own, length = canonical(ctx, 0)
    channels, _, taps = canonical(ctx, 1)
    channels = unify(ctx.env, own, channels, f"{where(ctx)}: there is a kernel for each channel")
    for i, wanted in ((1, (channels, ONE, taps)), (2, (channels,)), (3, (batch, channels, taps - 1))):
        for extent, size in zip(canonical(ctx, i) if ctx.has(i) else (), wanted):
            unify(ctx.env, extent, size, f"{where(ctx)}: the shape of input {i}")
    dtype = ctx.type(0).dtype
    batch, channels, length, before = map(ctx.env.canon, (batch, channels, length, taps - 1))
    return (TensorType(dtype, (batch, channels, length)),
            TensorType(dtype, (batch, channels, before)))[:max(1, len(ctx.node.outputs))]


def _decompose(builder: Builder) -> tuple[str, ...]:
    ctx, emit = builder.infer, builder.emit
    (_, channels, length), taps = canonical(ctx, 0), canonical(ctx, 1)[2]
    x, weights = ctx.node.inputs[:2]
    if ctx.has(3):
        whole = emit("Concat", ctx.node.inputs[3], x, axis=2)
    else:
        whole = emit("Pad", x, shape_operand(builder, (ZERO, ZERO, taps - 1, ZERO, ZERO, ZERO)))
    made = emit("Convolve", whole, weights, group=channels)
    if ctx.has(2):
        made = emit("Add", made, emit("Unsqueeze", ctx.node.inputs[2], axes=(1,)))
    if ctx.attr("activation", "none") != "none":
        made = emit("Mul", made, emit("Sigmoid", made))
    if len(ctx.node.outputs) < 2:
        return (made,)
    ends = (shape_operand(builder, (place,)) for place in (length, length + taps - 1, SymExpr.of(2)))
    return made, emit("Slice", whole, *ends)


def _samples() -> Sequence[Sample]:
    x, weights, bias, past = floats(2, 3, 5), floats(3, 1, 4), floats(3), floats(2, 3, 3)
    return [Sample([x, weights], {}, 2), Sample([x, weights, bias, past], {"activation": "silu"}, 2),
            Sample([floats(2, 3, 1), weights, None, past], {}, 2), Sample([x, floats(3, 1, 1), bias], {}, 2)]


OPS: tuple[OpDef, ...] = (
    OpDef("CausalConvWithState", PatternKind.REDUCE, _types, decompose=_decompose, samples=_samples,
          reads=("activation",)),
)

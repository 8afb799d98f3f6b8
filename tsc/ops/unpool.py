"""MaxUnpool: the elements that MaxPool took, back where they were, and zeros everywhere else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tsc.errors import ModelError
from tsc.ir import TensorType
from tsc.ops.base import Builder, InferContext, OpDef, PatternKind, Sample
from tsc.ops.contraction import padding, positives, scalar_operand
from tsc.ops.movement import reshape, shape_operand
from tsc.ops.samples import floats, vector
from tsc.ops.scatter import scattered
from tsc.ops.shapes import Shape, at_least_zero, canonical, expect_rank, sizes_operand, tensor, unify, where
from tsc.sym import ZERO, SymExpr, product


def _pooled(ctx: InferContext) -> Shape:
    """The shape of what was pooled, in which indices count. Of the shapes that give as many windows it is the one in which no
    element lies behind the last window."""
    shape = canonical(ctx, 0)
    kernel, strides = (positives(ctx, name, len(shape) - 2) for name in ("kernel_shape", "strides"))
    begins, ends = padding(ctx, shape[2:], [SymExpr.of(k) for k in kernel], strides)
    spans = [ctx.env.canon((d - 1) * s + k - p - q) for d, s, k, p, q in zip(shape[2:], strides, kernel, begins, ends)]
    return (*shape[:2], *(at_least_zero(ctx, span, "the dim that was pooled") for span in spans))


def _types(ctx: InferContext) -> tuple[TensorType, ...]:
    expect_rank(ctx, 0, 3)
    if ctx.attr("kernel_shape") is None:
        raise ModelError(f"{where(ctx)} lacks its kernel_shape")
    if ctx.type(1).rank != ctx.type(0).rank:
        raise ModelError(f"{where(ctx)} has indices of rank {ctx.type(1).rank}, expected {ctx.type(0).rank}")
    for k, (own, given) in enumerate(zip(canonical(ctx, 0), canonical(ctx, 1))):
        unify(ctx.env, own, given, f"{where(ctx)}: there is an index for each element along axis {k}")
    return tensor(ctx.type(0).dtype, _whole(ctx))


def _whole(ctx: InferContext) -> Shape:
    """The shape of the output: of what was pooled, or the one that is given, which is larger behind its ends."""
    pooled = _pooled(ctx)
    if not ctx.has(2):
        return pooled
    given = sizes_operand(ctx, 2, "output_shape", len(pooled))
    if len(given) != len(pooled):
        raise ModelError(f"{where(ctx)} has an output_shape of {len(given)} dims, expected {len(pooled)}")
    for k, (least, size) in enumerate(zip(pooled, given)):
        if k < 2:
            unify(ctx.env, least, size, f"{where(ctx)}: output_shape has the input's dim {k}")
        else:
            ctx.env.assume_le(least, size, f"{where(ctx)}: output_shape has room for what was pooled along axis {k}")
    return tuple(ctx.env.canon(d) for d in given)


def _decompose(builder: Builder) -> tuple[str, ...]:
    ctx = builder.infer
    x, indices, *_ = ctx.node.inputs
    pooled, whole, count = _pooled(ctx), _whole(ctx), product(canonical(ctx, 0))
    zero, size = scalar_operand(builder, 0.0, ctx.type(0).dtype), product(pooled)
    spots = builder.emit("ScatterSpots", reshape(builder, indices, (count,)), sizes=(size,))
    zeros = builder.emit("Expand", zero, shape_operand(builder, (size,)))
    back = reshape(builder, scattered(builder, zeros, spots, reshape(builder, x, (count,)), 0, (size,)), pooled)
    if whole == pooled:
        return (back,)
    behind = [ctx.env.canon(size - own) for size, own in zip(whole, pooled)]
    return (builder.emit("Pad", back, shape_operand(builder, (*(ZERO,) * len(whole), *behind)), zero),)


def _samples() -> Sequence[Sample]:
    small, taken = floats(1, 1, 2, 2), np.array([[[[5, 7], [13, 15]]]])
    halves = {"kernel_shape": [2, 2], "strides": [2, 2]}
    return [Sample([small, taken], halves), Sample([small, taken, vector(1, 1, 5, 6)], halves),
            Sample([floats(2, 3, 4), np.arange(24).reshape(2, 3, 4) * 2 + 1], {"kernel_shape": [2], "strides": [2]}),
            Sample([floats(1, 2, 3, 2), np.array([[[[0, 1], [3, 5], [6, 7]], [[8, 9], [11, 12], [14, 15]]]])],
                   {"kernel_shape": [2, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]})]


OPS: tuple[OpDef, ...] = (
    OpDef("MaxUnpool", PatternKind.REDUCE, _types, decompose=_decompose, samples=_samples, static_inputs=(2,),
          reads=("kernel_shape", "strides", "pads")),
)

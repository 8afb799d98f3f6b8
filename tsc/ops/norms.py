"""Norms of a power p over axes and windows (LpNormalization, LpPool, GlobalLpPool), local responses (LRN), and Hardmax."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tsc.errors import ModelError
from tsc.ir import TensorType
from tsc.ops.base import Builder, InferContext, OpDef, PatternKind, Sample
from tsc.ops.contraction import scalar_operand
from tsc.ops.movement import positions, reshape
from tsc.ops.pool import global_types, pool_types
from tsc.ops.reduce import cast, reduction, softmax_axes
from tsc.ops.samples import floats
from tsc.ops.shapes import canonical, expect_rank, same_types, where
from tsc.sym import product


def _power(ctx: InferContext, allowed: Sequence[int] | None = None) -> int:
    p = int(ctx.attr("p", 2))
    if p < 1 or (allowed is not None and p not in allowed):
        expected = "at least 1" if allowed is None else " or ".join(map(str, allowed))
        raise ModelError(f"{where(ctx)} has p {p}, expected {expected}")
    return p


def _norm(builder: Builder, x: str, p: int, total: Callable[[str], str]) -> str:
    """The p-th root of the sum of p-th powers of magnitudes; `total` sums."""
    dtype = builder.infer.type(0).dtype
    if p == 1:
        return total(builder.emit("Abs", x))
    if p == 2:
        return builder.emit("Sqrt", total(builder.emit("Mul", x, x)))
    powers = builder.emit("Pow", builder.emit("Abs", x), scalar_operand(builder, p, dtype))
    return builder.emit("Pow", total(powers), scalar_operand(builder, 1 / p, dtype))


# -- over an axis ------------------------------------------------------------------------------------------------

def _lp_types(ctx: InferContext) -> tuple[TensorType, ...]:
    _power(ctx, (1, 2))
    ctx.axis(int(ctx.attr("axis", -1)), ctx.type(0).rank)
    return same_types(ctx)


def _lp_normalization(builder: Builder) -> tuple[str, ...]:
    """x / norm, and 0 where all of the axis is."""
    ctx = builder.infer
    x, axis = ctx.node.inputs[0], ctx.axis(int(ctx.attr("axis", -1)), ctx.type(0).rank)
    norm = _norm(builder, x, _power(ctx), lambda value: reduction(builder, "ReduceSum", value, (axis,)))
    zero = scalar_operand(builder, 0, ctx.type(0).dtype)
    return (builder.emit("Where", builder.emit("Equal", norm, zero), zero, builder.emit("Div", x, norm)),)


# -- over windows ------------------------------------------------------------------------------------------------

def _lp_pool_types(ctx: InferContext) -> tuple[TensorType, ...]:
    _power(ctx)
    return pool_types(ctx)


def _lp_pool(builder: Builder) -> tuple[str, ...]:
    ctx = builder.infer
    attrs = {name: value for name, value in ctx.node.attrs.items() if name != "p"}
    return (_norm(builder, ctx.node.inputs[0], _power(ctx), lambda value: builder.emit("WindowSum", value, **attrs)),)


def _global_lp_types(ctx: InferContext) -> tuple[TensorType, ...]:
    _power(ctx)
    return global_types(ctx)


def _global_lp_pool(builder: Builder) -> tuple[str, ...]:
    ctx = builder.infer
    axes = range(2, ctx.type(0).rank)
    return (_norm(builder, ctx.node.inputs[0], _power(ctx), lambda value: reduction(builder, "ReduceSum", value, axes)),)


def _lrn_size(ctx: InferContext) -> int:
    size = int(ctx.attr("size", 0))
    if size < 1:
        raise ModelError(f"{where(ctx)} has size {size}, expected at least 1")
    return size


def _lrn_types(ctx: InferContext) -> tuple[TensorType, ...]:
    expect_rank(ctx, 0, 2)
    _lrn_size(ctx)
    return same_types(ctx)


def _lrn(builder: Builder) -> tuple[str, ...]:
    """x / (bias + alpha / size * sum of squares) ** beta, the sum over neighbouring channels, which are made the first axis of
    an image of one channel."""
    ctx = builder.infer
    x, dtype, size, rank = ctx.node.inputs[0], ctx.type(0).dtype, _lrn_size(ctx), ctx.type(0).rank
    less = (size - 1) // 2
    squares = builder.emit("Unsqueeze", builder.emit("Mul", x, x), axes=(1,))
    rest = (0,) * (rank - 2)
    sums = builder.emit("WindowSum", squares, kernel_shape=(size, *(1,) * (rank - 2)),
                        pads=(less, *rest, size - 1 - less, *rest))
    scaled = builder.emit("Mul", builder.emit("Squeeze", sums, axes=(1,)),
                          scalar_operand(builder, float(ctx.attr("alpha", 1e-4)) / size, dtype))
    base = builder.emit("Add", scaled, scalar_operand(builder, float(ctx.attr("bias", 1.0)), dtype))
    return (builder.emit("Div", x, builder.emit("Pow", base, scalar_operand(builder, float(ctx.attr("beta", 0.75)), dtype))),)


# -- Hardmax -----------------------------------------------------------------------------------------------------

def _hardmax_types(ctx: InferContext) -> tuple[TensorType, ...]:
    softmax_axes(ctx)
    return same_types(ctx)


def _hardmax(builder: Builder) -> tuple[str, ...]:
    """1 at the first maximum, over one axis since opset 13, before over all from one on together."""
    ctx = builder.infer
    x, axes, shape, dtype = ctx.node.inputs[0], softmax_axes(ctx), canonical(ctx, 0), ctx.type(0).dtype
    extent = product(shape[k] for k in axes)
    axis, rank = axes[0], len(shape) - len(axes) + 1
    flat = x if len(axes) == 1 else reshape(builder, x, (*shape[:axis], extent))
    first = builder.emit("ArgMax", flat, axis=axis, keepdims=1)
    result = cast(builder, builder.emit("Equal", positions(builder, extent, rank - 1 - axis), first), "bool", dtype)
    return (result if len(axes) == 1 else reshape(builder, result, shape),)


# -- samples -----------------------------------------------------------------------------------------------------

def _lps() -> Sequence[Sample]:
    zeros = np.where(np.arange(15).reshape(3, 5) // 5 == 1, np.float32(0), floats(3, 5))
    return [Sample([floats(2, 3, 5)]), Sample([floats(2, 3, 5, low=0.1)], {"axis": 1, "p": 1}),
            Sample([floats(2, 3, 5)], {"axis": 0, "p": 2}), Sample([zeros])]


def _lp_pools() -> Sequence[Sample]:
    x = floats(2, 3, 7, 8)
    return [Sample([x], {"kernel_shape": (2, 3)}), Sample([x], {"kernel_shape": (2, 3), "p": 1, "strides": (2, 1)}),
            Sample([x], {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1), "p": 3}),
            Sample([floats(1, 2, 9)], {"kernel_shape": (3,), "dilations": (2,), "pads": (2, 1)})]


def _wholes() -> Sequence[Sample]:
    return [Sample([floats(2, 3, 5, 4)]), Sample([floats(1, 3, 2)], {"p": 1}), Sample([floats(1, 3, 5)], {"p": 3})]


def _lrns() -> Sequence[Sample]:
    return [Sample([floats(2, 5, 3, 4)], {"size": 3, "alpha": 0.5, "beta": 0.5, "bias": 2.0}),
            Sample([floats(1, 6, 1, 2)], {"size": 5})]


def _hardmaxes() -> Sequence[Sample]:
    ties = np.array([[1, 3, 3, 0], [2, 2, 2, 2], [0, -1, 0, -5]], np.float32)
    return [Sample([floats(2, 3, 5)], {"axis": a}) for a in (-1, 1, 0)] + [Sample([ties]), Sample([floats(4, 1)])]


OPS: tuple[OpDef, ...] = (
    OpDef("LpNormalization", PatternKind.REDUCE, _lp_types, decompose=_lp_normalization, samples=_lps, reads=("axis", "p")),
    OpDef("LpPool", PatternKind.REDUCE, _lp_pool_types, decompose=_lp_pool, samples=_lp_pools,
          reads=("p", "kernel_shape", "strides", "dilations", "pads", "auto_pad", "ceil_mode")),
    OpDef("GlobalLpPool", PatternKind.REDUCE, _global_lp_types, decompose=_global_lp_pool, samples=_wholes, reads=("p",)),
    OpDef("LRN", PatternKind.REDUCE, _lrn_types, decompose=_lrn, samples=_lrns, reads=("alpha", "beta", "bias", "size")),
    OpDef("Hardmax", PatternKind.REDUCE, _hardmax_types, decompose=_hardmax, samples=_hardmaxes, reads=("axis",)),
)

"""Normalisations, decomposed into reductions and arithmetic: the fuser makes one kernel of them again."""

from __future__ import annotations

from collections.abc import Sequence

from tsc.errors import ModelError, UnsupportedError
from tsc.ir import TensorType
from tsc.ops.base import Builder, InferContext, OpDef, PatternKind, Sample
from tsc.ops.contraction import scalar_operand
from tsc.ops.form import FLOATS, Form
from tsc.ops.movement import reshape, size_operand
from tsc.ops.reduce import cast, reduction
from tsc.ops.samples import floats
from tsc.ops.shapes import (
    HALVES,
    Shape,
    as_object,
    canonical,
    element_type,
    expect_list,
    expect_rank,
    expect_within,
    same_types,
    tensor,
    where,
)
from tsc.sym import ONE, ZERO, SymExpr, product


def _mean(builder: Builder, value: str, axes: Sequence[int], extent: SymExpr, dtype: str) -> str:
    return builder.emit("Div", reduction(builder, "ReduceSum", value, axes), size_operand(builder, as_object(extent), dtype))


def _root(builder: Builder, variance: str, dtype: str) -> str:
    """sqrt(variance + epsilon)."""
    epsilon = scalar_operand(builder, float(builder.infer.attr("epsilon", 1e-5)), dtype)
    return builder.emit("Sqrt", builder.emit("Add", variance, epsilon))


def _inverse_root(builder: Builder, variance: str, dtype: str) -> str:
    """1 / sqrt(variance + epsilon): one division a row instead of one an element."""
    return builder.emit("Reciprocal", _root(builder, variance, dtype))


def _standardised(builder: Builder, x: str, axes: Sequence[int], extent: SymExpr, dtype: str) -> tuple[str, str, str]:
    """(x - mean) / sqrt(variance + epsilon) in two passes, and the mean and the inverse of the root."""
    mean = _mean(builder, x, axes, extent, dtype)
    centred = builder.emit("Sub", x, mean)
    inverse = _inverse_root(builder, _mean(builder, builder.emit("Mul", centred, centred), axes, extent, dtype), dtype)
    return builder.emit("Mul", centred, inverse), mean, inverse


def _stash(builder: Builder) -> tuple[str, str]:
    """Input 0 in the type the statistics are computed in, and that type: float32 for narrower inputs."""
    ctx = builder.infer
    own, x = ctx.type(0).dtype, ctx.node.inputs[0]
    stash = element_type(ctx, ctx.attr("stash_type", 1))
    return (cast(builder, x, own, stash), stash) if own in HALVES else (x, own)


def _trailing(ctx: InferContext) -> tuple[tuple[int, ...], SymExpr]:
    rank = ctx.type(0).rank
    axes = tuple(range(ctx.axis(int(ctx.attr("axis", -1)), rank), rank))
    shape = canonical(ctx, 0)
    return axes, product(shape[k] for k in axes)


def _scaled(builder: Builder, value: str, scale: int, bias: int | None) -> str:
    value = builder.emit("Mul", value, builder.infer.node.inputs[scale])
    return value if bias is None else builder.emit("Add", value, builder.infer.node.inputs[bias])


# -- LayerNormalization, RMSNormalization ----------------------------------------------------------------------

def _layer_types(ctx: InferContext) -> tuple[TensorType, ...]:
    shape = canonical(ctx, 0)
    axes, _ = _trailing(ctx)
    for i in (1, 2)[:1 + ctx.has(2)]:
        expect_within(ctx, i, shape)
    stash = element_type(ctx, ctx.attr("stash_type", 1))
    statistic = TensorType(stash, tuple(ONE if k in axes else d for k, d in enumerate(shape)))
    return (TensorType(ctx.type(0).dtype, shape), statistic, statistic)[:max(1, len(ctx.node.outputs))]


def _layer(builder: Builder) -> tuple[str, ...]:
    """Doubles are normalised as doubles; their statistics are given in the type of stash_type all the same."""
    ctx = builder.infer
    x, stash = _stash(builder)
    axes, extent = _trailing(ctx)
    normal, mean, inverse = _standardised(builder, x, axes, extent, stash)
    result = _scaled(builder, cast(builder, normal, stash, ctx.type(0).dtype), 1, 2 if ctx.has(2) else None)
    given = element_type(ctx, ctx.attr("stash_type", 1))
    statistics = (cast(builder, v, stash, given) for v in (mean, inverse)[:len(ctx.node.outputs) - 1])
    return (result, *statistics)


def _rms_types(ctx: InferContext) -> tuple[TensorType, ...]:
    _trailing(ctx)
    element_type(ctx, ctx.attr("stash_type", 1))
    expect_within(ctx, 1, canonical(ctx, 0))
    return tensor(ctx.type(1).dtype, canonical(ctx, 0))


def rms(builder: Builder) -> tuple[str, ...]:
    """x / sqrt(mean of squares + epsilon) * scale, and the inverse of the root."""
    ctx = builder.infer
    x, stash = _stash(builder)
    axes, extent = _trailing(ctx)
    square = _mean(builder, builder.emit("Mul", x, x), axes, extent, stash)
    inverse = _inverse_root(builder, square, stash)
    scaled = _scaled(builder, cast(builder, builder.emit("Mul", x, inverse), stash, ctx.type(1).dtype), 1, None)
    return (scaled, inverse)[:len(ctx.node.outputs)]


# -- normalisations by channel ---------------------------------------------------------------------------------

def _by_channel(builder: Builder, value: str, rank: int) -> str:
    """A [C] value as [C, 1, …], so that it broadcasts over [N, C, …]."""
    return value if rank < 3 else builder.emit("Unsqueeze", value, axes=tuple(range(1, rank - 1)))


def _batch_types(ctx: InferContext) -> tuple[TensorType, ...]:
    if ctx.attr("training_mode", 0) or len(ctx.node.outputs) > 1:
        raise UnsupportedError(f"{where(ctx)} is in training mode, expected inference; export the model with eval()")
    if not ctx.attr("spatial", 1):
        raise UnsupportedError(f"{where(ctx)} normalises every element by itself (spatial=0), which is not supported; "
                               "export it in a newer opset")
    expect_rank(ctx, 0, 1)
    shape = canonical(ctx, 0)
    for i in range(1, 5):
        expect_list(ctx, i, shape[1] if len(shape) > 1 else ONE)
    return same_types(ctx)


def _batch(builder: Builder) -> tuple[str, ...]:
    """x * a + b with a = scale / sqrt(var + epsilon) and b = bias - mean * a, which fold where the statistics are constant."""
    ctx = builder.infer
    own, rank = ctx.type(0).dtype, ctx.type(0).rank
    x, scale, bias, mean, variance = (cast(builder, v, ctx.type(i).dtype, own) for i, v in enumerate(ctx.node.inputs[:5]))
    factor = builder.emit("Div", scale, _root(builder, variance, own))
    offset = builder.emit("Sub", bias, builder.emit("Mul", mean, factor))
    scaled = builder.emit("Mul", x, _by_channel(builder, factor, rank))
    return (builder.emit("Add", scaled, _by_channel(builder, offset, rank)),)


def _instance_types(ctx: InferContext) -> tuple[TensorType, ...]:
    expect_rank(ctx, 0, 3)
    for i in (1, 2):
        expect_list(ctx, i, canonical(ctx, 0)[1])
    return same_types(ctx)


def _instance(builder: Builder) -> tuple[str, ...]:
    ctx = builder.infer
    shape, dtype = canonical(ctx, 0), ctx.type(0).dtype
    axes = tuple(range(2, len(shape)))
    normal, _, _ = _standardised(builder, ctx.node.inputs[0], axes, product(shape[2:]), dtype)
    scale, bias = (_by_channel(builder, v, len(shape)) for v in ctx.node.inputs[1:3])
    return (builder.emit("Add", builder.emit("Mul", normal, scale), bias),)


def _group_types(ctx: InferContext) -> tuple[TensorType, ...]:
    expect_rank(ctx, 0, 3)
    channels, groups = canonical(ctx, 0)[1], int(ctx.attr("num_groups", 0))
    if groups < 1:
        raise ModelError(f"{where(ctx)} has num_groups {groups}, expected at least 1")
    element_type(ctx, ctx.attr("stash_type", 1))
    ctx.env.assume_eq(channels % groups, ZERO, f"{where(ctx)}: num_groups must divide the channels")
    for i in (1, 2):
        expect_list(ctx, i, SymExpr.of(groups) if ctx.opset < 21 else channels)
    return same_types(ctx)


def _group(builder: Builder) -> tuple[str, ...]:
    ctx = builder.infer
    shape, groups = canonical(ctx, 0), int(ctx.attr("num_groups"))
    own = ctx.type(0).dtype
    x, stash = _stash(builder)
    width, rest = shape[1] // groups, product(shape[2:])
    grouped: Shape = (shape[0], SymExpr.of(groups), width, rest)
    spread = reshape(builder, x, grouped)
    normal, _, _ = _standardised(builder, spread, (2, 3), width * rest, stash)
    normal = cast(builder, normal, stash, own)
    scale, bias = ctx.node.inputs[1:3]
    if ctx.opset < 21:  # one scale a group
        scale, bias = (builder.emit("Unsqueeze", v, axes=(1, 2)) for v in (scale, bias))
    else:  # scaled before the groups are joined again, so that nothing stands between the statistics and the result
        scale, bias = (reshape(builder, v, (SymExpr.of(groups), width, ONE)) for v in (scale, bias))
    normal = builder.emit("Add", builder.emit("Mul", normal, scale), bias)
    return (reshape(builder, normal, shape),)


# -- samples ---------------------------------------------------------------------------------------------------

def _layers() -> Sequence[Sample]:
    x = floats(2, 3, 5)
    return [Sample([x, floats(5), floats(5)]), Sample([x, floats(3, 5), floats(3, 5)], {"axis": 1, "epsilon": 1e-3}),
            Sample([x, floats(5)]), Sample([x, floats(5), floats(5)], outputs=3), Sample([floats(1, 1), floats(1), floats(1)])]


def _rmses() -> Sequence[Sample]:
    return [Sample([floats(2, 3, 5), floats(5)]), Sample([floats(2, 3, 5), floats(3, 5)], {"axis": -2, "epsilon": 1e-3})]


def _batches() -> Sequence[Sample]:
    return [Sample([floats(*s), floats(3), floats(3), floats(3), floats(3, low=0.5)], {"epsilon": 1e-3})
            for s in ((2, 3, 4, 5), (2, 3), (1, 3, 1))]


def _instances() -> Sequence[Sample]:
    return [Sample([floats(2, 3, 4, 5), floats(3), floats(3)]),
            Sample([floats(1, 3, 7), floats(3), floats(3)], {"epsilon": 0.1})]


def _groups() -> Sequence[Sample]:
    return [Sample([floats(2, 6, 3, 5), floats(6), floats(6)], {"num_groups": 3}),
            Sample([floats(1, 4, 5), floats(4), floats(4)], {"num_groups": 4})]


OPS: tuple[OpDef, ...] = (
    OpDef("LayerNormalization", PatternKind.REDUCE, _layer_types, decompose=_layer, samples=_layers,
          reads=("axis", "epsilon", "stash_type"), form=Form(  # as ONNX Runtime writes it into files of opsets before 17
              "X:T Scale:T B?:T", "Y:T Mean?:U InvStdDev?:U", {"T": FLOATS, "U": FLOATS}, {
                  "axis": -1, "epsilon": 1e-5, "stash_type": 1})),
    OpDef("RMSNormalization", PatternKind.REDUCE, _rms_types, decompose=rms, samples=_rmses,
          reads=("axis", "epsilon", "stash_type")),
    OpDef("BatchNormalization", PatternKind.ELEMENTWISE, _batch_types, decompose=_batch, samples=_batches,
          reads=("epsilon", "training_mode", "spatial"), ignores=("momentum",)),
    OpDef("InstanceNormalization", PatternKind.REDUCE, _instance_types, decompose=_instance, samples=_instances,
          reads=("epsilon",)),
    OpDef("GroupNormalization", PatternKind.REDUCE, _group_types, decompose=_group, samples=_groups,
          reads=("num_groups", "epsilon", "stash_type")),
)

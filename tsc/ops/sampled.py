"""RoiAlign and DeformConv: images read between their elements, at places that other inputs hold.

Both take four neighbours of a place, weighted by their distances. RoiAlign, as in Mask R-CNN (He et al. 2017), keeps places at
most one element outside of the image at its edge; DeformConv, as in Dai et al. 2017, reads zeros there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tsc.errors import ModelError, UnsupportedError
from tsc.ir import TensorType
from tsc.ops.base import Builder, InferContext, Lowering, OpDef, PatternKind, Reduction, Sample
from tsc.ops.contraction import positives, scalar_operand
from tsc.ops.generate import converted, typed
from tsc.ops.movement import reshape
from tsc.ops.resize import clamped, inside, linear_weights, total
from tsc.ops.samples import floats, vector
from tsc.ops.shapes import as_index, canonical, tensor, unify, where
from tsc.sym import SymExpr, product
from tsc.te.compute import MAX, SUM
from tsc.te.expr import INDEX, Cast, CheckedIndex, Expr, add, call, index, mul, select


def _ranks(ctx: InferContext, *wanted: int) -> None:
    for i, rank in enumerate(wanted):
        if ctx.has(i) and ctx.type(i).rank != rank:
            raise ModelError(f"{where(ctx)} has an input {i} of rank {ctx.type(i).rank}, expected {rank}")


def _number(ctx: InferContext, name: str, default: int, least: int) -> int:
    found = int(ctx.attr(name, default))
    if found < least:
        raise ModelError(f"{where(ctx)} has {name} {found}, expected at least {least}")
    return found


@dataclass(frozen=True, slots=True)
class _Neighbours:
    """The elements before and behind a place along an axis, and what they weigh."""

    before: Expr
    behind: Expr
    weights: Sequence[Expr]


def _corners(y: _Neighbours, x: _Neighbours) -> list[tuple[Expr, Expr, Expr]]:
    """The four neighbours of a place: weight, row and column of each."""
    return [(mul(high, wide), row, column) for high, row in zip(y.weights, (y.before, y.behind))
            for wide, column in zip(x.weights, (x.before, x.behind))]


# -- RoiAlign --------------------------------------------------------------------------------------------------

def _roi_types(ctx: InferContext) -> tuple[TensorType, ...]:
    _ranks(ctx, 4, 2, 1)
    shape, rois = canonical(ctx, 0), canonical(ctx, 1)
    unify(ctx.env, rois[1], SymExpr.of(4), f"{where(ctx)}: a region has four bounds")
    count = unify(ctx.env, rois[0], canonical(ctx, 2)[0], f"{where(ctx)}: each region is of one image")
    for name, default, known in (("mode", "avg", ("avg", "max")),
                                 ("coordinate_transformation_mode", "half_pixel", ("half_pixel", "output_half_pixel"))):
        if (given := ctx.attr(name, default)) not in known:
            raise ModelError(f"{where(ctx)} has {name} '{given}', expected {' or '.join(known)}")
    if int(ctx.attr("sampling_ratio", 0)) <= 0:
        raise UnsupportedError(f"{where(ctx)} has sampling_ratio 0, as many samples as a region is large, which is not "
                               "supported; export it with a number of them")
    for extent in shape[2:]:
        ctx.env.assume_le(1, extent, f"{where(ctx)}: an image without pixels has no regions")
    sizes = (SymExpr.of(_number(ctx, name, 1, 1)) for name in ("output_height", "output_width"))
    return tensor(ctx.type(0).dtype, (count, shape[1], *sizes))


def _roi_align(builder: Builder) -> tuple[str, ...]:
    """The mean of samples as their sum; of float16 that would lose digits, but nothing computes in it."""
    ctx = builder.infer
    mode, ratio = ctx.attr("mode", "avg"), int(ctx.attr("sampling_ratio", 0))
    half = ctx.opset >= 16 and ctx.attr("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    found = builder.emit("RoiSamples", *ctx.node.inputs, mode=mode, grid=ratio, half=int(half),
                         scale=float(ctx.attr("spatial_scale", 1.0)),
                         sizes=tuple(int(ctx.attr(name, 1)) for name in ("output_height", "output_width")))
    return (found if mode == "max" else
            builder.emit("Div", found, scalar_operand(builder, float(ratio * ratio), ctx.type(0).dtype)),)


def _samples_types(ctx: InferContext) -> tuple[TensorType, ...]:
    return tensor(ctx.type(0).dtype, (canonical(ctx, 1)[0], canonical(ctx, 0)[1], *map(SymExpr.of, ctx.attr("sizes"))))


def _samples_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Reduction:
    """The sum (or maximum) over a grid of samples in a cell of a region; a maximum is that of all neighbours, each weighted, as
    ONNX Runtime and the reference have it."""
    ctx, dtype = lowering.infer, lowering.out[0].dtype
    shape, count, is_max = canonical(ctx, 0), SymExpr.of(ctx.attr("grid")), ctx.attr("mode") == "max"
    samples = tuple(lowering.axis(name, count) for name in "hw")
    outside: Expr = typed(False, "bool")
    along = []
    for k in (0, 1):
        place = _sample(lowering, at, k, lowering.var(samples[k]))
        size = converted(index(shape[2 + k]), dtype)
        beyond = call("or", call("lt", place, typed(-1, dtype)), call("gt", place, size))
        outside = call("or", outside, beyond)
        along.append(_at_edge(place, shape[2 + k], dtype))
    image = CheckedIndex(as_index(lowering.read(2, (at[0],))), shape[0], ctx.node.inputs[2])
    parts = [mul(weight, lowering.read(0, (image, at[1], row, column))) for weight, row, column in _corners(*along)]
    value = parts[0] if is_max else total(parts)
    for part in parts[1:] if is_max else ():
        value = call("max", value, part)
    return Reduction(MAX if is_max else SUM, samples, select(outside, typed(0, dtype), value))


def _sample(lowering: Lowering, at: tuple[Expr, ...], k: int, number: Expr) -> Expr:
    """Where a sample lies along axis k of the image (0: y, which a region has second)."""
    ctx, dtype = lowering.infer, lowering.out[0].dtype
    half, cells = bool(ctx.attr("half")), ctx.attr("sizes")[k]

    def bound(column: int) -> Expr:
        scaled = mul(lowering.read(1, (at[0], index(column))), typed(ctx.attr("scale"), dtype))
        return call("sub", scaled, typed(0.5, dtype)) if half else scaled

    start = bound(1 - k)
    length = call("sub", bound(3 - k), start)
    cell = call("div", length if half else call("max", length, typed(1, dtype)), typed(cells, dtype))
    middle = add(converted(number, dtype), typed(0.5, dtype))
    inner = call("div", mul(middle, cell), typed(ctx.attr("grid"), dtype))
    return add(add(start, mul(converted(at[2 + k], dtype), cell)), inner)


def _at_edge(place: Expr, extent: SymExpr, dtype: str) -> _Neighbours:
    """Neighbours of a place that is moved into the image."""
    kept = call("max", place, typed(0, dtype))
    last = index(extent - 1)
    before = clamped(Cast(call("floor", kept), INDEX), extent)
    fraction = select(call("ge", before, last), typed(0, dtype), call("sub", kept, converted(before, dtype)))
    return _Neighbours(before, call("min", add(before, index(1)), last), linear_weights(fraction))


# -- DeformConv ------------------------------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class _Kernel:
    """What the attributes say of both spatial axes."""

    size: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    groups: int
    offset_groups: int


def _kernel(ctx: InferContext) -> _Kernel:
    _ranks(ctx, 4, 4, 4, 1, 4)
    own = canonical(ctx, 1)[2:]
    size = ctx.attr("kernel_shape", [extent.as_int() for extent in own])
    if len(size) != 2 or None in size:
        raise UnsupportedError(f"{where(ctx)} has a kernel of {[str(extent) for extent in own]}, which is not supported; "
                               "give it a kernel_shape of two numbers")
    for extent, given in zip(own, size):
        unify(ctx.env, extent, SymExpr.of(int(given)), f"{where(ctx)}: its weights are of its kernel_shape")
    pads = tuple(int(p) for p in ctx.attr("pads", (0,) * 4))
    if len(pads) != 4:
        raise ModelError(f"{where(ctx)} has pads {pads}, expected two an axis")
    return _Kernel(tuple(map(int, size)), positives(ctx, "strides", 2), positives(ctx, "dilations", 2), pads,
                   _number(ctx, "group", 1, 1), _number(ctx, "offset_group", 1, 1))


def _deform_types(ctx: InferContext) -> tuple[TensorType, ...]:
    kernel, x, weights, offsets = _kernel(ctx), canonical(ctx, 0), canonical(ctx, 1), canonical(ctx, 2)
    taps = kernel.size[0] * kernel.size[1]
    unify(ctx.env, x[1], weights[1] * kernel.groups, f"{where(ctx)}: its weights have the channels of a group")
    for extent, by, what in ((weights[0], kernel.groups, "outputs"), (x[1], kernel.offset_groups, "channels")):
        ctx.env.assume_eq(extent % by, SymExpr.of(0), f"{where(ctx)}: its {what} are shared by {by} groups alike")
    unify(ctx.env, offsets[1], SymExpr.of(2 * taps * kernel.offset_groups), f"{where(ctx)}: there are two offsets for each tap")
    sizes = []
    for k in (0, 1):
        room = x[2 + k] + kernel.pads[k] + kernel.pads[2 + k] - (kernel.size[k] - 1) * kernel.dilations[k] - 1
        ctx.env.assume_le(0, room, f"{where(ctx)}: its kernel must fit into the padded image")
        sizes.append(unify(ctx.env, ctx.env.canon(room // kernel.strides[k] + 1), offsets[2 + k],
                           f"{where(ctx)}: there are offsets for each place of the kernel"))
    batch = unify(ctx.env, x[0], offsets[0], f"{where(ctx)}: each image has offsets of its own")
    if ctx.has(3):
        unify(ctx.env, canonical(ctx, 3)[0], weights[0], f"{where(ctx)}: there is a bias for each output")
    if ctx.has(4):
        for own, wanted in zip(canonical(ctx, 4), (batch, SymExpr.of(taps * kernel.offset_groups), *sizes)):
            unify(ctx.env, own, wanted, f"{where(ctx)}: there is a mask for each tap")
    return tensor(ctx.type(0).dtype, [ctx.env.canon(extent) for extent in (batch, weights[0], *sizes)])


def _deform(builder: Builder) -> tuple[str, ...]:
    """A product of the weights with columns of what the taps read, for each group."""
    ctx = builder.infer
    kernel, (shape,) = _kernel(ctx), [t.shape for t in _deform_types(ctx)]
    (batch, outputs, *sizes), weights = shape, canonical(ctx, 1)
    x, w, offsets, *others = ctx.node.inputs
    mask = (others[1],) if ctx.has(4) else ()
    columns = builder.emit("DeformColumns", x, offsets, *mask, kernel=kernel, sizes=tuple(sizes))
    groups, depth = SymExpr.of(kernel.groups), weights[1] * kernel.size[0] * kernel.size[1]
    columns = reshape(builder, columns, (batch, groups, depth, product(sizes)))
    made = builder.emit("MatMul", reshape(builder, w, (groups, outputs // kernel.groups, depth)), columns)
    made = reshape(builder, made, (batch, outputs, *sizes))
    if ctx.has(3):
        made = builder.emit("Add", made, reshape(builder, others[0], (outputs, SymExpr.of(1), SymExpr.of(1))))
    return (made,)


def _columns_types(ctx: InferContext) -> tuple[TensorType, ...]:
    kernel, (batch, channels, *_) = ctx.attr("kernel"), canonical(ctx, 0)
    return tensor(ctx.type(0).dtype, (batch, channels, *map(SymExpr.of, kernel.size), *map(ctx.env.canon, ctx.attr("sizes"))))


def _columns_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    """What a tap reads of a channel: zeros beyond the borders, between them and the image's edge weighted with them."""
    ctx, dtype = lowering.infer, lowering.out[0].dtype
    kernel, shape = ctx.attr("kernel"), canonical(ctx, 0)
    n, channel, *tap = at[:4]
    spots = at[4:]
    group = call("floordiv", channel, index(shape[1] // kernel.offset_groups))
    number = add(mul(add(mul(group, index(kernel.size[0])), tap[0]), index(kernel.size[1])), tap[1])
    along = []
    for k in (0, 1):
        moved = lowering.read(1, (n, add(mul(number, index(2)), index(k)), *spots))
        corner = call("sub", add(mul(spots[k], index(kernel.strides[k])), mul(tap[k], index(kernel.dilations[k]))),
                      index(kernel.pads[k]))
        place = add(converted(corner, dtype), moved)
        floor = call("floor", place)
        before = Cast(floor, INDEX)
        along.append(_Neighbours(before, add(before, index(1)), linear_weights(call("sub", place, floor))))
    terms = []
    for weight, row, column in _corners(*along):
        value = lowering.read(0, (n, channel, clamped(row, shape[2]), clamped(column, shape[3])))
        is_in = call("and", inside(row, shape[2]), inside(column, shape[3]))
        terms.append(mul(weight, select(is_in, value, typed(0, dtype))))
    value = total(terms)
    return mul(value, lowering.read(2, (n, number, *spots))) if ctx.has(2) else value


# -- samples ---------------------------------------------------------------------------------------------------

def _rois() -> Sequence[Sample]:
    x, regions = floats(2, 3, 7, 9), np.array([[0, 0, 8, 6], [1.3, 2.1, 5.4, 4.0], [-2, -3, 12, 9]], np.float32)
    shared = {"output_height": 3, "output_width": 2, "sampling_ratio": 2}
    return [Sample([x, regions, vector(0, 1, 1)], shared | {"mode": m, "coordinate_transformation_mode": c})
            for m in ("avg", "max") for c in ("half_pixel", "output_half_pixel")] + [
        Sample([x, regions, vector(1, 0, 1)], {"spatial_scale": 0.5, "sampling_ratio": 1})]


def _deforms() -> Sequence[Sample]:
    x, w = floats(2, 4, 5, 6), floats(4, 2, 3, 3)
    return [Sample([floats(1, 2, 4, 5), floats(3, 2, 2, 2), floats(1, 8, 3, 4)]),
            Sample([x, w, floats(2, 36, 5, 6), floats(4), floats(2, 18, 5, 6)],
                   {"group": 2, "offset_group": 2, "pads": (1, 1, 1, 1)}),
            Sample([x, floats(2, 4, 2, 2), floats(2, 8, 2, 3)], {"strides": (2, 2), "dilations": (2, 2), "pads": (0, 1, 0, 1)})]


OPS: tuple[OpDef, ...] = (
    OpDef("RoiAlign", PatternKind.REDUCE, _roi_types, decompose=_roi_align, samples=_rois,
          reads=("mode", "coordinate_transformation_mode", "output_height", "output_width", "sampling_ratio", "spatial_scale")),
    OpDef("RoiSamples", PatternKind.REDUCE, _samples_types, te=_samples_te, domain="tsc"),
    OpDef("DeformConv", PatternKind.CONTRACTION, _deform_types, decompose=_deform, samples=_deforms,
          reads=("dilations", "group", "kernel_shape", "offset_group", "pads", "strides")),
    OpDef("DeformColumns", PatternKind.INJECTIVE, _columns_types, te=_columns_te, domain="tsc"),
)

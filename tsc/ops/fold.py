"""Col2Im: columns of windows added up where the windows lie in the image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tsc.errors import ModelError
from tsc.ir import TensorType
from tsc.ops.base import InferContext, Lowering, OpDef, PatternKind, Reduction, Sample
from tsc.ops.contraction import positives
from tsc.ops.generate import typed
from tsc.ops.samples import floats, vector
from tsc.ops.shapes import canonical, is_float, sizes_operand, tensor, unify, where
from tsc.sym import ZERO, SymExpr, product
from tsc.te.compute import SUM, Monoid
from tsc.te.expr import BOOL, Expr, add, call, index, mul, select


@dataclass(frozen=True, slots=True)
class _Windows:
    """The windows along one axis of the image: `count` of them, each of `size` elements."""

    image: SymExpr
    size: SymExpr
    stride: int
    dilation: int
    before: int
    count: SymExpr


def _axes(ctx: InferContext) -> list[_Windows]:
    image, block = sizes_operand(ctx, 1, "image_shape"), sizes_operand(ctx, 2, "block_shape")
    rank = len(image)
    if not rank or len(block) != rank:
        raise ModelError(f"{where(ctx)} has an image_shape of {rank} and a block_shape of {len(block)} sizes, expected as many")
    strides, dilations = positives(ctx, "strides", rank), positives(ctx, "dilations", rank)
    pads = tuple(int(p) for p in ctx.attr("pads", (0,) * 2 * rank))
    if len(pads) != 2 * rank or min(pads) < 0:
        raise ModelError(f"{where(ctx)} has pads {pads}, expected two an axis, none below 0")
    made = []
    for extent, size, stride, dilation, before, after in zip(image, block, strides, dilations, pads, pads[rank:]):
        span = (size - 1) * dilation + 1
        room = ctx.env.canon(extent + before + after - span)
        ctx.env.assume_le(1, size, f"{where(ctx)}: a block has elements")
        ctx.env.assume_le(0, room, f"{where(ctx)}: a block must fit into the padded image")
        made.append(_Windows(extent, size, stride, dilation, before, ctx.env.canon(room // stride + 1)))
    return made


def _types(ctx: InferContext) -> tuple[TensorType, ...]:
    columns, axes = canonical(ctx, 0), _axes(ctx)
    if len(columns) != 3:
        raise ModelError(f"{where(ctx)} has columns of rank {len(columns)}, expected 3")
    block = product(axis.size for axis in axes)
    count = product(axis.count for axis in axes)
    unify(ctx.env, columns[2], count, f"{where(ctx)}: there is a column for each place of a block")
    ctx.env.assume_eq(columns[1] % block, ZERO, f"{where(ctx)}: a column has the elements of a block for each channel")
    return tensor(ctx.type(0).dtype, (columns[0], columns[1] // block, *(axis.image for axis in axes)))


def _te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Reduction:
    """sum over the elements k of a block of columns[n, c * block + k, (i + p - d * k) / s], where that is a window."""
    ctx = lowering.infer
    windows = _axes(ctx)
    elements = tuple(lowering.axis(name, w.size) for name, w in zip("hwdefg", windows))
    row, column = at[1], index(0)
    conditions = []
    for position, axis, w in zip(at[2:], elements, windows):
        k = lowering.var(axis)
        spot = call("sub", add(position, index(w.before)), mul(k, index(w.dilation)))
        place = call("floordiv", spot, index(w.stride))
        row = add(mul(row, index(w.size)), k)
        column = add(mul(column, index(w.count)), place)
        inside = call("and", call("ge", spot, index(0)), call("lt", place, index(w.count)))
        conditions.append(call("and", inside, call("eq", call("mod", spot, index(w.stride)), index(0))))
    value = lowering.read(0, (at[0], row, column))
    for condition in conditions:
        value = select(condition, value, typed(0.0 if is_float(value.dtype) else 0, value.dtype))
    return Reduction(Monoid("or") if value.dtype == BOOL else SUM, elements, value)


def _samples() -> Sequence[Sample]:
    return [Sample([floats(2, 2 * 6, 4), vector(3, 4), vector(2, 3)]),
            Sample([floats(1, 5, 5), vector(5, 5), vector(1, 5)]),
            Sample([floats(1, 9, 4), vector(5, 5), vector(3, 3)], {"strides": (2, 2)}),
            Sample([floats(1, 4, 9), vector(4, 4), vector(2, 2)],
                   {"dilations": (2, 2), "strides": (2, 2), "pads": (1, 1, 3, 3)}),
            Sample([floats(1, 3, 8), vector(10), vector(3)]), Sample([floats(1, 8, 8), vector(3, 3, 3), vector(2, 2, 2)])]


OPS: tuple[OpDef, ...] = (
    OpDef("Col2Im", PatternKind.REDUCE, _types, te=_te, samples=_samples, static_inputs=(1, 2),
          reads=("dilations", "pads", "strides")),
)

"""GridSample: elements of an image, a volume or a line at places that a grid holds, between -1 and 1 along each axis."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from tsc.errors import ModelError, UnsupportedError
from tsc.ir import TensorType
from tsc.ops.base import InferContext, Lowering, OpDef, PatternKind, Sample
from tsc.ops.generate import converted, typed
from tsc.ops.resize import clamped, cubic_weights, inside, linear_weights, total
from tsc.ops.samples import floats
from tsc.ops.shapes import canonical, expect_rank, is_float, tensor, unify, where
from tsc.sym import SymExpr
from tsc.te.expr import INDEX, Cast, Expr, add, call, index, mul, select

#: What older opsets call the modes.
_MODES = {"bilinear": "linear", "bicubic": "cubic", "nearest": "nearest", "linear": "linear", "cubic": "cubic"}
_PADDINGS = ("zeros", "border", "reflection")
#: The coefficient of the cubic, which the standard takes from PyTorch.
_CUBIC = -0.75


def _mode(ctx: InferContext) -> str:
    given, padding = ctx.attr("mode", "linear"), ctx.attr("padding_mode", "zeros")
    if given not in _MODES or padding not in _PADDINGS:
        raise ModelError(f"{where(ctx)} has mode '{given}' and padding_mode '{padding}', expected one of {', '.join(_MODES)} "
                         f"and one of {', '.join(_PADDINGS)}")
    return _MODES[given]


def _types(ctx: InferContext) -> tuple[TensorType, ...]:
    expect_rank(ctx, 0, 3)
    (batch, channels, *extents), grid = canonical(ctx, 0), canonical(ctx, 1)
    if len(grid) != len(extents) + 2:
        raise ModelError(f"{where(ctx)} has a grid of rank {len(grid)}, expected {len(extents) + 2}, as its input has")
    unify(ctx.env, grid[-1], SymExpr.of(len(extents)), f"{where(ctx)}: the grid has a number for each of {len(extents)} axes")
    batch = unify(ctx.env, batch, grid[0], f"{where(ctx)}: each image has a grid of its own")
    if _mode(ctx) != "nearest" and not is_float(ctx.type(0).dtype):
        raise UnsupportedError(f"{where(ctx)} interpolates {ctx.type(0).dtype}, which is not supported; cast it to float32")
    return tensor(ctx.type(0).dtype, (batch, channels, *grid[1:-1]))


def _te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    """The weighted sum of the neighbours along all axes, each kept inside as the padding says, or 0 there."""
    ctx = lowering.infer
    image, extents, dtype = at[:2], canonical(ctx, 0)[2:], ctx.type(0).dtype
    neighbours: list[list[tuple[Expr, Expr | None]]] = []  # of each axis the places, with their weights
    for k, extent in enumerate(extents):
        place = _place(ctx, lowering.read(1, (at[0], *at[2:], index(len(extents) - 1 - k))), extent)
        neighbours.append(_along(ctx, place, dtype))
    terms = []
    for chosen in itertools.product(*neighbours):
        positions = [_kept(ctx, position, extent) for (position, _), extent in zip(chosen, extents)]
        value = lowering.read(0, (*image, *positions))
        if ctx.attr("padding_mode", "zeros") == "zeros":
            for (position, _), extent in zip(chosen, extents):
                value = select(inside(position, extent), value, typed(0, dtype))
        for _, weight in chosen:
            value = value if weight is None else mul(weight, value)
        terms.append(value)
    return total(terms)


def _place(ctx: InferContext, given: Expr, extent: SymExpr) -> Expr:
    """Where a number between -1 and 1 lies among the elements of an axis. Beyond the borders of the first and the last one it
    is moved as the padding says, which a cubic, as in PyTorch, leaves to each of its elements."""
    one, two = typed(1, given.dtype), typed(2, given.dtype)
    size = converted(index(extent), given.dtype)
    shifted = add(given, one)
    corners = ctx.attr("align_corners", 0)
    if corners:
        found = mul(call("div", shifted, two), call("sub", size, one))
    else:
        found = call("div", call("sub", mul(shifted, size), one), two)
    if _mode(ctx) == "nearest":
        found = call("round", found)
    padding, last = ctx.attr("padding_mode", "zeros"), call("sub", size, one)
    if padding == "zeros" or _mode(ctx) == "cubic":
        return found
    low, high = (typed(0, given.dtype), last) if corners else (
        typed(-0.5, given.dtype), call("sub", size, typed(0.5, given.dtype)))
    is_outside = call("or", call("lt", found, low), call("gt", found, high))
    if padding == "border":
        return select(is_outside, call("min", call("max", found, typed(0, given.dtype)), last), found)
    span = call("max", last, one) if corners else size
    period, beyond = mul(two, span), call("sub", found, low)
    rest = call("sub", beyond, mul(call("floor", call("div", beyond, period)), period))
    return select(is_outside, add(low, call("min", rest, call("sub", period, rest))), found)


def _along(ctx: InferContext, place: Expr, dtype: str) -> list[tuple[Expr, Expr | None]]:
    """The neighbours of a place along its axis, with their weights."""
    mode = _mode(ctx)
    if mode == "nearest":
        return [(Cast(place, INDEX), None)]
    floor = call("floor", place)
    first, fraction = Cast(floor, INDEX), call("sub", place, floor)
    fraction = fraction if fraction.dtype == dtype else Cast(fraction, dtype)
    weights = cubic_weights(fraction, _CUBIC) if mode == "cubic" else linear_weights(fraction)
    return [(call("add", first, index(k - (mode == "cubic"))), weight) for k, weight in enumerate(weights)]


def _kept(ctx: InferContext, position: Expr, extent: SymExpr) -> Expr:
    """An element of the axis for any position: the nearest, or (reflection) what it mirrors."""
    if ctx.attr("padding_mode", "zeros") == "reflection":
        least = 0 if ctx.attr("align_corners", 0) else 1  # corners are not mirrored twice
        period = index(extent * 2) if least else call("max", index(extent * 2 - 2), index(1))
        rest = call("mod", position, period)
        position = call("min", rest, call("sub", call("sub", period, index(least)), rest))
    return clamped(position, extent)


def _samples() -> Sequence[Sample]:
    x, volume = floats(2, 3, 4, 5), floats(1, 2, 3, 1, 4)
    grid, places = floats(2, 3, 2, 2), floats(1, 2, 2, 3, 3)
    result = [Sample([x, grid * 1.3], {"mode": m, "padding_mode": p, "align_corners": a})
              for m in ("linear", "cubic", "nearest") for p in _PADDINGS for a in (0, 1) if (m, p) != ("cubic", "border")]
    return [*result, *(Sample([volume, places], {"mode": m, "padding_mode": "border"}) for m in ("linear", "nearest"))]


OPS: tuple[OpDef, ...] = (
    OpDef("GridSample", PatternKind.INJECTIVE, _types, te=_te, samples=_samples,
          reads=("mode", "padding_mode", "align_corners")),
)

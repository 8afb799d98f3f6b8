"""Operators whose axes only a run knows: their first input as a view in which other axes, known ones, take the place of these.

An axis of `d` elements is two: one of `d` and 1 where it is kept, one of 1 and `d` where it is among the axes. Which it is, are
sizes, computed as other sizes are; so one kernel serves all axes.
"""

from __future__ import annotations

from collections.abc import Sequence

from tsc.errors import ModelError
from tsc.ops.base import InferContext
from tsc.ops.shapes import Shape, canonical, named, where
from tsc.sym import ZERO, SymExpr, product, sym_max, sym_min


def are_told(ctx: InferContext, i: int) -> bool:
    """Whether only a run knows the axes of input `i`."""
    return ctx.has(i) and any(v.as_int() is None for v in ctx.known(i, "axes").ravel())


def _is(a: SymExpr, b: SymExpr) -> SymExpr:
    """1 where two numbers are one, else 0."""
    return 1 - sym_min(sym_max(a - b, b - a), 1)


def _places(ctx: InferContext, i: int, rank: int) -> list[SymExpr]:
    """The axes that input `i` has, none of them negative."""
    found, env = ctx.known(i, "axes"), ctx.env
    if found.ndim > 1:
        raise ModelError(f"{where(ctx)} has axes of rank {found.ndim}, expected a list")
    for axis in found.ravel():
        env.assume_le(-rank, axis, f"{where(ctx)}: an axis is at least -{rank}")
        env.assume_le(axis, rank - 1, f"{where(ctx)}: an axis is at most {rank - 1}")
    return [env.canon(axis + rank * sym_min(sym_max(-axis, 0), 1)) for axis in found.ravel()]


def marks(ctx: InferContext, i: int, rank: int) -> list[SymExpr]:
    """1 for each of `rank` axes that input `i` has, 0 for the others; each may stand there once."""
    places, found = _places(ctx, i, rank), []
    for k in range(rank):
        times = sum((_is(place, SymExpr.of(k)) for place in places), ZERO)
        found.append(named(ctx, f"has_{k}", times))
        ctx.env.assume_le(found[-1], 1, f"{where(ctx)}: axis {k} must not stand twice")
    return found


def without(ctx: InferContext, shape: Shape, marked: Sequence[SymExpr], rank: int) -> Shape:
    """The sizes of `shape` that are not `marked`, of which there are `rank`, in order."""
    before, kept = ZERO, []
    for mark in marked:
        kept.append((1 - mark, before))
        before = before + 1 - mark
    sums = (sum((own * _is(place, SymExpr.of(j)) * d for (own, place), d in zip(kept, shape)), ZERO) for j in range(rank))
    return tuple(named(ctx, f"kept_{j}", total) for j, total in enumerate(sums))


def with_ones(ctx: InferContext, shape: Sequence[SymExpr], marked: Sequence[SymExpr]) -> Shape:
    """The sizes of `shape` in order where it is not `marked`, and 1 there."""
    before, made = ZERO, []
    for j, mark in enumerate(marked):
        own = sum((_is(before, SymExpr.of(k)) * d for k, d in enumerate(shape)), ZERO)
        made.append(named(ctx, f"out_{j}", mark + (1 - mark) * own))
        before = before + 1 - mark
    return tuple(made)


def reduced(ctx: InferContext, i: int) -> tuple[Shape, Shape, Shape]:
    """Of a reduction over the axes of input `i`: the sizes of what is kept and of what is reduced, and the result's shape."""
    shape = canonical(ctx, 0)
    marked = marks(ctx, i, len(shape))
    kept = tuple(named(ctx, f"outer_{k}", d + (1 - d) * m) for k, (d, m) in enumerate(zip(shape, marked)))
    inner = tuple(named(ctx, f"inner_{k}", 1 + (d - 1) * m) for k, (d, m) in enumerate(zip(shape, marked)))
    if ctx.attr("keepdims", 1):
        return kept, inner, kept
    return kept, inner, without(ctx, shape, marked, len(shape) - ctx.known(i, "axes").size)


def around(ctx: InferContext, i: int, among: Shape | None = None) -> Shape:
    """How many elements are before, along and behind the one axis that input `i` has (`among`: of some sizes of input 0)."""
    shape = canonical(ctx, 0) if among is None else among
    place, = _places(ctx, i, len(shape))
    before = [named(ctx, f"before_{k}", 1 + (d - 1) * sym_min(sym_max(place - k, 0), 1)) for k, d in enumerate(shape)]
    behind = [named(ctx, f"behind_{k}", 1 + (d - 1) * sym_min(sym_max(k - place, 0), 1)) for k, d in enumerate(shape)]
    along = named(ctx, "along", sum((_is(place, SymExpr.of(k)) * d for k, d in enumerate(shape)), ZERO))
    return named(ctx, "before", product(before)), along, named(ctx, "behind", product(behind))


def replaced(ctx: InferContext, i: int, shape: Shape, size: SymExpr) -> Shape:
    """`shape` with another size at the axis that input `i` has."""
    marked = marks(ctx, i, len(shape))
    return tuple(named(ctx, f"size_{k}", d + (size - d) * mark) for k, (d, mark) in enumerate(zip(shape, marked)))


def by_axis(ctx: InferContext, i: int, what: str, values: Sequence[SymExpr], others: Sequence[SymExpr]) -> list[SymExpr]:
    """Of each axis the one of `values` that stands where input `i` has it, or its own of `others` where that has it not."""
    places, marked = _places(ctx, i, len(others)), marks(ctx, i, len(others))
    return [named(ctx, f"{what}_{k}", sum((_is(place, SymExpr.of(k)) * value for place, value in zip(places, values)),
                                          (1 - mark) * other), signed=True)
            for k, (mark, other) in enumerate(zip(marked, others))]

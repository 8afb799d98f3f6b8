"""Reading at computed positions: Slice, Pad, Gather, GatherND, GatherElements, OneHot."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tsc.errors import ModelError, UnsupportedError
from tsc.ir import Contents, TensorType
from tsc.ops.base import InferContext, Lowering, OpDef, PatternKind, Sample
from tsc.ops.samples import bools, floats, ints, scalar, vector
from tsc.ops.shapes import (
    Values,
    as_index,
    as_object,
    at_least_zero,
    canonical,
    distinct,
    expect_list,
    expect_rank,
    is_float,
    known_ints,
    named,
    scalar_contents,
    tensor,
    unify,
    where,
)
from tsc.ops.told_axes import are_told, by_axis
from tsc.sym import ONE, ZERO, SymExpr, ceildiv, sym_max, sym_min
from tsc.te.expr import BOOL, CheckedIndex, Const, Expr, add, call, index, mul, select

# -- Slice -----------------------------------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class _Cut:
    """What one axis keeps: elements `start + step * i` for `i < extent`."""

    start: SymExpr
    step: SymExpr
    extent: SymExpr


def _slice_cuts(ctx: InferContext) -> tuple[_Cut, ...]:
    shape = canonical(ctx, 0)
    listed = next((n for i in range(1, 5) if ctx.has(i) for d in ctx.type(i).shape if (n := d.as_int()) is not None), None)
    starts, ends = _bounds(ctx, 1, "starts", listed), _bounds(ctx, 2, "ends", listed)
    steps = _bounds(ctx, 4, "steps", listed) if ctx.has(4) else [ONE] * len(starts)
    if ctx.has(3) and listed is not None:
        ctx.holds(3, listed)
    told = are_told(ctx, 3)
    count = ctx.known(3, "axes").size if ctx.has(3) else len(ctx.attr("axes", starts))
    if not len(starts) == len(ends) == count == len(steps):
        raise ModelError(f"{where(ctx)} has {len(starts)} starts, {len(ends)} ends, {count} axes and {len(steps)} steps, "
                         "expected as many of each")
    if told:
        every = [by_axis(ctx, 3, what, values, others) for what, values, others in (
            ("start", starts, [ZERO] * len(shape)), ("end", ends, shape), ("step", steps, [ONE] * len(shape)))]
        return tuple(_cut(ctx, *one) for one in zip(shape, *every))
    axes = known_ints(ctx, 3, "axes") if ctx.has(3) else tuple(ctx.attr("axes", range(len(starts))))
    cuts = [_Cut(ZERO, ONE, d) for d in shape]
    for start, end, k, step in zip(starts, ends, distinct(ctx, [ctx.axis(int(a), len(shape)) for a in axes]), steps):
        cuts[k] = _cut(ctx, shape[k], start, end, step)
    return tuple(cuts)


def _bounds(ctx: InferContext, i: int, what: str, count: int | None = None) -> list[SymExpr]:
    if ctx.has(i):
        found = ctx.known(i, what, count)
        if found.ndim != 1:
            raise ModelError(f"{where(ctx)} has {what} of rank {found.ndim}, expected a list")
        return [ctx.env.canon(v) for v in found]
    return [SymExpr.of(int(v)) for v in ctx.attr(what, ())]


def _cut(ctx: InferContext, extent: SymExpr, start: SymExpr, end: SymExpr, step: SymExpr) -> _Cut:
    """Both bounds are clamped as the standard says, the end to -1 where it is stepped down to."""
    env = ctx.env
    if step == ZERO:
        raise ModelError(f"{where(ctx)} has a step of 0, expected a positive or negative one")
    length = env.canon(sym_max(step, -step))
    env.assume_le(1, length, f"{where(ctx)}: no step may be 0")
    forward = env.canon(sym_min(sym_max(step, 0), 1))  # 1 where it is stepped up, or else 0
    last = extent - 1 + forward
    first = _clamped(ctx, start, extent, ZERO, last)
    distance = env.canon((_clamped(ctx, end, extent, forward - 1, last) - first) * (2 * forward - 1))
    if env.prove_le(distance, 0):
        return _Cut(ZERO, step, ZERO)
    distance = distance if env.prove_le(0, distance) else sym_max(distance, 0)
    count = env.canon(ceildiv(distance, sym_max(length, 1)))
    if any(map(env.is_signed, (start, end, step))):
        return _Cut(named(ctx, "first", first), step, named(ctx, "count", count))
    return _Cut(first, step, count)


def _clamped(ctx: InferContext, position: SymExpr, extent: SymExpr, least: SymExpr, most: SymExpr) -> SymExpr:
    """`position` (negative: from the end) clamped into [least, most]."""
    env, given = ctx.env, position.as_int()
    if given is not None and abs(given) >= _UNBOUNDED:
        return most if given > 0 else sym_min(least, most)
    if env.prove_lt(position, 0):
        position = position + extent
    elif not env.prove_le(0, position):
        position = position + extent * sym_min(sym_max(-position, 0), 1)
    return env.canon(sym_min(sym_max(position, least), most))


#: Bounds this large mean "to the end": exporters write INT64_MAX, INT32_MAX and their negatives.
_UNBOUNDED = 2**31 - 1


def _slice_types(ctx: InferContext) -> tuple[TensorType, ...]:
    return tensor(ctx.type(0).dtype, [ctx.env.canon(c.extent) for c in _slice_cuts(ctx)])


def _slice_contents(ctx: InferContext) -> Values:
    source, cuts = ctx.contents[0], _slice_cuts(ctx)
    if source is None:
        return (None,)
    for k, cut in enumerate(cuts):
        start, step, extent = cut.start.as_int(), cut.step.as_int(), cut.extent.as_int()
        if start is None or step is None or extent is None:
            return (None,)
        source = np.take(source, [start + step * i for i in range(extent)], axis=k)
    return (as_object(source),)


def _slice_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    cuts = _slice_cuts(lowering.infer)
    return lowering.read(0, tuple(add(mul(i, index(c.step)), index(c.start)) for i, c in zip(at, cuts)))


# -- Pad -------------------------------------------------------------------------------------------------------

def _pads(ctx: InferContext) -> list[tuple[SymExpr, SymExpr]]:
    rank = ctx.type(0).rank
    count = ctx.known(3, "axes").size if ctx.has(3) else rank
    amounts = _bounds(ctx, 1, "pads", 2 * count)
    if are_told(ctx, 3) and len(amounts) == 2 * count:
        return list(zip(*(by_axis(ctx, 3, what, part, [ZERO] * rank) for what, part in (
            ("before", amounts[:count]), ("behind", amounts[count:])))))
    axes = distinct(ctx, [ctx.axis(a, rank) for a in known_ints(ctx, 3, "axes")]) if ctx.has(3) else list(range(rank))
    if len(amounts) != 2 * len(axes):
        raise ModelError(f"{where(ctx)} has {len(amounts)} pads for {len(axes)} axes, expected two an axis")
    result = [(ZERO, ZERO)] * rank
    for i, axis in enumerate(axes):
        result[axis] = (amounts[i], amounts[i + len(axes)])
    return result


def _pad_types(ctx: InferContext) -> tuple[TensorType, ...]:
    mode, env = ctx.attr("mode", "constant"), ctx.env
    if mode not in ("constant", "edge", "reflect", "wrap"):
        raise ModelError(f"{where(ctx)} has mode '{mode}', expected constant, edge, reflect or wrap")
    if mode == "constant" and ctx.has(2) and any(d != ONE for d in canonical(ctx, 2)):
        raise ModelError(f"{where(ctx)} has a constant_value of shape {ctx.type(2)}, expected a scalar")
    shape = []
    for axis, (d, (before, after)) in enumerate(zip(canonical(ctx, 0), _pads(ctx))):
        kept = _kept(ctx, d, before, after).extent
        added = [amount for amount in (before, after) if not env.prove_le(amount, 0)]
        if added and mode != "constant":
            env.assume_le(1, kept, f"{where(ctx)}: what {mode} repeats along axis {axis} must not be empty")
        if mode == "reflect":
            for amount in added:
                env.assume_le(amount + 1, kept, f"{where(ctx)}: a reflected pad of axis {axis} must be shorter than the dim")
        shape.append(at_least_zero(ctx, env.canon(d + before + after), "a padded dim"))
    return tensor(ctx.type(0).dtype, shape)


def _kept(ctx: InferContext, extent: SymExpr, before: SymExpr, after: SymExpr) -> _Cut:
    """What negative pads leave of an axis: they are cut off before anything is added."""
    first, last = (_negated_crop(ctx, amount) for amount in (before, after))
    return _Cut(first, ONE, ctx.env.canon(extent - first - last))


def _negated_crop(ctx: InferContext, amount: SymExpr) -> SymExpr:
    env = ctx.env
    return ZERO if env.prove_le(0, amount) else -amount if env.prove_le(amount, 0) else env.canon(sym_max(-amount, 0))


def _pad_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    ctx = lowering.infer
    mode, shape, pads = ctx.attr("mode", "constant"), canonical(ctx, 0), _pads(ctx)
    places = [call("sub", i, index(before)) for i, (before, _) in zip(at, pads)]
    if mode != "constant":
        cuts = [_kept(ctx, d, *pad) for d, pad in zip(shape, pads)]
        return lowering.read(0, tuple(
            i if pad == (ZERO, ZERO) else add(_reflected(mode, call("sub", i, index(cut.start)), cut.extent), index(cut.start))
            for i, cut, pad in zip(places, cuts, pads)))
    value = lowering.read(0, tuple(places))
    for i, d, (before, after) in reversed(list(zip(places, shape, pads))):
        for amount, test in ((after, call("lt", i, index(d))), (before, call("ge", i, index(0)))):
            if not ctx.env.prove_le(amount, 0):
                value = select(test, value, _fill(lowering, value.dtype))
    return value


def _fill(lowering: Lowering, dtype: str) -> Expr:
    ctx = lowering.infer
    if not ctx.has(2):
        given = ctx.attr("value", 0)
        return Const(False, BOOL) if dtype == BOOL else Const(float(given) if is_float(dtype) else int(given), dtype)
    return lowering.read(2, (index(0),) * ctx.type(2).rank)


def _reflected(mode: str, i: Expr, extent: SymExpr) -> Expr:
    last = index(extent - 1)
    match mode:
        case "edge":
            return call("max", call("min", i, last), index(0))
        case "wrap":
            return call("mod", i, index(extent))
    return call("sub", last, call("abs", call("sub", last, call("abs", i))))


# -- Gather ----------------------------------------------------------------------------------------------------

def _gather_axis(ctx: InferContext) -> int:
    return ctx.axis(int(ctx.attr("axis", 0)), ctx.type(0).rank)


def _gather_types(ctx: InferContext) -> tuple[TensorType, ...]:
    axis, shape = _gather_axis(ctx), canonical(ctx, 0)
    return tensor(ctx.type(0).dtype, (*shape[:axis], *canonical(ctx, 1), *shape[axis + 1:]))


def _gather_contents(ctx: InferContext) -> Values:
    source, places = ctx.contents[0], ctx.contents[1]
    if source is None or places is None:
        return (None,)
    numbers = [p.as_int() for p in places.ravel()]
    extent = source.shape[_gather_axis(ctx)]
    if any(n is None for n in numbers):
        return (None,)
    known = [n for n in numbers if n is not None]
    if not all(-extent <= n < extent for n in known):
        raise ModelError(f"{where(ctx)} reads index {max(known, key=abs)} of a dim of size {extent}")
    return (as_object(np.take(source, np.array(known, dtype=np.int64).reshape(places.shape), axis=_gather_axis(ctx))),)


def _gather_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    ctx = lowering.infer
    axis, rank = _gather_axis(ctx), ctx.type(1).rank
    extent = canonical(ctx, 0)[axis]
    inner = at[axis:axis + rank]
    place = _known_position(ctx, ctx.contents[1], inner, extent)
    if place is None:
        place = CheckedIndex(as_index(lowering.read(1, inner)), extent, ctx.node.inputs[1])
    return lowering.read(0, (*at[:axis], place, *at[axis + rank:]))


def _known_position(ctx: InferContext, places: Contents | None, at: Sequence[Expr], extent: SymExpr) -> Expr | None:
    """The position as an affine expression when the indices are known, in range, and evenly spaced along one axis."""
    if places is None or places.size == 0:
        return None
    flat = [ctx.env.canon(p) for p in places.ravel()]
    if not all(p.as_int() is not None for p in flat):
        inside = all(ctx.env.prove_le(0, p) and ctx.env.prove_lt(p, extent) for p in flat)
        if not inside:
            return None
    else:
        flat = [p + extent if ctx.env.prove_lt(p, 0) else p for p in flat]
        if not all(ctx.env.prove_le(0, p) and ctx.env.prove_lt(p, extent) for p in flat):
            return None
    if len(flat) == 1:
        return index(flat[0])
    step = (flat[1] - flat[0]).as_int()
    if places.ndim != 1 or step is None or any(b - a != SymExpr.of(step) for a, b in itertools.pairwise(flat)):
        return None
    return add(mul(at[0], index(step)), index(flat[0]))


# -- GatherND, GatherElements ----------------------------------------------------------------------------------

def nd_depth(ctx: InferContext) -> tuple[int, int]:
    """How many batch dims data and indices share, and how many dims of the data an index behind them has."""
    expect_rank(ctx, 0, 1)
    expect_rank(ctx, 1, 1)
    rank, most = ctx.type(0).rank, min(ctx.type(0).rank, ctx.type(1).rank)
    depth, batch = canonical(ctx, 1)[-1].as_int(), int(ctx.attr("batch_dims", 0))
    if depth is None:
        raise UnsupportedError(f"{where(ctx)} has a symbolic index depth, not supported yet")
    if not 0 <= batch < most:
        raise ModelError(f"{where(ctx)} has batch_dims {batch}, expected at least 0 and below {most}")
    if not 1 <= depth <= rank - batch:
        raise ModelError(f"{where(ctx)} has an index depth of {depth}, expected 1 to {rank - batch}")
    return batch, depth


def _gather_nd_types(ctx: InferContext) -> tuple[TensorType, ...]:
    batch, depth = nd_depth(ctx)
    for k in range(batch):
        unify(ctx.env, canonical(ctx, 0)[k], canonical(ctx, 1)[k], f"{where(ctx)}: batch dims must be equal")
    return tensor(ctx.type(0).dtype, (*canonical(ctx, 1)[:-1], *canonical(ctx, 0)[batch + depth:]))


def _gather_nd_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    ctx = lowering.infer
    batch, depth = nd_depth(ctx)
    outer = at[:ctx.type(1).rank - 1]
    shape = canonical(ctx, 0)
    places = [CheckedIndex(as_index(lowering.read(1, (*outer, index(k)))), shape[batch + k], ctx.node.inputs[1])
              for k in range(depth)]
    return lowering.read(0, (*outer[:batch], *places, *at[len(outer):]))


def expect_elements(ctx: InferContext, axis: int) -> None:
    """Hold indices of single elements along an axis to the data's other dims."""
    rank = ctx.type(0).rank
    if ctx.type(1).rank != rank:
        raise ModelError(f"{where(ctx)} has data of rank {rank} and indices of rank {ctx.type(1).rank}, expected equal ranks")
    for k, (d, own) in enumerate(zip(canonical(ctx, 0), canonical(ctx, 1))):
        if k != axis:
            ctx.env.assume_le(own, d, f"{where(ctx)}: its indices must not be larger than its data along axis {k}")


def _gather_elements_types(ctx: InferContext) -> tuple[TensorType, ...]:
    expect_elements(ctx, _gather_axis(ctx))
    return tensor(ctx.type(0).dtype, canonical(ctx, 1))


def _gather_elements_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    ctx = lowering.infer
    axis = _gather_axis(ctx)
    place = CheckedIndex(as_index(lowering.read(1, at)), canonical(ctx, 0)[axis], ctx.node.inputs[1])
    return lowering.read(0, (*at[:axis], place, *at[axis + 1:]))


# -- OneHot ----------------------------------------------------------------------------------------------------

def _one_hot_axis(ctx: InferContext) -> int:
    return ctx.axis(int(ctx.attr("axis", -1)), ctx.type(0).rank + 1)


def _one_hot_types(ctx: InferContext) -> tuple[TensorType, ...]:
    axis, shape = _one_hot_axis(ctx), canonical(ctx, 0)
    depth = scalar_contents(ctx, 1, "depth")
    ctx.env.assume_le(1, depth, f"{where(ctx)}: its depth must be at least 1")
    expect_list(ctx, 2, SymExpr.of(2))
    return tensor(ctx.type(2).dtype, (*shape[:axis], ctx.env.canon(depth), *shape[axis:]))


def _one_hot_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    """Indices count from the end where they are negative, since opset 11; what lies outside is nowhere on."""
    ctx = lowering.infer
    axis = _one_hot_axis(ctx)
    depth = index(lowering.out[0].shape[axis])
    given = lowering.read(0, (*at[:axis], *at[axis + 1:]))
    place = as_index(given)
    unsigned = given.dtype.startswith("u")
    from_start = place if unsigned or ctx.opset < 11 else select(call("lt", place, index(0)), add(place, depth), place)
    return select(call("eq", at[axis], from_start), lowering.read(2, (index(1),)), lowering.read(2, (index(0),)))


# -- samples ---------------------------------------------------------------------------------------------------

def _slices() -> Sequence[Sample]:
    x = floats(5, 7)
    most = np.iinfo(np.int64).max
    return [Sample([x, vector(1), vector(4)]), Sample([x, vector(0, -3), vector(most, -1)]),
            Sample([x, vector(1), vector(100), vector(-1), vector(2)]),
            Sample([x, vector(-1, 4), vector(-most, 0), vector(1, 0), vector(-1, -2)]),
            Sample([x, vector(3), vector(2), vector(0)]), Sample([x, vector(-100), vector(-6), vector(1)])]


def _padded() -> Sequence[Sample]:
    x = floats(3, 5)
    modes = [Sample([x, vector(1, 2, 0, 3)], {"mode": m}) for m in ("constant", "edge", "reflect", "wrap")]
    return [*modes, Sample([x, vector(0, -1, 2, -2), scalar(1.5)]), Sample([x, vector(2, 1), scalar(0.5), vector(1)]),
            Sample([ints(1, 3), vector(1, 0, 0, 1)])]


def _gathers() -> Sequence[Sample]:
    x = floats(5, 3, 4)
    return [Sample([x, ints(2, 3, low=-5, high=5)]), Sample([x, vector(2, 0, 1)], {"axis": 1}),
            Sample([x, scalar(-1, "int64")], {"axis": 2}), Sample([x, vector(1, 3)]),
            Sample([x, ints(1, low=0, high=3, dtype="int32")], {"axis": -2}), Sample([bools(3, 1), vector(-1, -2)])]


def _gathers_nd() -> Sequence[Sample]:
    x = floats(2, 3, 4)
    return [Sample([x, np.array([[0, 2], [-1, 1]])]), Sample([x, np.array([[1], [2]])], {"batch_dims": 1}),
            Sample([x, np.array([[[1, 2, 3]]])])]


def _gathers_elements() -> Sequence[Sample]:
    return [Sample([floats(3, 4), ints(2, 4, low=-3, high=3)]), Sample([floats(3, 4), ints(3, 2, low=-4, high=4)], {"axis": 1})]


def _one_hots() -> Sequence[Sample]:
    values = np.array([-1.5, 2.5], np.float32)
    return [Sample([ints(2, 3, low=-4, high=4), scalar(4, "int64"), values], {"axis": a}) for a in (-1, 0, 1)]


OPS: tuple[OpDef, ...] = (
    OpDef("Slice", PatternKind.INJECTIVE, _slice_types, contents=_slice_contents, te=_slice_te, samples=_slices,
          static_inputs=(1, 2, 3, 4), reads=("starts", "ends", "axes")),
    OpDef("Pad", PatternKind.INJECTIVE, _pad_types, te=_pad_te, samples=_padded, static_inputs=(1, 3),
          reads=("mode", "pads", "value")),
    OpDef("Gather", PatternKind.INJECTIVE, _gather_types, contents=_gather_contents, te=_gather_te, samples=_gathers,
          reads=("axis",)),
    OpDef("GatherND", PatternKind.INJECTIVE, _gather_nd_types, te=_gather_nd_te, samples=_gathers_nd, reads=("batch_dims",)),
    OpDef("GatherElements", PatternKind.INJECTIVE, _gather_elements_types, te=_gather_elements_te, samples=_gathers_elements,
          reads=("axis",)),
    OpDef("OneHot", PatternKind.INJECTIVE, _one_hot_types, te=_one_hot_te, samples=_one_hots, static_inputs=(1,),
          reads=("axis",)),
)

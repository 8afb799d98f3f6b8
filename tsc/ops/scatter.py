"""ScatterElements, ScatterND and TensorScatter: a tensor in which some elements are replaced by updates, or combined with them.

A kernel makes each element once, so each looks for the updates that go to it: the last one of them is its value (of several the
standard says nothing; NumPy and ONNX Runtime take the last), or all of them are folded into it. That is as much work as there
are elements along the indexed dims for each index, but nothing is written twice, in whatever order blocks run.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tsc.errors import ModelError
from tsc.ir import TensorType
from tsc.ops.base import Builder, InferContext, Lowering, OpDef, PatternKind, Reduction, Sample
from tsc.ops.generate import typed
from tsc.ops.indexing import expect_elements, nd_depth
from tsc.ops.movement import reshape
from tsc.ops.samples import bools, floats, ints, vector
from tsc.ops.shapes import as_index, canonical, expect_rank, linear_index, tensor, unify, where
from tsc.sym import SymExpr, product
from tsc.te.compute import MAX, MIN, PROD, SUM, Monoid
from tsc.te.expr import BOOL, INDEX, CheckedIndex, Expr, call, checking, index, select

#: What updates are folded with, and the operator that adds the element itself; of bools likewise.
_FOLDS = {"add": (SUM, "Add"), "mul": (PROD, "Mul"), "max": (MAX, "Max"), "min": (MIN, "Min")}
_BOOL_FOLDS = {"add": (Monoid("or"), "Or"), "mul": (Monoid("and"), "And"), "max": (Monoid("or"), "Or"),
               "min": (Monoid("and"), "And")}


# -- the standard's operators ----------------------------------------------------------------------------------

def _axis(ctx: InferContext, default: int = 0) -> int:
    return ctx.axis(int(ctx.attr("axis", default)), ctx.type(0).rank)


def _elements_types(ctx: InferContext) -> tuple[TensorType, ...]:
    expect_rank(ctx, 0, 1)
    axis, shape = _axis(ctx), canonical(ctx, 0)
    expect_elements(ctx, axis)
    if ctx.type(2).rank != len(shape):
        raise ModelError(f"{where(ctx)} has data of rank {len(shape)} and updates of rank {ctx.type(2).rank}, expected equal "
                         "ranks")
    for k, (own, given) in enumerate(zip(canonical(ctx, 1), canonical(ctx, 2))):
        unify(ctx.env, own, given, f"{where(ctx)}: there is an update for each index along axis {k}")
    _check_reduction(ctx)
    return tensor(ctx.type(0).dtype, shape)


def _nd_types(ctx: InferContext) -> tuple[TensorType, ...]:
    expect_rank(ctx, 1, 1)
    if canonical(ctx, 1)[-1].as_int() is None:  # updates have the other dims of both
        depth = ctx.type(0).rank + ctx.type(1).rank - 1 - ctx.type(2).rank
        ctx.env.assume_eq(canonical(ctx, 1)[-1], depth, f"{where(ctx)}: an index is as deep as the updates' rank says")
    (_, depth), shape = nd_depth(ctx), canonical(ctx, 0)
    wanted, given = (*canonical(ctx, 1)[:-1], *shape[depth:]), canonical(ctx, 2)
    if len(given) != len(wanted):
        raise ModelError(f"{where(ctx)} has updates of rank {len(given)}, expected {len(wanted)}")
    for k, (a, b) in enumerate(zip(wanted, given)):
        unify(ctx.env, a, b, f"{where(ctx)}: there is an update for each index, as its dim {k} says")
    _check_reduction(ctx)
    return tensor(ctx.type(0).dtype, shape)


def _check_reduction(ctx: InferContext) -> None:
    known = ("none", *_FOLDS)
    if (given := ctx.attr("reduction", "none")) not in known:
        raise ModelError(f"{where(ctx)} has reduction '{given}', expected {', '.join(known)}")


def _elements(builder: Builder) -> tuple[str, ...]:
    ctx = builder.infer
    data, indices, updates = ctx.node.inputs
    spots = builder.emit("ScatterSpots", indices, sizes=(canonical(ctx, 0)[_axis(ctx)],))
    return (scattered(builder, data, spots, updates, _axis(ctx), canonical(ctx, 0)),)


def _nd(builder: Builder) -> tuple[str, ...]:
    """Rows that are replaced: the indexed dims are one, and what is behind them is another."""
    ctx = builder.infer
    data, indices, updates = ctx.node.inputs
    (_, depth), shape = nd_depth(ctx), canonical(ctx, 0)
    count, rows, width = (product(s) for s in (canonical(ctx, 1)[:-1], shape[:depth], shape[depth:]))
    listed = reshape(builder, indices, (count, SymExpr.of(depth)))
    spots = builder.emit("ScatterSpots", listed, sizes=shape[:depth], linear=1)
    made = scattered(builder, reshape(builder, data, (rows, width)), spots, reshape(builder, updates, (count, width)), 0,
                      (rows, width))
    return (reshape(builder, made, shape),)


def scattered(builder: Builder, data: str, spots: str, updates: str, axis: int, shape: Sequence[SymExpr]) -> str:
    """`data` of a shape with each of the updates along `axis` at the place that `spots` has for it."""
    ctx = builder.infer
    reduction = ctx.attr("reduction", "none")
    if reduction == "none":
        last = builder.emit("ScatterLast", spots, axis=axis, shape=tuple(shape))
        return builder.emit("ScatterFrom", data, last, updates, axis=axis)
    folds = _BOOL_FOLDS if ctx.type(0).dtype == BOOL else _FOLDS
    folded = builder.emit("ScatterFold", spots, updates, axis=axis, shape=tuple(shape), reduction=reduction)
    return builder.emit(folds[reduction][1], data, folded)


# -- primitives ------------------------------------------------------------------------------------------------

def _spots_types(ctx: InferContext) -> tuple[TensorType, ...]:
    return tensor(INDEX, canonical(ctx, 0)[:-1] if ctx.attr("linear", 0) else canonical(ctx, 0))


def _spots_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    """Where updates go: an index of several dims is one number, as if they were one dim."""
    ctx = lowering.infer
    sizes, cited = [ctx.env.canon(s) for s in ctx.attr("sizes")], ctx.node.inputs[0]
    rows = [(*at, index(k)) for k in range(len(sizes))] if ctx.attr("linear", 0) else [at]
    checked = [CheckedIndex(as_index(lowering.read(0, row)), size, cited) for row, size in zip(rows, sizes)]
    return checking(linear_index(checked, sizes), checked)


def _shape(ctx: InferContext) -> list[SymExpr]:
    return [ctx.env.canon(s) for s in ctx.attr("shape")]


def _last_types(ctx: InferContext) -> tuple[TensorType, ...]:
    shape = _shape(ctx)
    return tensor(INDEX, shape if ctx.type(0).rank > 1 else [shape[ctx.attr("axis")]])


def _last_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Reduction:
    """max over k of k, where update k goes there; below 0 where none does."""
    ctx = lowering.infer
    axis = ctx.attr("axis")
    updates = lowering.axis("k", canonical(ctx, 0)[axis])
    k = lowering.var(updates)
    return Reduction(MAX, (updates,), _where_it_goes(lowering, at, k, axis, k, typed(MAX.identity(INDEX), INDEX)))


def _where_it_goes(lowering: Lowering, at: Sequence[Expr], k: Expr, axis: int, yes: Expr, no: Expr) -> Expr:
    """`yes` where update `k` along an axis goes to an element; the spots of ScatterND are those of whole rows."""
    spots = canonical(lowering.infer, 0)
    if len(spots) == 1:
        return select(call("eq", lowering.read(0, (k,)), at[axis]), yes, no)
    goes = select(call("eq", lowering.read(0, (*at[:axis], k, *at[axis + 1:])), at[axis]), yes, no)
    return select(_within(at, spots, axis), goes, no)


def _within(at: Sequence[Expr], shape: Sequence[SymExpr], axis: int) -> Expr:
    """Whether updates of a shape have any for an element."""
    found: Expr = typed(True, BOOL)
    for number, (place, extent) in enumerate(zip(at, shape)):
        if number != axis:
            found = call("and", found, call("lt", place, index(extent)))
    return found


def _from_types(ctx: InferContext) -> tuple[TensorType, ...]:
    return tensor(ctx.type(0).dtype, canonical(ctx, 0))


def _from_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    ctx = lowering.infer
    axis, updates = ctx.attr("axis"), canonical(ctx, 2)
    last = lowering.read(1, at if ctx.type(1).rank > 1 else (at[axis],))
    place = CheckedIndex(last, updates[axis], ctx.node.inputs[2])
    given = lowering.read(2, (*at[:axis], place, *at[axis + 1:]))
    return select(call("and", _within(at, updates, axis), call("ge", last, index(0))), given, lowering.read(0, at))


def _fold_types(ctx: InferContext) -> tuple[TensorType, ...]:
    return tensor(ctx.type(1).dtype, _shape(ctx))


def _fold_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Reduction:
    """The fold over k of update k, where that goes there."""
    ctx = lowering.infer
    axis, dtype = ctx.attr("axis"), ctx.type(1).dtype
    updates = lowering.axis("k", canonical(ctx, 1)[axis])
    k = lowering.var(updates)
    monoid = (_BOOL_FOLDS if dtype == BOOL else _FOLDS)[ctx.attr("reduction")][0]
    given = lowering.read(1, (*at[:axis], k, *at[axis + 1:]))
    nothing = typed(monoid.identity(dtype), dtype)
    return Reduction(monoid, (updates,), _where_it_goes(lowering, at, k, axis, given, nothing))


# -- TensorScatter ---------------------------------------------------------------------------------------------

def _cache_types(ctx: InferContext) -> tuple[TensorType, ...]:
    expect_rank(ctx, 0, 2)
    axis, shape, update = _axis(ctx, -2), canonical(ctx, 0), canonical(ctx, 1)
    if axis == 0 or len(update) != len(shape):
        raise ModelError(f"{where(ctx)} has axis {axis} and an update of rank {len(update)}, expected another axis than 0 and "
                         f"the rank {len(shape)}")
    for k, (a, b) in enumerate(zip(shape, update)):
        if k != axis:
            unify(ctx.env, a, b, f"{where(ctx)}: cache and update have the same dim {k}")
    ctx.env.assume_le(update[axis], shape[axis], f"{where(ctx)}: an update is no longer than the cache")
    if ctx.has(2):
        if ctx.type(2).rank != 1:
            raise ModelError(f"{where(ctx)} has write_indices of rank {ctx.type(2).rank}, expected a list")
        unify(ctx.env, shape[0], canonical(ctx, 2)[0], f"{where(ctx)}: there is a write index for each row")
    if (mode := ctx.attr("mode", "linear")) not in ("linear", "circular"):
        raise ModelError(f"{where(ctx)} has mode '{mode}', expected linear or circular")
    return tensor(ctx.type(0).dtype, shape)


def _cache_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    """An update's element from where it begins on, around the end if it is circular; else that of the cache."""
    ctx = lowering.infer
    axis = _axis(ctx, -2)
    size, count = canonical(ctx, 0)[axis], canonical(ctx, 1)[axis]
    begin = as_index(lowering.read(2, (at[0],))) if ctx.has(2) else index(0)
    place = call("sub", at[axis], begin)
    if ctx.attr("mode", "linear") == "circular":
        place = call("mod", place, index(size))
    inside = call("and", call("ge", place, index(0)), call("lt", place, index(count)))
    updated = lowering.read(1, (*at[:axis], CheckedIndex(place, count, ctx.node.inputs[1]), *at[axis + 1:]))
    return select(inside, updated, lowering.read(0, at))


# -- samples ---------------------------------------------------------------------------------------------------

_REDUCTIONS = ("none", *_FOLDS)


def _element_samples() -> Sequence[Sample]:
    data, apart = floats(4, 5), np.array([[2, 0, 1], [-1, 1, 0]])
    return [Sample([data, apart, floats(2, 3)]), Sample([data, np.array([[1, -5], [0, 4], [2, 3]]), floats(3, 2)], {"axis": 1}),
            Sample([bools(3, 2), np.array([[2, 1]], np.int32), bools(1, 2)]),
            *(Sample([data, ints(6, 3, low=-4, high=4), floats(6, 3)], {"reduction": r}) for r in _FOLDS),
            Sample([ints(3, 4), ints(3, 4, low=0, high=4), ints(3, 4)], {"axis": -1, "reduction": "add"})]


def _nd_samples() -> Sequence[Sample]:
    data = floats(4, 3, 5)
    return [Sample([data, np.array([[2], [-4]]), floats(2, 3, 5)]),
            Sample([data, np.array([[[0, 1], [3, 2]]]), floats(1, 2, 5)]),
            Sample([data, np.array([[1, 2, 3], [0, 0, -1]]), floats(2)]), Sample([bools(5), np.array([[3]]), bools(1)]),
            *(Sample([data, ints(3, 1, low=-4, high=4), floats(3, 3, 5)], {"reduction": r}) for r in _FOLDS)]


def _caches() -> Sequence[Sample]:
    cache, update = floats(2, 3, 6, 4), floats(2, 3, 2, 4)
    return [Sample([cache, update, vector(1, 4)]), Sample([cache, update]),
            Sample([cache, update, vector(5, 2)], {"mode": "circular"}), Sample([floats(2, 5), floats(2, 3), vector(0, 2)],
                                                                               {"axis": 1})]


OPS: tuple[OpDef, ...] = (
    OpDef("ScatterElements", PatternKind.REDUCE, _elements_types, decompose=_elements, samples=_element_samples,
          reads=("axis", "reduction")),
    OpDef("Scatter", PatternKind.REDUCE, _elements_types, decompose=_elements, samples=tuple, reads=("axis",)),
    OpDef("ScatterND", PatternKind.REDUCE, _nd_types, decompose=_nd, samples=_nd_samples, reads=("reduction",)),
    OpDef("TensorScatter", PatternKind.INJECTIVE, _cache_types, te=_cache_te, samples=_caches, reads=("axis", "mode")),
    OpDef("ScatterSpots", PatternKind.INJECTIVE, _spots_types, te=_spots_te, domain="tsc"),
    OpDef("ScatterLast", PatternKind.REDUCE, _last_types, te=_last_te, domain="tsc"),
    OpDef("ScatterFrom", PatternKind.INJECTIVE, _from_types, te=_from_te, domain="tsc"),
    OpDef("ScatterFold", PatternKind.REDUCE, _fold_types, te=_fold_te, domain="tsc"),
)

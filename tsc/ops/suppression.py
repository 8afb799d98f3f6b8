"""NonMaxSuppression: of boxes that overlap only those with the highest scores.

The boxes whose scores are above the threshold are counted, put side by side for each class and ranked; one after the other they
are kept unless they overlap one that was kept before (a recurrence over the ranks). What was kept is counted, and told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tsc import te
from tsc.errors import ModelError
from tsc.ir import TensorType
from tsc.ops.base import Builder, InferContext, OpDef, PatternKind, Sample
from tsc.ops.counted import spots_in_rows, spots_of
from tsc.ops.define import CUSTOM, CustomOp
from tsc.ops.movement import positions, reshape, shape_operand
from tsc.ops.reduce import cast
from tsc.ops.samples import floats
from tsc.ops.shapes import canonical, expect_rank, tensor, unify, where
from tsc.sym import ONE, SymExpr
from tsc.te import Scalar, Tensor

#: The counts of a node: what it keeps, and the candidates that a class has at most.
_KEPT, _CANDIDATES = 0, 1


def _sizes(ctx: InferContext) -> tuple[SymExpr, SymExpr, SymExpr, SymExpr]:
    """Of the batch, classes, boxes, and candidates at most."""
    (batch, boxes, _), classes = canonical(ctx, 0), canonical(ctx, 1)[1]
    return batch, classes, boxes, ctx.count(boxes, _CANDIDATES) if ctx.has(4) else boxes


def _types(ctx: InferContext) -> tuple[TensorType, ...]:
    _is_centred(ctx)
    for number in (0, 1):
        expect_rank(ctx, number, 3)
        if ctx.type(number).rank != 3:
            raise ModelError(f"{where(ctx)} has an input {number} of rank {ctx.type(number).rank}, expected 3")
    (batch, count, corners), (own, _, scores) = canonical(ctx, 0), canonical(ctx, 1)
    unify(ctx.env, batch, own, f"{where(ctx)}: boxes and scores are of one batch")
    unify(ctx.env, count, scores, f"{where(ctx)}: each box has a score")
    unify(ctx.env, corners, SymExpr.of(4), f"{where(ctx)}: a box is four numbers")
    batch, classes, _, candidates = _sizes(ctx)
    return tensor("int64", (ctx.count(batch * classes * candidates, _KEPT), SymExpr.of(3)))


def _decompose(builder: Builder) -> tuple[str, ...]:
    ctx, emit = builder.infer, builder.emit
    batch, classes, boxes, candidates = _sizes(ctx)
    given, scores = ctx.node.inputs[:2]

    def custom(name: str, *inputs: str, **attributes: bool) -> str:
        return emit(CUSTOM, *inputs, definition=CustomOp("ai.onnx", ctx.node.op, _PARTS[name]), attributes=attributes)

    def number(place: int, otherwise: np.generic) -> str:
        """An input of one number."""
        return reshape(builder, ctx.node.inputs[place], (ONE,)) if ctx.has(place) else builder.constant(otherwise.reshape(1))

    rows = batch * classes
    scores = reshape(builder, scores, (rows, boxes))
    if ctx.has(4):
        marks = cast(builder, emit("Greater", scores, number(4, np.float32(0))), "bool", "int64")
        counts = emit("ReduceSum", marks, builder.constant(np.array([1])), keepdims=1)
        builder.counts(emit("ReduceMax", reshape(builder, counts, (rows,)), builder.constant(np.array([0])), keepdims=1),
                       _CANDIDATES)
        spots = spots_in_rows(builder, marks, boxes, candidates)
        inside = emit("Less", spots, shape_operand(builder, (boxes,)))
        spots = emit("Where", inside, spots, builder.constant(np.array(0)))
        scores = emit("Where", inside, emit("GatherElements", scores, spots, axis=1),
                      builder.constant(np.array(-np.inf, np.float32)))
    else:
        counts = emit("Expand", shape_operand(builder, (boxes,)), shape_operand(builder, (rows, ONE)))
        spots = emit("Expand", positions(builder, boxes), shape_operand(builder, (rows, boxes)))
    _, order = builder.several("TopK", (scores, shape_operand(builder, (candidates,))), 2, axis=1)
    ranked = reshape(builder, emit("GatherElements", spots, order, axis=1), (batch, classes, candidates))
    counts = reshape(builder, counts, (batch, classes))
    centred = _is_centred(ctx)
    low, high = (custom("corner", given, ranked, centred=centred, high=high) for high in (False, True))
    kept = custom("keep", low, high, counts, number(2, np.int64(0)), number(3, np.float32(0)))
    kept = reshape(builder, cast(builder, kept, "int32", "int64"), (rows * candidates,))
    spots = spots_of(builder, kept, rows * candidates, _KEPT)
    return (custom("selected", spots, ranked),)


def _is_centred(ctx: InferContext) -> bool:
    """Whether boxes are told by their middles and sizes, not by two corners."""
    given = ctx.attr("center_point_box", 0)
    if given not in (0, 1):
        raise ModelError(f"{where(ctx)} has center_point_box = {given}, expected 0 or 1")
    return bool(given)


def _corner(boxes: Tensor, ranked: Tensor, centred: bool, high: bool) -> Tensor:
    """The lower or higher corner of each ranked box: boxes are [batch, n, 4], ranks [batch, classes, k]."""
    def at(f: Scalar, b: Scalar, c: Scalar, k: Scalar) -> Scalar:
        one, other = boxes[b, ranked[b, c, k], f], boxes[b, ranked[b, c, k], f + 2]
        if centred:
            return one + other / 2.0 if high else one - other / 2.0
        return te.maximum(one, other) if high else te.minimum(one, other)

    return te.compute((2, *ranked.shape), at, "corner")


def _keep(low: Tensor, high: Tensor, counts: Tensor, most: Tensor, threshold: Tensor) -> Tensor:
    """Whether each candidate is kept, by its rank: at most so many of a class, none that overlaps one that is by more than the
    threshold."""
    shape = low.shape[1:]
    kept, before = te.state(shape, "int32", "kept", axis=2), te.state(shape, "int64", "before", axis=2)
    u, none = te.reduce_axis(shape[2], "u"), te.cast(0, "int32")

    def overlaps(b: Scalar, c: Scalar, one: Scalar, other: Scalar) -> Scalar:
        def side(f: int) -> Scalar:
            inside = te.minimum(high[f, b, c, one], high[f, b, c, other]) - te.maximum(low[f, b, c, one], low[f, b, c, other])
            return te.maximum(inside, 0.0)

        def area(k: Scalar) -> Scalar:
            return (high[0, b, c, k] - low[0, b, c, k]) * (high[1, b, c, k] - low[1, b, c, k])

        both = side(0) * side(1)
        return te.all_of(both > 0.0, both / (area(one) + area(other) - both) > threshold[0])

    taken = te.scan(before, lambda b, c, t: te.where(
        t >= 1, before[b, c, t - 1] + te.cast(kept[b, c, t - 1], "int64"), 0))
    hidden = te.compute(shape, lambda b, c, t: te.sum(
        te.where(u < t, te.where(overlaps(b, c, u, t), kept[b, c, u], none), none), axis=u), "hidden")
    return te.scan(kept, lambda b, c, t: te.where(
        te.all_of(t < counts[b, c], taken[b, c, t] < most[0], hidden[b, c, t] < 1), te.cast(1, "int32"), none))


def _selected(spots: Tensor, ranked: Tensor) -> Tensor:
    """Batch, class and box of each spot in [batch, classes, k]."""
    (count,), (_, classes, candidates) = spots.shape, ranked.shape

    def at(j: Scalar, f: Scalar) -> Scalar:
        rank, row = spots[j] % candidates, spots[j] // candidates
        return te.where(f < 1, row // classes, te.where(f < 2, row % classes, ranked[row // classes, row % classes, rank]))

    return te.compute((count, 3), at, "selected")


_PARTS: dict[str, Callable[..., Tensor]] = {"corner": _corner, "keep": _keep, "selected": _selected}


def _samples() -> Sequence[Sample]:
    def corners(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        begin = floats(*shape, 2, low=0, high=1)
        return np.ascontiguousarray(np.concatenate([begin, begin + floats(*shape, 2, low=0.1, high=0.6)], axis=-1), np.float32)

    def limits(most: int, overlap: float, score: float) -> list[np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
        return [np.array([most]), np.array([overlap], np.float32), np.array([score], np.float32)]

    scores = floats(2, 3, 7, low=0, high=1)
    return [Sample([corners(2, 7), scores, *limits(3, 0.3, 0.4)], {}),
            Sample([corners(1, 9), floats(1, 2, 9, low=0, high=1), *limits(9, 0.5, 0.2)], {"center_point_box": 1}),
            Sample([corners(2, 7), scores, *limits(4, 0.2, 0)[:2]], {})]


OPS: tuple[OpDef, ...] = (
    OpDef("NonMaxSuppression", PatternKind.OPAQUE, _types, decompose=_decompose, samples=_samples, reads=("center_point_box",)),
)

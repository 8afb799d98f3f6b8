"""TopK: the greatest (or least) elements along an axis in their order, and where they are.

A recurrence over the k results, each of which is looked for among the best of chunks of a row and in the chunk that the result
before it came from: k results take n + k * (n / 128 + 128) steps. Elements that are equal follow each other as they stand, and
what is no number counts as an infinity.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt

import numpy as np

from tsc import te
from tsc.errors import ModelError
from tsc.ir import TensorType
from tsc.ops.base import Builder, InferContext, OpDef, PatternKind, Sample
from tsc.ops.define import CUSTOM, CustomOp
from tsc.ops.movement import positions, reshape, shape_operand
from tsc.ops.samples import floats, ints, vector
from tsc.ops.shapes import Shape, canonical, is_float, sizes_operand, tensor, where
from tsc.sym import ZERO, SymExpr, ceildiv, product
from tsc.te import Scalar, Tensor
from tsc.te.compute import MAX, MIN

#: Elements of a chunk, at least and at most.
LEAST, MOST = 8, 128


def _count(ctx: InferContext) -> SymExpr:
    """How many elements are taken: input 1, an attribute before opset 10."""
    found = [SymExpr.of(int(ctx.attr("k", 0)))] if ctx.opset < 10 else sizes_operand(ctx, 1, "k")
    if len(found) != 1:
        raise ModelError(f"{where(ctx)} has {len(found)} numbers for k, expected one")
    return found[0]


def _axis(ctx: InferContext) -> int:
    return ctx.axis(int(ctx.attr("axis", -1)), ctx.type(0).rank)


def _types(ctx: InferContext) -> tuple[TensorType, ...]:
    axis, count, shape = _axis(ctx), _count(ctx), canonical(ctx, 0)
    ctx.env.assume_le(count, shape[axis], f"{where(ctx)}: k must not be greater than the dim that it takes from")
    made = (*shape[:axis], count, *shape[axis + 1:])
    return (*tensor(ctx.type(0).dtype, made), *tensor("int64", made))


def _decompose(builder: Builder) -> tuple[str, ...]:
    ctx = builder.infer
    x, axis, shape, dtype = ctx.node.inputs[0], _axis(ctx), canonical(ctx, 0), ctx.type(0).dtype
    largest = bool(ctx.attr("largest", 1))
    others = [k for k in range(len(shape)) if k != axis]
    rest = [shape[k] for k in others]
    keys = x
    if is_float(dtype):
        keys = builder.emit("Where", builder.emit("IsNaN", x), builder.constant(np.array(np.inf, dtype)), x)
    rows, extent, count = product(rest), shape[axis], _count(ctx)
    size = _chunk(extent)
    chunks = ctx.env.canon(ceildiv(extent, size))
    keys = reshape(builder, builder.emit("Transpose", keys, perm=(*others, axis)), (rows, extent))
    behind = ctx.env.canon(chunks * size - extent)
    if behind != ZERO:  # what comes behind all others is never among them
        worst = builder.constant(np.array((MAX if largest else MIN).identity(dtype), dtype))
        keys = builder.emit("Pad", keys, shape_operand(builder, (ZERO, ZERO, ZERO, behind)), worst)
    (found,) = builder.several(CUSTOM, (reshape(builder, keys, (rows, chunks, SymExpr.of(size))), positions(builder, count)), 1,
                               definition=CustomOp("ai.onnx", "TopK", _ranked), attributes={"largest": largest})
    made: Shape = (*rest, count)
    back = tuple(np.argsort((*others, axis)).tolist())
    places = builder.emit("Transpose", reshape(builder, found, made), perm=back)
    return builder.emit("GatherElements", x, places, axis=axis), places


def _chunk(extent: SymExpr) -> int:
    """Elements that are looked at for each result, of a row: about as many as there are chunks."""
    known = extent.as_int()
    if known is not None and known <= 2 * LEAST:
        return max(known, 1)
    return MOST if known is None else min(MOST, max(LEAST, 1 << (isqrt(known) - 1).bit_length()))


def _ranked(x: Tensor, places: Tensor, largest: bool) -> Tensor:
    """Where the elements of each row of x [rows, chunks, size] stand in their order, as many as there are places.

    Of each chunk the best element is known that is not taken yet. A trip takes the best of those, and looks only in the chunk
    that the last one came from for another.
    """
    (rows, chunks, size), (count,) = x.shape, places.shape
    worst, pick = ((MAX if largest else MIN).identity(x.dtype), te.max if largest else te.min)
    j, i, m, n = (te.reduce_axis(e, name) for e, name in ((size, "j"), (size, "i"), (size, "m"), (size, "n")))
    c, d = te.reduce_axis(chunks, "c"), te.reduce_axis(chunks, "d")
    first = te.compute((rows, chunks), lambda r, c: pick(x[r, c, j], axis=j), "first")
    where_first = te.compute((rows, chunks), lambda r, c: te.min(
        te.where(x[r, c, i] == first[r, c], _short(i), _short(size)), axis=i), "where_first")
    taken, spots = te.state((rows, count), "int64", "taken", axis=1), te.state((rows, count), "int32", "spots", axis=1)
    bests = te.state((rows, count, chunks), x.dtype, "bests", axis=1)
    where_bests = te.state((rows, count, chunks), "int32", "where_bests", axis=1)

    def before(what: Tensor, r: Scalar, t: Scalar) -> Scalar:
        """What the trip before said; the first one finds what nobody asks for."""
        return te.where(t >= 1, what[r, t - 1], 0)

    def is_left(r: Scalar, t: Scalar, k: Scalar) -> Scalar:
        """Whether element k of the chunk that was taken from comes behind what was taken."""
        own, last = (x[r, before(taken, r, t), at] for at in (k, before(spots, r, t)))
        beyond = own < last if largest else own > last
        return te.any_of(beyond, te.all_of(own == last, _short(k) > before(spots, r, t)))

    later = te.compute((rows, count), lambda r, t: pick(
        te.where(is_left(r, t, m), x[r, before(taken, r, t), m], worst), axis=m), "later")
    where_later = te.compute((rows, count), lambda r, t: te.min(te.where(te.all_of(
        is_left(r, t, n), x[r, before(taken, r, t), n] == later[r, t]), _short(n), _short(size)), axis=n), "where_later")

    def known(old: Tensor, new: Tensor, start: Tensor) -> Tensor:
        """The best of each chunk, or where it stands: the one that was taken from has another."""
        return te.scan(old, lambda r, t, c: te.where(
            t >= 1, te.where(taken[r, t - 1] == c, new[r, t], old[r, t - 1, c]), start[r, c]))

    bests, where_bests = known(bests, later, first), known(where_bests, where_later, where_first)
    best = te.compute((rows, count), lambda r, t: pick(te.where(where_bests[r, t, c] < size, bests[r, t, c], worst), axis=c),
                      "best")
    where_best = te.compute((rows, count), lambda r, t: te.min(te.where(
        te.all_of(where_bests[r, t, d] < size, bests[r, t, d] == best[r, t]), d, chunks), axis=d), "where_best")
    chunk = te.scan(taken, lambda r, t: where_best[r, t])
    spot = te.scan(spots, lambda r, t: where_bests[r, t, where_best[r, t]])
    return te.compute((rows, count), lambda r, t: chunk[r, t] * size + te.cast(spot[r, t], "int64"), "found")


def _short(number: Scalar | int) -> Scalar:
    """A place within a chunk."""
    return te.cast(number, "int32")


def _samples() -> Sequence[Sample]:
    tied = ints(4, 7, low=0, high=3)
    return [Sample([floats(3, 9), vector(4)], {}, 2), Sample([floats(2, 5, 3), vector(5)], {"axis": 1, "largest": 0}, 2),
            Sample([tied, vector(6)], {"largest": 0}, 2), Sample([tied, vector(3)], {"axis": 0}, 2),
            Sample([floats(6), vector(1)], {"axis": 0, "sorted": 0}, 2),
            Sample([ints(2, 6, low=0, high=255, dtype="uint8"), vector(2)], {}, 2)]


OPS: tuple[OpDef, ...] = (
    OpDef("TopK", PatternKind.INJECTIVE, _types, decompose=_decompose, samples=_samples, static_inputs=(1,),
          reads=("axis", "k", "largest"), ignores=("sorted",)),
)

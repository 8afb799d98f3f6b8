"""TopK: the greatest (or least) elements along an axis in their order, and where they are.

A recurrence over the k results: each trip takes the best of what comes behind the result before it. Elements that are equal
follow each other as they stand, and what is no number counts as an infinity.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tsc import te
from tsc.errors import ModelError
from tsc.ir import TensorType
from tsc.ops.base import Builder, InferContext, OpDef, PatternKind, Sample
from tsc.ops.define import CUSTOM, CustomOp
from tsc.ops.movement import positions, reshape
from tsc.ops.samples import floats, ints, vector
from tsc.ops.shapes import Shape, canonical, is_float, sizes_operand, tensor, where
from tsc.sym import SymExpr, product
from tsc.te import Scalar, Tensor
from tsc.te.compute import MAX, MIN


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
    keys = reshape(builder, builder.emit("Transpose", keys, perm=(*others, axis)), (product(rest), shape[axis]))
    _, found = builder.several(CUSTOM, (keys, positions(builder, _count(ctx))), 2,
                               definition=CustomOp("ai.onnx", "TopK", _ranked), attributes={"largest": largest})
    made: Shape = (_count(ctx), *rest)
    back = tuple(np.argsort((axis, *others)).tolist())
    places = builder.emit("Transpose", reshape(builder, found, made), perm=back)
    return builder.emit("GatherElements", x, places, axis=axis), places


def _ranked(x: Tensor, places: Tensor, largest: bool) -> tuple[Tensor, ...]:
    """The elements of each row of x [rows, n] in their order, as many as there are places, and where they stand."""
    (rows, extent), (count,) = x.shape, places.shape
    worst = (MAX if largest else MIN).identity(x.dtype)
    values, spots = te.state((count, rows), x.dtype, "values"), te.state((count, rows), "int64", "spots")
    i, j = te.reduce_axis(extent, "i"), te.reduce_axis(extent, "j")

    def is_left(t: Scalar, r: Scalar, k: Scalar) -> Scalar:
        """Whether element k comes behind the result of the trip before."""
        before = te.where(t >= 1, values[t - 1, r], x[r, k])
        beyond = x[r, k] < before if largest else x[r, k] > before
        spot = te.where(t >= 1, spots[t - 1, r], -1)
        return te.any_of(beyond, te.all_of(x[r, k] == before, k > spot))

    pick = te.max if largest else te.min
    best = te.compute((count, rows), lambda t, r: pick(te.where(is_left(t, r, i), x[r, i], worst), axis=i), "best")
    values = te.scan(values, lambda t, r: best[t, r])
    where_best = te.compute((count, rows), lambda t, r: te.min(
        te.where(te.all_of(is_left(t, r, j), x[r, j] == best[t, r]), j, extent), axis=j), "where_best")
    return values, te.scan(spots, lambda t, r: where_best[t, r])


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

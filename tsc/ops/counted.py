"""NonZero and Compress: outputs with as many elements as the data have of what is asked for.

What is asked for is marked, and the marks are summed up along the elements: the last sum is how many there are, and the place
of number j is the first whose sum is more than j, which is looked for by halving.
"""

from __future__ import annotations

import numpy as np

from tsc import te
from tsc.errors import ModelError
from tsc.ir import TensorType
from tsc.ops.base import Builder, InferContext, OpDef, PatternKind, Sample
from tsc.ops.define import CUSTOM, CustomOp
from tsc.ops.movement import positions, reshape, shape_operand
from tsc.ops.reduce import cast
from tsc.ops.samples import bools, floats, ints
from tsc.ops.shapes import Shape, canonical, expect_rank, tensor, where
from tsc.sym import GREATEST, ONE, ZERO, SymExpr, product
from tsc.te import Scalar, Tensor


def _found(builder: Builder, marks: str, extent: SymExpr) -> str:
    """The places of the marks among `extent` bools, which tell the node's `count`, in their order."""
    return spots_of(builder, cast(builder, reshape(builder, marks, (extent,)), "bool", "int64"), extent)


def spots_of(builder: Builder, marks: str, extent: SymExpr, number: int = 0) -> str:
    """Where the ones are among `extent` marks of 0 and 1, int64, in their order; they tell the node's `count` of a number."""
    ctx = builder.infer
    builder.counts(builder.emit("ReduceSum", marks, builder.constant(np.array([0])), keepdims=1), number)
    count = ctx.count(extent, number)
    return reshape(builder, spots_in_rows(builder, reshape(builder, marks, (ONE, extent)), extent, count), (count,))


def spots_in_rows(builder: Builder, marks: str, extent: SymExpr, count: SymExpr) -> str:
    """Where the first `count` ones are in each row [rows, extent] of marks, in their order; `extent` where there are fewer."""
    most = builder.infer.env.bounds(extent)[1]
    halvings = (GREATEST if most is None else most).bit_length()
    sums = builder.emit("CumSum", marks, builder.constant(np.array(1)))
    return builder.emit(CUSTOM, sums, positions(builder, count), attributes={"halvings": halvings},
                        definition=CustomOp("ai.onnx", builder.infer.node.op, _search))


def _search(sums: Tensor, numbers: Tensor, halvings: int) -> Tensor:
    """How many sums of each row are not more than each of the numbers; sums rise."""
    (rows, extent), (count,) = sums.shape, numbers.shape
    below = te.compute((rows, count), lambda r, j: te.where(numbers[j] < 0, 1, 0), "below")
    for k in reversed(range(halvings)):
        def further(r: Scalar, j: Scalar, before: Tensor = below, step: int = 1 << k) -> Scalar:
            further = before[r, j] + step
            inside = te.minimum(further, extent)
            return te.where(te.all_of(further <= extent, sums[r, inside - 1] <= numbers[j]), inside, before[r, j])

        below = te.compute((rows, count), further, f"below_{k}")
    return below


# -- NonZero -----------------------------------------------------------------------------------------------------------

def _nonzero_types(ctx: InferContext) -> tuple[TensorType, ...]:
    shape = canonical(ctx, 0)
    return tensor("int64", (SymExpr.of(len(shape)), ctx.count(product(shape))))


def _nonzero(builder: Builder) -> tuple[str, ...]:
    ctx = builder.infer
    shape = canonical(ctx, 0)
    x = ctx.node.inputs[0]
    marks = cast(builder, x, ctx.type(0).dtype, "bool")
    places = _found(builder, marks, product(shape))
    if not shape:  # no index along no axis
        none = shape_operand(builder, (ZERO, ctx.count(product(shape))))
        return (builder.emit("Expand", builder.constant(np.zeros((1, 1), np.int64)), none),)
    view = reshape(builder, marks, shape)
    return (builder.emit(CUSTOM, places, view, definition=CustomOp("ai.onnx", "NonZero", _coordinates), attributes={}),)


def _coordinates(places: Tensor, like: Tensor) -> Tensor:
    """The index along each axis of elements of `like` at places in the order of memory."""
    (count,), rank = places.shape, len(like.shape)

    def along(k: Scalar, j: Scalar) -> Scalar:
        left = places[j]
        found = left % like.shape[rank - 1]
        for axis in reversed(range(rank - 1)):
            left = left // like.shape[axis + 1]
            found = te.where(k == axis, left % like.shape[axis], found)
        return found

    return te.compute((rank, count), along, "coordinates")


# -- Compress ----------------------------------------------------------------------------------------------------------

def _compressed(ctx: InferContext) -> tuple[Shape, int]:
    """The shape that elements are taken from, and along which axis."""
    shape = canonical(ctx, 0)
    if ctx.attr("axis") is None:
        return (product(shape),), 0
    return shape, ctx.axis(int(ctx.attr("axis")), len(shape))


def _compress_types(ctx: InferContext) -> tuple[TensorType, ...]:
    expect_rank(ctx, 1, 1)
    if ctx.type(1).rank != 1:
        raise ModelError(f"{where(ctx)} has a condition of rank {ctx.type(1).rank}, expected 1")
    (shape, axis), (extent,) = _compressed(ctx), canonical(ctx, 1)
    ctx.env.assume_le(extent, shape[axis], f"{where(ctx)}: the condition is no longer than the dim that it takes from")
    return tensor(ctx.type(0).dtype, (*shape[:axis], ctx.count(extent), *shape[axis + 1:]))


def _compress(builder: Builder) -> tuple[str, ...]:
    ctx = builder.infer
    (shape, axis), (extent,) = _compressed(ctx), canonical(ctx, 1)
    x, marks = ctx.node.inputs
    return (builder.emit("Gather", reshape(builder, x, shape), _found(builder, marks, extent), axis=axis),)


OPS: tuple[OpDef, ...] = (
    OpDef("NonZero", PatternKind.OPAQUE, _nonzero_types, decompose=_nonzero, samples=lambda: [
        Sample([ints(3, 5, low=0, high=2)], {}), Sample([bools(2, 3, 4)], {}), Sample([floats(7)], {}),
        Sample([floats()], {})]),
    OpDef("Compress", PatternKind.OPAQUE, _compress_types, decompose=_compress, reads=("axis",), samples=lambda: [
        Sample([floats(3, 4), bools(3)], {"axis": 0}), Sample([floats(3, 4), bools(4)], {"axis": 1}),
        Sample([ints(3, 4), bools(10)], {}), Sample([floats(5, 2, 3), bools(2)], {"axis": -2})]),
)

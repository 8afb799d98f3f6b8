"""Unique: the different elements, or the different parts along an axis, in rising order or as they come.

Each element is compared with each, as many times as there are pairs: where its like comes first, and how many different ones
come before it, which is its place among the results. What is no number is like itself, and the greatest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tsc import te
from tsc.ir import TensorType
from tsc.ops.base import Builder, InferContext, OpDef, PatternKind, Sample
from tsc.ops.define import CUSTOM, CustomOp
from tsc.ops.movement import positions, reshape
from tsc.ops.reduce import cast
from tsc.ops.samples import bools, floats, ints
from tsc.ops.shapes import Shape, canonical
from tsc.sym import ONE, product
from tsc.te import Scalar, Tensor


def _parts(ctx: InferContext) -> tuple[Shape, int]:
    """The shape that parts are taken from, and along which axis."""
    shape, axis = canonical(ctx, 0), ctx.attr("axis")
    return ((product(shape),), 0) if axis is None else (shape, ctx.axis(int(axis), len(shape)))


def _types(ctx: InferContext) -> tuple[TensorType, ...]:
    shape, axis = _parts(ctx)
    count = ctx.count(shape[axis])
    numbers = (TensorType("int64", (size,)) for size in (count, shape[axis], count))
    return (TensorType(ctx.type(0).dtype, (*shape[:axis], count, *shape[axis + 1:])), *numbers)[:len(ctx.node.outputs)]


def _decompose(builder: Builder) -> tuple[str, ...]:
    ctx = builder.infer
    shape, axis = _parts(ctx)
    extent, rest, dtype = shape[axis], product([*shape[:axis], *shape[axis + 1:]]), ctx.type(0).dtype
    x = reshape(builder, ctx.node.inputs[0], shape)
    keys = cast(builder, x, dtype, "int32" if dtype == "bool" else dtype)
    keys = builder.emit("Transpose", keys, perm=(axis, *(k for k in range(len(shape)) if k != axis)))
    keys = reshape(builder, keys, (extent, rest))

    def custom(function: Callable[..., Tensor], *inputs: str, **attributes: bool) -> str:
        return builder.emit(CUSTOM, *inputs, definition=CustomOp("ai.onnx", "Unique", function), attributes=attributes)

    alone = rest == ONE
    first = custom(_first, keys, alone=alone)
    places = custom(_sorted_places, keys, first, alone=alone) if ctx.attr("sorted", 1) else custom(_places, first)
    marks = custom(_marks, first)
    builder.counts(builder.emit("ReduceSum", marks, builder.constant(np.array([0])), keepdims=1))
    numbers = positions(builder, ctx.count(extent))
    spots = custom(_spots, marks, places, numbers)
    made = builder.emit("Gather", x, spots, axis=axis), spots, places, custom(_counted, places, numbers)
    return made[:len(ctx.node.outputs)]


def _differs(a: Scalar, b: Scalar) -> Scalar:
    """Whether two keys are not alike."""
    return te.any_of(_is_less(a, b), _is_less(b, a))


def _is_less(a: Scalar, b: Scalar) -> Scalar:
    return te.any_of(a < b, te.all_of(a == a, b != b))


def _first(keys: Tensor, alone: bool) -> Tensor:
    """The first row that is like each row of keys [n, m]."""
    extent, width = keys.shape
    j, f = te.reduce_axis(extent, "j"), te.reduce_axis(width, "f")
    if alone:
        return te.compute((extent,), lambda i: te.min(te.where(_differs(keys[i, 0], keys[j, 0]), extent, j), axis=j), "first")
    apart = te.compute((extent, extent), lambda i, j: te.max(te.where(_differs(keys[i, f], keys[j, f]), 1, 0), axis=f), "apart")
    return te.compute((extent,), lambda i: te.min(te.where(apart[i, j] > 0, extent, j), axis=j), "first")


def _sorted_places(keys: Tensor, first: Tensor, alone: bool) -> Tensor:
    """How many different rows are less than each row: by the first column in which they differ."""
    extent, width = keys.shape
    j, f = te.reduce_axis(extent, "j"), te.reduce_axis(width, "f")
    if alone:
        return te.compute((extent,), lambda i: te.sum(te.where(te.all_of(
            first[j] == j, _is_less(keys[j, 0], keys[i, 0])), 1, 0), axis=j), "places")
    column = te.compute((extent, extent), lambda i, j: te.min(
        te.where(_differs(keys[i, f], keys[j, f]), f, width - 1), axis=f), "column")
    return te.compute((extent,), lambda i: te.sum(te.where(te.all_of(
        first[j] == j, _is_less(keys[j, column[i, j]], keys[i, column[i, j]])), 1, 0), axis=j), "places")


def _places(first: Tensor) -> Tensor:
    """How many different rows come before the first that is like each row."""
    extent, = first.shape
    j = te.reduce_axis(extent, "j")
    return te.compute((extent,), lambda i: te.sum(te.where(te.all_of(first[j] == j, j < first[i]), 1, 0), axis=j), "places")


def _marks(first: Tensor) -> Tensor:
    """1 where a row is the first of its kind, else 0."""
    return te.compute(first.shape, lambda i: te.where(first[i] == i, 1, 0), "marks")


def _spots(marks: Tensor, places: Tensor, numbers: Tensor) -> Tensor:
    """The marked row of each place."""
    i = te.reduce_axis(marks.shape[0], "i")
    return te.compute(numbers.shape, lambda s: te.sum(te.where(te.all_of(
        marks[i] > 0, places[i] == numbers[s]), i, 0), axis=i), "spots")


def _counted(places: Tensor, numbers: Tensor) -> Tensor:
    """How many rows have each place."""
    i = te.reduce_axis(places.shape[0], "i")
    return te.compute(numbers.shape, lambda s: te.sum(te.where(places[i] == numbers[s], 1, 0), axis=i), "counted")


def _samples() -> Sequence[Sample]:
    few = ints(9, low=0, high=4)
    return [Sample([few], {}, 4), Sample([few], {"sorted": 0}, 4), Sample([floats(5)], {}), Sample([bools(3, 4)], {}, 4),
            Sample([ints(6, 2, low=0, high=2)], {"axis": 0}, 4), Sample([ints(2, 5, 2, low=0, high=2)], {"axis": -2}, 4)]


OPS: tuple[OpDef, ...] = (
    OpDef("Unique", PatternKind.REDUCE, _types, decompose=_decompose, samples=_samples, reads=("axis", "sorted")),
)

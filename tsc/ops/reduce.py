"""Reductions over axes of one tensor, and what is made of them: means, norms, Softmax, ArgMax, CumSum, CumProd."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from tsc.errors import InternalError, ModelError
from tsc.ir import TensorType
from tsc.ops.base import Body, Builder, InferContext, Lowering, OpDef, PatternKind, Recurrence, Reduction, Sample
from tsc.ops.elementwise import greater, lesser
from tsc.ops.generate import typed
from tsc.ops.movement import positions, reshape, size_operand
from tsc.ops.samples import bools, floats, ints, scalar, vector
from tsc.ops.shapes import (
    NUMBERS,
    Shape,
    Values,
    as_object,
    axes_operand,
    canonical,
    is_float,
    same_types,
    scalar_contents,
    static_shape,
    tensor,
    where,
)
from tsc.ops.told_axes import are_told, around, reduced
from tsc.sym import ONE, ShapeEnv, SymExpr, product
from tsc.te.compute import MAX, MIN, PROD, SUM, Axis, Monoid
from tsc.te.expr import BOOL, Expr, add, call, index, mul, select

# -- the primitive reductions ----------------------------------------------------------------------------------

_MONOIDS = {"ReduceSum": SUM, "ReduceProd": PROD, "ReduceMax": MAX, "ReduceMin": MIN}


def reduced_axes(ctx: InferContext) -> tuple[int, ...]:
    """The axes a reduction runs over, ascending: all of them by default, none with `noop_with_empty_axes`."""
    rank = ctx.type(0).rank
    axes = axes_operand(ctx, 1, rank)
    if axes:
        return tuple(sorted(set(axes)))
    return () if ctx.attr("noop_with_empty_axes", 0) else tuple(range(rank))


def _reduced_shape(ctx: InferContext, axes: Sequence[int]) -> Shape:
    shape = canonical(ctx, 0)
    if ctx.attr("keepdims", 1):
        return tuple(ONE if k in axes else d for k, d in enumerate(shape))
    return tuple(d for k, d in enumerate(shape) if k not in axes)


def _reduce_types(ctx: InferContext) -> tuple[TensorType, ...]:
    if ctx.type(0).dtype == BOOL and ctx.node.op not in ("ReduceMax", "ReduceMin"):
        raise ModelError(f"{where(ctx)} reduces bools, expected numbers; cast them")
    told = are_told(ctx, 1)
    return tensor(ctx.type(0).dtype, reduced(ctx, 1)[2] if told else _reduced_shape(ctx, reduced_axes(ctx)))


def _reduce_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr | Reduction:
    ctx = lowering.infer
    axes, shape = reduced_axes(ctx), canonical(ctx, 0)
    monoid = _MONOIDS[ctx.node.op]
    if ctx.type(0).dtype == BOOL:
        monoid = {MAX: Monoid("or"), MIN: Monoid("and")}[monoid]
    kept = at if ctx.attr("keepdims", 1) else None
    rest = iter(at)
    made: list[Axis] = []
    place: list[Expr] = []
    for k, extent in enumerate(shape):
        if k not in axes:
            place.append(kept[k] if kept is not None else next(rest))
            continue
        made.append(lowering.axis("r", extent))
        place.append(lowering.var(made[-1]))
    value = lowering.read(0, tuple(place))
    return Reduction(monoid, tuple(made), value) if made else value


_FOLDS: dict[str, Callable[[ShapeEnv, SymExpr, SymExpr], SymExpr]] = {
    "ReduceSum": lambda env, a, b: a + b, "ReduceProd": lambda env, a, b: a * b, "ReduceMax": greater, "ReduceMin": lesser}


def _reduce_contents(ctx: InferContext) -> Values:
    source = ctx.contents[0]
    if source is None or are_told(ctx, 1) or ctx.type(0).dtype == BOOL or is_float(ctx.type(0).dtype) or 0 in source.shape:
        return (None,)
    axes = reduced_axes(ctx)
    kept = [k for k in range(source.ndim) if k not in axes]
    rows = source.transpose([*kept, *axes]).reshape(*(source.shape[k] for k in kept), -1)
    result = np.empty(rows.shape[:-1], dtype=object)
    for at in np.ndindex(result.shape):
        result[at] = functools.reduce(functools.partial(_FOLDS[ctx.node.op], ctx.env), rows[at])
    sizes = static_shape(_reduced_shape(ctx, axes))
    return (None if sizes is None else result.reshape(sizes),)


# -- decompositions --------------------------------------------------------------------------------------------

def reduction(builder: Builder, op: str, value: str, axes: Sequence[int], keepdims: int = 1) -> str:
    """Emit a primitive reduction over known axes (an empty list reduces nothing)."""
    return builder.emit(op, value, axes=tuple(axes), keepdims=keepdims, noop_with_empty_axes=1)


def count(builder: Builder, axes: Sequence[int], dtype: str) -> str:
    """The number of elements of input 0 over `axes`, as a scalar of `dtype`."""
    shape = canonical(builder.infer, 0)
    return size_operand(builder, as_object(product(shape[k] for k in axes)), dtype)


def mean(builder: Builder, value: str, axes: Sequence[int], dtype: str, keepdims: int = 1) -> str:
    """Emit the mean of a tensor shaped as input 0."""
    return builder.emit("Div", reduction(builder, "ReduceSum", value, axes, keepdims), count(builder, axes, dtype))


def _through(before: str | None, op: str, after: str | None) -> Callable[[Builder], tuple[str, ...]]:
    """A reduction between two operators of one operand; what follows on integers is computed in floats."""
    def decompose(builder: Builder) -> tuple[str, ...]:
        ctx = builder.infer
        value = ctx.node.inputs[0]
        if before == "Square":
            value = builder.emit("Mul", value, value)
        elif before is not None:
            value = builder.emit(before, value)
        value = reduction(builder, op, value, reduced_axes(ctx), ctx.attr("keepdims", 1))
        if after is None:
            return (value,)
        own, working = ctx.type(0).dtype, _working_type(ctx)
        return (cast(builder, builder.emit(after, cast(builder, value, own, working)), working, own),)
    return decompose


def _reduce_told(builder: Builder) -> tuple[str, ...]:
    """Where only a run knows the axes: of one, between what is before and what is behind it; of several, of pairs."""
    ctx = builder.infer
    kept, inner, result = reduced(ctx, 1)
    view = around(ctx, 1) if ctx.known(1, "axes").size == 1 else tuple(d for pair in zip(kept, inner) for d in pair)
    axes = tuple(range(1, len(view), 2))
    made = builder.emit(ctx.node.op, reshape(builder, ctx.node.inputs[0], view), axes=axes, keepdims=0)
    return (reshape(builder, made, result),)


def _working_type(ctx: InferContext) -> str:
    """The type that functions of real numbers are computed in."""
    return ctx.type(0).dtype if is_float(ctx.type(0).dtype) else "float64"


def cast(builder: Builder, value: str, source: str, dtype: str) -> str:
    """`value` of type `source` as `dtype`."""
    return value if source == dtype else builder.emit("Cast", value, to=NUMBERS[dtype])


def _reduce_mean(builder: Builder) -> tuple[str, ...]:
    """Sums of short integers are taken in long ones, where they do not overflow."""
    ctx = builder.infer
    own, axes, keep = ctx.type(0).dtype, reduced_axes(ctx), ctx.attr("keepdims", 1)
    wide = {"int32": "int64", "uint32": "uint64"}.get(own, own)
    return (cast(builder, mean(builder, cast(builder, ctx.node.inputs[0], own, wide), axes, wide, keep), wide, own),)


def _log_sum_exp(builder: Builder) -> tuple[str, ...]:
    """max + log(sum(exp(x - max))), so that nothing overflows; an infinite maximum stays, as inf - inf is no number."""
    ctx = builder.infer
    own, axes, keep = ctx.type(0).dtype, reduced_axes(ctx), ctx.attr("keepdims", 1)
    working = _working_type(ctx)
    x = cast(builder, ctx.node.inputs[0], own, working)
    top = reduction(builder, "ReduceMax", x, axes)
    top = builder.emit("Where", builder.emit("IsInf", top), builder.constant(np.zeros((), working)), top)
    shifted = builder.emit("Exp", builder.emit("Sub", x, top))
    logs = builder.emit("Log", reduction(builder, "ReduceSum", shifted, axes, keep))
    result = builder.emit("Add", logs, top if keep else builder.emit("Squeeze", top, axes=axes))
    return (cast(builder, result, working, own),)


def softmax_axes(ctx: InferContext) -> tuple[int, ...]:
    """Those that shares are of, as the model's opset has them."""
    return softmax_axes_of(ctx, ctx.opset, int(ctx.attr("axis", -1 if ctx.opset >= 13 else 1)))


def softmax_axes_of(ctx: InferContext, opset: int, axis: int) -> tuple[int, ...]:
    """One axis since opset 13; before, the input is coerced to 2-D: all axes from `axis` on together. Before opset 11 the text
    does not say whether that may be none of them, ONNX Runtime refuses it."""
    rank = ctx.type(0).rank
    if opset >= 13:
        return (ctx.axis(axis, rank),)
    if not rank:
        raise ModelError(f"{where(ctx)} has an operand without axes, expected one at least")
    return tuple(range(ctx.axis(axis, rank), rank))


def _softmax_types(ctx: InferContext) -> tuple[TensorType, ...]:
    softmax_axes(ctx)
    return same_types(ctx)


def _softmax(builder: Builder) -> tuple[str, ...]:
    x, axes = builder.infer.node.inputs[0], softmax_axes(builder.infer)
    shifted = builder.emit("Exp", builder.emit("Sub", x, reduction(builder, "ReduceMax", x, axes)))
    # one division a row instead of one an element
    return (builder.emit("Mul", shifted, builder.emit("Reciprocal", reduction(builder, "ReduceSum", shifted, axes))),)


def _log_softmax(builder: Builder) -> tuple[str, ...]:
    x, axes = builder.infer.node.inputs[0], softmax_axes(builder.infer)
    shifted = builder.emit("Sub", x, reduction(builder, "ReduceMax", x, axes))
    logs = builder.emit("Log", reduction(builder, "ReduceSum", builder.emit("Exp", shifted), axes))
    return (builder.emit("Sub", shifted, logs),)


# -- ArgMax, ArgMin --------------------------------------------------------------------------------------------

def _arg_axis(ctx: InferContext) -> int:
    return ctx.axis(int(ctx.attr("axis", 0)), ctx.type(0).rank)


def _arg_types(ctx: InferContext) -> tuple[TensorType, ...]:
    axis = _arg_axis(ctx)
    ctx.env.assume_le(1, canonical(ctx, 0)[axis], f"{where(ctx)}: an empty axis has no extremum")
    return tensor("int64", _reduced_shape(ctx, (axis,)))


def _arg(extremum: str) -> Callable[[Builder], tuple[str, ...]]:
    """The first (or last) position whose element equals the extremum: a second reduction over positions.

    What is no number counts as the extremum, as it does in Max and Min.
    """
    def decompose(builder: Builder) -> tuple[str, ...]:
        ctx = builder.infer
        x, axis, last = ctx.node.inputs[0], _arg_axis(ctx), bool(ctx.attr("select_last_index", 0))
        extent = canonical(ctx, 0)[axis]
        top = builder.emit("Equal", x, reduction(builder, extremum, x, (axis,)))
        if is_float(ctx.type(0).dtype):
            top = builder.emit("Or", top, builder.emit("IsNaN", x))
        places = positions(builder, extent, ctx.type(0).rank - 1 - axis)
        none = size_operand(builder, as_object(SymExpr.of(-1) if last else extent), "int64")
        found = builder.emit("Where", top, places, none)
        return (reduction(builder, "ReduceMax" if last else "ReduceMin", found, (axis,), ctx.attr("keepdims", 1)),)
    return decompose


# -- CumSum, CumProd -------------------------------------------------------------------------------------------

def _cumulative_axis(ctx: InferContext) -> int:
    axis = scalar_contents(ctx, 1, "axis").as_int()
    if axis is None:
        raise InternalError(f"{where(ctx)} has an axis that only a run knows; it should have been decomposed")
    return ctx.axis(axis, ctx.type(0).rank)


def _cumulative_types(ctx: InferContext) -> tuple[TensorType, ...]:
    if scalar_contents(ctx, 1, "axis").as_int() is not None:
        _cumulative_axis(ctx)
    return same_types(ctx)


def _cumulative_told(builder: Builder) -> tuple[str, ...]:
    """Where only a run knows the axis: between what is before and what is behind it."""
    ctx = builder.infer
    view = reshape(builder, ctx.node.inputs[0], around(ctx, 1))
    made = builder.emit(ctx.node.op, view, builder.constant(np.array(1)), **ctx.node.attrs)
    return (reshape(builder, made, canonical(ctx, 0)),)


def _cumulative(join: Callable[[Expr, Expr], Expr], neutral: int) -> Callable[[Lowering, int, tuple[Expr, ...]], Body]:
    """What lies before (or behind), joined with the element there or the output's own; of one element, that or nothing."""
    def te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Body:
        ctx = lowering.infer
        axis, reverse = _cumulative_axis(ctx), bool(ctx.attr("reverse", 0))
        size, own = index(canonical(ctx, 0)[axis]), at[axis]
        there = (*at[:axis], add(own, index(1 if reverse else -1)), *at[axis + 1:])
        is_later = call("lt", there[axis], size) if reverse else call("lt", index(0), own)
        exclusive = bool(ctx.attr("exclusive", 0))
        joined = lowering.read(0, there if exclusive else at)
        begin = typed(neutral, ctx.type(0).dtype) if exclusive else joined
        if canonical(ctx, 0)[axis].as_int() == 1:
            return begin
        return Recurrence(axis, select(is_later, join(lowering.own(there), joined), begin), reverse)
    return te


# -- samples ---------------------------------------------------------------------------------------------------

def _reductions() -> Sequence[Sample]:
    x = floats(3, 1, 5, low=0.25)
    return [Sample([x, vector(1, 2)]), Sample([x, vector(-1)], {"keepdims": 0}), Sample([x]), Sample([x], {"keepdims": 0}),
            Sample([x, vector()], {"noop_with_empty_axes": 1}), Sample([x, vector(0, -1)], {"keepdims": 0})]


def _typed_reductions() -> Sequence[Sample]:
    return [*_reductions(), Sample([ints(3, 5), vector(0)])]


def _extrema() -> Sequence[Sample]:
    return [*_typed_reductions(), Sample([bools(3, 5), vector(1)])]


def _softmaxes() -> Sequence[Sample]:
    return [Sample([floats(2, 3, 5)], {"axis": a}) for a in (-1, 1, 0)] + [Sample([floats(4, 1)]), Sample([floats(1, 7) * 9])]


def _args() -> Sequence[Sample]:
    tied = ints(3, 4, 5, low=0, high=3)
    return [Sample([x], {"axis": a, "keepdims": k, "select_last_index": s})
            for x in (floats(3, 4, 5), tied) for a, k, s in ((0, 1, 0), (1, 0, 0), (-1, 1, 1))]


def _sums() -> Sequence[Sample]:
    return [Sample([floats(3, 5), scalar(a, "int64")], {"exclusive": e, "reverse": r})
            for a, e, r in ((1, 0, 0), (0, 1, 0), (-1, 0, 1), (1, 1, 1))]


#: The attributes of every reduction.
_READS = ("axes", "keepdims", "noop_with_empty_axes")


def _compound(name: str, decompose: Callable[[Builder], tuple[str, ...]]) -> OpDef:
    return OpDef(name, PatternKind.REDUCE, _reduce_types, decompose=decompose, samples=_reductions, told=_reduce_told,
                 static_inputs=(1,), reads=_READS)


OPS: tuple[OpDef, ...] = (
    *(OpDef(name, PatternKind.REDUCE, _reduce_types, contents=_reduce_contents, te=_reduce_te, told=_reduce_told,
            static_inputs=(1,), samples=_extrema if monoid in (MAX, MIN) else _typed_reductions, reads=_READS)
      for name, monoid in _MONOIDS.items()),
    _compound("ReduceMean", _reduce_mean),
    _compound("ReduceL1", _through("Abs", "ReduceSum", None)),
    _compound("ReduceL2", _through("Square", "ReduceSum", "Sqrt")),
    _compound("ReduceSumSquare", _through("Square", "ReduceSum", None)),
    _compound("ReduceLogSum", _through(None, "ReduceSum", "Log")),
    _compound("ReduceLogSumExp", _log_sum_exp),
    OpDef("Softmax", PatternKind.REDUCE, _softmax_types, decompose=_softmax, samples=_softmaxes, reads=("axis",)),
    OpDef("LogSoftmax", PatternKind.REDUCE, _softmax_types, decompose=_log_softmax, samples=_softmaxes, reads=("axis",)),
    OpDef("ArgMax", PatternKind.REDUCE, _arg_types, decompose=_arg("ReduceMax"), samples=_args,
          reads=("axis", "keepdims", "select_last_index")),
    OpDef("ArgMin", PatternKind.REDUCE, _arg_types, decompose=_arg("ReduceMin"), samples=_args,
          reads=("axis", "keepdims", "select_last_index")),
    *(OpDef(name, PatternKind.OPAQUE, _cumulative_types, te=_cumulative(join, neutral), samples=_sums, told=_cumulative_told,
            static_inputs=(1,), reads=("exclusive", "reverse"))
      for name, join, neutral in (("CumSum", add, 0), ("CumProd", mul, 1))),
)

"""Det: the determinants of square matrices, by elimination with pivots (LU with partial pivoting, as LAPACK's getrf)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tsc.errors import ModelError, UnsupportedError
from tsc.ir import TensorType
from tsc.ops.base import Builder, InferContext, Lowering, OpDef, PatternKind, Sample
from tsc.ops.generate import typed
from tsc.ops.movement import reshape
from tsc.ops.resize import clamped
from tsc.ops.samples import floats
from tsc.ops.shapes import as_index, canonical, expect_rank, tensor, unify, where
from tsc.sym import SymExpr, product
from tsc.te.expr import Expr, add, call, index, mul, select

#: Each row that is eliminated is a few kernels.
_MOST = 32


def _det_types(ctx: InferContext) -> tuple[TensorType, ...]:
    expect_rank(ctx, 0, 2)
    *outer, rows, columns = canonical(ctx, 0)
    unify(ctx.env, rows, columns, f"{where(ctx)}: only a square matrix has a determinant")
    _length(ctx)
    return tensor(ctx.type(0).dtype, outer)


def _length(ctx: InferContext) -> int:
    """How many rows a matrix has."""
    found = next((n for d in canonical(ctx, 0)[-2:] if (n := ctx.env.canon(d).as_int()) is not None), None)
    if found is None:
        raise UnsupportedError(f"{where(ctx)} takes matrices of [{', '.join(map(str, canonical(ctx, 0)[-2:]))}], whose size is "
                               "no constant, not supported yet; give it one by dims=")
    if not 1 <= found <= _MOST:
        kind = ModelError if found == 0 else UnsupportedError
        raise kind(f"{where(ctx)} takes matrices of {found} rows, expected 1 to {_MOST}")
    return found


def _det(builder: Builder) -> tuple[str, ...]:
    """The product of the pivots, negated for each swap of two rows; a matrix loses a row and a column at a time."""
    ctx = builder.infer
    count, shape = _length(ctx), canonical(ctx, 0)
    outer = shape[:-2]
    left = reshape(builder, ctx.node.inputs[0], (product(outer), SymExpr.of(count), SymExpr.of(count)))
    result = None
    for _ in range(count - 1):
        chosen = builder.emit("ArgMax", builder.emit("PivotSizes", left), axis=1, keepdims=0)
        pivot = builder.emit("Pivot", left, chosen)
        result = pivot if result is None else builder.emit("Mul", result, pivot)
        left = builder.emit("Eliminate", left, chosen)
    last = reshape(builder, left, (product(outer),))
    return (reshape(builder, last if result is None else builder.emit("Mul", result, last), outer),)


# -- primitives: of a batch of matrices, the second operand being the row of each that is the pivot's --------------

def _sizes_types(ctx: InferContext) -> tuple[TensorType, ...]:
    return tensor(ctx.type(0).dtype, canonical(ctx, 0)[:2])


def _sizes_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    return call("abs", lowering.read(0, (*at, index(0))))


def _pivot_types(ctx: InferContext) -> tuple[TensorType, ...]:
    return tensor(ctx.type(0).dtype, canonical(ctx, 0)[:1])


def _row(lowering: Lowering, batch: Expr) -> Expr:
    return clamped(as_index(lowering.read(1, (batch,))), canonical(lowering.infer, 0)[1])


def _pivot_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    row = _row(lowering, at[0])
    value = lowering.read(0, (at[0], row, index(0)))
    return select(call("eq", row, index(0)), value, call("sub", typed(0, value.dtype), value))


def _eliminate_types(ctx: InferContext) -> tuple[TensorType, ...]:
    batch, rows, columns = canonical(ctx, 0)
    return tensor(ctx.type(0).dtype, (batch, rows - 1, columns - 1))


def _eliminate_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    """The first row takes the place of the pivot's, which goes. Below a pivot of 0 are zeros: nothing is eliminated."""
    (batch, own, column), row = at, _row(lowering, at[0])
    source = select(call("eq", add(own, index(1)), row), index(0), add(own, index(1)))
    pivot, begin = lowering.read(0, (batch, row, index(0))), lowering.read(0, (batch, source, index(0)))
    behind, value = (lowering.read(0, (batch, r, add(column, index(1)))) for r in (row, source))
    reduced = call("sub", value, mul(call("div", begin, pivot), behind))
    return select(call("eq", pivot, typed(0, pivot.dtype)), value, reduced)


def _dets() -> Sequence[Sample]:
    return [Sample([floats(2, 2)]), Sample([floats(2, 3, 4, 4)]), Sample([floats(5, 1, 1)]),
            Sample([np.array([[0, 2, 1], [0, 0, 3], [4, 1, 1]], np.float32)]), Sample([np.ones((2, 3, 3), np.float64)])]


OPS: tuple[OpDef, ...] = (
    OpDef("Det", PatternKind.REDUCE, _det_types, decompose=_det, samples=_dets),
    OpDef("PivotSizes", PatternKind.INJECTIVE, _sizes_types, te=_sizes_te, domain="tsc"),
    OpDef("Pivot", PatternKind.INJECTIVE, _pivot_types, te=_pivot_te, domain="tsc"),
    OpDef("Eliminate", PatternKind.INJECTIVE, _eliminate_types, te=_eliminate_te, domain="tsc"),
)

"""Operators that users define as tensor expressions: the kind of a Compute, as fusion and scheduling go by it."""

from __future__ import annotations

from tsc.ops.base import PatternKind
from tsc.sym import ONE, ZERO
from tsc.te.compute import Compute
from tsc.te.expr import Call, Cast, Const, Expr, Load, Var, as_size, loads, walk


def compute_kind(compute: Compute) -> PatternKind:
    """A sum of products of two factors, each with an axis of its own, is a contraction; any other reduction is one; what reads
    every tensor at its own index, or broadcast, is elementwise; the rest is injective."""
    if compute.monoid is not None:
        return PatternKind.CONTRACTION if compute.monoid.fn == "add" and _is_product(compute) else PatternKind.REDUCE
    return PatternKind.ELEMENTWISE if all(_aligned(load, compute) for load in loads(compute.body)) else PatternKind.INJECTIVE


def _is_product(compute: Compute) -> bool:
    body = compute.body
    while isinstance(body, Cast):
        body = body.value
    if not (isinstance(body, Call) and body.fn == "mul"):
        return False
    left, right = ({v.name for v in walk(factor) if isinstance(v, Var)} for factor in body.args)
    own = {a.name for a in compute.axes if a.extent != ONE}
    return bool((left - right) & own) and bool((right - left) & own)


def _aligned(load: Load, compute: Compute) -> bool:
    """Whether a tensor is read at the element's own index, as broadcasting does: last dims against last axes."""
    axes = compute.axes[len(compute.axes) - len(load.index):]
    return len(load.index) <= len(compute.axes) and all(
        (place == Var(axis.name) and extent == axis.extent) or (extent == ONE and _is_zero(place))
        for place, extent, axis in zip(load.index, load.buffer.shape, axes))


def _is_zero(place: Expr) -> bool:
    return isinstance(place, Const) and as_size(place) == ZERO

"""What a te body says of its operator, so that nobody has to declare it: its kind, and whether it copies or permutes."""

from __future__ import annotations

from collections.abc import Mapping

from tsc.ops.base import Body, PatternKind, Recurrence, Reduction
from tsc.sym import ONE, ZERO, SymExpr
from tsc.te.compute import Axis, Carried, Compute
from tsc.te.expr import Buffer, Const, Expr, Load, Var, as_size, loads, walk
from tsc.te.passes.products import is_contraction

#: The extents of a value's axes by their names, in order.
Axes = Mapping[str, SymExpr]


def is_copy(element: Load, axes: Axes) -> bool:
    """Whether the value whose element is `element` is the tensor that it is read of. An index that data decides is checked, in
    a dim of 1 too, and so no part of a copy."""
    return element.buffer.shape == tuple(axes.values()) and all(
        place == Var(name) or (extent == ONE and not any(loads(place)))
        for place, (name, extent) in zip(element.index, axes.items()))


def permutation(element: Load, axes: Axes) -> tuple[int, ...] | None:
    """The tensor's dim that each axis runs along, where the value whose element is `element` has each element of the tensor
    once, in another order of its dims; else None."""
    names = [place.name if isinstance(place, Var) else "" for place in element.index]
    if sorted(names) != sorted(axes) or any(axes[name] != d for name, d in zip(names, element.buffer.shape)):
        return None
    return tuple(names.index(name) for name in axes)


def compute_of(target: Buffer, axes: tuple[Axis, ...], body: Body) -> Compute:
    """The Compute of a te body over the axes of what it makes."""
    match body:
        case Reduction(monoid=monoid, axes=reduced, body=term):
            return Compute(target, axes, term, reduced, monoid)
        case Recurrence(axis=position, body=step, reverse=reverse):
            return Compute(target, axes, step, carried=Carried(target.name, axes[position].name, reverse))
    return Compute(target, axes, body)


def compute_kind(compute: Compute) -> PatternKind:
    """What is carried is opaque. A sum of products of two factors, each with an axis of its own, is a contraction; any other
    reduction is one; what reads every tensor at its own index, or broadcast, is elementwise, or a broadcast where it does
    nothing else; the rest is injective, and so is what is made of its index alone."""
    if compute.carried is not None:
        return PatternKind.OPAQUE
    if compute.monoid is not None:
        return PatternKind.CONTRACTION if is_contraction(compute) else PatternKind.REDUCE
    body, found = compute.body, list(loads(compute.body))
    if not all(_aligned(load, compute) for load in found) or (not found and any(isinstance(e, Var) for e in walk(body))):
        return PatternKind.INJECTIVE
    repeats = isinstance(body, Load) and body.buffer.shape != tuple(a.extent for a in compute.axes)
    return PatternKind.BROADCAST if repeats else PatternKind.ELEMENTWISE


def _aligned(load: Load, compute: Compute) -> bool:
    """Whether a tensor is read at the element's own index, as broadcasting does: last dims against last axes."""
    axes = compute.axes[len(compute.axes) - len(load.index):]
    return len(load.index) <= len(compute.axes) and all(
        (place == Var(axis.name) and extent == axis.extent) or (extent == ONE and _is_zero(place))
        for place, extent, axis in zip(load.index, load.buffer.shape, axes))


def _is_zero(place: Expr) -> bool:
    return isinstance(place, Const) and as_size(place) == ZERO

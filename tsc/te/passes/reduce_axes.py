"""Reduce axes, merged and cut: several as one, whose number's digits they are; one as the turns of a fixed number of lanes.

A declared monoid is associative and commutative: that is all it takes.
"""

from __future__ import annotations

from dataclasses import replace

from tsc.errors import InternalError
from tsc.sym import SymExpr, ceildiv
from tsc.te.compute import Axis, Compute, Monoid, Program
from tsc.te.expr import Buffer, Const, Expr, Load, Var, add, call, index, mul, select, substitute


def one_reduce_axis(program: Program) -> Program:
    """`program` with one reduce axis in each Compute: `sum over c, p: f(c, p)` becomes `sum over k: f(k // P, k % P)`.

    A Compute in which two extents are symbolic is left as it is.
    """
    return replace(program, computes=tuple(_flattened(c) for c in program.computes))


def _flattened(compute: Compute) -> Compute:
    axes = sorted(compute.reduce_axes, key=lambda a: a.extent.as_int() is not None)  # a symbolic one is the slowest
    if len(axes) < 2 or any(a.extent.as_int() is None for a in axes[1:]):
        return compute
    merged = "_".join(a.name for a in compute.reduce_axes)
    number: Expr = Var(merged)
    digits: dict[str, Expr] = {}
    total = SymExpr.of(1)
    for axis in reversed(axes):
        quotient = call("floordiv", number, index(total))
        digits[axis.name] = quotient if axis is axes[0] else call("mod", quotient, index(axis.extent))
        total = total * axis.extent
    return replace(compute, body=substitute(compute.body, digits), reduce_axes=(Axis(merged, total),))


def in_lanes(program: Program, lanes: int) -> Program:
    """`program` with each reduction made by `lanes` lanes, then folded: `max over c: x[c]` becomes `part[l] = max over q: x[q *
    lanes + l]`, where that exists, and `max over l: part[l]`.

    Raises InternalError for a Compute with several reduce axes.
    """
    computes: list[Compute] = []
    for compute in program.computes:
        computes += [compute] if compute.monoid is None else _in_lanes(compute, compute.monoid, lanes)
    return replace(program, computes=tuple(computes))


def _in_lanes(compute: Compute, monoid: Monoid, lanes: int) -> list[Compute]:
    if len(compute.reduce_axes) != 1:
        raise InternalError(f"{compute.name} has {len(compute.reduce_axes)} reduce axes, expected one")
    axis, = compute.reduce_axes
    own = tuple(Axis(f"{a.name}_part", a.extent) for a in compute.axes)
    lane, turn = Axis(f"{axis.name}_lane", SymExpr.of(lanes)), Axis(f"{axis.name}_turn", ceildiv(axis.extent, lanes))
    place = add(mul(index(lanes), Var(turn.name)), Var(lane.name))
    body = substitute(compute.body, {axis.name: place, **{a.name: Var(b.name) for a, b in zip(compute.axes, own)}})
    inside = call("lt", place, index(axis.extent))
    neutral = Const(monoid.identity(compute.target.dtype), compute.target.dtype)
    part = Buffer(f"{compute.name}_part", compute.target.dtype, (*compute.target.shape, lane.extent))
    fold = Axis(axis.name, lane.extent)
    total = Load(part, (*(Var(a.name) for a in compute.axes), Var(fold.name)))
    return [Compute(part, (*own, lane), select(inside, body, neutral), (turn,), monoid),
            replace(compute, body=total, reduce_axes=(fold,))]

"""Several reduce axes as one: what a reduction visits is numbered, and the number's digits are the axes."""

from __future__ import annotations

from dataclasses import replace

from tsc.sym import SymExpr
from tsc.te.compute import Axis, Compute, Program
from tsc.te.expr import Expr, Var, call, index, substitute


def one_reduce_axis(program: Program) -> Program:
    """`program` with one reduce axis in each Compute: `sum over c, p: f(c, p)` becomes `sum over k: f(k // P, k % P)`.

    A declared monoid is associative and commutative, so that the order does not matter. A Compute in which two extents are
    symbolic is left as it is.
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

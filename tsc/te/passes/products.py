"""Products in the bodies of Computes: their factors, the axes of these, and how they are read."""

from __future__ import annotations

from tsc.sym import ONE
from tsc.te.compute import Compute
from tsc.te.expr import Call, Cast, Expr, Load, Var, loads, variables
from tsc.te.linear import linear


def product_of(body: Expr) -> tuple[Expr, Expr] | None:
    """The two factors of a product that both load, looking through casts; None for anything else."""
    while isinstance(body, Cast):
        body = body.value
    if isinstance(body, Call) and body.fn == "mul" and all(any(loads(a)) for a in body.args):
        return body.args[0], body.args[1]
    return None


def unit_stride(factor: Expr, axis: str) -> bool:
    """Whether `factor` is one load (through casts) that reads consecutive elements along `axis`."""
    while isinstance(factor, Cast):
        factor = factor.value
    return isinstance(factor, Load) and stride(factor, axis) == 1


def stride(load: Load, axis: str) -> int | None:
    """How many elements of its last dim a load moves on along `axis`; None where that is no constant, or another dim moves."""
    if not load.index or any(axis in variables(i) for i in load.index[:-1]):
        return None
    form = linear(load.index[-1])
    nested = any(axis in variables(atom) for atom, _ in form.terms if atom != Var(axis))
    return None if nested else form.coefficient(axis).as_int()


def single_axes(compute: Compute, factors: tuple[Expr, Expr]) -> list[str]:
    """The axes of a product that belong to one of its factors alone; axes of extent 1 do not count."""
    left, right = variables(factors[0]), variables(factors[1])
    return [a.name for a in compute.axes if (a.name in left) != (a.name in right) and a.extent != ONE]


def is_contraction(compute: Compute) -> bool:
    """Whether it is a sum of products in which each factor has an axis that the other has not."""
    factors = product_of(compute.body)
    if factors is None or compute.monoid is None or compute.monoid.fn != "add":
        return False
    single = set(single_axes(compute, factors))
    return bool(single & variables(factors[0])) and bool(single & variables(factors[1]))

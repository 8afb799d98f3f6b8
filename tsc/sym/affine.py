"""What of a size expression is linear or affine in its Dims: the one place that says what these words mean."""

from __future__ import annotations

from typing import TypeGuard

from tsc.sym.expr import Apply, Atom, Dim, SymExpr, coefficient_of


def is_linear(expr: SymExpr) -> bool:
    """Whether it is a sum of Dims times integers, and of an integer."""
    return all(len(monomial) < 2 and all(isinstance(atom, Dim) for atom in monomial) for monomial, _ in expr.terms)


def is_linear_in(expr: SymExpr, name: str) -> bool:
    """Whether it is `c * name + rest`, with an integer c other than 0 and a rest without `name`."""
    factor = coefficient_of(expr, name)
    return factor is not None and factor.as_int() not in (None, 0)


def is_quasi_affine(atom: Atom) -> TypeGuard[Apply]:
    """Whether it is a function that isl has of affine arguments: min, max, or a division by a positive integer."""
    return isinstance(atom, Apply) and (atom.fn in ("min", "max") or (atom.args[1].as_int() or 0) > 0)

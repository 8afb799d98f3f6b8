"""Index expressions as sums: the difference of two of them, with what cancels gone."""

from __future__ import annotations

from tsc.sym import SymExpr
from tsc.te.expr import Call, Expr, add, as_size, call, index, mul


def difference(left: Expr, right: Expr) -> Expr:
    """`left - right`, as a sum in which equal terms have cancelled."""
    terms: dict[Expr, int] = {}
    constant = _collect(left, 1, terms) + _collect(right, -1, terms)
    return _rebuild(terms, constant)


def tidy(expr: Expr) -> Expr:
    """An index as a sum with equal terms collected; `min` and `max` take constants in."""
    if isinstance(expr, Call) and expr.fn in ("min", "max"):
        return Call(expr.fn, tuple(tidy(a) for a in expr.args), expr.dtype)
    return difference(expr, index(0))


def shifted(expr: Expr, by: int) -> Expr:
    """`expr + by`, inside `min` and `max`."""
    if isinstance(expr, Call) and expr.fn in ("min", "max"):
        return Call(expr.fn, tuple(shifted(a, by) for a in expr.args), expr.dtype)
    return tidy(add(expr, index(by)))


def _collect(expr: Expr, factor: int, terms: dict[Expr, int]) -> SymExpr:
    size = as_size(expr)
    if size is not None:
        return size * factor
    if isinstance(expr, Call):
        match expr.fn, expr.args:
            case "add", (a, b):
                return _collect(a, factor, terms) + _collect(b, factor, terms)
            case "sub", (a, b):
                return _collect(a, factor, terms) + _collect(b, -factor, terms)
            case "neg", (a,):
                return _collect(a, -factor, terms)
            case "mul", (a, b):
                for constant, other in ((as_size(a), b), (as_size(b), a)):
                    if constant is not None and (value := constant.as_int()) is not None:
                        return _collect(other, factor * value, terms)
    terms[expr] = terms.get(expr, 0) + factor
    return SymExpr.of(0)


def _rebuild(terms: dict[Expr, int], constant: SymExpr) -> Expr:
    total: Expr | None = None
    for term, factor in terms.items():
        if factor > 0:
            part = mul(index(factor), term)
            total = part if total is None else add(total, part)
    total = index(constant) if total is None else add(total, index(constant))
    for term, factor in terms.items():
        if factor < 0:
            total = call("sub", total, mul(index(-factor), term))
    return total

"""Index expressions of loops as sums: the difference of two of them, with what cancels gone."""

from __future__ import annotations

from tsc.te.expr import INDEX, Call, Expr, add, call, index, mul
from tsc.te.linear import Linear, linear


def difference(left: Expr, right: Expr) -> Expr:
    """`left - right`, as a sum in which equal terms have cancelled."""
    return _written(linear(Call("sub", (left, right), INDEX)))


def tidy(expr: Expr) -> Expr:
    """An index as a sum with equal terms collected; `min` and `max` take constants in."""
    if isinstance(expr, Call) and expr.fn in ("min", "max"):
        return Call(expr.fn, tuple(tidy(a) for a in expr.args), expr.dtype)
    return _written(linear(expr))


def shifted(expr: Expr, by: int) -> Expr:
    """`expr + by`, inside `min` and `max`."""
    if isinstance(expr, Call) and expr.fn in ("min", "max"):
        return Call(expr.fn, tuple(shifted(a, by) for a in expr.args), expr.dtype)
    return tidy(add(expr, index(by)))


def _written(form: Linear) -> Expr:
    """A linear form as loops have it: what is added, the constant, what is subtracted."""
    numbers = {atom: factor.as_int() or 0 for atom, factor in form.terms}
    total: Expr | None = None
    for atom, factor in form.terms:
        if numbers[atom] >= 0:
            part = mul(index(factor), atom)
            total = part if total is None else add(total, part)
    total = index(form.constant) if total is None else add(total, index(form.constant))
    for atom, factor in form.terms:
        if numbers[atom] < 0:
            total = call("sub", total, mul(index(-factor), atom))
    return total

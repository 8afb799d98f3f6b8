"""Quotients and remainders of sums whose terms are aligned: in loops `i` by 8 and `t` below 8, `(i + t) // 8` is `i // 8`.

What a layout makes of an index that tile loops count has this form; without it a thread's registers would be indexed by what
differs between threads. Every rule is an identity of integers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import gcd

from tsc.loop_ir.nodes import For, Instance, Stmt, Store, map_children, map_exprs
from tsc.te.expr import Call, Const, Expr, Var, add, call, index, mul
from tsc.te.expr import map_children as map_operands


@dataclass(frozen=True, slots=True)
class _Values:
    """What a variable takes: multiples of `step` from `low` to `high` (None: no bound is known)."""

    low: int
    high: int | None
    step: int


_Known = Mapping[str, _Values]


def split_digits(stmt: Stmt, known: _Known | None = None) -> Stmt:
    """`stmt` with such quotients and remainders resolved from the bounds and steps of the loops around them."""
    known = known or {}
    match stmt:
        case For(var=var, lo=Const(value=low), hi=high, step=step):
            last = None
            if isinstance(high, Const):
                last = int(low) + max(0, -(-(int(high.value) - int(low)) // step) - 1) * step
            values = _Values(int(low), last, gcd(int(low), step))
            return replace(stmt, body=split_digits(stmt.body, {**known, var: values}))
        case Store(instance=instance):
            inner = map_exprs(lambda e: _resolved(e, known), stmt)
            if instance is None or not isinstance(inner, Store):
                return inner
            return replace(inner, instance=Instance(instance.statement, tuple(_resolved(i, known) for i in instance.index)))
    return map_children(lambda s: split_digits(s, known), stmt)


def _resolved(expr: Expr, known: _Known) -> Expr:
    inner = map_operands(lambda e: _resolved(e, known), expr)
    match inner:
        case Call(fn="floordiv" | "mod" as fn, args=(value, Const(value=by))) if int(by) > 0:
            return _divided(fn, value, int(by), known)
    return inner


def _divided(fn: str, value: Expr, by: int, known: _Known) -> Expr:
    match value:
        case Call(fn="mod", args=(whole, Const(value=span))) if fn == "floordiv" and int(span) % by == 0:
            return _divided("mod", _divided("floordiv", whole, by, known), int(span) // by, known)
    quotient, remainder, small = _split(value, by, known)
    if fn == "mod":
        return remainder if small else call("mod", remainder, index(by))
    if small:
        return quotient
    for part in (p for p in range(by // 2, 1, -1) if by % p == 0):  # x // (p q) = x // p // q
        inner, _, exact = _split(remainder, part, known)
        if exact:
            return add(quotient, _divided("floordiv", inner, by // part, known))
    return add(quotient, call("floordiv", remainder, index(by)))


def _split(value: Expr, by: int, known: _Known) -> tuple[Expr, Expr, bool]:
    """`value` as quotient * by + remainder, and whether that remainder is known to lie in 0 .. by - 1."""
    aligned: list[Expr] = []
    rest: list[Expr] = []
    constant = 0
    for factor, term in _terms(value):
        step = _multiple(term, known)
        if isinstance(term, Const):
            constant += factor * int(term.value)
        elif factor * step % by != 0:
            rest.append(mul(index(factor), term))
        elif factor % by == 0:
            aligned.append(mul(index(factor // by), term))
        else:
            aligned.append(mul(index(factor * step // by), call("floordiv", term, index(step))))
    remainder = _sum([*rest, index(constant % by)])
    bounds = _range(remainder, known)
    small = bounds is not None and bounds[0] >= 0 and bounds[1] < by
    return _sum([*aligned, index(constant // by)]), remainder, small


def _terms(expr: Expr) -> list[tuple[int, Expr]]:
    match expr:
        case Call(fn="add", args=(a, b)):
            return _terms(a) + _terms(b)
        case Call(fn="sub", args=(a, b)):
            return _terms(a) + [(-f, t) for f, t in _terms(b)]
        case Call(fn="mul", args=(Const(value=factor), inner)) | Call(fn="mul", args=(inner, Const(value=factor))):
            return [(int(factor) * f, t) for f, t in _terms(inner)]
    return [(1, expr)]


def _multiple(expr: Expr, known: _Known) -> int:
    """Some number that divides `expr`."""
    match expr:
        case Var(name=name) if name in known:
            return max(1, known[name].step)
        case Call(fn="floordiv", args=(inner, Const(value=by))) if _multiple(inner, known) % int(by) == 0:
            return _multiple(inner, known) // int(by)
    return 1


def _range(expr: Expr, known: _Known) -> tuple[int, int] | None:
    match expr:
        case Const(value=value):
            return int(value), int(value)
        case Var(name=name) if name in known and (high := known[name].high) is not None:
            return known[name].low, high
        case Call(fn="mod", args=(_, Const(value=by))):
            return 0, int(by) - 1
        case Call(fn="floordiv", args=(inner, Const(value=by))) if (found := _range(inner, known)) is not None:
            return found[0] // int(by), found[1] // int(by)
        case Call(fn="add" | "sub" | "mul"):
            total = (0, 0)
            for factor, term in _terms(expr):
                part = _range(term, known) if (factor, term) != (1, expr) else None
                if part is None:
                    return None
                ends = factor * part[0], factor * part[1]
                total = total[0] + min(ends), total[1] + max(ends)
            return total
    return None


def _sum(terms: list[Expr]) -> Expr:
    total: Expr = index(0)
    for term in terms:
        total = add(total, term)
    return total

"""Index arithmetic in linear form: `sum of coefficient * atom + constant` with symbolic coefficients, and its simplification.

An atom is a Var or an opaque index expression (a division that did not cancel, a loaded index). Of what may wrap around only
the whole is an atom: arithmetic of data is no index arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tsc.sym import ONE, ZERO, ShapeEnv, SymExpr, exact_quotient
from tsc.te.expr import (
    BOOL,
    INDEX,
    Call,
    CheckedIndex,
    Const,
    Expr,
    Load,
    Size,
    Var,
    add,
    as_size,
    call,
    index,
    is_far,
    map_children,
    may_wrap,
    mul,
)


@dataclass(frozen=True, slots=True)
class Linear:
    """`sum(coefficient * atom) + constant`; atoms are distinct and in order of first occurrence."""

    terms: tuple[tuple[Expr, SymExpr], ...]
    constant: SymExpr = ZERO

    def coefficient(self, name: str) -> SymExpr:
        """The coefficient of Var `name`; 0 where it does not occur as an atom."""
        return next((c for a, c in self.terms if isinstance(a, Var) and a.name == name), ZERO)

    def is_affine(self) -> bool:
        """Whether all atoms are Vars with integer coefficients (the constant may be symbolic)."""
        return all(isinstance(a, Var) and c.as_int() is not None for a, c in self.terms)


@dataclass(frozen=True, slots=True)
class Ranges:
    """What bounds an index: the extent of each Var (which runs from 0) and the facts about sizes."""

    extents: Mapping[str, SymExpr]
    env: ShapeEnv


def linear(expr: Expr) -> Linear:
    """The linear form of an index expression."""
    match expr:
        case Const(value=value) if not may_wrap(expr):
            return Linear((), SymExpr.of(int(value)))
        case Size(value=value) if not may_wrap(expr):
            return Linear((), value)
        case Call(fn="add" | "sub" | "neg" | "mul" as fn, args=args):
            found = _combined(fn, tuple(map(linear, args)))
            if found is not None and not any(map(is_far, (found.constant, *(c for _, c in found.terms)))):
                return found
    return Linear(((expr, ONE),))


def _combined(fn: str, parts: tuple[Linear, ...]) -> Linear | None:
    """A function of linear forms, None where it is no such form, or what it is made of may wrap around."""
    if any(may_wrap(atom) for part in parts for atom, _ in part.terms):
        return None
    match fn, parts:
        case "add", (x, y):
            return _sum(x, y, ONE)
        case "sub", (x, y):
            return _sum(x, y, -ONE)
        case "neg", (x,):
            return _sum(Linear(()), x, -ONE)
        case "mul", (x, y) if not x.terms:
            return _scale(y, x.constant)
        case "mul", (x, y) if not y.terms:
            return _scale(x, y.constant)
    return None


def to_expr(form: Linear) -> Expr:
    """The index expression of a linear form: terms in order, the constant last."""
    result: Expr | None = None
    for atom, coefficient in form.terms:
        term = mul(atom, index(coefficient))
        result = term if result is None else add(result, term)
    if result is None:
        return index(form.constant)
    constant = form.constant.as_int()
    if constant is not None and constant < 0:
        return call("sub", result, index(-constant))
    return add(result, index(form.constant))


def simplify(expr: Expr, ranges: Ranges) -> Expr:
    """`expr` with all index arithmetic in it in linear form, and divisions cancelled where the ranges prove it."""
    if isinstance(expr, Call) and expr.fn in _ORDER and expr.args[0].dtype == INDEX:
        return _compared(expr, ranges)
    if expr.dtype == INDEX and not isinstance(expr, Load | Var | Const | Size):
        if isinstance(expr, CheckedIndex):
            return _checked(expr, ranges)
        if isinstance(expr, Call) and expr.fn in _LINEAR:
            return to_expr(simplify_linear(expr, ranges))
    inner = map_children(lambda c: simplify(c, ranges), expr)
    return _settled(inner) if isinstance(inner, Call) else inner


def simplify_linear(expr: Expr, ranges: Ranges) -> Linear:
    """The simplified linear form of an index expression."""
    match expr:
        case Call(fn="floordiv" | "mod" as fn, args=(a, b)):
            divisor = as_size(simplify(b, ranges))
            dividend = simplify_linear(a, ranges)
            wraps = any(may_wrap(atom) for atom, _ in dividend.terms)
            if divisor is not None and divisor != ZERO and not wraps:  # nothing is read of a dim without elements
                return _divide(fn, dividend, divisor, ranges)
            return Linear(((call(fn, to_expr(dividend), simplify(b, ranges)), ONE),))
        case Call(fn="add" | "sub" | "mul" | "neg" as fn, args=args):
            parts = tuple(to_expr(simplify_linear(a, ranges)) for a in args)
            return linear(Call(fn, parts, INDEX))
        case Var() | Const() | Size():
            return linear(expr)
    return linear(simplify(expr, ranges))


def within(form: Linear, extent: SymExpr, ranges: Ranges) -> bool:
    """Whether `0 <= form < extent` is provable."""
    found = interval(form, ranges)
    return found is not None and ranges.env.prove_le(0, found[0]) and ranges.env.prove_lt(found[1], extent)


# -- internals -------------------------------------------------------------------------------------------------

_ORDER = frozenset({"lt", "le", "gt", "ge"})
_LINEAR = frozenset({"add", "sub", "mul", "neg", "floordiv", "mod"})


def _sum(a: Linear, b: Linear, sign: SymExpr) -> Linear:
    coefficients = dict(a.terms)
    for atom, coefficient in b.terms:
        coefficients[atom] = coefficients.get(atom, ZERO) + coefficient * sign
    return Linear(tuple((x, c) for x, c in coefficients.items() if c != ZERO), a.constant + b.constant * sign)


def _scale(form: Linear, by: SymExpr) -> Linear:
    if by == ZERO:
        return Linear(())
    return Linear(tuple((a, c * by) for a, c in form.terms), form.constant * by)


def _extent(atom: Expr, ranges: Ranges) -> SymExpr | None:
    match atom:
        case Var(name=name):
            return ranges.extents.get(name)
        case Call(fn="mod", args=(_, divisor)):
            return as_size(divisor)
        case CheckedIndex(extent=extent):
            return extent
        case Call(fn="floordiv", args=(dividend, divisor)):
            found, by = interval(linear(dividend), ranges), as_size(divisor)
            if found is not None and by is not None and ranges.env.prove_le(0, found[0]) and ranges.env.prove_le(1, by):
                whole = exact_quotient(found[1] + 1, by)
                return found[1] // by + 1 if whole is None else whole
    return None


def _divide(fn: str, form: Linear, divisor: SymExpr, ranges: Ranges) -> Linear:
    """`form // divisor` or `form % divisor`: multiples of the divisor leave the division when the rest is within it."""
    if divisor == ONE:
        return form if fn == "floordiv" else Linear(())
    whole: list[tuple[Expr, SymExpr]] = []
    rest: list[tuple[Expr, SymExpr]] = []
    for atom, coefficient in form.terms:
        (whole if coefficient % divisor == ZERO else rest).append((atom, coefficient))
    constant = _split_constant(form.constant, divisor)
    quotient = Linear(tuple((a, c // divisor) for a, c in whole), constant[0])
    remainder = Linear(tuple(rest), constant[1])
    if within(remainder, divisor, ranges):
        return quotient if fn == "floordiv" else remainder
    inner = Linear(((call(fn, to_expr(remainder), index(divisor)), ONE),))
    return _sum(quotient, inner, ONE) if fn == "floordiv" else inner


def _split_constant(value: SymExpr, divisor: SymExpr) -> tuple[SymExpr, SymExpr]:
    if value % divisor == ZERO or (value.as_int() is not None and divisor.as_int() is not None):
        return value // divisor, value % divisor
    return ZERO, value


def interval(form: Linear, ranges: Ranges) -> tuple[SymExpr, SymExpr] | None:
    """Least and greatest value of a linear form whose atoms all have known extents, else None."""
    low = high = form.constant
    for atom, coefficient in form.terms:
        bound = _extent(atom, ranges)
        if bound is None:
            return None
        if ranges.env.prove_le(0, coefficient):
            high = high + coefficient * (bound - 1)
        elif ranges.env.prove_le(coefficient, 0):
            low = low + coefficient * (bound - 1)
        else:
            return None
    return low, high


def _compared(expr: Call, ranges: Ranges) -> Expr:
    """An order of two indices, decided where their difference's interval decides it."""
    a, b = (simplify(x, ranges) for x in expr.args)
    found = interval(_sum(linear(b), linear(a), -ONE), ranges)  # b - a
    if found is not None:
        low, high = found
        strict = 1 if expr.fn in ("lt", "gt") else 0
        if expr.fn in ("gt", "ge"):
            low, high = -high, -low
        if ranges.env.prove_le(strict, low):
            return Const(True, BOOL)
        if ranges.env.prove_lt(high, strict):
            return Const(False, BOOL)
    return Call(expr.fn, (a, b), BOOL)


def _settled(expr: Call) -> Expr:
    """Choices and logic over decided conditions."""
    match expr:
        case Call(fn="select", args=(Const(value=value), yes, no)):
            return yes if value else no
        case Call(fn="and", args=(Const(value=value), other)) | Call(fn="and", args=(other, Const(value=value))):
            return other if value else Const(False, BOOL)
        case Call(fn="or", args=(Const(value=value), other)) | Call(fn="or", args=(other, Const(value=value))):
            return Const(True, BOOL) if value else other
        case Call(fn="xor", args=(Const(value=value), other)) | Call(fn="xor", args=(other, Const(value=value))):
            return Call("not", (other,), BOOL) if value else other
        case Call(fn="not", args=(Const(value=value),)):
            return Const(not value, BOOL)
    return expr


def _checked(expr: CheckedIndex, ranges: Ranges) -> Expr:
    value = simplify(expr.value, ranges)
    known = as_size(value)
    if known is not None and ranges.env.prove_lt(known, expr.extent) and ranges.env.prove_le(-expr.extent, known):
        if ranges.env.prove_le(0, known):
            return value
        if ranges.env.prove_lt(known, 0):
            return index(known + expr.extent)
    if known is None and within(linear(value), expr.extent, ranges):
        return value
    return CheckedIndex(value, expr.extent, expr.what)

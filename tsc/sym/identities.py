"""Identities of sums, quotients and bounds that hold whatever is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache

from tsc.sym.expr import ZERO, Apply, Monomial, SymExpr, apply, exact_quotient

_LARGEST = 1 << 24  # whose divisors are looked for


def without_remainders(expr: SymExpr) -> SymExpr:
    """`expr` with `x` for `y * (x // y) + x % y`."""
    total, counts = expr, dict(expr.terms)
    for monomial, coefficient in expr.terms:
        match monomial:
            case (Apply(fn="%", args=(x, y)) as rest,):
                whole = apply("//", [x, y])
                if (by := y.as_int()) and whole.terms and counts.get(whole.terms[0][0]) == coefficient * by:
                    total = total + (x - whole * by - SymExpr((((rest,), 1),))) * coefficient
    return total


def with_quotients(expr: SymExpr) -> SymExpr:
    """`expr` with `x - y * (x // y)` for `x % y`, in the arguments of a least or a greatest of some, too."""
    total = expr
    for monomial, coefficient in expr.terms:
        match monomial:
            case (Apply(fn="%", args=(x, y)) as old,):
                new = x - apply("//", [x, y]) * y
            case (Apply(fn="min" | "max" as fn, args=args) as old,):
                new = apply(fn, [with_quotients(a) for a in args])
            case _:
                continue
        total = total + (new - SymExpr((((old,), 1),))) * coefficient
    return total


def multiples(expr: SymExpr, by: SymExpr) -> tuple[SymExpr, SymExpr]:
    """What the terms of `expr` are that the leading term of `by` divides, divided by it, and what is left without as many times
    `by`."""
    leading = SymExpr((max(by.terms, key=lambda t: len(t[0])),))
    quotients = (exact_quotient(SymExpr((t,)), leading) for t in expr.terms) if leading.dims() else ()
    whole = sum((q for q in quotients if q is not None), ZERO)
    return whole, expr - whole * by


def parts_of(by: SymExpr) -> Iterator[SymExpr]:
    """Products of names, at most one of them left out, that divide a product, but for itself: the longest first."""
    if len(by.terms) == 1:
        (monomial, coefficient), = by.terms
        if monomial and coefficient != 1:
            yield SymExpr(((monomial, 1),))
        if len(monomial) > 1:
            yield from dict.fromkeys(SymExpr(((monomial[:k] + monomial[k + 1:], 1),)) for k, _ in enumerate(monomial))


def has_function(term: tuple[Monomial, int]) -> bool:
    """Whether a term of an expression has an opaque function among its factors."""
    return any(isinstance(atom, Apply) for atom in term[0])


def alternatives(expr: SymExpr, fn: str) -> tuple[SymExpr, ...]:
    """The bounds that an extremum stands for: `x < min(a, b) + c` means `x < a + c` and `x < b + c`."""
    for position, (monomial, coefficient) in enumerate(expr.terms):
        if coefficient == 1 and len(monomial) == 1 and isinstance(atom := monomial[0], Apply) and atom.fn == fn:
            rest = SymExpr(expr.terms[:position] + expr.terms[position + 1:])
            return (*(a + rest for a in atom.args), expr)
    return (expr,)


# Numbers that are ints, of any length, or infinities. Python makes a float of an int that meets one, which loses its last
# digits, or fails where it has too many: they are kept apart.

def is_infinite(x: float) -> bool:
    """Whether it is no int."""
    return x in (math.inf, -math.inf)


def quotient(x: float, y: float) -> float:
    """x // y, of ints or infinities, y above 0."""
    if is_infinite(x):
        return x
    return (0 if x >= 0 else -1) if is_infinite(y) else int(x) // int(y)


def product(x: float, y: float) -> float:
    """x * y, of ints or infinities; 0 times an infinity is 0."""
    if isinstance(x, int) and isinstance(y, int):
        return x * y
    if x == 0 or y == 0:
        return 0
    return math.inf if (x > 0) == (y > 0) else -math.inf


def plus(x: float, y: float) -> float:
    """x + y, of ints or infinities that are not opposite."""
    if isinstance(x, int):
        return x + y if isinstance(y, int) else y
    return x


@lru_cache(maxsize=1024)
def divisors(number: int) -> tuple[int, ...]:
    """Those between 1 and a number, the greatest first; none of one too large to try, as a scale's denominator is."""
    small = [n for n in range(2, math.isqrt(number) + 1) if number % n == 0] if number <= _LARGEST else []
    return tuple(sorted({*small, *(number // n for n in small)}, reverse=True))


def undominated(args: list[SymExpr], below: Callable[[SymExpr, SymExpr], bool]) -> list[SymExpr]:
    """The arguments of a minimum (maximum) without those that another is known to be below (above)."""
    kept = list(dict.fromkeys(args))
    for candidate in list(kept):
        others = [a for a in kept if a is not candidate]
        if any(below(o, candidate) for o in others):
            kept = others
    return kept

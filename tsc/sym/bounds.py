"""Bounds of size expressions: interval arithmetic over ranges, and a lower-bound proof that sees what terms share.

Nothing here knows equalities; the ShapeEnv hands in canonical expressions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle

from tsc.sym.expr import ZERO, Apply, Atom, Dim, OversizeError, SymExpr, dim, divided, product


@dataclass(frozen=True, slots=True)
class Range:
    """Sizes a Dim may take: `lo <= size <= hi` (None: unbounded) and `size % divisor == 0`."""

    lo: int = 1
    hi: int | None = None
    divisor: int = 1

    def __str__(self) -> str:
        upper = "" if self.hi is None else f"{self.hi}"
        return f"{self.lo}..{upper}" + (f" by {self.divisor}" if self.divisor > 1 else "")


Interval = tuple[int | None, int | None]
Ranges = Mapping[str, Range]

#: How many min, max and // a proof opens, one inside the other; each may double the work.
_DEPTH = 4


def interval(expr: SymExpr, ranges: Ranges) -> Interval:
    """The interval of `expr` by interval arithmetic, term by term; None on a side that is unbounded."""
    low: int | None = 0
    high: int | None = 0
    for monomial, coefficient in expr.terms:
        part = _atom_interval(monomial[0], ranges) if monomial else (1, 1)
        for atom in monomial[1:]:
            part = _multiply(part, _atom_interval(atom, ranges))
        a, b = part if coefficient > 0 else (part[1], part[0])
        low = None if low is None or a is None else low + a * coefficient
        high = None if high is None or b is None else high + b * coefficient
    return low, high


def never_negative(expr: SymExpr, ranges: Ranges) -> bool:
    """True only if `expr >= 0` for all sizes in range. Sound, not complete."""
    low, high = interval(expr, ranges)
    if low is not None and low >= 0:
        return True
    if high is not None and high < 0:
        return False
    try:
        return _Proof(expr, ranges).holds(expr, _DEPTH)
    except OversizeError:  # what a proof opens may grow beyond what the expression itself is
        return False


def term_divisor(monomial: tuple[Atom, ...], coefficient: int, ranges: Ranges) -> int:
    """A number that divides the term at all sizes in range."""
    total = abs(coefficient)
    for atom in monomial:
        if isinstance(atom, Dim):
            total *= ranges.get(atom.name, _ANY).divisor
    return total


_ANY = Range()
#: How far beyond their least the Dims of a point are, by turns.
_STEPS = ((0,), (1,), (1000,), (0, 1000), (1000, 0))


class _Proof:
    """The search for one proof. What is opened in another order is met again, so each expression is looked at once; and what is
    negative at a point in range is given up before anything is opened."""

    def __init__(self, expr: SymExpr, ranges: Ranges) -> None:
        known = {name: ranges.get(name, _ANY) for name in sorted(expr.dims())}
        self._ranges = ranges
        self._points = [{name: min(old.lo + step * old.divisor, old.lo + step * old.divisor if old.hi is None else old.hi)
                         for (name, old), step in zip(known.items(), cycle(steps))} for steps in _STEPS]
        self._from_zero = {name: Range(0, None if old.hi is None else old.hi - old.lo) for name, old in known.items()}
        self._offsets = {name: dim(name) + old.lo for name, old in known.items()}
        self._moved: dict[Atom, SymExpr] = {}
        self._found: dict[tuple[SymExpr, int], bool] = {}

    def holds(self, expr: SymExpr, depth: int) -> bool:
        found = self._found.get((expr, depth))
        if found is None:
            found = self._found[expr, depth] = self._search(expr, depth)
        return found

    def _search(self, expr: SymExpr, depth: int) -> bool:
        low, high = interval(expr, self._ranges)
        if low is not None and low >= 0:
            return True
        if (high is not None and high < 0) or any(_negative_at(expr, point) for point in self._points):
            return False
        low, _ = interval(self._shifted(expr), self._from_zero)
        if low is not None and low >= 0:
            return True
        return depth > 0 and any(all(self.holds(part, depth - 1) for part in needed) for needed in _openings(expr))

    def _shifted(self, expr: SymExpr) -> SymExpr:
        """`expr` over `size - lo`: every Dim starts at 0, so that terms in the same Dims can cancel (B*L - L is b*l + b)."""
        total = ZERO
        for monomial, c in expr.terms:
            total = total + product(map(self._shifted_atom, monomial)) * c
        return total

    def _shifted_atom(self, atom: Atom) -> SymExpr:
        found = self._moved.get(atom)
        if found is None:
            found = self._moved[atom] = SymExpr((((atom,), 1),)).substitute(self._offsets)
        return found


def _negative_at(expr: SymExpr, point: Mapping[str, int]) -> bool:
    try:
        return expr.evaluate(point) < 0
    except ZeroDivisionError:
        return False


def _openings(expr: SymExpr) -> Iterator[tuple[SymExpr, ...]]:
    """Ways to open one min, max or // that stands alone in a term: all expressions of one way being >= 0 proves `expr >= 0`."""
    for monomial, c in expr.terms:
        if len(monomial) != 1 or not isinstance(monomial[0], Apply):
            continue
        atom = monomial[0]
        rest = expr - SymExpr(((monomial, c),))
        parts = tuple(rest + c * a for a in atom.args)
        if atom.fn in ("max", "min"):
            if (atom.fn == "min") == (c > 0):
                yield parts  # the least of several is at least 0 only if each is
            else:
                yield from ((p,) for p in parts)
        elif atom.fn == "//":
            divisor = atom.args[1].as_int()
            if divisor is not None and divisor > 0:  # a - d + 1 <= d * (a // d) <= a
                yield (divisor * rest + c * (atom.args[0] - (divisor - 1 if c > 0 else 0)),)


def _multiply(x: Interval, y: Interval) -> Interval:
    """All products of two numbers; an open side counts as infinite."""
    (a, b), (c, d) = (((-math.inf if low is None else low), (math.inf if high is None else high)) for low, high in (x, y))
    corners = [p * q if p and q else 0 for p in (a, b) for q in (c, d)]
    low, high = min(corners), max(corners)
    return None if math.isinf(low) else int(low), None if math.isinf(high) else int(high)


def _atom_interval(atom: Atom, ranges: Ranges) -> Interval:
    if isinstance(atom, Dim):
        known = ranges.get(atom.name, _ANY)
        return known.lo, known.hi
    found = _apply_interval(atom, [interval(a, ranges) for a in atom.args])
    if atom.fn in ("//", "%"):  # (q * y + r) // y == q + r // y
        whole, rest = divided(*atom.args)
        if whole.terms:
            again = _apply_interval(atom, [interval(a, ranges) for a in (rest, atom.args[1])])
            found = _both(found, again if atom.fn == "%" else _plus(interval(whole, ranges), again))
    return found


def _plus(x: Interval, y: Interval) -> Interval:
    (a, b), (c, d) = x, y
    return None if a is None or c is None else a + c, None if b is None or d is None else b + d


def _both(x: Interval, y: Interval) -> Interval:
    lows, highs = ([end for end in ends if end is not None] for ends in zip(x, y))
    return max(lows, default=None), min(highs, default=None)


def _apply_interval(atom: Apply, parts: list[Interval]) -> Interval:
    if atom.fn in ("max", "min"):
        lows, highs = [p[0] for p in parts], [p[1] for p in parts]
        if atom.fn == "max":
            return (max((x for x in lows if x is not None), default=None),
                    None if None in highs else max(x for x in highs if x is not None))
        return (None if None in lows else min(x for x in lows if x is not None),
                min((x for x in highs if x is not None), default=None))
    (a_lo, a_hi), (b_lo, b_hi) = parts
    if b_lo is None or b_lo < 1:
        return None, None
    if atom.fn == "%":
        high = None if b_hi is None else b_hi - 1
        if a_lo is not None and a_lo >= 0 and a_hi is not None:
            high = a_hi if high is None else min(high, a_hi)
        return 0, high
    low = None if a_lo is None else a_lo // b_lo if a_lo < 0 else 0 if b_hi is None else a_lo // b_hi
    high = None if a_hi is None else a_hi // b_lo if a_hi >= 0 else -1 if b_hi is None else a_hi // b_hi
    return low, high

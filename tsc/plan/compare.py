"""Which of two sizes is the greater at every shape: proved factor by factor, each question asked once.

A size is a product of what depends on the batch, on the height, on the width: `768*b*(h//4 - 2)*(w//4 - 2)` is compared with
`1024*b*(h//2 - 3)*(w//2 - 3)` by proofs about one Dim each, which all maps of the same two levels share. Of products multiplied
out intervals prove little, and to find nothing takes them long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from fractions import Fraction
from functools import reduce
from math import floor, gcd
from operator import and_

from tsc.sym import ZERO, Dim, Range, ShapeEnv, SymExpr, dim, product
from tsc.sym.expr import Apply, Atom, OversizeError

#: How far from the least a ratio is looked up before it is proved.
_STEPS = (*range(33), 63, 64, 100, 127, 128, 1000, 1001, 4099, 99991)
#: Where that ratio is not proved, as rounding may be lost twice, so many parts of it are tried.
_PARTS = 8


class Comparison:
    """Proofs of `a <= b` between sizes, which are not negative. No fact may be added to `env` meanwhile."""

    def __init__(self, env: ShapeEnv) -> None:
        self._env = env
        self._factors: dict[SymExpr, tuple[int, tuple[SymExpr, ...]]] = {}
        self._ratios: dict[tuple[SymExpr, SymExpr], Fraction] = {}

    def at_most(self, a: SymExpr, b: SymExpr) -> bool:
        """Whether `a <= b` is proved."""
        (x, ours), (y, theirs) = self._split(a), self._split(b)
        ratio = Fraction(y)
        for names in _connected(f.dims() for f in (*ours, *theirs)):
            ratio *= self._ratio(*(product(f for f in side if f.dims() & names) for side in (ours, theirs)))
        return x <= ratio

    def _ratio(self, a: SymExpr, b: SymExpr) -> Fraction:
        """An r for which `r * a <= b` is proved: the least that it is at some sizes, or a part of it; 0 where none is found."""
        a, b = _cancelled(a, b)
        if a == b:
            return Fraction(1)
        if (a, b) not in self._ratios:
            at = [(x, y) for p in self._points(a.dims() | b.dims()) for x, y in _evaluated(a, b, p) if x > 0]
            least = min((Fraction(y, x) for x, y in at), default=Fraction(1))
            tried = {least * part / _PARTS for part in range(1, _PARTS + 1) if at} | {Fraction(floor(least)), Fraction(1)}
            self._ratios[a, b] = next(
                (r for r in sorted(tried, reverse=True) if 0 < r <= least and self._proved(r, a, b)), Fraction(0))
        return self._ratios[a, b]

    def _proved(self, ratio: Fraction, a: SymExpr, b: SymExpr) -> bool:
        try:
            return self._env.prove_le(a * ratio.numerator, b * ratio.denominator)
        except OversizeError:
            return False

    def _points(self, names: frozenset[str]) -> Iterator[dict[str, int]]:
        """Sizes in range: all Dims as far from their least ones, or every second one at it."""
        known = [(name, self._env.ranges.get(name, Range())) for name in sorted(names)]
        for step in _STEPS:
            far = {name: at if r.hi is None or at <= r.hi else r.lo for name, r in known for at in [r.lo + step * r.divisor]}
            yield far
            if len(known) > 1:
                yield from (far | {name: r.lo for name, r in known[start::2]} for start in (0, 1))

    def _split(self, size: SymExpr) -> tuple[int, tuple[SymExpr, ...]]:
        """A coefficient and factors without a Dim in common, none of them negative, whose product is `size`."""
        if size not in self._factors:
            coefficient, factors = separate(size)
            proved = all(self._ratio(ZERO, factor) for factor in factors)
            self._factors[size] = (coefficient, factors) if proved else (1, (size,))
        return self._factors[size]


def separate(expr: SymExpr) -> tuple[int, tuple[SymExpr, ...]]:
    """A coefficient and factors without a Dim in common whose product is `expr`: more than one factor only where it is one."""
    if not expr.terms:
        return 0, ()
    content = gcd(*(c for _, c in expr.terms))
    whole = SymExpr(tuple((monomial, c // content) for monomial, c in expr.terms))
    leading = whole.terms[0][0]
    factors = []
    for names in _connected(_names(atom) for atom in whole.atoms()):
        rest = [atom for atom in leading if not _names(atom) & names]  # of terms unlike the first in these Dims alone
        part = [(tuple(a for a in m if _names(a) & names), c) for m, c in whole.terms
                if [a for a in m if not _names(a) & names] == rest]
        scale = gcd(*(c for _, c in part))
        factors.append(sum((SymExpr(((m, c // scale),)) for m, c in part), ZERO))
    try:
        return content, tuple(factors) if product(factors) == whole else (whole,)
    except OversizeError:
        return content, (whole,)


def _cancelled(a: SymExpr, b: SymExpr) -> tuple[SymExpr, SymExpr]:
    """Both without the Dims that every term of both has as a factor: intervals see nothing through those."""
    monomials = [Counter(monomial) for monomial, _ in (*a.terms, *b.terms)]
    common = reduce(and_, monomials) if monomials else Counter()
    factor = product(dim(atom.name) for atom in common.elements() if isinstance(atom, Dim))
    return a // factor, b // factor


def _evaluated(a: SymExpr, b: SymExpr, point: Mapping[str, int]) -> Iterator[tuple[int, int]]:
    with suppress(ZeroDivisionError):
        yield a.evaluate(point), b.evaluate(point)


def _connected(sets: Iterable[frozenset[str]]) -> list[frozenset[str]]:
    """The unions of all that have an element in common."""
    made: list[frozenset[str]] = []
    for names in sets:
        joined = [other for other in made if other & names]
        made = [other for other in made if not other & names] + [names.union(*joined)]
    return made


def _names(atom: Atom) -> frozenset[str]:
    return atom.names if isinstance(atom, Apply) else frozenset({atom.name})

"""ShapeEnv: what is known about Dims. `prove_*` never adds a fact; `assume_*` always leaves a Guard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tsc.errors import ShapeError
from tsc.sym.expr import Apply, Atom, Dim, IntLike, SymExpr, apply


@dataclass(frozen=True, slots=True)
class Range:
    """Sizes a Dim may take: `lo <= size <= hi` (None: unbounded) and `size % divisor == 0`."""

    lo: int = 1
    hi: int | None = None
    divisor: int = 1

    def __str__(self) -> str:
        upper = "" if self.hi is None else f"{self.hi}"
        return f"{self.lo}..{upper}" + (f" by {self.divisor}" if self.divisor > 1 else "")


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition checked once per run before anything is launched: `left relation right`, with its reason."""

    relation: str  # "==" or "<="
    left: SymExpr
    right: SymExpr
    reason: str

    def holds(self, env: Mapping[str, int]) -> bool:
        """Whether the condition holds for the sizes `env` (Dim name -> size)."""
        a, b = self.left.evaluate(env), self.right.evaluate(env)
        return a == b if self.relation == "==" else a <= b

    def __str__(self) -> str:
        return f"{self.left} {self.relation} {self.right}"


@dataclass(slots=True)
class ShapeEnv:
    """The facts about Dims: ranges, divisors, equalities (union-find), and the Guards that assumptions left.

    `equal` maps a Dim's name to the expression that replaces it; apply `canon` before comparing or storing.
    """

    ranges: dict[str, Range] = field(default_factory=dict)
    equal: dict[str, SymExpr] = field(default_factory=dict)
    guards: list[Guard] = field(default_factory=list)
    fresh_count: int = 0

    # -- declaring ---------------------------------------------------------------------------------------------

    def declare(self, name: str, lo: int = 1, hi: int | None = None, divisor: int = 1) -> SymExpr:
        """Declare a Dim (or narrow a declared one) and return it. Raises ShapeError when the range is empty."""
        old = self.ranges.get(name, Range())
        if name in self.ranges:
            lo, divisor = max(lo, old.lo), max(divisor, old.divisor)
            hi = old.hi if hi is None else hi if old.hi is None else min(hi, old.hi)
        if hi is not None and lo > hi:
            raise ShapeError(f"dim '{name}' has no size left between {lo} and {hi}; widen its range")
        self.ranges[name] = Range(lo, hi, divisor)
        return SymExpr((((Dim(name),), 1),))

    def fresh(self, hint: str, lo: int = 0, hi: int | None = None) -> SymExpr:
        """A new Dim with a name not yet used, made from `hint`."""
        name = hint
        while name in self.ranges:
            self.fresh_count += 1
            name = f"{hint}_{self.fresh_count}"
        return self.declare(name, lo, hi)

    # -- reading -----------------------------------------------------------------------------------------------

    def canon(self, expr: IntLike) -> SymExpr:
        """`expr` with every Dim replaced by its representative, to a fixpoint."""
        result = SymExpr.of(expr)
        while self.equal and result.dims() & self.equal.keys():
            result = result.substitute(self.equal)
        return result

    def bounds(self, expr: IntLike) -> tuple[int | None, int | None]:
        """Interval of `expr` by interval arithmetic; None on a side that is unbounded."""
        return _bounds(self.canon(expr), self.ranges)

    def prove_eq(self, a: IntLike, b: IntLike) -> bool:
        """True only if `a == b` for all sizes in range."""
        return self.bounds(self.canon(a) - self.canon(b)) == (0, 0)

    def prove_le(self, a: IntLike, b: IntLike) -> bool:
        """True only if `a <= b` for all sizes in range."""
        low, _ = self.bounds(self.canon(b) - self.canon(a))
        return low is not None and low >= 0

    def prove_lt(self, a: IntLike, b: IntLike) -> bool:
        """True only if `a < b` for all sizes in range."""
        return self.prove_le(SymExpr.of(a) + 1, b)

    def prove_ne(self, a: IntLike, b: IntLike) -> bool:
        """True only if `a != b` for all sizes in range."""
        return self.prove_lt(a, b) or self.prove_lt(b, a)

    def prove_divides(self, divisor: int, expr: IntLike) -> bool:
        """True only if `divisor` divides every value of `expr`."""
        return all(self._term_divisor(m, c) % divisor == 0 for m, c in self.canon(expr).terms)

    # -- assuming ----------------------------------------------------------------------------------------------

    def assume_eq(self, a: IntLike, b: IntLike, reason: str) -> None:
        """Make `a == b` a fact and leave a Guard; two Dims become one. Raises ShapeError if it can never hold."""
        left, right = self.canon(a), self.canon(b)
        if left == right or self.prove_eq(left, right):
            return
        if self.prove_ne(left, right):
            raise ShapeError(f"{reason}: {left} can never equal {right}")
        self._guard("==", SymExpr.of(a), SymExpr.of(b), reason)
        for source, target in ((right, left), (left, right)):
            name = source.as_dim()
            if name is not None and name.name not in target.dims():
                self._replace(name.name, target, reason)
                return

    def assume_le(self, a: IntLike, b: IntLike, reason: str) -> None:
        """Make `a <= b` a fact by leaving a Guard. Raises ShapeError if it can never hold."""
        left, right = self.canon(a), self.canon(b)
        if self.prove_le(left, right):
            return
        if self.prove_lt(right, left):
            raise ShapeError(f"{reason}: {left} can never be at most {right}")
        self._guard("<=", SymExpr.of(a), SymExpr.of(b), reason)
        name, limit = left.as_dim(), right.as_int()
        if name is not None and limit is not None:
            old = self.ranges.get(name.name, Range())
            self.ranges[name.name] = Range(old.lo, limit if old.hi is None else min(old.hi, limit), old.divisor)

    def _guard(self, relation: str, left: SymExpr, right: SymExpr, reason: str) -> None:
        guard = Guard(relation, left, right, reason)
        if guard not in self.guards:  # inference visits a node more than once
            self.guards.append(guard)

    def _replace(self, name: str, target: SymExpr, reason: str) -> None:
        old = self.ranges.get(name, Range())
        other = target.as_dim()
        if other is not None:
            self.declare(other.name, old.lo, old.hi, old.divisor)
        value = target.as_int()
        if value is not None and not (old.lo <= value and (old.hi is None or value <= old.hi)):
            raise ShapeError(f"{reason}: dim '{name}' is {value} here, outside its range {old}")
        self.equal[name] = target

    def _term_divisor(self, monomial: tuple[Atom, ...], coefficient: int) -> int:
        total = abs(coefficient)
        for atom in monomial:
            if isinstance(atom, Dim):
                total *= self.ranges.get(atom.name, Range()).divisor
        return total


# -- interval arithmetic ---------------------------------------------------------------------------------------

_Interval = tuple[int | None, int | None]


def _bounds(expr: SymExpr, ranges: Mapping[str, Range]) -> _Interval:
    low: int | None = 0
    high: int | None = 0
    for monomial, coefficient in expr.terms:
        interval: _Interval = (1, 1)
        for atom in monomial:
            interval = _multiply(interval, _atom_bounds(atom, ranges))
        a, b = interval if coefficient > 0 else (interval[1], interval[0])
        low = None if low is None or a is None else low + a * coefficient
        high = None if high is None or b is None else high + b * coefficient
    return low, high


def _multiply(x: _Interval, y: _Interval) -> _Interval:
    if x[0] is not None and y[0] is not None and x[0] >= 0 and y[0] >= 0:
        return x[0] * y[0], None if x[1] is None or y[1] is None else x[1] * y[1]
    if None in x or None in y:
        return None, None
    corners = [a * b for a in x for b in y if a is not None and b is not None]
    return min(corners), max(corners)


def _atom_bounds(atom: Atom, ranges: Mapping[str, Range]) -> _Interval:
    if isinstance(atom, Dim):
        known = ranges.get(atom.name, Range())
        return known.lo, known.hi
    parts = [_bounds(a, ranges) for a in atom.args]
    return _apply_bounds(atom, parts)


def _apply_bounds(atom: Apply, parts: list[_Interval]) -> _Interval:
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
        return 0, None if b_hi is None else b_hi - 1
    low = None if a_lo is None else a_lo // b_lo if a_lo < 0 else 0 if b_hi is None else a_lo // b_hi
    high = None if a_hi is None else a_hi // b_lo if a_hi >= 0 else -1 if b_hi is None else a_hi // b_hi
    return low, high


__all__ = ["Guard", "Range", "ShapeEnv", "apply"]

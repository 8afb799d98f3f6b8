"""Facts: what is known of names, and what that proves of expressions. The one prover of sizes and of loops.

A name is a size, or a variable that is bound between sizes and the variables around it (opaque parts of an index are names of
which nothing is known). Bounds are proved by interval arithmetic, by opening functions, and by eliminating variables from the
innermost outwards; what is negative at some point in scope is given up before anything is opened. Sound, not complete: what
these leave open isl may decide (`poly/proof/presburger.py`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import filterfalse

from tsc.sym import identities
from tsc.sym.expr import (
    ZERO,
    Apply,
    Atom,
    Dim,
    OversizeError,
    SymExpr,
    apply,
    coefficient_of,
    dim,
    divided,
    exact_quotient,
    names_of,
    sym_max,
    sym_min,
)
from tsc.sym.identities import alternatives, is_infinite, multiples, parts_of, plus, product, quotient, without_remainders
from tsc.sym.witness import Point, extended, is_negative

#: How deep a proof may be, and how many expressions it may look at: proofs that are found take less than ten.
_DEPTH, _STEPS = 12, 100
#: A variable with so few values is looked at one by one, where functions of it are left; so many cases in all.
_FEW, _CASES = 6, 24


@dataclass(frozen=True, slots=True)
class Range:
    """Sizes a Dim may take: `lo <= size <= hi` (None: unbounded) and `size % divisor == 0`."""

    lo: int = 1
    hi: int | None = None
    divisor: int = 1

    def __str__(self) -> str:
        upper = "" if self.hi is None else f"{self.hi}"
        return f"{self.lo}..{upper}" + (f" by {self.divisor}" if self.divisor > 1 else "")


#: The least and the greatest value; None on a side that is unbounded.
Interval = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of one integer: `lows <= it <= highs` for every alternative, and `divisor` divides it."""

    lows: tuple[SymExpr, ...]
    highs: tuple[SymExpr, ...]
    divisor: int
    depth: int


@dataclass(frozen=True, slots=True)
class Facts:
    """The sizes and variables in scope. Replaced, never mutated."""

    known: Mapping[str, Known] = field(default_factory=dict)
    sizes: frozenset[str] = frozenset()
    _outer: Facts | None = field(default=None, repr=False, compare=False)  # those without the last name
    # what was found out under these facts
    _inner: dict[Hashable, Facts] = field(default_factory=dict, init=False, repr=False, compare=False)
    _reduced: dict[SymExpr, SymExpr] = field(default_factory=dict, init=False, repr=False, compare=False)
    _tried: dict[SymExpr, int] = field(default_factory=dict, init=False, repr=False, compare=False)  # -1: proved
    _bounds: dict[Atom, tuple[float, float]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _points: list[tuple[Point, ...]] = field(default_factory=list, init=False, repr=False, compare=False)

    @staticmethod
    def of(sizes: Mapping[str, Range]) -> Facts:
        """What is known outside of all loops."""
        return Facts({name: Known((SymExpr.of(r.lo),), () if r.hi is None else (SymExpr.of(r.hi),), r.divisor, 0)
                      for name, r in sizes.items()}, frozenset(sizes))

    # -- scopes ------------------------------------------------------------------------------------------------

    def bind(self, name: str, known: Known) -> Facts:
        """These facts with `name` in scope."""
        if name in self.known:  # a name within its own scope
            return Facts({**{n: k for n, k in self.known.items() if n != name}, name: known}, self.sizes)
        return Facts({**self.known, name: known}, self.sizes, self)

    def derived(self, key: Hashable, make: Callable[[], Facts]) -> Facts:
        """The facts that follow from these and `key`, made once: with them is kept all that is found out under them."""
        found = self._inner.get(key)
        if found is None:
            found = self._inner[key] = make()
        return found

    def opaque(self, name: str) -> Facts:
        """With a variable of which nothing is known."""
        return self.bind(name, Known((), (), 1, self._next_depth()))

    def let(self, name: str, value: SymExpr) -> Facts:
        """With a variable that is `value`."""
        return self.bind(name, Known((value,), (value,), self.divisor(value), self._next_depth()))

    def loop(self, name: str, lo: SymExpr, hi: SymExpr, step: int) -> Facts:
        """With a variable that counts from `lo` to below `hi` by `step`."""
        divisor = math.gcd(step, self.divisor(lo))
        # below a bound that shares its divisor, or is whole steps from where it begins, a variable stays that far below it
        highs = tuple(h - max(math.gcd(divisor, self.divisor(h)), 1, self._step(step, self._value(h) - lo))
                      for h in alternatives(hi, "min"))
        lo_value, hi_value = lo.as_int(), hi.as_int()
        if lo_value is not None and hi_value is not None and hi_value > lo_value:
            highs = (SymExpr.of(lo_value + (hi_value - 1 - lo_value) // step * step),)
        return self.bind(name, Known(alternatives(lo, "max"), highs, divisor, self._next_depth()))

    def _next_depth(self) -> int:
        return 1 + max((k.depth for k in self.known.values()), default=0)

    def _value(self, expr: SymExpr) -> SymExpr:
        """`expr` with the variables that Lets bind written out."""
        exact = {n: known.lows[0] for n in expr.dims() if (known := self.known.get(n)) and known.lows == known.highs != ()}
        try:
            return expr if not exact else self._value(expr.substitute(exact))
        except OversizeError:  # no proof would come of it
            return expr

    def _step(self, step: int, distance: SymExpr) -> int:
        return step if self.divisor(distance) % step == 0 else 0

    # -- divisors ----------------------------------------------------------------------------------------------

    def divisor(self, expr: SymExpr) -> int:
        """A number that divides every value of `expr` (0 for the constant 0)."""
        return math.gcd(*(coefficient * math.prod(map(self._atom_divisor, monomial)) for monomial, coefficient in expr.terms))

    def whole_part(self, expr: SymExpr, by: int) -> tuple[SymExpr, SymExpr]:
        """The terms of `expr` that `by` divides, and the rest."""
        whole = SymExpr(tuple(t for t in expr.terms if self.divisor(SymExpr((t,))) % by == 0))
        return whole, expr - whole

    def _atom_divisor(self, atom: Atom) -> int:
        if isinstance(atom, Dim):
            known = self.known.get(atom)
            return 1 if known is None else known.divisor or 1
        if atom.fn in ("min", "max"):
            return math.gcd(*(self.divisor(a) for a in atom.args)) or 1
        if atom.fn == "//" and (by := atom.args[1].as_int()):
            whole = self.divisor(atom.args[0])
            return whole // by if whole % by == 0 and whole else 1
        return 1

    # -- bounds ------------------------------------------------------------------------------------------------

    def bounds(self, expr: SymExpr) -> Interval:
        """The interval of `expr` by interval arithmetic, term by term."""
        low, high = self._low(expr), -self._low(-expr)
        return None if is_infinite(low) else int(low), None if is_infinite(high) else int(high)

    def _low(self, expr: SymExpr) -> float:
        """A lower bound from constants alone: sizes and variables with constant bounds. An int, or minus infinity."""
        total: float = 0
        for monomial, coefficient in expr.terms:
            ends: tuple[float, float] = self._interval(monomial[0]) if monomial else (1, 1)
            for atom in monomial[1:]:
                corners = [product(x, y) for x in ends for y in self._interval(atom)]
                ends = min(corners), max(corners)
            total = plus(total, product(coefficient, ends[coefficient < 0]))
        return total

    def _interval(self, atom: Atom) -> tuple[float, float]:
        found = self._bounds.get(atom)
        if found is None:
            found = self._bounds[atom] = self._dim_interval(atom) if isinstance(atom, Dim) else self._apply_interval(atom)
        return found

    def _dim_interval(self, name: str) -> tuple[float, float]:
        known = self.known.get(name)
        if known is None:
            return -math.inf, math.inf
        lows = [v for v in (e.as_int() for e in known.lows) if v is not None]
        highs = [v for v in (e.as_int() for e in known.highs) if v is not None]
        if not lows and any(self._low(e) >= 0 for e in known.lows if not e.dims() - self.sizes):
            lows = [0]
        return max(lows, default=-math.inf), min(highs, default=math.inf)

    def _apply_interval(self, atom: Apply) -> tuple[float, float]:
        low, high = self._ends(atom.fn, *atom.args)
        if atom.fn in ("//", "%"):  # (q * y + r) // y == q + r // y
            whole, rest = divided(*atom.args)
            if whole.terms and self._low(atom.args[1]) >= 1:
                least, most = self._ends(atom.fn, rest, atom.args[1])
                if atom.fn == "//":
                    least, most = plus(least, self._low(whole)), plus(most, -self._low(-whole))
                low, high = max(low, least), min(high, most)
        return low, high

    def _ends(self, fn: str, *args: SymExpr) -> tuple[float, float]:
        """The interval of a function."""
        lows, highs = [self._low(a) for a in args], [-self._low(-a) for a in args]
        match fn:
            case "min":
                return min(lows), min(highs)
            case "max":
                return max(lows), max(highs)
            case "%" if lows[1] >= 1:
                return 0, min(highs[1] - 1, highs[0]) if lows[0] >= 0 else highs[1] - 1
            case "//" if lows[1] >= 1:
                (low, high), (least, most) = (lows[0], highs[0]), (lows[1], highs[1])
                return quotient(low, most if low >= 0 else least), quotient(high, least if high >= 0 else most)
        return -math.inf, math.inf

    def _low_from_least(self, expr: SymExpr) -> float:
        """A lower bound of `expr` over how far sizes are beyond their least, so that terms in the same ones can cancel: B*L - L
        is b*l + b, at least 0."""
        counts = Counter(name for monomial, _ in expr.terms for name in names_of(monomial) & self.sizes)
        if max(counts.values(), default=0) < 2:
            return -math.inf
        least = {name: int(low) for name in counts if (low := self._dim_interval(name)[0]) and not is_infinite(low)}
        if not least:  # it would be the bound that there is
            return -math.inf
        offsets = {name: dim(name) + low for name, low in least.items()}

        def beyond() -> Facts:
            return self._where(offsets, {name: Known((ZERO,), tuple(h - low for h in self.known[name].highs), 1, 0)
                                         for name, low in least.items()})

        return self.derived(frozenset(least), beyond)._low(expr.substitute(offsets))

    # -- proofs ------------------------------------------------------------------------------------------------

    def nonneg(self, expr: SymExpr) -> bool:
        """True only if `expr >= 0` for all values in scope."""
        return self._nonneg(expr, _DEPTH, [_STEPS]) or self._nonneg_by_cases(expr, _CASES)

    def nonneg_where(self, expr: SymExpr, margins: Sequence[SymExpr]) -> bool:
        """Whether `expr >= 0` is proved wherever all `margins` are at least 0, by cases in which they are numbers."""
        return self._nonneg_by_cases(expr, _CASES, margins)

    def _nonneg_by_cases(self, expr: SymExpr, most: int, margins: Sequence[SymExpr] = ()) -> bool:
        """Whether `expr >= 0`, by the values of variables that have few of them and that functions in `expr`, or in what bounds
        its variables, depend on; of `most` cases, those left out in which one of `margins` is negative."""
        if not margins and is_negative(expr, self._witnesses()):
            return False
        for name in self._divided(expr):
            values = self._values(name)
            if 1 < len(values) <= min(_FEW, most):
                return all(self._nonneg_at(expr, name, value, most // len(values), margins) for value in values)
        return False

    def _nonneg_at(self, expr: SymExpr, name: str, value: int, most: int, margins: Sequence[SymExpr]) -> bool:
        try:
            inner = self._at(name, value)
            expr, *margins = (e.substitute({name: SymExpr.of(value)}) for e in (expr, *margins))
        except (ZeroDivisionError, OversizeError):  # where a divisor is 0 nothing is known
            return False
        if inner.is_void() or any((m.as_int() or 0) < 0 for m in margins):
            return True
        return inner._nonneg(expr, _DEPTH, [_STEPS]) or inner._nonneg_by_cases(expr, most, margins)

    def _divided(self, expr: SymExpr) -> list[str]:
        """The variables that functions in `expr`, or in the bounds of its variables, depend on, the outermost first."""
        found, seen, todo = set[str](), set[str](), [expr]
        while todo:
            one = todo.pop()
            found |= {n for a in one.atoms() if isinstance(a, Apply) for n in a.names}
            for name in one.dims() - seen - self.sizes:
                seen.add(name)
                todo += (*self.known[name].lows, *self.known[name].highs) if name in self.known else ()
        return sorted(found & self.known.keys(), key=lambda n: (self.known[n].depth, n))

    def _at(self, name: str, value: int) -> Facts:
        """These facts where a variable has one value."""
        def fixed() -> Facts:
            one = SymExpr.of(value)
            return self._where({name: one}, {name: Known((one,), (one,), value, self.known[name].depth)})

        return self.derived((name, value), fixed)

    def _where(self, mapping: Mapping[str, SymExpr], known: Mapping[str, Known]) -> Facts:
        """These facts with names replaced in all bounds, and with what is known of them then."""
        def at(bounds: tuple[SymExpr, ...]) -> tuple[SymExpr, ...]:
            return tuple(b.substitute(mapping) for b in bounds)

        moved = {n: Known(at(k.lows), at(k.highs), k.divisor, k.depth) for n, k in self.known.items()}
        return Facts({**moved, **known}, self.sizes)

    def is_void(self) -> bool:
        """Whether some variable has no values: nothing is executed here."""
        return any(low.as_int() is not None and high.as_int() is not None and (low.as_int() or 0) > (high.as_int() or 0)
                   for known in self.known.values() for low in known.lows for high in known.highs)

    def _values(self, name: str) -> range:
        """Numbers that hold all values of a variable with constant bounds and few of them; none of another."""
        known = self.known.get(name)
        if known is None:
            return range(0)
        lows, highs = ([n for end in ends if (n := end.as_int()) is not None] for ends in (known.lows, known.highs))
        step = max(known.divisor, 1)
        if not lows or not highs:
            return range(0)
        first, last = -(-max(lows) // step) * step, min(highs)
        return range(first, last + 1, step) if last - first < _FEW * step else range(0)

    def le(self, a: SymExpr, b: SymExpr) -> bool:
        """True only if `a <= b` for all values in scope."""
        return self.nonneg(b - a)

    def lt(self, a: SymExpr, b: SymExpr) -> bool:
        """True only if `a < b` for all values in scope."""
        return self.nonneg(b - a - 1)

    def _nonneg(self, expr: SymExpr, depth: int, left: list[int]) -> bool:
        """A search `depth` deep; `left` is how many expressions it may still look at. What was tried before is not tried again:
        without that, exponentially many paths lead to the same few expressions."""
        tried = self._tried.get(expr)
        if tried is not None and (tried < 0 or tried >= depth):
            return tried < 0
        self._tried[expr] = depth  # on a path back to itself it proves nothing
        left[0] -= 1
        proved = self._low(expr) >= 0
        if not proved and is_negative(expr, self._witnesses()):
            self._tried[expr] = _DEPTH
            return False
        try:
            proved = proved or self._low_from_least(expr) >= 0 or (depth > 0 and left[0] > 0 and any(
                all(self._nonneg(e, depth - 1, left) for e in group) for group in self._weaker(expr)))
        except OversizeError:  # what a proof opens may grow beyond what the expression itself is
            return False
        if proved:
            self._tried[expr] = -1
        return proved

    def _witnesses(self) -> tuple[Point, ...]:
        """A few points in scope, where every fact holds."""
        if not self._points:
            outer, new = (self._outer._witnesses(), [*self.known][-1:]) if self._outer else ((Point(),), [*self.known])
            for name in new:
                outer = extended(outer, name, self.known[name].lows, self.known[name].highs)
            self._points.append(outer)
        return self._points[0]

    def _weaker(self, expr: SymExpr) -> Iterator[list[SymExpr]]:
        """Ways to prove `expr >= 0`: each a list of expressions that would all have to be non-negative."""
        for position, (monomial, coefficient) in enumerate(expr.terms):
            for number, atom in enumerate(monomial):
                if isinstance(atom, Apply):
                    rest = SymExpr(expr.terms[:position] + expr.terms[position + 1:])
                    if len(monomial) == 1:
                        yield from self._apply_bounds(atom, coefficient, rest)
                    elif atom.fn == "//" and SymExpr(((monomial[:number] + monomial[number + 1:], 1),)) == atom.args[1] and (
                            self._low(atom.args[1]) >= 1):  # y * (x // y) is at most x, and more than x - y
                        yield [(atom.args[0] if coefficient < 0 else atom.args[0] - atom.args[1] + 1) * coefficient + rest]
        variables = sorted((n for n in expr.dims() - self.sizes if n in self.known), key=lambda n: -self.known[n].depth)
        for name in variables[:2]:
            factor = coefficient_of(expr, name)
            if factor is None:
                continue
            rest = expr - factor * dim(name)
            if self._low(factor) >= 0:
                yield from ([factor * low + rest] for low in self.known[name].lows)
            elif self._low(-factor) >= 0:
                yield from ([factor * high + rest] for high in self.known[name].highs)

    def _apply_bounds(self, atom: Apply, coefficient: int, rest: SymExpr) -> Iterator[list[SymExpr]]:
        positive = coefficient > 0
        match atom.fn:
            case "min" | "max":
                options = [a * coefficient + rest for a in atom.args]
                yield from [options] if (atom.fn == "min") == positive else [[o] for o in options]
            case "//" if (by := atom.args[1].as_int()) and by > 0:  # x - by + 1 <= by * (x // by) <= x
                numerator = atom.args[0] if coefficient < 0 else atom.args[0] - (by - 1)
                common = math.gcd(coefficient, by)
                yield [numerator * (coefficient // common) + rest * (by // common)]
            case "%" if self._low(atom.args[1]) >= 1:
                yield [rest if positive else (atom.args[1] - 1) * coefficient + rest]

    # -- simplification ----------------------------------------------------------------------------------------

    def reduce(self, expr: SymExpr) -> SymExpr:
        """`expr` with the functions that the facts decide removed."""
        if not any(isinstance(a, Apply) for a in expr.atoms()):
            return expr
        found = self._reduced.get(expr)
        if found is None:
            found = self._reduced[expr] = self._reduce(expr)
        return found

    def _reduce(self, expr: SymExpr) -> SymExpr:
        total = SymExpr(tuple(filterfalse(identities.has_function, expr.terms)))
        for monomial, coefficient in filter(identities.has_function, expr.terms):
            factor = SymExpr.of(coefficient)
            for atom in monomial:
                factor = factor * (self._reduce_apply(atom) if isinstance(atom, Apply) else dim(atom))
            total = total + factor
        return without_remainders(self._undo_divisions(total))

    def _reduce_apply(self, atom: Apply) -> SymExpr:
        args = [self.reduce(a) for a in atom.args]
        match atom.fn:
            case "min":
                return sym_min(*identities.undominated(args, self.le))
            case "max":
                return sym_max(*identities.undominated(args, lambda a, b: self.le(b, a)))
            case "//" | "%":
                by = args[1].as_int()
                if by is not None and by > 0:
                    return self._divide(atom.fn, args[0], by)
                whole, rest = multiples(args[0], args[1]) if self._low(args[1]) >= 1 else (ZERO, args[0])
                for shift in (0, 1):  # the rest is 0 to the divisor, or begins one divisor below
                    above = rest + args[1] * shift
                    if self.nonneg(above) and self.lt(above, args[1]):
                        return whole - shift if atom.fn == "//" else above
                found = self._by_parts(atom.fn, args[0], args[1])
                if found is not None:
                    return found
                if whole != ZERO and len(args[1].terms) == 1:
                    return apply(atom.fn, [rest, args[1]]) + (whole if atom.fn == "//" else ZERO)
        return apply(atom.fn, args)

    def _by_parts(self, fn: str, value: SymExpr, by: SymExpr) -> SymExpr | None:
        """`(s * a + r) // (s * b)`, which is `a // b` where r is 0 to s, and the remainder, `a % b * s + r`; None where no such
        part s of the divisor is found."""
        for part in parts_of(by):
            other = exact_quotient(by, part)
            whole, rest = multiples(value, part)
            if other is None or whole == ZERO or self._low(part) < 1 or self._low(other) < 1:
                continue
            for shift in (0, 1):
                inner = rest + part * shift
                if self.nonneg(inner) and self.lt(inner, part):
                    found = self.reduce(apply(fn, [whole - shift, other]))
                    return found if fn == "//" else found * part + inner
        return None

    def _divide(self, fn: str, value: SymExpr, by: int) -> SymExpr:
        """What the divisor divides leaves a quotient as a quotient of its own, a remainder altogether: so that quotient and
        remainder of one value divide the same rest."""
        match value.terms:
            case (((Apply(fn="%", args=(x, span)),), 1),) if fn == "//" and (most := span.as_int()) and most % by == 0:
                return self._divide("%", self._divide("//", x, by), most // by)
        whole, rest = self.whole_part(value, by)
        divisor = SymExpr.of(by)
        within = self.nonneg(rest) and self.lt(rest, divisor)
        if fn == "%":
            return rest if within else self._remainder(rest, by)
        quotient = apply(fn, [whole, divisor])
        return quotient if within else quotient + self._quotient(rest, by)

    def _quotient(self, value: SymExpr, by: int) -> SymExpr:
        """`value // by`, by a step first where variables go with its remainder: x // (p * q) is x // p // q."""
        if (found := self._in_steps(value, by)) is not None:
            whole, _, step = found
            return self._divide("//", self._undo_divisions(apply("//", [whole, SymExpr.of(step)])), by // step)
        return self._applied("//", value, SymExpr.of(by))

    def _remainder(self, value: SymExpr, by: int) -> SymExpr:
        """`value % by`, of its part in whole steps that divide the divisor where the rest stays within one of them."""
        if (found := self._in_steps(value, by)) is not None:
            whole, rest, _ = found
            return self._applied("%", whole, SymExpr.of(by)) + rest
        return self._applied("%", value, SymExpr.of(by))

    def _in_steps(self, value: SymExpr, by: int) -> tuple[SymExpr, SymExpr, int] | None:
        """`value` as whole steps and a rest with variables within one, and the step: the greatest divisor that serves."""
        for step in identities.divisors(by):
            whole, rest = self.whole_part(value, step)
            if whole.terms and rest.dims() and self.nonneg(rest) and self.lt(rest, SymExpr.of(step)):
                return whole, rest, step
        return None

    def _applied(self, fn: str, value: SymExpr, by: SymExpr) -> SymExpr:
        """The function, and where its own identities have made something else of it, that reduced."""
        made = apply(fn, [value, by])
        alone = next(made.atoms(), None)
        return made if isinstance(alone, Apply) and alone.args == (value, by) else self.reduce(made)

    def _undo_divisions(self, expr: SymExpr) -> SymExpr:
        """`c*d * (x // d)` is `c * x` where d divides x."""
        total = SymExpr.of(0)
        for monomial, coefficient in expr.terms:
            term, factor = SymExpr.of(1), coefficient
            for atom in monomial:
                by = atom.args[1].as_int() if isinstance(atom, Apply) and atom.fn == "//" else None
                if by and isinstance(atom, Apply) and factor % by == 0 and self.divisor(atom.args[0]) % by == 0:
                    factor, term = factor // by, term * atom.args[0]
                else:
                    term = term * SymExpr((((atom,), 1),))
            total = total + term * factor
        return total

"""ShapeEnv: what is known about Dims. `prove_*` never adds a fact; `assume_*` always leaves a Guard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd, lcm

from tsc.errors import ShapeError
from tsc.sym.affine import is_linear
from tsc.sym.expr import ZERO, Apply, Atom, Dim, IntLike, SymExpr, apply, dim, sym_max, sym_min
from tsc.sym.facts import Facts, Interval, Range
from tsc.sym.names import identifier

#: No size is larger: no process has more address space.
GREATEST = 1 << 47


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition that a run checks as soon as its Dims are bound: `left relation right`, with its reason."""

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


@dataclass(frozen=True, slots=True)
class Outside:
    """What a fork of a ShapeEnv began with: its Dims, how many Guards, which Dims were computed, and which were replaced."""

    names: frozenset[str]
    guards: int
    defined: frozenset[str]
    equal: frozenset[str]


@dataclass(slots=True)
class ShapeEnv:
    """The facts about Dims: ranges, divisors, equalities (union-find), and the Guards that assumptions left.

    `equal` maps a Dim's name to the expression that replaces it; apply `canon` before comparing or storing. `asked` names
    the Dims that the user declared: no assumption may turn one into a constant. `defined` are Dims that a run computes from
    others, `counted` those that it reads from what a kernel makes, with the most that each can be, and `counts` their names by
    the values that have so many. `version` grows with every fact. What holds in one region of a plan alone is in a `fork`;
    no name is `taken` twice in all of them, and what was there when it was made is `outside` (None: it is no fork).
    """

    ranges: dict[str, Range] = field(default_factory=dict)
    equal: dict[str, SymExpr] = field(default_factory=dict)
    guards: list[Guard] = field(default_factory=list)
    fresh_count: int = 0
    asked: set[str] = field(default_factory=set)
    defined: dict[str, SymExpr] = field(default_factory=dict)
    counted: dict[str, SymExpr] = field(default_factory=dict)
    counts: dict[tuple[str, int], str] = field(default_factory=dict)
    version: int = 0
    taken: set[str] = field(default_factory=set)
    outside: Outside | None = None
    _canon: dict[SymExpr, SymExpr] = field(default_factory=dict, repr=False)
    _known: Sequence[SymExpr] | None = field(default=None, repr=False)
    _facts: dict[frozenset[str], Facts] = field(default_factory=dict, repr=False)

    # -- declaring ---------------------------------------------------------------------------------------------

    def declare(self, name: str, lo: int = 1, hi: int | None = None, divisor: int = 1, *, asked: bool = False) -> SymExpr:
        """Declare a Dim (or narrow a declared one; the user may lower `lo`) and return it.

        Raises ShapeError when no size is left.
        """
        old = self.ranges.get(name)
        if old is not None:
            lo = lo if asked else max(lo, old.lo)
            divisor = lcm(divisor, old.divisor)
            hi = old.hi if hi is None else hi if old.hi is None else min(hi, old.hi)
        least, most = lo, GREATEST if hi is None else min(hi, GREATEST)
        lo, hi = -(-lo // divisor) * divisor, None if hi is None else most // divisor * divisor
        if lo > (most if hi is None else hi):
            only = "" if divisor == 1 else f" that is a multiple of {divisor}"
            raise ShapeError(f"dim '{name}' has no size left between {least} and {most}{only}; widen its range")
        if asked:
            self.asked.add(name)
        self.taken.add(name)
        if self.ranges.get(name) != Range(lo, hi, divisor):
            self.ranges[name] = Range(lo, hi, divisor)
            self._learned()
        return dim(name)

    def let_be_empty(self, name: str) -> None:
        """Make 0 the least size of a Dim of which nothing was assumed yet."""
        self.ranges[name] = replace(self.ranges[name], lo=0)
        self._learned()

    def fresh(self, hint: str, lo: int = 0, hi: int | None = None) -> SymExpr:
        """A new Dim with a name not yet used, made from `hint`."""
        name = hint
        while name in self.ranges or name in self.taken:
            self.fresh_count += 1
            name = f"{hint}_{self.fresh_count}"
        return self.declare(name, lo, hi)

    def define(self, hint: str, value: SymExpr, signed: bool = False) -> SymExpr:
        """A Dim that stands for `value`, which is never negative unless it is `signed`; no more of it is to be known. The same
        one for the same value."""
        value = self.canon(value)
        for name, known in self.defined.items():
            if self.canon(known) == value:
                return self.canon(dim(name))
        if not value.dims():
            return value
        low, high = self.bounds(value)
        low = -GREATEST if low is None else low
        made = self.fresh(hint, low if signed else max(low, 0), high)
        self.defined[next(iter(made.dims()))] = value
        return made

    def count(self, value: str, most: SymExpr, number: int = 0) -> SymExpr:
        """How many there are of what makes a value, at most `most`, where only the data tell: a Dim for each number."""
        key = value, number
        if key not in self.counts:
            made = self.fresh(f"{identifier(value)}_count", 0, self.bounds(most)[1])
            self.counts[key], = made.dims()
            self.counted[self.counts[key]] = most
        return self.canon(dim(self.counts[key]))

    def fork(self) -> ShapeEnv:
        """All that is known here, to which what holds only in a region of the plan is added; names are new to both."""
        outside = Outside(frozenset(self.ranges), len(self.guards), frozenset(self.defined), frozenset(self.equal))
        return replace(self, ranges=dict(self.ranges), equal=dict(self.equal), guards=list(self.guards), asked=set(self.asked),
                       defined=dict(self.defined), counted=dict(self.counted), counts=dict(self.counts), outside=outside,
                       _canon={}, _known=None, _facts={})

    # -- reading -----------------------------------------------------------------------------------------------

    def canon(self, expr: IntLike) -> SymExpr:
        """`expr` with every Dim replaced by its representative, and simplified by the ranges, to a fixpoint."""
        result = SymExpr.of(expr)
        for monomial, _ in result.terms:
            for atom in monomial:
                if isinstance(atom, Apply) or atom in self.equal:
                    return self._settled(result)
        return result

    def _settled(self, expr: SymExpr) -> SymExpr:
        known = self._canon.get(expr)
        if known is None:
            known = self._canon[expr] = self._simplified(self._substituted(expr))
        return known

    def bounds(self, expr: IntLike) -> Interval:
        """Interval of `expr` by interval arithmetic; None on a side that is unbounded."""
        canon = self.canon(expr)
        return self._about(canon).bounds(canon)

    def prove_eq(self, a: IntLike, b: IntLike) -> bool:
        """True only if `a == b` for all sizes in range."""
        return self.bounds(self.canon(a) - self.canon(b)) == (0, 0)

    def prove_le(self, a: IntLike, b: IntLike) -> bool:
        """True only if `a <= b` for all sizes in range."""
        return self._holds(self.canon(self.canon(b) - self.canon(a)))

    def prove_lt(self, a: IntLike, b: IntLike) -> bool:
        """True only if `a < b` for all sizes in range."""
        return self.prove_le(SymExpr.of(a) + 1, b)

    def prove_ne(self, a: IntLike, b: IntLike) -> bool:
        """True only if `a != b` for all sizes in range."""
        difference = self.canon(self.canon(a) - self.canon(b))
        constant = sum(c for m, c in difference.terms if not m)
        common = self._about(difference).divisor(difference - constant)
        return bool(common and constant % common) or self.prove_lt(a, b) or self.prove_lt(b, a)

    def is_signed(self, expr: SymExpr) -> bool:
        """Whether `expr` may be negative since Dims of it may."""
        names = self.canon(expr).dims()
        return any(self.ranges.get(name, Range()).lo < 0 for name in names) and not self.prove_le(0, expr)

    def prove_divides(self, divisor: int, expr: IntLike) -> bool:
        """True only if `divisor` divides every value of `expr`."""
        return self._divides(divisor, self.canon(expr))

    def remaining_guards(self) -> tuple[Guard, ...]:
        """The Guards in terms of the Dims that are left, without those that became `x == x`; of a fork its own.

        What is dropped here is checked by binding: a Dim that stands for two is bound by two inputs, which must agree. But
        those from outside of a fork are bound there, where they need not.
        """
        kept: dict[tuple[str, SymExpr, SymExpr], Guard] = {}
        first, known = (0, frozenset[str]()) if self.outside is None else (self.outside.guards, self.outside.equal)
        bound = frozenset[str]() if self.outside is None else self.outside.names - self.outside.equal
        replaced = (Guard("==", value, self.equal[name], f"'{name}' is computed") for name, value in self.defined.items()
                    if name in self.equal and name not in known)
        for guard in (*self.guards[first:], *replaced):
            left, right = (self._substituted(side, bound) for side in (guard.left, guard.right))
            if left != right:
                kept.setdefault((guard.relation, left, right), replace(guard, left=left, right=right))
        return tuple(kept.values())

    def definitions(self) -> dict[str, SymExpr]:
        """The Dims that are left of those that a run computes, in the order in which it can, and what they are."""
        return {name: self._substituted(value) for name, value in self.defined.items() if name not in self.equal}

    # -- assuming ----------------------------------------------------------------------------------------------

    def assume_eq(self, a: IntLike, b: IntLike, reason: str) -> None:
        """Make `a == b` a fact and leave a Guard; two Dims become one.

        Raises ShapeError if it can never hold, or would make a Dim that the user asked for a constant.
        """
        left, right = self.canon(a), self.canon(b)
        if left == right or self.prove_eq(left, right):
            return
        if self.prove_ne(left, right):
            raise ShapeError(f"{reason}: {left} can never equal {right}; correct the model or the dims given for it")
        if orders := self._orders_of(self.canon(left - right)):  # min(y, z) == y where y <= z
            for small, large in orders:
                self.assume_le(small, large, reason)
            return
        factor = self._common_factor(left - right)
        self._refuse_baked(left // factor, right // factor, reason)
        if not self._leave(Guard("==", SymExpr.of(a), SymExpr.of(b), reason)):
            return
        solved = self._solve((left - right) // factor)
        if solved is not None:
            self._replace(*solved, reason)

    def assume_le(self, a: IntLike, b: IntLike, reason: str) -> None:
        """Make `a <= b` a fact by leaving a Guard. Raises ShapeError if it can never hold."""
        left, right = self.canon(a), self.canon(b)
        if self.prove_le(left, right):
            return
        if self.prove_lt(right, left):
            raise ShapeError(f"{reason}: {left} can never be at most {right}; correct the model or the dims given for it")
        if self._leave(Guard("<=", SymExpr.of(a), SymExpr.of(b), reason)):
            self._learned()
            self._narrow(right - left)

    # -- internals ---------------------------------------------------------------------------------------------

    def _learned(self) -> None:
        self.version += 1
        self._canon.clear()
        self._facts.clear()
        self._known = None

    def _about(self, expr: SymExpr) -> Facts:
        """What is known of the Dims of `expr`."""
        names = expr.dims()
        found = self._facts.get(names)
        if found is None:
            found = self._facts[names] = Facts.of({name: self.ranges.get(name, Range()) for name in sorted(names)})
        return found

    def _leave(self, guard: Guard) -> bool:
        """Keep `guard`; False when the same condition is guarded already."""
        key = (guard.relation, self.canon(guard.left), self.canon(guard.right))
        if any((g.relation, self.canon(g.left), self.canon(g.right)) == key for g in self.guards):
            return False
        self.guards.append(guard)
        return True

    def _refuse_baked(self, left: SymExpr, right: SymExpr, reason: str) -> None:
        for fixed, free in ((left, right), (right, left)):
            names = free.dims()
            if fixed.as_int() is not None and names and names <= self.asked:
                raise ShapeError(f"{reason}: the graph has {free} fixed to {fixed}, but dims asks for "
                                 f"{' and '.join(sorted(names))} to be free; declare that size or export the model without it")

    def _common_factor(self, difference: SymExpr) -> SymExpr:
        """What all terms of `difference` share, where that cannot be zero."""
        factor = SymExpr.of(gcd(*(c for _, c in difference.terms)))
        for atom in dict.fromkeys(difference.terms[0][0]):
            single = SymExpr((((atom,), 1),))
            if all(atom in m for m, _ in difference.terms) and self.prove_le(1, single):
                factor = factor * single
        return factor

    def _solve(self, difference: SymExpr) -> tuple[str, SymExpr] | None:
        """A Dim and the expression it must be for `difference` to be 0; one that is computed first, then the youngest that no
        user asked for."""
        computed = self._computed()
        order = {name: k for k, name in enumerate(self.ranges)}
        found = []
        for monomial, c in difference.terms:
            if len(monomial) == 1 and isinstance(monomial[0], Dim) and abs(c) == 1:
                name = monomial[0].name
                target = (difference - c * dim(name)) * -c
                if name not in target.dims() and self._known_before(name, target):
                    negative = any(v < 0 for _, v in target.terms)
                    found.append(((negative, name in self.asked, name not in computed, -order.get(name, 0)), name, target))
        return min(found)[1:] if found else None

    def _known_before(self, name: str, target: SymExpr) -> bool:
        """Whether all that a run computes of `target` is computed before `name`; before what a shape tells nothing is."""
        computed = self._computed()
        before = computed[:computed.index(name)] if name in computed else []
        return not (target.dims() & {*computed} - {*before})

    def _computed(self) -> list[str]:
        """The Dims that no shape tells, in the order in which they came up: none is told by a later one."""
        return [name for name in self.ranges if name in self.defined or name in self.counted]

    def _orders_of(self, difference: SymExpr) -> list[tuple[SymExpr, SymExpr]]:
        """What `difference == 0` says about a min or max in it, as orders `(small, large)`; none where it says more or less.

        `min(y, z) == y` is `y <= z`; and `min(u, z) - min(v, z) == u - v`, where v is less than u, is `u <= z`.
        """
        alone = [(m[0], c) for m, c in difference.terms if len(m) == 1 and abs(c) == 1]
        found = [(a, c) for a, c in alone if isinstance(a, Apply) and a.fn in ("min", "max")]
        for atom, c in found:
            for argument in atom.args:
                rest = self.canon(difference + c * (argument - SymExpr((((atom,), 1),))))
                others = [other for other in atom.args if other != argument]
                if rest == ZERO:
                    return [(argument, other) if atom.fn == "min" else (other, argument) for other in others]
                for second, d in found:
                    for less in second.args if c == -d and atom.fn == second.fn == "min" else ():
                        if (rest == self.canon(d * (SymExpr((((second,), 1),)) - less)) and self.prove_lt(less, argument)
                                and others == [other for other in second.args if other != less]):
                            return [(argument, other) for other in others]
        return []

    def _replace(self, name: str, target: SymExpr, reason: str) -> None:
        old = self.ranges.get(name, Range())
        other = target.as_dim()
        value = target.as_int()
        if value is not None:
            if value < old.lo or (old.hi is not None and value > old.hi) or value % old.divisor:
                raise ShapeError(f"{reason}: dim '{name}' is {value} here, outside its range {old}")
        elif other is not None:
            try:
                self.declare(other.name, old.lo, old.hi, old.divisor)
            except ShapeError as error:
                raise ShapeError(f"{reason}: '{name}' and '{other.name}' must be equal, but {error}") from error
            if name in self.asked:
                self.asked.add(other.name)
        else:
            self.assume_le(old.lo, target, reason)
            if old.hi is not None:
                self.assume_le(target, old.hi, reason)
            if old.divisor > 1:
                self.assume_eq(target % old.divisor, 0, reason)
        self.equal[name] = target
        self._learned()

    def _narrow(self, slack: SymExpr) -> None:
        """Narrow a Dim's range by the fact `slack >= 0` where that is a bound on one Dim."""
        constant = sum(c for m, c in slack.terms if not m)
        linear = [(m, c) for m, c in slack.terms if m]
        if len(linear) == 1 and len(linear[0][0]) == 1:
            atom, c = linear[0][0][0], linear[0][1]
            if isinstance(atom, Apply):
                self._narrow_quotient(atom, c, constant)
            elif c > 0:
                self.declare(atom.name, lo=-(constant // c))
            else:
                self.declare(atom.name, lo=self.ranges.get(atom.name, Range()).lo, hi=constant // -c)

    def _narrow_quotient(self, atom: Apply, c: int, constant: int) -> None:
        """`n // d + k >= 0` is `n + k*d >= 0`, and `k - n // d >= 0` is `k*d + d-1 - n >= 0`."""
        divisor = atom.args[1].as_int() if atom.fn == "//" else None
        if divisor is not None and divisor > 0 and abs(c) == 1:
            self._narrow(atom.args[0] + constant * divisor if c > 0 else constant * divisor + divisor - 1 - atom.args[0])

    def _substituted(self, expr: SymExpr, kept: frozenset[str] = frozenset()) -> SymExpr:
        while self.equal and (names := (expr.dims() & self.equal.keys()) - kept):
            expr = expr.substitute({name: self.equal[name] for name in names})
        return expr

    def _simplified(self, expr: SymExpr) -> SymExpr:
        while True:
            total = SymExpr.of(0)
            for monomial, c in expr.terms:
                total = total + self._simplified_term(monomial, c)
            if total == expr:
                return expr
            expr = total

    def _simplified_term(self, monomial: tuple[Atom, ...], c: int) -> SymExpr:
        term = SymExpr.of(c)
        for atom in monomial:
            factor = SymExpr((((atom,), 1),))
            if isinstance(atom, Apply):
                factor = self._simplified_apply(atom.fn, [self._simplified(a) for a in atom.args])
                exact = self._exact_quotient(factor)
                if exact is not None and all(v % exact[1] == 0 for _, v in term.terms):
                    term, factor = term // exact[1], exact[0]
            term = term * factor
        return term

    def _exact_quotient(self, factor: SymExpr) -> tuple[SymExpr, int] | None:
        """The dividend and the divisor where `factor` is one division by a constant that leaves no remainder."""
        atom = next(factor.atoms(), None)
        if not isinstance(atom, Apply) or atom.fn != "//" or factor != SymExpr((((atom,), 1),)):
            return None
        divisor = atom.args[1].as_int()
        return (atom.args[0], divisor) if divisor and self._divides(divisor, atom.args[0]) else None

    def _simplified_apply(self, fn: str, args: list[SymExpr]) -> SymExpr:
        if fn in ("max", "min"):
            return _extremum(fn, list(self._undominated(fn, args)))
        a, b = args
        if self._holds(a) and self._holds(b - a - 1):
            return SymExpr.of(0) if fn == "//" else a
        divisor = b.as_int()
        if fn == "%" and divisor is not None and divisor > 0:
            a = self._about(a).whole_part(a, divisor)[1]
        return apply(fn, [a, b])

    def _undominated(self, fn: str, args: list[SymExpr]) -> Iterator[SymExpr]:
        kept = list(dict.fromkeys(args))
        for a in list(kept):
            others = [b for b in kept if b is not a]
            if others and any(self._holds(b - a if fn == "max" else a - b) for b in others):
                kept.remove(a)
        yield from kept

    def _holds(self, not_negative: SymExpr) -> bool:
        """By the ranges, alone or (sums of Dims) beside an order that was assumed."""
        if self._about(not_negative).nonneg(not_negative):
            return True
        if not self._slacks() or not is_linear(not_negative):
            return False
        beside = (not_negative - slack for slack in self._slacks())
        return any(self._about(rest).nonneg(rest) for rest in beside)

    def _slacks(self) -> Sequence[SymExpr]:
        """`b - a` of each Guard `a <= b` between sums of Dims."""
        if self._known is None:
            found = dict.fromkeys(self._substituted(g.right - g.left) for g in self.guards if g.relation == "<=")
            self._known = [slack for slack in found if len(slack.dims()) > 1 and is_linear(slack)]
        return self._known

    def _divides(self, divisor: int, expr: SymExpr) -> bool:
        return self._about(expr).divisor(expr) % divisor == 0


def _extremum(fn: str, args: list[SymExpr]) -> SymExpr:
    return sym_max(*args) if fn == "max" else sym_min(*args)


__all__ = ["Guard", "Range", "ShapeEnv", "apply"]

"""Facts about loop variables and sizes, and what they prove about index expressions.

An index expression is turned into a SymExpr whose Dims are the sizes and loop variables in scope (opaque parts, such as a
Load, become Dims too). Bounds are proved by eliminating variables from the innermost outwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from tsc.errors import InternalError
from tsc.loop_ir.identities import alternatives, multiples, product, quotient, without_remainders
from tsc.loop_ir.nodes import For, Let
from tsc.loop_ir.witness import Point, extended, is_negative
from tsc.sym import ZERO, OversizeError, SymExpr, dim, sym_max, sym_min
from tsc.sym.expr import Apply, Atom, Dim, Monomial, apply
from tsc.te.compute import SizeParam
from tsc.te.expr import INDEX, Call, Const, Expr, Size, Var, call, format_expr, index

_OPERATORS = {"floordiv": "//", "mod": "%", "min": "min", "max": "max"}
_NAMES = {fn: name for name, fn in _OPERATORS.items()}
#: How deep a proof may be, and how many expressions it may look at: proofs that are found take less than ten.
_DEPTH, _STEPS = 12, 100
#: A variable with so few values is looked at one by one, where functions of it are left; so many cases in all.
_FEW, _CASES = 6, 24
_LARGEST = 1 << 24  # whose divisors are looked for


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
    _inner: dict[tuple[object, ...], Facts] = field(default_factory=dict, init=False, repr=False, compare=False)
    _reduced: dict[SymExpr, SymExpr] = field(default_factory=dict, init=False, repr=False, compare=False)
    _tried: dict[SymExpr, int] = field(default_factory=dict, init=False, repr=False, compare=False)  # -1: proved
    _bounds: dict[Atom, tuple[float, float]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _points: list[tuple[Point, ...]] = field(default_factory=list, init=False, repr=False, compare=False)

    @staticmethod
    def of(sizes: tuple[SizeParam, ...]) -> Facts:
        """What is known outside of all loops."""
        table = {s.name: Known((SymExpr.of(s.lo),), () if s.hi is None else (SymExpr.of(s.hi),), s.divisor, 0) for s in sizes}
        return Facts(table, frozenset(table))

    def bind(self, name: str, known: Known) -> Facts:
        """These facts with `name` in scope."""
        if name in self.known:  # a name within its own scope
            return Facts({**{n: k for n, k in self.known.items() if n != name}, name: known}, self.sizes)
        return Facts({**self.known, name: known}, self.sizes, self)

    def inside(self, stmt: For | Let) -> Facts:
        """The facts that hold in the body of `stmt`: those of loops alike are one, with all that was found out under it."""
        header = (stmt.var, stmt.value) if isinstance(stmt, Let) else (stmt.var, stmt.lo, stmt.hi, stmt.step)
        found = self._inner.get(header)
        if found is None:
            found = self._inner[header] = self._inside(stmt)
        return found

    def _inside(self, stmt: For | Let) -> Facts:
        leaves: dict[str, Expr] = {}
        if isinstance(stmt, Let):
            value = to_sym(stmt.value, leaves)
            if leaves:
                return self.bind(stmt.var, Known((), (), 1, self._next_depth()))
            return self.bind(stmt.var, Known((value,), (value,), self.divisor(value), self._next_depth()))
        lo, hi = to_sym(stmt.lo, leaves), to_sym(stmt.hi, leaves)
        if leaves:
            return self.bind(stmt.var, Known((), (), 1, self._next_depth()))
        divisor = math.gcd(stmt.step, self.divisor(lo))
        # below a bound that shares its divisor, or is whole steps from where it begins, a variable stays that far below it
        highs = tuple(h - max(math.gcd(divisor, self.divisor(h)), 1, self._step(stmt.step, self._value(h) - lo))
                      for h in alternatives(hi, "min"))
        lo_value, hi_value = lo.as_int(), hi.as_int()
        if lo_value is not None and hi_value is not None and hi_value > lo_value:
            highs = (SymExpr.of(lo_value + (hi_value - 1 - lo_value) // stmt.step * stmt.step),)
        known = Known(alternatives(lo, "max"), highs, divisor, self._next_depth())
        return self.bind(stmt.var, known)

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
        return math.gcd(*(abs(c) * math.prod(self._atom_divisor(a) for a in m) for m, c in expr.terms))

    def whole_part(self, expr: SymExpr, by: int) -> tuple[SymExpr, SymExpr]:
        """The terms of `expr` that `by` divides, and the rest."""
        whole = SymExpr(tuple(t for t in expr.terms if self.divisor(SymExpr((t,))) % by == 0))
        return whole, expr - whole

    def _atom_divisor(self, atom: Atom) -> int:
        if isinstance(atom, Dim):
            known = self.known.get(atom.name)
            return 1 if known is None else known.divisor or 1
        if atom.fn in ("min", "max"):
            return math.gcd(*(self.divisor(a) for a in atom.args)) or 1
        if atom.fn == "//" and (by := atom.args[1].as_int()):
            whole = self.divisor(atom.args[0])
            return whole // by if whole % by == 0 and whole else 1
        return 1

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
        found = self._inner.get((name, value))
        if found is None:
            fixed = {name: SymExpr.of(value)}

            def at(bounds: tuple[SymExpr, ...]) -> tuple[SymExpr, ...]:
                return tuple(b.substitute(fixed) if name in b.dims() else b for b in bounds)

            table = {n: Known(at(k.lows), at(k.highs), k.divisor, k.depth) for n, k in self.known.items()}
            table[name] = Known((fixed[name],), (fixed[name],), value, self.known[name].depth)
            found = self._inner[(name, value)] = Facts(table, self.sizes)
        return found

    def is_void(self) -> bool:
        """Whether some variable has no values: nothing is executed here."""
        return any(low.as_int() is not None and high.as_int() is not None and (low.as_int() or 0) > (high.as_int() or 0)
                   for known in self.known.values() for low in known.lows for high in known.highs)

    def _values(self, name: str) -> range:
        """Numbers that hold all values of a variable with constant bounds; none of another."""
        known = self.known.get(name)
        if known is None:
            return range(0)
        lows, highs = ([n for end in ends if (n := end.as_int()) is not None] for ends in (known.lows, known.highs))
        step = max(known.divisor, 1)
        if not lows or not highs:
            return range(0)
        return range(-(-max(lows) // step) * step, min(highs) + 1, step)

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
            proved = proved or (depth > 0 and left[0] > 0 and any(
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

    def _low(self, expr: SymExpr) -> float:
        """A lower bound from constants alone: sizes and variables with constant bounds. Of ints alone it is one, and exact."""
        total: float = 0
        for monomial, coefficient in expr.terms:
            ends: tuple[float, float] = (1, 1)
            for atom in monomial:
                corners = [product(x, y) for x in ends for y in self._interval(atom)]
                ends = min(corners), max(corners)
            total += coefficient * ends[coefficient < 0]
        return total

    def _interval(self, atom: Atom) -> tuple[float, float]:
        found = self._bounds.get(atom)
        if found is None:
            found = self._bounds[atom] = self._interval_of(atom)
        return found

    def _interval_of(self, atom: Atom) -> tuple[float, float]:
        if isinstance(atom, Dim):
            known = self.known.get(atom.name)
            if known is None:
                return -math.inf, math.inf
            lows = [v for v in (e.as_int() for e in known.lows) if v is not None]
            highs = [v for v in (e.as_int() for e in known.highs) if v is not None]
            if not lows and any(self._low(e) >= 0 for e in known.lows if not e.dims() - self.sizes):
                lows = [0]
            return max(lows, default=-math.inf), min(highs, default=math.inf)
        lows_of, highs_of = [self._low(a) for a in atom.args], [-self._low(-a) for a in atom.args]
        match atom.fn:
            case "min":
                return min(lows_of), min(highs_of)
            case "max":
                return max(lows_of), max(highs_of)
            case "%" if lows_of[1] >= 1:
                return 0, highs_of[1] - 1
            case "//" if lows_of[1] >= 1:
                (low, high), (least, most) = (lows_of[0], highs_of[0]), (lows_of[1], highs_of[1])
                return quotient(low, most if low >= 0 else least), quotient(high, least if high >= 0 else most)
        return -math.inf, math.inf

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
            case "//" if (by := atom.args[1].as_int()) and by > 0 and coefficient % by == 0:
                numerator = atom.args[0] if coefficient < 0 else atom.args[0] - (by - 1)
                yield [numerator * (coefficient // by) + rest]
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
        total = SymExpr.of(0)
        for monomial, coefficient in expr.terms:
            factor = SymExpr.of(coefficient)
            for atom in monomial:
                factor = factor * (self._reduce_apply(atom) if isinstance(atom, Apply) else dim(atom.name))
            total = total + factor
        return without_remainders(self._undo_divisions(total))

    def _reduce_apply(self, atom: Apply) -> SymExpr:
        args = [self.reduce(a) for a in atom.args]
        match atom.fn:
            case "min":
                return sym_min(*_undominated(args, self.le))
            case "max":
                return sym_max(*_undominated(args, lambda a, b: self.le(b, a)))
            case "//" | "%":
                by = args[1].as_int()
                if by is not None and by > 0:
                    return self._divide(atom.fn, args[0], by)
                whole, rest = multiples(args[0], args[1]) if self._low(args[1]) >= 1 else (ZERO, args[0])
                for shift in (0, 1):  # the rest is 0 to the divisor, or begins one divisor below
                    above = rest + args[1] * shift
                    if self.nonneg(above) and self.lt(above, args[1]):
                        return whole - shift if atom.fn == "//" else above
                if whole != ZERO and len(args[1].terms) == 1:
                    return apply(atom.fn, [rest, args[1]]) + (whole if atom.fn == "//" else ZERO)
        return apply(atom.fn, args)

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
            return rest if within else apply(fn, [rest, divisor])
        quotient = apply(fn, [whole, divisor])
        return quotient if within else quotient + self._quotient(rest, by)

    def _quotient(self, value: SymExpr, by: int) -> SymExpr:
        """`value // by`, by a part of the divisor first where variables go with its remainder: x // (p * q) is x // p // q."""
        for part in _divisors(by):
            whole, rest = self.whole_part(value, part)
            if whole.terms and rest.dims() and self.nonneg(rest) and self.lt(rest, SymExpr.of(part)):
                return self._divide("//", self._undo_divisions(apply("//", [whole, SymExpr.of(part)])), by // part)
        return apply("//", [value, SymExpr.of(by)])

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

    # -- back to expressions -----------------------------------------------------------------------------------

    def to_expr(self, sym: SymExpr, leaves: Mapping[str, Expr]) -> Expr:
        """The index expression of `sym`, its terms ordered from the outermost variable to the innermost, so that a
        compiler hoists what is invariant."""
        moving = [t for t in sym.terms if not _names(t[0]) <= self.sizes]
        fixed = sym if not moving else SymExpr(tuple(t for t in sym.terms if _names(t[0]) <= self.sizes))
        if len(moving) > 1:
            moving.sort(key=self._term_depth)
        result, zero = index(fixed), index(0)
        for monomial, coefficient in moving:
            scale = SymExpr.of(abs(coefficient) if result != zero else coefficient)
            factors: list[Expr] = []
            for atom in monomial:
                if isinstance(atom, Dim) and atom.name in self.sizes:
                    scale = scale * dim(atom.name)
                else:
                    factors.append(self._atom_expr(atom, leaves))
            term = factors[0]
            for factor in factors[1:]:
                term = call("mul", term, factor)
            term = call("mul", term, index(scale))
            result = call("sub" if coefficient < 0 and result != zero else "add", result, term)
        return result

    def _term_depth(self, term: tuple[Monomial, int]) -> tuple[int, str]:
        names = _names(term[0]) - self.sizes
        depth = max((self.known[n].depth if n in self.known else 1 << 20 for n in names), default=0)
        return depth, str(SymExpr(((term[0], 1),)))

    def _atom_expr(self, atom: Atom, leaves: Mapping[str, Expr]) -> Expr:
        if isinstance(atom, Dim):
            return leaves.get(atom.name, Var(atom.name))
        args = [self.to_expr(a, leaves) for a in atom.args]
        result = args[0]
        for arg in args[1:]:
            result = call(_NAMES[atom.fn], result, arg)
        return result


@lru_cache(maxsize=1024)
def _divisors(number: int) -> tuple[int, ...]:
    """Those between 1 and a number, the greatest first; none of one too large to try, as a scale's denominator is."""
    small = [n for n in range(2, math.isqrt(number) + 1) if number % n == 0] if number <= _LARGEST else []
    return tuple(sorted({*small, *(number // n for n in small)}, reverse=True))


def _names(monomial: Monomial) -> set[str]:
    """The names of all Dims in it."""
    found: set[str] = set()
    for atom in monomial:
        found |= {atom.name} if isinstance(atom, Dim) else atom.names
    return found


def to_sym(expr: Expr, leaves: dict[str, Expr]) -> SymExpr:
    """An int64 expression as a SymExpr; what is not index arithmetic becomes a Dim that `leaves` maps back. Leaves are named by
    their text, so that equal ones are equal."""
    match expr:
        case Var(name=name):
            return dim(name)
        case Call(args=(a, b), dtype=dtype) if dtype == INDEX:
            match expr.fn:
                case "add":
                    return to_sym(a, leaves) + to_sym(b, leaves)
                case "sub":
                    return to_sym(a, leaves) - to_sym(b, leaves)
                case "mul":
                    return to_sym(a, leaves) * to_sym(b, leaves)
                case "min" | "max" as fn:
                    return apply(fn, [to_sym(a, leaves), to_sym(b, leaves)])
                case "floordiv" | "mod" as fn:
                    by = to_sym(b, leaves)
                    if by.as_int() != 0:
                        return apply(_OPERATORS[fn], [to_sym(a, leaves), by])
        case Const(value=value, dtype=dtype) if dtype == INDEX:
            return SymExpr.of(int(value))
        case Size(value=value):
            return value
        case Call(fn="neg" | "abs" as of_one, args=(a,), dtype=dtype) if dtype == INDEX:
            value = to_sym(a, leaves)
            return -value if of_one == "neg" else apply("max", [value, -value])
    if expr.dtype != INDEX:
        raise InternalError(f"an index must be int64, not {expr.dtype}: {format_expr(expr)}")
    name = f"%{format_expr(expr)}"
    leaves[name] = expr
    return dim(name)


def coefficient_of(expr: SymExpr, name: str) -> SymExpr | None:
    """The factor of the variable where `expr` is linear in it; None where it is not (inside a function, or squared)."""
    taken: list[tuple[Monomial, int]] = []
    for monomial, coefficient in expr.terms:
        count = sum(isinstance(a, Dim) and a.name == name for a in monomial)
        if count > 1 or any(isinstance(a, Apply) and name in a.names for a in monomial):
            return None
        if count:
            taken.append((tuple(a for a in monomial if not (isinstance(a, Dim) and a.name == name)), coefficient))
    return sum((SymExpr((t,)) for t in taken), SymExpr.of(0))


def _undominated(args: list[SymExpr], below: Callable[[SymExpr, SymExpr], bool]) -> list[SymExpr]:
    kept = list(dict.fromkeys(args))
    for candidate in list(kept):
        others = [a for a in kept if a is not candidate]
        if any(below(o, candidate) for o in others):
            kept = others
    return kept

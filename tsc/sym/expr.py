"""SymExpr: integer expressions over Dims, kept in one canonical form so that equal means `==`.

A SymExpr is a polynomial with integer coefficients over *atoms*. An atom is a Dim or an opaque integer function
(`//`, `%`, `max`, `min`) of SymExprs. Products are kept (`B*L`), so that reshape-collapsed shapes still compare.
All divisions are floor divisions, as in Python.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from typing import Union

from tsc.errors import UnsupportedError


class Dim(str):
    """A named symbolic size, which is its name: a str. What is known of it, its range and its divisor, stands with the model
    that has it."""

    # expressions are looked up all the time, and of a str that costs nothing; facts live in the ShapeEnv

    __slots__ = ()

    def __new__(cls, name: str) -> Dim:
        return super().__new__(cls, name)

    @property
    def name(self) -> str:
        """The name alone."""
        return str(self)


class OversizeError(UnsupportedError):
    """A size expression has become larger than anything that a proof about it could end with."""


#: How far a size expression may grow: terms, factors of a term, atoms with all that they are made of, functions inside of
#: one another, bits of a number. A file of a few nodes can square a size again and again; real models stay far below.
MOST_TERMS, MOST_FACTORS, MOST_ATOMS, MOST_NESTING, MOST_BITS = 1024, 32, 512, 24, 96
_GREATEST = 1 << MOST_BITS


def _bounded(count: int, most: int, what: str) -> None:
    if count > most:
        raise OversizeError(f"a size is an expression with more than {most} {what}; simplify the model's shape arithmetic, or "
                            "declare sizes")


@dataclass(frozen=True, slots=True)
class Apply:
    """An opaque integer function of SymExprs: `//`, `%` (two arguments), `max`, `min` (two or more).

    `atoms` counts the atoms that it is made of, `nesting` the functions inside of one another; `names` are its Dims'.
    """

    fn: str
    args: tuple[SymExpr, ...]
    atoms: int = field(init=False, compare=False, repr=False)
    nesting: int = field(init=False, compare=False, repr=False)
    names: frozenset[str] = field(init=False, compare=False, repr=False)
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        parts = [a for arg in self.args for a in arg.atoms()]
        inner = [a for a in parts if isinstance(a, Apply)]
        object.__setattr__(self, "atoms", 1 + len(parts) + sum(a.atoms for a in inner))
        object.__setattr__(self, "nesting", 1 + max((a.nesting for a in inner), default=0))
        object.__setattr__(self, "names", frozenset().union(*(arg.dims() for arg in self.args)))
        object.__setattr__(self, "_hash", hash((self.fn, self.args)))  # it is asked for again and again
        _bounded(self.atoms, MOST_ATOMS, "parts")
        _bounded(self.nesting, MOST_NESTING, "functions inside of one another")

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[Apply], tuple[str, tuple[SymExpr, ...]]]:
        return Apply, (self.fn, self.args)  # hashes of names differ between processes

    def __str__(self) -> str:
        if self.fn in ("//", "%"):
            return f"({_operand(self.args[0])} {self.fn} {_operand(self.args[1])})"
        return f"{self.fn}({', '.join(map(str, self.args))})"


Atom = Dim | Apply
Monomial = tuple[Atom, ...]
Terms = tuple[tuple[Monomial, int], ...]
IntLike = Union[int, "SymExpr"]


@dataclass(frozen=True, slots=True)
class SymExpr:
    """A canonical integer polynomial: `terms` maps sorted monomials to non-zero coefficients."""

    terms: Terms

    # -- construction ------------------------------------------------------------------------------------------

    @staticmethod
    def of(value: IntLike) -> SymExpr:
        """An int or SymExpr as a SymExpr."""
        if isinstance(value, SymExpr):
            return value
        return SymExpr((((), int(value)),)) if value else SymExpr(())

    # -- queries -----------------------------------------------------------------------------------------------

    def as_int(self) -> int | None:
        """The value if this is a constant, else None."""
        if not self.terms:
            return 0
        if len(self.terms) == 1 and not self.terms[0][0]:
            return self.terms[0][1]
        return None

    def as_dim(self) -> Dim | None:
        """The Dim if this is exactly one Dim, else None."""
        if len(self.terms) == 1:
            (monomial, coefficient), = self.terms
            if coefficient == 1 and len(monomial) == 1 and isinstance(monomial[0], Dim):
                return monomial[0]
        return None

    def atoms(self) -> Iterator[Atom]:
        """Every atom of every monomial (with repetition, not looking inside Apply)."""
        for monomial, _ in self.terms:
            yield from monomial

    def dims(self) -> frozenset[str]:
        """Names of all Dims that occur, inside opaque functions too."""
        return names_of(self.atoms())

    # -- arithmetic --------------------------------------------------------------------------------------------

    def __add__(self, other: IntLike) -> SymExpr:
        terms, more = self.terms, other.terms if isinstance(other, SymExpr) else SymExpr.of(other).terms
        if len(more) == 1 and not more[0][0]:
            return _plus(terms, more[0][1])
        if len(terms) == 1 and not terms[0][0]:
            return _plus(more, terms[0][1])
        return self if not more else _collect(terms + more) if terms else SymExpr(more)

    __radd__ = __add__

    def __neg__(self) -> SymExpr:
        return SymExpr(tuple((m, -c) for m, c in self.terms))

    def __sub__(self, other: IntLike) -> SymExpr:
        return self + -other

    def __rsub__(self, other: IntLike) -> SymExpr:
        return -self + other

    def __mul__(self, other: IntLike) -> SymExpr:
        right = SymExpr.of(other).terms
        if len(right) == 1 and not right[0][0]:
            return self if right == _ONE else _scaled(self.terms, right[0][1])
        if len(self.terms) == 1 and not self.terms[0][0]:
            return _scaled(right, self.terms[0][1])
        _bounded(len(self.terms) * len(right), MOST_TERMS, "terms")
        return _collect((_times(a, b), x * y) for a, x in self.terms for b, y in right)

    __rmul__ = __mul__

    def __floordiv__(self, other: IntLike) -> SymExpr:
        return floordiv(self, SymExpr.of(other))

    def __rfloordiv__(self, other: IntLike) -> SymExpr:
        return floordiv(SymExpr.of(other), self)

    def __mod__(self, other: IntLike) -> SymExpr:
        return mod(self, SymExpr.of(other))

    def __rmod__(self, other: IntLike) -> SymExpr:
        return mod(SymExpr.of(other), self)

    # -- use ---------------------------------------------------------------------------------------------------

    def evaluate(self, env: Mapping[str, int]) -> int:
        """The integer value under `env` (Dim name -> size). Raises KeyError for an unbound Dim."""
        total = 0
        for monomial, coefficient in self.terms:
            product = coefficient
            for atom in monomial:
                product *= env[atom] if isinstance(atom, Dim) else _FUNCTIONS[atom.fn](
                    [a.evaluate(env) for a in atom.args])
            total += product
        return total

    def substitute(self, mapping: Mapping[str, SymExpr]) -> SymExpr:
        """Replace Dims by expressions, by name; canonical again."""
        terms: list[tuple[Monomial, int]] = []
        same = True
        for term in self.terms:
            if not any(a in mapping if isinstance(a, Dim) else not a.names.isdisjoint(mapping) for a in term[0]):
                terms.append(term)
                continue
            product, same = SymExpr.of(term[1]), False
            for atom in term[0]:
                product = product * _substitute_atom(atom, mapping)
            terms += product.terms
            if len(terms) > MOST_TERMS:  # what cancels is no term
                terms = [*_collect(terms).terms]
        return self if same else _collect(terms)

    def __str__(self) -> str:
        if not self.terms:
            return "0"
        parts = []
        for monomial, coefficient in self.terms:
            factors = [str(a) for a in monomial]
            if coefficient != 1 or not factors:
                factors.insert(0, str(coefficient))
            parts.append("*".join(factors))
        return " + ".join(parts).replace("+ -", "- ")

    __repr__ = __str__


ZERO = SymExpr(())
ONE = SymExpr((((), 1),))


@lru_cache(maxsize=1 << 14)
def dim(name: str) -> SymExpr:
    """The SymExpr of one Dim."""
    return SymExpr((((Dim(name),), 1),))


def floordiv(a: SymExpr, b: SymExpr) -> SymExpr:
    """`a // b`, exact where every coefficient or a common factor divides; opaque otherwise, in lowest integer terms."""
    x, y = a.as_int(), b.as_int()
    if y == 0:
        raise ZeroDivisionError(f"{a} // 0")
    if x is not None and y is not None:
        return SymExpr.of(x // y)
    quotient, remainder = divided(a, b)
    if not remainder.terms:
        return quotient
    if (common := math.gcd(*(c for x in (a, b) for _, c in x.terms))) > 1:
        return floordiv(*(SymExpr(tuple((m, c // common) for m, c in x.terms)) for x in (a, b)))
    inner = a.terms[0][0][0] if len(a.terms) == 1 and a.terms[0][1] == 1 and len(a.terms[0][0]) == 1 else None
    if y is not None and y > 0 and isinstance(inner, Apply) and inner.fn == "//":
        z = inner.args[1].as_int()
        if z is not None and z > 0:
            return floordiv(inner.args[0], SymExpr.of(y * z))
    if y is not None and y > 0 and quotient.terms:  # (q*y + r) // y == q + r // y, for any integer r
        return quotient + floordiv(remainder, b)
    return _atom(Apply("//", (a, b)))


def mod(a: SymExpr, b: SymExpr) -> SymExpr:
    """`a % b` with Python's sign rule."""
    x, y = a.as_int(), b.as_int()
    if y == 0:
        raise ZeroDivisionError(f"{a} % 0")
    if x is not None and y is not None:
        return SymExpr.of(x % y)
    quotient, remainder = divided(a, b)
    if not remainder.terms:
        return SymExpr(())
    if y is not None and quotient.terms:
        return mod(remainder, b)
    return _atom(Apply("%", (a, b)))


def exact_quotient(a: SymExpr, b: SymExpr) -> SymExpr | None:
    """The polynomial `q` with `q * b == a`, None where there is none: division by the leading terms."""
    atoms = sorted({atom for monomial, _ in (*a.terms, *b.terms) for atom in monomial}, key=str)

    def rank(term: tuple[Monomial, int]) -> tuple[int, list[int]]:
        return len(term[0]), [term[0].count(atom) for atom in atoms]

    total = ZERO
    while a.terms and b.terms:
        (first, x), (leading, y) = max(a.terms, key=rank), max(b.terms, key=rank)
        rest = _cancel(first, leading)
        if rest is None or x % y:
            return None
        term = SymExpr(((rest, x // y),))
        total, a = total + term, a - term * b
    return None if a.terms else total


def ceildiv(a: IntLike, b: IntLike) -> SymExpr:
    """The least integer not below `a / b`, for positive `b`."""
    by = SymExpr.of(b).as_int()
    return floordiv(SymExpr.of(a) + (by - 1), SymExpr.of(by)) if by else -floordiv(-SymExpr.of(a), SymExpr.of(b))


def sym_max(*args: IntLike) -> SymExpr:
    """The greatest of the arguments."""
    return _extremum("max", args)


def sym_min(*args: IntLike) -> SymExpr:
    """The least of the arguments."""
    return _extremum("min", args)


def product(factors: Iterable[IntLike]) -> SymExpr:
    """The product of any number of factors; 1 when there are none."""
    return reduce(lambda a, b: a * b, factors, SymExpr.of(1))


def names_of(atoms: Iterable[Atom]) -> frozenset[str]:
    """The names of all Dims in some atoms, inside opaque functions too."""
    found: set[str] = set()
    for atom in atoms:
        if isinstance(atom, Dim):
            found.add(atom)
        else:
            found |= atom.names
    return frozenset(found)


def coefficient_of(expr: SymExpr, name: str) -> SymExpr | None:
    """The factor of the variable where `expr` is linear in it; None where it is not (inside a function, or squared)."""
    taken: list[tuple[Monomial, int]] = []
    for monomial, coefficient in expr.terms:
        count = monomial.count(name)
        if count > 1 or any(isinstance(a, Apply) and name in a.names for a in monomial):
            return None
        if count:
            taken.append((tuple(a for a in monomial if a != name), coefficient))
    return _collect(taken)


@lru_cache(maxsize=65536)
def parse(text: str) -> SymExpr:
    """Read what `str(SymExpr)` wrote. Raises ValueError on anything else, and on products that would take long to multiply out;
    nothing is evaluated as code."""
    try:
        return _parse(ast.parse(text, mode="eval").body)
    except (SyntaxError, MemoryError, OversizeError) as error:  # the parser's own stack is a MemoryError
        raise ValueError(f"not a size expression: {text!r}") from error


# -- internals -------------------------------------------------------------------------------------------------

_ONE = (((), 1),)
_FUNCTIONS: dict[str, Callable[[list[int]], int]] = {
    "//": lambda a: a[0] // a[1], "%": lambda a: a[0] % a[1], "max": max, "min": min}


def _atom(atom: Atom) -> SymExpr:
    return SymExpr((((atom,), 1),))


def _operand(expr: SymExpr) -> str:
    """`expr` so that it binds as one operand: `parse` must read back what `str` writes."""
    (monomial, coefficient), *rest = expr.terms or (((), 0),)
    alone = not rest and (coefficient >= 0 if not monomial else len(monomial) == 1 and coefficient == 1)
    return str(expr) if alone else f"({expr})"


def _key(atom: Atom) -> tuple[int, str]:
    return (isinstance(atom, Apply), str(atom))


@lru_cache(maxsize=1 << 14)
def _order(monomial: Monomial) -> tuple[int, list[tuple[int, str]]]:
    """Where a monomial stands among the terms of an expression."""
    return (-len(monomial), [_key(a) for a in monomial])


def _place(term: tuple[Monomial, int]) -> tuple[int, list[tuple[int, str]]]:
    return _order(term[0])


def _scaled(terms: Terms, factor: int) -> SymExpr:
    scaled = tuple([(monomial, coefficient * factor) for monomial, coefficient in terms])
    _check_bits(scaled)
    return SymExpr(scaled)


def _plus(terms: Terms, constant: int) -> SymExpr:
    """The terms and a constant other than 0, whose place is behind all others."""
    if terms and not terms[-1][0]:
        constant, terms = constant + terms[-1][1], terms[:-1]
        if not constant:
            return SymExpr(terms)
    last = ((), constant)
    _check_bits((last,))
    _bounded(len(terms) + 1, MOST_TERMS, "terms")
    return SymExpr((*terms, last))


def _check_bits(terms: Iterable[tuple[Monomial, int]]) -> None:
    for _, coefficient in terms:
        if not -_GREATEST < coefficient < _GREATEST:
            _bounded(coefficient.bit_length(), MOST_BITS, "bits")


@lru_cache(maxsize=1 << 14)
def _times(a: Monomial, b: Monomial) -> Monomial:
    _bounded(len(a) + len(b), MOST_FACTORS, "factors")
    return tuple(sorted(a + b, key=_key)) if a and b else a or b


def _collect(terms: Iterable[tuple[Monomial, int]]) -> SymExpr:
    sums: dict[Monomial, int] = {}
    for monomial, coefficient in terms:
        sums[monomial] = sums.get(monomial, 0) + coefficient
    kept = [(m, c) for m, c in sums.items() if c]
    if len(kept) > 1:
        _bounded(len(kept), MOST_TERMS, "terms")
        kept.sort(key=_place)
    _check_bits(kept)
    return SymExpr(tuple(kept))


def divided(a: SymExpr, b: SymExpr) -> tuple[SymExpr, SymExpr]:
    """`a` as (q, r) with a == q*b + r: q has what is a multiple of `b`, where that has one term or is `a`."""
    if len(b.terms) != 1:
        return (SymExpr.of(1), SymExpr(())) if a == b else (SymExpr(()), a)
    (divisor, coefficient), = b.terms
    taken, left = [], []
    for monomial, value in a.terms:
        rest = _cancel(monomial, divisor)
        if rest is None:
            left.append((monomial, value))
        else:
            if value // coefficient:
                taken.append((rest, value // coefficient))
            if value % coefficient:
                left.append((monomial, value % coefficient))
    return _collect(taken), _collect(left)


def _cancel(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    rest = list(monomial)
    for atom in divisor:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def _extremum(fn: str, args: Iterable[IntLike]) -> SymExpr:
    flat: list[SymExpr] = []
    for value in map(SymExpr.of, args):
        atom = next(value.atoms(), None) if len(value.terms) == 1 and value.terms[0][1] == 1 else None
        nested = isinstance(atom, Apply) and atom.fn == fn and len(value.terms[0][0]) == 1
        flat.extend(atom.args if nested and isinstance(atom, Apply) else [value])
    constants = [v for v in (e.as_int() for e in flat) if v is not None]
    symbolic = sorted({e for e in flat if e.as_int() is None}, key=str)
    if constants:
        symbolic.append(SymExpr.of(_FUNCTIONS[fn](constants)))
    return symbolic[0] if len(symbolic) == 1 else _atom(Apply(fn, tuple(symbolic)))


def _substitute_atom(atom: Atom, mapping: Mapping[str, SymExpr]) -> SymExpr:
    if isinstance(atom, Dim):
        return mapping.get(atom, _atom(atom))
    return apply(atom.fn, [a.substitute(mapping) for a in atom.args])


def apply(fn: str, args: list[SymExpr]) -> SymExpr:
    """Apply one of the opaque functions by name, with simplification."""
    if fn == "//":
        return floordiv(args[0], args[1])
    if fn == "%":
        return mod(args[0], args[1])
    return _extremum(fn, args)


def _parse(node: ast.expr) -> SymExpr:
    match node:
        case ast.Constant(value=int(value)):
            return SymExpr.of(value)
        case ast.Name(id=name):
            return dim(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_parse(operand)
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _parse(left), _parse(right)
            match op:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
                case ast.FloorDiv():
                    return a // b
                case ast.Mod():
                    return a % b
        case ast.Call(func=ast.Name(id="max" | "min" as fn), args=[_, *_] as args, keywords=[]):
            return _extremum(fn, [_parse(a) for a in args])
    raise ValueError(f"not a size expression: {ast.unparse(node)!r}")

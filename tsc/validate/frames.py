"""Instances in bulk: a Frame holds the variables of many instances of a statement; a Reader evaluates expressions in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import add, mul
from typing import Any, Protocol

import numpy as np

from tsc.errors import InternalError
from tsc.sym import SymExpr
from tsc.sym.expr import Dim
from tsc.te.expr import BOOL, INDEX, Call, Cast, CheckedIndex, Const, Expr, Load, Size, Var, format_expr, wrapped
from tsc.validate.algebra import EVERYWHERE, Algebra, Array, Exact, Value, chosen, residue

#: Integers, one an instance, or one for all.
Ints = Any
#: The variable that says to which Case an instance belongs.
CASE = "@case"
#: So many iterations are numbered at once: a few arrays of 8 bytes each.
_MOST = 1 << 23


def _magnitude(value: Ints) -> int:
    """The largest absolute value."""
    if not isinstance(value, np.ndarray):
        return int(abs(value))
    return max(abs(int(value.max(initial=0))), abs(int(value.min(initial=0))))


def _roomy(values: Sequence[Ints], most: int = 0) -> Sequence[Ints]:
    """Integers to calculate with: Python's own where 64 bits do not hold one of them, or a result as large as `most`."""
    if max(most, *map(_magnitude, values)) < 2**63:
        return values
    return [v.astype(object) if isinstance(v, np.ndarray) else v for v in values]


def spread(value: Ints, count: int) -> Array:
    """One integer an instance."""
    if isinstance(value, np.ndarray) and value.shape == (count,):
        return value
    return np.broadcast_to(np.asarray(value), (count,))


def numbered(counts: Array) -> Array:
    """0, 1, .. up to each count, one after the other. Raises TooMany."""
    if int(counts.sum()) > _MOST:
        raise TooMany(f"more than {_MOST} iterations would have to be looked at")
    return np.asarray(np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts))


class Fault(Exception):
    """What is wrong with the loops."""


class Undecided(Exception):
    """Why loops cannot be interpreted in bulk."""


class TooMany(Undecided):
    """At these sizes there would be too much to interpret."""


@dataclass(slots=True)
class Frame:
    """`count` instances. Each is one of the instances of `parent`, `places` saying which (None: the same ones); `known` are the
    variables that they have themselves, or took from there. `certain` are tests that all are known to pass; `nests` what was
    found to be within (`nest.py`)."""

    count: int
    parent: Frame | None = None
    places: Array | None = None
    known: dict[str, Ints] = field(default_factory=dict)
    certain: frozenset[object] = frozenset()
    nests: dict[object, Any] = field(default_factory=dict)

    def get(self, name: str) -> Ints:
        """A variable. Raises KeyError for one that is not bound."""
        found = self.known.get(name)
        if found is None:
            if self.parent is None:
                raise KeyError(name)
            found = self.parent.get(name)
            if self.places is not None and isinstance(found, np.ndarray):
                found = found[self.places]
            self.known[name] = found
        return found

    def where(self, kept: Array) -> Frame:
        """The instances at which a condition holds."""
        places = np.flatnonzero(kept)
        return Frame(len(places), self, places, {}, self.certain)

    def bound(self, **variables: Ints) -> Frame:
        """The same instances with more variables."""
        return Frame(self.count, self, None, dict(variables), self.certain)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of all Cases: a name's value in each of them."""

    values: Mapping[str, Array]
    count: int
    found: dict[SymExpr, Ints] = field(default_factory=dict)

    @staticmethod
    def of_cases(cases: Sequence[Mapping[str, int]]) -> Sizes:
        """The sizes of at least one Case."""
        return Sizes({name: np.array([c[name] for c in cases]) for name in cases[0]}, len(cases))

    def of(self, expr: SymExpr) -> Ints:
        """An expression's value in each Case; one integer where that is the same in all."""
        known = self.found.get(expr)
        if known is None:
            known = self._evaluate(expr)
            if isinstance(known, np.ndarray) and (known == known[0]).all():
                known = int(known[0])
            self.found[expr] = known
        return known

    def _evaluate(self, expr: SymExpr) -> Ints:
        total: Ints = 0
        for monomial, coefficient in expr.terms:
            product: Ints = coefficient
            for atom in monomial:
                value = self.values[atom] if isinstance(atom, Dim) else _int_call(
                    atom.fn, *_roomy([self.of(a) for a in atom.args]))
                product = mul(*_roomy([product, value], _magnitude(product) * _magnitude(value)))
            total = add(*_roomy([total, product], _magnitude(total) + _magnitude(product)))
        return total

    def at(self, expr: SymExpr, frame: Frame) -> Ints:
        """An expression's value at each instance."""
        value = self.of(expr)
        return value[frame.get(CASE)] if isinstance(value, np.ndarray) else value


class Memory(Protocol):
    """What gives the values of Loads."""

    def load(self, load: Load, frame: Frame) -> Value: ...

    def chose(self, choice: Call, holds: Array, frame: Frame) -> None:
        """Told of a choice, and where its condition holds."""


def int_call(fn: str, *args: Ints) -> Ints:
    """An operation on indices, or on data of their type, which wraps around. Raises KeyError for one that is not meant for
    them."""
    made = _int_call(fn, *args)
    return made if isinstance(made, np.ndarray) else wrapped(int(made))


def _int_call(fn: str, *args: Ints) -> Ints:
    match fn:
        case "add":
            return args[0] + args[1]
        case "sub":
            return args[0] - args[1]
        case "mul":
            return args[0] * args[1]
        case "floordiv" | "//":
            return _divided(args[0], args[1])[0]
        case "mod" | "%":
            return _divided(args[0], args[1])[1]
        case "min" | "max":
            if not any(isinstance(a, np.ndarray) for a in args):
                return min(args) if fn == "min" else max(args)
            made = args[0]
            for other in args[1:]:
                made = np.minimum(made, other) if fn == "min" else np.maximum(made, other)
            return made
        case "neg":
            return -args[0]
        case "bitxor":
            return args[0] ^ args[1]
    raise KeyError(fn)


def _divided(a: Ints, b: Ints) -> tuple[Ints, Ints]:
    zero = np.asarray(b) == 0
    if not zero.any():
        return a // b, a % b
    by = np.where(zero, 1, b)  # integers of data may be 0: quotient and remainder are 0 then, as in `te/intrinsics.py`
    return np.where(zero, 0, a // by), np.where(zero, 0, a % by)


INDEX_CALLS = frozenset({"add", "sub", "mul", "floordiv", "mod", "min", "max", "neg", "bitxor"})
ORDER = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal}


@dataclass(frozen=True, slots=True)
class Reader:
    """What evaluates expressions in Frames."""

    memory: Memory
    sizes: Sizes
    algebra: Algebra

    def ints(self, expr: Expr, frame: Frame) -> Ints:
        """An index expression. Raises Fault where it depends on what nobody wrote."""
        found, poison = self._whole(expr, frame)
        if poison is not None and poison.any():
            raise Fault(f"the index {format_expr(expr)} depends on memory that nobody wrote")
        return found

    def _whole(self, expr: Expr, frame: Frame) -> tuple[Ints, Array | None]:
        """An expression of an index's type, which may be data as well, and where it depends on what nobody wrote."""
        match expr:
            case Var(name=name):
                return frame.get(name), None
            case Const(value=value):
                return int(value), None
            case Size(value=value):
                return self.sizes.at(value, frame), None
            case Call(fn=fn, args=args) if fn in INDEX_CALLS and all(a.dtype == INDEX for a in args):
                return self._called(partial(int_call, fn), args, frame)
        made = self.value(expr, frame)
        if made.is_data:
            raise InternalError(f"{format_expr(expr)} is no index")
        return made.data if made.data.ndim else int(made.data), made.poison

    def _called(self, function: Callable[..., Ints], args: Iterable[Expr], frame: Frame) -> tuple[Ints, Array | None]:
        """A function of such expressions."""
        made = [self._whole(a, frame) for a in args]
        poison = None
        for _, own in made:
            poison = poison if own is None else _or(poison, own)
        return function(*[numbers for numbers, _ in made]), poison

    def value(self, expr: Expr, frame: Frame) -> Value:
        """An expression at every instance."""
        match expr:
            case Load():
                return self.memory.load(expr, frame)
            case Const(value=value, dtype=dtype):
                known = np.asarray(value, np.dtype(dtype))
                return Value(residue(Value(known)), True, exact=Exact(known, EVERYWHERE)) if _is_float(dtype) else Value(known)
            case Call(fn="select", args=(condition, yes, no)):
                test = self.value(condition, frame)
                self.memory.chose(expr, test.data, frame)
                return self._select(test, yes, no, frame)
            case Call(fn=fn, args=(a, b)) if fn in ORDER and a.dtype == INDEX and b.dtype == INDEX:
                holds, poison = self._called(ORDER[fn], (a, b), frame)
                return Value(np.asarray(holds), poison=poison)
            case Call(fn=fn, args=args) if expr.dtype != INDEX or not (
                    fn in INDEX_CALLS and all(a.dtype == INDEX for a in args)):
                return self.algebra.call(fn, expr.dtype, *[self.value(a, frame) for a in args])
            case Cast(value=value, dtype=dtype):
                return self.algebra.cast(self.value(value, frame), value.dtype, dtype)
            case CheckedIndex(value=value, extent=extent):
                checked = self.value(value, frame)  # what is out of range has no meaning: any place will do, the same in both
                limit = np.maximum(self.sizes.at(extent, frame), 1)  # and no place of something empty is there to be read
                return Value(np.asarray(checked.data % limit), poison=checked.poison)
        numbers, poison = self._whole(expr, frame)
        return Value(np.asarray(numbers), poison=poison)

    def condition(self, expr: Expr, frame: Frame) -> Array:
        """A condition that decides what is executed."""
        value = self.value(expr, frame)
        if value.poison is not None and value.poison.any():
            raise Fault(f"the condition {format_expr(expr)} depends on memory that nobody wrote")
        return value.data

    def _select(self, test: Value, yes: Expr, no: Expr, frame: Frame) -> Value:
        """Each side is evaluated where it is chosen, and nowhere else."""
        if not test.data.ndim or test.data.all() or not test.data.any():
            made = self.value(yes if test.data.all() else no, frame)
        else:
            made = chosen(test.data, *(
                self.value(side, frame) if isinstance(side, Const) else _spread(self.value(side, frame.where(kept)), kept)
                for side, kept in ((yes, test.data), (no, ~test.data))))
        return made if test.poison is None else replace(made, poison=_or(made.poison, test.poison))


def _is_float(dtype: str) -> bool:
    return dtype != BOOL and np.dtype(dtype).kind == "f"


def _or(a: Array | None, b: Array) -> Array:
    return b if a is None else a | b


def _spread(value: Value, kept: Array) -> Value:
    """Values of some instances among all; the others have any."""
    def over(data: Array) -> Array:
        if not data.ndim:
            return data
        result = np.zeros(kept.shape, data.dtype)
        result[kept] = data
        return result

    return value.each(over)

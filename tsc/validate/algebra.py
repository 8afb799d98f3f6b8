"""Values of random interpretation: residues modulo a prime for floating-point numbers, true integers and booleans.

A sum or product of residues is exact, so that no order of summation shows. Maxima and minima are those of a lattice: they are
associative, commutative and idempotent, with -inf the least and inf the greatest. Comparisons go by an order of residues. Any
other function of data is a random function: equal where its name, type and arguments are equal.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc.te.expr import BOOL
from tsc.te.intrinsics import BITS, MEANING

Array = NDArray[Any]

#: A Mersenne prime: products of residues fit 64 bits and are reduced by shifts.
PRIME = 2**31 - 1
_P, _SHIFT = np.uint64(PRIME), np.uint64(31)
#: The residues of -inf and NaN; inf is the one before -inf, so that it is the greatest in the order that begins with -inf.
_LEAST, _NAN = 1_234_567_891, 987_654_321
_GREATEST: Array = np.asarray(PRIME - 1, np.uint64)
_FACTOR: Array = np.asarray(1_103_515_245, np.uint64)
_INVERSE: Array = np.asarray(pow(1_103_515_245, -1, PRIME), np.uint64)
_GROUPS = tuple(np.uint64(bits) for bits in (0x7F000000, 0xFC0000, 0x3F000, 0xFC0, 0x3F))
_C1, _C2, _C3 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB), np.uint64(0x9E3779B97F4A7C15)
_S1, _S2 = np.uint64(30), np.uint64(31)
#: Of many numbers the one that, added to -4 to 4, leaves all of them in the middle half of what `mixed` gives (0 gives 0).
_MIDDLE = np.uint64(2_666_007_998)


#: What is known of all instances.
EVERYWHERE: Array = np.asarray(True)


@dataclass(frozen=True, slots=True)
class Exact:
    """Floating-point numbers as they are, made from integers and constants alone, one an instance or one for all; `known` says
    where."""

    data: Array
    known: Array

    def each(self, change: Callable[[Array], Array]) -> Exact:
        """With both arrays changed."""
        return Exact(change(self.data), change(self.known))


@dataclass(frozen=True, slots=True)
class Value:
    """Numbers, one an instance or one for all: residues (`is_data`) or numbers of the dtype. `poison` marks those that depend
    on memory that nobody wrote; `exact` are the numbers that residues stand for, where they are known: comparisons and
    conversions to integers, which may decide about accesses, are then what they are."""

    data: Array
    is_data: bool = False
    poison: Array | None = None
    exact: Exact | None = None

    def each(self, change: Callable[[Array], Array]) -> Value:
        """With all arrays changed."""
        return Value(change(self.data), self.is_data, None if self.poison is None else change(self.poison),
                     None if self.exact is None else self.exact.each(change))

    def take(self, places: Array) -> Value:
        """The values of some instances."""
        return self.each(lambda array: array[places] if array.ndim else array)


def mixed(x: Array) -> Array:
    """A random function of 64 bits."""
    x = (x ^ (x >> _S1)) * _C1
    x = (x ^ (x >> _S2)) * _C2
    return np.asarray(x ^ (x >> _SHIFT))


def key_of(text: str) -> np.uint64:
    """A number for a name, the same in every process."""
    data = text.encode()
    return np.uint64(zlib.crc32(data) << 32 | zlib.adler32(data))


def hashed(key: np.uint64, *parts: Array) -> Array:
    """A random residue for a key and some numbers."""
    state: Array = np.asarray(key)
    for part in parts:
        state = mixed((state ^ part.astype(np.uint64)) * _C3 + _C1)
    return reduced(state >> np.uint64(33))


def reduced(x: Array) -> Array:
    """Numbers below twice the prime as residues."""
    return np.minimum(x, x - _P)


def times(a: Array, b: Array) -> Array:
    """The product of residues."""
    x = a * b
    return reduced((x & _P) + (x >> _SHIFT))


def negated(a: Array) -> Array:
    """Minus a residue."""
    return reduced(_P - a)


def rank(a: Array) -> Array:
    """Where residues stand in their order: -inf first, inf last, all others anywhere, so that neighbours such
    as 1 and 2 are told apart by what they are compared with; 0 and the numbers next to it are far from both ends, so that
    what is compared with them is on either side of them."""
    return np.where(a == _LEAST, np.uint64(0), np.where(a == _LEAST - 1, ~np.uint64(0), mixed(a + _MIDDLE)))


def residue(value: Value) -> Array:
    """Numbers of any dtype as residues: integers are themselves, so that 0 and 1 are neutral; anything else is a random one."""
    if value.is_data:
        return value.data
    data = value.data
    if data.dtype.kind != "f":
        return np.asarray(data.astype(np.int64) % PRIME).astype(np.uint64)
    wide = np.asarray(data, np.float64)
    whole = np.asarray(np.floor(wide) == wide) & (np.abs(wide) < 2.0**53)
    result = np.where(whole, np.where(whole, wide, 0).astype(np.int64) % PRIME, 0).astype(np.uint64)
    if whole.all():
        return result
    result = np.where(whole, result, hashed(np.uint64(1), wide.view(np.uint64)))
    result = np.where(wide == -np.inf, np.uint64(_LEAST), np.where(wide == np.inf, np.uint64(_LEAST - 1), result))
    return np.where(np.isnan(wide), np.uint64(_NAN), result)


def poisoned(*values: Value) -> Array | None:
    """Where any of them is poison."""
    found = [v.poison for v in values if v.poison is not None]
    if not found:
        return None
    result = found[0]
    for other in found[1:]:
        result = result | other
    return result


@dataclass(frozen=True, slots=True)
class Algebra:
    """What intrinsics do to Values. With `ordered`, floating-point addition is a random function too, commutative but not
    associative: results are equal where sums are formed in the same order."""

    ordered: bool = False

    def call(self, fn: str, dtype: str, *args: Value) -> Value:
        """An intrinsic other than select, with a result of `dtype`."""
        poison = poisoned(*args)
        if fn in BITS:
            random, floating = hashed(key_of(fn), args[0].data), dtype.startswith("float")
            made = Value(random if floating else integers(random, dtype), floating, poison)
            known = number(args[0])
            return made if known is None else _exactly(Exact(np.asarray(MEANING[fn](known.data)), known.known), made)
        if any(a.is_data for a in args):
            made = Value(self._data(fn, dtype, [residue(a) for a in args]), dtype != BOOL, poison)
            numbers = [n for a in args if (n := number(a)) is not None]
            if len(numbers) < len(args):
                return made
            exact = np.asarray(MEANING[fn](*(n.data for n in numbers))).astype(np.dtype(dtype), copy=False)
            return _exactly(Exact(exact, _all(n.known for n in numbers)), made)
        if fn == "pow":  # NumPy has none of negative integers
            return Value(integers(hashed(key_of(f"{fn} {dtype}"), *(a.data for a in args)), dtype), poison=poison)
        data = np.asarray(MEANING[fn](*(a.data for a in args)))
        return Value(data.astype(np.dtype(dtype), copy=False), poison=poison)

    def _data(self, fn: str, dtype: str, parts: list[Array]) -> Array:
        if fn == "add":
            return self.sum(*parts)
        if fn == "sub":
            return self.sum(parts[0], negated(parts[1]))
        known = _OF_RESIDUES.get(fn)
        return known(*parts) if known is not None else hashed(key_of(f"{fn} {dtype}"), *parts)

    def sum(self, a: Array, b: Array) -> Array:
        """The sum of residues."""
        if not self.ordered:
            return reduced(a + b)
        made = hashed(np.uint64(2), np.minimum(a, b), np.maximum(a, b))
        return np.where(a == 0, b, np.where(b == 0, a, made))

    def cast(self, value: Value, source: str, dtype: str) -> Value:
        """A conversion. Integers are the same numbers as floating-point data, and floats are as wider ones."""
        floating = np.dtype(dtype).kind == "f"
        if dtype == source or (floating and np.dtype(source).kind == "f" and np.can_cast(source, dtype)):
            return value
        if not value.is_data:
            converted = _converted(value.data, dtype)
            if floating:
                return Value(residue(value), True, value.poison, Exact(converted, EVERYWHERE))
            return Value(converted, poison=value.poison)
        random = hashed(key_of(f"cast {source} {dtype}"), value.data)
        data = value.data != 0 if dtype == BOOL else random if floating else integers(random, dtype)
        made = Value(data, floating, value.poison)
        return made if value.exact is None else _exactly(Exact(_converted(value.exact.data, dtype), value.exact.known), made)


def number(value: Value) -> Exact | None:
    """The numbers that a Value stands for, None where not one is known."""
    return value.exact if value.is_data else Exact(value.data, EVERYWHERE)


def _exactly(exact: Exact, made: Value) -> Value:
    """A Value whose numbers are known: residues with them, or other numbers in place of random ones."""
    if made.is_data:
        return replace(made, exact=exact if exact.known.any() else None)
    return replace(made, data=exact.data if exact.known.all() else np.where(exact.known, exact.data, made.data))


def _all(known: Iterable[Array]) -> Array:
    return reduce(np.logical_and, known)


def _converted(data: Array, dtype: str) -> Array:
    return np.asarray(np.not_equal(data, 0) if dtype == BOOL else data.astype(np.dtype(dtype)))


def integers(random: Array, dtype: str, known: Sequence[int] = ()) -> Array:
    """Random integers or booleans of a dtype: small ones half of the time, so that equal ones occur, and if some are `known`
    to decide something, one of these or beside it in one of four."""
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return np.asarray((random & np.uint64(16)) != 0)
    signed = kind.kind == "i"
    small = ((random >> np.uint64(3)) % np.uint64(9)).astype(np.int64) - 3 * signed
    found = np.where(random & np.uint64(1), small, random.astype(np.int64) - 2**30 * signed)
    if known:
        beside = ((random >> np.uint64(7)) % np.uint64(3)).astype(np.int64) - 1
        deciding = np.array(known)[((random >> np.uint64(11)) % np.uint64(len(known))).astype(np.int64)] + beside
        found = np.where((random >> np.uint64(1)) & np.uint64(3), found, deciding)
    return found.astype(kind)


def chosen(condition: Array, yes: Value, no: Value) -> Value:
    """`yes` where the condition holds, else `no`."""
    poison = None
    if yes.poison is not None or no.poison is not None:
        poison = np.where(condition, False if yes.poison is None else yes.poison, False if no.poison is None else no.poison)
    exact = None
    if yes.exact is not None or no.exact is not None:
        a, b = (Exact(np.zeros((), np.float32), ~EVERYWHERE) if v.exact is None else v.exact for v in (yes, no))
        exact = Exact(np.where(condition, a.data, b.data), np.where(condition, a.known, b.known))
    return Value(np.where(condition, yes.data, no.data), yes.is_data, poison, exact)


def joined(a: Value, first: int, b: Value, second: int) -> Value:
    """`first` instances of one Value, then `second` of another of the same kind."""
    def widened(value: Value, count: int, before: int, behind: int) -> Value:
        return value.each(lambda array: np.pad(np.broadcast_to(array, (count,)), (before, behind)))

    return chosen(np.arange(first + second) < first, widened(a, first, 0, second), widened(b, second, first, 0))


def _either(a: Array, special: tuple[int, ...]) -> Array:
    result: Array = np.asarray((mixed(a + _MIDDLE) & np.uint64(7)) == 0)
    for one in special:
        result = np.asarray(result | (a == np.uint64(one)))
    return result


def _equal(a: Array, b: Array) -> Array:
    """Equal numbers are; of others one pair in four is said to be, so that what is done then is seen."""
    pairs = mixed(mixed(np.minimum(a, b)) + np.maximum(a, b))
    return np.asarray((a == b) | ((pairs & np.uint64(3)) == 0))


def _joined(a: Array, b: Array, least: int) -> Array:
    """What is greatest in each group of digits, counted from `least`: of many numbers, several leave their mark. Numbers are
    spread out first: neighbours such as 0 and 1 would share all digits but the last."""
    a, b = (_spread(reduced(x + np.uint64(PRIME - least)), _FACTOR) for x in (a, b))
    greatest = np.zeros((), np.uint64)
    for group in _GROUPS:
        greatest = greatest | np.maximum(a & group, b & group)
    return reduced(_spread(np.minimum(greatest, _GREATEST), _INVERSE) + np.uint64(least))


def _spread(a: Array, by: Array) -> Array:
    """Residues times a number, but for the least and the greatest, which stay so."""
    found = times(a, by)
    found = np.where(found == _GREATEST, times(_GREATEST, by), found)
    return np.where(a == _GREATEST, _GREATEST, found)


_OF_RESIDUES: dict[str, Callable[..., Array]] = {
    "mul": times, "neg": negated, "tf32": lambda a: a,  # rounding is no difference in value here
    "max": lambda a, b: _joined(a, b, _LEAST), "min": lambda a, b: negated(_joined(negated(a), negated(b), PRIME + 1 - _LEAST)),
    "eq": _equal, "ne": lambda a, b: ~_equal(a, b),
    "lt": lambda a, b: (rank(a) < rank(b)) & ~_equal(a, b), "le": lambda a, b: (rank(a) < rank(b)) | _equal(a, b),
    "gt": lambda a, b: (rank(a) > rank(b)) & ~_equal(a, b), "ge": lambda a, b: (rank(a) > rank(b)) | _equal(a, b),
    "isnan": lambda a: _either(a, (_NAN,)), "isinf": lambda a: _either(a, (_LEAST, _LEAST - 1)),
}

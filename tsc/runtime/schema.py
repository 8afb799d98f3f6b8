"""JSON from a file that nobody vouches for: each value is what it should be, or a ValueError says which is not."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from tsc.sym import GREATEST, Range, SymExpr, parse

#: No size, offset or count is larger.
MAX_NUMBER = GREATEST
LEAST_NUMBER = -(1 << 62)  # the lower end of a size that is no extent and has no known one
MAX_RANK = 32
MAX_EXPRESSION = 1 << 16  # letters
DTYPES = frozenset({"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
                    "float16", "bfloat16", "float32", "float64"})


def from_json(raw: bytes, what: str) -> Any:
    """What the JSON text `raw` says. Raises ValueError naming `what`."""
    try:
        return json.loads(raw)
    except RecursionError as error:
        raise ValueError(f"{what} is nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"{what} is no JSON ({error})") from error


def text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{what} is {shown(value)}, expected a string")
    return value


def whole(value: Any, what: str, low: int = 0, high: int = MAX_NUMBER) -> int:
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{what} is {shown(value)}, expected a whole number from {low} to {high}")
    return value


def items(value: Any, what: str, count: int | None = None) -> list[Any]:
    if not isinstance(value, list) or (count is not None and len(value) != count):
        raise ValueError(f"{what} is {shown(value)}, expected a list{'' if count is None else f' of {count}'}")
    return value


def texts(value: Any, what: str) -> tuple[str, ...]:
    return tuple(text(v, what) for v in items(value, what))


def table(value: Any, what: str, keys: Collection[str] | None = None) -> dict[str, Any]:
    """A dict; with `keys`, of just these."""
    if not isinstance(value, dict):
        raise ValueError(f"{what} is {shown(value)}, expected a table")
    if keys is not None and value.keys() != set(keys):
        odd = sorted(set(keys) ^ value.keys())[0]
        raise ValueError(f"{what} {'lacks' if odd in keys else 'has an unknown'} '{odd}'")
    return value


def dtype(value: Any, what: str) -> str:
    if text(value, what) not in DTYPES:
        raise ValueError(f"{what} is {shown(value)}, expected one of {', '.join(sorted(DTYPES))}")
    return str(value)


def size(value: Any, what: str) -> SymExpr:
    """A size expression from its text."""
    if len(text(value, what)) > MAX_EXPRESSION:
        raise ValueError(f"{what} is an expression of {len(value)} letters; at most {MAX_EXPRESSION} are read")
    try:
        return parse(value)
    except (RecursionError, MemoryError, ArithmeticError, ValueError) as error:
        raise ValueError(f"{what} is {shown(value)}, expected a size expression") from error


def shape(value: Any, what: str) -> tuple[SymExpr, ...]:
    sizes = items(value, what)
    if len(sizes) > MAX_RANK:
        raise ValueError(f"{what} has rank {len(sizes)}; at most {MAX_RANK} is possible")
    return tuple(size(s, what) for s in sizes)


def limits(value: Any, what: str) -> Range:
    """A Range from [least, most or None, divisor]."""
    low, high, divisor = items(value, what, 3)
    return Range(whole(low, what, LEAST_NUMBER), None if high is None else whole(high, what, low), whole(divisor, what, 1))


def shown(value: Any) -> str:
    """`value` in few letters, on one line."""
    try:
        full = repr(value)
    except RecursionError:
        full = type(value).__name__
    return full if len(full) <= 60 else f"{full[:57]}..."

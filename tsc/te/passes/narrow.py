"""Whole numbers that fit into fewer bits than they are computed in, as those of quantised networks do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tsc.te.expr import Call, Cast, Const, Expr, Load

#: The least and the most of some numbers.
Ends: TypeAlias = tuple[int, int]

_OF_DTYPE: dict[str, Ends] = {
    "bool": (0, 1), "int8": (-(1 << 7), (1 << 7) - 1), "uint8": (0, (1 << 8) - 1), "int16": (-(1 << 15), (1 << 15) - 1)}
#: Those that 16 bits hold.
INT16 = _OF_DTYPE["int16"]


def ends_of_dtype(dtype: str) -> Ends | None:
    """Those of a dtype of at most 16 bits with a sign."""
    return _OF_DTYPE.get(dtype)


def within(ends: Ends | None, most: Ends | None) -> bool:
    """Whether numbers are seen to lie within others."""
    return ends is not None and most is not None and most[0] <= ends[0] and ends[1] <= most[1]


def fits_int16(expr: Expr) -> bool:
    """Whether a whole number is seen to be one that 16 bits hold."""
    return within(ends_of(expr), INT16)


def are_apart(left: Expr, right: Expr) -> bool:
    """Whether both are elements that are bytes, as they are or widened, one with a sign and one without."""
    first, second = as_narrow(left), as_narrow(right)
    return isinstance(first, Load) and isinstance(second, Load) and {first.dtype, second.dtype} == {"int8", "uint8"}


def are_bfloats(left: Expr, right: Expr) -> bool:
    """Whether both are elements of bfloat16."""
    return all(isinstance(as_narrow(x), Load) and isinstance(x, Call) and x.fn == "from_bfloat" for x in (left, right))


def as_narrow(expr: Expr) -> Expr:
    """What a number was before it was widened, where that is seen; else itself."""
    if isinstance(expr, Call) and expr.fn == "from_bfloat":
        return expr.args[0]
    while isinstance(expr, Cast) and expr.dtype in ("int32", "int16") and expr.value.dtype in _OF_DTYPE:
        expr = expr.value
    return expr


def ends_of(expr: Expr, of: Callable[[Load], Ends | None] = lambda load: ends_of_dtype(load.dtype)) -> Ends | None:
    """Between which numbers an integer lies, `of` saying it of what is loaded; None where that is not seen."""
    match expr:
        case Load():
            return of(expr)
        case Const(value=int(number)):
            return int(number), int(number)
        case Cast(value=value, dtype=dtype):
            own, inner = ends_of_dtype(dtype), ends_of(value, of)
            if inner is None or (own is None and dtype not in ("int32", "int64")):
                return own
            return inner if own is None or within(inner, own) else own
        case Call(fn="add" | "sub" as fn, args=(left, right)) if expr.dtype in ("int32", "int64"):
            first, second = ends_of(left, of), ends_of(right, of)
            if first is None or second is None:
                return None
            low, high = second if fn == "add" else (-second[1], -second[0])
            return first[0] + low, first[1] + high
        case Call(fn="select", args=(_, yes, no)):
            first, second = ends_of(yes, of), ends_of(no, of)
            return None if first is None or second is None else (min(first[0], second[0]), max(first[1], second[1]))
    return None

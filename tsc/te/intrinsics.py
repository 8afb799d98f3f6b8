"""The intrinsics of the expression language, each with its meaning as a NumPy function.

Arguments share one dtype unless stated. Integer `floordiv` and `mod` round down as in Python; `div` is true division for
floats and truncating for integers (C, ONNX). `select(c, a, b)` takes a bool first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np


def _truncating_div(a: Any, b: Any) -> Any:
    if not np.issubdtype(np.result_type(a), np.integer):
        return np.divide(a, b)
    with np.errstate(all="ignore"):
        rest = np.remainder(a, b)
        return np.floor_divide(a, b) + ((rest != 0) & ((np.less(a, 0)) != np.less(b, 0)))


def _power(a: Any, b: Any) -> Any:
    """Of integers with what does not fit wrapping around; a negative exponent rounds the quotient towards zero, 0 for 1 / 0."""
    if not np.issubdtype(np.result_type(a), np.integer):
        return np.power(a, b)
    below = np.where(a == 1, 1, np.where(a == -1, 1 - 2 * np.bitwise_and(b, 1), 0)) if np.any(np.less(b, 0)) else 0
    return np.where(np.less(b, 0), below, np.power(a, np.maximum(b, 0))).astype(np.result_type(a))


def _erf(x: Any) -> Any:
    return np.vectorize(math.erf, otypes=[np.float64])(x).astype(np.result_type(x))


def converted(value: Any, dtype: np.dtype[Any]) -> Any:
    """What `Cast` means: anything to bool is `!= 0`, integers wrap around, floats are truncated.

    The ONNX standard leaves a float open that no integer of `dtype` equals. Here it is what the instructions of x86 give, and
    with them ONNX Runtime and NumPy: the least int32 (int64 for 8 bytes), of which narrower types keep the low bits; an
    unsigned type of 4 or 8 bytes converts its upper half from there.
    """
    given = np.asarray(value)
    if dtype == np.bool_:
        return np.not_equal(given, 0)
    if given.dtype.kind != "f" or dtype.kind not in "iu":
        return given.astype(dtype)
    signed = np.dtype(f"int{max(32, 8 * dtype.itemsize)}")
    bound = -float(np.iinfo(signed).min)
    wide = np.trunc(given.astype(np.float64))
    upper = (wide >= bound) & (dtype in (np.dtype(np.uint32), np.dtype(np.uint64)))
    wide = np.where(upper, wide - bound, wide)
    whole = np.where((wide >= -bound) & (wide < bound), wide, -bound).astype(signed)
    return np.where(upper, whole ^ np.iinfo(signed).min, whole).astype(dtype)


def _tf32(x: Any) -> Any:
    """What a matrix instruction takes of a float32: all but the lower 13 bits."""
    return (np.asarray(x, np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def _bits(source: str, dtype: str) -> Callable[[Any], Any]:
    """The bits of numbers of one type, as numbers of another."""
    return lambda x: np.asarray(x, source).view(dtype)[()]


def _from_bfloat(x: Any) -> Any:
    """The float32 of which these bits, a bfloat16's, are the upper half."""
    return (np.asarray(x, np.uint32) << np.uint32(16)).view(np.float32)[()]


def _to_bfloat(x: Any) -> Any:
    """The upper half of a float32, rounded to the nearest, ties to the even one; what is no number stays none."""
    x = np.asarray(x, np.float32)
    whole = x.view(np.uint32).astype(np.uint64)
    return np.where(np.isnan(x), 0x7FC0, (whole + 0x7FFF + (whole >> 16 & 1)) >> 16).astype(np.uint16)[()]


def _word(*parts: Any) -> Any:
    """The int32 of which each of several whole numbers has as many bits, the first one the lowest."""
    each = 32 // len(parts)
    whole = sum((np.asarray(part, np.int64) & ((1 << each) - 1)) << (each * k) for k, part in enumerate(parts))
    return np.asarray(whole).astype(np.int32)[()]


def _dot(*kinds: Any) -> Callable[[Any, Any], Any]:
    """The sum of the products of the parts of two words, which are of these types."""
    def meaning(a: Any, b: Any) -> Any:
        parts = [np.asarray(x, "<i4")[..., None].view(kind).astype(np.int64) for x, kind in zip((a, b), kinds)]
        return (parts[0] * parts[1]).sum(-1).astype(np.int32)[()]
    return meaning


#: What makes a word of so many whole numbers, and what sums up the products of the parts of two words: of int16, and of uint8
#: with int8.
WORDS: dict[int, tuple[str, str]] = {2: ("pair", "dot_pair"), 4: ("quad", "dot_quad")}

#: What takes bits for numbers of the type that it is named by: of floats, and of unsigned integers as wide; and what makes
#: float32 of the bits of bfloat16, which are uint16, and those of it.
BITS: dict[str, Callable[[Any], Any]] = {
    f"as_{dtype}": _bits(source, dtype) for bits in (32, 64)
    for source, dtype in ((f"float{bits}", f"uint{bits}"), (f"uint{bits}", f"float{bits}"))} | {
    "from_bfloat": _from_bfloat, "to_bfloat": _to_bfloat}

MEANING: dict[str, Callable[..., Any]] = {
    # arithmetic
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": _truncating_div, "floordiv": np.floor_divide,
    "mod": np.mod, "fmod": np.fmod, "pow": _power, "neg": np.negative, "abs": np.abs, "min": np.minimum,
    "max": np.maximum, "sign": np.sign, "reciprocal": np.reciprocal,
    # transcendental
    "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "erf": _erf, "tanh": np.tanh, "sin": np.sin, "cos": np.cos,
    "floor": np.floor, "ceil": np.ceil, "round": np.rint,
    "tf32": _tf32, **BITS,
    # comparison (bool result)
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "isnan": np.isnan, "isinf": np.isinf,
    # logic (bool in, bool out)
    "and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor, "not": np.logical_not,
    # bits (integers)
    "bitand": np.bitwise_and, "bitor": np.bitwise_or, "bitxor": np.bitwise_xor, "shl": np.left_shift, "shr": np.right_shift,
    # words of whole numbers (int32)
    "pair": _word, "quad": _word, "dot_pair": _dot("<i2", "<i2"), "dot_quad": _dot("<u1", "<i1"),
    # choice
    "select": np.where,
}

#: Intrinsics that cost tens of instructions: never recomputed to save a buffer.
EXPENSIVE = frozenset({"exp", "log", "erf", "tanh", "sin", "cos", "pow"})

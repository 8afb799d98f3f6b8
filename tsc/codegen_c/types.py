"""How dtypes, names and literals are written in C."""

from __future__ import annotations

import math
import re

import numpy as np

from tsc.errors import UnsupportedError

#: Storage and compute type of each dtype; `bool` is stored as a byte that is 0 or 1, and nothing computes with halves.
C_TYPES = {
    "float32": "float", "float64": "double", "int8": "int8_t", "int16": "int16_t", "int32": "int32_t", "int64": "int64_t",
    "uint8": "uint8_t", "uint16": "uint16_t", "uint32": "uint32_t", "uint64": "uint64_t", "bool": "uint8_t",
    "float16": "tsc_half"}

_RESERVED = frozenset(re.findall(r"\w+", """
    auto break case char const continue default do double else enum extern float for goto if inline int long register
    restrict return short signed sizeof static struct switch typedef union unsigned void volatile while args scratch
    block_begin block_end main exp log erf tanh sin cos pow floor ceil round abs min max"""))


def c_type(dtype: str) -> str:
    """The C type of `dtype`. Raises UnsupportedError for dtypes that the C back end does not compute with."""
    if dtype not in C_TYPES:
        raise UnsupportedError(f"the C back end does not support dtype {dtype}; convert the model to float32")
    return C_TYPES[dtype]


def identifier(name: str) -> str:
    """A C identifier made from `name`."""
    clean = re.sub(r"\W", "_", name, flags=re.ASCII)
    return f"{clean}_" if clean in _RESERVED or not clean or clean[0].isdigit() or clean.startswith("tsc_") else clean


def literal(value: int | float | bool, dtype: str) -> str:
    """A C literal of exactly `value`."""
    if dtype in ("float32", "float64"):
        suffix = "f" if dtype == "float32" else ""
        number = float(np.float32(value)) if dtype == "float32" else float(value)
        if math.isnan(number):
            return f'__builtin_nan{suffix}("")'
        if math.isinf(number):
            return f"({'-' if number < 0 else ''}__builtin_inf{suffix}())"
        return f"{number!r}{suffix}" if math.copysign(1.0, number) > 0 else f"({number!r}{suffix})"
    if dtype == "float16":
        return f"((tsc_half){{{np.float16(value).view(np.uint16)}}})"
    whole = int(value)
    if whole == -(2**63):
        return "INT64_MIN"
    if abs(whole) < 2**31:
        return str(whole) if whole >= 0 else f"({whole})"
    return f"UINT64_C({whole})" if whole >= 2**63 else f"INT64_C({whole})" if whole >= 0 else f"(-INT64_C({-whole}))"


def zeros(value: int | float | bool, dtype: str) -> str:
    """The header's array of zeros that elements can be read from where they are `value`: "" where that is no such zero."""
    same = dtype in ("float32", "float64", "int32") and literal(value, dtype) == literal(0, dtype)
    return f"tsc_zeros_{c_type(dtype)}" if same else ""


def vector_type(dtype: str, lanes: int) -> str:
    """The vector of `lanes` elements; a vector of bools is a mask of int32 lanes that are 0 or -1."""
    return f"tsc_{'int32' if dtype == 'bool' else dtype}x{lanes}"

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
    if np.issubdtype(np.result_type(a), np.integer):
        magnitude = np.abs(a) // np.abs(b)
        return np.where((a < 0) ^ (b < 0), -magnitude, magnitude).astype(np.result_type(a))
    return np.divide(a, b)


def _erf(x: Any) -> Any:
    return np.vectorize(math.erf, otypes=[np.float64])(x).astype(np.result_type(x))


def _tf32(x: Any) -> Any:
    """What a matrix instruction takes of a float32: all but the lower 13 bits."""
    return (np.asarray(x, np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


MEANING: dict[str, Callable[..., Any]] = {
    # arithmetic
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": _truncating_div, "floordiv": np.floor_divide,
    "mod": np.mod, "fmod": np.fmod, "pow": np.power, "neg": np.negative, "abs": np.abs, "min": np.minimum,
    "max": np.maximum, "sign": np.sign, "reciprocal": np.reciprocal,
    # transcendental
    "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "erf": _erf, "tanh": np.tanh, "sin": np.sin, "cos": np.cos,
    "floor": np.floor, "ceil": np.ceil, "round": np.rint,
    "tf32": _tf32,
    # comparison (bool result)
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "isnan": np.isnan, "isinf": np.isinf,
    # logic (bool in, bool out)
    "and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor, "not": np.logical_not,
    # bits (integers)
    "bitxor": np.bitwise_xor,
    # choice
    "select": np.where,
}

#: Intrinsics that cost tens of instructions: never recomputed to save a buffer.
EXPENSIVE = frozenset({"exp", "log", "erf", "tanh", "sin", "cos", "pow"})

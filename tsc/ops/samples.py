"""Deterministic sample tensors for the operators' own tests."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def floats(*shape: int, low: float = -2.0, high: float = 2.0, dtype: str = "float32") -> NDArray[np.floating]:
    """Uniform values in [low, high)."""
    return np.random.default_rng(sum(shape) + len(shape)).uniform(low, high, shape).astype(dtype)


def ints(*shape: int, low: int = -5, high: int = 6, dtype: str = "int64") -> NDArray[np.integer]:
    """Integers in [low, high)."""
    return np.random.default_rng(sum(shape) + 7).integers(low, high, shape).astype(dtype)


def bools(*shape: int) -> NDArray[np.bool_]:
    """Random truth values."""
    return np.random.default_rng(sum(shape) + 11).integers(0, 2, shape).astype(bool)


def vector(*values: int) -> NDArray[np.int64]:
    """A 1-D int64 tensor."""
    return np.array(values, dtype=np.int64)


def scalar(value: float, dtype: str = "float32") -> NDArray[np.generic]:
    """A 0-D tensor."""
    return np.array(value, dtype=dtype)


def octets(*shape: int, signed: bool = False) -> NDArray[np.integer]:
    """Any integers of 8 bits."""
    return ints(*shape, low=-128 if signed else 0, high=128 if signed else 256, dtype="int8" if signed else "uint8")


def scales(*shape: int) -> NDArray[np.floating]:
    """What steps of integers of few bits stand for."""
    return floats(*shape, low=0.01, high=0.1)

"""Random element values: ordinary ones, small integers that tie, wide magnitudes, and what number formats single out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Sizes = Mapping[str, int]
#: Values of an operand: a generator, its shape, the sizes of the run -> an array of the operand's dtype.
Draw = Callable[[np.random.Generator, tuple[int, ...], Sizes], Array]

#: Places beyond an array, as far as an int64 goes.
FAR = (2**63 - 1, 2**31 - 1, -(2**63), -(2**31), 2**62, 1000, -1000)
MOODS = ("ordinary", "whole", "special", "wide", "extreme")
WEIGHTS = (60, 14, 12, 7, 7)
_SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-45, 1.0, -1.0, 0.5, -2.5)


def mood(rng: Random) -> str:
    """What kind of values an operand gets."""
    return rng.choices(MOODS, WEIGHTS)[0]


def plain(dtype: str, kind: str = "ordinary") -> Draw:
    """Values of `dtype` in the mood `kind`."""
    if dtype == "bool":
        return lambda gen, shape, sizes: np.asarray(gen.random(shape) > 0.5)
    return (lambda gen, shape, sizes: _floats(gen, shape, dtype, kind)) if dtype.startswith("float") else (
        lambda gen, shape, sizes: _integers(gen, shape, dtype, kind))


def _floats(gen: np.random.Generator, shape: tuple[int, ...], dtype: str, kind: str) -> Array:
    if kind == "whole":
        return np.asarray(gen.integers(-4, 5, shape), dtype)
    limits = np.finfo(dtype)
    if kind == "extreme":
        choices = np.array([limits.max, limits.min, limits.tiny, -limits.tiny, limits.smallest_subnormal, limits.eps, 1, -1, 0,
                            -0.0, 88.7, -103.9, 1e15, 2**24 + 1, -(2**31), 2**63], dtype)
        return np.asarray(gen.choice(choices, shape), dtype)
    found = np.asarray(gen.standard_normal(shape) * 2)
    if kind == "wide":
        powers = 10.0 ** np.asarray(gen.uniform(-30, 30, shape))
        return np.asarray(found * powers, dtype)
    if kind == "special":
        found = np.where(gen.random(shape) < 0.25, gen.choice(np.array(_SPECIAL), shape), found)
    with np.errstate(over="ignore"):
        return np.asarray(found, dtype)


def _integers(gen: np.random.Generator, shape: tuple[int, ...], dtype: str, kind: str) -> Array:
    limits = np.iinfo(dtype)
    if kind == "extreme":
        choices = [limits.min, limits.max, limits.max - 1, 0, 1, limits.max // 2 + 1]
        return np.asarray(gen.choice(np.array(choices, dtype), shape), dtype)
    if kind == "wide":
        return np.asarray(gen.integers(limits.min, limits.max, shape, dtype, endpoint=True))
    return np.asarray(gen.integers(max(limits.min, -6), 7, shape), dtype)


def within(dtype: str, low: float, high: float) -> Draw:
    """Uniform values of [low, high), whole ones for integer types."""
    if dtype.startswith("float"):
        return lambda gen, shape, sizes: np.asarray(gen.uniform(low, high, shape), dtype)
    return lambda gen, shape, sizes: np.asarray(gen.integers(int(low), int(high), shape), dtype)


def nonzero(dtype: str, kind: str = "ordinary") -> Draw:
    """As `plain`, but no integer is 0 or -1: to divide by 0, or the least integer by -1, has no meaning."""
    draw = plain(dtype, kind)

    def made(gen: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
        found = draw(gen, shape, sizes)
        harmful = (found == 0) | (found + 1 == 0)
        return found if found.dtype.kind == "f" else np.asarray(np.where(harmful, 3, found), found.dtype)

    return made


def places(dtype: str, extent: str | int, from_end: bool = True) -> Draw:
    """Indices of a dim of size `extent`."""
    def made(gen: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
        high = max(at(extent, sizes), 1)
        return np.asarray(gen.integers(-high if from_end else 0, high, shape), dtype)

    return made


def fixed(values: Any, dtype: str = "int64") -> Draw:
    """These values."""
    return lambda gen, shape, sizes: np.asarray(values, dtype).reshape(shape)


def computed(fn: Callable[[Sizes], Any], dtype: str = "int64") -> Draw:
    """Values that follow from the sizes of the run."""
    return lambda gen, shape, sizes: np.asarray(fn(sizes), dtype).reshape(shape)


def at(dim: str | int, sizes: Sizes) -> int:
    """A dim's value in a run."""
    return dim if isinstance(dim, int) else sizes[dim]


def shape_at(dims: Sequence[str | int], sizes: Sizes) -> tuple[int, ...]:
    """A shape in a run."""
    return tuple(at(d, sizes) for d in dims)

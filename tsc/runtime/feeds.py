"""Random inputs of a model at some sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc.errors import InputError, ShapeError
from tsc.runtime.memory import allocate_array
from tsc.runtime.plan import TensorSpec


def dims_of(specs: Sequence[TensorSpec]) -> set[str]:
    """The dims that shapes of inputs have, and what inputs hold where sizes depend on it."""
    return {name for spec in specs for size in (*spec.shape, *spec.contents) for name in size.dims()}


def random_feeds(specs: Sequence[TensorSpec], sizes: Mapping[str, int], seed: int) -> dict[str, NDArray[Any]]:
    """Normal numbers, whole ones 0 or 1 (they may be indices), and what sizes depend on as the sizes have it. Raises InputError
    for a dim that is missing or unknown, ShapeError where a shape would be none, LaunchError where memory is short."""
    rng, known = np.random.default_rng(seed), dims_of(specs)
    if missing := sorted(known - sizes.keys()):
        raise InputError(f"random inputs need a size for {', '.join(missing)}")
    for name in sizes.keys() - known:
        raise InputError(f"there is no dim '{name}' among {', '.join(sorted(known)) or 'none'}")
    feeds: dict[str, NDArray[Any]] = {}
    for spec in specs:
        shape, dtype = tuple(size.evaluate(sizes) for size in spec.shape), spec.numpy
        if min(shape, default=0) < 0:
            raise ShapeError(f"input '{spec.name}' would have the shape {list(shape)}; give other sizes")
        allocate_array(shape, np.dtype(np.float64), f"random data for input '{spec.name}'")  # a LaunchError where it cannot be
        if spec.contents:
            told = np.array([size.evaluate(sizes) for size in spec.contents], np.float64) / spec.steps
            feeds[spec.name] = told.reshape(shape).astype(dtype)
            continue
        data = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 2, shape)
        feeds[spec.name] = np.asarray(data, dtype=dtype)
    return feeds

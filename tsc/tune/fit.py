"""From measured times to the Rates by which a run picks Variants: non-negative least squares of relative errors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from tsc.runtime.cost import Rates
from tsc.tune.records import Record

#: Femtoseconds of a nanosecond.
_FEMTO = 1_000_000


def fitted(records: Sequence[Record]) -> Rates:
    """The Rates by which times of one config, all on one unit, come out best: each relative error counts alike."""
    kinds = sorted({kind for record in records for kind in record.work or {}})
    table = np.array([[1, r.blocks, *((r.work or {}).get(kind, 0) for kind in kinds)] for r in records], np.float64)
    times = np.array([float(r.nanoseconds or 1) for r in records])
    launch, block, *each = non_negative(table / times[:, None], np.ones(len(times)))
    return Rates(round(float(launch) * _FEMTO), round(float(block) * _FEMTO),
                 tuple((kind, rate) for kind, value in zip(kinds, each) if (rate := round(float(value) * _FEMTO))))


def non_negative(table: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The x >= 0 of least |table @ x - values|, exactly: of few columns, every choice of those that are not zero is tried
    (Lawson and Hanson 1974, chapter 23: the optimum is the unconstrained one of some such choice)."""
    count = table.shape[1]
    scale = np.abs(table).max(axis=0, initial=0)
    used = [k for k in range(count) if scale[k] > 0]
    best, least = np.zeros(count), float(values @ values)
    for size in range(1, len(used) + 1):
        for chosen in combinations(used, size):
            columns = list(chosen)
            found = np.linalg.lstsq(table[:, columns] / scale[columns], values, rcond=None)[0]
            if found.min() < 0:
                continue
            error = table[:, columns] / scale[columns] @ found - values
            if float(error @ error) < least * (1 - 1e-9):  # fewer columns where that is as good
                least, best = float(error @ error), np.zeros(count)
                best[columns] = found / scale[columns]
    return best

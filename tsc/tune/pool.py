"""From the records of a group to its pool: the few configs that together are fast at all sizes, with their Rates.

The set is a greedy cover of the measured matrix of configs and sizes (the gain of one more is submodular, so that it is within
1 - 1/e of the best; Nemhauser et al. 1978). A size counts once for each number of units that a run may have.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tsc.poly.tile import TileConfig, config_to_json
from tsc.runtime.cost import Rates, total
from tsc.tune.fit import fitted
from tsc.tune.records import Place, Record, place_of

#: One more config has to make the mean size so much faster, or one that is looked at.
WORTH, WORTH_AT_ONE = 0.005, 0.03


@dataclass(frozen=True, slots=True)
class Matrix:
    """Times of configs (rows) at sizes, each with a number of units (columns), in nanoseconds; `rates` are the configs'."""

    configs: tuple[TileConfig, ...]
    columns: tuple[tuple[Place, int], ...]
    times: NDArray[np.float64]
    rates: tuple[Rates, ...]


def matrix_of(records: Iterable[Record], units: Sequence[int] = (1,)) -> Matrix | None:
    """What is known of the configs of one group that were measured at the same sizes: of all that some config was, those with
    the most measurements. On a number of units on which not all were measured times are changed as the config's Rates have it.
    None where nothing was measured."""
    measured = counted(records)
    if not measured:
        return None
    chosen = max({frozenset(own) for own in measured.values()}, key=lambda sizes: (
        len(sizes) * sum(own.keys() >= sizes for own in measured.values()), len(sizes), sorted(sizes)))
    configs = sorted((c for c, own in measured.items() if own.keys() >= chosen), key=config_to_json)
    rates = tuple(fitted([own for _, own in sorted(measured[config].items())]) for config in configs)
    columns = [(place, n) for place in sorted({place for place, _ in chosen}) for n in units]
    nearest = [min((abs(n - had), had) for at, had in chosen if at == place)[1] for place, n in columns]
    times = [[_time(measured[config][place, had], rate, n) for (place, n), had in zip(columns, nearest)]
             for config, rate in zip(configs, rates)]
    return Matrix(tuple(configs), tuple(columns), np.array(times), rates)


def counted(records: Iterable[Record]) -> dict[TileConfig, dict[tuple[Place, int], Record]]:
    """The measurement that counts of each config at each of its sizes, on each number of units: the fastest, of final ones
    where there are any, since of many configs that are measured once the fastest were lucky."""
    measured = [record for record in records if record.nanoseconds is not None]
    found: dict[TileConfig, dict[tuple[Place, int], Record]] = {}
    for record in [record for record in measured if record.final] or measured:
        own, key = found.setdefault(record.config, {}), (place_of(record.sizes), record.units)
        if key not in own or (own[key].nanoseconds or 0) > (record.nanoseconds or 0):
            own[key] = record
    return found


def cover(times: NDArray[np.float64], most: int, worth: float = WORTH, at_one: float = math.inf) -> list[int]:
    """At most so many rows that together have the least times, as the geometric mean over columns has it; each has to make
    that smaller by the factor `worth`, or a column's by the factor `at_one`. They are taken in turn, then exchanged as long
    as that helps; the best alone comes first."""
    logs = np.log(times)
    chosen = [int(logs.mean(axis=1).argmin())]
    while len(chosen) < most:
        best = logs[chosen].min(axis=0)
        means = np.minimum(logs, best).mean(axis=1)
        following = int(means.argmin())
        if best.mean() - means[following] < worth and (best - logs[following]).max() < at_one:
            break
        chosen.append(following)
    while (better := _exchanged(logs, chosen)) is not None:
        chosen = better
    first = min(chosen, key=lambda row: float(logs[row].mean()))
    return [first, *(row for row in chosen if row != first)]


def pooled(times: NDArray[np.float64], most: int) -> list[int]:
    """The cover that makes a pool: what only makes one size faster is in it, too, where that is so by more than noise."""
    return cover(times, most, WORTH, WORTH_AT_ONE)


def _exchanged(logs: NDArray[np.float64], chosen: list[int]) -> list[int] | None:
    """Other rows, one of them exchanged, whose least logarithms are smaller on average; None where there are none."""
    least = float(logs[chosen].min(axis=0).mean())
    for place in range(len(chosen) if len(chosen) > 1 else 0):
        rest = [row for k, row in enumerate(chosen) if k != place]
        means = np.minimum(logs, logs[rest].min(axis=0)).mean(axis=1)
        if means.min() < least - 1e-9:
            return [*rest[:place], int(means.argmin()), *rest[place:]]
    return None


def pool_of(records: Iterable[Record], most: int, units: Sequence[int] = (1,)) -> dict[TileConfig, Rates]:
    """The pool of a group: at most so many configs, the best single one first."""
    found = matrix_of(records, units)
    return {} if found is None else {found.configs[k]: found.rates[k] for k in pooled(found.times, most)}


def shortfall(found: Matrix, chosen: Sequence[int]) -> float:
    """How much longer a mean size takes with some of the configs than with all, each size with its fastest."""
    logs = np.log(found.times)
    return math.exp(float((logs[list(chosen)].min(axis=0) - logs.min(axis=0)).mean())) - 1


def gained(found: Matrix, chosen: Sequence[int], first: int) -> float:
    """The logarithm of how many times as fast some of the configs are as the `first`, in the mean over sizes, each with its
    fastest."""
    logs = np.log(found.times)
    return float((logs[first] - logs[list(chosen)].min(axis=0)).mean())


def _time(record: Record, rates: Rates, units: int) -> float:
    time = float(record.nanoseconds or 1)
    if units == record.units:
        return time
    alone, together = (total(rates.terms(record.blocks, record.work or {}, n)) for n in (record.units, units))
    return time * together / alone if alone else time

"""From measured times to the Rates by which a run picks Variants: non-negative least squares of relative errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tsc.runtime.cost import BLOCKS, MAX_SEEN, Rates, total
from tsc.tune.records import Record

#: Femtoseconds of a nanosecond, and thousandths of a time that no measurement tells.
_FEMTO, _EXACT = 1_000_000, 2
#: What helps less, or is less, beside all there is, is rounding.
_AS_GOOD = 1e-9


def fitted(records: Sequence[Record]) -> Rates:
    """The Rates by which times of one config come out best: each relative error counts alike. What cannot be told apart (of
    units that have one block at a time waiting and being busy; of one unit itself and the device) is the wave's."""
    resident, units = records[0].resident, max(record.units for record in records)
    kinds = [BLOCKS, *sorted({kind for record in records for kind in record.work or {}})]
    counts = np.array([[({BLOCKS: r.blocks} | dict(r.work or {})).get(kind, 0) for kind in kinds] for r in records], np.float64)
    share = counts / np.array([[max(1, r.blocks)] for r in records])
    waves, turns = (np.array([[-(-r.blocks // (r.units * together))] for r in records]) for together in (resident, 1))
    parts = [share * waves, share * turns if resident > 1 else share * 0, counts if units > 1 else share * 0]
    times = np.array([float(r.nanoseconds or 1) for r in records])
    table = np.concatenate([np.ones((len(records), 1)), *parts], axis=1) / times[:, None]
    launch, *rates = (round(float(x) * _FEMTO) for x in non_negative(table, np.ones(len(times))))
    wave, unit, device = (tuple((kind, rate) for kind, rate in zip(kinds, rates[k * len(kinds):]) if rate) for k in range(3))
    found = Rates(launch, wave, unit, device, resident)
    return replace(found, seen=_seen(found, records))


def _seen(rates: Rates, records: Sequence[Record]) -> tuple[tuple[int, int, int], ...]:
    """Where times are others than Rates have it, as they do where caches end, and how: equal sums have the mean."""
    ratios: dict[int, dict[int, list[float]]] = {}
    for record in records:
        expected = round(total(rates.terms(record.blocks, record.work or {}, record.units)))
        own = ratios.setdefault(record.units, {}).setdefault(expected, [])
        own.append((record.nanoseconds or 1) * _FEMTO / max(1, expected))
    most, found = max(1, MAX_SEEN // len(ratios)), list[tuple[int, int, int]]()
    for units, sums in sorted(ratios.items())[:MAX_SEEN]:
        rows = sorted((units, expected, round(1000 * sum(own) / len(own))) for expected, own in sums.items())
        found += rows[::-(-len(rows) // most)]  # of many sizes some
    return tuple(found) if any(abs(ratio - 1000) > _EXACT for _, _, ratio in found) else ()


def non_negative(table: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The x >= 0 of least |table @ x - values|, with few columns that are not zero: one more is taken where it helps most, and
    those that would become negative are given up (Lawson and Hanson 1974, chapter 23)."""
    scale = np.abs(table).max(axis=0, initial=0)
    columns = table / np.where(scale > 0, scale, 1)
    lengths, found, taken = np.linalg.norm(columns, axis=0), np.zeros(table.shape[1]), list[int]()
    for _ in range(3 * table.shape[1]):
        helps = columns.T @ (values - columns @ found) - _AS_GOOD * lengths * float(np.linalg.norm(values))
        helps[taken] = 0
        if helps.max(initial=0) <= 0:
            break
        taken.append(int(helps.argmax()))
        while taken:
            wanted = np.linalg.lstsq(columns[:, taken], values, rcond=None)[0]
            here = found[taken]
            negative = wanted <= 0
            if not negative.any():
                found[taken] = wanted
                break
            steps, falls = np.full(len(taken), np.inf), (here - wanted)[negative]
            steps[negative] = here[negative] / np.where(falls > 0, falls, 1)
            found[taken] = here + steps.min() * (wanted - here)  # as far as none is negative
            given_up = [k for k, step in zip(taken, steps) if step == steps.min()]
            found[given_up] = 0
            taken = [k for k in taken if k not in given_up]
    return found / np.where(scale > 0, scale, 1)

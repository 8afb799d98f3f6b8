"""The host program of a straight Plan where no code of the host's comes with its kernels: the same tables, told by NumPy."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise

import numpy as np
from numpy.typing import NDArray

from tsc.runtime.bind import Binder, Bound, Shapes
from tsc.runtime.bounds import Bounds
from tsc.runtime.cost import Cost
from tsc.runtime.host_program import Ready
from tsc.runtime.host_tables import Tables
from tsc.runtime.memory import round_up
from tsc.runtime.plan import Launch
from tsc.runtime.segments import Rows, rows_of
from tsc.runtime.select import MEMO, least
from tsc.runtime.tape import run_operations

#: What a Variant is expected to take, by call: its Cost, the slots of its blocks and of its work.
_Timed = tuple[tuple[Cost, int, tuple[int, ...]], ...]
_Choice = tuple[_Timed, ...]


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The rows of a choice of Variants, with the slots of their blocks, of their scratch, and of their arguments' offsets."""

    rows: Rows
    blocks: NDArray[np.int64]
    scratch: NDArray[np.int64]
    offsets: NDArray[np.int64]


class NumpyProgram:
    """What a HostProgram is, with numbers of any length where it computes, and of 64 bits in what it finds."""

    def __init__(self, binder: Binder, bounds: Bounds, units: int) -> None:
        plan, self._units = binder.plan, units
        made = Tables(binder, bounds, {name: number for number, name in enumerate(plan.functions)})
        self._launches = [launch for segment in binder.segments for launch in segment.launches]
        choices = _choices(made, self._launches)
        self._ends = list(accumulate([len(spec.shape) for spec in plan.outputs], initial=0))
        self._rest = made.assembly.values[made.given:]
        self._operations = made.assembly.operations
        self._checks = _columns(list(made.checks), 3)
        self._pairs, self._storages = (bounds.first, bounds.second), _columns(made.storages, 2)
        self._extents, self._sizes = made.outputs, np.array(made.sizes, np.int64)
        self._arena = made.arena
        self._calls = _columns([call[1:3] for call in made.calls], 2)
        self._copies = made.copies
        self._distinct = [choice for choice in dict.fromkeys(choices) if choice]  # layers that are alike choose alike
        numbers = {choice: number for number, choice in enumerate(self._distinct)}
        self._numbers = [numbers[choice] if choice else None for choice in choices]
        self._memo: OrderedDict[tuple[int, ...], _Chosen] = OrderedDict()

    def bind(self, shapes: Shapes) -> Ready | None:
        """As HostProgram.bind."""
        slots = [*chain.from_iterable(shapes), *self._rest]
        try:
            run_operations(self._operations, slots)
            values = np.array(slots, np.int64)
        except (ZeroDivisionError, OverflowError):
            return None
        return self._ready(slots, values) if self._holds(values) else None

    def _holds(self, values: NDArray[np.int64]) -> bool:
        """Whether all numbers are what they must be, and no two storages in use at a time lie in the same place."""
        low, own, high = values[self._checks]
        if (own < low).any() or (own > high).any():
            return False
        places = values[self._storages]
        (from_a, of_a), (from_b, of_b) = (places[:, one] for one in self._pairs)
        return not ((of_a > 0) & (of_b > 0) & (from_a < from_b + of_b) & (from_b < from_a + of_a)).any()

    def _ready(self, slots: Sequence[int], values: NDArray[np.int64]) -> Ready:
        chosen = self._chosen(slots)
        blocks, scratch = values[chosen.blocks], values[chosen.scratch]
        offsets = values[self._storages[0]]
        copies = tuple((source, int(offsets[source]), target, int(offsets[target]), slots[size])
                       for source, target, size in self._copies)
        most = round_up(int(scratch.max(initial=0)))
        together = max(map(math.prod, zip(blocks.tolist(), scratch.tolist())), default=0)
        whole = Bound(chosen.rows, values[self._sizes], blocks, values[chosen.offsets], copies, most, together)
        extents = [slots[slot] for slot in self._extents]
        outputs = tuple([tuple(extents[begin:end]) for begin, end in pairwise(self._ends)])
        return Ready(outputs, slots[self._arena], most, whole)

    def _chosen(self, slots: Sequence[int]) -> _Chosen:
        key = tuple([least([self._time(variant, slots) for variant in choice]) for choice in self._distinct])
        found = self._memo.get(key)
        if found is None:
            rows = rows_of(self._launches, [0 if number is None else key[number] for number in self._numbers])
            blocks, scratch = self._calls[:, rows.calls]
            found = self._memo[key] = _Chosen(rows, blocks, scratch, self._storages[0][rows.storages])
            if len(self._memo) > MEMO:
                self._memo.popitem(last=False)
        return found

    def _time(self, variant: _Timed, slots: Sequence[int]) -> float:
        time = 0.0
        for cost, blocks, work in variant:
            time += cost.femtoseconds(slots[blocks], [slots[slot] for slot in work], self._units)
        return time


def _columns(rows: Sequence[tuple[int, ...]], width: int) -> NDArray[np.int64]:
    return np.ascontiguousarray(np.array(rows, np.int64).reshape(-1, width).T)


def _choices(made: Tables, launches: Sequence[Launch]) -> list[_Choice]:
    """What each launch chooses by; nothing where there is one Variant."""
    found: list[_Choice] = []
    calls = iter(made.calls)
    for launch in launches:
        variants = [[(call.cost, own[1]) for call, own in zip(variant.calls, calls)] for variant in launch.variants]
        found.append(tuple([_timed(made, variant) for variant in variants]) if launch.selects else ())
    return found


def _timed(made: Tables, calls: Sequence[tuple[Cost | None, int]]) -> _Timed:
    return tuple([(cost, blocks, tuple([made.slot(work.count) for work in cost.work])) for cost, blocks in calls
                  if cost is not None])

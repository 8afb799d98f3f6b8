"""What running a kernel is expected to take, by which a run picks one of its Variants.

Blocks run in waves, as many at a time as the device has units (cores, multiprocessors) with room for them. Section 6 of the
paper has one time for any wave. Here a wave takes what its blocks wait for, each unit besides what its blocks keep it busy
with, and the device what all of them ask of what it has once, its memory: a wave that is not full takes less. And blocks are
not all alike: each takes its share of what all of them do, so that one that is cut off by the edge of an array costs less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from tsc.runtime import schema
from tsc.sym import SymExpr

#: Kinds of work in one Cost, and sums that Rates have seen.
MAX_KINDS, MAX_SEEN = 8, 64
#: No time has more femtoseconds: an hour and a quarter.
_MOST = 1 << 62
#: The kind of work of which every block does one piece.
BLOCKS = "blocks"

#: Femtoseconds for each piece of work, by its kind.
ByKind = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Rates:
    """Femtoseconds that a function takes: to `launch` it; of a `wave`, what a block of it takes for its work; of a `unit`, what
    each of its blocks adds; of the `device`, what each of all blocks adds. `resident` blocks share a unit at a time. `seen` are
    sums of all that at which the time was another: on how many units, the sum, and that time in thousandths of it, in rising
    order."""

    launch: int = 0
    wave: ByKind = ()
    unit: ByKind = ()
    device: ByKind = ()
    resident: int = 1
    seen: tuple[tuple[int, int, int], ...] = ()

    def terms(self, blocks: int, work: Mapping[str, int], units: int) -> dict[str, float]:
        """The femtoseconds that a run of `blocks` blocks takes on a device with so many `units`, by what they go into. Work
        without a rate is free."""
        found, counts = {"launch": float(self.launch)}, {BLOCKS: blocks, **work}
        waves, turns = -(-blocks // (units * self.resident)), -(-blocks // units)
        for part, rates, times in (("wave", self.wave, waves), ("unit", self.unit, turns), ("device", self.device, blocks)):
            for kind, rate in rates:
                found[f"{part}'s {kind}"] = float(rate) * counts.get(kind, 0) * times / max(1, blocks)
        return found if not self.seen else found | {"else": self._else(total(found), units)}

    def femtoseconds(self, blocks: int, work: Mapping[str, int], units: int) -> float:
        """The sum of the `terms`, to the last bit, without naming them."""
        time, most = float(self.launch), max(1, blocks)
        waves, turns = -(-blocks // (units * self.resident)), -(-blocks // units)
        for rates, times in ((self.wave, waves), (self.unit, turns), (self.device, blocks)):
            for kind, rate in rates:
                time += float(rate) * work.get(kind, blocks if kind == BLOCKS else 0) * times / most
        return time + self._else(time, units) if self.seen else time

    def seen_on(self, units: int) -> list[tuple[int, int]]:
        """The sums and thousandths that were seen on so many units, or on the nearest number of them."""
        nearest = min((abs(own - units), own) for own, _, _ in self.seen)[1] if self.seen else units
        return [(place, ratio) for own, place, ratio in self.seen if own == nearest]

    def _else(self, time: float, units: int) -> float:
        """What a time is beside a sum, between two that were seen by their distances."""
        seen = self.seen_on(units)
        above = next((k for k, (place, _) in enumerate(seen) if place > time), len(seen))
        (low, first), (high, second) = seen[max(0, above - 1)], seen[min(above, len(seen) - 1)]
        between = first + (second - first) * (time - low) / (high - low) if high > low else float(first)
        return time * (between - 1000) / 1000


def total(terms: Mapping[str, float]) -> float:
    """The sum of terms, added in their order: to the last bit what a host program makes of them (`cpu_host.c`), which `sum` is
    not from Python 3.12 on."""
    time = 0.0
    for term in terms.values():
        time += term
    return time


@dataclass(frozen=True, slots=True)
class Work:
    """`count` pieces of a `kind` of work, those of all blocks together."""

    kind: str
    count: SymExpr


@dataclass(frozen=True, slots=True)
class Cost:
    """The Rates of a function, and the work that it does at each size."""

    rates: Rates
    work: tuple[Work, ...]

    def over(self, change: Callable[[SymExpr], SymExpr]) -> Cost:
        """The same with other expressions."""
        return replace(self, work=tuple(Work(work.kind, change(work.count)) for work in self.work))

    def terms(self, blocks: int, counts: Sequence[int], units: int) -> dict[str, float]:
        """The `terms` of the Rates where so many pieces of each kind of `work` are done."""
        return self.rates.terms(blocks, {work.kind: count for work, count in zip(self.work, counts, strict=True)}, units)

    def femtoseconds(self, blocks: int, counts: Sequence[int], units: int) -> float:
        """Their sum."""
        return self.rates.femtoseconds(blocks, {work.kind: count for work, count in zip(self.work, counts)}, units)


#: Of what another Call's cost has in it.
FREE = Cost(Rates(), ())


# -- JSON --------------------------------------------------------------------------------------------------------------

def cost_to_json(cost: Cost | None) -> Any:
    """A JSON-ready list that `cost_from_json` reads back."""
    if cost is None:
        return None
    rates = cost.rates
    parts = [dict(part) for part in (rates.wave, rates.unit, rates.device)]
    seen, work = [list(row) for row in rates.seen], [[w.kind, str(w.count)] for w in cost.work]
    return [[rates.launch, *parts, rates.resident, seen], work]


def cost_from_json(value: Any) -> Cost | None:
    """What `cost_to_json` wrote. Raises ValueError on anything else."""
    if value is None:
        return None
    rates, work = schema.items(value, "a cost", 2)
    found = tuple(Work(schema.text(kind, "a kind of work"), schema.size(count, "work"))
                  for kind, count in (schema.items(w, "work", 2) for w in schema.items(work, "the work of a cost")))
    if len(found) > MAX_KINDS:
        raise ValueError(f"a cost has {len(found)} kinds of work, expected at most {MAX_KINDS}")
    return Cost(_rates(rates), found)


def _rates(value: Any) -> Rates:
    launch, wave, unit, device, resident, seen = schema.items(value, "rates", 6)
    rows = [tuple(_rate(n) for n in schema.items(row, "rates", 3)) for row in schema.items(seen, "rates")]
    if len(rows) > MAX_SEEN or any(a[:2] >= b[:2] for a, b in pairwise(rows)):
        raise ValueError(f"rates have {len(rows)} sums, expected at most {MAX_SEEN} in rising order")
    return Rates(_rate(launch), _by_kind(wave), _by_kind(unit), _by_kind(device),
                 schema.whole(resident, "resident blocks", 1), tuple((units, place, ratio) for units, place, ratio in rows))


def _by_kind(value: Any) -> ByKind:
    return tuple((schema.text(kind, "a kind of work"), _rate(rate))
                 for kind, rate in schema.table(value, "the rates of work").items())


def _rate(value: Any) -> int:
    return schema.whole(value, "a rate", 0, _MOST)

"""The symbolic memory plan: values with lifetimes share slots of one arena, whose size is an expression of the Dims.

Offsets must hold at every size at once, so values share whole slots (the "shared objects" of Pisarchyk and Lee, Efficient
Memory Management for Deep Neural Net Inference, 2020, greedy by size), and a slot is as large as its largest tenant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tsc.plan.compare import Comparison
from tsc.sym import ZERO, Range, ShapeEnv, SymExpr, ceildiv, sym_max

ALIGNMENT = 64
SAMPLE_SIZES = (1, 16, 128, 512)


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A value of `size` bytes that is written at step `first` and read for the last time at step `last`."""

    name: str
    size: SymExpr
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Byte offset of each value in the arena, all multiples of 64, and the arena's size."""

    offsets: dict[str, SymExpr]
    arena_bytes: SymExpr


@dataclass(slots=True)
class _Slot:
    """`tops` are the sizes none of which is provably covered by another: the slot's size is their maximum."""

    tops: list[SymExpr]
    samples: list[int]
    tenants: list[Lifetime]

    def free_during(self, value: Lifetime) -> bool:
        return all(value.last < t.first or t.last < value.first for t in self.tenants)


def plan_memory(values: Sequence[Lifetime], env: ShapeEnv) -> MemoryPlan:
    """Place `values` so that two that live at the same step never overlap, at any size.

    Two orders are tried, by size and by time, and the one whose arena is smaller over sample sizes is kept.
    """
    samples = sample_sizes(frozenset().union(*(v.size.dims() for v in values)), env.ranges)
    sizes = {v.size: [v.size.evaluate(s) for s in samples] for v in values}
    by_time = sorted(values, key=lambda v: (v.first, -sum(sizes[v.size]), v.name))
    by_size = sorted(values, key=lambda v: (-sum(sizes[v.size]), v.first, v.name))
    proofs = Comparison(env)

    def covered(a: SymExpr, b: SymExpr) -> bool:
        """Whether `a <= b` is proved; where a sample says otherwise no proof is tried."""
        return all(x <= y for x, y in zip(sizes[a], sizes[b])) and proofs.at_most(a, b)

    candidates = [_assign(order, sizes, covered) for order in (by_size, by_time)]
    return _lay_out(min(candidates, key=_cost), env)


def sample_sizes(dims: frozenset[str], ranges: Mapping[str, Range]) -> list[dict[str, int]]:
    """Sizes to compare expressions at, within `ranges`: all dims equal, then every second one small."""
    names = sorted(dims)
    raw = [[size] * len(names) for size in SAMPLE_SIZES]
    if len(names) > 1:
        raw += [[(2, 256)[(i + flip) % 2] for i in range(len(names))] for flip in (0, 1)]
    return [{name: _clamp(size, ranges.get(name, Range())) for name, size in zip(names, row)} for row in raw]


def _clamp(size: int, known: Range) -> int:
    size = max(known.lo, size if known.hi is None else min(size, known.hi))
    return size // known.divisor * known.divisor if size // known.divisor * known.divisor >= known.lo else known.lo


def _assign(order: Sequence[Lifetime], sizes: Mapping[SymExpr, list[int]],
            covered: Callable[[SymExpr, SymExpr], bool]) -> list[_Slot]:
    slots: list[_Slot] = []
    for value in order:
        wanted = sizes[value.size]
        free = [slot for slot in slots if slot.free_during(value)]
        fitting = [slot for slot in free if any(covered(value.size, top) for top in slot.tops)]
        if fitting:
            slot = min(fitting, key=lambda s: sum(s.samples))
        else:
            slot = min(free, key=lambda s: _growth(s, wanted), default=_Slot([], [], []))
            if not slot.tops or _growth(slot, wanted) >= sum(wanted):
                slot = _Slot([], [0] * len(wanted), [])
                slots.append(slot)
            slot.tops = [top for top in slot.tops if not covered(top, value.size)] + [value.size]
            slot.samples = list(map(max, slot.samples, wanted))
        slot.tenants.append(value)
    return slots


def _growth(slot: _Slot, wanted: Sequence[int]) -> int:
    return sum(max(0, b - a) for a, b in zip(slot.samples, wanted))


def _cost(slots: Sequence[_Slot]) -> float:
    """Arena bytes relative to the largest slot, summed over the samples: no sample outweighs the others."""
    rows = zip(*(slot.samples for slot in slots))
    return sum((sum(row) / max(1, max(row)) for row in rows), 0.0)


def _lay_out(slots: Sequence[_Slot], env: ShapeEnv) -> MemoryPlan:
    offsets: dict[str, SymExpr] = {}
    total = ZERO
    for slot in slots:
        for value in slot.tenants:
            offsets[value.name] = total
        total = total + sym_max(*(align(top, env) for top in slot.tops))
    return MemoryPlan(offsets, total)


def align(size: SymExpr, env: ShapeEnv) -> SymExpr:
    """`size` rounded up to 64 bytes; itself where 64 provably divides it."""
    return size if env.prove_divides(ALIGNMENT, size) else ceildiv(size, ALIGNMENT) * ALIGNMENT

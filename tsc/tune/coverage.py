"""What a tuned model is expected to do over the range of its dims, and how far the records bear that out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import exp, log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsc.poly.tile import TileConfig
from tsc.runtime.cost import total
from tsc.runtime.plan import Launch, Plan
from tsc.runtime.select import least, terms_at
from tsc.sym import Range, SymExpr, product
from tsc.te.compute import Program
from tsc.tune.pool import counted, matrix_of, pooled
from tsc.tune.records import Record, place_of

#: Sizes of a dim that are looked at, and the greatest one of a dim that has no end.
STEPS, ASSUMED_END = 24, 512
#: A size is far from what was measured where another is not within this factor.
NEAR = 2.0


@dataclass(frozen=True, slots=True)
class Grid:
    """Sizes of at most two dims, evenly spread over their logarithms; the other dims have one size, in the middle."""

    axes: tuple[tuple[str, tuple[int, ...]], ...]
    others: Mapping[str, int]

    @staticmethod
    def of(ranges: Mapping[str, Range]) -> Grid:
        """The Grid over the two dims of the widest ranges."""
        ends = {name: (max(known.lo, 1), known.hi or max(known.lo, ASSUMED_END)) for name, known in ranges.items()}
        shown = sorted(ends, key=lambda name: ends[name][1] / ends[name][0])[-2:]
        axes = tuple((name, _spread(*ends[name], ranges[name].divisor)) for name in ends if name in shown)
        middle = {name: _spread(*ends[name], ranges[name].divisor) for name in ends if name not in shown}
        return Grid(axes, {name: sizes[len(sizes) // 2] for name, sizes in middle.items()})

    @property
    def shape(self) -> tuple[int, ...]:
        """How many sizes each axis has."""
        return tuple(len(sizes) for _, sizes in self.axes)

    def points(self) -> list[dict[str, int]]:
        """The sizes of all dims at each point, the last axis first to change."""
        found = [dict(self.others)]
        for name, sizes in self.axes:
            found = [point | {name: size} for point in found for size in sizes]
        return found


def _spread(low: int, high: int, divisor: int) -> tuple[int, ...]:
    places = (low * (high / low) ** (k / (STEPS - 1)) for k in range(STEPS))
    sizes = {max(divisor, round(place / divisor) * divisor) for place in places}
    return tuple(sorted(size for size in sizes if low <= size <= high)) or (max(low, divisor),)


class Check(NamedTuple):
    """The Variant that runs beside measured times: its speed as a share of the fastest's, on average and at worst, and how many
    sizes that was measured at."""

    mean: float
    worst: float
    sizes: int


@dataclass(frozen=True, slots=True)
class KernelMap:
    """A kernel that a run launches `launches` times, at each point of a Grid: the `nanoseconds` that all of them are expected
    to take, which of the `configs` runs (of the first launch), the `instances` of statements that they execute, and whether no
    measured size is near. `curve` has how many times as fast as the first the best configs are after so many measured."""

    name: str
    node: str
    launches: int
    configs: tuple[str, ...]
    nanoseconds: NDArray[np.float64]
    runs: NDArray[np.int64]
    instances: NDArray[np.float64]
    far: NDArray[np.bool_]
    check: Check | None
    curve: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Origin:
    """What a kernel was made of: its Program, the names of its sizes in the order of a Launch's, the group by which records
    know it, and the configs of its Variants."""

    program: Program
    sizes: Sequence[str]
    group: str
    configs: Sequence[TileConfig]


@dataclass(frozen=True, slots=True)
class Coverage:
    """All kernels of which times are known, and the names of the others."""

    target: str
    threads: int
    grid: Grid
    kernels: tuple[KernelMap, ...]
    unknown: tuple[str, ...]


def coverage_of(plan: Plan, target: str, origins: Mapping[str, Origin], records: Sequence[Record],
                threads: int = 1) -> Coverage:
    """What a Plan is expected to do, where what its kernels were made of is known, by their names."""
    grid, by_kernel = Grid.of(plan.ranges), dict[str, list[Launch]]()
    for launch in plan.launches:
        by_kernel.setdefault(launch.kernel, []).append(launch)
    found, unknown = [], []
    for name, launches in by_kernel.items():
        origin = origins.get(name)
        if origin is None or any(call.cost is None for call in launches[0].calls):
            unknown.append(name)
            continue
        own = [record for record in records if record.group == origin.group]
        found.append(_map(grid, launches, origin, own, threads))
    found.sort(key=lambda kernel: -float(kernel.nanoseconds.sum()))
    return Coverage(target, threads, grid, tuple(found), tuple(unknown))


def _map(grid: Grid, launches: Sequence[Launch], origin: Origin, records: Sequence[Record], threads: int) -> KernelMap:
    points, first = grid.points(), launches[0]
    times, work = np.zeros(len(points)), np.zeros(len(points))
    runs, far = np.zeros(len(points), np.int64), np.zeros(len(points), np.bool_)
    executed = instances_of(origin.program)
    measured = list({place_of(r.sizes): r.sizes for r in records if r.nanoseconds is not None}.values())
    for number, point in enumerate(points):
        for launch in launches:
            costs = [sum(map(total, terms_at(variant, point, threads))) for variant in launch.variants]
            own = dict(zip(origin.sizes, (size.evaluate(point) for size in launch.sizes)))
            times[number] += costs[least(costs)] / 1e6
            work[number] += executed.evaluate(own)
            if launch is first:
                runs[number], far[number] = least(costs), not any(_near(own, sizes) for sizes in measured)
    shape = grid.shape
    return KernelMap(
        first.kernel, first.node, len(launches), tuple(_texts(origin.configs)), times.reshape(shape), runs.reshape(shape),
        work.reshape(shape), far.reshape(shape), _check(records, origin.configs), _curve(records, max(1, len(origin.configs))))


def instances_of(program: Program) -> SymExpr:
    """How many instances of statements a Program has: of a sum one for each term."""
    found = SymExpr.of(0)
    for compute in program.computes:
        found = found + product(axis.extent for axis in (*compute.axes, *compute.reduce_axes))
    return found


def _near(sizes: Mapping[str, int], others: Mapping[str, int]) -> bool:
    return all(abs(log(max(1, sizes.get(name, 1)) / max(1, size))) <= log(NEAR) + 1e-9 for name, size in others.items())


def _texts(configs: Sequence[TileConfig]) -> Iterable[str]:
    """Each config by the fields in which they differ, or its tiles where there is one alone."""
    rows = [asdict(config) for config in configs]
    fields = [name for name in (rows[0] if rows else ()) if len({str(row[name]) for row in rows}) > 1]
    for row in rows:
        yield ", ".join(f"{name} {row[name]}" for name in fields or ("instr_tile", "block_tile"))


def _check(records: Sequence[Record], configs: Sequence[TileConfig]) -> Check | None:
    """What runs, beside what is known of the pool at the sizes that were measured."""
    matrix = matrix_of(records)
    chosen = [] if matrix is None else [matrix.configs.index(config) for config in configs if config in matrix.configs]
    if matrix is None or not chosen:
        return None
    known, shares = counted(records), []
    for column, (sizes, _) in enumerate(matrix.columns):
        rows = {k: min((r for (place, _), r in known[matrix.configs[k]].items() if place == sizes), key=lambda r: r.units)
                for k in chosen}
        costs = [total(matrix.rates[k].terms(row.blocks, row.work or {}, row.units)) for k, row in rows.items()]
        shares.append(float(matrix.times[chosen, column].min() / matrix.times[chosen[least(costs)], column]))
    return Check(float(np.mean(shares)), min(shares), len(shares))


def _curve(records: Sequence[Record], variants: int) -> tuple[tuple[int, float], ...]:
    """The gain of the pool over the first config, after 1, 2, 4, 8, … and all configs."""
    order = list(dict.fromkeys(record.config for record in records))
    matrix = matrix_of(records)
    if matrix is None:
        return ()
    place = {config: k for k, config in enumerate(matrix.configs)}
    known, found = [place[config] for config in order if config in place], []
    logs = np.log(matrix.times)
    for count in _counts(len(known)):
        rows = known[:count]
        best = [rows[k] for k in pooled(matrix.times[rows], variants)]
        found.append((count, exp(float((logs[known[0]] - logs[best].min(axis=0)).mean()))))
    return tuple(found)


def _counts(most: int) -> Iterable[int]:
    count = 1
    while count < most:
        yield count
        count *= 2
    yield most

"""Tuning: a model's kernels are built with many configs, measured over the sizes of its traffic, and recorded.

What `compile` makes of the records is in `tsc.tune.pool`; this is the job that writes them. Section 5.1 of the paper.
"""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from tsc.errors import InputError
from tsc.graph.onnx.file import Source
from tsc.kernels import Workshop
from tsc.ops.define import CustomOp
from tsc.pipeline import build_package
from tsc.plan.kernel import Kernel
from tsc.runtime.package import Package
from tsc.runtime.plan import Plan, static_names
from tsc.sym import Range
from tsc.tune.batch import Batch, write_batch
from tsc.tune.coverage import Coverage, Origin, coverage_of
from tsc.tune.measure import LEAST, ROUNDS, Sizes
from tsc.tune.pool import gained, matrix_of, pooled
from tsc.tune.records import Place, Record, allowed, append, place_of, read
from tsc.tuning_crew import Alone, Crew
from tsc.tuning_group import AGAIN, BEST, PASSES, Budget, Group, Job, batches

#: Sizes of a group that are measured, the greatest size of a dim that has no end, and how often sizes are drawn, of which the
#: most even are taken.
POINTS, ASSUMED_END, DRAWS = 10, 512, 200


# -- what is tuned, and at which sizes ---------------------------------------------------------------------------------

def groups_of(source: Source, dims: Mapping[str, Any] | None, shop: Workshop, traffic: Sequence[Sizes] = (), seed: int = 0,
              ops: Sequence[CustomOp] = ()) -> tuple[list[Group], Package]:
    """The kernels of a model that have configs to choose from, and the model compiled without tuning. They are measured at the
    sizes of `traffic`, by default at some of the declared ranges. Raises as `compile`."""
    package = build_package(source, dims, shop, ops)
    plan = package.plans[shop.device.spec.name]
    points = list(traffic) or points_of(plan.ranges, POINTS, seed)
    for point in points:
        if point.keys() != plan.ranges.keys():
            odd = sorted(point.keys() ^ plan.ranges.keys())[0]
            raise InputError(f"traffic {'lacks' if odd in plan.ranges else 'has an unknown'} dim '{odd}'; the model's dims are "
                             f"{', '.join(plan.ranges) or 'none'}")
    found: dict[str, Group] = {}
    everywhere = [_with_computed(point, plan) for point in points]
    for order, lowered in shop.orders:
        if any(size.dims() - everywhere[0].keys() for size in lowered.sizes.values()):
            continue  # only a run tells its sizes
        sizes = [{name: size.evaluate(point) for name, size in lowered.sizes.items()} for point in everywhere]
        known = found.get(order.group, Group(order, (), 0))
        distinct = {place_of(s): s for s in (*known.sizes, *sizes)}
        found[order.group] = Group(known.order, tuple(distinct.values()), known.launches + 1)
    return [group for group in found.values() if group.order.factoring is None], package


def _with_computed(point: Sizes, plan: Plan) -> dict[str, int]:
    """The sizes of inputs, and those that a run computes from them."""
    found = dict(point)
    for name, value in static_names(plan).items():
        if value is not None:
            found[name] = value.evaluate(found)
    return found


def points_of(ranges: Mapping[str, Range], count: int, seed: int) -> list[dict[str, int]]:
    """So many sizes of dims, spread evenly over their logarithms: both ends, and what is random between them. Of random ones
    those are taken whose product is spread as evenly: it is all that most kernels see of several dims."""
    rng = Random(seed)
    ends = {name: (max(known.lo, 1), known.hi or max(known.lo, ASSUMED_END)) for name, known in ranges.items()}
    lengths = [math.log(max(high, low) / low) for low, high in ends.values()]
    steps = [k / max(1, count - 1) for k in range(count)]

    def largest_gap(drawn: Sequence[Sequence[float]]) -> float:
        sums = sorted(sum(map(operator.mul, lengths, at)) for at in zip(*drawn, strict=True))
        return max((b - a for a, b in pairwise(sums)), default=0.0)

    draws = [[[0.0, *rng.sample(steps[1:-1], max(0, count - 2)), 1.0] for _ in ends]  # each dim takes all of them
             for _ in range(DRAWS)]
    best = min(draws, key=largest_gap)
    places = dict(zip(ends, best, strict=True))
    points = [{name: _size(*ends[name], places[name][k], ranges[name].divisor) for name in ends}
              for k in range(count if ranges else 1)]
    return list({tuple(point.items()): point for point in points}.values())


def _size(low: int, high: int, place: float, divisor: int) -> int:
    """The size at a place from 0 to 1 between two, by their logarithms; a multiple of a divisor."""
    size = round(float(low * (high / low) ** place))
    return min(max(divisor, -(-size // divisor) * divisor), high // divisor * divisor)


# -- the job -----------------------------------------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class Tuned:
    """What became of a group: the `kernel`'s name, how often a run launches it, how many configs were measured, how many of
    them make its pool, how many times as fast the pool is as the default config, in the geometric mean over its sizes, and the
    nanoseconds that all launches take at all of these sizes, `before` and `after`."""

    kernel: str
    launches: int
    configs: int
    variants: int
    gain: float = 1.0
    before: float = 0.0
    after: float = 0.0

    def __str__(self) -> str:
        return (f"{self.kernel}: {self.launches} launches, {self.configs} configs measured, {self.variants} of them chosen, "
                f"{self.gain:.2f} times as fast as untuned")


@dataclass(frozen=True, slots=True)
class Effort:
    """How groups are tuned: a `search` by its name, with a `seed`; at most so many `configs` of each, for so many `seconds` in
    all."""

    configs: int = 64
    seconds: float = math.inf
    search: str | None = None
    seed: int = 0

    def job(self, group: Group, shop: Workshop, budget: Budget, path: Path, finalists: int = 0) -> Job:
        """A Group's part of it, with what a file of records has, and so many finalists."""
        known = tuple(r for r in _read(path, shop) if r.group == group.order.group and r.target == shop.device.spec.name)
        options = replace(shop.options, progress=None)  # a function of this process
        return Job(group, shop.device.spec.name, options, budget, self.search, self.seed, known, finalists)


def tune(groups: Sequence[Group], shop: Workshop, path: Path, effort: Effort, crew: Crew | None = None,
         tell: Callable[[str], None] = lambda line: None) -> list[Tuned]:
    """Measure configs of all groups into a file of records; each group gets its share of the time as it has of a run's without
    tuning. A crew takes several at a time; the finalists of all groups are measured one after the other when all is built.
    What is told is a line each. Raises LaunchError where the machine cannot do it; what was measured before is in the file,
    also where the job is killed."""
    begun, crew, found, last = time.monotonic(), crew or Alone(shop), dict[str, Tuned](), dict[str, Batch]()
    finalists = 2 * shop.options.variants

    def measure(group: Group, budget: Budget, finalists: int = 0) -> None:
        for new in crew.rounds(effort.job(group, shop, budget, path, finalists)):
            if isinstance(new, Batch):
                last[group.order.group] = new
            else:
                append(path, new)

    def share(group: Group) -> Budget:
        left = effort.seconds - in_the_end - (time.monotonic() - begun)
        waiting = [spent[other.order.group] for other in groups if other.order.group not in started] or [1.0]
        started.add(group.order.group)
        part = min(1.0, crew.count * spent[group.order.group] / (sum(waiting) or 1.0))
        return Budget(effort.configs, left * part if math.isfinite(left) else math.inf)

    def finish(group: Group) -> None:
        measure(group, share(group), finalists)
        found[group.order.group] = told(group, _read(path, shop), shop.options.variants)
        tell(f"{len(found)} of {len(groups)} kernels, {time.monotonic() - begun:.0f} s: {found[group.order.group]}")

    started: set[str] = set()
    _each(crew, lambda group: measure(group, Budget(1)), groups)  # the default config of each comes first
    known = _read(path, shop)
    spent = {group.order.group: _spent(group, known) for group in groups}
    in_the_end = min(effort.seconds / 2, sum(_final_seconds(group, known, finalists) for group in groups))
    _each(crew, finish, groups)
    for group in groups:
        if (batch := last.get(group.order.group)) is not None:
            append(path, crew.final_records(batch))
            found[group.order.group] = told(group, _read(path, shop), shop.options.variants)
    return [found[group.order.group] for group in groups]


def build(groups: Sequence[Group], shop: Workshop, path: Path, effort: Effort, folder: Path) -> int:
    """Write batches of configs that a file of records does not have, to be measured elsewhere (`tsc.tune.batch`); how many
    configs they have in all. Raises LaunchError where they cannot be written."""
    count = 0
    for group in groups:
        for batch in batches(effort.job(group, shop, Budget(effort.configs), path), shop):
            write_batch(folder, batch)
            count += len(batch.configs)
    return count


def _each(crew: Crew, do: Callable[[Group], None], groups: Sequence[Group]) -> None:
    """Call a function of each Group, as many at a time as a crew takes. What goes wrong, or Ctrl-C, ends all."""
    if crew.count == 1:
        for group in groups:
            do(group)
        return
    with ThreadPoolExecutor(crew.count) as pool:
        try:
            for done in as_completed([pool.submit(do, group) for group in groups]):
                done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            crew.stop()
            raise


def _read(path: Path, shop: Workshop) -> Sequence[Record]:
    return allowed(read(path), shop.options.reduction) if path.exists() else ()


def told(group: Group, records: Sequence[Record], variants: int) -> Tuned:
    """What the records have of a group."""
    order = group.order
    own = [r for r in records if r.group == order.group]
    matrix = matrix_of(own)
    count = len({r.config for r in own})
    if matrix is None:
        return Tuned(order.symbol(), group.launches, count, 0)
    chosen = pooled(matrix.times, variants)
    first = matrix.configs.index(own[0].config) if own[0].config in matrix.configs else chosen[0]
    gain = math.exp(gained(matrix, chosen, first))
    before, after = (group.launches * float(times.sum()) for times in (matrix.times[first], matrix.times[chosen].min(axis=0)))
    return Tuned(order.symbol(), group.launches, count, len(chosen), gain, before, after)


def covered(package: Package, shop: Workshop) -> Coverage:
    """What a Package that the Workshop has made of records is expected to do over the range of its dims."""
    target, records = shop.device.spec.name, shop.options.records
    origins = {}
    for order, _ in shop.orders:
        kernel = shop.made[order.key()]
        if isinstance(kernel, Kernel):
            origins[kernel.symbol] = Origin(order.program, kernel.sizes, order.group, kernel.configs)
    known = () if records is None else _read(records, shop)
    return coverage_of(package.plans[target], target, origins, known)


def _spent(group: Group, records: Sequence[Record]) -> float:
    """The time of a group's launches, over all of its sizes, as far as it is known."""
    return float(group.launches * sum(_times(group, records).values()))


def _final_seconds(group: Group, records: Sequence[Record], finalists: int) -> float:
    """About what it takes to measure so many finalists on one core and on all, as far as the group's times are known."""
    runs = PASSES * finalists + AGAIN * min(finalists, 2 * BEST)
    return 2 * runs * (ROUNDS + 2) * sum(max(LEAST, time / 1e9) for time in _times(group, records).values())


def _times(group: Group, records: Sequence[Record]) -> dict[Place, int]:
    """The nanoseconds of the first config that is known at each size."""
    times: dict[Place, int] = {}
    for record in records:
        if record.group == group.order.group and record.nanoseconds is not None:
            times.setdefault(place_of(record.sizes), record.nanoseconds)
    return times

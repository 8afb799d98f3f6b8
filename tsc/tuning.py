"""Tuning: a model's kernels are built with many configs, measured over the sizes of its traffic, and recorded.

What `compile` makes of the records is in `tsc.tune.pool`; this is the job that writes them. Section 5.1 of the paper.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from tsc.codegen_c.specs import machine_name
from tsc.errors import InputError, LaunchError
from tsc.graph.onnx.file import Source
from tsc.kernels import Order, Workshop, make_kernel
from tsc.ops.define import CustomOp
from tsc.pipeline import build_package
from tsc.plan.kernel import Kernel
from tsc.poly import PatternMismatch
from tsc.poly.schedule import prepared
from tsc.poly.tile import Space, TileConfig, config_to_json
from tsc.runtime.package import Package
from tsc.sym import Range
from tsc.trace import Recorder
from tsc.tune.child import measured
from tsc.tune.coverage import Coverage, Origin, coverage_of
from tsc.tune.measure import Sizes, Trial
from tsc.tune.pool import cover, matrix_of
from tsc.tune.records import Place, Record, append, place_of, read
from tsc.tune.search import RandomSearch, Search, Times
from tsc.tune.turbo import Turbo

#: Configs that are built into one module and measured beside each other.
BATCH = 8
#: Sizes of a group that are measured, and the greatest size of a dim that has no end.
POINTS, ASSUMED_END = 10, 512

MakeSearch = Callable[[Space, int], Search]


@dataclass(frozen=True, slots=True)
class Group:
    """A kernel of a model: its Order, the sizes at which it is measured, and how often a run launches it."""

    order: Order
    sizes: tuple[Sizes, ...]
    launches: int


@dataclass(frozen=True, slots=True)
class Budget:
    """When a group is done: so many configs, or so many seconds."""

    configs: int = 64
    seconds: float = math.inf


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
    for order, lowered in shop.orders:
        sizes = [{name: size.evaluate(point) for name, size in lowered.sizes.items()} for point in points]
        known = found.get(order.group, Group(order, (), 0))
        distinct = {place_of(s): s for s in (*known.sizes, *sizes)}
        found[order.group] = Group(known.order, tuple(distinct.values()), known.launches + 1)
    return [group for group in found.values() if group.order.factoring is None], package


def points_of(ranges: Mapping[str, Range], count: int, seed: int) -> list[dict[str, int]]:
    """So many sizes of dims, spread evenly over their logarithms: both ends, and what is random between them."""
    rng = Random(seed)
    ends = {name: (max(known.lo, 1), known.hi or max(known.lo, ASSUMED_END)) for name, known in ranges.items()}
    steps = [k / max(1, count - 1) for k in range(count)]
    places = {name: [0.0, *rng.sample(steps[1:-1], max(0, count - 2)), 1.0] for name in ends}  # each dim takes all of them
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


def tune(groups: Sequence[Group], shop: Workshop, path: Path, configs: int, seconds: float = math.inf,
         make: MakeSearch = RandomSearch, seed: int = 0, tell: Callable[[str], None] = lambda line: None) -> list[Tuned]:
    """Measure configs of all groups into a file of records: at most so many of each, and for so many seconds in all, of which
    each group gets its share of a run's time without tuning. What is told is a line each. Raises LaunchError where the machine
    cannot do it; what was measured before is in the file, also where the job is killed."""
    begun = time.monotonic()
    for group in groups:  # the default config of each, which comes first
        tune_group(group, shop, path, Budget(1), make, seed)
    known = read(path) if path.exists() else []
    spent = {group.order.group: _spent(group, known) for group in groups}
    total, found = sum(spent.values()) or 1.0, []
    for number, group in enumerate(groups):
        left = seconds - (time.monotonic() - begun)
        rest = sum(spent[other.order.group] for other in groups[number:]) or total
        share = left * spent[group.order.group] / rest if math.isfinite(left) else math.inf
        tune_group(group, shop, path, Budget(configs, share), make, seed)
        found.append(told(group, read(path) if path.exists() else (), shop.options.variants))
        tell(f"{number + 1} of {len(groups)} kernels, {time.monotonic() - begun:.0f} s: {found[-1]}")
    return found


def told(group: Group, records: Sequence[Record], variants: int) -> Tuned:
    """What the records have of a group."""
    order = group.order
    own = [r for r in records if r.group == order.group]
    matrix = matrix_of(own)
    count = len({r.config for r in own})
    if matrix is None:
        return Tuned(order.symbol(), group.launches, count, 0)
    chosen, logs = cover(matrix.times, variants), np.log(matrix.times)
    first = next((k for k, config in enumerate(matrix.configs) if config == own[0].config), chosen[0])
    gain = math.exp(float((logs[first] - logs[chosen].min(axis=0)).mean()))
    before, after = (group.launches * float(times.sum()) for times in (matrix.times[first], matrix.times[chosen].min(axis=0)))
    return Tuned(order.symbol(), group.launches, count, len(chosen), gain, before, after)


def covered(package: Package, shop: Workshop) -> Coverage:
    """What a Package that the Workshop has made of records is expected to do over the range of its dims."""
    target, records = shop.device.spec.name, shop.options.records
    origins = {}
    for order, _ in shop.orders:
        kernel = shop.made[order.key()]
        if isinstance(kernel, Kernel):
            configs = [code.config for code in kernel.codes]
            origins[kernel.symbol] = Origin(order.program, kernel.sizes, order.group, configs)
    known = read(records) if records is not None and records.exists() else ()
    return coverage_of(package.plans[target], target, origins, known)


def _spent(group: Group, records: Sequence[Record]) -> float:
    """The time of a group's launches, over all of its sizes, as far as it is known."""
    times: dict[Place, int] = {}
    for record in records:
        if record.group == group.order.group and record.nanoseconds is not None:
            times.setdefault(place_of(record.sizes), record.nanoseconds)
    return float(group.launches * sum(times.values()))


# -- one group ---------------------------------------------------------------------------------------------------------

def search_called(name: str | None) -> MakeSearch:
    """The search "turbo" or "random"; None is the first, where it can be had. Raises LaunchError where it cannot."""
    if name == "random" or (name is None and find_spec("botorch") is None):
        return RandomSearch
    try:
        draws = import_module("tsc.tune.gaussian").draws
    except ImportError as error:
        raise LaunchError(f"the search 'turbo' lacks {error.name}; install tsc-compiler[tune], or search at random") from error
    return lambda space, seed: Turbo(space, seed, draws)


def tune_group(group: Group, shop: Workshop, path: Path, budget: Budget, make: MakeSearch = RandomSearch, seed: int = 0,
               tell: Callable[[int], None] = lambda done: None) -> int:
    """Measure configs of a group until its budget is spent, each batch recorded when it is done; what the file has of them is
    not measured again. Returns how many configs are known. Raises LaunchError where the machine cannot do it."""
    order, machine = group.order, machine_name()
    analysed = prepared(order.program, shop.device.spec, order.constants, None, order.tiled)
    if analysed is None:
        return 0
    space = analysed.found.space(shop.device.spec)
    search, known = make(space, seed), _known(path, group, machine)
    begun, done = time.monotonic(), 0
    while done < budget.configs and (time.monotonic() - begun < budget.seconds or not done):
        asked = search.ask(min(BATCH, budget.configs - done))
        if not asked:
            break
        fresh = [config for config in asked if config not in known]
        if fresh:
            records = _measured(group, fresh, shop, machine)
            append(path, records)
            known |= _times(records, group.sizes)
        search.tell({config: known.get(config) for config in asked})
        done += len(asked)
        tell(done)
    return done


def built(order: Order, configs: Sequence[TileConfig], shop: Workshop) -> tuple[Kernel, bytes, dict[TileConfig, str]]:
    """A kernel with a Variant of each config that fits its pattern, its binary, and why others do not."""
    recorder = Recorder()
    try:
        kernel = make_kernel(replace(order, configs=tuple(configs)), order.symbol(), recorder)
    except PatternMismatch as refusal:
        if len(configs) == 1:
            raise
        kernel, binary, refused = built(order, configs[:1], shop)  # what one of them breaks is not the others' fault
        return kernel, binary, refused | {config: str(refusal) for config in configs[1:]}
    made = {code.config for code in kernel.codes}
    refused = {config: next((d.reason for d in recorder.decisions if config_to_json(config) in d.reason), "refused")
               for config in configs if config not in made}
    device = shop.device
    return kernel, device.build(kernel.sources, device.spec, shop.options, {kernel.symbol: kernel.interface}, None), refused


def _measured(group: Group, configs: Sequence[TileConfig], shop: Workshop, machine: str) -> list[Record]:
    """The records of configs at all sizes of a group."""
    order, target = group.order, shop.device.spec.name
    kernel, binary, refused = built(order, configs, shop)
    trial = Trial(order.program, kernel, binary, target, order.constants)
    found = measured(trial, group.sizes[:1], group.sizes)
    records = [Record(order.group, target, machine, config, {}, reason=reason) for config, reason in refused.items()]
    for variant, (code, own) in enumerate(zip(kernel.codes, kernel.interface.variants, strict=True)):
        if code.config not in configs:
            continue
        if variant in found.wrong:
            records.append(Record(order.group, target, machine, code.config, {}, reason=found.wrong[variant]))
            continue
        for number, sizes in enumerate(group.sizes):
            work = {work.kind: work.count.evaluate(sizes) for work in code.work}
            blocks, nanoseconds = own.calls[0].blocks.evaluate(sizes), round(found.seconds[variant, number] * 1e9)
            records.append(Record(order.group, target, machine, code.config, sizes, 1, blocks, work, max(1, nanoseconds)))
    return records


def _known(path: Path, group: Group, machine: str) -> dict[TileConfig, Times]:
    """What a file of records has of a group's configs on this machine, as far as it has them at all of its sizes."""
    if not path.exists():
        return {}
    return _times([r for r in read(path) if r.group == group.order.group and r.machine == machine], group.sizes)


def _times(records: Sequence[Record], sizes: Sequence[Sizes]) -> dict[TileConfig, Times]:
    keys = [place_of(s) for s in sizes]
    times: dict[TileConfig, dict[Place, float]] = {}
    refused: dict[TileConfig, Times] = {}
    for record in records:
        if record.nanoseconds is None:
            refused[record.config] = None
        else:
            own, key = times.setdefault(record.config, {}), place_of(record.sizes)
            own[key] = min(own.get(key, math.inf), math.log(record.nanoseconds))
    return refused | {config: [own[key] for key in keys] for config, own in times.items() if own.keys() >= {*keys}}

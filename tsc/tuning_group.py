"""One group tuned: its configs in the order of a search, built into batches, and measured until a budget is spent."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from tsc.codegen_c.specs import machine_name
from tsc.config import Options, default_threads
from tsc.errors import LaunchError
from tsc.kernels import Order, Workshop, make_kernel, of_kind, workshop
from tsc.plan.kernel import Kernel
from tsc.poly import PatternMismatch
from tsc.poly.schedule import prepared
from tsc.poly.tile import Knob, Space, TileConfig, config_to_json
from tsc.te.factored.factor import NotFactored
from tsc.te.factored.factoring import proposed
from tsc.trace import Recorder
from tsc.tune.batch import Batch, measured_records, times_of
from tsc.tune.measure import Sizes, Trial
from tsc.tune.pool import cover, matrix_of
from tsc.tune.records import Record
from tsc.tune.search import RandomSearch, Search, Times
from tsc.tune.turbo import Turbo

#: Configs that are built into one module and measured beside each other.
BATCH = 8
#: How often finalists are measured, and how often more the few that may be chosen: they are less than a percent apart, and what
#: streams from memory takes 3 % more or less from one pass to the next.
PASSES, AGAIN = 2, 4
#: Logarithm of how much longer than the default a seed may take to be a finalist; and of how many the mean makes them one.
NEAR, BEST = 0.1, 4
#: Elements of the chunks that reductions are cut into where their order is not fixed.
CHUNKS = (256, 1024, 4096)

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


@dataclass(frozen=True, slots=True)
class Job:
    """All that tuning a Group takes, in whatever process; `search` is a name, and `known` what was measured before. `finalists`
    says how many of the best configs are to be measured once more."""

    group: Group
    target: str
    options: Options
    budget: Budget = field(default_factory=Budget)
    search: str | None = None
    seed: int = 0
    known: tuple[Record, ...] = ()
    finalists: int = 0


def rounds(job: Job, shop: Workshop | None = None) -> Iterator[list[Record] | Batch]:
    """Tune a Group: the records of one batch after another, none for what is known, and at the end a Batch of finalists, for
    `final_records` to measure. Raises LaunchError where the machine cannot do it."""
    group, budget, machine = job.group, job.budget, machine_name()
    shop = shop or replace(workshop(job.target, job.options), device=group.order.device)
    space = space_of(group, shop)
    if space is None:
        return
    search = search_called(job.search)(space, job.seed)
    known = times_of([r for r in job.known if (r.group, r.machine) == (group.order.group, machine)], group.sizes)
    begun, done = time.monotonic(), 0
    while done < budget.configs and (time.monotonic() - begun < budget.seconds or not done):
        asked = search.ask(min(BATCH, budget.configs - done))
        if not asked:
            break
        fresh = [config for config in asked if config not in known]
        if fresh:
            records = measured_records(batch_of(group, space.default, fresh, shop), known)
            known |= times_of(records, group.sizes)
            yield records
        search.tell({config: known.get(config) for config in asked})
        done += len(asked)
    last = finalists(space, known, job.finalists) if job.finalists else []
    done_before = {r.config for r in job.known if r.final and (r.group, r.machine) == (group.order.group, machine)}
    if len(last) > 1 and not done_before.issuperset(last):
        yield batch_of(group, space.default, last, shop)


def final_records(batch: Batch) -> list[Record]:
    """The records of finalists on one core and on all of them, each timed as often as can be, in PASSES of which the fastest
    counts; those at the front run AGAIN (sequential halving; Karnin et al. 2013). Nothing should run beside it, on any core:
    what builds takes a core from those that run on all."""
    found: list[Record] = []
    for units in sorted({1, default_threads()}):
        every = [r for _ in range(PASSES) for r in measured_records(batch, {}, units, math.inf)]
        few = replace(batch, configs=front(every, units), refused={})
        found += every
        found += [r for _ in range(AGAIN) for r in measured_records(few, {}, units, math.inf)]
    return [replace(record, final=True) for record in found]


def front(records: Sequence[Record], units: int) -> tuple[TileConfig, ...]:
    """Of finalists those that may be chosen: the BEST cover of their sizes, and the BEST on average."""
    matrix = matrix_of(records, (units,))
    if matrix is None:
        return ()
    return tuple([matrix.configs[row] for row in _leading(np.log(matrix.times), BEST)])


def _leading(logs: NDArray[np.float64], most: int) -> list[int]:
    """Of rows of logarithms of times so many that cover their columns, then the BEST on average."""
    return list(dict.fromkeys([*cover(np.exp(logs), most, 0.0), *logs.mean(axis=1).argsort(kind="stable")[:BEST].tolist()]))


def finalists(space: Space, known: Mapping[TileConfig, Times], most: int) -> list[TileConfig]:
    """The configs that are measured once more, side by side: a cover of what is known, twice as large as the pool will be; the
    few that are best on average; the default, and those seeds of a Space that are not far from it (of many configs measured
    once a cover takes those that had luck at one size, and a seed is no matter of luck); and of those that cut reductions into
    chunks the best of each length: on one core they gain nothing."""
    times = {config: own for config, own in known.items() if own is not None}
    if not times:
        return []
    configs, means = list(times), {config: float(np.mean(own)) for config, own in times.items()}
    leading = [configs[row] for row in _leading(np.array([times[config] for config in configs]), most)]
    limit = means.get(space.default, -math.inf) + NEAR
    seeds = (config for config in space.seeds if means.get(config, math.inf) <= limit)
    cut = sorted(filter(None, {config.chunk for config in configs}))
    split = (min((c for c in configs if c.chunk == chunk), key=means.__getitem__) for chunk in cut)
    return list(dict.fromkeys([space.default, *leading, *seeds, *split]))


def batches(job: Job, shop: Workshop) -> Iterator[Batch]:
    """So many configs as the budget has, of those that the search asks for next and nobody has measured, built to be measured
    elsewhere. A search that learns should be given few at a time."""
    space, group = space_of(job.group, shop), job.group
    if space is None:
        return
    search = search_called(job.search)(space, job.seed)
    known = times_of([r for r in job.known if r.group == group.order.group], group.sizes)
    left = job.budget.configs
    while left and (asked := search.ask(BATCH)):
        fresh = [config for config in asked if config not in known][:left]
        if fresh:
            yield batch_of(group, space.default, fresh, shop)
        left -= len(fresh)
        search.tell({config: known[config] for config in asked if config in known})


def space_of(group: Group, shop: Workshop) -> Space | None:
    """The configs of a Group; None where it has none to choose from."""
    order, spec = group.order, shop.device.spec
    analysed = prepared(order.program, spec, order.constants, None, order.wanted, order.device.forms)
    if analysed is None:
        return None
    space = analysed.found.space(spec)
    return space if shop.options.reduction == "fixed" else with_chunks(space, order)


def with_chunks(space: Space, order: Order) -> Space:
    """With configs that cut reductions, where they can be: in sizes of the Space where what computes the chunks has such."""
    cut = {size: found for size in CHUNKS if (found := proposed(order.program, size, apart=True)) is not None}
    if not cut:
        return space
    try:
        first, *_ = next(iter(cut.values())).programs(order.program)
        analysed = prepared(first, order.device.spec, order.constants, None, of_kind(order.kind), order.device.forms)
    except (NotFactored, PatternMismatch):
        return space
    alike = analysed is not None and analysed.found.default_config(order.device.spec).has_form_of(space.default)

    def whole(config: TileConfig) -> TileConfig:
        return space.whole(config) if alike or not config.chunk else replace(space.default, chunk=config.chunk)

    seeds = (*(replace(space.default, chunk=size) for size in cut), *space.seeds)
    return replace(space, knobs=(*space.knobs, Knob("chunk", (), (0, *cut))), whole=whole, seeds=seeds)


def search_called(name: str | None) -> MakeSearch:
    """The search "turbo" or "random"; None is the first, where it can be had. Raises LaunchError where it cannot."""
    if name == "random" or (name is None and find_spec("botorch") is None):
        return RandomSearch
    try:
        draws = import_module("tsc.tune.gaussian").draws
    except ImportError as error:
        raise LaunchError(f"the search 'turbo' lacks {error.name}; install tsc-compiler[tune], or search at random") from error
    return lambda space, seed: Turbo(space, seed, draws)


def batch_of(group: Group, anchor: TileConfig, configs: Sequence[TileConfig], shop: Workshop) -> Batch:
    """Configs of a Group, built, with an anchor."""
    order, spec = group.order, shop.device.spec
    kernel, binary, refused = built(order, list(dict.fromkeys([anchor, *configs])), shop)
    trial = Trial(order.program, kernel, binary, spec.name, order.constants)
    refused = {config: reason for config, reason in refused.items() if config in configs}
    made = tuple(c for c in configs if c not in refused)
    return Batch(order.group, trial, anchor, made, group.sizes, refused, spec.cpu_flags)


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
    made = {*kernel.configs}
    refused = {config: next((d.reason for d in recorder.decisions if config_to_json(config) in d.reason), "refused")
               for config in configs if config not in made}
    device = shop.device
    return kernel, device.build(kernel.sources, device.spec, shop.options, {kernel.symbol: kernel.interface}, None), refused

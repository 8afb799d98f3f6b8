"""Memory and dependences of regions: random Plans, placed in as little as possible, compute what NumPy says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from tests.runtime.random_regions import random_plan
from tests.runtime.region_plans import INTERFACES, KERNELS, Evaluation, Making, X, call, request, writes
from tsc.codegen_c.build import build_module
from tsc.codegen_c.specs import CPU_SPECS
from tsc.config import Options
from tsc.plan.place import order, place
from tsc.runtime import bounds
from tsc.runtime.executable import Executable
from tsc.runtime.package import Module, Package
from tsc.runtime.plan import Copy, Launch, Plan, Region, is_barrier, regions_in, steps_of, storages_of
from tsc.sym import Range, ShapeEnv

Run = Callable[[Plan, dict[str, np.ndarray]], np.ndarray]


@pytest.fixture(scope="module")
def run() -> Run:
    """What a Plan computes when it runs."""
    binary = build_module({"kernels": KERNELS}, CPU_SPECS["cpu-generic"], Options(), INTERFACES)
    modules = {"cpu-generic": Module(binary)}
    return lambda plan, feeds: Executable(Package({"cpu-generic": plan}, {}, modules), 1).run(None, feeds)[0]


def placed(plan: Plan) -> Plan:
    storages, arenas = place(plan.storages, plan.body, ShapeEnv({"n": Range(0, 64)}))
    return replace(plan, storages=storages, arenas=arenas, body=order(plan.body, storages, writes))


SEEDS = range(150)
REQUESTS = [request(3, (2, 1), 1), request(17, (3, 3), 2), request(8, (1, 2), 3)]


def differences(run: Run, seeds: range) -> list[int]:
    """Seeds of plans that compute something else than NumPy."""
    wrong = []
    for seed in seeds:
        plan = placed(random_plan(seed))
        for feeds in REQUESTS:
            with np.errstate(all="ignore"):
                expected = Evaluation(plan, feeds).results[0]
            if not np.array_equal(run(plan, feeds), expected, equal_nan=True):
                wrong.append(seed)
    return wrong


@pytest.mark.parametrize("part", range(5))
def test_random_regions(run: Run, part: int) -> None:
    assert not differences(run, SEEDS[part::5])


def test_storages_do_share_memory() -> None:
    shared = 0
    for seed in SEEDS:
        plan = placed(random_plan(seed))
        used = [s for s in plan.storages if s.kind == "arena"]
        shared += len({s.offset for s in used}) < len(used)
    assert shared > len(SEEDS) // 2


def test_what_a_loop_uses_stays(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans that end with the last use as it stands give other results, and the verifier, when it knows better, finds them."""
    def naive(region: Region) -> dict[int, tuple[int, int]]:
        spans: dict[int, tuple[int, int]] = {}
        for now, step in enumerate(steps_of(region)):
            for storage in storages_of(step):
                spans[storage] = spans.get(storage, (now, now))[0], now
        return spans

    monkeypatch.setattr("tsc.plan.place.lifetimes", naive)
    with pytest.raises(Exception, match="keeps two values in the same place at once"):
        differences(run, SEEDS)
    monkeypatch.setattr(bounds, "lifetimes", naive)
    assert differences(run, SEEDS)


def meet(a: int, b: int, spans: Sequence[tuple[int, int]]) -> bool:
    return a == b or (spans[a][0] < spans[b][1] and spans[b][0] < spans[a][1])


def test_dependences_are_enough() -> None:
    """Whatever touches one memory, and one of them writes it, is ordered: against all pairs, by memory as it lies at a size."""
    for seed in SEEDS:
        plan = placed(random_plan(seed))
        names = {"n": 5}
        spans = [(0, 0) if s.kind != "arena" else (s.offset.evaluate(names), s.offset.evaluate(names) + s.bytes.evaluate(names))
                 for s in plan.storages]

        regions = [plan.body]
        while regions:
            region = regions.pop()
            regions += [inner for step in region for inner in regions_in(step)]
            before: list[set[int]] = []
            barrier = -1
            for position, step in enumerate(region):
                direct = set(step.after or ()) if isinstance(step, Launch | Copy) else set(range(position))
                direct |= {barrier} - {-1}
                before.append(direct.union(*(before[k] for k in direct)))
                barrier = position if is_barrier(step) else barrier
            for (i, first), (j, second) in combinations(enumerate(region), 2):
                if isinstance(first, Launch | Copy) and isinstance(second, Launch | Copy):
                    changed = [{s.target} if isinstance(s, Copy) else writes(s) for s in (first, second)]
                    hazard = any(meet(a, b, spans) and (a in changed[0] or b in changed[1])
                                 for a in storages_of(first) for b in storages_of(second))
                    assert not hazard or i in before[j], (seed, i, j)


def test_what_is_independent_does_not_wait() -> None:
    p = Making()
    y, z, t = p.output(), p.output(), p.arena()
    plan = placed(p.plan(call("twice", X, y), call("twice", X, t), call("sum", t, y, z)))
    assert [step.after for step in plan.launches] == [(), (), (1, 2)]

"""Searches on simulated devices: valid configs, each once; regions that grow, shrink and begin anew; better than chance."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import numpy as np
import pytest

from tsc.errors import LaunchError
from tsc.poly.tile import Knob, Limit, Space, TileConfig
from tsc.tune import simulate
from tsc.tune.pool import cover
from tsc.tune.search import RandomSearch, Search, valid
from tsc.tune.simulate import A100, H200, Gpu, Product, resident, seconds, space_of, with_noise
from tsc.tune.turbo import FAILURES, FIRST, LENGTH, LONGEST, SHORTEST, SUCCESSES, Array, Grid, Region, Turbo, followed, updated
from tsc.tuning_group import search_called

ROWS = (1, 8, 32, 128, 300, 700, 2048, 16384)


def gaussian(x: Array, y: Array, candidates: Array, count: int, seed: int) -> Array:
    """A Gaussian process of one length: what the tests need of BoTorch."""
    def kernel(a: Array, b: Array) -> Array:
        return np.exp(-((a[:, None] - b[None]) ** 2).sum(-1) / (2 * 0.4**2))

    mean, deviation = y.mean(), max(y.std(), 1e-6)
    known = kernel(x, x) + 1e-3 * np.eye(len(x))
    across = kernel(candidates, x)
    centre = across @ np.linalg.solve(known, (y - mean) / deviation)
    spread = kernel(candidates, candidates) - across @ np.linalg.solve(known, across.T)
    root = np.linalg.cholesky(spread + 1e-4 * np.eye(len(candidates)))
    noise = np.random.default_rng(seed).standard_normal((count, len(candidates)))
    return (centre + noise @ root.T) * deviation + mean


def searched(search: Search, gpu: Gpu, products: list[Product], budget: int) -> np.ndarray:
    """The logarithms of the times of what a search asked for, itself told them with noise."""
    seen: list[list[float]] = []
    asked: set[TileConfig] = set()
    while len(seen) < budget:
        configs = search.ask(min(8, budget - len(seen)))
        if not configs:
            break
        assert not asked & set(configs) and len(set(configs)) == len(configs)
        assert all(space_of(gpu).refusal(config) is None for config in configs)
        asked |= set(configs)
        times = {config: [seconds(config, product, gpu) for product in products] for config in configs}
        search.tell({config: [math.log(with_noise(t, {"config": str(config), "column": k})) for k, t in enumerate(own)]
                     for config, own in times.items()})
        seen += [[math.log(t) for t in own] for own in times.values()]
    return np.array(seen)


def covered(logs: np.ndarray, most: int = 4) -> float:
    """The mean logarithm of the time with a few configs, each size with its fastest."""
    return float(logs[cover(np.exp(logs), most)].min(axis=0).mean())


# -- simulated devices -------------------------------------------------------------------------------------------------

def test_occupancy_by_hand() -> None:
    """Section 6: by shared memory 167936 // (98304 + 1024), by registers 65536 // (n * 256), by warps 64 // 8."""
    config = TileConfig((16, 8, 16), (128, 128, 32), warp_tile=(64, 32), stages=6)
    assert config.warps == 8 and resident(config, A100) == 1
    assert resident(replace(config, stages=3), A100) == 2 and resident(replace(config, stages=3), H200) == 2
    small = TileConfig((16, 8, 16), (16, 16, 16), warp_tile=(16, 16), stages=1)
    assert resident(small, A100) == 32


@pytest.mark.parametrize("gpu", [A100, H200])
def test_simulated_times_are_those_of_such_devices(gpu: Gpu) -> None:
    space = space_of(gpu)
    configs = valid(space)
    assert len(configs) > 2000
    large = min(seconds(c, Product(8192, 8192, 8192), gpu) for c in configs)
    peak = gpu.multiprocessors * gpu.hertz * gpu.flop
    assert 0.7 < 2 * 8192**3 / large / peak <= 1
    few = min(seconds(c, Product(1, 4096, 4096), gpu) for c in configs)
    assert few > 4096 * 4096 * 2 / gpu.bandwidth                # no faster than the weights are read
    best = {n: min(configs, key=lambda c, n=n: seconds(c, Product(n, 3072, 1024), gpu)) for n in (16, 16384)}
    assert best[16].block_tile[0] < best[16384].block_tile[0]   # no config is best at all sizes
    assert seconds(configs[0], Product(7, 7, 7), gpu) == seconds(configs[0], Product(7, 7, 7), gpu)


def test_noise_is_the_same_for_the_same_measurement() -> None:
    values = [with_noise(1.0, {"k": k}, 0.02) for k in range(400)]
    assert values == [with_noise(1.0, {"k": k}, 0.02) for k in range(400)]
    assert 0.015 < np.std(np.log(values)) < 0.025 and abs(np.mean(np.log(values))) < 0.004
    assert simulate.ROUGHNESS > 0


# -- regions -----------------------------------------------------------------------------------------------------------

def test_a_region_grows_shrinks_and_begins_anew() -> None:
    region = updated(Region((0, 1)), math.inf, 5.0, 8)
    assert (region.successes, region.length) == (1, LENGTH)
    for k in range(2, SUCCESSES + 1):
        region = updated(region, 6.0 - k, 5.0 - k, 8 * k)
    assert region.length == min(2 * LENGTH, LONGEST) and region.successes == 0
    assert updated(region, 3.0, 3.0 - 1e-9, 99).failures == 1  # that is no success
    told = 100
    while True:
        before = region
        for _ in range(FAILURES):
            region, told = updated(region, 3.0, 9.0, told + 8), told + 8
        if region.begun:
            break
        assert region.length == before.length / 2 >= SHORTEST
    assert region == Region((0, 1), begun=told)


def test_regions_follow_the_cover() -> None:
    """There is one for each config of it, with the sizes where that is the fastest; the state of a region stays with most of
    them."""
    both = np.array([[1.0, 1, 1, 1], [2, 2, 2, 2]])
    (one,) = followed((), both, 2, 3)
    assert one == Region((0, 1, 2, 3))
    special = np.vstack([both, [[0.5, 3, 3, 3], [3, 3, 3, 0.5]]])
    low, middle, high = followed((one,), special, 2, 3)
    assert (low, high) == (Region((0,)), Region((3,))) and middle == Region((1, 2), failures=1)
    assert followed((), special, 4, 2)[0].columns in {(0, 1, 2), (0,)} and len(followed((), special, 4, 1)) == 1
    better = np.vstack([special, [[0.4, 0.6, 3, 3]]])
    assert followed((low, middle, high), better, 1, 3) == (
        Region((0, 1), successes=1), Region((2,), failures=2), Region((3,), failures=1))
    late = Region((3,), begun=4)
    assert late.values(better).tolist() == [3.0]


def test_places_are_moved_to_valid_choices() -> None:
    space = Space(TileConfig((1, 1)), (Knob("instr_tile", (0,), (1, 2, 4, 8)), Knob("instr_tile", (1,), (1, 2, 4, 8))),
                  (Limit("registers", 16, lambda c: c.instr_tile[0] * c.instr_tile[1]),))
    grid = Grid(space)
    assert grid.projected(np.array([0.4, 0.9]), None) == (1, 3) and grid.projected(np.array([1.0, 1.0]), None) is None
    assert grid.projected(np.array([2.0, 1.0]), (1, 1)) == (2, 2) and grid.projected(np.array([1.0, 1.0]), (3, 0)) == (3, 1)
    assert grid.nearest(TileConfig((3, 8))) == (1, 3) and grid.unit([(3, 0), (0, 3)]).tolist() == [[1, 0], [0, 1]]


def test_a_small_space_is_known_in_the_end() -> None:
    space = Space(TileConfig((1, 1)), (Knob("instr_tile", (0,), (1, 2, 3)), Knob("instr_tile", (1,), (1, 2))))
    for search in (RandomSearch(space, 0), Turbo(space, 0, gaussian)):
        seen: list[TileConfig] = []
        while asked := search.ask(4):
            seen += asked
            search.tell({config: [1.0 * config.instr_tile[0]] for config in asked})
        assert seen[0] == space.default and sorted(c.instr_tile for c in seen) == sorted(c.instr_tile for c in valid(space))


def test_configs_that_cannot_be_run_are_avoided() -> None:
    """Half of the space cannot be run; that a search does not stop there, and finds the best of the rest."""
    space = Space(TileConfig((1, 1)), tuple(Knob("instr_tile", (k,), tuple(range(1, 33))) for k in range(2)))
    search, best, broken = Turbo(space, 3, gaussian), math.inf, 0
    for _ in range(12):
        asked = search.ask(8)
        results = {}
        for c in asked:
            high, wide = c.instr_tile
            results[c] = None if high > 16 else [math.log(1 + (high - 11) ** 2 + (wide - 25) ** 2)]
        broken += sum(times is None for times in results.values())
        best = min([best, *(times[0] for times in results.values() if times)])
        search.tell(results)
    assert best < math.log(4) and broken < 40


def test_all_fail_at_first() -> None:
    search = Turbo(space_of(A100), 0, gaussian)
    for _ in range(3):
        search.tell(dict.fromkeys(search.ask(4)))
    assert not search.regions and len(search.ask(4)) == 4


# -- better than chance ------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("gpu", [A100, pytest.param(H200, marks=pytest.mark.slow)])
def test_regions_beat_chance(gpu: Gpu) -> None:
    products = [Product(rows, 1024, 4096) for rows in ROWS]
    space = space_of(gpu)
    least = covered(np.log(np.array(simulate.matrix(valid(space), products, gpu))))
    random = [covered(searched(RandomSearch(space, seed), gpu, products, 64)) - least for seed in range(5)]
    turbo = [covered(searched(Turbo(space, seed, gaussian), gpu, products, 64)) - least for seed in range(5)]
    assert median(turbo) < 0.6 * median(random), (turbo, random)


def test_a_search_is_the_same_for_the_same_seed() -> None:
    products = [Product(rows, 3072, 1024) for rows in (8, 300)]
    first, second, third = (searched(Turbo(space_of(A100), seed, gaussian), A100, products, 24) for seed in (1, 1, 2))
    assert (first == second).all() and not np.array_equal(first, third)


def test_the_search_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert search_called("random") is RandomSearch
    monkeypatch.setattr("tsc.tuning_group.find_spec", lambda name: None)
    assert search_called(None) is RandomSearch

    def missing(name: str) -> None:
        raise ImportError("no module", name="botorch")

    monkeypatch.setattr("tsc.tuning_group.import_module", missing)
    with pytest.raises(LaunchError, match=r"lacks botorch; install tsc-compiler\[tune\]"):
        search_called("turbo")


def test_draws_of_botorch() -> None:
    """They go through what is known, and are uncertain elsewhere."""
    pytest.importorskip("botorch", reason="the extra 'tune' is not installed")
    from tsc.tune.gaussian import draws
    x = np.random.default_rng(0).random((24, 2))
    y = 3 + np.sin(5 * x[:, 0]) + x[:, 1]
    found = draws(x, y, np.concatenate([x, [[3.0, -2.0]]]), 64, 0)
    assert found.shape == (64, 25) and np.abs(found[:, :24].mean(axis=0) - y).max() < 0.1
    assert found[:, 24].std() > 3 * found[:, :24].std(axis=0).max()
    np.testing.assert_array_equal(found, draws(x, y, np.concatenate([x, [[3.0, -2.0]]]), 64, 0))


@pytest.mark.parametrize("make", [lambda space: RandomSearch(space, 0), lambda space: Turbo(space, 0, gaussian)])
def test_seeds_come_first(make: Callable[[Space], Search]) -> None:
    space = space_of(A100)
    members = valid(space)
    outside = replace(space.default, block_tile=(128, 128, 48))  # no member, and within the limits
    broken = next(c for c in map(space.at, itertools.product(*(range(len(k.sizes)) for k in space.knobs))) if space.refusal(c))
    search = make(replace(space, seeds=(members[5], space.default, broken, outside, members[7])))
    assert search.ask(2) == [space.default, members[5]] and search.ask(3)[:2] == [outside, members[7]]


def test_more_seeds_than_a_region_waits_for() -> None:
    """They come batch by batch, without a draw that nobody asked for, and then what the regions draw."""
    space, asked = space_of(A100), list[int]()

    def draws(x: np.ndarray, y: np.ndarray, at: np.ndarray, count: int, seed: int) -> np.ndarray:
        asked.append(count)
        assert count > 0
        return gaussian(x, y, at, count, seed)

    seeds = valid(space)[:4 * FIRST]
    search = Turbo(replace(space, seeds=tuple(seeds)), 0, draws)
    found = list[TileConfig]()
    for _ in range(8):
        batch = search.ask(4)
        found += batch
        search.tell({config: [float(len(found) % 7), 1.0] for config in batch})
    assert {*found[:4 * FIRST]} <= {space.default, *seeds} and len(set(found)) == 32 and asked

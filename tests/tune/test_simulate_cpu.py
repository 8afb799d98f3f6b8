"""The simulated CPU: how near it is to the matrix that it was fitted to, and selection on it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from benchmarks.terrain import configs_of
from tests.tune.support import lengths, shares_of_best
from tsc.poly.pattern.base import ROW_STEPS, STEPS, TILES
from tsc.poly.tile import TileConfig
from tsc.runtime.cost import Rates
from tsc.sym import Range
from tsc.tune.pool import pool_of
from tsc.tune.records import Record
from tsc.tune.search import RandomSearch
from tsc.tune.simulate import Product, with_noise
from tsc.tune.simulate_cpu import Cpu, seconds, space_of
from tsc.tuning import POINTS, points_of

CPU = Cpu()
TERRAIN = Path(__file__).parents[2] / "benchmarks" / "results" / "terrain-amd-epyc-family-26.json"
#: Batch 4, and the lengths that a tuner takes.
MEASURED = [4 * point["length"] for point in points_of({"length": Range(1, 512)}, POINTS, 0)]


def test_it_is_near_what_was_measured() -> None:
    """Times within a tenth in the median; what it takes for the best has 0.95 of the speed that one config in a hundred has."""
    terrain = json.loads(TERRAIN.read_text())
    found = configs_of(terrain)
    configs, measured = list(found), np.array(list(found.values()))
    products = [Product(rows, terrain["width"], terrain["depth"]) for rows in terrain["rows"]]
    simulated = np.array([[seconds(config, p, CPU, False) for p in products] for config in configs])
    assert len(configs) > 700 and np.median(np.abs(np.log(simulated / measured))) < 0.1
    chosen = simulated.argmin(axis=0)
    assert (measured[chosen, range(len(products))] * 0.95 < np.quantile(measured, 0.01, axis=0)).all()


def test_more_takes_longer() -> None:
    for config in RandomSearch(space_of(CPU), 0).ask(20):
        times = [seconds(config, Product(rows, 768, 768), CPU) for rows in (1, 30, 900, 4000)]
        assert times == sorted(times) and seconds(config, Product(900, 768, 1600), CPU) > times[2]


def record(config: TileConfig, product: Product) -> Record:
    """A measurement with noise, and what the pattern counts."""
    rows, columns = config.instr_tile
    blocks = -(-product.m // config.block_tile[0]) * -(-product.n // config.block_tile[1])
    strips = -(-product.n // columns)
    tiles = strips * -(-product.m // rows)
    work = {TILES: tiles, STEPS: tiles * product.k, ROW_STEPS: strips * product.m * product.k}
    time = with_noise(seconds(config, product, CPU), {"config": str(config), "m": product.m})
    return Record("group", "cpu-avx512", "simulated", config, {"m": product.m}, 1, blocks, work, round(time * 1e9))


@pytest.mark.parametrize(("width", "depth"), [(3072, 1024), (1024, 4096)])
def test_the_chosen_one_is_nearly_the_best(width: int, depth: int) -> None:
    for seed in range(3):
        configs = RandomSearch(space_of(CPU), seed).ask(96)
        pool: dict[TileConfig, Rates] = pool_of([record(c, Product(m, width, depth)) for c in configs for m in MEASURED], 6)
        shares = list(shares_of_best(pool, (Product(4 * length, width, depth) for length in lengths(seed)), 1,
                                     partial(seconds, cpu=CPU), record))
        assert np.mean(shares) >= 0.98 and min(shares) >= 0.9, (seed, np.mean(shares), min(shares))

"""Selection on simulated devices, as in section 7.3 of the paper: dense layers at random lengths, beside the pool's best."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest

from tests.tune.support import lengths, shares_of_best
from tsc.poly.tile import TileConfig
from tsc.runtime.cost import Rates
from tsc.sym import Range
from tsc.tune.pool import pool_of
from tsc.tune.records import Record
from tsc.tune.search import RandomSearch
from tsc.tune.simulate import A100, H200, Gpu, Product, resident, seconds, space_of, with_noise
from tsc.tuning import POINTS, points_of

#: The rows at which the pool is measured: batch 32, as in the paper, and the lengths that a tuner takes.
MEASURED = [32 * point["length"] for point in points_of({"length": Range(1, 512)}, POINTS, 0)]


def record(config: TileConfig, product: Product, gpu: Gpu) -> Record:
    """A measurement with noise, and what the pattern counts."""
    high, wide, deep = config.block_tile
    blocks = -(-product.m // high) * -(-product.n // wide)
    time = with_noise(seconds(config, product, gpu), {"config": str(config), "m": product.m})
    return Record("group", gpu.name, "simulated", config, {"m": product.m}, gpu.multiprocessors, blocks,
                  {"steps": blocks * -(-product.k // deep)}, round(time * 1e9), "", resident(config, gpu))


def pool(gpu: Gpu, width: int, depth: int, seed: int) -> dict[TileConfig, Rates]:
    configs = RandomSearch(space_of(gpu), seed).ask(96)
    known = [record(config, Product(m, width, depth), gpu) for config in configs for m in MEASURED]
    return pool_of(known, 6, (gpu.multiprocessors,))


@pytest.mark.parametrize("gpu", [A100, H200], ids=lambda gpu: gpu.name)
@pytest.mark.parametrize(("width", "depth"), [(3072, 1024), (1024, 4096)])
def test_the_chosen_one_is_nearly_the_best(gpu: Gpu, width: int, depth: int) -> None:
    for seed in range(3):
        known = pool(gpu, width, depth, seed)
        assert len(known) > 1 and all(rates.resident == resident(config, gpu) for config, rates in known.items())
        shares = list(shares_of_best(known, (Product(32 * length, width, depth) for length in lengths(seed)),
                                     gpu.multiprocessors, partial(seconds, gpu=gpu), partial(record, gpu=gpu)))
        assert np.mean(shares) >= 0.98 and min(shares) >= 0.9, (gpu.name, seed, np.mean(shares), min(shares))


@pytest.mark.parametrize("gpu", [A100, H200], ids=lambda gpu: gpu.name)
def test_a_pool_beats_its_best_config_alone(gpu: Gpu) -> None:
    known = pool(gpu, 3072, 1024, 0)
    first = next(iter(known))
    gains = [math.log(seconds(first, p, gpu) / min(seconds(c, p, gpu) for c in known))
             for p in (Product(m, 3072, 1024) for m in MEASURED)]
    assert min(gains) >= 0 and np.mean(gains) > 0.03

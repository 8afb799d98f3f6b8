"""Plans over the Driver protocol, the CPU being the driver: what the CPU's own tables give, bit for bit."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tsc
from tests.runtime.random_regions import random_plan
from tests.runtime.region_plans import PLANS, check, request
from tsc import te
from tsc.errors import InputError, LaunchError
from tsc.runtime.drivers.cpu_driver import CpuDriver
from tsc.runtime.drivers.stub import StubDriver
from tsc.runtime.executable import Executable
from tsc.runtime.package import Package
from tsc.runtime.plan import Plan

Oracle = Callable[[np.ndarray, np.ndarray], np.ndarray]
Made = Callable[..., Executable]


@pytest.fixture
def driven(made: Made) -> Callable[[Plan], Executable]:
    return lambda plan: Executable(made(plan)._package, 2, CpuDriver(2))


@pytest.mark.parametrize("name", PLANS)
def test_branches_loops_and_computed_sizes(driven: Callable[[Plan], Executable], name: str) -> None:
    plan = PLANS[name]()
    executable = driven(plan)
    for n in (0, 1, 5, 8, 17):
        for ids in ((0, 0), (1, 1)) if name == "copy" else ((0, 0), (1, 1), (3, 2), (12, 0)):
            check(executable, plan, request(n, ids, seed=n))


@pytest.mark.parametrize("seed", range(12))
def test_random_plans(made: Made, driven: Callable[[Plan], Executable], seed: int) -> None:
    plan = random_plan(seed)
    for n in (1, 6):
        feeds = request(n, (2, 1), seed=seed)
        for one, other in zip(made(plan).run(None, feeds), driven(plan).run(None, feeds), strict=True):
            np.testing.assert_array_equal(one, other)


def test_straight_plans(chain: Package, expected: Oracle) -> None:
    executable, rng = Executable(chain, 1, CpuDriver(1)), np.random.default_rng(0)
    for n, c in ((1, 1), (3, 5), (5, 3), (17, 63), (64, 64), (3, 5)):
        x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((n, c), (c,)))
        y, z = executable.run(None, {"x": x[::-1], "w": w})
        np.testing.assert_array_equal(y, expected(x[::-1], w))
        np.testing.assert_array_equal(z, x[::-1])
    times = executable.profile({"x": x, "w": w}, repeat=1)
    assert all(row.milliseconds > 0 for row in times.kernels) and len(times.kernels) == 2


def test_wrong_data_is_named(lookup: Callable[[np.ndarray], Package]) -> None:
    executable = Executable(lookup(np.arange(5, dtype=np.float32)), 1, CpuDriver(1))
    with pytest.raises(InputError, match=r"index out of bounds of 'table' \(in the kernel of node 'lookup'\)"):
        executable.run(None, {"ids": np.array([0, 5])})
    for ids in ([4, 0], []):
        np.testing.assert_array_equal(executable.run(None, {"ids": np.array(ids, np.int64)})[0], np.array(ids, np.float32))


def test_many_threads_share_a_driver(chain: Package, expected: Oracle) -> None:
    executable = Executable(chain, 1, CpuDriver(1))

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(20):
            n = int(rng.integers(1, 9))
            x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((n, n), (n,)))
            np.testing.assert_array_equal(executable.run(None, {"x": x, "w": w})[0], expected(x, w))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))  # raises what a thread raised


@pytest.mark.parametrize("method", ["allocate", "upload", "fill", "launch", "download", "copy", "synchronize"])
def test_a_device_that_fails_keeps_nothing(chain: Package, method: str) -> None:
    driver = StubDriver()
    executable = Executable(chain, 1, driver)
    feeds = {"x": np.ones((4, 2), np.float32), "w": np.ones(2, np.float32)}
    executable.run(None, feeds)
    for number in range(1, 9):
        driver.fail_at = {method: driver._counts[method] + number}
        before = driver._counts[method]
        try:
            executable.run(None, feeds)
        except LaunchError as error:
            assert "the stub was told to fail" in str(error) or "not enough memory" in str(error)
        if driver._counts[method] < before + number:
            break
    driver.fail_at, driver.error = {}, LaunchError("")  # an error keeps the frames that it came through,
    executable.run(None, feeds)
    executable.trim()
    driver.calls.clear()  # and calls what they were given
    driver.runs.clear()
    gc.collect()
    assert driver.memory_use().pool_used == 0


@pytest.mark.parametrize("threads", [1, 3])
def test_compiled_kernels_have_the_same_bits(threads: int) -> None:
    m, n, k = te.dim("M"), te.dim("N"), te.dim("K")
    a, b, r = te.placeholder((m, k), "float32", "a"), te.placeholder((k, n), "float32", "b"), te.reduce_axis(k, "r")
    product = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), "product")
    model = tsc.build(te.compute((m, n), lambda i, j: te.tanh(product[i, j]), "y"))
    driven, rng = Executable(model._package, threads, CpuDriver(threads)), np.random.default_rng(0)
    for shape in ((1, 1, 1), (7, 33, 5), (65, 130, 17)):
        feeds = {"a": rng.standard_normal(shape[:2]).astype(np.float32), "b": rng.standard_normal(shape[1:]).astype(np.float32)}
        np.testing.assert_array_equal(model.run(None, feeds)[0], driven.run(None, feeds)[0])

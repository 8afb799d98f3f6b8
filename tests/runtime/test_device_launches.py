"""Launches of runs whose arrays lie in a device's memory: which nodes of a graph are set, what streams wait for, what failures
leave, and what is counted."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from benchmarks.gpu.models import block, block_feeds
from tests.runtime.test_replay import Counted, opened
from tsc.config import Options
from tsc.errors import InputError, LaunchError
from tsc.kernels import workshop
from tsc.pipeline import build_package
from tsc.runtime.arrays import DeviceArray
from tsc.runtime.drivers.cpu_driver import CpuDriver
from tsc.runtime.drivers.stub import StubDriver
from tsc.runtime.executable import Executable
from tsc.runtime.package import Package


def test_only_nodes_whose_arguments_moved_are_set() -> None:
    executable, driver = opened(build_package(block(), None, workshop("emu:sm_80", Options(variants=1))))
    first, launches = block_feeds(2, 3), executable.stats["launches"]
    both = first, {"ids": 10 - first["ids"], "mask": 2 * first["mask"] + 1}
    wants = [executable.run(None, feeds) for feeds in both]
    near = [{name: executable.to_device(array) for name, array in feeds.items()} for feeds in both]
    out = {spec.name: executable.to_device(array) for spec, array in zip(executable.outputs, wants[0])}
    executable.run(None, near[0], out)
    for number, is_moved in ((0, False), (1, True), (1, False), (0, True)):
        driver.calls.clear()
        found = executable.run(None, near[number], out)
        assert driver.calls["launch_graph"] == 1 and driver.calls["build_graph"] == 0
        assert driver.calls["set_kernels"] == is_moved and (not is_moved or 0 < driver.rows < launches)
        for got, wanted in zip(found, wants[number], strict=True):
            np.testing.assert_array_equal(got.numpy(), wanted)
    for shape in ((3, 5), (2, 3), (1, 7)):  # after other shapes, and between runs of NumPy's
        feeds = block_feeds(*shape)
        want = executable.run(None, feeds)
        for _ in range(2):
            for got, wanted in zip(executable.run(None, {k: executable.to_device(a) for k, a in feeds.items()}), want):
                np.testing.assert_array_equal(got.numpy(), wanted)


def test_status_words_that_are_elsewhere() -> None:
    """After wrong data a run has new ones: all nodes get their address, though arrays and shape are the same."""
    executable, _ = opened(build_package(block(), None, workshop("emu:sm_80", Options(variants=1))))
    feeds = block_feeds(2, 3)
    near, wrong = ({name: executable.to_device(array) for name, array in given.items()}
                   for given in (feeds, {**feeds, "ids": np.full((2, 3), 11)}))
    want = [array.numpy() for array in executable.run(None, near)]
    old = executable._contexts._idle[0]._words  # type: ignore[attr-defined]  # its address is not used again
    out = {spec.name: executable.to_device(array) for spec, array in zip(executable.outputs, want)}
    for _ in range(2):
        with pytest.raises(InputError, match="'ids' holds an index that is out of bounds"):
            executable.run(None, wrong, out)
    for got, wanted in zip(executable.run(None, near, out), want, strict=True):
        np.testing.assert_array_equal(got.numpy(), wanted)
    assert old is not None


def test_a_run_waits_for_what_it_borrows(chain: Package) -> None:
    driver = StubDriver()
    executable = Executable(chain, 1, driver)
    values, w = np.ones((4, 2), np.float32), np.ones(2, np.float32)
    x, theirs = executable.to_device(values), driver.create_stream()
    late = DeviceArray(x.memory, x.shape, x.dtype, driver, theirs)
    executable.run(None, {"x": x, "w": w})
    for feed, out in ((late, None), (values, {"y": late})):
        driver.calls.clear()
        executable.run(None, {"x": feed, "w": w}, out)
        names = [name for name, _ in driver.calls]
        streams = [arguments[name == "record"] for name, arguments in driver.calls if name in ("record", "wait")]
        first, incoming, again, own = streams
        assert first is theirs and incoming is again and own is executable._contexts._idle[0]._stream  # type: ignore[attr-defined]
        assert [name for name in names if name in ("record", "wait", "launch_graph")] == [
            "record", "wait", "record", "wait", "launch_graph"]
    driver.calls.clear()
    y, _ = executable.run(None, {"x": x, "w": w})
    np.from_dlpack(y)
    assert [name for name, _ in driver.calls].count("record") == 1  # what was handed out is done


@pytest.mark.parametrize("method", ["allocate", "upload", "wait", "launch_graph", "download", "set_kernels", "synchronize"])
def test_a_device_that_fails_keeps_nothing(chain: Package, method: str) -> None:
    driver = StubDriver()
    executable = Executable(chain, 1, driver)

    def run() -> None:
        x, w = executable.to_device(np.ones((4, 2), np.float32)), np.ones(2, np.float32)
        for context in executable._contexts._idle:
            assert not context._feeds and not context._results  # type: ignore[attr-defined]
        executable.run(None, {"x": x, "w": w})

    run()
    for number in range(1, 12):
        driver.fail_at, before = {method: driver._counts[method] + number}, driver._counts[method]
        try:
            run()
        except LaunchError as error:
            assert "the stub was told to fail" in str(error) or "not enough memory" in str(error)
        if driver._counts[method] < before + number:
            break
    driver.fail_at, driver.error = {}, LaunchError("")
    run()
    executable.trim()
    driver.calls.clear()
    driver.runs.clear()
    gc.collect()
    assert driver.memory_use().pool_used == 0


def test_counts_and_prepared_memory(chain: Package) -> None:
    driver = Counted(CpuDriver(1))
    executable = Executable(chain, 1, driver)  # type: ignore[arg-type]  # it is what it wraps
    executable.prepare(n=4, c=2)
    x, w = executable.to_device(np.ones((4, 2), np.float32)), executable.to_device(np.ones(2, np.float32))
    driver.sizes.clear()
    for _ in range(3):
        executable.run(None, {"x": x, "w": w})
    assert executable.stats["runs"] == 3 and executable.stats["shapes"] == 1 and executable.stats["memo_hits"] == 2
    assert sorted(driver.sizes) == [8, *[32] * 6]  # status words, and what was handed out
    assert executable.trim() > 0

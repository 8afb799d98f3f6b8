"""The stub driver: it records, checks and fails as asked, and keeps to the same protocol as the others."""

from __future__ import annotations

import ctypes
import inspect

import numpy as np
import pytest

from tsc.errors import LaunchError
from tsc.runtime.drivers.emu import EmuDriver, EmuPlatform
from tsc.runtime.drivers.host import HostDriver
from tsc.runtime.drivers.protocol import Arguments, Driver, Launch, Module, NoDriverError, OutOfMemoryError, Platform
from tsc.runtime.drivers.stub import STUB_DEVICE, StubDriver, StubPlatform


def add(launch: Launch) -> None:
    """What stands for a kernel `add(x, n)`: adds n to the first byte of x."""
    (memory, amount) = launch.args.values
    ctypes.memset(memory.value, ctypes.string_at(memory.value, 1)[0] + int(amount), 1)  # type: ignore[union-attr, arg-type]


def make(driver: StubDriver) -> tuple[Launch, np.ndarray]:
    module = driver.load(b"anything", "m")
    memory = driver.allocate(4)
    driver.fill(memory, 1, driver.default_stream)
    args = Arguments([memory, np.int32(5)])
    return Launch(driver.function(module, "add"), (2, 1, 1), (32, 1, 1), args), np.zeros(4, np.uint8)


def test_calls_are_recorded_and_kernels_stood_in_for() -> None:
    driver = StubDriver(kernels={"add": add})
    launch, out = make(driver)
    driver.launch(launch, driver.default_stream)
    driver.download(out, launch.args.values[0], driver.default_stream)  # type: ignore[arg-type]
    assert out.tolist() == [6, 1, 1, 1]
    assert [name for name, _ in driver.calls] == ["load", "allocate", "fill", "function", "launch", "download"]
    assert driver.calls[-2][1] == (launch, driver.default_stream) and driver.runs[0].grid == (2, 1, 1)


def test_it_fails_when_told() -> None:
    driver = StubDriver(kernels={"add": add})
    launch, _ = make(driver)
    driver.fail_at["launch"] = 2
    driver.error = OutOfMemoryError("no more")
    driver.launch(launch, driver.default_stream)
    with pytest.raises(OutOfMemoryError, match="no more"):
        driver.launch(launch, driver.default_stream)
    driver.launch(launch, driver.default_stream)
    assert len(driver.runs) == 2


def test_it_checks() -> None:
    driver = StubDriver(kernels={"add": add}, layouts={"add": (8, 8)})
    launch, _ = make(driver)
    with pytest.raises(LaunchError, match=r"takes arguments of \(8, 8\) bytes, not \(8, 4\)"):
        driver.launch(launch, driver.default_stream)
    with pytest.raises(LaunchError, match="no kernel 'mul'"):
        driver.function(Module(1, name="m"), "mul")
    with pytest.raises(LaunchError, match="is empty"):
        driver.load(b"", "m")
    with pytest.raises(LaunchError, match=f"and {STUB_DEVICE.name} has"):
        StubDriver().launch(Launch(launch.function, (1, 1, 1), (32, 1, 1), launch.args, 1 << 20), driver.default_stream)
    with pytest.raises(OutOfMemoryError):
        driver.allocate(STUB_DEVICE.total_memory + 1)
    assert not driver.runs


def test_graphs_run_what_they_recorded() -> None:
    driver = StubDriver(kernels={"add": add})
    launch, _ = make(driver)
    graph = driver.instantiate(driver.build_graph([launch, launch]))
    assert not driver.runs
    driver.set_kernel(graph, 1, Launch(launch.function, (7, 1, 1), (64, 1, 1), launch.args))
    driver.launch_graph(graph, driver.create_stream())
    assert [run.grid[0] for run in driver.runs] == [2, 7]
    driver.close()
    assert driver.memory_use().pool_used == 0


def test_the_platform() -> None:
    platform: Platform = StubPlatform()
    assert platform.open().info == platform.devices()[0] == STUB_DEVICE
    with pytest.raises(NoDriverError, match="no device 1"):
        platform.open(1)
    with pytest.raises(NoDriverError, match="has no device"):
        StubPlatform(present=False).open()


@pytest.mark.parametrize("kind", [StubDriver, EmuDriver, HostDriver])
def test_every_driver_keeps_to_the_protocol(kind: type) -> None:
    """Names and parameters; a type checker compares the rest."""
    asked = {name for name in vars(Driver) if not name.startswith("_")}
    for name in asked:
        mine, theirs = inspect.getattr_static(kind, name), inspect.getattr_static(Driver, name)
        assert isinstance(mine, property) == isinstance(theirs, property)
        if not isinstance(mine, property):
            assert list(inspect.signature(mine).parameters) == list(inspect.signature(theirs).parameters), name


def test_a_type_checker_agrees() -> None:
    drivers: list[Driver] = [StubDriver(), EmuPlatform("sm_80").open_emulated()]  # mypy reads this line
    assert len(drivers) == 2

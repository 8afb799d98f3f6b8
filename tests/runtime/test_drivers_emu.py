"""The emulator as a driver, end to end: kernels, memory, graphs, captures, and the faults it finds."""

from __future__ import annotations

import _ctypes
import gc
from pathlib import Path

import numpy as np
import pytest

from tsc.codegen_cuda.build import CudaSource, build_emulated
from tsc.config import Options
from tsc.errors import InternalError, LaunchError, PackageError
from tsc.runtime.drivers.emu import EmuDriver, EmulatedFault, EmuOptions, EmuPlatform, kernel_names
from tsc.runtime.drivers.platform import open_platform
from tsc.runtime.drivers.protocol import (
    ArchitectureError,
    Arguments,
    Driver,
    Launch,
    Memory,
    NoDriverError,
    OutOfMemoryError,
    TensorMap,
)

SOURCE = CudaSource("kernels", r"""
#include "tsc_device.cuh"
using namespace tsc;
struct Pair { long long left; float right[4]; };
// y[i] = a * x[i] + pair.left + pair.right[3]
TSC_KERNEL(scale, 64, 1, const float* x, float* y, float a, int n, Pair pair) {
  int i = block_index().x * 64 + thread_index().x;
  if (i < n) store_global(y + i, a * load_global(x + i) + (float)pair.left + pair.right[3]);
}
// Reverses each 64 values through shared memory; without `wait` the threads race.
TSC_KERNEL(turn, 64, 1, const float* x, float* y, int wait) {
  u32 row = shared_base();
  int t = thread_index().x, i = block_index().x * 64 + t;
  store_shared(row + 4 * t, 0.0f);
  block_sync();
  store_shared(row + 4 * t, load_global(x + i));
  if (wait) block_sync();
  store_global(y + i, load_shared<float>(row + 4 * (63 - t)));
}
""")
PAIR = np.array([(5, (0, 0, 0, 0.5))], [("left", "i8"), ("right", "f4", 4)]).tobytes()


@pytest.fixture(scope="module")
def binary() -> bytes:
    try:
        return build_emulated(SOURCE, Options())
    except LaunchError as error:
        pytest.skip(str(error))


@pytest.fixture
def driver() -> EmuDriver:
    return EmuPlatform("sm_80").open_emulated()


def put(driver: Driver, values: np.ndarray) -> Memory:
    memory = driver.allocate(values.nbytes)
    driver.upload(memory, values, driver.default_stream)
    return memory


def get(driver: Driver, memory: Memory) -> np.ndarray:
    out = np.empty(memory.size // 4, np.float32)
    driver.download(out, memory, driver.default_stream)
    driver.synchronize()
    return out


def scaled(driver: Driver, binary: bytes, count: int, *, grid: int | None = None) -> tuple[Launch, Memory]:
    x, y = put(driver, np.arange(count, dtype=np.float32)), driver.allocate(4 * count)
    args = Arguments([x, y, np.float32(2), np.int32(count), PAIR])
    function = driver.function(driver.load(binary, "kernels"), "scale")
    return Launch(function, (grid or -(-count // 64), 1, 1), (64, 1, 1), args), y


def test_a_launch(driver: EmuDriver, binary: bytes) -> None:
    for count in (1, 64, 200):
        launch, y = scaled(driver, binary, count)
        driver.launch(launch, driver.create_stream())
        np.testing.assert_array_equal(get(driver, y), 2 * np.arange(count) + 5.5)
        assert driver.report is not None and driver.report.status == "ok" and driver.report.counts["blocks"] == launch.grid[0]
    launch.args.set(2, np.float32(-1))
    driver.launch(launch, driver.default_stream)
    np.testing.assert_array_equal(get(driver, y), 5.5 - np.arange(200))


def test_the_module(driver: EmuDriver, binary: bytes) -> None:
    module = driver.load(binary, "kernels")
    assert set(kernel_names(module)) == {"scale", "turn"}
    with pytest.raises(LaunchError, match="'kernels' has no kernel 'other'; it has "):
        driver.function(module, "other")
    with pytest.raises(ArchitectureError, match="made for a GPU"):
        driver.load(b"\x7fELF\x02\x01\x01" + bytes(11) + (190).to_bytes(2, "little") + bytes(64), "cubin")
    with pytest.raises(LaunchError, match="cannot load module 'junk'"):
        driver.load(b"junk", "junk")


def test_arguments_are_compared_with_the_kernel(driver: EmuDriver, binary: bytes) -> None:
    launch, _ = scaled(driver, binary, 4)
    for values in ([], [*launch.args.values[:2], np.float64(2), np.int32(4), PAIR], launch.args.values[:4]):
        with pytest.raises(LaunchError, match=r"'scale' takes arguments of \(8, 8, 4, 4, 24\) bytes"):
            driver.launch(Launch(launch.function, (1, 1, 1), (64, 1, 1), Arguments(values)), driver.default_stream)
    with pytest.raises(InternalError, match="not int"):
        Arguments([3])  # type: ignore[list-item]
    with pytest.raises(InternalError, match="has 4 bytes and cannot become one of 8"):
        launch.args.set(2, np.float64(1))


def test_shapes_that_cannot_run(driver: EmuDriver, binary: bytes) -> None:
    launch, _ = scaled(driver, binary, 4)
    function, args = launch.function, launch.args
    for grid, block, shared, cluster, words in (
            ((0, 1, 1), (64, 1, 1), 0, (1, 1, 1), "a grid of"), ((1, 1 << 16, 1), (64, 1, 1), 0, (1, 1, 1), "a grid of"),
            ((1, 1, 1), (1, 1, 65), 0, (1, 1, 1), "a block of"), ((1, 1, 1), (512, 4, 1), 0, (1, 1, 1), "2048 threads"),
            ((3, 1, 1), (64, 1, 1), 0, (2, 1, 1), "not clusters"), ((1, 1, 1), (64, 1, 1), 200_000, (1, 1, 1), "166912")):
        with pytest.raises(LaunchError, match=words):
            driver.launch(Launch(function, grid, block, args, shared, cluster), driver.default_stream)


def test_out_of_bounds_is_found(driver: EmuDriver, binary: bytes) -> None:
    launch, _ = scaled(driver, binary, 64, grid=2)
    launch.args.set(3, np.int32(65))
    with pytest.raises(EmulatedFault, match="'scale' failed in the emulator \\(out of bounds\\)") as caught:
        driver.launch(launch, driver.default_stream)
    (access,) = caught.value.report.accesses
    assert (access.kind, access.block, access.thread) == ("read", (1, 0, 0), (0, 0, 0))
    assert access.line == 1 + SOURCE.text[:SOURCE.text.index("store_global(y")].count("\n")


def test_released_and_read_only_memory_is_out_of_bounds(driver: EmuDriver, binary: bytes) -> None:
    launch, y = scaled(driver, binary, 8)
    values = np.zeros(8, np.float32)
    fixed = driver.adopt(values.__array_interface__["data"][0], values.nbytes, values, writable=False)
    launch.args.set(1, fixed)
    with pytest.raises(EmulatedFault, match="out of bounds"):
        driver.launch(launch, driver.default_stream)
    launch.args.set(1, y)
    driver.release(y)
    with pytest.raises(EmulatedFault, match="out of bounds"):
        driver.launch(launch, driver.default_stream)
    assert not values.any()


def test_modes(binary: bytes) -> None:
    driver = EmuPlatform("sm_90a", EmuOptions(mode="race", count=True)).open_emulated()
    function = driver.function(driver.load(binary, "kernels"), "turn")
    x = np.random.default_rng(1).standard_normal(128).astype(np.float32)
    memory, y = put(driver, x), driver.allocate(512)

    def turn(wait: int) -> None:
        args = Arguments([memory, y, np.int32(wait)])
        driver.launch(Launch(function, (2, 1, 1), (64, 1, 1), args, 256), driver.default_stream)

    turn(1)
    np.testing.assert_array_equal(get(driver, y), x.reshape(2, 64)[:, ::-1].ravel())
    report = driver.report
    assert report is not None and report.lines
    assert report.counts["global_load_bytes"] == 512 and report.counts["bank_conflicts"] == 0
    with pytest.raises(EmulatedFault, match=r"\(race\)") as caught:
        turn(0)
    assert {access.kind for access in caught.value.report.accesses} == {"read", "write"} and caught.value.report.in_shared
    for mode in ("fast", "lazy", "stress"):
        driver.options = EmuOptions(mode=mode, seed=3)
        turn(1)
        np.testing.assert_array_equal(get(driver, y), x.reshape(2, 64)[:, ::-1].ravel())


def test_graphs(driver: EmuDriver, binary: bytes) -> None:
    launch, y = scaled(driver, binary, 100)
    stream = driver.create_stream()
    other = put(driver, np.ones(100, np.float32))
    args = Arguments([y, other, np.float32(1), np.int32(100), bytes(24)])
    second = Launch(launch.function, launch.grid, launch.block, args)
    graph = driver.instantiate(driver.build_graph([launch, second]))
    assert get(driver, other).sum() == 100  # nothing ran yet
    launch.args.set(2, np.float32(100))  # too late: arguments are read when a graph is built
    driver.launch_graph(graph, stream)
    np.testing.assert_array_equal(get(driver, other), 2 * np.arange(100) + 5.5)
    turn = driver.function(launch.function.owner, "turn")
    # another function, grid and arguments
    changed = Launch(turn, (1, 1, 1), (64, 1, 1), Arguments([y, other, np.int32(1)]), 256)
    driver.set_kernel(graph, 1, changed)
    driver.launch_graph(graph, stream)
    np.testing.assert_array_equal(get(driver, other)[:64], 2 * np.arange(64)[::-1] + 5.5)
    with pytest.raises(LaunchError, match="cluster"):
        driver.set_kernel(graph, 0, Launch(launch.function, (2, 1, 1), (64, 1, 1), launch.args, 0, (2, 1, 1)))
    with pytest.raises(InternalError, match="only run after those before it"):
        driver.build_graph([launch, second], [(1,), ()])


def test_capture(driver: EmuDriver, binary: bytes) -> None:
    launch, y = scaled(driver, binary, 10)
    stream, side = driver.create_stream(), driver.create_stream()
    joined, back = driver.create_event(), driver.create_event()
    out = np.zeros(10, np.float32)
    driver.fill(y, 0, stream)
    driver.begin_capture(stream)
    driver.launch(launch, stream)
    driver.record(joined, stream)
    driver.wait(side, joined)
    driver.download(out, y, side)  # in a stream that joined the capture
    driver.record(back, side)
    driver.wait(stream, back)
    graph = driver.end_capture(stream)
    assert not out.any() and not get(driver, y).any() and len(graph.kernels) == 1
    driver.launch_graph(driver.instantiate(graph), stream)
    np.testing.assert_array_equal(out, 2 * np.arange(10) + 5.5)
    driver.launch(launch, side)  # no longer captured
    driver.begin_capture(stream)
    with pytest.raises(LaunchError, match="cannot be waited for"):
        driver.synchronize(stream)
    with pytest.raises(LaunchError, match="capture was broken"):
        driver.end_capture(stream)
    for wrong in (driver.begin_capture, driver.end_capture):
        with pytest.raises(LaunchError, match=r"default stream|did not begin"):
            wrong(driver.default_stream)


def test_memory(driver: EmuDriver) -> None:
    before = driver.memory_use().free
    a, b = driver.allocate(1000), driver.allocate(0)
    assert a.value % 256 == 0 and b.value % 256 == 0 and driver.memory_use().free == before - 1000
    driver.fill(a, 7, driver.default_stream)
    driver.copy(a, a, 4, driver.default_stream, (8, 0))
    with pytest.raises(InternalError, match="4 bytes at 997 do not lie in 1000"):
        driver.copy(a, a, 4, driver.default_stream, (997, 0))
    with pytest.raises(InternalError, match="8 bytes at 0 do not lie in 0"):
        driver.upload(b, np.ones(1), driver.default_stream)
    with pytest.raises(InternalError, match="do not lie in"):
        driver.download(np.ones(1001, np.uint8), a, driver.default_stream)
    del a, b
    gc.collect()
    assert driver.memory_use().free == before and not driver.regions()
    with pytest.raises(OutOfMemoryError, match="use a smaller shape"):
        driver.allocate(1 << 60)
    assert driver.host_array(10).shape == (10,)


def test_events(driver: EmuDriver) -> None:
    start, stop = driver.create_event(timing=True), driver.create_event(timing=True)
    driver.record(start, driver.default_stream)
    driver.record(stop, driver.default_stream)
    assert driver.done(stop) and 0 <= driver.elapsed(start, stop) < 1000
    with pytest.raises(InternalError, match="timing"):
        driver.elapsed(start, driver.create_event())


def test_tensor_maps(driver: EmuDriver) -> None:
    memory = driver.allocate(1 << 14)
    made = driver.tensor_map(TensorMap(memory, "float16", (64, 40), (128,), (32, 8), 64, 256))
    assert len(made) == 128 and made[:8] == (0x50414D54).to_bytes(4, "little") + bytes([6, 2, 2, 0])
    assert int.from_bytes(made[8:16], "little") == memory.value + 256
    for wrong in (TensorMap(memory, "float16", (64, 40), (128,), (64, 8), 64),
                  TensorMap(memory, "float16", (64,) * 6, (128,) * 5, (8,) * 6)):
        with pytest.raises(LaunchError, match="a tensor map needs"):
            driver.tensor_map(wrong)


def test_platforms() -> None:
    assert open_platform("emu:sm_80").devices()[0].arch == "sm_80"
    assert open_platform("emu").open().info.shared_per_block == 227 << 10
    with pytest.raises(LaunchError, match="'sm_42' is not emulated"):
        open_platform("emu:sm_42")
    with pytest.raises(LaunchError, match="unknown platform 'rocm'"):
        open_platform("rocm")
    with pytest.raises(NoDriverError, match="no emulated device 1"):
        open_platform("emu").open(1)


def test_a_module_without_the_abi(driver: EmuDriver) -> None:
    with pytest.raises(PackageError, match="not one of the emulator's"):
        driver.load(Path(_ctypes.__file__).read_bytes(), "foreign")


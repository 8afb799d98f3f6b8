"""What tsc's CUDA driver asks of a libcuda: run as `python cases.py all` in a process that finds fake_cuda.c's libcuda.so.1.

Each case is a function of an opened driver and of `log`, which returns what the library was asked for since the last call.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tsc.errors import InternalError, LaunchError
from tsc.runtime.arrays import DeviceArray, empty_array, import_array
from tsc.runtime.drivers.platform import open_platform
from tsc.runtime.drivers.protocol import (
    ArchitectureError,
    Arguments,
    Driver,
    DriverVersionError,
    Launch,
    LaunchTable,
    NoDriverError,
    OutOfMemoryError,
    TensorMap,
)

Log = Callable[[], list[str]]


def raises(error: type[Exception], words: str, call: Callable[..., Any], *arguments: Any) -> None:
    """`call` must raise just this error, saying these words."""
    try:
        call(*arguments)
    except Exception as raised:
        assert type(raised) is error and words in str(raised), raised
    else:
        raise AssertionError(f"no {error.__name__}")


def scale(driver: Driver, count: int, factor: float = 2.0, **options: Any) -> tuple[Launch, Any, Any]:
    module = driver.load(b"sm_90 and no cubin", "m")
    x, y = driver.allocate(4 * count), driver.allocate(4 * count)
    driver.upload(x, np.arange(count, dtype=np.float32), driver.default_stream)
    args = Arguments([x, y, np.float32(factor), np.int32(count)])
    return Launch(driver.function(module, "scale"), (3, 1, 1), (128, 1, 1), args, **options), x, y


def fetch(driver: Driver, memory: Any) -> np.ndarray:
    out = np.empty(memory.size // 4, np.float32)
    driver.download(out, memory, driver.default_stream)
    driver.synchronize(driver.default_stream)
    return out


def launches(driver: Driver, log: Log) -> None:
    launch, _, y = scale(driver, 7)
    driver.launch(launch, driver.create_stream())
    assert fetch(driver, y).tolist() == [2.0 * i for i in range(7)]
    assert "run scale 3,1,1 128,1,1 0" in log()
    launch.args.set(2, np.float32(3))
    driver.launch(launch, driver.default_stream)
    assert fetch(driver, y)[6] == 18
    bad = Launch(launch.function, (1, 1, 1), (32, 1, 1), Arguments([np.float32(1)]))
    raises(LaunchError, "(8, 8, 4, 4) bytes, not (4,)", driver.launch, bad, driver.default_stream)
    many = Launch(launch.function, (1, 1, 1), (1024, 2, 1), launch.args)
    raises(LaunchError, "2048 threads", driver.launch, many, driver.default_stream)


def shared_memory(driver: Driver, log: Log) -> None:
    launch, _, _ = scale(driver, 4, shared=100_000)
    driver.launch(launch, driver.default_stream)
    driver.launch(launch, driver.default_stream)
    assert [line for line in log() if line.startswith("attribute")] == ["attribute 8 100000"]
    raises(LaunchError, "shared memory", driver.launch,
           Launch(launch.function, (1, 1, 1), (32, 1, 1), launch.args, 1 << 20), driver.default_stream)


def clusters(driver: Driver, log: Log) -> None:
    launch, _, _ = scale(driver, 4)
    two = Launch(launch.function, (4, 1, 1), (128, 1, 1), launch.args, 64, (2, 1, 1))
    stream = driver.create_stream()
    driver.launch(two, stream)
    assert log()[-2:] == ["cluster 4 2,1,1", "run scale 4,1,1 128,1,1 64"]
    odd = Launch(launch.function, (3, 1, 1), (128, 1, 1), launch.args, 0, (2, 1, 1))
    raises(LaunchError, "clusters", driver.launch, odd, driver.default_stream)


def modules(driver: Driver, log: Log) -> None:
    raises(ArchitectureError, "has no code for Fake 0 (sm_90)", driver.load, b"sm_100a only", "m")
    raises(LaunchError, "load module 'm'", driver.load, b"nonsense", "m")
    module = driver.load(b"sm_90 here", "m")
    raises(LaunchError, "no kernel 'other'", driver.function, module, "other")
    function = driver.function(module, "scale")
    del module
    gc.collect()
    assert "unload" not in log()  # a function keeps its module
    del function
    gc.collect()
    assert "unload" in log()


def memory(driver: Driver, log: Log) -> None:
    stream = driver.create_stream()
    big = driver.allocate(700_000, stream)
    use = driver.memory_use()
    assert (use.total, use.pool_used, use.pool_reserved) == (1 << 20, 700_000, 700_000)
    assert "pool 4 1" in log()
    driver.release(big, stream)
    driver.release(big)  # once is enough
    assert log().count("free in stream") == 1
    assert (driver.memory_use().pool_used, driver.memory_use().pool_reserved) == (0, 700_000)
    driver.allocate(10, stream, driver.default_stream)  # others may use it in the default stream at last
    gc.collect()
    assert "free in default" in log()
    driver.allocate(500_000)  # fits only once the pool is trimmed
    assert "trim" in log()
    keep = driver.allocate(900_000)
    raises(OutOfMemoryError, "of 1048576 bytes are free", driver.allocate, 200_000)
    del keep
    gc.collect()
    a, b = driver.allocate(16), driver.allocate(16)
    driver.fill(a, 3, stream)
    driver.copy(b, a, 8, stream, (4, 0))
    out = np.zeros(16, np.uint8)
    driver.download(out, b, stream)
    assert out[4:12].tolist() == [3] * 8
    raises(InternalError, "do not lie in 16 bytes", driver.upload, a, np.zeros(17, np.uint8), stream)
    raises(InternalError, "contiguous", driver.upload, a, np.zeros((4, 4), np.uint8).T, stream)
    pinned = driver.host_array(64)[:5]
    assert pinned.shape == (5,)
    log()
    del pinned
    gc.collect()
    assert log() == ["free host"]


def graphs(driver: Driver, log: Log) -> None:
    launch, x, y = scale(driver, 5)
    again = Launch(launch.function, (1, 1, 1), (64, 1, 1), Arguments([y, y, np.float32(10), np.int32(5)]))
    graph = driver.build_graph([launch, again])
    assert log()[-3:] == ["node after 0", "node after 0", "edge 0 0 0"]
    ready = driver.instantiate(graph)
    driver.launch_graph(ready, driver.default_stream)
    assert fetch(driver, y)[4] == 80
    changed = Launch(launch.function, (9, 1, 1), (32, 1, 1), Arguments([x, y, np.float32(1), np.int32(3)]))
    driver.set_kernel(ready, 0, changed)
    driver.launch_graph(ready, driver.default_stream)
    assert "run scale 9,1,1 32,1,1 0" in log()
    assert fetch(driver, y).tolist() == [0, 10, 20, 600, 800]
    driver.build_graph([launch, again, again], [(), (), (0, 1)])
    assert [line for line in log() if line.startswith(("node", "edge"))] == ["node after 0"] * 3 + ["edge 0 0 0"] * 2
    turns = [replace(one, in_turn=True) for one in (launch, again, again)]
    driver.build_graph(turns)
    driver.build_graph([turns[0], again])
    driver.build_graph(turns, [(), (), (0, 1)])
    edges = [line for line in log() if line.startswith("edge")]  # only the one before is waited for by a kernel itself
    assert edges == ["edge 1 0 1"] * 2 + ["edge 0 0 0"] + ["edge 0 0 0"] * 2
    two = Launch(launch.function, (4, 1, 1), (64, 1, 1), launch.args, 0, (2, 1, 1))
    raises(LaunchError, "cannot become (2, 1, 1)", driver.set_kernel, ready, 0, two)
    clustered = driver.instantiate(driver.build_graph([two]))
    assert "node cluster 4 2,1,1" in log()
    driver.set_kernel(clustered, 0, two)
    del graph
    gc.collect()
    assert "destroy graph" not in log()[-1:]  # the executable graph needs its nodes
    del ready, clustered
    gc.collect()
    assert {"destroy exec", "destroy graph"} <= set(log())


def tables(driver: Driver, log: Log) -> None:
    launch, x, y = scale(driver, 5)
    wide = driver.function(driver.load(b"sm_90 and no cubin", "m"), "wide")

    def table(*rows: tuple[int, int, int, int], **other: Any) -> LaunchTable:
        """Of rows with so many blocks, a factor, a count and so much shared memory."""
        blocks, factors, counts, shared = np.array(rows, np.int64).T
        values = np.array([(x.value, y.value, f, n) for f, n in zip(factors, counts)], np.uint64).ravel()
        made = LaunchTable((wide,) * len(rows), blocks, np.full(len(rows), 64), shared, 4 * np.arange(len(rows) + 1), values,
                           np.tile([False, False, True, True], len(rows)))
        return replace(made, **other)

    first, changed = table((1, 2, 5, 0), (2, 3, 2, 0)), table((1, 2, 5, 0), (4, 7, 1, 49 << 10))
    ready = driver.instantiate(driver.build_graph([first.launch(0), first.launch(1)]))
    driver.launch_graph(ready, driver.default_stream)
    assert fetch(driver, y).tolist() == [0, 3, 4, 6, 8]
    assert list(changed.changed(first)) == [1] and list(first.changed(None)) == [0, 1] and not changed.changed(changed)
    driver.set_kernels(ready, changed, [1])
    assert f"attribute 8 {49 << 10}" in log()
    driver.launch_graph(ready, driver.default_stream)
    runs = [line for line in log() if line.startswith("run")]
    assert runs == ["run wide 1,1,1 64,1,1 0", f"run wide 4,1,1 64,1,1 {49 << 10}"]
    assert fetch(driver, y).tolist() == [0, 2, 4, 6, 8]
    scaled = table((1, 2, 5, 0), (1, 2, 5, 0), functions=(wide, launch.function))
    for wrong, words in ((scaled, "takes arguments of (8, 8, 4, 4) bytes, not (8, 8, 8, 8)"),
                         (table((1, 2, 5, 0), (1 << 31, 2, 5, 0)), "a grid of"),
                         (table((1, 2, 5, 1 << 20)), "bytes of shared"),
                         (replace(first, threads=np.array([64, 1056])), "a block of (1056, 1, 1)")):
        raises(LaunchError, words, driver.set_kernels, ready, wrong, [0])


def capture(driver: Driver, log: Log) -> None:
    launch, _, y = scale(driver, 5)
    stream = driver.create_stream()
    driver.begin_capture(stream)
    driver.launch(launch, stream)
    driver.launch(launch, stream)
    graph = driver.end_capture(stream)
    assert len(graph.kernels) == 2 and not [line for line in log() if line.startswith("run")]
    ready = driver.instantiate(graph)
    changed = Launch(launch.function, (1, 1, 1), (32, 1, 1), Arguments([y, y, np.float32(4), np.int32(5)]))
    driver.set_kernel(ready, 1, changed)
    driver.launch_graph(ready, stream)
    assert fetch(driver, y)[3] == 24


def tensor_maps(driver: Driver, log: Log) -> None:
    memory = driver.allocate(1 << 16)
    made = driver.tensor_map(TensorMap(memory, "bfloat16", (72, 100), (144,), (64, 32), 128))
    assert made == b"\7" * 128 and log()[-1] == "map 9 2 72,100 144 64,32 1,1 0 3 3 0"
    launch = Launch(driver.function(driver.load(b"sm_90", "m"), "tile"), (1, 1, 1), (32, 1, 1), Arguments([made]))
    driver.launch(launch, driver.default_stream)
    for wrong in (TensorMap(memory, "bfloat16", (72, 100), (145,), (64, 32)), TensorMap(memory, "float32", (8,), (), (300,)),
                  TensorMap(memory, "bfloat16", (72, 100), (144,), (128, 32), 128), TensorMap(memory, "bool", (16,), (), (16,)),
                  TensorMap(memory, "float32", (8, 8), (), (8, 8)), TensorMap(memory, "float32", (8,), (), (8,), offset=4)):
        raises(LaunchError, "a tensor map needs", driver.tensor_map, wrong)


def threads_and_events(driver: Driver, log: Log) -> None:
    launch, _, y = scale(driver, 3)
    ctypes.CDLL("libcuda.so.1").fake_cuCtxSetCurrent(None)  # as another library, or another thread, would
    failed: list[BaseException] = []

    def work() -> None:
        try:
            driver.launch(launch, driver.create_stream())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not failed and fetch(driver, y)[2] == 4
    start, stop = driver.create_event(timing=True), driver.create_event(timing=True)
    driver.record(start, driver.default_stream)
    driver.record(stop, driver.default_stream)
    driver.synchronize(stop)
    assert driver.done(stop) and driver.elapsed(start, stop) == 1.5
    raises(InternalError, "timing", driver.elapsed, driver.create_event(), stop)


class Producer:
    """An array of another library, in either protocol, that says with which stream it was asked."""

    def __init__(self, array: DeviceArray, old: bool = False) -> None:
        self.array, self.old, self.asked = array, old, 0

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, stream: int | None = None, **more: Any) -> object:
        if self.old and more:
            raise TypeError("unknown arguments")
        self.asked = stream or 0
        return self.array.__dlpack__(stream=stream, **more)


class CudaInterface:
    """An array of another library in CUDA's array interface."""

    def __init__(self, array: DeviceArray, **changes: Any) -> None:
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, **changes}


def interop(driver: Driver, log: Log) -> None:
    own, other = driver.create_stream(), driver.create_stream()
    array = empty_array((3, 5), "float32", driver, other)
    for source in (Producer(array), Producer(array, old=True)):
        log()
        taken = import_array(source, driver, own, "x")
        assert (taken.memory.value, taken.shape, taken.dtype) == (array.memory.value, (3, 5), "float32")
        assert source.asked == own.value and log() == ["record 9", "wait 9"]  # the producer's stream, then ours
    legacy = Producer(array)
    import_array(legacy, driver, driver.default_stream, "x")
    assert legacy.asked == 1 and log() == ["record 9", "wait 1"]
    array.__dlpack__(stream=-1)
    array.__dlpack__(stream=other.value)
    assert log() == []
    for stream, waits in ((None, []), (2, ["record 2", "wait 9"]), (own.value, [])):
        taken = import_array(CudaInterface(array, stream=stream), driver, own, "x")
        assert taken.memory.value == array.memory.value and taken.shape == (3, 5) and log() == waits
    whole = {"shape": (3, 5), "strides": (20, 4)}
    assert import_array(CudaInterface(array, **whole), driver, own, "x").nbytes == 60
    assert array.__cuda_array_interface__["stream"] == other.value
    assert not hasattr(empty_array((2,), "bfloat16", driver, own), "__cuda_array_interface__")
    for wrong, words in ((CudaInterface(array, strides=(4, 12)), "not dense"), ([1.0], "a list"),
                         (np.ones(3), "(1, 0)")):
        try:
            import_array(wrong, driver, own, "input 'x'")
        except Exception as error:
            assert type(error).__name__ == "InputError" and words in str(error) and "input 'x'" in str(error), error
        else:
            raise AssertionError(words)


def nothing_leaks(driver: Driver, log: Log) -> None:
    library = ctypes.CDLL("libcuda.so.1")
    launch = scale(driver, 1000)[0]
    driver.instantiate(driver.build_graph([launch]))
    taken = import_array(Producer(empty_array((4,), "int8", driver, driver.default_stream)), driver, driver.default_stream, "x")
    del launch, taken
    gc.collect()
    library.fake_used.restype = ctypes.c_size_t
    assert library.fake_used() == 0  # nor in the cases before
    last = driver.allocate(10, driver.create_stream())
    driver.close()
    raises(InternalError, "closed", driver.allocate, 1)
    assert "release context" not in log()  # memory is there that must be given back first
    del last
    gc.collect()
    assert log()[-2:] == ["destroy pool", "release context"] and library.fake_used() == 0


CASES = (
    launches, shared_memory, clusters, modules, memory, graphs, tables, capture, tensor_maps, threads_and_events, interop,
    nothing_leaks)
REFUSALS = {
    "none": (NoDriverError, "no NVIDIA driver"), "old": (DriverVersionError, "CUDA 12.2"),
    "no_gpu": (NoDriverError, "no GPU")}


def main() -> None:
    (name,) = sys.argv[1:]
    platform = open_platform("cuda")
    if name in REFUSALS:
        raises(*REFUSALS[name], platform.devices)
        raises(*REFUSALS[name], platform.open)
        return
    library = ctypes.CDLL("libcuda.so.1")
    library.fake_log.restype = ctypes.c_char_p
    seen = 0

    def log() -> list[str]:
        nonlocal seen
        text = library.fake_log().decode()
        lines, seen = text[seen:].splitlines(), len(text)
        return lines

    raises(NoDriverError, "no GPU 1", platform.open, 1)
    for case in CASES:
        case(platform.open(), log)
        gc.collect()
        log()
        print(case.__name__)


if __name__ == "__main__":
    main()

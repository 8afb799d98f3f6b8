"""What it costs to launch a kernel, to launch a graph, and to change a graph's kernels, from Python and from C."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.gpu.session import Session
from tsc.runtime.drivers.protocol import Arguments, GraphExec, Launch, Memory

_NODES = 20
_ENTRIES = {"launch": "cuLaunchKernel", "graph_launch": "cuGraphLaunch", "set_params": "cuGraphExecKernelNodeSetParams_v2"}


class _Launch(ctypes.Structure):
    _fields_ = [("function", ctypes.c_void_p), ("grid", ctypes.c_uint32 * 3), ("block", ctypes.c_uint32 * 3),
                ("shared", ctypes.c_uint32), ("arguments", ctypes.c_void_p)]


def measure(session: Session) -> dict[str, Any]:
    """Nanoseconds each: `issue` is the host's time alone, `through` until the device is done. Checks that work was done, and
    that a changed graph does what it was changed to."""
    driver, stream = session.driver, session.stream
    count = 40 if session.small else 4000
    word = driver.allocate(4)
    launch = _launch(session, word, 1)
    graph = driver.instantiate(driver.build_graph([launch] * _NODES))
    other = _launch(session, word, 2)

    def set_all() -> None:
        for node in range(_NODES):
            driver.set_kernel(graph, node, other)

    found = {
        "python": {
            "launch": _repeat(session, lambda: driver.launch(launch, stream), count),
            f"graph_launch_of_{_NODES}": _repeat(session, lambda: driver.launch_graph(graph, stream), count // 20),
            f"set_{_NODES}_kernels": _repeat(session, set_all, count // 20),
        },
        "c": _from_c(session, launch, graph, count),
    }
    if session.computes:
        for value in (7, 8):
            driver.set_kernel(graph, _NODES - 1, _launch(session, word, value))
            driver.launch_graph(graph, stream)
            assert _read(session, word) == value, "a graph whose last kernel was changed does not do what it was changed to"
    session.release(word)
    return found


def _launch(session: Session, word: Memory, value: int) -> Launch:
    return Launch(session.function("set_word", "set_word"), (1, 1, 1), (32, 1, 1), Arguments((word, np.uint32(value))))


def _read(session: Session, word: Memory) -> int:
    value = np.zeros(1, np.uint32)
    session.driver.download(value, word, session.stream)
    session.driver.synchronize(session.stream)
    return int(value[0])


def _repeat(session: Session, call: Callable[[], None], count: int) -> dict[str, float]:
    call()
    session.driver.synchronize(session.stream)
    start = time.perf_counter_ns()
    for _ in range(count):
        call()
    issued = time.perf_counter_ns() - start
    session.driver.synchronize(session.stream)
    return {"issue": issued / count, "through": (time.perf_counter_ns() - start) / count}


def _from_c(session: Session, launch: Launch, graph: GraphExec, count: int) -> dict[str, Any]:
    library = ctypes.CDLL(str(session.folder / session.manifest["launcher"]))
    entries = ctypes.CDLL("libcuda.so.1") if session.kind == "cuda" else library
    address = {name: ctypes.cast(getattr(entries, symbol if session.kind == "cuda" else f"tsc_no_{name}"), ctypes.c_void_p)
               for name, symbol in _ENTRIES.items()}
    prepared = _Launch(launch.function.value, launch.grid, launch.block, launch.shared, launch.args.table)
    stream, graph_value = ctypes.c_void_p(session.stream.value), ctypes.c_void_p(graph.value)
    nodes = (ctypes.c_void_p * _NODES)(*graph.kernels)

    def timed(name: str, *arguments: Any) -> float:
        elapsed = ctypes.c_double()
        status = getattr(library, name)(*arguments, ctypes.byref(elapsed))
        assert status == 0, f"{name}: the driver answered {status}"
        session.driver.synchronize(session.stream)
        return elapsed.value

    def launches() -> float:
        return timed("tsc_time_launches", address["launch"], ctypes.byref(prepared), stream, count) / count

    def graphs() -> float:
        return timed("tsc_time_graph_launches", address["graph_launch"], graph_value, stream, count // 20) / (count // 20)

    def changes() -> float:
        return timed("tsc_time_set_params", address["set_params"], graph_value, nodes, _NODES, ctypes.byref(prepared),
                     count // 20) / (count // 20)

    with_warm_up = {"launch": launches, f"graph_launch_of_{_NODES}": graphs, f"set_{_NODES}_kernels": changes}
    return {name: {"issue": (call(), call())[1]} for name, call in with_warm_up.items()}

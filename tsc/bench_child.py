"""One runtime in a process of its own, for `tsc bench`: it loads a model, runs it, and says how long that took.

Requests are frames: ("load", runtime, path, threads), ("run", feeds), ("time", seconds) of the feeds before, ("memory",).
Answers are what was asked for, or ("wrong", why).
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc.frames import read_frame, write_frame
from tsc.runtime.load import load
from tsc.runtime.signing import Whoever

Feeds = Mapping[str, NDArray[Any]]
Run = Callable[[Feeds], list[Any]]
#: Runs of which at least so many are timed, however long they take.
FEWEST = 3


def opened_tsc(path: str, threads: int) -> Run:
    """A Package, which the process that asks has read or made."""
    model = load(path, threads=threads, trust=Whoever.ANYBODY)
    return lambda feeds: model.run(None, feeds)


def opened_onnxruntime(path: str, threads: int) -> Run:
    """A model by ONNX Runtime, as it comes but for the threads."""
    runtime = import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda feeds: list(session.run(None, dict(feeds)))


def opened_openvino(path: str, threads: int) -> Run:
    """A model by OpenVINO in float32, for the least latency."""
    openvino = import_module("openvino")
    compiled = openvino.Core().compile_model(path, "CPU", {
        "INFERENCE_NUM_THREADS": str(threads), "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"})
    request = compiled.create_infer_request()
    return lambda feeds: [np.array(value) for value in request.infer(dict(feeds)).values()]


OPENERS: Mapping[str, Callable[[str, int], Run]] = {
    "tsc": opened_tsc, "onnxruntime": opened_onnxruntime, "openvino": opened_openvino}


def resident_bytes() -> int:
    """The memory of this process that is there now."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


class _Served:
    """What has been loaded, and what it is fed."""

    def __init__(self) -> None:
        self._run: Run = lambda feeds: []
        self._feeds: Feeds = {}

    def answer(self, request: tuple[Any, ...]) -> Any:
        begin = time.perf_counter()
        match request:
            case "load", runtime, path, threads:
                self._run = OPENERS[runtime](path, threads)
                return time.perf_counter() - begin
            case "run", feeds:
                self._feeds = feeds
                outputs = self._run(feeds)
                return time.perf_counter() - begin, [np.array(output) for output in outputs]
            case "time", seconds:
                times: list[float] = []
                while len(times) < FEWEST or time.perf_counter() - begin < seconds:
                    started = time.perf_counter()
                    self._run(self._feeds)
                    times.append(time.perf_counter() - started)
                return times
            case ("memory",):
                return resident_bytes()
        raise ValueError(f"no request is {request[0]!r}")


def serve() -> None:
    """Answer requests from standard input until it ends."""
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed is no answer
    served = _Served()
    while (frame := read_frame(source)) is not None:
        try:
            found = served.answer(pickle.loads(frame))
        except Exception as error:  # whatever another runtime raises is to be told
            found = "wrong", f"{type(error).__name__}: {error}"
        write_frame(sink, pickle.dumps(found))

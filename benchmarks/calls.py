"""What a call costs beside its kernels: one node beside ONNX Runtime, the host program alone, new shapes, and memory.

    python3 dev.py bench calls [--model model.onnx] [--rounds N]

One thread. An Add of 40 elements is called by each runtime in its own process, in turns; best microseconds of a call at a shape
seen before, and the median at shapes that are new. The host program of the model (MiniLM) is timed alone: `bind` at new
shapes, `call` with rows that have no blocks. A first run at a shape is divided by the median of the five after it. At last so
many shapes are run, and the resident memory before and after is compared.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

import tsc
from benchmarks.minilm import OPENERS, cpu_name, model_path
from benchmarks.tuned import feeds_of
from tsc.runtime.image import ROW, ROWS
from tsc.runtime.memory import address

RUNTIMES = ("tsc", "onnxruntime")
CALLS, NEW, SHAPES, GROWN = 2000, 300, 200, 10_000


def one_node() -> onnx.ModelProto:
    """z = x + y, over [N, 8]."""
    x, y, z = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 8]) for name in "xyz")
    graph = helper.make_graph([helper.make_node("Add", ["x", "y"], ["z"])], "one", [x, y], [z])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def rows(count: int) -> dict[str, np.ndarray]:
    x = np.random.default_rng(count).random((count, 8), np.float32)
    return {"x": x, "y": x}


def serve(runtime: str, path: str) -> None:
    """Answer each line of stdin with microseconds of a call: at a shape seen before, and at new ones."""
    run, first = OPENERS[runtime](path), 100
    print("ready", flush=True)
    for _ in sys.stdin:
        feeds = rows(5)
        run(feeds)
        begin = time.perf_counter()
        for _ in range(CALLS):
            run(feeds)
        known = (time.perf_counter() - begin) / CALLS
        times = []
        for count in range(first, first + NEW):
            feeds = rows(count)
            begin = time.perf_counter()
            run(feeds)
            times.append(time.perf_counter() - begin)
        first += NEW
        print(json.dumps([known * 1e6, median(times) * 1e6]), flush=True)


def side_by_side(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "one.onnx"
        onnx.save(one_node(), path)
        command = (sys.executable, "-m", "benchmarks.calls", "--model", str(path), "--serve")
        workers = {name: subprocess.Popen([*command, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                   for name in RUNTIMES}
        times: dict[str, list[list[float]]] = {name: [] for name in RUNTIMES}
        for worker in workers.values():
            _line(worker)
        for turn in range(rounds):
            for name in RUNTIMES if turn % 2 else RUNTIMES[::-1]:
                times[name].append(json.loads(_line(workers[name], "go")))
        for worker in workers.values():
            worker.communicate()
    for name, found in times.items():
        print(f"one node, {name:12} {min(known for known, _ in found):7.2f} us at a known shape, "
              f"{min(new for _, new in found):7.2f} at a new one")


def _line(worker: subprocess.Popen[str], question: str | None = None) -> str:
    assert worker.stdin is not None and worker.stdout is not None
    if question is not None:
        worker.stdin.write(question + "\n")
        worker.stdin.flush()
    return worker.stdout.readline()


def host_program(executable: Any, sizes: Sequence[dict[str, int]]) -> None:
    """Times of the two functions of the module, with nothing around them but ctypes (about a microsecond)."""
    engine, launches = executable._engine, len(executable._plan.launches)
    host, shapes = engine._host, [tuple(a.shape for a in feeds_of(executable, at, 0).values()) for at in sizes]
    room, words = np.empty(host._slots, np.int64), np.empty(host._words, np.int64)
    extents = [host._given.pack(*(size for shape in each for size in shape)) for each in shapes]
    each = iter(extents * 20)
    bind = _best(lambda: host._bind(host._place, next(each), 1, address(room), address(words)), len(extents), 20)
    image = engine.bind(shapes[-1]).whole
    begin = int(image.words[ROWS])
    image.words[begin + 3:begin + ROW * image.rows:ROW] = 0  # blocks
    context = executable._contexts.take()
    bases = engine.bases.pack(*[0] * (engine.bases.size // 8))
    room_of, scratch = context._room, context._scratch_address
    call = _best(lambda: engine.module.call(image.place, bases, *room_of, 0, image.rows, 1, scratch), 500)
    executable._contexts.give(context)
    print(f"host program of {launches} launches: {call:.2f} us at a known shape, {bind:.2f} more at a new one "
          f"({bind / launches:.3f} a launch)")


def _best(action: Callable[[], object], count: int, turns: int = 20) -> float:
    """Microseconds of an action, in the best of some turns."""
    found = []
    for _ in range(turns):
        begin = time.perf_counter()
        for _ in range(count):
            action()
        found.append(time.perf_counter() - begin)
    return min(found) / count * 1e6


def first_runs(executable: Any, sizes: Sequence[dict[str, int]]) -> None:
    ratios = []
    for at in sizes:
        feeds, times = feeds_of(executable, at, 0), []
        for _ in range(6):
            begin = time.perf_counter()
            executable.run(None, feeds)
            times.append(time.perf_counter() - begin)
        ratios.append(times[0] / median(times[1:]))
    print(f"first run at a shape: {median(ratios):.3f} of those after it in the median of {len(ratios)} shapes, "
          f"{np.quantile(ratios, 0.9):.3f} at the ninth tenth")


def growth() -> None:
    executable = tsc.compile(one_node(), threads=1)
    for count in range(1, 200):
        executable.run(None, rows(count))
    before = _resident()
    for count in range(200, 200 + GROWN):
        executable.run(None, rows(1 + count % 5000 + count // 5000))
    print(f"{executable.stats['shapes']} shapes: {(_resident() - before) / 1024:.0f} KB of resident memory more")


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a model over named dims; MiniLM where none is given")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--serve", choices=RUNTIMES, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(asked.serve, str(asked.model))
        return
    print(f"{cpu_name()}, one thread, tsc {tsc.__version__}, onnxruntime")
    side_by_side(asked.rounds)
    executable = tsc.compile(asked.model or model_path(), threads=1)
    names = list(executable._plan.ranges)
    sizes = [dict.fromkeys(names[:-1], 1) | {names[-1]: length} for length in range(1, 1 + SHAPES)]
    host_program(executable, sizes)
    first_runs(executable, sizes)
    growth()


if __name__ == "__main__":
    main()

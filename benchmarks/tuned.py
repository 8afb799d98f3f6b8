"""A model tuned and untuned: times at random shapes, in turns, and whether the bits are the same.

    python3 dev.py bench tuned model.onnx --records records.jsonl --dim batch=1:8 --dim seq=1:256 [--shapes N] [--threads N]
    python3 dev.py bench tuned resnet50 --write resnet50.onnx

The second writes a net of random weights for `tsc tune` (bert_base, gpt2, or one of `benchmarks/nets.py`).
Both are compiled in this process, from the same file and for the same ranges, one with what `tsc tune` has measured. Sizes are
drawn evenly over their logarithms; inputs are random, whole numbers 0 or 1. A ratio is the untuned one's median time divided by
the tuned one's; behind the shapes stands their geometric mean, and how many shapes are no slower (2 % being noise).
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import numpy as np
import onnx

import tsc
from benchmarks.minilm import cpu_name
from benchmarks.nets import NETS
from benchmarks.transformers import TRANSFORMERS

#: Seconds that a shape is measured, and turns that each side takes at least and at most.
SECONDS, FEWEST, MOST = 2.0, 5, 60


def feeds_of(executable: Any, sizes: dict[str, int], seed: int) -> dict[str, np.ndarray]:
    """Random inputs of some sizes."""
    rng, feeds = np.random.default_rng(seed), {}
    for spec in executable.inputs:
        shape, dtype = tuple(size.evaluate(sizes) for size in spec.shape), np.dtype(spec.dtype)
        values = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 2, shape)
        feeds[spec.name] = np.asarray(values, dtype)
    return feeds


def compared(pair: tuple[Any, Any], feeds: dict[str, np.ndarray]) -> tuple[float, float, bool]:
    """The median seconds of both, and whether they give the same bits."""
    results = [executable.run(None, feeds) for executable in pair]
    times: tuple[list[float], list[float]] = ([], [])
    begin = time.perf_counter()
    while len(times[0]) < FEWEST or (time.perf_counter() - begin < SECONDS and len(times[0]) < MOST):
        for side in (0, 1) if len(times[0]) % 2 else (1, 0):
            start = time.perf_counter()
            pair[side].run(None, feeds)
            times[side].append(time.perf_counter() - start)
    same = all(a.tobytes() == b.tobytes() for a, b in zip(*results, strict=True))
    return median(times[0]), median(times[1]), same


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--write", type=Path, metavar="FILE")
    parser.add_argument("--records", type=Path)
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=LO:HI")
    parser.add_argument("--shapes", type=int, default=25)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    if asked.write is not None:
        onnx.save((NETS | TRANSFORMERS)[str(asked.model)](), asked.write)
        return
    if asked.records is None:
        parser.error("--records says what was measured")
    ranges = {name: tuple(map(int, ends.split(":"))) for name, _, ends in (dim.partition("=") for dim in asked.dim)}
    pair = tuple(tsc.compile(asked.model, dims=ranges, threads=asked.threads, options=options)
                 for options in (tsc.Options(shipped=False), tsc.Options(records=asked.records)))
    print(f"{cpu_name()}, {asked.threads} threads; untuned ms, tuned ms, ratio")
    rng, ratios = Random(asked.seed), []
    for number in range(asked.shapes):
        sizes = {name: round(low * (high / low) ** rng.random()) for name, (low, high) in ranges.items()}
        first, second, same = compared((pair[0], pair[1]), feeds_of(pair[0], sizes, number))
        ratios.append(first / second)
        at = ", ".join(f"{name}={size}" for name, size in sizes.items())
        print(f"{at:24}{first * 1e3:10.3f}{second * 1e3:10.3f}{ratios[-1]:8.3f}{'' if same else '  OTHER BITS'}", flush=True)
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    print(f"geometric mean {mean:.3f}, from {min(ratios):.3f} to {max(ratios):.3f}; "
          f"{sum(ratio >= 0.98 for ratio in ratios)} of {len(ratios)} shapes are no slower")


if __name__ == "__main__":
    main()

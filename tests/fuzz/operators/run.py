"""Random ONNX operators at scale, at large sizes, or whole nets: `python3 dev.py fuzz --onnx [--large] [--nets] [--count N
--seed S --start A --jobs J] [--only K] [--guarded] [--factored] [--target T] [--precision P]`.

Case number n of a seed is always the same one. Each job is a process that is watched: a case that kills it, or takes longer
than 30 s, is counted and the next process goes on behind it.
"""

from __future__ import annotations

import argparse
import faulthandler
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, get_args

import numpy as np
import onnx

from tests.emulated import avx512
from tests.fuzz.limits import limit_memory
from tests.fuzz.operators.case import Case, model_of, values_of
from tests.fuzz.operators.chains import large_case, random_case
from tests.fuzz.operators.check import Finding, Subject, Verdict, check, compiled, factored, guarded, reason
from tests.fuzz.operators.nets import random_net
from tsc.config import Precision

#: Seconds of computing that a case may take, how many times that by the clock, as others may use the machine too, and bytes of
#: memory that a process may map beyond what it has when it starts.
PATIENCE, SHARED = 30.0, 4.0
#: Makes case number n of a seed.
Maker = Callable[[int, int], Case]


@dataclass
class Tally:
    """What became of cases. `failures` maps a reason to (number, text)."""

    outcomes: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    failures: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    slowest: tuple[float, int] = (0.0, -1)

    def take(self, number: int, title: str, verdict: Verdict, seconds: float) -> None:
        """Count a case that has no finding."""
        kind = ("refused" if verdict.refused else "rightly refused" if verdict.rightly_refused and not verdict.right else
                "right" if verdict.right else "refused at all shapes" if verdict.refused_runs else "without an oracle")
        self.outcomes[kind] += 1
        self.outcomes["runs right"] += verdict.right
        op = title.split(",")[0]
        self.outcomes["with slow kernels"] += bool(verdict.slow)
        self.reasons.update(f"slow: case {number}: {op}: {text[:300]}" for text in verdict.slow)
        for what, texts in (("refused", verdict.refused), ("refused at a shape", verdict.refused_runs),
                            ("convention", verdict.conventions), ("no oracle", verdict.no_oracle)):
            self.reasons.update({f"{what}: {op}: {text[:200]}" for text in texts})
        self.slowest = max(self.slowest, (seconds, number))

    def fail(self, number: int, title: str, text: str) -> None:
        """Count a finding."""
        self.outcomes["FOUND"] += 1
        self.failures.setdefault(f"{title.split(',')[0]}: {reason(Finding(text))}", []).append((number, text))

    def __str__(self) -> str:
        cases = sum(n for what, n in self.outcomes.items() if what not in ("runs right", "with slow kernels"))
        lines = [f"{cases} cases: " + ", ".join(f"{n} {what}" for what, n in sorted((+self.outcomes).items())), *self.found()]
        lines += [f"  {n} {why}" for why, n in self.reasons.most_common()]
        return "\n".join([*lines, f"  slowest: case {self.slowest[1]}, {self.slowest[0]:.1f} s"])

    def found(self) -> list[str]:
        """The findings, a line or two each."""
        return [f"  FOUND {len(cases)}: {why}\n    cases {', '.join(str(n) for n, _ in cases[:8])}: {cases[0][1][:400]}"
                for why, cases in self.failures.items()]


# -- a watched process -----------------------------------------------------------------------------------------

def _work(pipe: Connection, seed: int, numbers: Sequence[int], folder: str, subject: Subject, maker: Maker) -> None:
    """Check cases one after another, saying what begins and what came of it."""
    faulthandler.disable()
    limit_memory()
    for number in numbers:
        _begin(pipe, number, "draw")
        start, title = time.perf_counter(), "?"
        try:
            case = maker(seed, number)
            title = case.title
            verdict = check(case, subject, Path(folder), partial(_begin, pipe, number))
            pipe.send(("done", number, title, verdict, time.perf_counter() - start))
        except Finding as finding:
            pipe.send(("found", number, title, str(finding)))
        except Exception as error:
            pipe.send(("found", number, title, f"the harness failed: {type(error).__name__}: {error}"))
    pipe.send(("end", -1))


def _begin(pipe: Connection, number: int, stage: str) -> None:
    pipe.send(("begin", number, stage))


@dataclass
class _Job:
    """One process and what it is at."""

    seed: int
    left: list[int]
    folder: str
    subject: Subject
    maker: Maker
    process: Any = None
    pipe: Any = None
    current: tuple[int, str] = (-1, "")
    since: tuple[float, float] = (0.0, 0.0)  # the clock, and what was computed until then

    def start(self) -> None:
        """Go on behind what is done."""
        context = multiprocessing.get_context("fork")
        self.pipe, other = context.Pipe(duplex=False)
        self.process = context.Process(target=_work, args=(
            other, self.seed, list(self.left), self.folder, self.subject, self.maker))
        self.process.start()
        other.close()
        self.since = time.monotonic(), self._computed()

    def _computed(self) -> float:
        """Seconds that the process and the compilers it waited for have computed."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        except OSError:
            return 0.0
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")

    @property
    def is_late(self) -> bool:
        """Whether its case has taken too long."""
        clock, computed = time.monotonic() - self.since[0], self._computed() - self.since[1]
        return computed > PATIENCE or clock > SHARED * PATIENCE

    def hear(self, tally: Tally) -> bool:
        """Take a message; False when there will be no more."""
        try:
            message = self.pipe.recv()
        except EOFError:
            return self._died(tally)
        if message[1] != self.current[0]:
            self.since = time.monotonic(), self._computed()
        match message:
            case ("begin", number, stage):
                self.current = (number, stage)
            case ("done", number, title, verdict, seconds):
                tally.take(number, title, verdict, seconds)
                self.left.remove(number)
            case ("found", number, title, text):
                tally.fail(number, title, text)
                self.left.remove(number)
            case ("end", _):
                self.process.join()
                return False
        return True

    def _died(self, tally: Tally) -> bool:
        self.process.join()
        code = self.process.exitcode
        how = signal.Signals(-code).name if code and code < 0 else f"exit code {code}"
        return self._lost(tally, f"the process died of {how}")

    def end(self, tally: Tally) -> bool:
        """End a process whose case takes too long; False when nothing is left."""
        self.process.kill()
        self.process.join()
        return self._lost(tally, f"no end after {PATIENCE:.0f} s")

    def _lost(self, tally: Tally, how: str) -> bool:
        number, stage = self.current
        if number in self.left:
            title = self.maker(self.seed, number).title
            if stage == "oracles":
                tally.outcomes["an oracle crashed"] += 1
                tally.reasons[f"oracle: {title.split(',')[0]}: {how}"] += 1
            else:
                tally.fail(number, title, f"{how} in stage {stage.split()[0]}")
            self.left.remove(number)
        if self.left:
            self.start()
        return bool(self.left)


def run_cases(seed: int, numbers: Sequence[int], jobs: int = 1, subject: Subject = compiled,
              maker: Maker = random_case) -> Iterator[Tally]:
    """Check cases; yields the Tally so far, now and then and at the end."""
    tally, begin = Tally(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tsc-fuzz-") as own:
        active = [_Job(seed, list(numbers[k::jobs]), own, subject, maker) for k in range(jobs) if numbers[k::jobs]]
        for job in active:
            job.start()
        while active:
            ready = wait([job.pipe for job in active], timeout=1.0)
            for job in list(active):
                alive = True
                if job.pipe in ready:
                    alive = job.hear(tally)
                elif job.is_late:
                    alive = job.end(tally)
                if not alive:
                    active.remove(job)
            if time.monotonic() - begin > 30:
                begin = time.monotonic()
                yield tally
    yield tally


# -- the command -----------------------------------------------------------------------------------------------

def show(seed: int, number: int, subject: Subject = compiled, maker: Maker = random_case) -> int:
    """One case in full: the model, what is fed, and the traceback of its failure."""
    case = maker(seed, number)
    print(f"{case.title}, opset {case.opset}, dims named {case.naming}, dims={case.dims}, for {case.target}"
          f"{', broken' if case.broken else ''}")
    print(onnx.printer.to_text(model_of(case, values_of(case, 0))))
    for k, run in enumerate(case.runs):
        print(f"run {k}: {dict(run)}")
        with np.printoptions(threshold=40, linewidth=120):
            print(_fed(case, k))
    try:
        print(check(case, subject))
    except Finding:
        traceback.print_exc(file=sys.stdout)
        return 1
    return 0


def _fed(case: Case, k: int) -> str:
    values = values_of(case, k)
    return "\n".join(f"  {o.role} {o.name}: {o.dtype}{list(values[o.name].shape)} = {values[o.name]}" for o in case.operands
                     if o.role == "feed" or k == 0)


def for_target(target: str, precision: Precision, maker: Maker, seed: int, number: int) -> Case:
    """What a Maker makes, to be compiled for a target."""
    return replace(maker(seed, number), target=target, precision=precision)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="dev.py fuzz --onnx", description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="number of the first case")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--only", type=int, help="show this case alone")
    parser.add_argument("--nets", action="store_true", help="nets of ten to a hundred nodes in place of operators and chains")
    parser.add_argument("--large", action="store_true", help="operators and chains at sizes of many blocks")
    parser.add_argument("--guarded", action="store_true", help="every buffer flush against unmapped pages as well")
    parser.add_argument("--factored", action="store_true", help="reductions cut into chunks")
    parser.add_argument("--target", help="compile for this in place of the CPUs in turn, as for emu:sm_80")
    parser.add_argument("--precision", choices=get_args(Precision), help="of the factors of products")
    parser.add_argument("--emulate", action="store_true", help="AVX-512 on a machine that has AVX2 (tests/emulated)")
    asked = parser.parse_args(argv)
    if asked.emulate:
        avx512.pretend()
    subject = factored if asked.factored else guarded if asked.guarded else compiled
    maker = random_net if asked.nets else large_case if asked.large else random_case
    if asked.target or asked.precision:
        maker = partial(for_target, asked.target or "cpu", asked.precision or "fp32", maker)
    if asked.only is not None:
        return show(asked.seed, asked.only, subject, maker)
    begin, tally = time.perf_counter(), Tally()
    for tally in run_cases(asked.seed, range(asked.start, asked.start + asked.count), asked.jobs, subject, maker):
        print("\n".join((f"{time.perf_counter() - begin:.0f} s: {str(tally).splitlines()[0]}", *tally.found())), flush=True)
    print(tally)
    return 1 if tally.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())

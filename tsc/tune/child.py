"""Measuring in a process apart: what crashes, hangs or ends it costs the Variant that ran then, and nothing else.

The child is told one Trial and its sizes by a frame, says before each run which Variant it is, and what it found. It has an
alarm that kills it, so that nobody has to watch the clock.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from tsc.errors import LaunchError, TscError
from tsc.frames import read_frame, spawned, write_frame
from tsc.runtime.drivers.cpu_driver import CpuDriver
from tsc.tune.measure import ENOUGH, Bench, Sizes, Trial, functions_of, other_bits, wrong_values

#: Seconds that one run of a Variant may take.
PATIENCE = 30


@dataclass(frozen=True, slots=True)
class Request:
    """A Trial, small sizes at which its values are looked at, those to measure, the Variants to leave out, the seconds that a
    run may take, and the cores that it has."""

    trial: Trial
    checked: tuple[Sizes, ...]
    measured: tuple[Sizes, ...]
    without: frozenset[int] = frozenset()
    patience: int = PATIENCE
    units: int = 1
    enough: float = ENOUGH


@dataclass(slots=True)
class Found:
    """The seconds of each Variant at the sizes by their number, and why a Variant cannot be used."""

    seconds: dict[tuple[int, int], float] = field(default_factory=dict)
    wrong: dict[int, str] = field(default_factory=dict)


def serve() -> None:
    """A child: one Request from standard input, what it finds to standard output."""
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed is no answer
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    frame = read_frame(source)
    if frame is not None:
        _answer(pickle.loads(frame), sink)


def _answer(request: Request, sink: IO[bytes]) -> None:
    def tell(*what: Any) -> None:
        write_frame(sink, pickle.dumps(what))

    def begins(variant: int) -> None:
        signal.alarm(request.patience)
        tell("begins", variant)

    trial, driver, wrong = request.trial, CpuDriver(request.units), dict[int, str]()
    variants = [k for k, _ in enumerate(trial.kernel.interface.variants) if k not in request.without]
    try:
        functions = functions_of(driver, trial)
        for sizes in request.checked:
            wrong |= wrong_values(driver, trial, functions, sizes, variants, begins)
            signal.alarm(0)
        tell("wrong", wrong)
        for number, sizes in enumerate(request.measured):
            bench = Bench(driver, trial, functions, sizes)
            wrong |= other_bits(bench, [k for k in variants if k not in wrong], begins)
            tell("wrong", wrong)
            tell("seconds", number, bench.times([k for k in variants if k not in wrong], begins, request.enough))
            signal.alarm(0)
        tell("done", "")
    except (TscError, MemoryError) as error:  # the machine's, not a Variant's
        tell("done", str(error) or "not enough memory")


def measured(trial: Trial, checked: Sequence[Sizes], sizes: Sequence[Sizes], patience: int = PATIENCE, units: int = 1,
             enough: float = ENOUGH, without: frozenset[int] = frozenset()) -> Found:
    """What a child finds of the Variants of a Trial, but for those it is to do `without`, on so many cores, `enough` as
    `Bench.times` has it. A new one goes on where one ends before it is done, without the Variant that ran then. Raises
    LaunchError where it ends though none ran, or has no room for the data."""
    found = Found()
    while len(without.union(found.wrong)) < len(trial.kernel.interface.variants):
        left = tuple(s for k, s in enumerate(sizes) if not any(number == k for _, number in found.seconds))
        first = len(sizes) - len(left)
        ran = _ask(Request(trial, tuple(checked), left, without.union(found.wrong), patience, units, enough), found, first)
        if ran is None:
            break
        found.wrong[ran] = f"it crashed, or took more than {patience} s"
    found.seconds = {key: time for key, time in found.seconds.items() if key[0] not in found.wrong}
    return found


def _ask(request: Request, found: Found, first: int) -> int | None:
    """One child's answer, added to what was found; the Variant that ran when it ended before it was done."""
    with spawned("tsc.tune.child") as child:
        assert child.stdin is not None and child.stdout is not None
        running: int | None = None
        try:
            write_frame(child.stdin, pickle.dumps(request))
            while (frame := read_frame(child.stdout)) is not None:
                match pickle.loads(frame):
                    case "begins", int(variant):
                        running = variant
                    case "wrong", dict(wrong):
                        found.wrong |= wrong
                    case "seconds", int(number), dict(seconds):
                        found.seconds |= {(variant, first + number): time for variant, time in seconds.items()}
                    case "done", str(problem):
                        if problem:
                            raise LaunchError(f"kernel '{request.trial.kernel.symbol}' cannot be measured: {problem}")
                        return None
        except BrokenPipeError:
            pass
        if running is None:
            raise LaunchError(f"a process that measures ended with status {child.wait()} before anything ran")
        return running

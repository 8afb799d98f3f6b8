"""Mutated Packages: `python3 dev.py fuzz --packages [--count 2000] [--seed 0] [--start 0] [--jobs 1] [--only N]`.

Small real Packages, damaged at random: bytes of the file, or its JSON with all hashes computed again, or with another binary in
it. Each is loaded and, where that succeeds, run at some shapes, in a child with 4 GB of address space and 30 s. Loading ends in
a PackageError or succeeds; running ends in a typed error or succeeds. Where the hashes are as they were, so are the results.

Code is left as it is where its hash is computed again: what other code does, no check of data can tell. Data that is another
valid plan (a guard gone, two weights swapped) may give other results: only a signature could tell. These are counted.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from random import Random

import numpy as np

from tests import hosts
from tests.fuzz.limits import limit_memory
from tests.fuzz.package_files import PREY_NAMES, Prey, canaries, compiled
from tests.fuzz.package_mutations import Mutation, mutate
from tests.fuzz.tally import Tally
from tsc.errors import InternalError, PackageError, TscError
from tsc.runtime import interpret
from tsc.runtime.load import load

hosts.watch()

SECONDS = 30
#: Loops make no more trips, of so many that a mutation may ask for.
TRIPS = 2000
#: Cases that one worker takes at a time.
BATCH = 200


def case(seed: int, number: int) -> tuple[Prey, Mutation]:
    """Case `number` of a seed, always the same one."""
    rng = Random(f"{seed}/{number}")
    prey = compiled(rng.choice(PREY_NAMES))
    return prey, mutate(prey.data, rng, canaries())


def run_batch(seed: int, numbers: range) -> Tally:
    """What becomes of these cases, each in a child of its own."""
    tally = Tally("Packages")
    with tempfile.TemporaryDirectory(prefix="tsc-fuzz-") as folder:
        for number in numbers:
            prey, mutation = case(seed, number)
            begin = time.perf_counter()
            outcome = attempt(prey, mutation, Path(folder))
            tally.count(outcome, number, time.perf_counter() - begin)
    return tally


def attempt(prey: Prey, mutation: Mutation, folder: Path) -> str:
    """Load and run one mutated Package in a child: "refused", "typed error at run", "same results", "other results", or
    "failed: ..."."""
    path, canary = folder / "case.tscpack", folder / "canary"
    path.write_bytes(mutation.data)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        _child(prey, mutation, path, canary, write)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        outcome = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    if canary.exists():
        canary.unlink()
        return f"failed: code of a Package that was refused ran ({mutation.what})"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"failed: signal {signal.Signals(number).name}{' (hang)' if number == signal.SIGALRM else ''}"
    return outcome or f"failed: exit code {os.WEXITSTATUS(status)}"


def _child(prey: Prey, mutation: Mutation, path: Path, canary: Path, pipe: int) -> None:
    """In the child: say what happened through `pipe`, and end."""
    try:
        faulthandler.disable()  # a signal is an outcome
        os.environ["TSC_CANARY"] = str(canary)
        ctypes.CDLL(None).setenv(b"TSC_CANARY", str(canary).encode(), 1)
        limit_memory()
        signal.alarm(SECONDS)
        interpret.MAX_TRIPS = TRIPS
        outcome = _outcome(prey, mutation, path)
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        outcome = f"failed: {type(error).__name__} in {Path(where.filename).name}:{where.name}: {str(error)[:100]}"
    os.write(pipe, outcome.replace("\n", " ").encode())
    os._exit(0)


def _outcome(prey: Prey, mutation: Mutation, path: Path) -> str:
    try:
        executable = load(path, threads=2, weights=mutation.weights)
    except PackageError:
        return "refused"
    same, alone = True, []
    for feeds, expected in zip(prey.requests, prey.expected):
        try:
            results = executable.run(None, feeds)
        except InternalError as error:
            return f"failed: InternalError at run: {str(error)[:100]}"
        except TscError:
            if not mutation.rehashed:
                return "failed: a file with the hashes of another gives an error at run"
            return "typed error at run"
        same = same and len(results) == len(expected) and all(map(_equal, results, expected))
        alone.append(results)
    if not same and not mutation.rehashed:
        return "failed: a file with the hashes of another gives other results"
    try:
        joined = executable.run_many(None, prey.requests)
    except InternalError as error:
        return f"failed: InternalError at run_many: {str(error)[:100]}"
    except TscError:
        return "typed error at run" if mutation.rehashed else "failed: requests that run alone do not run together"
    if not mutation.rehashed and not all(map(_equal, chain.from_iterable(joined), chain.from_iterable(alone))):
        return "failed: requests get other results together than alone"
    return "same results" if same else "other results"


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@cache
def _prepared() -> bool:
    """Compile everything once, before anything forks."""
    canaries()
    return all(compiled(name) is not None for name in PREY_NAMES)


def batches(start: int, count: int) -> Iterator[range]:
    end = start + count
    return (range(a, min(a + BATCH, end)) for a in range(start, end, BATCH))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="dev.py fuzz --packages", description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="number of the first case")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--only", type=int, help="this case alone")
    asked = parser.parse_args(argv)
    _prepared()
    if asked.only is not None:
        _, mutation = case(asked.seed, asked.only)
        print(mutation.what)
        print(tally := run_batch(asked.seed, range(asked.only, asked.only + 1)))
        return 1 if tally.failures else 0
    ranges = list(batches(asked.start, asked.count))
    tally, begin = Tally("Packages"), time.perf_counter()
    with ProcessPoolExecutor(asked.jobs, get_context("fork")) as pool:
        for done in pool.map(run_batch, [asked.seed] * len(ranges), ranges):
            tally.add(done)
            print(f"{time.perf_counter() - begin:.0f} s: {tally}", flush=True)
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())

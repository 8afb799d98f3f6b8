"""Threads, processes, forks and kills: `python3 dev.py stress [threads] [compile] [fork] [--seconds 60] [--threads 32]
[--processes 16] [--seed 0]`.

- `threads`: many threads run one Executable at many shapes, bad requests among them; every result must be that of one thread.
- `compile`: processes compile the same models on one cache, and are killed with SIGKILL at random; those that live must end
  right, and a last compile with the cache that is left must, too. No folder of a build may be left after it.
- `fork`: a process whose threads run forks; the children run, too.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np

from tests.fuzz.package_files import PREY_NAMES, compiled
from tsc.errors import InputError
from tsc.runtime.executable import Executable
from tsc.runtime.load import load

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60.0
#: How long one child of a fork may take.
PATIENCE = 60

Feeds = dict[str, np.ndarray]


class Failed(AssertionError):
    """A run was wrong, an error untyped, a process ended by what it should have lived through."""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="dev.py stress", description=__doc__)
    parser.add_argument("what", nargs="*", choices=[[], *STRESSES], help="default: all")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each")
    parser.add_argument("--threads", type=int, default=32)
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(argv)
    for name in asked.what or STRESSES:
        print(f"{name}: {STRESSES[name](asked)}", flush=True)
    return 0


def executable(threads: int) -> Executable:
    """A small model whose requests and results are known."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "p"
        path.write_bytes(compiled("lookup").data)
        return load(path, threads)


def request(rng: np.random.Generator) -> tuple[Feeds, Feeds, bool]:
    """Feeds of the model, what it must give, and whether an index is wrong."""
    table = _table()
    batch, seq = (int(n) for n in rng.integers(1, 40, 2))
    bias = rng.standard_normal((seq, table.shape[1])).astype(np.float32)
    feeds = {"ids": rng.integers(0, len(table), (batch, seq)), "bias": bias}
    expected = {"y": table[feeds["ids"]] + feeds["bias"], "b": feeds["bias"]}
    wrong = bool(rng.integers(0, 10) == 0)
    if wrong:
        feeds["ids"][rng.integers(0, batch), rng.integers(0, seq)] = len(table) + 5
    return feeds, expected, wrong


def _table() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((19, 8)).astype(np.float32)  # as package_files makes it


def run_checked(model: Executable, rng: np.random.Generator) -> None:
    """One request. Raises Failed where the answer is not the one known."""
    feeds, expected, wrong = request(rng)
    try:
        results = model.run(None, feeds)
    except InputError:
        if not wrong:
            raise
        return
    if wrong:
        raise Failed("an index out of bounds was not seen")
    for got, want in zip(results, expected.values()):
        if not np.array_equal(got, want):
            raise Failed(f"wrong at {feeds['ids'].shape}")


# -- threads ---------------------------------------------------------------------------------------------------------

def stress_threads(seconds: float, threads: int, seed: int) -> int:
    """How many runs `threads` threads did in `seconds`, all of them right. Raises Failed."""
    model, end = executable(2), time.monotonic() + seconds
    counts, errors = [0] * threads, []

    def work(number: int) -> None:
        rng = np.random.default_rng((seed, number))
        try:
            while time.monotonic() < end and not errors:
                run_checked(model, rng)
                counts[number] += 1
                if counts[number] % 500 == 0:
                    model.trim()
        except BaseException as error:
            errors.append(error)

    _run_all([threading.Thread(target=work, args=(number,)) for number in range(threads)])
    if errors:
        raise Failed(f"{type(errors[0]).__name__}: {errors[0]}") from errors[0]
    return sum(counts)


def _run_all(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# -- processes -------------------------------------------------------------------------------------------------------

COMPILE = """
import sys
from tests.fuzz.package_files import PREY_NAMES, compiled
for name in sys.argv[1:]:
    compiled(name)   # compared with the reference evaluator
"""


def _compiler(cache: Path, temporary: Path, *names: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "TSC_CACHE": str(cache), "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", COMPILE, *names], cwd=ROOT, env=environment, stderr=subprocess.PIPE)


def stress_compile(seconds: float, processes: int, seed: int, names: tuple[str, ...] = PREY_NAMES) -> dict[str, int]:
    """Processes that ended right, and those that were killed. Raises Failed."""
    rng, counts = Random(seed), {"right": 0, "killed": 0}
    with tempfile.TemporaryDirectory(prefix="tsc-stress-") as folder:
        cache, temporary = Path(folder) / "cache", Path(folder) / "tmp"
        temporary.mkdir()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            running = [_compiler(cache, temporary, *rng.sample(names, len(names))) for _ in range(processes)]
            for process in rng.sample(running, processes // 2):
                time.sleep(rng.uniform(0, 2.0))
                process.send_signal(signal.SIGKILL)
            for process in running:
                _, errors = process.communicate()
                if process.returncode not in (0, -signal.SIGKILL):
                    raise Failed(f"exit code {process.returncode}: {errors.decode()[-2000:]}")
                counts["killed" if process.returncode else "right"] += 1
            for left in temporary.glob("tsc-build-*"):  # as if they were old
                os.utime(left, (0, 0))
            _, errors = _compiler(cache, temporary, *names).communicate()
            if errors.strip():
                raise Failed(errors.decode()[-2000:])
        _empty(cache)  # so that there is something to build
        _, errors = _compiler(cache, temporary, names[0]).communicate()
        left = [path.name for path in temporary.glob("tsc-build-*")]
        if errors.strip() or left:
            raise Failed(f"{errors.decode()[-2000:]} left: {left}")
    return counts


def _empty(cache: Path) -> None:
    for path in cache.rglob("*"):
        if path.is_file():
            path.unlink()


# -- forks -----------------------------------------------------------------------------------------------------------

def stress_fork(seconds: float, threads: int, seed: int) -> int:
    """How many children of a busy process ran right. Raises Failed."""
    model, end, done, errors = executable(2), time.monotonic() + seconds, threading.Event(), []

    def work(number: int) -> None:
        rng = np.random.default_rng((seed, number))
        try:
            while not done.is_set():
                run_checked(model, rng)
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    children = 0
    try:
        while time.monotonic() < end and not errors:
            status, said = _forked(model, children + seed)
            if status:
                raise Failed(f"child {children} ended with status {status}: {said}")
            children += 1
    finally:
        done.set()
        for worker in workers:
            worker.join()
    if errors:
        raise Failed(f"{type(errors[0]).__name__}: {errors[0]}") from errors[0]
    return children


def _forked(model: Executable, seed: int) -> tuple[int, str]:
    """The status of a child that runs, and what it says of its failure."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        _child(model, seed, writes)
    os.close(writes)
    with open(reads, encoding="utf-8", errors="replace") as said:
        words = said.read()
    return os.waitpid(child, 0)[1], words


def _child(model: Executable, seed: int, said: int) -> None:
    """In the child: a few runs; what failed goes to the file `said`; ends the process."""
    code = 1
    try:
        signal.alarm(PATIENCE)
        rng = np.random.default_rng(seed)
        for _ in range(5):
            run_checked(model, rng)
        code = 0
    except BaseException as error:
        os.write(said, f"{type(error).__name__}: {error}"[:500].encode())
    finally:
        os._exit(code)


STRESSES: dict[str, Callable[[argparse.Namespace], object]] = {
    "threads": lambda asked: f"{stress_threads(asked.seconds, asked.threads, asked.seed)} runs right",
    "compile": lambda asked: stress_compile(asked.seconds, asked.processes, asked.seed),
    "fork": lambda asked: f"{stress_fork(asked.seconds, min(asked.threads, 4), asked.seed)} children right"}


if __name__ == "__main__":
    sys.exit(main())

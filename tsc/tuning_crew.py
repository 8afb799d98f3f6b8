"""Who tunes groups: this process, several of this machine, or a Ray cluster.

On one machine measurements take turns (`_alone` in `tsc.tune.batch`): what more workers gain is what is built meanwhile.
Finalists, which run on several cores too, are measured where nobody builds.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import import_module
from typing import Any, Protocol

from tsc.errors import LaunchError, TscError
from tsc.frames import read_frame, start, write_frame
from tsc.kernels import Workshop
from tsc.tune.batch import Batch
from tsc.tune.records import Record
from tsc.tuning_group import Job, final_records, rounds


class Crew(Protocol):
    """Tunes as many as `count` groups at a time, each asked for in a thread of its own."""

    @property
    def count(self) -> int: ...

    def rounds(self, job: Job) -> Iterator[list[Record] | Batch]:
        """What `tsc.tuning_group.rounds` gives. Raises LaunchError where that cannot be had."""

    def final_records(self, batch: Batch) -> list[Record]:
        """What `tsc.tuning_group.final_records` gives, while nothing else is asked for. Raises LaunchError."""

    def stop(self) -> None:
        """End what still runs."""


class Alone:
    """This process, with a Workshop that it has."""

    count = 1

    def __init__(self, shop: Workshop) -> None:
        self._shop = shop

    def rounds(self, job: Job) -> Iterator[list[Record] | Batch]:
        """As a Crew does."""
        return rounds(job, self._shop)

    def final_records(self, batch: Batch) -> list[Record]:
        """As a Crew does."""
        return final_records(batch)

    def stop(self) -> None:
        """As a Crew does."""


class Processes:
    """So many processes of this machine, started when they are needed."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._all: list[subprocess.Popen[bytes]] = []
        self._idle: list[subprocess.Popen[bytes]] = []

    def rounds(self, job: Job) -> Iterator[list[Record] | Batch]:
        """As a Crew does."""
        child = self._idle.pop() if self._idle else self._started()
        assert child.stdin is not None and child.stdout is not None
        try:
            write_frame(child.stdin, pickle.dumps(job))
            yield from _told(iter(partial(read_frame, child.stdout), None))
        except (OSError, EOFError) as error:
            raise LaunchError(f"a process that tuned kernel '{job.group.order.symbol()}' ended ({child.wait()}); what it "
                              "had measured is kept, so that the job may be started again") from error
        self._idle.append(child)

    def final_records(self, batch: Batch) -> list[Record]:
        """As a Crew does, in this process: its machine is theirs."""
        return final_records(batch)

    def stop(self) -> None:
        """As a Crew does."""
        for child in self._all:
            child.kill()
            child.communicate()
        self._all.clear()
        self._idle.clear()

    def _started(self) -> subprocess.Popen[bytes]:
        child = start("tsc.tuning_crew")
        self._all.append(child)
        return child


def serve() -> None:
    """A process of `Processes`: Jobs from standard input, the answers of each to standard output."""
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed is no answer
    while (frame := read_frame(source)) is not None:
        for answer in _answers(frame):
            write_frame(sink, answer)


class Ray:
    """A Ray cluster, whose machines have tsc installed: that at an `address`, as Ray takes them, or with "local" one of this
    machine alone that takes so many `groups` at a time. Raises LaunchError where it is not to be had."""

    def __init__(self, address: str, groups: int | None = None) -> None:
        try:
            self._ray: Any = import_module("ray")
        except ImportError as error:
            raise LaunchError(f"tuning on a cluster lacks {error.name}; install tsc-compiler[ray], or do without") from error
        local = {"num_cpus": groups, "include_dashboard": False} if address == "local" else {}
        try:
            self._ray.init(address, log_to_driver=False, logging_level="ERROR", **local)
        except (OSError, RuntimeError, ValueError) as error:
            raise LaunchError(f"there is no Ray cluster at '{address}' ({error}); start one, or give 'local'") from error
        self.count = max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        self._task: Callable[..., Any] = self._ray.remote(num_cpus=1)(_answers).options(num_returns="streaming").remote

    def rounds(self, job: Job) -> Iterator[list[Record] | Batch]:
        """As a Crew does."""
        return self._asked(job, job.group.order.symbol())

    def final_records(self, batch: Batch) -> list[Record]:
        """As a Crew does, on a machine of the cluster."""
        return [r for found in self._asked(batch, batch.trial.kernel.symbol) if not isinstance(found, Batch) for r in found]

    def _asked(self, what: Job | Batch, symbol: str) -> Iterator[list[Record] | Batch]:
        try:
            yield from _told(map(self._ray.get, self._task(pickle.dumps(what))))
        except self._ray.exceptions.RayError as error:
            reason = str(error).splitlines()[-1]
            raise LaunchError(f"Ray could not tune kernel '{symbol}': {reason}; what was measured is kept, so that the job may "
                              "be started again") from error

    def stop(self) -> None:
        """As a Crew does."""
        self._ray.shutdown()


# -- how they answer ---------------------------------------------------------------------------------------------------

def _answers(asked: bytes) -> Iterator[bytes]:
    """What is told of a Job, or of a Batch of finalists, where it is done: its records, a batch at a time, and in the end what
    went wrong, or ""."""
    problem, what = "", pickle.loads(asked)
    try:
        for found in [final_records(what)] if isinstance(what, Batch) else rounds(what):
            yield pickle.dumps(found)  # Ray sends to what it runs: no `yield from`
    except TscError as error:
        problem = str(error)
    yield pickle.dumps(problem)


def _told(answers: Iterable[bytes]) -> Iterator[list[Record] | Batch]:
    """What is found among answers. Raises LaunchError for what went wrong, and EOFError where there is no end."""
    for answer in map(pickle.loads, answers):
        if not isinstance(answer, str):
            yield answer
        elif answer:
            raise LaunchError(answer)
        else:
            return
    raise EOFError

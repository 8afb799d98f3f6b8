"""One version of a model as the server sees it: what a request to it must be like, and those that wait."""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tsc.runtime.bind import Binder
from tsc.runtime.fitting import fitting
from tsc.runtime.joined import joinable
from tsc.runtime.memory import Array
from tsc.runtime.package import Package
from tsc.runtime.plan import Plan
from tsc.runtime.signing import Trust
from tsc.serve.errors import wrong
from tsc.serve.repository import Entry
from tsc.serve.settings import Gathering, read_gathering

#: Shapes whose sizes are remembered, and times of the last requests.
MEMO, TIMES = 4096, 1024
#: What the last run counts for how fast the next one is expected to be.
_NEWS = 0.3


@dataclass(slots=True, eq=False)
class Job:
    """A request that waits for its result: what it feeds, the bytes that its run makes, and the numbers of the outputs it
    wants; when it came, and until when somebody waits, by the clock of the event loop."""

    feeds: Mapping[str, Array]
    bytes: int
    wanted: tuple[int, ...]
    result: asyncio.Future[list[Array]]
    came: float
    until: float
    model: Served


@dataclass(slots=True, eq=False)
class Served:
    """A model that takes requests, some `together` (None: nothing of it is made row by row, so that each runs alone). `key`
    names it to workers, `threads` are those of each."""

    entry: Entry
    key: str
    plan: Plan
    binder: Binder
    together: Gathering | None
    threads: int
    queue: deque[Job] = field(default_factory=deque)
    running: int = 0
    requests: int = 0
    #: Seconds that a run took lately for each byte that it made, 0 while nothing has run.
    pace: float = 0.0
    times: deque[float] = field(default_factory=lambda: deque(maxlen=TIMES))
    _memo: OrderedDict[object, tuple[dict[str, int], int, int]] = field(default_factory=OrderedDict)
    shapes: int = 0

    @property
    def place(self) -> tuple[str, str]:
        """Its name and version."""
        return self.entry.model, self.entry.version

    @property
    def coverage(self) -> Path | None:
        """A report of shape coverage beside the Package: NAME.html beside NAME.tscpack."""
        path = self.entry.path.with_suffix(".html")
        return path if path.is_file() else None

    @property
    def pending(self) -> int:
        """Requests that wait or run."""
        return len(self.queue) + self.running

    def wanted(self, names: Sequence[str]) -> tuple[int, ...]:
        """The numbers of the named outputs, of all where none is named. Raises Refusal for one that there is not."""
        known = [spec.name for spec in self.plan.outputs]
        for name in names:
            if name not in known:
                raise wrong(f"there is no output '{name}'; this model's outputs are {', '.join(known)}")
        return tuple(known.index(name) for name in dict.fromkeys(names)) or tuple(range(len(known)))

    def admitted(self, feeds: Mapping[str, Array], most: int) -> int:
        """The bytes that a run of a request makes. Raises InputError naming what is wrong with it, and Refusal where a run
        would take more than `most`; nothing has been allocated then."""
        shapes = self.binder.shapes(self.binder.arrays(feeds))
        known = self._memo.get(shapes)
        if known is None:
            binding = self.binder.bind(self.binder.sizes(shapes))
            made = sum(math.prod(shape or ()) * dtype.itemsize for shape, dtype in zip(binding.outputs, self.binder.dtypes))
            made += binding.arena_bytes
            known = self._memo[shapes] = binding.dims, made, made + self.threads * binding.scratch_bytes
            self.shapes += 1
            if len(self._memo) > MEMO:
                self._memo.popitem(last=False)
        dims, made, needed = known
        if needed > most:
            at = ", ".join(f"{name}={size}" for name, size in dims.items())
            raise wrong(f"a run at {at} takes {needed} bytes, more than the {most} that one may; send less at once")
        return made

    def due(self, now: float) -> float:
        """When its first request should run, at the latest: at once, where enough of them wait."""
        if self.together is None or len(self.queue) >= self.together.requests:
            return min(now, self.queue[0].came)
        return self.queue[0].came + self.together.delay

    def taken(self, most: int) -> list[Job]:
        """The next requests that run together, which make no more than `most` bytes; nobody waits any more for those that are
        done without having run."""
        while self.queue and self.queue[0].result.done():
            self.queue.popleft()
        if not self.queue:
            return []
        first = self.queue.popleft()
        found = [first]
        if self.together is not None and self.queue:
            found += self._companions(self.together, first, most)
        self.running += len(found)
        return found

    def _companions(self, together: Gathering, first: Job, most: int) -> list[Job]:
        """Requests that run with one, the first ones of those that wait and fit."""
        room = min(most, together.run / self.pace if self.pace else math.inf) - first.bytes
        found, left = list[Job](), deque[Job]()
        for job in self.queue:
            if (len(found) + 1 < together.requests and not job.result.done() and job.wanted == first.wanted
                    and job.bytes <= room):
                found.append(job)
                room -= job.bytes
            else:
                left.append(job)
        self.queue = left
        return found

    def ran(self, jobs: Sequence[Job], seconds: float) -> None:
        """Some requests ran together, for so long."""
        self.running -= len(jobs)
        if self.together is not None:
            pace = seconds / max(1, sum(job.bytes for job in jobs))
            self.pace += (pace - self.pace) * (_NEWS if self.pace else 1.0)


def opened(entry: Entry, threads: int, trust: Trust | None, key: str) -> Served:
    """A model of the folder, as far as requests have to be held against it; no code of it is mapped here. Raises PackageError
    or InputError saying what is wrong with it or its settings."""
    found = fitting(Package.read(entry.path, "shared", trust))
    plan = found.plan
    gathering = Gathering() if entry.settings is None else read_gathering(entry.settings)
    binder = Binder(plan, found.bounds, threads)
    return Served(entry, key, plan, binder, gathering if any(joinable(binder, found.bounds)) else None, threads)

"""What the server does, whatever the protocol: it knows the models of a folder, lets requests in, and has workers run them.

Each worker takes the next requests by itself when it has nothing to do, some of them as one: where all are busy requests
gather, so that more run as one the more there are, and none waits for others where there is nothing to do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from itertools import count
from typing import Any

from tsc.config import default_threads
from tsc.errors import InputError, TscError
from tsc.runtime.memory import Array
from tsc.serve.crew import Worker
from tsc.serve.errors import Refusal, WorkerGone, busy, refusal_of
from tsc.serve.metrics import Metrics
from tsc.serve.model import Job, Served, opened
from tsc.serve.repository import Entry, latest, scan
from tsc.serve.settings import ServerOptions

#: Seconds that a run has beyond the deadline until its process is ended.
_LATE = 1.0
#: How often what workers hold is asked for, in seconds.
_MEMORY_EVERY = 10.0
log = logging.getLogger("tsc.serve")

Place = tuple[str, str]


class Service:
    """Models that are served, and the processes that run them; used within one event loop."""

    def __init__(self, options: ServerOptions) -> None:
        self.options = options
        self.metrics = Metrics()
        self.workers = [Worker(number) for number in range(options.workers)]
        self.models: dict[Place, Served] = {}
        #: Why a version that is in the folder is not served, or not in its newest state.
        self.reasons: dict[Place, str] = {}
        self.ready = self.stopping = False
        self._seen: dict[Place, Entry] = {}
        self._left: list[Served] = []  # that take no new requests, but have some
        self._keys = count()
        self._news = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loading = asyncio.Lock()

    # -- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load what is in the folder, and begin to run requests."""
        await self.look()
        for work in (*(self._work(worker) for worker in self.workers), self._watch(), self._measure()):
            self._keep(work)
        self.ready = True

    async def stop(self) -> None:
        """Take no more requests, end those that are there as far as `grace` lets them, and end all processes."""
        self.ready, self.stopping = False, True
        end = self._now() + self.options.grace
        while self._pending() and self._now() < end:
            await asyncio.sleep(0.01)
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for model in self._all():
            for job in model.queue:
                _settle(job, Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "the server ends; ask another one"))
        await asyncio.gather(*(worker.end() for worker in self.workers))

    def _all(self) -> tuple[Served, ...]:
        """Models that have requests or may get some, those that take no new ones among them."""
        return (*self.models.values(), *self._left)

    def _pending(self) -> int:
        return sum(model.pending for model in self._all())

    def _keep(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    # -- the folder --------------------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Serve what the folder has now: what is new or another file is loaded before it takes the place of what was served,
        and what is gone ends when its requests have."""
        async with self._loading:
            found = await asyncio.to_thread(scan, self.options.folder)
            for place, entry in found.items():
                if self._seen.get(place) != entry:
                    self._seen[place] = entry
                    await self._load(place, entry)
            for place in self._seen.keys() - found.keys():
                del self._seen[place]
                self.reasons.pop(place, None)
                if place in self.models:
                    self._leave(self.models.pop(place))
                    self.metrics.forget(*place)
                    log.info("gone", extra={"model": place[0], "version": place[1]})

    async def _load(self, place: Place, entry: Entry) -> None:
        model, version = place
        threads = self.options.threads or max(1, default_threads() // len(self.workers))
        try:
            key = f"{model}/{version}#{next(self._keys)}"
            served = await asyncio.to_thread(opened, entry, threads, self.options.trust, key)
            for worker in self.workers:
                await worker.load(served.key, (entry, threads, self.options.trust))
        except (TscError, WorkerGone, OSError) as error:
            self.reasons[place] = str(error)
            log.error("not loaded", extra={"model": model, "version": version, "reason": str(error)})
            return
        self.reasons.pop(place, None)
        before, self.models[place] = self.models.get(place), served
        self._tell(served)
        log.info("loaded", extra={"model": model, "version": version, "path": str(entry.path)})
        if before is not None:
            self._leave(before)

    def _leave(self, model: Served) -> None:
        self._left.append(model)  # at once: a worker that looks for requests now has to see those that it has
        self._keep(self._unloaded(model))

    async def _unloaded(self, model: Served) -> None:
        """Let workers go of a model when nothing of it runs any more."""
        while model.pending:
            await asyncio.sleep(0.05)
        self._left.remove(model)
        for worker in self.workers:
            with suppress(WorkerGone, TscError):  # whoever ended has let go of it, too
                await worker.unload(model.key)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self.options.poll)
            try:
                await self.look()
            except TscError as error:
                log.error("the folder is not read", extra={"reason": str(error)})

    async def _measure(self) -> None:
        while True:
            for worker in self.workers:
                self.metrics.memory.labels(str(worker.number)).set(await worker.memory())
                self.metrics.restarts.labels(str(worker.number)).set(worker.restarts)
            await asyncio.sleep(_MEMORY_EVERY)

    # -- what there is -----------------------------------------------------------------------------------------------

    def model(self, name: str, version: str | None = None) -> Served:
        """A model that is served, by default its newest version. Raises Refusal where there is none."""
        asked = version or latest(v for n, v in self.models if n == name)
        found = self.models.get((name, asked or ""))
        if found is None:
            reason = self.reasons.get((name, version or "")) or next((r for (n, _), r in self.reasons.items() if n == name), "")
            known = ", ".join(sorted({n for n, _ in self.models})) or "none"
            raise Refusal(HTTPStatus.NOT_FOUND, f"there is no model '{name}'{f' of version {version}' if version else ''}"
                          + (f": {reason}" if reason else f"; there are {known}"))
        return found

    def versions(self, name: str) -> list[str]:
        """The versions of a model that are served."""
        return sorted((v for n, v in self.models if n == name), key=int)

    def index(self) -> list[tuple[str, str, str, str]]:
        """Name, version, state and reason of all that the folder has."""
        return [(*place, "READY" if place in self.models else "UNAVAILABLE", self.reasons.get(place, ""))
                for place in sorted(self._seen)]

    # -- requests ----------------------------------------------------------------------------------------------------

    async def infer(self, model: Served, feeds: Mapping[str, Array], outputs: Sequence[str],
                    seconds: float | None = None) -> tuple[list[Array], tuple[int, ...]]:
        """The results of a request and the numbers of the outputs that they are. Raises Refusal: what is wrong with it, or that
        it found no place, that it took too long, or that what ran it has ended."""
        begin = self._now()
        status = HTTPStatus.OK
        try:
            most = self.options.deadline
            found = await self._inferred(model, feeds, outputs, begin, min(seconds or most, most))
            took = self._now() - begin
            model.times.append(took)
            self.metrics.seconds.labels(*model.place).observe(took)
            return found
        except Refusal as refusal:
            status = refusal.status
            raise
        finally:
            model.requests += 1
            self.metrics.requests.labels(*model.place, str(int(status))).inc()
            self._tell(model)

    def _tell(self, model: Served) -> None:
        if self.models.get(model.place) is model:
            self.metrics.waiting.labels(*model.place).set(model.pending)
            self.metrics.shapes.labels(*model.place).set(model.shapes)

    async def _inferred(self, model: Served, feeds: Mapping[str, Array], outputs: Sequence[str], begin: float,
                        seconds: float) -> tuple[list[Array], tuple[int, ...]]:
        if self.stopping:
            raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "the server ends; ask another one")
        if self._pending() >= self.options.requests:
            raise busy(f"{self.options.requests} requests wait already; ask again later")
        try:
            wanted, made = model.wanted(outputs), model.admitted(feeds, self.options.run_bytes)
        except TscError as error:
            raise refusal_of(error) from error
        job = Job(feeds, made, wanted, asyncio.get_running_loop().create_future(), begin, begin + seconds, model)
        model.queue.append(job)
        async with self._news:
            self._news.notify()
        try:
            async with asyncio.timeout_at(job.until):
                return await job.result, wanted
        except TimeoutError as error:
            raise Refusal(HTTPStatus.GATEWAY_TIMEOUT, f"no result within {seconds:g} s; ask for less, or allow more") from error

    async def _work(self, worker: Worker) -> None:
        while True:
            jobs = await self._next()
            model, begin = jobs[0].model, self._now()
            try:
                self.metrics.batches.labels(*model.place).observe(len(jobs))
                answers = await self._run(worker, "run", model.key, jobs[0].wanted, [job.feeds for job in jobs])
                for job, answer in zip(jobs, answers):
                    _settle(job, answer[1] if answer[0] == "done" else _told(answer))
            except WorkerGone:
                log.error("a worker has ended", extra={"worker": worker.number, "model": model.entry.model})
                gone = Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "the process that ran the request has ended; ask again")
                for job in jobs:
                    _settle(job, gone)
            except TscError as error:
                for job in jobs:
                    _settle(job, refusal_of(error))
            finally:
                model.ran(jobs, self._now() - begin)

    async def _run(self, worker: Worker, *request: Any) -> Any:
        """What a worker says to a request. One that runs when nobody waits for it any more is ended with its process: what a
        request asks for may have no end."""
        task = asyncio.ensure_future(worker.ask(*request))
        try:
            await asyncio.wait({task}, timeout=self.options.deadline + _LATE)
        finally:
            if not task.done():
                worker.kill()
        return await task

    async def _next(self) -> list[Job]:
        """The requests that run next, as soon as there are some."""
        while True:
            async with self._news:
                waiting = [model for model in self._all() if model.queue]
                if not waiting:
                    await self._news.wait()
                    continue
                first = min(waiting, key=lambda model: model.due(self._now()))
                late = first.due(self._now()) - self._now()
                if late <= 0:
                    if jobs := first.taken(self.options.run_bytes):
                        return jobs
                    continue
                try:
                    await asyncio.wait_for(self._news.wait(), late)
                except TimeoutError:
                    continue


def _told(answer: tuple[Any, ...]) -> Refusal:
    _, whose, why = answer
    return refusal_of(InputError(why) if whose == "theirs" else TscError(why))


def _settle(job: Job, result: list[Array] | Refusal) -> None:
    """Give a request its result, where somebody still waits for it."""
    if job.result.done():
        return
    if isinstance(result, Refusal):
        job.result.set_exception(result)
    else:
        job.result.set_result(result)

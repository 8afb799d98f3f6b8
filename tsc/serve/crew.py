"""The processes that run models: asked one thing at a time, replaced where one has ended."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tsc.errors import LaunchError, PackageError, TscError
from tsc.frames import read_frame, start, write_frame
from tsc.serve.errors import WorkerGone

MODULE = "tsc.serve.worker"
#: What a worker is asked to load: the entry, threads, trust.
Load = tuple[Any, ...]


class Worker:
    """One process and what it has loaded. What is asked of it waits for what was asked before."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.restarts = 0
        self._lock = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, f"tsc-worker-{number}")
        self._process: subprocess.Popen[bytes] | None = None
        self._loaded: dict[str, Load] = {}

    @property
    def pid(self) -> int:
        """The process's number, 0 where there is none."""
        return 0 if self._process is None else self._process.pid

    async def load(self, key: str, load: Load) -> None:
        """Have a model, now and after a restart. Raises PackageError where that cannot be read."""
        async with self._lock:
            await self._ask("load", key, *load)
            self._loaded[key] = load

    async def unload(self, key: str) -> None:
        """Let go of a model."""
        async with self._lock:
            if self._loaded.pop(key, None) is not None:
                await self._ask("unload", key)

    async def ask(self, *request: Any) -> Any:
        """What the process says to a request. Raises WorkerGone where it ends over it; the next request finds a new one."""
        async with self._lock:
            return await self._ask(*request)

    async def _ask(self, *request: Any) -> Any:
        await self._alive()
        answer = await self._exchange(request)
        if answer[0] == "wrong":
            raise PackageError(answer[2])
        return answer[1]

    async def _alive(self) -> None:
        """Start the process where it does not run, with all that it had loaded."""
        if self._process is not None and self._process.poll() is None:
            return
        if self._process is not None:
            self.restarts += 1
            self._process.communicate()
        try:
            self._process = start(MODULE)
        except OSError as error:
            raise LaunchError(f"no process can be started to run models ({error})") from error
        for key, load in self._loaded.items():
            await self._exchange(("load", key, *load))

    async def _exchange(self, request: tuple[Any, ...]) -> tuple[Any, ...]:
        process = self._process
        assert process is not None
        return await asyncio.get_running_loop().run_in_executor(self._thread, _exchanged, process, request)

    def kill(self) -> None:
        """End the process, whatever it does: who asked it is told so, and the next request finds a new one."""
        if self._process is not None:
            self._process.kill()

    async def end(self) -> None:
        """End the process. Nothing may be asked any more."""
        async with self._lock:
            process, self._process = self._process, None
            if process is not None:
                process.kill()
                process.communicate()
            self._thread.shutdown()

    async def memory(self) -> int:
        """The bytes that the process has to itself; 0 where it does not say."""
        try:
            return int(await self.ask("memory"))
        except (WorkerGone, TscError):
            return 0

    @property
    def loaded(self) -> Mapping[str, Load]:
        """What it has, by key."""
        return self._loaded


def _exchanged(process: subprocess.Popen[bytes], request: tuple[Any, ...]) -> tuple[Any, ...]:
    assert process.stdin is not None and process.stdout is not None
    try:
        write_frame(process.stdin, pickle.dumps(request, pickle.HIGHEST_PROTOCOL))
        frame = read_frame(process.stdout)
    except OSError:
        frame = None
    if frame is None:
        process.kill()
        process.wait()
        raise WorkerGone(f"process {process.pid} has ended")
    answer: tuple[Any, ...] = pickle.loads(frame)
    return answer

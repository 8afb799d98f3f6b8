"""A pool of processes that compile with NVRTC, and what identifies the NVRTC they use."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import queue
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from tsc.config import child_environment
from tsc.errors import LaunchError
from tsc.frames import read_frame, write_frame
from tsc.threads import mapped

_MODULE = "tsc.codegen_cuda.nvrtc_worker"
_HOW = "`pip install tsc-compiler[cuda]` brings it"
#: The wheels that hold NVRTC, and the one that calls it.
_WHEELS = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12", "cuda-bindings")
#: The status of a process that is no more.
DIED = -1


@dataclass(frozen=True, slots=True)
class Job:
    """One source for one architecture: what NVRTC is given."""

    name: str
    text: str
    headers: Mapping[str, str]
    flags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What NVRTC made of a Job: `status` 0 and a cubin, or a status, its `message` and no cubin; the log either way."""

    status: int
    message: str
    log: str
    cubin: bytes


def available() -> bool:
    """Whether NVRTC can be asked for at all: its Python binding is installed."""
    try:
        return importlib.util.find_spec("cuda.bindings.nvrtc") is not None
    except ModuleNotFoundError:
        return False


@cache
def identity() -> str:
    """What tells this NVRTC's output from another's. Raises LaunchError where there is none."""
    if not available():
        raise LaunchError(f"no CUDA compiler was found (cuda.bindings is not installed); {_HOW}")
    versions = []
    for wheel in _WHEELS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{wheel} {importlib.metadata.version(wheel)}")
    if len(versions) == 1:  # the binding alone: NVRTC is the system's, and knows its version itself
        with _Worker() as worker:
            versions.append(f"nvrtc {worker.version}")
    return ", ".join(versions)


def compile_all(jobs: Sequence[Job], processes: int) -> list[Answer]:
    """Compile every job, `processes` at a time; answers in the order of the jobs. Raises LaunchError where NVRTC cannot be
    started. A process that dies has the job once more (NVRTC 13 crashed once over a text that it compiled when asked again);
    where it dies again, that is an answer with a status of its own, not an error here."""
    if not jobs:
        return []
    idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
    with contextlib.ExitStack() as stack:
        count = max(1, min(processes, len(jobs)))
        workers = [stack.enter_context(_Worker()) for _ in range(count)]
        for worker in workers:
            idle.put(worker)

        def run(job: Job) -> Answer:
            worker = idle.get()
            try:
                answer = worker.compile(job)
                return worker.compile(job) if answer.status == DIED else answer
            finally:
                idle.put(worker)

        return mapped(count, run, jobs)


class _Worker:
    """One process. It is started at once and greets when first used, so that several start side by side."""

    def __init__(self) -> None:
        self._process = self._start()
        self._greeted: str | None = None

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    @property
    def version(self) -> str:
        """NVRTC's own version. Raises LaunchError where the process could not load it."""
        if self._greeted is None:
            greeting = read_frame(self._output)
            if greeting is None:
                reason = (self._stop() or "no message").splitlines()[-1]
                raise LaunchError(f"the CUDA compiler NVRTC cannot be loaded ({reason}); {_HOW}")
            self._greeted = str(json.loads(greeting)["version"])
        return self._greeted

    def compile(self, job: Job) -> Answer:
        """Compile one job. Where the process dies of it, a new one takes its place."""
        _ = self.version
        request = {"name": job.name, "text": job.text, "headers": dict(job.headers), "flags": job.flags}
        with contextlib.suppress(BrokenPipeError):
            write_frame(self._input, json.dumps(request).encode())
            head, cubin = read_frame(self._output), read_frame(self._output)
            if head is not None and cubin is not None:
                answer: dict[str, Any] = json.loads(head)
                return Answer(answer["status"], answer["message"], answer["log"], cubin)
        reason = self._stop()
        status = self._process.returncode
        self._process, self._greeted = self._start(), None
        return Answer(DIED, f"the compiler process died with status {status}", reason, b"")

    def _start(self) -> subprocess.Popen[bytes]:
        # The same modules are to be found there as here, however they were found here, and nothing of the working directory.
        paths = os.pathsep.join(path for path in sys.path if path)
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", _MODULE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=child_environment({"PYTHONPATH": paths}))
        assert process.stdin is not None and process.stdout is not None
        self._input, self._output = process.stdin, process.stdout
        return process

    def _stop(self) -> str:
        """End the process. Returns what it wrote to standard error."""
        try:
            return self._process.communicate(timeout=10)[1].decode(errors="replace").strip()
        except (ValueError, BrokenPipeError):  # its pipes are closed already
            return ""
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.communicate()[1].decode(errors="replace").strip()

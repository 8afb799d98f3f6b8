"""A process that runs models for the server: `python -m tsc serve` starts some, and asks them by frames.

Requests: ("load", key, entry, threads, trust), ("unload", key), ("run", key, wanted, feeds) of several requests, ("memory",).
Answers: ("done", what was asked for), or ("wrong", whose fault, why). A run's is a list of such, one a request.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tsc.errors import InputError, PackageError, TscError
from tsc.frames import read_frame, write_frame
from tsc.runtime.executable import Executable
from tsc.runtime.load import load
from tsc.runtime.memory import Array

Feeds = Mapping[str, Array]
#: ("done", a value), or ("wrong", "theirs" | "ours", a sentence).
Answer = tuple[Any, ...]


def resident_bytes() -> int:
    """The memory of this process that no other one shares, as far as the system says."""
    resident, shared = map(int, Path("/proc/self/statm").read_text(encoding="ascii").split()[1:3])
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


class Models:
    """What has been loaded, by key."""

    def __init__(self) -> None:
        self._loaded: dict[str, Executable] = {}

    def answer(self, request: tuple[Any, ...]) -> Answer:
        """Do what is asked."""
        try:
            return "done", self._done(request)
        except TscError as error:
            return _wrong(error)

    def _done(self, request: tuple[Any, ...]) -> Any:
        match request:
            case "load", key, entry, threads, trust:
                found = load(entry.path, threads, "shared", trust)
                if not entry.is_current():
                    raise PackageError(f"Package '{entry.path}' was replaced; ask again")
                self._loaded[key] = found
                return None
            case "unload", key:
                self._loaded.pop(key, None)
                return None
            case "run", key, wanted, feeds:
                if key not in self._loaded:  # as after a restart, where its file is another one by now
                    raise PackageError(f"model '{key}' is not loaded any more; ask again")
                return run(self._loaded[key], wanted, feeds)
            case ("memory",):
                return resident_bytes()
        raise ValueError(f"no request is {request[0]!r}")


def run(model: Executable, wanted: Sequence[int], feeds: Sequence[Feeds]) -> list[Answer]:
    """An answer for each of some requests, of the outputs of these numbers; what one of them did wrong is for it alone."""
    names = [model.outputs[number].name for number in wanted]
    found = model.run_many(names, feeds, return_exceptions=True) if names else [[] for _ in feeds]
    return [_wrong(own) if isinstance(own, TscError) else ("done", own) for own in found]


def _wrong(error: TscError) -> Answer:
    return "wrong", "theirs" if isinstance(error, InputError) else "ours", str(error)


def serve() -> None:
    """Answer requests from standard input until it ends."""
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed is no answer
    models = Models()
    while (frame := read_frame(source)) is not None:
        write_frame(sink, pickle.dumps(models.answer(pickle.loads(frame)), pickle.HIGHEST_PROTOCOL))

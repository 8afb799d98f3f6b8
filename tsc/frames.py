"""Frames: how a process talks with those that work for it. 8 bytes of length (little endian), then the content.

A child is a plain one that is asked on its standard input: nothing is forked from a process that may have threads, and no main
module is run a second time.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tsc.config import child_environment

_MAIN = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from MODULE import serve; serve()"
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def start(module: str) -> subprocess.Popen[bytes]:
    """A process that runs `serve` of a module, with the modules that this one would find. Raises OSError where there is none
    to be had."""
    if not sys.executable:  # as where Python is embedded
        raise OSError("it is not known where Python is")
    path = [str(Path(__file__).parent.parent), *(entry for entry in sys.path if entry and isinstance(entry, str))]
    command = [sys.executable, "-c", _MAIN.replace("MODULE", module), json.dumps(path)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                            env=child_environment(_ONE_THREAD), start_new_session=True)


@contextmanager
def spawned(module: str) -> Iterator[subprocess.Popen[bytes]]:
    """The same, killed at the end where it has not ended."""
    child = start(module)
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def read_frame(stream: IO[bytes]) -> bytes | None:
    """The next frame, or None where the stream ends, within a frame too."""
    head = stream.read(8)
    if len(head) < 8:
        return None
    length = int.from_bytes(head, "little")
    body = stream.read(length)
    return body if len(body) == length else None


def write_frame(stream: IO[bytes], body: bytes) -> None:
    """Send one frame at once."""
    stream.write(len(body).to_bytes(8, "little") + body)
    stream.flush()

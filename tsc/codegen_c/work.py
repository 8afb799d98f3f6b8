"""Folders to build in: gone when the build is, and those of killed builds gone with the next."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tsc.errors import LaunchError
from tsc.runtime.files import machine_fault

_PREFIX = "tsc-build-"
#: Seconds between making a folder and locking it, generously: a younger one is left alone.
_YOUNG = 60.0


@contextmanager
def work_folder() -> Iterator[Path]:
    """A folder of one's own in the system's temporary one (TMPDIR). Raises LaunchError where there is none, also for what its
    user finds no room for.

    Its owner holds a lock on it as long as it lives, so that whoever builds next knows which folders nobody needs any more.
    """
    try:
        _sweep(Path(tempfile.gettempdir()))
        with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as name:
            lock = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
            try:
                with suppress(OSError):  # a file system without locks
                    fcntl.flock(lock, fcntl.LOCK_EX)
                yield Path(name)
            finally:
                os.close(lock)
    except OSError as error:
        what = "cannot build in the folder for temporary files"
        raise machine_fault(error, what) or LaunchError(
            f"{what} ({error.strerror or error}); set TMPDIR to a folder with room that can be written") from error


def _sweep(folder: Path) -> None:
    """Remove the folders of builds that were killed."""
    for path in folder.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            found = path.lstat()
            if found.st_uid != os.getuid() or time.time() - found.st_mtime < _YOUNG or not path.is_dir() or path.is_symlink():
                continue
            lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # OSError where its owner lives
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)

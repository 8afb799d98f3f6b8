"""Files as the runtime meets them: regular ones only, written whole or not at all; and what a machine's faults are called."""

from __future__ import annotations

import errno
import io
import mmap
import os
import secrets
import stat
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc.errors import LaunchError, PackageError

Chunk = bytes | memoryview
#: Bytes of the longest text that is read whole: records of a thousand kernels take a tenth of it.
MOST_TEXT = 1 << 32
#: What is the machine's fault and not that of the path given, and what helps.
_ADVICE = {
    errno.ENOSPC: "free some space there", errno.EDQUOT: "free some space there", errno.EIO: "check the disk",
    errno.EMFILE: "let this process open more files (ulimit -n)", errno.ENFILE: "close files of other processes",
    errno.ENOMEM: "free some memory", errno.EAGAIN: "let this user run more processes (ulimit -u)"}


def machine_fault(error: OSError, what: str) -> LaunchError | None:
    """The LaunchError that says what to do where `error` is the machine's (no room, no descriptors, no memory), else None;
    `what` could not be done."""
    advice = _ADVICE.get(error.errno or 0)
    return None if advice is None else LaunchError(f"{what}: {os.strerror(error.errno or 0)}; {advice}")


def as_path(path: Any) -> Path:
    """`path` as a Path. Raises PackageError for what no path can be."""
    try:
        found = Path(os.fsdecode(path))
    except (TypeError, ValueError) as error:
        raise PackageError(f"a path is a str or a Path, not {path!r}; give the name of a file") from error
    if "\0" in str(found):
        raise PackageError(f"a path has no zero byte, but {str(found)!r} has; give the name of a file")
    return found


def open_regular(path: Path) -> io.FileIO:
    """A regular file, open for reading, without a buffer. Raises OSError: EINVAL, at once, for a FIFO, device or socket."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(code, os.strerror(code) if code == errno.EISDIR else "not a regular file", str(path))
    return io.FileIO(descriptor, "rb")


def read_regular(path: Path, most: int = MOST_TEXT) -> bytes:
    """All of a regular file. Raises OSError: EINVAL as `open_regular`, EFBIG for more than `most` bytes, before any is read."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"it has {size} bytes, more than the {most} that can be read", str(path))
        return file.read()


# -- writing ---------------------------------------------------------------------------------------------------------

def write_atomically(path: Path, chunks: Iterable[Chunk], *, durable: bool = True) -> None:
    """Write `chunks` to `path` so that it is there whole, or as it was before: also when the process is killed.

    The data is written without a name where the file system allows it (O_TMPFILE), so that a kill leaves nothing behind. A file
    that was there gives the new one its permissions; a new one has those that the umask leaves. `durable` waits until the disk
    has it. Raises PackageError where `path` is no regular file, is read-only or cannot be written, LaunchError where the
    machine has no room or no descriptors.
    """
    try:
        path = path.resolve()
        mode = _mode_of(path)
        spare = f".{path.name}.{secrets.token_hex(8)}.tmp"
        folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            descriptor, named = _open_unnamed(path.parent / spare)
            try:
                with os.fdopen(descriptor, "wb", buffering=0) as file:
                    if mode is not None:
                        os.fchmod(file.fileno(), mode)
                    for chunk in chunks:
                        _write_all(file, chunk)
                    if durable:
                        os.fsync(file.fileno())
                    if not named:  # the folder's descriptor makes it linkat(), which alone follows the link in /proc
                        os.link(f"/proc/self/fd/{file.fileno()}", spare, dst_dir_fd=folder, follow_symlinks=True)
                os.replace(path.parent / spare, path)
            finally:
                (path.parent / spare).unlink(missing_ok=True)
            if durable:
                os.fsync(folder)
        finally:
            os.close(folder)
    except (OSError, RuntimeError) as error:  # a RuntimeError is a loop of links
        known = machine_fault(error, f"cannot write '{path}'") if isinstance(error, OSError) else None
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise known or PackageError(f"cannot write '{path}' ({why}); choose a writable place with enough room") from error


def _mode_of(path: Path) -> int | None:
    """The permissions of the file at `path`, None where there is none. Raises PackageError where it must not be replaced."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise PackageError(f"cannot write '{path}': it is a device, FIFO or socket, which is not replaced; choose another path")
    if not mode & 0o222 or not os.access(path, os.W_OK):
        raise PackageError(f"cannot write '{path}': it is read-only; choose another path or make it writable")
    return mode & 0o777


def _open_unnamed(spare: Path) -> tuple[int, bool]:
    """A new file in the folder of `spare`: without a name, or under that one (True) where there must be a name."""
    if hasattr(os, "O_TMPFILE") and Path("/proc/self/fd").exists():
        try:
            return os.open(spare.parent, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666), False
        except OSError:
            pass  # a file system without O_TMPFILE: a hidden name does, and is removed on errors
    return os.open(spare, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666), True


def _write_all(file: Any, chunk: Chunk) -> None:
    rest = memoryview(chunk)
    rest = rest.cast("B") if rest.nbytes else memoryview(b"")
    while rest.nbytes:
        rest = rest[file.write(rest):]


# -- mapping ---------------------------------------------------------------------------------------------------------

class MappedFile:
    """A file mapped for reading, whose bytes were checked when it was opened. Whoever shortens it or writes into it afterwards
    takes the ground from under its readers, so that each asks `check` first."""

    def __init__(self, file: io.FileIO, path: Path) -> None:
        self.path = path
        self._descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._descriptor).atexit = False
        self._state = self._now()
        self.data: NDArray[np.uint8] = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)

    def _now(self) -> tuple[int, int]:
        found = os.fstat(self._descriptor)
        return found.st_size, found.st_mtime_ns

    def check(self) -> None:
        """Raise PackageError where the file has been changed in place. A file put in its place by a rename is another one and
        does no harm."""
        if self._now() != self._state:
            raise PackageError(f"Package '{self.path}' was changed while weights=\"shared\" had it in use; load it again, and "
                               "replace such files by renaming a new one over them")

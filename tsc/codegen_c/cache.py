"""A content-addressed cache of bytes on disk, safe under concurrent processes and a kill at any moment.

An entry is a file named by the hash of everything that determines it. It is written to a temporary file in the same folder and
renamed into place, so it is there whole or not at all; every read verifies a checksum, and a damaged entry counts as absent.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from tsc.errors import LaunchError

_MAGIC = b"tsc-cache-1\n"


def default_cache_dir() -> Path:
    """The user's cache folder of `tsc`."""
    return platformdirs.user_cache_path("tsc")


def digest(*parts: str | bytes) -> str:
    """A hex key of all parts in order; ("ab", "c") and ("a", "bc") differ."""
    state = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.hexdigest()


@dataclass(frozen=True, slots=True)
class CompiledCache:
    """Key -> bytes. `folder` is made when first written to; with None nothing is ever found or kept."""

    folder: Path | None

    def get(self, key: str) -> bytes | None:
        """The entry, or None where it is absent or damaged (a damaged one is removed)."""
        if self.folder is None:
            return None
        path = self._path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        head = len(_MAGIC) + 32
        body = data[head:]
        if data[:len(_MAGIC)] == _MAGIC and data[len(_MAGIC):head] == hashlib.sha256(body).digest():
            return body
        path.unlink(missing_ok=True)
        return None

    def put(self, key: str, body: bytes) -> None:
        """Keep `body`. Raises LaunchError where the folder cannot be written."""
        if self.folder is None:
            return
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(_MAGIC + hashlib.sha256(body).digest() + body)
                os.replace(temporary, path)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise LaunchError(f"cannot write the cache '{self.folder}' ({error.strerror}); give another cache folder "
                              f"(TSC_CACHE or Options.cache_dir) or turn the cache off") from error

    def _path(self, key: str) -> Path:
        assert self.folder is not None
        return self.folder / key[:2] / key[2:]

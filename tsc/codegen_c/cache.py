"""A content-addressed cache of bytes on disk, safe under concurrent processes and a kill at any moment.

An entry is a file named by the hash of everything that determines it. It is there whole or not at all, with the permissions
that the umask leaves, so that a folder may be shared; every read verifies a checksum over key and content, and a damaged or
misplaced entry counts as absent. What whole entries contain is for their users to judge: they `drop` one that they cannot use.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import platformdirs

from tsc.errors import LaunchError, PackageError
from tsc.runtime.files import open_regular, write_atomically

_MAGIC = b"tsc-cache-2\n"


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
    """Key -> bytes. `folder` is made when first written to; with None entries last as long as this object."""

    folder: Path | None
    _entries: dict[str, bytes] = field(default_factory=dict, repr=False, compare=False)

    def get(self, key: str) -> bytes | None:
        """The entry, or None where it is absent or damaged (a damaged one is removed)."""
        if self.folder is None:
            return self._entries.get(key)
        path = self._path(key)
        try:
            with open_regular(path) as file:
                data = file.readall()
        except OSError:
            return None
        head = len(_MAGIC) + 32
        body = data[head:]
        if data[:len(_MAGIC)] == _MAGIC and data[len(_MAGIC):head] == _checksum(key, body):
            return body
        self.drop(key)
        return None

    def put(self, key: str, body: bytes) -> None:
        """Keep `body`. Raises LaunchError where the folder cannot be written."""
        if self.folder is None:
            self._entries[key] = body
            return
        path = self._path(key)
        if self.get(key) == body:  # somebody was quicker, perhaps somebody whose files this user cannot replace
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, [_MAGIC, _checksum(key, body), body], durable=False)
        except (OSError, PackageError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise LaunchError(f"cannot write the cache '{self.folder}' ({why}); give another cache folder "
                              f"(TSC_CACHE or Options.cache_dir) or turn the cache off") from error

    def drop(self, key: str) -> bool:
        """Remove the entry; whether there was one that could be removed."""
        if self.folder is None:
            return self._entries.pop(key, None) is not None
        try:
            self._path(key).unlink()
            return True
        except OSError:
            return False

    def _path(self, key: str) -> Path:
        assert self.folder is not None
        return self.folder / key[:2] / key[2:]


def _checksum(key: str, body: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\0" + body).digest()

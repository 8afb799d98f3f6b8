"""The folder of models: which Packages are there, of which name and version.

    FOLDER/NAME.tscpack             version 1 of NAME; its settings, if any, in NAME.toml
    FOLDER/NAME/2/ANY.tscpack       version 2 of NAME; the settings of all its versions in NAME/model.toml
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tsc.errors import PackageError

SUFFIX = ".tscpack"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_VERSION = re.compile(r"[1-9][0-9]{0,17}")

#: What tells one state of a file from another: its number on the disk, its bytes, and when it was written.
Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """One version of a model: its Package, the file of its settings if there is one, and in what state both are."""

    model: str
    version: str
    path: Path
    settings: Path | None
    stamp: Stamp

    def is_current(self) -> bool:
        """Whether the files are as they were when it was found."""
        try:
            return self.stamp == _stamp(self.path, self.settings)
        except OSError:
            return False


def scan(folder: Path) -> dict[tuple[str, str], Entry]:
    """All that a folder has, by name and version. Hidden files and what has another form of name are left alone. Raises
    PackageError where the folder cannot be read."""
    try:
        return {(entry.model, entry.version): entry for entry in _entries(folder)}
    except OSError as error:
        raise PackageError(f"the models' folder '{folder}' cannot be read ({error.strerror}); name one that can") from error


def _entries(folder: Path) -> Iterator[Entry]:
    for item in sorted(folder.iterdir()):
        if item.suffix == SUFFIX and _NAME.fullmatch(item.stem) and item.is_file():
            yield from _entry(item.stem, "1", item, folder / f"{item.stem}.toml")
        elif _NAME.fullmatch(item.name) and item.is_dir():
            for below in sorted(item.iterdir()):
                found = sorted(below.glob(f"*{SUFFIX}")) if _VERSION.fullmatch(below.name) and below.is_dir() else []
                if len(found) == 1:  # of several nobody can tell which is meant
                    yield from _entry(item.name, below.name, found[0], item / "model.toml")


def _entry(model: str, version: str, path: Path, settings: Path) -> Iterator[Entry]:
    try:
        known = settings if settings.is_file() else None
        stamp = _stamp(path, known)
    except FileNotFoundError:  # it was taken away meanwhile
        return
    yield Entry(model, version, path, known, stamp)


def _stamp(*files: Path | None) -> Stamp:
    found = [file.stat() for file in files if file is not None]
    return tuple((state.st_ino, state.st_size, state.st_mtime_ns) for state in found)


def latest(versions: Iterator[str]) -> str | None:
    """The version that is meant where a request names none."""
    return max(versions, key=int, default=None)

"""Records of measurements: plain text, a line each, only ever appended to; what was measured once is never lost.

A line is JSON and is written by one call, under a lock, so that two jobs may share a file; one that was cut off is passed over.
The records of a group are all that a pool is made from: two builds from the same records are the same.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from filelock import FileLock

from tsc.config import Reduction
from tsc.errors import InputError, LaunchError
from tsc.poly.tile import TileConfig, config_from_json, config_to_json
from tsc.runtime import schema
from tsc.runtime.files import read_regular

VERSION = 1
#: Of a time, in nanoseconds: about an hour.
_MOST = 1 << 42


#: Sizes by name, in the order of names.
Place: TypeAlias = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Record:
    """One measurement: a group's Program (by its digest) with a config, on `units` units of a `target`, of which each has
    `resident` blocks at a time; the machine is called `machine`. At `sizes` it has so many `blocks` and does this `work`, and
    takes `nanoseconds`; None: it cannot be run, for a `reason`. It is `final` where the config was measured once more beside
    the others that seemed best: where a group has such records they alone count."""

    group: str
    target: str
    machine: str
    config: TileConfig
    sizes: Mapping[str, int]
    units: int = 1
    blocks: int = 0
    work: Mapping[str, int] | None = None
    nanoseconds: int | None = None
    reason: str = ""
    resident: int = 1
    final: bool = False


def place_of(sizes: Mapping[str, int]) -> Place:
    """Sizes as a key."""
    return tuple(sorted(sizes.items()))


def allowed(records: Iterable[Record], reduction: Reduction) -> list[Record]:
    """Those of configs that a kernel may have: reductions in chunks only where their order is not fixed."""
    return [record for record in records if reduction == "fast" or not record.config.chunk]


def to_line(record: Record) -> str:
    """One line that `from_line` reads back."""
    return json.dumps({
        "v": VERSION, "group": record.group, "target": record.target, "machine": record.machine,
        "config": json.loads(config_to_json(record.config)), "sizes": dict(record.sizes), "units": record.units,
        "resident": record.resident,
        "blocks": record.blocks, "work": dict(record.work or {}), "ns": record.nanoseconds, "reason": record.reason,
        **({"final": 1} if record.final else {})})


def from_line(text: str) -> Record:
    """What `to_line` wrote. Raises ValueError on anything else."""
    given = {"final": 0, **schema.table(schema.from_json(text.encode(), "a record"), "a record")}
    found = schema.table(given, "a record", (
        "v", "group", "target", "machine", "config", "sizes", "units", "resident", "blocks", "work", "ns", "reason", "final"))
    if found["v"] != VERSION:
        raise ValueError(f"a record has version {schema.shown(found['v'])}, expected {VERSION}")
    group, target, machine, reason = (
        schema.text(found[name], f"a record's {name}") for name in ("group", "target", "machine", "reason"))
    return Record(
        group, target, machine, config_from_json(json.dumps(found["config"])), _counts(found["sizes"], "a size"),
        schema.whole(found["units"], "units", 1), schema.whole(found["blocks"], "blocks"), _counts(found["work"], "work"),
        None if found["ns"] is None else schema.whole(found["ns"], "a time", 1, _MOST), reason,
        schema.whole(found["resident"], "resident blocks", 1), schema.whole(found["final"], "final", 0, 1) == 1)


def append(path: Path, records: Iterable[Record]) -> None:
    """Add lines to a file, made where there is none. Raises LaunchError where it cannot be written; then none, or the first of
    them, are in it whole."""
    data = "".join(f"{to_line(record)}\n" for record in records).encode()
    try:
        with FileLock(f"{path}.lock"), open(path, "ab+") as file:
            if file.tell() and not _ends_a_line(file.fileno(), file.tell()):
                data = b"\n" + data  # whoever wrote before was stopped in the middle
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        reason = f"cannot write records to '{path}' ({error.strerror}); free some space, or give another file"
        raise LaunchError(reason) from error


def read(path: Path) -> list[Record]:
    """The records of a file, those it has whole. Raises InputError where it cannot be read, or is no file of records."""
    try:
        text = read_regular(path).decode(errors="replace")
    except OSError as error:
        raise InputError(f"cannot read the records '{path}' ({error.strerror}); give another file") from error
    found = list(_whole(text))
    if text.strip() and not found:
        raise InputError(f"'{path}' has no records in it; give a file that tsc-tune wrote")
    return found


def by_group(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Records in their order, those of each group apart."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.group, []).append(record)
    return found


def _whole(text: str) -> Iterator[Record]:
    for line in text.splitlines():
        try:
            yield from_line(line)
        except ValueError:
            continue


def _ends_a_line(file: int, size: int) -> bool:
    return os.pread(file, 1, size - 1) == b"\n"


def _counts(value: Any, what: str) -> dict[str, int]:
    return {schema.text(name, what): schema.whole(count, what, schema.LEAST_NUMBER) for name, count in
            schema.table(value, what).items()}

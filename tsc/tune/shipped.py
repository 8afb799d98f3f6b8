"""Records that ship with tsc, by the class of machines that they were measured on.

A machine of no class that is here, and a kernel that is in no file, get the configs that patterns have by themselves.
`python -m benchmarks.ship` makes the files from what `tsc tune` has measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from tsc.codegen_c.specs import machine_class
from tsc.tune.pool import counted, cover, matrix_of
from tsc.tune.records import Record, allowed, by_group, from_line, to_line

FOLDER = Path(__file__).with_name("shipped")
#: A config that ships makes a mean size so much faster: each costs everybody time to compile.
WORTH = 0.02


def path_of(name: str, target: str) -> Path:
    """Where records of a class and a target are, if there are any."""
    return FOLDER / f"{name}-{target}.jsonl"


def shipped(machine: str, target: str, group: str) -> list[Record]:
    """What ships for a machine, a target and a group."""
    name = machine_class(machine)
    return [from_line(line) for line in _lines(path_of(name, target)).get(group, ())] if name else []


@lru_cache(maxsize=4)
def _lines(path: Path) -> Mapping[str, Sequence[str]]:
    """The lines of a file by group: a compile needs those of few."""
    found: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        found.setdefault(json.loads(line)["group"], []).append(line)
    return found


def kept(records: Iterable[Record], most: int) -> list[Record]:
    """The records worth shipping, of one class and target: of each group those of the few configs that make its pool, none
    where that is no more than the config that was measured first, the pattern's own."""
    found: list[Record] = []
    for _, own in sorted(by_group(allowed(records, "fixed")).items()):
        matrix = matrix_of(own, sorted({record.units for record in own}))
        if matrix is None:
            continue
        chosen = {matrix.configs[k] for k in cover(matrix.times, most, WORTH)}
        if chosen == {own[0].config}:
            continue
        wanted = {place for place, _ in matrix.columns}
        found += sorted((record for config, measured in counted(own).items() if config in chosen
                         for (place, _), record in measured.items() if place in wanted), key=to_line)
    return found

"""Records that ship with tsc, by the class of machines that they were measured on.

A machine of no class that is here, and a kernel that is in no file, get the configs that patterns have by themselves.
`python -m benchmarks.ship` makes the files from what `tsc tune` has measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from tsc.codegen_c.specs import machine_class
from tsc.tune.pool import cover, matrix_of
from tsc.tune.records import Record, by_group, place_of, read, to_line

FOLDER = Path(__file__).with_name("shipped")
#: A config that ships makes a mean size so much faster: each costs everybody time to compile.
WORTH = 0.02


def path_of(name: str, target: str) -> Path:
    """Where records of a class and a target are, if there are any."""
    return FOLDER / f"{name}-{target}.jsonl"


@lru_cache(maxsize=4)
def shipped(machine: str, target: str) -> Sequence[Record]:
    """What ships for a machine and a target."""
    name = machine_class(machine)
    path = path_of(name, target)
    return tuple(read(path)) if name and path.exists() else ()


def kept(records: Iterable[Record], most: int) -> list[Record]:
    """The records worth shipping, of one class and target: of each group those of the few configs that make its pool, none
    where that is no more than the config that was measured first, the pattern's own."""
    groups = by_group(records)
    found: list[Record] = []
    for group in sorted(groups):
        own = groups[group]
        matrix = matrix_of(own)
        if matrix is None:
            continue
        chosen = {matrix.configs[k] for k in cover(matrix.times, most, WORTH)}
        if chosen == {own[0].config}:
            continue
        wanted = {place for place, _ in matrix.columns}
        last = {(r.config, place_of(r.sizes)): r for r in own if r.config in chosen and r.nanoseconds is not None}
        found += sorted((r for (_, place), r in last.items() if place in wanted), key=to_line)
    return found

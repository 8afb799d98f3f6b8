"""Records that ship with tsc, by the class of machines that they were measured on.

Machines of no class that is here have the generic ones, which are of configs that differ from a pattern's own in their blocks
alone: how much is computed at a time is a matter of how often it is read, everywhere, whereas register tiles and distances of
prefetching are this machine's or that one's. A kernel that is in no file gets the config that its pattern has by itself.
`python -m benchmarks.ship` makes the files from what `tsc tune` has measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from tsc.codegen_c.specs import machine_class
from tsc.tune.pool import counted, cover, gained, matrix_of
from tsc.tune.records import Record, allowed, by_group, from_line, to_line

FOLDER = Path(__file__).with_name("shipped")
#: A config that ships makes a mean size so much faster: each costs everybody time to compile.
WORTH = 0.02
#: What the files of other machines are called.
GENERIC = "generic"


def path_of(name: str, target: str) -> Path:
    """Where records of a class and a target are, if there are any."""
    return FOLDER / f"{name}-{target}.jsonl"


def shipped(machine: str, target: str, group: str) -> list[Record]:
    """What ships for a machine, a target and a group."""
    path = path_of(machine_class(machine) or GENERIC, target)
    return [from_line(line) for line in _lines(path if path.exists() else path_of(GENERIC, target)).get(group, ())]


@lru_cache(maxsize=4)
def _lines(path: Path) -> Mapping[str, Sequence[str]]:
    """The lines of a file by group: a compile needs those of few."""
    found: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        found.setdefault(json.loads(line)["group"], []).append(line)
    return found


def of_blocks(records: Iterable[Record]) -> list[Record]:
    """Those of configs that differ from the one that was measured first of their group in their blocks alone."""
    found: list[Record] = []
    for own in by_group(records).values():
        first = own[0].config
        found += [r for r in own
                  if replace(r.config, block_tile=first.block_tile, row_tile=first.row_tile, raster=first.raster) == first]
    return found


def kept(records: Iterable[Record], most: int) -> list[Record]:
    """The records worth shipping, of one class and target: of each group those of the few configs that make its pool, none
    where these are not worth more than the config that was measured first, the pattern's own."""
    found: list[Record] = []
    for _, own in sorted(by_group(allowed(records, "fixed")).items()):
        matrix = matrix_of(own, sorted({record.units for record in own}))
        if matrix is None:
            continue
        rows = cover(matrix.times, most, WORTH)
        chosen, first = {matrix.configs[k] for k in rows}, own[0].config
        if first in matrix.configs and gained(matrix, rows, matrix.configs.index(first)) < WORTH:
            continue
        wanted = {place for place, _ in matrix.columns}
        found += sorted((record for config, measured in counted(own).items() if config in chosen
                         for (place, _), record in measured.items() if place in wanted), key=to_line)
    return found

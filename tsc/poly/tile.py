"""TileConfig: the sizes of a schedule, and the analytic choice of them from a DeviceSpec."""

from __future__ import annotations

from dataclasses import dataclass

from tsc.poly.pattern import Contraction, Staged
from tsc.target import DeviceSpec
from tsc.te.expr import loads

#: Elements that one block of an injective kernel should cover, and the extent taken for a symbolic axis to get there.
BLOCK_ELEMENTS, ASSUMED_EXTENT = 8192, 128


@dataclass(frozen=True, slots=True)
class TileConfig:
    """Tile sizes. A contraction has `block_tile` (rows, columns), a multiple of its register tile `instr_tile` (rows, columns);
    stages have `row_tile`, one size for each row."""

    instr_tile: tuple[int, int] = (1, 1)
    block_tile: tuple[int, int] = (1, 1)
    row_tile: tuple[int, ...] = ()


def default_config(found: Contraction | Staged, spec: DeviceSpec) -> TileConfig:
    """The tile sizes for a matched pattern on a device, without tuning."""
    return _contraction(found, spec) if isinstance(found, Contraction) else TileConfig(row_tile=_rows(found, spec))


def _contraction(found: Contraction, spec: DeviceSpec) -> TileConfig:
    sizes = {a.name: a.extent.as_int() for a in found.anchor.axes}
    lanes = max(1, spec.vector_bytes // 4)
    mr, nr = spec.instr_tile
    n, m = sizes[found.n], 1 if found.m is None else sizes[found.m]
    panels = [load.buffer.panel for load in loads(found.n_factor) if load.buffer.panel is not None]
    if panels:
        nr = panels[0][1]
    elif n is not None and n < nr:
        nr = -(-n // lanes) * lanes
    mr = min(mr * (spec.instr_tile[1] // nr), 2 * mr) if nr < spec.instr_tile[1] else mr  # narrow tiles: as many accumulators
    mr = mr if m is None else min(mr, m)
    wide = 128 if m is None else min(128, -(-m // mr) * mr)
    columns = 2 * nr if n is None or n > nr else nr
    return TileConfig((mr, nr), (max(1, wide // mr) * mr, columns))


def _rows(found: Staged, spec: DeviceSpec) -> tuple[int, ...]:
    extents = [a.extent.as_int() for a in found.anchor.axes]
    if found.reducing:
        if found.across:
            return (1,) * (len(extents) - 1) + (max(16, spec.vector_bytes),)
        wide = [i for i, e in enumerate(extents) if e != 1]
        return tuple(4 if wide and i == wide[-1] else 1 for i in range(len(extents)))
    budget, tiles = BLOCK_ELEMENTS, []
    for position, extent in enumerate(reversed(extents)):
        size = min(extent or (budget if len(extents) == 1 else 1024 if position == 0 else ASSUMED_EXTENT), budget)
        tiles.append(max(1, size))
        budget //= max(1, min(size, extent or ASSUMED_EXTENT))
    return tuple(reversed(tiles))

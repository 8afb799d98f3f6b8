"""TileConfig: the sizes of a schedule, and the analytic choice of them from a DeviceSpec."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

from tsc.poly.chain import Chained
from tsc.poly.pattern import Contraction, Staged
from tsc.poly.stencil import Stencil
from tsc.target import DeviceSpec
from tsc.te.expr import Load, loads

#: Elements that one block of an injective kernel should cover, and the extent taken for a symbolic axis to get there.
BLOCK_ELEMENTS, ASSUMED_EXTENT = 8192, 128
#: Rows of a contraction's block whose column operand is more than one load.
TALL_BLOCK = 512
#: Rows of a stencil's block, and vectors of one of its register tiles.
STENCIL_ROWS, STENCIL_TILE = 16, (2, 4)
#: Rows that one block of a chain takes at most, and the columns taken for a symbolic extent when its strips are counted.
CHAIN_ROWS, ASSUMED_COLUMNS = 128, 512


@dataclass(frozen=True, slots=True)
class TileConfig:
    """Tile sizes. A contraction has `block_tile` (rows, columns), a multiple of its register tile `instr_tile` (rows, columns);
    stages have `row_tile`, one size for each row, and those that are contractions a register tile each in `stage_tiles`. Of a
    stencil's register tile `lanes` columns are computed together, all of them where it is 0."""

    instr_tile: tuple[int, int] = (1, 1)
    block_tile: tuple[int, int] = (1, 1)
    row_tile: tuple[int, ...] = ()
    stage_tiles: tuple[tuple[int, int], ...] = ()
    lanes: int = 0


def default_config(found: Contraction | Chained | Staged, spec: DeviceSpec) -> TileConfig:
    """The tile sizes for a matched pattern on a device, without tuning."""
    match found:
        case Stencil():
            return _stencil(found, spec)
        case Contraction():
            return _contraction(found, spec)
        case Chained():
            return _chained(found, spec)
    return TileConfig(row_tile=_rows(found, spec))


def _contraction(found: Contraction, spec: DeviceSpec) -> TileConfig:
    m, n = _extents(found)
    mr, nr = _register_tile(found, spec)
    # a panel is copied for each block: blocks are tall where it takes more than reading elements as they stand
    most = 128 if isinstance(found.n_factor, Load) else TALL_BLOCK
    wide = most if m is None else min(most, -(-m // mr) * mr)
    columns = 2 * nr if (n is None or n > nr) and most < TALL_BLOCK else nr
    return TileConfig((mr, nr), (max(1, wide // mr) * mr, columns))


def _stencil(found: Stencil, spec: DeviceSpec) -> TileConfig:
    """A register tile is a run of outputs in neighbouring rows, a block as wide and some rows high."""
    lanes = max(1, spec.vector_bytes // 4)
    m, n = _extents(found)
    rows, vectors = STENCIL_TILE
    nr = vectors * lanes if n is None else min(vectors, -(-n // lanes)) * lanes
    mr = rows if m is None else min(rows, m)
    return TileConfig((mr, nr), (mr if m == 1 else STENCIL_ROWS // mr * mr, nr), lanes=lanes)


def _chained(found: Chained, spec: DeviceSpec) -> TileConfig:
    """Row tiles whose strips (what the contractions leave for other stages) fill half of the cache that a block should fit."""
    tiles = tuple(_register_tile(c, spec) for c in found.contractions)
    rows = [1] * len(found.matrix.names)
    if found.m is not None:
        strips = sum(4 * (_extents(c)[1] or ASSUMED_COLUMNS) for c in found.contractions[:-1]) or 4 * ASSUMED_COLUMNS
        together = lcm(*(mr for mr, _ in tiles))
        most = min(CHAIN_ROWS, spec.l2_bytes // 2 // strips)
        rows[found.m] = max(1, most // together) * together
    return TileConfig(row_tile=tuple(rows), stage_tiles=tiles)


def _extents(found: Contraction) -> tuple[int | None, int | None]:
    """The constant extents of m and n, None where they are symbolic; 1 where there is no m."""
    sizes = {a.name: a.extent.as_int() for a in found.anchor.axes}
    return 1 if found.m is None else sizes[found.m], sizes[found.n]


def _register_tile(found: Contraction, spec: DeviceSpec) -> tuple[int, int]:
    lanes = max(1, spec.vector_bytes // 4)
    mr, nr = spec.instr_tile
    m, n = _extents(found)
    panels = [load.buffer.panel for load in loads(found.n_factor) if load.buffer.panel is not None]
    if panels:
        nr = panels[0][1]
    elif n is not None and n < nr:
        nr = -(-n // lanes) * lanes
    mr = min(mr * (spec.instr_tile[1] // nr), 2 * mr) if nr < spec.instr_tile[1] else mr  # narrow tiles: as many accumulators
    return mr if m is None else min(mr, m), nr


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

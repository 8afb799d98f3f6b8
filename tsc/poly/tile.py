"""TileConfig: the sizes of a schedule. Those that a pattern takes without tuning are in its own module."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TileConfig:
    """Tile sizes. A contraction has `block_tile` (rows, columns), a multiple of its register tile `instr_tile` (rows, columns);
    stages have `row_tile`, one size for each row, and those that are contractions a register tile each in `stage_tiles`. Of a
    stencil's register tile `lanes` columns are computed together, all of them where it is 0.

    On a GPU both have a third size, along k, and a block is cut into `warp_tile` (rows, columns), a warp each; `stages` of
    shared tiles are in flight.
    """

    instr_tile: tuple[int, ...] = (1, 1)
    block_tile: tuple[int, ...] = (1, 1)
    row_tile: tuple[int, ...] = ()
    stage_tiles: tuple[tuple[int, int], ...] = ()
    lanes: int = 0
    warp_tile: tuple[int, int] = (1, 1)
    stages: int = 1

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return self.block_tile[0] // self.warp_tile[0] * (self.block_tile[1] // self.warp_tile[1])

"""The cycles that a launch needs at least, if one part of a GPU after the other were all that it waits for."""

from __future__ import annotations

from dataclasses import dataclass, fields

from tsc.errors import InternalError
from tsc.runtime.launch_frame import WARP
from tsc.sol.counted import Counted
from tsc.sol.loops import Executed
from tsc.target import GpuLimits, GpuSpeed


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a launch: what it does, the instructions that it executes, of what kind its matrix instructions are ("":
    there are none), and its warps."""

    counted: Counted
    executed: Executed
    matrix: str
    warps: int


@dataclass(frozen=True, slots=True)
class Grid:
    """The `blocks` of a launch, of which a multiprocessor holds `resident` at a time, and the bytes of all its buffers."""

    blocks: int
    resident: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Cycles:
    """Cycles for each part: those of the multiprocessor with most blocks, and of what all have together; 0 of an L2 of which
    nothing is documented."""

    tensor: float = 0
    shared: float = 0
    issue: float = 0
    l2: float = 0
    dram: float = 0

    @property
    def most(self) -> float:
        """The bound: no run takes fewer."""
        return max(self.parts.values())

    @property
    def part(self) -> str:
        """The part that is the bound."""
        return max(self.parts, key=self.parts.__getitem__)

    @property
    def parts(self) -> dict[str, float]:
        """The cycles by their names."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def waves(grid: Grid, limits: GpuLimits) -> float:
    """How many times the blocks fill the device."""
    return grid.blocks / (limits.multiprocessors * max(1, grid.resident))


def cycles(block: Block, grid: Grid, limits: GpuLimits, speed: GpuSpeed, cached: bool = False) -> Cycles:
    """The cycles of a launch whose blocks are all alike. Blocks are not divided, so that one multiprocessor has a whole number
    of them, rounded up; and a warp keeps one scheduler, with its share of pipes and tensor cores, busy. Every buffer comes from
    DRAM, or goes there, once, unless all are `cached`; where the blocks ask for less than the buffers hold, so much.

    Raises InternalError for matrix instructions that the device is not known to have."""
    turns, rates = -(-grid.blocks // limits.multiprocessors), dict(speed.tensor)
    if block.matrix and block.matrix not in rates:
        raise InternalError(f"nothing is known of {block.matrix} on {speed.board}; add it to the table of GPUs")
    together = max(1, min(grid.resident, turns)) * block.warps
    busy = min(speed.issue, together) / speed.issue
    asked = grid.blocks * block.counted.l2_bytes
    issue = max(block.executed.instructions / speed.issue, block.executed.floats * WARP / speed.fp32)
    return Cycles(
        turns * block.counted.products / (rates[block.matrix] * busy) if block.matrix else 0,
        turns * block.counted.wavefronts * 128 / speed.shared, turns * issue / busy, asked / speed.l2 if speed.l2 else 0,
        0 if cached else min(grid.bytes, asked) * speed.clock / speed.dram)


def microseconds(count: float, speed: GpuSpeed) -> float:
    """The time of so many cycles at the device's highest clock."""
    return count / speed.clock * 1e6

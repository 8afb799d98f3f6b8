"""How a kernel's work is spread over warps and threads, read from its loops."""

from __future__ import annotations

from typing import Literal

from tsc.loop_ir.nodes import Allocate, For, Stmt, children, nest, walk
from tsc.te.expr import Const

#: Where a statement stands: it is executed by a whole block, by a whole warp, or by one thread.
Level = Literal["block", "warp", "thread"]


def within(stmt: Stmt, level: Level) -> Level:
    """The level of what stands directly in `stmt`, itself at `level`."""
    return stmt.kind if isinstance(stmt, For) and stmt.kind in ("warp", "thread") else level


def local_buffers(stmt: Stmt, level: Level = "block") -> list[tuple[Allocate, Level]]:
    """Each Allocate, with the level where it stands."""
    found = [(stmt, level)] if isinstance(stmt, Allocate) else []
    return found + [inner for child in children(stmt) for inner in local_buffers(child, within(stmt, level))]


def trips(loop: For) -> int | None:
    """How often a loop with constant bounds runs."""
    if not (isinstance(loop.lo, Const) and isinstance(loop.hi, Const)):
        return None
    return len(range(int(loop.lo.value), int(loop.hi.value), loop.step))


def nests(stmt: Stmt, kind: Level) -> list[tuple[For, ...]]:
    """The outermost nests of `warp` or of `thread` loops."""
    if isinstance(stmt, For) and stmt.kind == kind:
        return [nest(stmt)[0]]
    return [found for child in children(stmt) for found in nests(child, kind)]


def nest_count(loops: tuple[For, ...]) -> int | None:
    """Iterations of a nest; None where its bounds are not constant."""
    total = 1
    for loop in loops:
        count = trips(loop)
        if count is None:
            return None
        total *= count
    return total


def team_sizes(stmt: Stmt) -> tuple[int, int] | None:
    """Warps of a block and threads of a warp (of the block, where it has no warp loops); None where there are neither."""
    if not any(isinstance(s, For) and s.kind in ("warp", "thread") for s in walk(stmt)):
        return None
    warps, threads = ({nest_count(loops) or 0 for loops in nests(stmt, kind)} for kind in ("warp", "thread"))
    return max(warps, default=1), max(threads, default=1)

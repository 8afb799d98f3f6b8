"""How a kernel's work is spread over warps and threads, read from its loops."""

from __future__ import annotations

from typing import Literal

from tsc.errors import InternalError
from tsc.loop_ir.nodes import Allocate, For, Func, Intrin, Stmt, children, nest, walk
from tsc.sym import product
from tsc.te.expr import Const, item_bytes

#: Threads of a warp, and what the places of buffers in shared memory are multiples of: a row of all banks, or eight of them,
#: the pattern of what a warp group reads.
WARP, SHARED_ALIGNMENT, PATTERN_ALIGNMENT = 32, 128, 1024

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


def block_threads(func: Func) -> int:
    """Threads of a block, whole warps where its work is spread over warps or threads; 1 where it is not."""
    teams = team_sizes(func.body)
    if teams is None:
        return 1
    warped = any(isinstance(s, For) and s.kind == "warp" for s in walk(func.body))
    return teams[0] * WARP if warped else -(-teams[1] // WARP) * WARP


def shared_places(func: Func) -> tuple[dict[str, int], int]:
    """Where each buffer in shared memory begins, one behind the other, and the bytes of all. Raises InternalError for one whose
    shape is not constant."""
    places: dict[str, int] = {}
    end, alignment = 0, PATTERN_ALIGNMENT if has_groups(func) else SHARED_ALIGNMENT
    for stmt in walk(func.body):
        if isinstance(stmt, Allocate) and stmt.scope == "shared":
            count = product(stmt.buffer.shape).as_int()
            if count is None or stmt.buffer.name in places:
                raise InternalError(f"kernel {func.name}: {stmt.buffer} cannot be in shared memory")
            places[stmt.buffer.name] = -(-end // alignment) * alignment
            end = places[stmt.buffer.name] + count * item_bytes(stmt.buffer.dtype)
    return places, end


def has_groups(func: Func) -> bool:
    """Whether warp groups multiply in it, which read shared memory by themselves."""
    return any(isinstance(s, Intrin) and s.team == "block" for s in walk(func.body))


def team_sizes(stmt: Stmt) -> tuple[int, int] | None:
    """Warps of a block and threads of a warp (of the block, where it has no warp loops); None where there are neither."""
    if not any(isinstance(s, For) and s.kind in ("warp", "thread") for s in walk(stmt)):
        return None
    warps, threads = ({nest_count(loops) or 0 for loops in nests(stmt, kind)} for kind in ("warp", "thread"))
    return max(warps, default=1), max(threads, default=1)

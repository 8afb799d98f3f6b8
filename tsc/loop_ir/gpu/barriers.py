"""insert_barriers: the barriers that a kernel's shared memory needs, and no more.

The need is what `verify_synchronised` finds: two accesses of different threads to what may be one element. A barrier goes
between them, in the innermost sequence that holds both, just before the later one: outside of loops that only the later one
is in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

from tsc.errors import InternalError
from tsc.loop_ir.gpu.hazards import Hazard, Path
from tsc.loop_ir.gpu.verify_sync import verify_synchronised
from tsc.loop_ir.nodes import Barrier, Block, For, Func, Stmt, Wait, block, children, map_children


def insert_barriers(func: Func) -> Func:
    """`func`, whose copies are waited for, with barriers; those it has already stay where they are needed.

    Raises Hazard where a wait is missing, InternalError where no barrier can stand between two accesses."""
    while (hazard := _hazard(func)) is not None:
        if hazard.team is None:
            raise hazard
        where = _between(hazard)
        around = list(_around(func.body, where))
        warped = any(isinstance(s, For) and s.kind == "warp" for s in around)
        barrier = Barrier(hazard.team if warped else "block")
        if where and where[-1] and children(around[-1])[where[-1] - 1] == barrier:
            raise InternalError(f"kernel {func.name}: barriers do not help against: {hazard}")
        func = replace(func, body=_rebuilt(func.body, where, partial(block, barrier)))
    for path in reversed([p for p, s in _placed(func.body, ()) if isinstance(s, Barrier)]):
        fewer = replace(func, body=_rebuilt(func.body, path, lambda s: Block(())))
        if _hazard(fewer) is None:
            func = fewer
    return func


def without_needless_waits(func: Func) -> Func:
    """`func`, which has its barriers, without waits for copies that a later wait is soon enough for: more copies are under way
    at a time."""
    for path in reversed([p for p, s in _placed(func.body, ()) if isinstance(s, Wait)]):
        fewer = replace(func, body=_rebuilt(func.body, path, lambda s: Block(())))
        with suppress(InternalError):
            verify_synchronised(fewer)
            func = fewer
    return func


def _hazard(func: Func) -> Hazard | None:
    try:
        verify_synchronised(func)
    except Hazard as found:
        return found
    return None


def _between(hazard: Hazard) -> Path:
    """Where the later access's statement stands in the innermost sequence that holds both."""
    earlier, later = hazard.earlier.step, hazard.later.step
    shared = next((n for n, (a, b) in enumerate(zip(earlier, later)) if a != b), len(later))
    return later[:shared + 1]


def _around(stmt: Stmt, path: Path) -> Iterator[Stmt]:
    for position in path:
        yield stmt
        stmt = children(stmt)[position]


def _placed(stmt: Stmt, path: Path) -> Iterator[tuple[Path, Stmt]]:
    yield path, stmt
    for position, child in enumerate(children(stmt)):
        yield from _placed(child, (*path, position))


def _rebuilt(stmt: Stmt, path: Path, change: Callable[[Stmt], Stmt]) -> Stmt:
    """`stmt` with the statement at `path` changed, sequences flat."""
    if not path:
        return change(stmt)
    position = iter(range(len(children(stmt))))
    made = map_children(lambda s: _rebuilt(s, path[1:], change) if next(position) == path[0] else s, stmt)
    return block(*made.body) if isinstance(made, Block) else made

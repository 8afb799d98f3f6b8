"""verify_storage: what a pass keeps in storage of its own stays within it, at all sizes.

The storage of the polyhedral stage's loops is proved where those are read back (`poly/guards.py`, `poly/refine.py`).
Register tiles, lanes and folds come later: their extents are constants, and what moves in them are the loops around.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tsc.errors import InternalError
from tsc.loop_ir.messages import expressions
from tsc.loop_ir.nodes import Allocate, Func, Stmt, Store, walk
from tsc.loop_ir.places import Place
from tsc.loop_ir.vector_rules import within
from tsc.te.expr import Load, format_expr, loads


def verify_storage(before: Func, placed: Iterable[tuple[Stmt, Place]]) -> None:
    """Raise InternalError unless all that the statements store to and load from storage which `before` has not, or in
    another shape, is proved to lie within it."""
    given = frozenset(s.buffer for s in walk(before.body) if isinstance(s, Allocate))
    for stmt, place in placed:
        own = frozenset(s.buffer for s in place.storage if s.buffer not in given)
        for access in _accesses(stmt) if own else ():
            if access.buffer in own and not within(access, place.facts, place.known):
                text = f"it is not proved that {format_expr(access)} lies within {access.buffer}"
                raise InternalError(f"kernel {before.name}: {text}")


def _accesses(stmt: Stmt) -> Iterator[Load]:
    if isinstance(stmt, Store):
        yield Load(stmt.buffer, stmt.index)
    yield from (load for expr in expressions(stmt) for load in loads(expr))

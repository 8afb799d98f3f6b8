"""verify_storage: what a pass keeps in storage of its own stays within it, at all sizes.

The storage of the polyhedral stage's loops is proved where those are read back (`poly/guards.py`, `poly/refine.py`).
Register tiles, lanes and folds come later: their extents are constants, and what moves in them are the loops around.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tsc.errors import InternalError
from tsc.loop_ir.facts import Facts
from tsc.loop_ir.messages import expressions
from tsc.loop_ir.nodes import Allocate, For, Func, If, Let, Stmt, Store, children, walk
from tsc.loop_ir.vector_rules import within
from tsc.te.expr import BOOL, Buffer, Call, Expr, Load, format_expr, loads


@dataclass(frozen=True, slots=True)
class _Place:
    """What is around a statement: facts, the conditions that hold, and the storage to prove."""

    facts: Facts
    known: tuple[Expr, ...] = ()
    storage: frozenset[Buffer] = frozenset()


def verify_storage(before: Func, after: Func) -> None:
    """Raise InternalError unless all that is stored to and loaded from storage which `after` has, and `before` has not or in
    another shape, is proved to lie within it."""
    given = frozenset(s.buffer for s in walk(before.body) if isinstance(s, Allocate))
    complaint = next(_outside(after.body, _Place(Facts.of(after.sizes)), given), None)
    if complaint is not None:
        raise InternalError(f"kernel {after.name}: {complaint}")


def _outside(stmt: Stmt, place: _Place, given: frozenset[Buffer]) -> Iterator[str]:
    match stmt:
        case Store(buffer=buffer, index=index):
            for access in (Load(buffer, index), *(x for e in expressions(stmt) for x in loads(e))):
                if access.buffer in place.storage and not within(access, place.facts, place.known):
                    yield f"it is not proved that {format_expr(access)} lies within {access.buffer}"
        case For() | Let():
            place = replace(place, facts=place.facts.inside(stmt))
        case If(condition=condition, then=then, otherwise=otherwise):
            yield from _outside(then, replace(place, known=(*place.known, condition)), given)
            if otherwise is not None:
                yield from _outside(otherwise, replace(place, known=(*place.known, Call("not", (condition,), BOOL))), given)
            return
        case Allocate(buffer=buffer) if buffer not in given:
            place = replace(place, storage=place.storage | {buffer})
    for child in children(stmt):
        yield from _outside(child, place, given)

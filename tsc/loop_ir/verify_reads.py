"""verify_reads: a vector of iterations reads no memory that its scalar iterations would not, unless that is proved to be there.

The loops that the polyhedral stage makes are read back and stay within all extents (`poly/guards.py`). What vectors add to that
is found here in the final Func: both sides of a choice are computed, and register tiles compute columns that nobody stores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tsc.errors import InternalError
from tsc.loop_ir.facts import Facts
from tsc.loop_ir.messages import expressions
from tsc.loop_ir.nodes import Allocate, For, Func, If, Let, Stmt, Store, children
from tsc.loop_ir.vector_rules import Read, executed, varies, within
from tsc.te.expr import BOOL, Call, Expr, Load, format_expr


@dataclass(frozen=True, slots=True)
class _Place:
    """What is around a statement: facts, the conditions that hold, the variable of the vector loop, the register tiles."""

    facts: Facts
    known: tuple[Expr, ...] = ()
    lane: str = ""
    tiles: frozenset[str] = frozenset()


def verify_reads(func: Func) -> None:
    """Raise InternalError unless every load of a vector loop that is executed more often than in scalar iterations, under fewer
    conditions or in more columns, is proved to stay within its buffer."""
    complaint = unproved(func.body, Facts.of(func.sizes))
    if complaint is not None:
        raise InternalError(f"kernel {func.name}: {complaint}")


def unproved(stmt: Stmt, facts: Facts) -> str | None:
    """The first such load that is not proved, in words; None where all are. `facts` hold around `stmt`."""
    return next(_complaints(stmt, _Place(facts)), None)


def _complaints(stmt: Stmt, place: _Place) -> Iterator[str]:
    match stmt:
        case Store():
            yield from _of_store(stmt, place)
        case For(var=var, kind=kind):
            place = replace(place, facts=place.facts.inside(stmt), lane=var if kind == "vector" else place.lane)
        case Let():
            place = replace(place, facts=place.facts.inside(stmt))
        case If(condition=condition, then=then, otherwise=otherwise):
            yield from _complaints(then, replace(place, known=(*place.known, condition)))
            if otherwise is not None:
                yield from _complaints(otherwise, replace(place, known=(*place.known, Call("not", (condition,), BOOL))))
            return
        case Allocate(buffer=buffer, scope="register") if len(buffer.shape) > 1:
            place = replace(place, tiles=place.tiles | {buffer.name})
    for child in children(stmt):
        yield from _complaints(child, place)


def _of_store(store: Store, place: _Place) -> Iterator[str]:
    if not place.lane:
        return
    reads = [r for e in expressions(store) for r in executed(e, place.lane)]
    certain = {r.what for r in reads if not (r.lost or r.known)}
    for read in reads:
        known, what = (*place.known, *read.known), read.what
        if read.lost and what not in certain and not (isinstance(what, Load) and within(what, place.facts, known)):
            yield _complaint(read, store, "although a condition that guards it does not hold")
        if store.buffer.name in place.tiles and isinstance(what, Load):
            moving = [d for d, i in enumerate(what.index) if varies(i, place.lane)]
            if not within(what, place.facts, known, moving):
                yield _complaint(read, store, "for columns that may not be there")


def _complaint(read: Read, store: Store, when: str) -> str:
    return (f"a vector stored to {store.buffer.name} reads {format_expr(read.what)} {when}, "
            "and it is not proved to lie within its buffer")

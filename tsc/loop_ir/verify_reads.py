"""verify_reads: a vector of iterations reads no memory that its scalar iterations would not, unless that is proved to be there.

The loops that the polyhedral stage makes are read back and stay within all extents (`poly/guards.py`). What vectors add to that
is found here in the final Func: both sides of a choice are computed, and register tiles compute columns that nobody stores.
"""

from __future__ import annotations

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

    func: str
    facts: Facts
    known: tuple[Expr, ...] = ()
    lane: str = ""
    tiles: frozenset[str] = frozenset()


def verify_reads(func: Func) -> None:
    """Raise InternalError unless every load of a vector loop that is executed more often than in scalar iterations, under fewer
    conditions or in more columns, is proved to stay within its buffer."""
    _verify(func.body, _Place(func.name, Facts.of(func.sizes)))


def _verify(stmt: Stmt, place: _Place) -> None:
    match stmt:
        case Store():
            _verify_store(stmt, place)
            return
        case For(var=var, kind=kind):
            place = replace(place, facts=place.facts.inside(stmt), lane=var if kind == "vector" else place.lane)
        case Let():
            place = replace(place, facts=place.facts.inside(stmt))
        case If(condition=condition, then=then, otherwise=otherwise):
            _verify(then, replace(place, known=(*place.known, condition)))
            if otherwise is not None:
                _verify(otherwise, replace(place, known=(*place.known, Call("not", (condition,), BOOL))))
            return
        case Allocate(buffer=buffer, scope="register") if len(buffer.shape) > 1:
            place = replace(place, tiles=place.tiles | {buffer.name})
    for child in children(stmt):
        _verify(child, place)


def _verify_store(store: Store, place: _Place) -> None:
    if not place.lane:
        return
    reads = [r for e in expressions(store) for r in executed(e, place.lane)]
    certain = {r.what for r in reads if not (r.lost or r.known)}
    for read in reads:
        known = (*place.known, *read.known)
        if read.lost and read.what not in certain and not (
                isinstance(read.what, Load) and within(read.what, place.facts, known)):
            raise _fail(read, store, place, "although a condition that guards it does not hold")
        if store.buffer.name in place.tiles and isinstance(read.what, Load):
            moving = [d for d, i in enumerate(read.what.index) if varies(i, place.lane)]
            if not within(read.what, place.facts, known, moving):
                raise _fail(read, store, place, "for columns that may not be there")


def _fail(read: Read, store: Store, place: _Place, when: str) -> InternalError:
    return InternalError(f"kernel {place.func}: a vector stored to {store.buffer.name} reads {format_expr(read.what)} {when}, "
                         "and it is not proved to lie within its buffer")

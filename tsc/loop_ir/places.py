"""places: every statement of a Func with what is around it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tsc.loop_ir.facts import inside
from tsc.loop_ir.nodes import Allocate, For, Func, If, Let, Stmt, children
from tsc.sym.facts import Facts
from tsc.te.compute import facts_of
from tsc.te.expr import BOOL, Call, Expr


@dataclass(frozen=True, slots=True)
class Place:
    """What is around a statement: facts, the conditions that hold, the variable of the vector loop ("" outside of one), and
    the storage that is allocated there, innermost last."""

    facts: Facts
    known: tuple[Expr, ...] = ()
    lane: str = ""
    storage: tuple[Allocate, ...] = ()


def places_of(func: Func) -> tuple[tuple[Stmt, Place], ...]:
    """Every statement of `func`, parents first, with the place where it stands."""
    return tuple(places(func.body, Place(facts_of(func.sizes))))


def places(stmt: Stmt, place: Place) -> Iterator[tuple[Stmt, Place]]:
    """`stmt` and every statement within it, parents first, each with the place where it stands; `place` is that of `stmt`."""
    yield stmt, place
    match stmt:
        case If(condition=condition, then=then, otherwise=otherwise):
            yield from places(then, replace(place, known=(*place.known, condition)))
            if otherwise is not None:
                yield from places(otherwise, replace(place, known=(*place.known, Call("not", (condition,), BOOL))))
            return
        case For(var=var, kind=kind):
            place = replace(place, facts=inside(place.facts, stmt), lane=var if kind == "vector" else place.lane)
        case Let():
            place = replace(place, facts=inside(place.facts, stmt))
        case Allocate():
            place = replace(place, storage=(*place.storage, stmt))
    for child in children(stmt):
        yield from places(child, place)

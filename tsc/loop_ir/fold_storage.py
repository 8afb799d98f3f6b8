"""fold_storage: of what trips hand on, two of them are kept, this one's and the one's before.

A local that each trip of a recurrence writes a slice of, and of which no trip reads more than its own and the one before, is as
large as two slices: those of even trips and those of odd ones (storage folding: Halide, Ragan-Kelley et al. 2013, section
4.3). It comes after all proofs and comparisons of loops, in which each slice has cells of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tsc.loop_ir.marks import TRIP
from tsc.loop_ir.nodes import Allocate, For, Func, If, Let, Stmt, Store, children, expressions, map_children, map_exprs
from tsc.sym import ONE, SymExpr
from tsc.te.expr import Buffer, Call, Expr, Load, Var, add, call, index, loads, substitute
from tsc.te.expr import map_children as map_operands
from tsc.te.index import to_sym

#: Slices that are kept.
KEPT = 2


def fold_storage(func: Func) -> Func:
    """`func` with the locals of its recurrences as large as two slices, where no more are used at a time."""
    return replace(func, body=_folded(func.body))


@dataclass(frozen=True, slots=True)
class _Access:
    """An element that is stored or loaded, the trip loop around it if there is one, and whether that comes earlier."""

    at: tuple[Expr, ...]
    stored: bool
    trips: For | None
    behind: For | None


def _folded(stmt: Stmt) -> Stmt:
    inner = map_children(_folded, stmt)
    if isinstance(inner, Allocate) and inner.scope in ("stack", "scratch") and not inner.buffer.layout:
        accesses = list(_accesses(inner.body, inner.buffer, None, []))
        for number, extent in enumerate(inner.buffer.shape):
            if (extent.as_int() or KEPT + 1) > KEPT and _two_at_a_time(accesses, number):
                shape = tuple(SymExpr.of(KEPT) if d == number else e for d, e in enumerate(inner.buffer.shape))
                small = replace(inner.buffer, shape=shape)
                return replace(inner, buffer=small, body=_moved(inner.body, inner.buffer, small, number))
    return inner


def _accesses(stmt: Stmt, buffer: Buffer, trips: For | None, before: list[For]) -> Iterator[_Access]:
    """Each access to a buffer, in order; `before` are the trip loops that have ended by then, of the statements around them."""
    behind = before[-1] if trips is None and before else None
    for expr in expressions(stmt):
        for load in loads(expr):
            if load.buffer == buffer:
                yield _Access(load.index, False, trips, behind)
    if isinstance(stmt, Store) and stmt.buffer == buffer:
        yield _Access(stmt.index, True, trips, behind)
    own = stmt if isinstance(stmt, For) and stmt.mark == TRIP and trips is None else trips
    ended = list(before) if isinstance(stmt, (For, If, Let)) else before  # what ended in a loop ended in each of its turns
    for child in children(stmt):
        yield from _accesses(child, buffer, own, ended)
        if isinstance(child, For) and child.mark == TRIP and trips is None:
            ended.append(child)


def _two_at_a_time(accesses: list[_Access], number: int) -> bool:
    """Whether one loop over trips does all stores, each to its trip's slice, counted along dim `number`, and no trip reads but
    this slice and the one before, what comes behind the loop but the last. A trip before it may stand alone."""
    stores = [a for a in accesses if a.stored and a.trips is not None]
    trips = stores[0].trips if stores else None
    if trips is None or trips.step != 1:
        return False
    leaves: dict[str, Expr] = {}

    def at(place: Expr) -> SymExpr:
        return to_sym(substitute(stores[0].at[number], {trips.var: place}), leaves)

    own, first, last = at(Var(trips.var)), at(trips.lo), at(call("sub", trips.hi, index(1)))
    step = at(add(trips.lo, index(1))) - first
    if step not in (ONE, -ONE):
        return False
    for access in accesses:
        place = to_sym(access.at[number], leaves)
        if access.trips is trips:
            held = place == own or (place == own - step and not access.stored)
        elif access.behind is trips:
            held = access.trips is None and place == last and not access.stored
        else:
            held = access.trips is None and access.behind is None and place == first - step
        if not held:
            return False
    return not leaves


def _moved(stmt: Stmt, old: Buffer, new: Buffer, number: int) -> Stmt:
    """A statement whose accesses to a buffer go to one of the slices that are kept."""
    def folded(at: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(Call("mod", (i, index(KEPT)), "int64") if d == number else i for d, i in enumerate(at))

    def moved(expr: Expr) -> Expr:
        inner = map_operands(moved, expr)
        return Load(new, folded(inner.index)) if isinstance(inner, Load) and inner.buffer == old else inner

    def stored(part: Stmt) -> Stmt:
        made = map_children(stored, part)
        return replace(made, buffer=new, index=folded(made.index)) if isinstance(made, Store) and made.buffer == old else made

    return stored(map_exprs(moved, stmt))


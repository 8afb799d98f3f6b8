"""hold_accumulators: what a thread sums up in one place of memory over a loop is held in a register meanwhile.

A loop that reads and stores its accumulator anew in each trip waits for memory in each. Before that, conditions that do not
change over a loop are asked outside of it. `without_accumulators` puts the places back, so that what is proved of loops need
not know of these registers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import count

from tsc.errors import InternalError
from tsc.loop_ir.gpu.threads import trips
from tsc.loop_ir.nodes import (
    Allocate,
    Barrier,
    Block,
    Commit,
    For,
    Func,
    If,
    Intrin,
    Let,
    Stmt,
    Store,
    Wait,
    block,
    expressions,
    map_children,
    map_exprs,
    walk,
)
from tsc.sym import ONE
from tsc.te.expr import Buffer, CheckedIndex, Expr, Load, call, index, loads, map_loads, operands, variables
from tsc.te.expr import walk as walk_expr

_FIRST = (index(0),)


def hold_accumulators(func: Func) -> Func:
    """`func` with accumulators in registers over the outermost loops that have no other use of their buffer, and conditions
    outside of the loops over which they are the same."""
    own = frozenset(s.buffer.name for s in walk(func.body) if isinstance(s, Allocate) and s.scope == "register")
    return replace(func, body=_Holder(own, count()).visited(_asked_outside(func.body), frozenset()))


def without_accumulators(func: Func) -> Func:
    """`func` with accumulators where they were. Raises InternalError where these are used besides, while they are held."""
    if not any(_held_by(s) for s in walk(func.body)):  # nor on any CPU
        return func
    return replace(func, body=_put_back(func.body))


@dataclass(frozen=True, slots=True)
class _Place:
    """An element of a buffer, and under which conditions something is stored there."""

    buffer: Buffer
    index: tuple[Expr, ...]
    conditions: frozenset[Expr] = frozenset()

    def read(self) -> Load:
        """What is there."""
        return Load(self.buffer, self.index)


# -- conditions ------------------------------------------------------------------------------------------------

def _asked_outside(stmt: Stmt) -> Stmt:
    """Loops under what is the same in all trips of a condition, in place of loops over it."""
    inner = map_children(_asked_outside, stmt)
    match inner:
        case For(var=var, body=If(condition=condition, then=then, otherwise=None)) if inner.kind == "serial":
            parts = list(operands(condition, "and"))
            same = [part for part in parts if var not in variables(part) and _is_settled(part)]
            left = [part for part in parts if part not in same]
            if same:
                body = If(reduce(partial(call, "and"), left), then) if left else then
                return If(reduce(partial(call, "and"), same), _asked_outside(replace(inner, body=body)))
    return inner


# -- held ------------------------------------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class _Holder:
    """Holds places of memory in registers, and numbers these. `own` are buffers that are registers already."""

    own: frozenset[str]
    numbers: Iterator[int]

    def visited(self, stmt: Stmt, begun: frozenset[_Place], asked: frozenset[Expr] = frozenset()) -> Stmt:
        """The statement with accumulators held. The thread that executes it has stored in the places `begun`, and no copy has
        been on its way there since; it is there under the conditions `asked`."""
        match stmt:
            case Block(body=body):
                parts = []
                for part in body:
                    parts.append(self.visited(part, begun, asked))
                    apart = _meets_others(part) and not isinstance(part, Barrier)
                    begun = frozenset() if apart else begun | frozenset(_begun(part, asked))
                return block(*parts)
            case If(condition=condition, then=then, otherwise=otherwise):
                other = None if otherwise is None else self.visited(otherwise, begun, asked)
                return If(condition, self.visited(then, begun, asked | {condition}), other)
            case For(kind="serial") if not _meets_others(stmt):
                for place in _accumulated(stmt):
                    mine = any((p.buffer, p.index) == (place.buffer, place.index) and p.conditions <= asked for p in begun)
                    if place.buffer.name not in self.own and (mine or (not place.conditions and (trips(stmt) or 0) > 0)):
                        return self._held(stmt, place, begun, asked)
        return map_children(lambda s: self.visited(s, frozenset(), asked), stmt)

    def _held(self, loop: For, place: _Place, begun: frozenset[_Place], asked: frozenset[Expr]) -> Allocate:
        held = Buffer(f"{place.buffer.name}_held{next(self.numbers)}", place.buffer.dtype, (ONE,))
        moved = _moved(loop, place.read(), Load(held, _FIRST))
        within = replace(self, own=self.own | {held.name}).visited(moved, begun, asked)
        return Allocate(held, "register", Block((
            Store(held, _FIRST, place.read()), within, Store(place.buffer, place.index, Load(held, _FIRST)))))


def _is_settled(expr: Expr) -> bool:
    """Whether nothing that is stored can change an expression."""
    return not any(isinstance(e, Load | CheckedIndex) for e in walk_expr(expr))


def _begun(stmt: Stmt, asked: frozenset[Expr]) -> Iterator[_Place]:
    while isinstance(stmt, If) and stmt.otherwise is None and _is_settled(stmt.condition):
        asked, stmt = asked | {stmt.condition}, stmt.then
    if isinstance(stmt, Store) and not stmt.asynchronous:
        yield _Place(stmt.buffer, stmt.index, asked)


def _meets_others(stmt: Stmt) -> bool:
    """Whether threads meet or part within."""
    return any(isinstance(s, Barrier | Commit | Wait | Intrin) or (isinstance(s, For) and s.kind not in ("serial", "unroll"))
               or (isinstance(s, Store) and s.asynchronous) for s in walk(stmt))


def _accumulated(loop: For) -> Iterator[_Place]:
    """The places that are read and stored in a loop, the same in all trips, in whose buffers it touches nothing else."""
    bound = {s.var for s in walk(loop) if isinstance(s, For | Let)}
    inside = {s.buffer.name for s in walk(loop) if isinstance(s, Allocate)}
    for place in dict.fromkeys(_stored(loop.body, frozenset())):
        touched = {x for s in walk(loop) for x in _touched(s, place.buffer)}
        read = any(x == place.read() for s in walk(loop) for e in expressions(s) for x in loads(e))
        if read and touched == {place.read()} and place.buffer.name not in inside and not any(
                bound & variables(i) or not _is_settled(i) for i in place.index):
            yield place


def _stored(stmt: Stmt, asked: frozenset[Expr]) -> Iterator[_Place]:
    match stmt:
        case Store(buffer=buffer, index=place):
            yield _Place(buffer, place, asked)
        case If(condition=condition, then=then, otherwise=otherwise):
            yield from _stored(then, asked | {condition})
            if otherwise is not None:
                yield from _stored(otherwise, asked | {condition})
        case For() if (trips(stmt) or 0) < 1:
            yield from _stored(stmt.body, asked | {stmt.hi})  # perhaps never
        case For(body=body) | Let(body=body) | Allocate(body=body):
            yield from _stored(body, asked)
        case Block(body=body):
            for part in body:
                yield from _stored(part, asked)


def _touched(stmt: Stmt, buffer: Buffer) -> Iterator[Load]:
    if isinstance(stmt, Store) and stmt.buffer.name == buffer.name:
        yield Load(stmt.buffer, stmt.index)
    yield from (x for e in expressions(stmt) for x in loads(e) if x.buffer.name == buffer.name)


def _moved(stmt: Stmt, old: Load, new: Load) -> Stmt:
    """The statement with one place in place of another."""
    def stored(part: Stmt) -> Stmt:
        if isinstance(part, Store) and (part.buffer, part.index) == (old.buffer, old.index):
            return replace(part, buffer=new.buffer, index=new.index)
        return map_children(stored, part)

    return stored(map_exprs(lambda e: map_loads(lambda x: new if x == old else x, e), stmt))


# -- put back --------------------------------------------------------------------------------------------------

def _put_back(stmt: Stmt) -> Stmt:
    inner = map_children(_put_back, stmt)
    if (found := _held_by(inner)) is not None:
        begin, place, loop, end = found
        own, bound = Load(begin.buffer, _FIRST), {s.var for s in walk(loop) if isinstance(s, For | Let)}
        if (begin.index, end.value, Load(end.buffer, end.index)) != (_FIRST, own, place) or _meets_others(loop) or any(
                bound & variables(i) for i in place.index) or any(x for s in walk(loop) for x in _touched(s, place.buffer)):
            raise InternalError(f"{place.buffer.name} is used while {own.buffer.name} stands for it")
        return _moved(loop, own, place)
    return block(*inner.body) if isinstance(inner, Block) else inner


def _held_by(stmt: Stmt) -> tuple[Store, Load, For, Store] | None:
    """Of a place in a register: what reads it, the place, the loop over which it is held, and what stores it again."""
    match stmt:
        case Allocate(buffer=held, scope="register", body=Block(body=(
                Store(value=Load() as place) as begin, For() as loop, Store(value=Load(buffer=last)) as end))) \
                if begin.buffer == held == last:
            return begin, place, loop, end
    return None

"""Warps and threads in the loops of a GPU schedule: proofs that they may run in parallel, and their loops joined into one nest.

A schedule's loops are nests of `warp` and `thread` loops one after the other (fork and join). `join_teams` turns them inside
out: one nest a block, in which every thread goes through all steps, so that a thread keeps its registers. What is in shared
memory is ordered by barriers, which a later pass puts between the steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from tsc.errors import InternalError
from tsc.loop_ir.facts import inside
from tsc.loop_ir.gpu.threads import nest_count, trips
from tsc.loop_ir.nodes import (
    Allocate,
    Block,
    For,
    Func,
    If,
    Let,
    LoopKind,
    Stmt,
    Store,
    block,
    map_children,
    map_exprs,
    nest,
    walk,
)
from tsc.loop_ir.simplify import substitute_stmt
from tsc.poly import isl
from tsc.poly.affine import index_text
from tsc.poly.linear import tidy
from tsc.poly.promotion.layout import EXHAUSTIVE
from tsc.poly.promotion.promote import Local, Promoted
from tsc.poly.proof.guards import Nest, affine_text, loop_points, stores
from tsc.poly.scop import Scop
from tsc.sym import SymExpr
from tsc.sym.facts import Facts
from tsc.te.expr import Const, Expr, Load, Var, add, call, index, loads, mul, variables
from tsc.te.expr import map_children as map_operands
from tsc.te.index import evaluated, to_sym

WARP, LANE = "warp", "lane"


# -- proofs ----------------------------------------------------------------------------------------------------

def check_teams(func: Func, promoted: Promoted, scop: Scop) -> None:
    """Raise InternalError unless threads touch nobody else's registers, within a step (a nest of warps and threads) nobody
    touches an element of shared memory that another thread writes, and what is stored in the arguments is read nowhere.

    A copy stores every element once: `check_dataflow` proves that.
    """
    held = {x.storage.name: x for x in promoted.locals if x.scope == "register"}
    for store, around in stores(func.body):
        for load in dict.fromkeys((Load(store.buffer, store.index), *loads(store.value))):
            if load.buffer.name in held:
                _check_owner(load, held[load.buffer.name], store, around, scop)
            elif load.buffer.name in func.outputs and load.index != store.index:
                raise InternalError(f"a thread reads {load.buffer.name}, which others store")
    shared = {x.storage.name for x in promoted.locals if x.scope == "shared"}
    for step in _steps(func.body):
        touched = [(load, store, around) for store, around in stores(func.body) if step in around.loops
                   for load in (Load(store.buffer, store.index), *loads(store.value)) if load.buffer.name in shared]
        for i, (first, one, around) in enumerate(touched):
            for second, other, beside in touched[i:]:
                writes = any(load == Load(s.buffer, s.index) for load, s in ((first, one), (second, other)))
                once = first is second and one.instance is not None and one.instance.statement not in scop.statements
                if writes and not once and first.buffer == second.buffer and not _apart(first, around, second, beside, scop):
                    raise InternalError(f"threads write {first.buffer.name} and touch what others write, with no barrier in "
                                        "between")


def _apart(first: Load, around: Nest, second: Load, beside: Nest, scop: Scop) -> bool:
    """Whether different threads of one step never touch one element, as far as that is affine, or each can be looked at."""
    one, other = _each(first.index, around), _each(second.index, beside)
    if one is not None and other is not None:
        return _alone_at(one, other)
    if any(index_text(i, {v: v for v in n.variables}) is None for x, n in ((first, around), (second, beside)) for i in x.index):
        return False
    a, b = (_touched(load, nest, scop) for load, nest in ((first, around), (second, beside)))
    return bool(a.reverse().apply_range(b).is_subset(a.reverse().apply_range(a).domain().identity()))


#: Elements and the numbers of the threads that touch them, line by line.
_Touched: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64]]


def _each(place: Sequence[Expr], around: Nest) -> _Touched | None:
    """The values of an index and the numbers of the threads, in all iterations of a step in which they may differ, whatever
    conditions say; None where these are not constant, or too many."""
    team = [x for x in around.loops if x.kind in ("warp", "thread")]
    names = {name for i in place for name in variables(i)} | {x.var for x in team}
    loops = [x for x in around.loops[around.loops.index(team[0]):] if x.var in names]
    counts = [trips(x) for x in loops]
    if None in counts or names != {x.var for x in loops} or prod(c or 0 for c in counts) > EXHAUSTIVE:
        return None
    grid = {x.var: int(cast(Const, x.lo).value) + x.step * g.ravel() for x, g in zip(loops, np.indices(
        [c or 0 for c in counts], np.int64))}
    threads = [number_of([x for x in team if x.kind == kind]) for kind in ("warp", "thread")]
    found = [evaluated(e, grid) for e in (*threads, *place)]
    if any(f is None for f in found):
        return None
    warp, lane, *cell = (np.broadcast_to(f, grid[team[0].var].shape) for f in found if f is not None)
    return np.stack(cell or [np.zeros_like(warp)], 1), np.stack([warp, lane], 1)


def _alone_at(a: _Touched, b: _Touched) -> bool:
    """Whether each element that both touch is touched by one thread alone."""
    (places, threads), (others, beside) = a, b
    _, numbers = np.unique(np.concatenate([places, others]), axis=0, return_inverse=True)
    first, second = np.split(numbers.ravel(), [len(places)])
    both = np.intersect1d(first, second)
    pairs = np.concatenate([np.column_stack([n, t])[np.isin(n, both)] for n, t in ((first, threads), (second, beside))])
    return len(np.unique(pairs, axis=0)) == len(both)


def _touched(load: Load, around: Nest, scop: Scop) -> isl.Map:
    """(element, loops outside of the threads) -> the thread that touches it."""
    team = [x for x in around.loops if x.kind in ("warp", "thread")]
    outer = [x.var for x in around.loops[:around.loops.index(team[0])]]
    element = [*(affine_text(i, around) for i in load.index), *outer]
    thread = [affine_text(number_of([x for x in team if x.kind == kind]), around) for kind in ("warp", "thread")]
    points = loop_points(around, scop)
    at = f"{scop.params} -> {{ [{', '.join(around.variables)}] -> "
    reached, by = (isl.Map(f"{at}[{', '.join(to)}] }}").intersect_domain(points) for to in (element, thread))
    return reached.reverse().apply_range(by)


def _check_owner(load: Load, local: Local, store: Store, around: Nest, scop: Scop) -> None:
    if local.layout is None or not local.layout.owners:
        raise InternalError(f"the registers {local.storage} do not say whose they are")
    owners = local.layout.owners
    lanes = local.storage.shape[owners - 1].as_int() or 1
    told = _linear(load.index[:owners - 1], [e.as_int() or 1 for e in local.storage.shape[:owners - 1]])
    seen = _each((told, load.index[owners - 1]), around)
    if seen is not None and np.array_equal(*seen):
        return
    points = loop_points(around, scop)
    for kind, said in (("warp", told), ("thread", load.index[owners - 1])):
        loops = [x for x in around.loops if x.kind == kind]
        actual = number_of(loops)
        wrong = loop_points(replace(around, constraints=(
            *around.constraints, f"({affine_text(said, around)}) != ({affine_text(actual, around)})")), scop)
        if not points.intersect(wrong).is_empty():
            raise InternalError(f"a {kind} of {lanes} lanes touches registers of another, at {load.buffer.name} in a store to "
                                f"{store.buffer.name}")


def _linear(digits: Sequence[Expr], extents: Sequence[int]) -> Expr:
    total = index(0)
    for digit, extent in zip(digits, extents):
        total = add(mul(index(extent), total), digit)
    return total


def number_of(loops: Sequence[For]) -> Expr:
    """The row-major number of an iteration of a nest."""
    steps = [call("floordiv", call("sub", Var(x.var), x.lo), index(x.step)) for x in loops]
    return _linear(steps, [trips(x) or 1 for x in loops])


def _steps(stmt: Stmt) -> Iterator[Stmt]:
    """The nests of warps and threads, in order."""
    if isinstance(stmt, For) and stmt.kind in ("warp", "thread"):
        yield stmt
    elif isinstance(stmt, For | Allocate | Let):
        yield from _steps(stmt.body)
    elif isinstance(stmt, If):
        yield from _steps(stmt.then)
    elif isinstance(stmt, Block):
        for part in stmt.body:
            yield from _steps(part)


# -- constant trip counts --------------------------------------------------------------------------------------

def constant_trips(stmt: Stmt, facts: Facts | None = None) -> Stmt:
    """Loops whose bound varies, but not their trip count, get a constant bound: `c < 16 - t by 8` with t in 0 .. 7."""
    facts = facts or Facts()
    if not isinstance(stmt, For):
        within = inside(facts, stmt) if isinstance(stmt, Let) else facts
        return map_children(lambda s: constant_trips(s, within), stmt)
    (low, top), (least, most) = (facts.bounds(to_sym(end, {})) for end in (stmt.lo, stmt.hi))
    if low is not None and low == top and least is not None and most is not None:
        counts = {-(-(h - low) // stmt.step) for h in (least, most)}
        if len(counts) == 1 and not isinstance(stmt.hi, Const):
            stmt = replace(stmt, hi=index(low + counts.pop() * stmt.step))
    return replace(stmt, body=constant_trips(stmt.body, inside(facts, stmt)))


# -- one nest a block ------------------------------------------------------------------------------------------

def join_teams(func: Func, promoted: Promoted) -> Func:
    """`func` with one nest of `warp` and `thread` loops a block, registers a thread's own, shared buffers outside of the nest;
    all of them live as long as a block.

    A step of fewer warps or threads is made by the first ones. Raises InternalError where something is stored outside of all
    steps. Steps that have to wait for each other are not separated yet.
    """
    counts = {kind: [nest_count(loops) for loops in _nests(func.body, kind)] for kind in ("warp", "thread")}
    sizes = {kind: max((n for n in found if n is not None), default=1) for kind, found in counts.items()}
    if any(None in found for found in counts.values()):
        raise InternalError(f"kernel {func.name}: the number of its warps or threads is not constant")
    owners = {x.storage.name: x.layout.owners for x in promoted.locals if x.scope == "register" and x.layout is not None}
    return replace(func, body=_joined(func.body, sizes, owners))


def _nests(stmt: Stmt, kind: str) -> Iterator[tuple[For, ...]]:
    for step in _steps(stmt):
        found = [x for x in walk(step) if isinstance(x, For) and x.kind == kind]
        yield tuple(found)


def _joined(stmt: Stmt, sizes: Mapping[str, int], owners: Mapping[str, int]) -> Stmt:
    if isinstance(stmt, For) and stmt.kind == "block":
        return replace(stmt, body=_joined(stmt.body, sizes, owners))
    allocated = [s for s in walk(stmt) if isinstance(s, Allocate)]
    shared = [s for s in allocated if s.scope == "shared"]
    body = _alone(stmt, sizes, owners)
    for allocate in reversed([s for s in allocated if s.buffer.name in owners]):
        own: tuple[SymExpr, ...] = allocate.buffer.shape[owners[allocate.buffer.name]:]
        body = replace(allocate, buffer=replace(allocate.buffer, shape=own), body=body)
    for name, kind in ((LANE, "thread"), (WARP, "warp")):
        body = For(name, index(0), index(sizes[kind]), body, kind=cast(LoopKind, kind), mark=kind)
    for allocate in reversed(shared):
        body = replace(allocate, body=body)
    return body


def _alone(stmt: Stmt, sizes: Mapping[str, int], owners: Mapping[str, int]) -> Stmt:
    """What one thread does: its iterations of every nest, with the nest's variables computed from its number."""
    match stmt:
        case For(kind="warp" | "thread" as kind):
            loops, body = nest(stmt)
            inner = _alone(body, sizes, owners) if kind == "warp" else _owned(body, owners)
            number = Var(WARP if kind == "warp" else LANE)
            mine = {x.var: tidy(add(x.lo, mul(index(x.step), digit))) for x, digit in zip(loops, _digits(number, loops))}
            inner = substitute_stmt(inner, mine)
            count = nest_count(loops)
            return inner if count == sizes[kind] else If(call("lt", number, index(count or 0)), inner)
        case Block(body=body):
            return block(*(_alone(part, sizes, owners) for part in body))
        case Store():
            raise InternalError(f"a store to {stmt.buffer.name} is made by no thread")
        case Allocate(buffer=buffer, scope=scope, body=body) if scope == "shared" or buffer.name in owners:
            return _alone(body, sizes, owners)
    return map_children(lambda s: _alone(s, sizes, owners), stmt)


def _digits(number: Expr, loops: Sequence[For]) -> list[Expr]:
    counts = [trips(x) or 1 for x in loops]
    digits = []
    for i, count in enumerate(counts):
        digit = call("floordiv", number, index(prod(counts[i + 1:])))
        digits.append(digit if i == 0 else call("mod", digit, index(count)))
    return digits


def _owned(stmt: Stmt, owners: Mapping[str, int]) -> Stmt:
    """Accesses to registers without the coordinates that say whose they are."""
    def visit(expr: Expr) -> Expr:
        inner = map_operands(visit, expr)
        return _own(inner, owners) if isinstance(inner, Load) and inner.buffer.name in owners else inner

    def stored(part: Stmt) -> Stmt:
        if isinstance(part, Store) and part.buffer.name in owners:
            own = _own(Load(part.buffer, part.index), owners)
            return replace(part, buffer=own.buffer, index=own.index)
        return map_children(stored, part)

    return stored(map_exprs(visit, stmt))


def _own(load: Load, owners: Mapping[str, int]) -> Load:
    count = owners[load.buffer.name]
    return Load(replace(load.buffer, shape=load.buffer.shape[count:]), load.index[count:])



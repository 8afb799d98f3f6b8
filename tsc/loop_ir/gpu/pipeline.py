"""software_pipeline: the copies of a later k tile run while a tile is computed.

A loop marked `k_tile` that copies into shared buffers and then computes from them becomes: a prologue that starts the first
`stages - 1` copies; then for each tile a wait for its copies, the start of those of the tile `stages - 1` further on, and the
tile's computation. The buffers get a leading dimension of `stages`. Every iteration closes a group, empty or not, so that the
wait counts groups the same way to the last tile. How many may be pending is not known here: it is the most that
`verify_synchronised` accepts. Barriers are the next pass's. Copies outside of such loops are all started before one wait.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby

from tsc.errors import InternalError
from tsc.loop_ir.gpu.hazards import Hazard
from tsc.loop_ir.gpu.verify_sync import synchronises, verify_synchronised
from tsc.loop_ir.gpu.verify_threads import can_be_asynchronous
from tsc.loop_ir.marks import COPY, K_TILE
from tsc.loop_ir.nodes import (
    Allocate,
    Block,
    Commit,
    For,
    Func,
    If,
    Let,
    Stmt,
    Store,
    Wait,
    block,
    children,
    expressions,
    map_children,
    map_exprs,
    walk,
)
from tsc.loop_ir.simplify import substitute_stmt
from tsc.sym import SymExpr
from tsc.te.expr import Buffer, Expr, Load, Var, add, call, index, loads, mul
from tsc.te.expr import map_children as map_operands


@dataclass(frozen=True, slots=True)
class _Loop:
    """A loop to pipeline: what it copies, what it computes, and the buffers in between."""

    loop: For
    copies: tuple[Stmt, ...]
    compute: tuple[Stmt, ...]
    buffers: frozenset[str]


def software_pipeline(func: Func, stages: int) -> tuple[Func, tuple[str, ...]]:
    """`func`, as yet without barriers, with its k tile loops in `stages` stages (at least 2), and for each that is left as it
    was the reason."""
    if stages < 2:
        raise InternalError(f"kernel {func.name}: a pipeline of {stages} stages")
    reasons: list[str] = []
    for number in range(len(_tile_loops(func))):
        loop = _tile_loops(func)[number]  # each that is changed has one in its place
        found = _match(loop, func)
        if isinstance(found, str):
            reasons.append(f"{loop.var}: {found}")
        else:
            func = _pipelined(func, found, stages)
    return func, tuple(reasons)


def _tile_loops(func: Func) -> list[For]:
    return [s for s in walk(func.body) if isinstance(s, For) and s.mark == K_TILE]


def copy_asynchronously(func: Func) -> Func:
    """`func` with copies that no loop repeats asynchronous: a thread starts all of those that follow each other, then waits."""
    shared = frozenset(s.buffer.name for s in walk(func.body) if isinstance(s, Allocate) and s.scope == "shared")

    def started(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Store):
            return replace(stmt, asynchronous=True)
        return map_children(started, stmt)

    def visit(stmt: Stmt) -> Stmt:
        if isinstance(stmt, For) and stmt.kind in ("serial", "unroll"):
            return stmt
        inner = map_children(visit, stmt)
        if not isinstance(inner, Block):
            return inner
        parts: list[Stmt] = []
        for copies, run in groupby(inner.body, lambda part: _is_started(part, shared, func)):
            if copies:
                parts += [*map(started, run), Commit(), Wait(0)]
            else:
                parts += run
        return block(*parts)

    return replace(func, body=visit(func.body))


def _is_started(stmt: Stmt, shared: frozenset[str], func: Func) -> bool:
    """Whether a statement does nothing but copy what a thread need not see into shared memory."""
    stores = [s for s in walk(stmt) if isinstance(s, Store)]
    return _copies(stmt) and all(s.buffer.name in shared and can_be_asynchronous(s.value, func) for s in stores)


# -- matching --------------------------------------------------------------------------------------------------

def _match(loop: For, func: Func) -> _Loop | str:
    if synchronises(loop):
        return "its threads meet already"
    parts = loop.body.body if isinstance(loop.body, Block) else (loop.body,)
    cut = next((n for n, part in enumerate(parts) if not _copies(part)), len(parts))
    copies, compute = parts[:cut], parts[cut:]
    shared = {s.buffer.name for s in walk(func.body) if isinstance(s, Allocate) and s.scope == "shared"}
    stores = [s for part in copies for s in walk(part) if isinstance(s, Store)]
    if not stores or not compute:
        return "it does not copy and then compute"
    buffers = frozenset(s.buffer.name for s in stores)
    for store in stores:
        if store.buffer.name not in shared:
            return f"{store.buffer.name} is not shared"
        if not can_be_asynchronous(store.value, func):
            return f"what {store.buffer.name} gets is computed, not copied"
    if any(isinstance(s, Store) and s.buffer.name in buffers for part in compute for s in walk(part)):
        return "its computation writes what it copies"
    if _uses(func.body, buffers) != _uses(loop, buffers):
        return "what it copies is used outside of it"
    return _Loop(loop, copies, compute, buffers)


def _copies(stmt: Stmt) -> bool:
    while isinstance(stmt, Let):
        stmt = stmt.body
    return isinstance(stmt, For) and stmt.mark == COPY


def _uses(stmt: Stmt, buffers: frozenset[str]) -> int:
    own = sum(x.buffer.name in buffers for e in expressions(stmt) for x in loads(e))
    own += isinstance(stmt, Store) and stmt.buffer.name in buffers
    return own + sum(_uses(child, buffers) for child in children(stmt))


# -- building --------------------------------------------------------------------------------------------------

def _pipelined(func: Func, found: _Loop, stages: int) -> Func:
    """With the weakest wait that is enough."""
    for pending in range(stages, -1, -1):
        made = replace(func, body=_replaced(func.body, found, _steady(found, stages, pending), stages))
        try:
            verify_synchronised(made, barriers=False)
        except Hazard:
            continue
        return made
    raise InternalError(f"kernel {func.name}: no wait is enough for the copies of loop {found.loop.var}")


def _steady(found: _Loop, stages: int, pending: int) -> Stmt:
    loop = found.loop
    tile, first, tiles = f"{loop.var}_tile", f"{loop.var}_first", f"{loop.var}_tiles"
    ahead = index(stages - 1)
    count = call("floordiv", add(call("sub", loop.hi, loop.lo), index(loop.step - 1)), index(loop.step))

    def at(parts: tuple[Stmt, ...], number: Expr) -> Stmt:
        moved = substitute_stmt(block(*parts), {loop.var: add(loop.lo, mul(number, index(loop.step)))})
        return _staged(moved, found.buffers, call("mod", number, index(stages)), stages)

    def start(number: Expr) -> Stmt:
        return block(If(call("lt", number, Var(tiles)), at(found.copies, number)), Commit())

    prologue = For(first, index(0), ahead, start(Var(first)), kind="unroll", mark="prologue")
    body = block(Wait(pending), start(add(Var(tile), ahead)), at(found.compute, Var(tile)))
    return Let(tiles, count, block(prologue, For(tile, index(0), Var(tiles), body, mark=K_TILE)))


def _staged(stmt: Stmt, buffers: frozenset[str], stage: Expr, stages: int) -> Stmt:
    """Accesses to `buffers` at their stage; stores to them are asynchronous."""

    def swap(expr: Expr) -> Expr:
        inner = map_operands(swap, expr)
        if isinstance(inner, Load) and inner.buffer.name in buffers:
            return Load(_with_stages(inner.buffer, stages), (stage, *inner.index))
        return inner

    def visit(inner: Stmt) -> Stmt:
        if isinstance(inner, Store) and inner.buffer.name in buffers:
            return replace(inner, buffer=_with_stages(inner.buffer, stages), index=(stage, *inner.index), asynchronous=True)
        return map_children(visit, inner)
    return visit(map_exprs(swap, stmt))


def _with_stages(buffer: Buffer, stages: int) -> Buffer:
    return replace(buffer, shape=(SymExpr.of(stages), *buffer.shape))


def _replaced(stmt: Stmt, found: _Loop, made: Stmt, stages: int) -> Stmt:
    if stmt is found.loop:
        return made
    inner = map_children(lambda s: _replaced(s, found, made, stages), stmt)
    if isinstance(inner, Allocate) and inner.buffer.name in found.buffers:
        inner = replace(inner, buffer=_with_stages(inner.buffer, stages))
    return block(*inner.body) if isinstance(inner, Block) else inner

"""store_at_spots: a loop that asks of each place whether something goes there becomes a store to the place where it does.

It is the last pass, and the one that says where to store by what was loaded: what is proved and compared of loops is so before.
"""

from __future__ import annotations

from dataclasses import replace

from tsc.loop_ir.facts import inside, trips
from tsc.loop_ir.marks import PLACE
from tsc.loop_ir.nodes import Block, For, Func, If, Let, Stmt, Store, expressions, map_children, walk
from tsc.sym import ONE
from tsc.sym.facts import Facts
from tsc.te.compute import facts_of
from tsc.te.expr import Call, CheckedIndex, Load, Var, add, call, loads, variables
from tsc.te.expr import walk as walk_expr
from tsc.te.index import to_expr
from tsc.te.passes.spots import FOLDS, Spot, nothing_of, spot_of, there


def store_at_spots(func: Func) -> Func:
    """`func` with its loops over places, those that are marked so, made stores to the places that are asked for."""

    def visit(stmt: Stmt, facts: Facts) -> Stmt:
        match stmt:
            case For(mark=mark) if mark == PLACE:
                return _stored(stmt, facts) or stmt
            case For() | Let():
                inner = inside(facts, stmt)
                return map_children(lambda s: visit(s, inner), stmt)
        return map_children(lambda s: visit(s, facts), stmt)

    return replace(func, body=visit(func.body, facts_of(func.sizes)))


def _stored(loop: For, facts: Facts) -> Stmt | None:
    """What a loop does at the one place at which it does something; None where that is not known before it runs."""
    stmts = list(walk(loop.body))
    stores = [s for s in stmts if isinstance(s, Store)]
    bound = {s.var for s in stmts if isinstance(s, (For, Let))}
    if loop.step != 1 or not stores or not all(isinstance(s, (Store, For, Let, If, Block)) for s in stmts):
        return None
    spot = _spot(stores[0], loop.var)
    if spot is None or any(_spot(s, loop.var) != spot for s in stores):
        return None
    written = {s.buffer for s in stores}
    asked = (spot.goes, *spot.guards)
    if any(variables(e) & bound or any(load.buffer in written for load in loads(e)) for e in asked):
        return None
    if any(loop.var in variables(e) for e in spot.guards):
        return None
    runs = facts.nonneg(trips(loop) - ONE)
    checks = {n for s in stmts for e in expressions(s) for n in walk_expr(e) if isinstance(n, CheckedIndex)}
    if checks - (set(walk_expr(spot.goes)) if runs else set()):  # a check is made for each place that there is
        return None
    goes, offset = Var(f"{loop.var}_goes"), to_expr(spot.offset, {}, facts)
    within = call("and", call("ge", goes, add(loop.lo, offset)), call("lt", goes, add(loop.hi, offset)))
    stored = Let(loop.var, call("sub", goes, offset), _where(loop.body, spot.test))
    made: Stmt = Let(goes.name, spot.goes, If(within, stored))
    for guard in reversed(spot.guards):
        made = If(guard, made)
    return made


def _spot(store: Store, var: str) -> Spot | None:
    """Where a store changes what it finds."""
    match store.value:
        case Call(fn=fn, args=(Load(buffer=store.buffer, index=store.index), update)) if fn in FOLDS:
            return spot_of(update, var, nothing_of(fn, update.dtype))
    return None


def _where(stmt: Stmt, test: Call) -> Stmt:
    """A statement where a test holds."""
    if isinstance(stmt, Store):
        return replace(stmt, value=there(stmt.value, test))
    return map_children(lambda s: _where(s, test), stmt)

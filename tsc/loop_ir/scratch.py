"""Scratch planning: where each scratch Allocate lives in the kernel's scratch memory, and how much that takes."""

from __future__ import annotations

from dataclasses import replace

from tsc.loop_ir.nodes import Allocate, Func, Stmt, children, map_children
from tsc.sym import ZERO, SymExpr, ceildiv, product, sym_max
from tsc.sym.facts import Facts
from tsc.te.compute import facts_of
from tsc.te.expr import Buffer, item_bytes

ALIGNMENT = 64


def plan_scratch(func: Func) -> Func:
    """`func` with every scratch offset and its total set. A buffer lies behind those it lives within; siblings share."""
    facts = facts_of(func.sizes)
    body = _place(func.body, ZERO, facts)
    return replace(func, body=body, scratch=_extent(body, facts))


def buffer_bytes(buffer: Buffer, facts: Facts) -> SymExpr:
    """Bytes of a plain buffer, rounded up to the alignment. An extent says what it is where something is kept: where nothing is
    it may be below 0, as `3 * n - 2` for a row of n elements three apart, and what lies behind must not move back."""
    size = product(buffer.shape) * item_bytes(buffer.dtype)
    if not all(map(facts.nonneg, buffer.shape)):
        size = sym_max(size, ZERO)
    return ceildiv(size, ALIGNMENT) * ALIGNMENT


def _place(stmt: Stmt, used: SymExpr, facts: Facts) -> Stmt:
    if isinstance(stmt, Allocate) and stmt.scope == "scratch":
        behind = used + buffer_bytes(stmt.buffer, facts)
        return replace(stmt, offset=used, body=_place(stmt.body, behind, facts))
    return map_children(lambda s: _place(s, used, facts), stmt)


def _extent(stmt: Stmt, facts: Facts) -> SymExpr:
    extents = dict.fromkeys(_extent(s, facts) for s in children(stmt))
    if isinstance(stmt, Allocate) and stmt.scope == "scratch":
        own = stmt.offset + buffer_bytes(stmt.buffer, facts)
        return own if set(extents) <= {ZERO} else next(iter(extents))
    extents.pop(ZERO, None)
    if len(extents) <= 1:
        return next(iter(extents), ZERO)
    return sym_max(*extents)

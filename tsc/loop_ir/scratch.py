"""Scratch planning: where each scratch Allocate lives in the kernel's scratch memory, and how much that takes."""

from __future__ import annotations

from dataclasses import replace

from tsc.loop_ir.nodes import Allocate, Func, Stmt, children, map_children
from tsc.sym import ZERO, SymExpr, ceildiv, product, sym_max
from tsc.te.expr import Buffer

ALIGNMENT = 64


def plan_scratch(func: Func) -> Func:
    """`func` with every scratch offset and its total set. A buffer lies behind those it lives within; siblings share."""
    body = _place(func.body, ZERO)
    return replace(func, body=body, scratch=_extent(body))


def item_bytes(dtype: str) -> int:
    """Bytes of one stored element."""
    if dtype == "bool":
        return 1
    return int("".join(ch for ch in dtype if ch.isdigit())) // 8


def buffer_bytes(buffer: Buffer) -> SymExpr:
    """Bytes of a plain buffer, rounded up to the alignment."""
    return ceildiv(product(buffer.shape) * item_bytes(buffer.dtype), ALIGNMENT) * ALIGNMENT


def _place(stmt: Stmt, used: SymExpr) -> Stmt:
    if isinstance(stmt, Allocate) and stmt.scope == "scratch":
        return replace(stmt, offset=used, body=_place(stmt.body, used + buffer_bytes(stmt.buffer)))
    return map_children(lambda s: _place(s, used), stmt)


def _extent(stmt: Stmt) -> SymExpr:
    extents = dict.fromkeys(_extent(s) for s in children(stmt))
    if isinstance(stmt, Allocate) and stmt.scope == "scratch":
        own = stmt.offset + buffer_bytes(stmt.buffer)
        return own if set(extents) <= {ZERO} else next(iter(extents))
    extents.pop(ZERO, None)
    if len(extents) <= 1:
        return next(iter(extents), ZERO)
    return sym_max(*extents)

"""share_edges: what a copy finds out about its edges, several rows of it use.

The rows of an operand's panel are cut where an image's rows end, and each is masked where an image ends: that takes longer
than to copy a row. Channels have these places in common: the loop over them goes to the innermost, some of them at a time, so
that their rows, which lie far from each other, stay in the cache for what else is copied of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tsc.loop_ir.marks import COPY
from tsc.loop_ir.nodes import Block, For, Func, If, Let, Stmt, Store, expressions, map_children, walk
from tsc.te.expr import Call, Expr, Var, add, call, index, variables
from tsc.te.expr import walk as walk_expr

#: Rows that are copied together.
TOGETHER = 8


def share_edges(func: Func) -> Func:
    """`func` with the loops of copies over rows that have their edges in common inside of those that find them."""
    def visit(stmt: Stmt) -> Stmt:
        if isinstance(stmt, For) and stmt.mark == COPY and _shares(stmt):
            group = f"{stmt.var}_group"
            end = call("min", add(Var(group), index(TOGETHER)), stmt.hi)
            return For(group, stmt.lo, stmt.hi, _sunk(replace(stmt, lo=Var(group), hi=end), stmt.body), TOGETHER, mark=COPY)
        return map_children(visit, stmt)

    return replace(func, body=visit(func.body))


def _shares(loop: For) -> bool:
    """Whether a loop has edges inside that it is no part of: all that depends on it is where an element is."""
    inner = list(walk(loop.body))
    if loop.kind != "serial" or loop.step != 1 or not any(isinstance(s, (Let, If)) for s in inner):
        return False
    plain = all(isinstance(s, (Block, For, If, Let, Store)) for s in inner)
    return plain and not any(loop.var in variables(expr) for stmt in inner for expr in _decisions(stmt))


def _decisions(stmt: Stmt) -> Iterator[Expr]:
    """The expressions of a statement but for the places of what it stores and loads: bounds, conditions, choices."""
    if not isinstance(stmt, Store):
        yield from expressions(stmt)
        return
    for expr in walk_expr(stmt.value):
        if isinstance(expr, Call) and expr.fn == "select":
            yield expr.args[0]


def _sunk(loop: For, stmt: Stmt) -> Stmt:
    """A statement with a loop around each store, or vector of stores, in it."""
    if isinstance(stmt, Store) or (isinstance(stmt, For) and stmt.kind == "vector"):
        return replace(loop, body=stmt)
    return map_children(lambda s: _sunk(loop, s), stmt)

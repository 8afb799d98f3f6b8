"""unroll_registers: what a thread does to its registers is written out, since an array whose places a loop counts is in memory.

So are steps of k, as far as few stores come of it: a warp executes its instructions in order, and has something to do while it
waits for shared memory only where later steps do not stand behind a branch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tsc.loop_ir.gpu.threads import trips
from tsc.loop_ir.marks import K
from tsc.loop_ir.nodes import Allocate, For, Func, Intrin, Stmt, Store, expressions, map_children, walk
from tsc.loop_ir.simplify import substitute_stmt
from tsc.te.expr import Expr, Load, Var, add, index, variables
from tsc.te.expr import walk as walk_expr

#: The most stores that loops are written out to.
MOST = 1024


def unroll_registers(func: Func) -> Func:
    """`func` with loops of kind "unroll": those that count places in registers, and a contraction's over k (or over as many
    steps of it as its stores allow), where no more than MOST stores come of it."""
    own = frozenset(s.buffer.name for s in walk(func.body) if isinstance(s, Allocate) and s.scope == "register")
    return replace(func, body=_unrolled(func.body, own)[0])


def _unrolled(stmt: Stmt, own: frozenset[str]) -> tuple[Stmt, int]:
    """The statement, and how many stores or intrinsics it is when all that is written out is (0: it cannot be as a whole)."""
    if isinstance(stmt, Store | Intrin):
        return stmt, 1
    counts: list[int] = []

    def visit(child: Stmt) -> Stmt:
        new, count = _unrolled(child, own)
        counts.append(count)
        return new

    made = map_children(visit, stmt)
    stores = sum(counts) if all(counts) else 0
    if not isinstance(made, For):
        return made, stores
    count = trips(made) or 0
    if made.kind in ("unroll", "vector"):
        return made, stores * (count if made.kind == "unroll" else 1)
    if made.kind != "serial" or not stores or not (made.mark == K or _counts_places(made, own)):
        return made, 0
    if stores * count <= MOST:
        return replace(made, kind="unroll"), stores * count
    together = max((size for size in range(2, count) if count % size == 0 and size * stores <= MOST), default=1)
    return (_split(made, together) if made.mark == K and together > 1 else made), 0


def _counts_places(loop: For, own: frozenset[str]) -> bool:
    """Whether the variable of a loop is in the index of a register."""
    def registers(stmt: Stmt) -> Iterator[Expr]:
        if isinstance(stmt, Store) and stmt.buffer.name in own:
            yield from stmt.index
        for expr in expressions(stmt):
            yield from (i for e in walk_expr(expr) if isinstance(e, Load) and e.buffer.name in own for i in e.index)

    return any(loop.var in variables(i) for stmt in walk(loop.body) for i in registers(stmt))


def _split(loop: For, together: int) -> For:
    """The loop over so many iterations at once, which are written out."""
    var, step = f"{loop.var}_step", loop.step * together
    body = substitute_stmt(loop.body, {loop.var: add(Var(loop.var), Var(var))})
    return replace(loop, step=step, body=replace(loop, var=var, lo=index(0), hi=index(step), body=body, kind="unroll"))

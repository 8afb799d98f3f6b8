"""Loops over a collapsed index, one run of equal quotients at a time.

A loop whose body divides its variable (the row of a flattened image, the head of a merged column) is a loop over the quotients
around the loop itself, in which the quotient is a variable and the remainder a difference: both affine, so that what reads
consecutive elements there can be vectorized.
"""

from __future__ import annotations

from dataclasses import replace

from tsc.loop_ir.nodes import For, Stmt, Store, map_children, walk
from tsc.sym import ONE, ZERO
from tsc.sym.expr import coefficient_of
from tsc.sym.facts import Facts
from tsc.te.expr import INDEX, Call, Expr, Var, add, call, index
from tsc.te.expr import map_children as map_operands
from tsc.te.expr import walk as walk_expr
from tsc.te.index import to_expr, to_sym

#: Runs shorter than this are not worth a loop.
_SHORTEST = 4


def at_quotients(loop: For, facts: Facts) -> tuple[For, For] | None:
    """The loop over the quotients of the first division in `loop` by something invariant, and `loop` as it runs within; None
    where there is no such division."""
    found = next((d for s in walk(loop.body) if isinstance(s, Store) for e in (*s.index, s.value)
                  for n in walk_expr(e) if (d := _division(n, loop, facts)) is not None), None)
    if found is None or loop.step != 1:
        return None
    offset, by = found
    outer = f"{loop.var}_q"
    while outer in facts.known:  # a quotient of a quotient
        outer += "q"
    taken = {e.name for bound in (loop.lo, loop.hi) for e in walk_expr(bound) if isinstance(e, Var)}
    while outer in taken:  # the loop runs within the quotients of another division already
        outer += "q"
    start = call("mul", Var(outer), by)
    last = call("sub", add(loop.hi, offset), index(1))
    low, high = call("floordiv", add(loop.lo, offset), by), add(call("floordiv", last, by), index(1))
    run = replace(loop, lo=call("max", loop.lo, call("sub", start, offset)),
                  hi=call("min", loop.hi, call("sub", add(start, by), offset)),
                  body=_undivided(loop.body, loop, found, Var(outer), facts))
    return For(outer, low, high, run, mark=loop.mark), run


def _division(expr: Expr, loop: For, facts: Facts) -> tuple[Expr, Expr] | None:
    """(offset, divisor) where `expr` is the quotient or remainder of `loop.var + offset` by an invariant divisor."""
    match expr:
        case Call(fn="floordiv" | "mod", args=(dividend, by)) if expr.dtype == INDEX:
            leaves: dict[str, Expr] = {}
            sym, divisor = to_sym(dividend, leaves), to_sym(by, leaves)
            if leaves or loop.var in divisor.dims() or coefficient_of(sym, loop.var) != ONE:
                return None
            if (divisor.as_int() or _SHORTEST) < _SHORTEST or not facts.nonneg(divisor - 1):  # or the bounds divide by zero
                return None
            return to_expr(sym.substitute({loop.var: ZERO}), {}, facts), by
    return None


def _undivided(stmt: Stmt, loop: For, found: tuple[Expr, Expr], quotient: Var, facts: Facts) -> Stmt:
    """`stmt` with that quotient a variable and that remainder a difference."""
    remainder = call("sub", add(Var(loop.var), found[0]), call("mul", quotient, found[1]))

    def visit(expr: Expr) -> Expr:
        if isinstance(expr, Call) and _division(expr, loop, facts) == found:
            return quotient if expr.fn == "floordiv" else remainder
        return map_operands(visit, expr)

    if isinstance(stmt, Store):
        return replace(stmt, index=tuple(map(visit, stmt.index)), value=visit(stmt.value))
    return map_children(lambda s: _undivided(s, loop, found, quotient, facts), stmt)

"""What is known within loops."""

from __future__ import annotations

from tsc.loop_ir.nodes import For, Let
from tsc.sym import SymExpr
from tsc.sym.facts import Facts
from tsc.te.expr import Expr
from tsc.te.index import to_sym


def trips(loop: For) -> SymExpr:
    """How often a loop whose step is 1 runs, where that is no less than 0; data that its bounds read are opaque."""
    leaves: dict[str, Expr] = {}
    return to_sym(loop.hi, leaves) - to_sym(loop.lo, leaves)


def inside(facts: Facts, stmt: For | Let) -> Facts:
    """The facts that hold in the body of `stmt`: those of loops alike are one, with all that was found out under it."""
    header = (stmt.var, stmt.value) if isinstance(stmt, Let) else (stmt.var, stmt.lo, stmt.hi, stmt.step)
    return facts.derived(header, lambda: _inside(facts, stmt))


def _inside(facts: Facts, stmt: For | Let) -> Facts:
    leaves: dict[str, Expr] = {}
    if isinstance(stmt, Let):
        value = to_sym(stmt.value, leaves)
        return facts.opaque(stmt.var) if leaves else facts.let(stmt.var, value)
    lo, hi = to_sym(stmt.lo, leaves), to_sym(stmt.hi, leaves)
    return facts.opaque(stmt.var) if leaves else facts.loop(stmt.var, lo, hi, stmt.step)

"""Register tiles that ask where they read: one question for a whole tile, before its k loops.

What is outside of an image is asked for each element that is read, though few tiles reach so far. Where all questions of a tile
can be told from those at its corners, they are asked there, and a tile that is inside is computed without any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial, reduce

from tsc.codegen_c.rows import chosen_rows
from tsc.codegen_c.scalar import Scope
from tsc.loop_ir.facts import inside
from tsc.loop_ir.marks import K
from tsc.loop_ir.nodes import Allocate, For, Func, If, Let, Stmt, expressions, map_children, map_exprs, walk
from tsc.sym import ZERO, SymExpr, product
from tsc.sym.expr import coefficient_of
from tsc.sym.facts import Facts
from tsc.te.compute import facts_of
from tsc.te.expr import INDEX, Call, Expr, call, index, operands
from tsc.te.expr import map_children as map_operands
from tsc.te.expr import walk as walk_expr
from tsc.te.index import to_expr, to_sym

#: From the variables of a tile's loops to their first and their last value.
Ends = Mapping[str, tuple[SymExpr, SymExpr]]
#: Which side of a comparison is the smaller one, and by how much at least.
_SMALLER = {"lt": (0, 1), "le": (0, 0), "gt": (1, 1), "ge": (1, 0)}


def asked_once(func: Func) -> Func:
    """`func` whose largest register tiles ask once where they can; others are rare, and code is compiled for each."""
    tiles = [s for s in walk(func.body) if isinstance(s, Allocate) and s.scope == "register"]
    most = max((product(s.buffer.shape).as_int() or 0 for s in tiles), default=0)

    def visit(stmt: Stmt, facts: Facts) -> Stmt:
        match stmt:
            case Allocate(scope="register") if product(stmt.buffer.shape).as_int() == most:
                return map_children(lambda s: _tile(s, facts), stmt)
            case For() | Let():
                inner = inside(facts, stmt)
                return map_children(lambda s: visit(s, inner), stmt)
        return map_children(lambda s: visit(s, facts), stmt)

    return replace(func, body=visit(func.body, facts_of(func.sizes))) if most else func


def _tile(stmt: Stmt, facts: Facts) -> Stmt:
    """What fills the accumulators, with its k loops as they are where something is outside, and without a question else."""
    if not (isinstance(stmt, For) and stmt.mark == K):
        return map_children(lambda s: _tile(s, facts), stmt)
    if any(isinstance(s, For) and chosen_rows(s, Scope(facts, {}, ())) for s in walk(stmt)):
        return stmt  # its rows are chosen once for many trips
    found = _worst(stmt, facts)
    corners = dict.fromkeys(corner for places in found.values() for corner in places)
    if not corners:
        return stmt
    asked = [call("lt", to_expr(corner, {}, facts), index(0)) for corner in corners]
    return If(reduce(partial(call, "and"), asked), map_exprs(lambda expr: _unasked(expr, found), stmt), stmt)


def _worst(loop: For, facts: Facts) -> dict[Expr, tuple[SymExpr, ...]]:
    """For each condition of a choice in a tile that can be told from its corners, what is less than 0 there where it holds
    everywhere in the tile."""
    ends = _ends(loop)
    found: dict[Expr, tuple[SymExpr, ...]] = {}
    for condition in _conditions(loop) if ends is not None else ():
        corners = [_corner(part, ends or {}) for part in operands(condition, "and")]
        known = [facts.reduce(corner) for corner in corners if corner is not None]
        if len(known) == len(corners):
            found[condition] = tuple(known)
    return found


def _ends(loop: For) -> Ends | None:
    """Those of a loop and all within it; None where data tell them, or a name has two meanings."""
    ends: dict[str, tuple[SymExpr, SymExpr]] = {}
    leaves: dict[str, Expr] = {}
    for each in walk(loop):
        if isinstance(each, Let):
            return None
        if isinstance(each, For):
            first, last = to_sym(each.lo, leaves), to_sym(each.hi, leaves) - 1
            trips = (last - first).as_int()
            if each.step != 1 and trips is not None:  # else an end that is a little beyond the last one
                last = first + trips // each.step * each.step
            if leaves or ends.setdefault(each.var, (first, last)) != (first, last):
                return None
    return ends


def _conditions(loop: For) -> Iterable[Expr]:
    seen = (node for stmt in walk(loop) for expr in expressions(stmt) for node in walk_expr(expr))
    return dict.fromkeys(n.args[0] for n in seen if isinstance(n, Call) and n.fn == "select")


def _corner(condition: Expr, ends: Ends) -> SymExpr | None:
    """The greatest value in a tile of what is less than 0 where a comparison holds; None where it is not known."""
    if not (isinstance(condition, Call) and condition.fn in _SMALLER and condition.args[0].dtype == INDEX):
        return None
    small, least = _SMALLER[condition.fn]
    leaves: dict[str, Expr] = {}
    lower, upper = (to_sym(condition.args[k], leaves) for k in (small, 1 - small))
    value = lower - upper + (least - 1)
    if leaves:
        return None
    for var, (first, last) in ends.items():
        factor = coefficient_of(value, var)
        step = None if factor is None else factor.as_int()
        if step is None:
            return None
        value = value.substitute({var: ZERO}) + (last if step > 0 else first) * step
    return None if value.dims() & ends.keys() else value


def _unasked(expr: Expr, known: Mapping[Expr, tuple[SymExpr, ...]]) -> Expr:
    if isinstance(expr, Call) and expr.fn == "select" and expr.args[0] in known:
        return _unasked(expr.args[1], known)
    return map_operands(lambda e: _unasked(e, known), expr)

"""Simplification: index expressions in one canonical form, decided conditions and trivial loops removed."""

from __future__ import annotations

from dataclasses import replace

from tsc.loop_ir.facts import inside
from tsc.loop_ir.nodes import Block, For, Func, If, Instance, Intrin, Let, Stmt, Store, block, map_children, map_exprs
from tsc.sym import SymExpr
from tsc.sym.expr import Apply
from tsc.sym.facts import Facts
from tsc.te.compute import facts_of
from tsc.te.expr import BOOL, INDEX, Call, Cast, Const, Expr, Size, may_wrap, substitute
from tsc.te.expr import map_children as map_operands
from tsc.te.index import to_expr, to_sym

_EMPTY = Block(())
_ORDER = {"lt": ("lt", 0, 1), "gt": ("lt", 1, 0), "le": ("le", 0, 1), "ge": ("le", 1, 0)}


def simplify(func: Func, keep_marked: bool = False) -> Func:
    """An equal Func with less to do. With `keep_marked`, loops with a mark stay even where they run exactly once, for the
    passes that look for them."""
    return replace(func, body=simplify_stmt(func.body, facts_of(func.sizes), keep_marked))


def simplify_stmt(stmt: Stmt, facts: Facts, keep_marked: bool = False) -> Stmt:
    """`stmt` under `facts`; an empty Block when nothing is left of it."""
    match stmt:
        case Store(index=index, value=value, instance=instance):
            if instance is not None:
                instance = Instance(instance.statement, tuple(simplify_expr(i, facts) for i in instance.index))
            return replace(stmt, index=tuple(simplify_expr(i, facts) for i in index), value=simplify_expr(value, facts),
                           instance=instance)
        case For():
            return _simplify_for(stmt, facts, keep_marked)
        case If(condition=condition, then=then, otherwise=otherwise):
            decided = simplify_expr(condition, facts)
            then = simplify_stmt(then, facts, keep_marked)
            otherwise = _EMPTY if otherwise is None else simplify_stmt(otherwise, facts, keep_marked)
            if isinstance(decided, Const):
                return then if decided.value else otherwise
            if then == _EMPTY and otherwise == _EMPTY:
                return _EMPTY
            return If(decided, then, None if otherwise == _EMPTY else otherwise)
        case Let(var=var, value=value, body=body):
            value = simplify_expr(value, facts)
            if isinstance(value, Const):
                return simplify_stmt(substitute_stmt(body, {var: value}), facts, keep_marked)
            inner = simplify_stmt(body, inside(facts, replace(stmt, value=value)), keep_marked)
            return _EMPTY if inner == _EMPTY else replace(stmt, value=value, body=inner)
        case Block(body=body):
            parts = [simplify_stmt(s, facts, keep_marked) for s in body]
            return block(*(p for p in parts if p != _EMPTY))
        case Intrin(meaning=meaning):  # the form of a meaning is what its renderer reads
            return replace(stmt, meaning=simplify_stmt(meaning, facts, keep_marked=True))
    inner = map_children(lambda s: simplify_stmt(s, facts, keep_marked), stmt)
    return inner


def _simplify_for(loop: For, facts: Facts, keep_marked: bool) -> Stmt:
    lo, hi = simplify_expr(loop.lo, facts), simplify_expr(loop.hi, facts)
    leaves: dict[str, Expr] = {}
    trip = facts.reduce(to_sym(hi, leaves) - to_sym(lo, leaves))
    if facts.nonneg(-trip):
        return _EMPTY
    once = facts.nonneg(trip - 1) and facts.nonneg(loop.step - trip)
    if once and loop.kind in ("serial", "unroll") and not (keep_marked and loop.mark):
        return simplify_stmt(substitute_stmt(loop.body, {loop.var: lo}), facts, keep_marked)
    kept = replace(loop, lo=lo, hi=hi)
    body = simplify_stmt(loop.body, inside(facts, kept), keep_marked)
    return _EMPTY if body == _EMPTY else replace(kept, body=body)


def simplify_expr(expr: Expr, facts: Facts) -> Expr:
    """`expr` with its index arithmetic canonical and what the facts decide folded."""
    if expr.dtype == INDEX and _is_arithmetic(expr) and not may_wrap(expr):
        leaves: dict[str, Expr] = {}
        sym = facts.reduce(to_sym(expr, leaves))
        kept = {name: map_operands(lambda c: simplify_expr(c, facts), leaf) for name, leaf in leaves.items()}
        return to_expr(sym, kept, facts)
    inner = map_operands(lambda c: simplify_expr(c, facts), expr)
    match inner:
        case Call(fn=fn, args=(a, b)) if fn in _ORDER or fn in ("eq", "ne"):
            return _decide(inner, fn, a, b, facts) if a.dtype == INDEX else inner
        case Call(fn="and" | "or" as fn, args=(a, b)):
            return _fold_logic(inner, fn, a, b)
        case Call(fn="not", args=(Const(value=value),)):
            return Const(not value, BOOL)
        case Call(fn="select", args=(Const(value=value), yes, no)):
            return yes if value else no
        case Cast(value=value, dtype=dtype) if value.dtype == dtype:
            return value
        case Cast(value=Const(value=value, dtype=source), dtype=dtype) if _exact(value, source, dtype):
            return Const(float(value) if dtype.startswith("float") else int(value), dtype)
    return inner


def substitute_stmt(stmt: Stmt, mapping: dict[str, Expr]) -> Stmt:
    """`stmt` with free Vars replaced, in instances too; the names bound inside must not occur in the replacements."""
    replaced = map_exprs(lambda e: substitute(e, mapping), stmt)
    return _substitute_instances(replaced, mapping)


def _substitute_instances(stmt: Stmt, mapping: dict[str, Expr]) -> Stmt:
    if isinstance(stmt, Store) and stmt.instance is not None:
        return replace(stmt, instance=stmt.instance.at(mapping))
    return map_children(lambda s: _substitute_instances(s, mapping), stmt)


def _is_arithmetic(expr: Expr) -> bool:
    if isinstance(expr, Size):
        return any(isinstance(a, Apply) for a in expr.value.atoms())
    return isinstance(expr, Call) and expr.fn in ("add", "sub", "mul", "neg", "floordiv", "mod", "min", "max")


def _exact(value: int | float | bool, source: str, dtype: str) -> bool:
    whole = ("int8", "int16", "int32", "int64", "bool")
    small = source in whole and abs(int(value)) < 128
    return small and dtype in ("float32", "float64", "int8", "int16", "int32", "int64")


def _decide(expr: Expr, fn: str, a: Expr, b: Expr, facts: Facts) -> Expr:
    leaves: dict[str, Expr] = {}
    sides = (facts.reduce(to_sym(a, leaves)), facts.reduce(to_sym(b, leaves)))
    if fn in _ORDER:
        name, first, second = _ORDER[fn]
        x, y = sides[first], sides[second]
        margin = SymExpr.of(1 if name == "lt" else 0)
        if facts.nonneg(y - x - margin):
            return Const(True, BOOL)
        if facts.nonneg(x - y + margin - 1):
            return Const(False, BOOL)
        return expr
    x, y = sides
    if facts.nonneg(x - y) and facts.nonneg(y - x):
        return Const(fn == "eq", BOOL)
    if facts.lt(x, y) or facts.lt(y, x):
        return Const(fn == "ne", BOOL)
    return expr


def _fold_logic(expr: Expr, fn: str, a: Expr, b: Expr) -> Expr:
    for known, other in ((a, b), (b, a)):
        if isinstance(known, Const):
            absorbs = bool(known.value) == (fn == "or")
            return known if absorbs else other
    return expr

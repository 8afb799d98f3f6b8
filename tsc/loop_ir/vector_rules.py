"""What one vector of iterations may compute: which accesses, which intrinsics, which conditions."""

from __future__ import annotations

from typing import Literal

from tsc.loop_ir.facts import Facts, coefficient_of, to_sym
from tsc.sym import ONE, ZERO, SymExpr
from tsc.te.expr import INDEX, Call, Cast, CheckedIndex, Expr, Load, Var, children, walk
from tsc.te.intrinsics import EXPENSIVE

_COMPARE = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_ARITHMETIC = frozenset({"add", "sub", "mul", "neg", "select"}) | _COMPARE
_INTEGER = _ARITHMETIC | {"min", "max"}

#: Intrinsics that have a vector form, by the dtype of their operands.
VECTOR_CALLS: dict[str, frozenset[str]] = {
    "float32": _ARITHMETIC | {"div", "isnan", "abs", "min", "max", "reciprocal", "sign", "exp", "log", "erf", "tanh", "sqrt",
                              "floor", "ceil", "round"},
    "float64": _ARITHMETIC | {"div", "isnan"},
    "int32": _INTEGER, "int64": _INTEGER,
    "bool": frozenset({"and", "or", "xor", "not", "select"})}
_LOADED = frozenset({"float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "bool"})

Access = Literal["invariant", "contiguous", "strided"]


class Refused(Exception):
    """Why a loop is not vectorized."""


def varies(expr: Expr, var: str) -> bool:
    """Whether `expr` uses the variable."""
    return any(isinstance(n, Var) and n.name == var for n in walk(expr))


def check_load(load: Load, var: str) -> Access:
    """How an access moves with the variable. Raises Refused where its place is not affine in it."""
    if not any(varies(i, var) for i in load.index):
        return "invariant"
    leaves: dict[str, Expr] = {}
    factors: list[SymExpr] = []
    for i in load.index:
        factor = coefficient_of(to_sym(i, leaves), var)
        if factor is None:
            raise Refused(f"the index of {load.buffer.name} is not affine in it")
        factors.append(factor)
    if any(varies(leaf, var) for leaf in leaves.values()):
        raise Refused(f"the index of {load.buffer.name} depends on data")
    if load.buffer.panel is not None:
        raise Refused(f"{load.buffer.name} is stored in panels")
    return "contiguous" if factors[-1] == ONE and all(f == ZERO for f in factors[:-1]) else "strided"


def check_value(value: Expr, var: str, facts: Facts) -> None:
    """Raises Refused unless `value` can be computed for all lanes at once; `facts` hold inside the loop."""
    costly = any(isinstance(n, Call) and n.fn in EXPENSIVE for n in walk(value))
    safe = frozenset(n for n in unconditional(value) if isinstance(n, (Load, CheckedIndex)))
    _check(value, var, facts, costly, False, safe)


def unconditional(expr: Expr) -> list[Expr]:
    """The parts of `expr` that are evaluated whatever its conditions say."""
    parts = (expr.args[0],) if isinstance(expr, Call) and expr.fn == "select" else children(expr)
    return [*(n for part in parts for n in unconditional(part)), expr]


def _check(expr: Expr, var: str, facts: Facts, costly: bool, conditional: bool, safe: frozenset[Expr]) -> None:
    if conditional and expr not in safe:
        _check_unconditional(expr, facts)
    if not varies(expr, var):
        return
    if expr.dtype == INDEX and is_affine(expr, var):
        return
    match expr:
        case Load(buffer=buffer):
            if buffer.dtype not in _LOADED:
                raise Refused(f"{buffer.dtype} has no vectors")
            if check_load(expr, var) == "strided" and not costly:
                raise Refused(f"{buffer.name} is read with a stride")
            return
        case Cast(value=value, dtype=dtype):
            if not {value.dtype, dtype} <= _LOADED or (value.dtype.startswith("float") and not dtype.startswith("float")
                                                       and dtype != "bool"):
                raise Refused(f"{value.dtype} to {dtype} has no vector form")
        case Call(fn=fn, args=args):
            if fn not in VECTOR_CALLS.get(args[-1].dtype, ()):
                raise Refused(f"{fn} on {args[-1].dtype} has no vector form")
            if fn == "select":
                _check(args[0], var, facts, costly, conditional, safe)
                _check(args[1], var, facts, costly, True, safe)
                _check(args[2], var, facts, costly, True, safe)
                return
        case CheckedIndex():
            raise Refused("it computes an index from data")
    for child in children(expr):
        _check(child, var, facts, costly, conditional, safe)


def is_affine(expr: Expr, var: str) -> bool:
    """Whether an int64 expression is affine in the variable."""
    leaves: dict[str, Expr] = {}
    factor = coefficient_of(to_sym(expr, leaves), var)
    return factor is not None and not any(varies(leaf, var) for leaf in leaves.values())


def _check_unconditional(expr: Expr, facts: Facts) -> None:
    """What stands under a condition is evaluated for every lane: it must be harmless where the condition does not hold."""
    if isinstance(expr, CheckedIndex):
        raise Refused("it checks an index under a condition")
    if not isinstance(expr, Load):
        return
    for place, extent in zip(expr.index, expr.buffer.shape):
        leaves: dict[str, Expr] = {}
        sym = facts.reduce(to_sym(place, leaves))
        if leaves or not (facts.nonneg(sym) and facts.lt(sym, extent)):
            raise Refused(f"a condition guards {expr.buffer.name}, which may be read out of bounds without it")


def split_point(condition: Expr, var: str, inner: Facts, outer: Facts) -> tuple[Expr, Expr, bool] | None:
    """A comparison within `condition` that changes once along the loop: the comparison, the first iteration at which it has
    changed, and its value before. None where there is none."""
    if isinstance(condition, Call) and condition.fn in ("and", "or", "not"):
        return next((f for f in (split_point(a, var, inner, outer) for a in condition.args) if f is not None), None)
    if not (isinstance(condition, Call) and condition.fn in ("lt", "le", "gt", "ge") and condition.args[0].dtype == INDEX):
        return None
    leaves: dict[str, Expr] = {}
    a, b = (inner.reduce(to_sym(x, leaves)) for x in condition.args)
    if leaves:
        return None
    if condition.fn in ("gt", "ge"):
        a, b = b, a
    bound = b - a + (1 if condition.fn in ("le", "ge") else 0)  # the condition is `bound > 0`
    factor = coefficient_of(bound, var)
    value = None if factor is None else factor.as_int()
    if value not in (1, -1):
        return None
    at = bound.substitute({var: ZERO})
    if value == -1:  # at - var > 0: true while var < at
        return condition, outer.to_expr(at, {}), True
    return condition, outer.to_expr(1 - at, {}), False  # var + at > 0: true from var = 1 - at on


"""Comparisons and logic; symbolic contents are decided where the ShapeEnv can prove them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tsc.ops.base import OpDef, Sample
from tsc.ops.elementwise import Rule, elementwise, intrinsic, pairs
from tsc.ops.samples import bools
from tsc.sym import ONE, ZERO, ShapeEnv, SymExpr
from tsc.te.expr import BOOL

Relation = Callable[[ShapeEnv, SymExpr, SymExpr], bool]


def _decided(holds: Relation, fails: Relation) -> Callable[[ShapeEnv, SymExpr, SymExpr], SymExpr | None]:
    def rule(env: ShapeEnv, a: SymExpr, b: SymExpr) -> SymExpr | None:
        return ONE if holds(env, a, b) else ZERO if fails(env, a, b) else None
    return rule


def _lt(env: ShapeEnv, a: SymExpr, b: SymExpr) -> bool:
    return env.prove_lt(a, b)


def _le(env: ShapeEnv, a: SymExpr, b: SymExpr) -> bool:
    return env.prove_le(a, b)


def _gt(env: ShapeEnv, a: SymExpr, b: SymExpr) -> bool:
    return env.prove_lt(b, a)


def _ge(env: ShapeEnv, a: SymExpr, b: SymExpr) -> bool:
    return env.prove_le(b, a)


def _and(env: ShapeEnv, a: SymExpr, b: SymExpr) -> SymExpr | None:
    return ZERO if ZERO in (a, b) else ONE if a == b == ONE else None


def _or(env: ShapeEnv, a: SymExpr, b: SymExpr) -> SymExpr | None:
    return ONE if ONE in (a, b) else ZERO if a == b == ZERO else None


def _xor(env: ShapeEnv, a: SymExpr, b: SymExpr) -> SymExpr | None:
    return (ONE if a != b else ZERO) if {a, b} <= {ONE, ZERO} else None


def _not(env: ShapeEnv, a: SymExpr) -> SymExpr | None:
    return ONE - a if a in (ONE, ZERO) else None


def _negations() -> Sequence[Sample]:
    return [Sample([bools(3, 5)]), Sample([bools()])]


def _compared(name: str, fn: str, holds: Relation, fails: Relation, *dtypes: str) -> OpDef:
    return elementwise(name, intrinsic(fn), result=BOOL, samples=pairs(*dtypes), rule=_decided(holds, fails), required=2)


def _joined(name: str, fn: str, rule: Rule, neutral: bool) -> OpDef:
    return elementwise(name, intrinsic(fn), result=BOOL, samples=pairs("bool"), rule=rule, required=2, neutral=(neutral,) * 2)


OPS: tuple[OpDef, ...] = (
    _compared("Equal", "eq", lambda e, a, b: e.prove_eq(a, b), lambda e, a, b: e.prove_ne(a, b), "int64", "bool"),
    _compared("Less", "lt", _lt, _ge, "float32", "int64"),
    _compared("LessOrEqual", "le", _le, _gt, "float32", "int64"),
    _compared("Greater", "gt", _gt, _le, "float32", "int64"),
    _compared("GreaterOrEqual", "ge", _ge, _lt, "float32", "int64"),
    _joined("And", "and", _and, True),
    _joined("Or", "or", _or, False),
    _joined("Xor", "xor", _xor, False),
    elementwise("Not", intrinsic("not"), result=BOOL, samples=_negations, rule=_not),
)

"""Index expressions as SymExprs, whose Dims are the sizes and variables in scope, and back."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc.errors import InternalError
from tsc.sym import SymExpr, dim, sym_max, sym_min
from tsc.sym.expr import Atom, Dim, Monomial, names_of
from tsc.sym.facts import Facts
from tsc.te.expr import INDEX, Call, Const, Expr, Size, Var, as_size, call, format_expr, index, is_far, may_wrap
from tsc.te.intrinsics import MEANING

_NAMES = {"//": "floordiv", "%": "mod", "min": "min", "max": "max"}
_ARITHMETIC: Mapping[str, Callable[..., SymExpr]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": operator.floordiv, "mod": operator.mod,
    "min": sym_min, "max": sym_max, "neg": operator.neg, "abs": lambda a: sym_max(a, -a)}


def to_sym(expr: Expr, leaves: dict[str, Expr]) -> SymExpr:
    """An int64 expression as a SymExpr; what is not index arithmetic, all that may wrap around among it, becomes a Dim that
    `leaves` maps back. Leaves are named by their text, so that equal ones are equal."""
    match expr:
        case Var(name=name):
            return dim(name)
        case Const(value=value, dtype=dtype) if dtype == INDEX and not may_wrap(expr):
            return SymExpr.of(int(value))
        case Size(value=value) if not may_wrap(expr):
            return value
        case Call(fn=fn, args=args, dtype=dtype) if dtype == INDEX and fn in _ARITHMETIC:
            parts = [to_sym(a, leaves) for a in args]
            wraps = leaves and any(name in leaves and may_wrap(leaves[name]) for part in parts for name in part.dims())
            if not wraps and not (fn in ("floordiv", "mod") and parts[1].as_int() == 0):
                found = _ARITHMETIC[fn](*parts)
                if not is_far(found):
                    return found
    if expr.dtype != INDEX:
        raise InternalError(f"an index must be int64, not {expr.dtype}: {format_expr(expr)}")
    name = f"%{format_expr(expr)}"
    leaves[name] = expr
    return dim(name)


def is_affine(expr: Expr) -> bool:
    """Whether an index is (quasi-)affine in variables and sizes: no data, no Cast, and products and quotients by integers only.
    Of that isl says all exactly."""
    match expr:
        case Var() | Const() | Size():
            return expr.dtype == INDEX
        case Call(fn=fn, args=args) if expr.dtype == INDEX and fn in _ARITHMETIC:
            return all(map(is_affine, args)) and by_integer(expr)
    return False


def by_integer(expr: Expr) -> bool:
    """Whether an index node multiplies and divides by integers only, those of its operands aside."""
    match expr:
        case Call(fn="mul", args=args) if expr.dtype == INDEX:
            return any(_integer(a) is not None for a in args)
        case Call(fn="floordiv" | "mod", args=(_, by)) if expr.dtype == INDEX:
            return (_integer(by) or 0) > 0
    return True


def _integer(expr: Expr) -> int | None:
    size = as_size(expr)
    return None if size is None else size.as_int()


def to_expr(sym: SymExpr, leaves: Mapping[str, Expr], facts: Facts) -> Expr:
    """The index expression of `sym`, its terms ordered from the outermost variable to the innermost, so that a
    compiler hoists what is invariant."""
    moving = [t for t in sym.terms if not names_of(t[0]) <= facts.sizes]
    fixed = sym if not moving else SymExpr(tuple(t for t in sym.terms if names_of(t[0]) <= facts.sizes))
    if len(moving) > 1:
        moving.sort(key=lambda term: _term_depth(term, facts))
    result = index(fixed)
    empty = not fixed.terms
    for monomial, coefficient in moving:
        scale = SymExpr.of(coefficient if empty else abs(coefficient))
        factors: list[Expr] = []
        for atom in monomial:
            if isinstance(atom, Dim) and atom in facts.sizes:
                scale = scale * dim(atom)
            else:
                factors.append(_atom_expr(atom, leaves, facts))
        term = factors[0]
        for factor in factors[1:]:
            term = call("mul", term, factor)
        term = call("mul", term, index(scale))
        result = term if empty else call("sub" if coefficient < 0 else "add", result, term)
        empty = False
    return result


def _term_depth(term: tuple[Monomial, int], facts: Facts) -> tuple[int, str]:
    names = names_of(term[0]) - facts.sizes
    depth = max((facts.known[n].depth if n in facts.known else 1 << 20 for n in names), default=0)
    return depth, _text(term[0])


@lru_cache(maxsize=1 << 14)
def _text(monomial: Monomial) -> str:
    return str(SymExpr(((monomial, 1),)))


def _atom_expr(atom: Atom, leaves: Mapping[str, Expr], facts: Facts) -> Expr:
    if isinstance(atom, Dim):
        leaf = leaves.get(atom)
        return Var(atom.name) if leaf is None else leaf
    args = [to_expr(a, leaves, facts) for a in atom.args]
    result = args[0]
    for arg in args[1:]:
        result = call(_NAMES[atom.fn], result, arg)
    return result


def evaluated(expr: Expr, grid: Mapping[str, NDArray[Any]]) -> Any:
    """An index where its Vars have the values `grid`; None where it is made of something else."""
    match expr:
        case Var(name=name):
            return grid.get(name)
        case Const(value=value):
            return np.int64(value)
        case Size(value=value) if value.as_int() is not None:
            return np.int64(value.as_int() or 0)
        case Call(fn=fn, args=args) if fn in MEANING:
            values = [evaluated(a, grid) for a in args]
            return None if any(v is None for v in values) else MEANING[fn](*values)
    return None

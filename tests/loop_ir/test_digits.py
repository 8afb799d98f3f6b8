"""Quotients and remainders of aligned sums: the same values at every point, fewer operations."""

from __future__ import annotations

import itertools

import pytest

from tests.loop_ir.funcs import buffer
from tsc.loop_ir.nodes import For, Stmt, Store
from tsc.loop_ir.oracle.interpret_serial import _INDEX_OPERATORS
from tsc.loop_ir.simplify import simplify_stmt
from tsc.sym.facts import Facts
from tsc.te.expr import Call, Const, Expr, Var, add, call, index, mul, walk

#: Loops: name, low, high, step.
LOOPS = (("a", 0, 64, 16), ("b", 0, 16, 8), ("t", 0, 8, 1), ("p", 0, 8, 2), ("s", 4, 12, 4))


def value(expr: Expr, at: dict[str, int]) -> int:
    match expr:
        case Var(name=name):
            return at[name]
        case Const(value=constant):
            return int(constant)
        case Call(fn=fn, args=args):
            return _INDEX_OPERATORS[fn](*(value(a, at) for a in args))
    raise AssertionError(expr)


def split(expr: Expr) -> Expr:
    """`expr` as the index of a store in the loops."""
    stmt: Stmt = Store(buffer("x", 4096), (expr,), Const(0.0, "float32"))
    for name, low, high, step in reversed(LOOPS):
        stmt = For(name, index(low), index(high), stmt, step)
    stmt = simplify_stmt(stmt, Facts())
    while isinstance(stmt, For):
        stmt = stmt.body
    assert isinstance(stmt, Store)
    return stmt.index[0]


A, B, T, P, S = (Var(name) for name, *_ in LOOPS)
ROW = add(add(A, B), T)
WANTED: dict[str, tuple[Expr, Expr | None]] = {
    "quotient": (call("floordiv", ROW, index(16)), call("floordiv", A, index(16))),
    "remainder": (call("mod", ROW, index(8)), T),
    "digit": (call("floordiv", call("mod", ROW, index(16)), index(8)), None),
    "of_pairs": (call("floordiv", call("mod", add(B, P), index(8)), index(2)), None),
    "scaled": (call("floordiv", add(mul(index(4), B), P), index(32)), None),
    "constant": (call("floordiv", add(ROW, index(19)), index(16)), None),
    "negative": (call("mod", call("sub", T, index(3)), index(8)), None),
    "shifted_loop": (call("floordiv", add(S, T), index(4)), None),
    "unaligned": (call("mod", add(T, P), index(6)), None),
    "nested": (call("mod", call("floordiv", add(add(A, B), T), index(4)), index(4)), None),
}


@pytest.mark.parametrize("name", WANTED)
def test_values_stay(name: str) -> None:
    before, expected = WANTED[name]
    after = split(before)
    assert expected is None or after == expected
    for point in itertools.product(*(range(low, high, step) for _, low, high, step in LOOPS)):
        at = dict(zip((n for n, *_ in LOOPS), point))
        assert value(after, at) == value(before, at), at


@pytest.mark.parametrize("name", ["quotient", "digit", "scaled"])
def test_what_differs_between_threads_goes(name: str) -> None:
    """Registers must not be indexed by it."""
    assert not {"t", "p"} & {e.name for e in walk(split(WANTED[name][0])) if isinstance(e, Var)}

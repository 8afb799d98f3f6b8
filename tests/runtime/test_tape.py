"""Expressions: a Tape agrees with `SymExpr.evaluate`, and the text a plan is stored in reads back as the same expression."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsc.runtime.tape import Tape
from tsc.sym import SymExpr, dim, parse, sym_max, sym_min

NAMES = ("a", "b", "c")


def combine(parts: tuple[str, SymExpr, SymExpr]) -> SymExpr:
    fn, a, b = parts
    match fn:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
        case "//" if b != SymExpr.of(0):
            return a // b
        case "%" if b != SymExpr.of(0):
            return a % b
        case "max":
            return sym_max(a, b)
        case "min":
            return sym_min(a, b)
    return a


LEAVES = st.one_of(st.integers(-3, 70).map(SymExpr.of), st.sampled_from(NAMES).map(dim))
EXPRS = st.recursive(LEAVES, lambda inner: st.tuples(
    st.sampled_from(("+", "-", "*", "//", "%", "max", "min")), inner, inner).map(combine), max_leaves=8)


@given(EXPRS)
def test_text_reads_back(expr: SymExpr) -> None:
    assert parse(str(expr)) == expr


@given(st.lists(EXPRS, max_size=6), st.tuples(*[st.integers(1, 99)] * 3))
def test_tape_is_evaluate(exprs: list[SymExpr], sizes: tuple[int, int, int]) -> None:
    env = dict(zip(NAMES, sizes))
    try:
        expected = [e.evaluate(env) for e in exprs]
    except ZeroDivisionError:
        with pytest.raises(ZeroDivisionError):
            Tape(NAMES, exprs).evaluate(sizes)
    else:
        assert Tape(NAMES, exprs).evaluate(sizes) == expected


def test_shared_work_is_done_once() -> None:
    a, b = dim("a"), dim("b")
    tape = Tape(("a", "b"), [a * b * 4, a * b * 4, a * b * 8 + a, (a * b) // 7])
    assert len(tape._operations) == 5  # a*b, *4, *8, +a, //7

"""What ends of sizes decide nothing, and which are kept."""

from __future__ import annotations

import pytest

from tsc.sym import SymExpr, dim
from tsc.te.compute import SUM, Axis, Compute, Fact, Program, SizeParam
from tsc.te.expr import Buffer, Load, Var
from tsc.te.passes.widen import widened

S0, S1, H0 = dim("s0"), dim("s1"), dim("h0")


def sums(sizes: tuple[SizeParam, ...], columns: SymExpr, facts: tuple[Fact, ...] = ()) -> Program:
    """The sum of each row of `s0` rows of so many columns."""
    x, y = Buffer("t0", "float32", (S0, columns)), Buffer("t1", "float32", (S0,))
    body = Load(x, (Var("i0"), Var("i1")))
    return Program((x,), (y,), (Compute(y, (Axis("i0", S0),), body, (Axis("i1", columns),), SUM),), sizes, facts)


@pytest.mark.parametrize("end,left", [(63, 63), (64, None), (1000, None), (None, None), (12, 12)])
def test_ends_of_rows(end: int | None, left: int | None) -> None:
    made = widened(sums((SizeParam("s0", 5, 1, end), SizeParam("s1", 1, 1, 128)), S1))
    assert made.sizes == (SizeParam("s0", 5, 1, left), SizeParam("s1", 1, 1, 128))  # columns are reduced over


def test_an_end_that_an_extent_falls_with_is_kept() -> None:
    for rest, left in ((SymExpr.of(128) - S0, 128), (S0 + 128, None)):
        x, y = Buffer("t0", "float32", (rest,)), Buffer("t1", "float32", (rest,))
        copy = Compute(y, (Axis("i0", rest),), Load(x, (Var("i0"),)))
        assert widened(Program((x,), (y,), (copy,), (SizeParam("s0", 1, 1, 128),))).sizes[0].hi == left


def test_ends_of_what_is_no_size() -> None:
    kept = (Fact(S0, "<=", S1), Fact(SymExpr.of(64), "<=", H0), Fact(H0, "<=", SymExpr.of(12)), Fact(S1, "<=", SymExpr.of(64)),
            Fact(S0, "==", H0 + 1))
    program = sums((SizeParam("s0", 1, 1, 128), SizeParam("s1", 1, 1, 128)), S1, (*kept, Fact(H0, "<=", SymExpr.of(127))))
    assert widened(program).facts == kept

"""What ends of sizes decide nothing, and which are kept."""

from __future__ import annotations

import numpy as np
import pytest

import tsc
from tests.graph.models import model
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


@pytest.mark.parametrize("end,left", [(1023, 1023), (1024, None), (1 << 47, None)])
def test_ends_of_what_is_reduced_over(end: int, left: int | None) -> None:
    assert widened(sums((SizeParam("s0"), SizeParam("s1", 1, 1, end)), S1)).sizes[1].hi == left


@pytest.mark.parametrize("end", [4096, 1 << 31, 1 << 62])
def test_a_run_takes_the_memory_of_its_rows_and_not_of_the_longest(end: int) -> None:
    made = model("y = Softmax<axis = 1>(x)", "float[a, b] x", "float[a, b] y", opset=18)
    for dims in ({"b": (0, end)}, {"a": (1, end), "b": (1, end)}):
        executable = tsc.compile(made, dims=dims)
        assert 0 < executable.peak_bytes(a=3, b=5) <= 4 * executable.stats["threads"] * 4096
        x = np.array([[0, 1, 2, 3, np.log(2)]] * 3, np.float32)
        np.testing.assert_allclose(executable.run(None, {"x": x})[0], np.exp(x) / np.exp(x).sum(1, keepdims=True), rtol=1e-6)


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

"""Numbers that are made from indices and constants: what is compared and cast of them is the same wherever loops decide it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.loop_ir import funcs
from tests.poly.support import SMALL
from tsc.errors import InternalError
from tsc.loop_ir.lower import lower
from tsc.loop_ir.print import format_func
from tsc.poly.schedule import schedule_program
from tsc.sym import SymExpr, dim, sym_max, sym_min
from tsc.sym.expr import floordiv, mod
from tsc.te.compute import MAX, SUM, Axis, Compute, Program, SizeParam
from tsc.te.expr import Buffer, Call, Cast, Const, Expr, Load, Var, add, call, index, map_children, mul, select
from tsc.validate import check_values
from tsc.validate.frames import Sizes

ENDS, CUT = Buffer("x", "float32", (dim("N"),)), Buffer("y", "float32", (dim("N"),))
HERE = Load(ENDS, (Var("i"),))
#: An input at the beginning, and behind its end a number.
LATER = add(Var("i"), index(3))
SPLIT = select(call("lt", LATER, index(dim("N"))), Load(ENDS, (LATER,)), Const(0.0, "float32"))
FIVE = Const(5.0, "float32")


@pytest.mark.parametrize("body", [
    Cast(Cast(call("abs", SPLIT), "int64"), "float32"),
    select(call("lt", SPLIT, Const(-1.0, "float32")), FIVE, HERE),
    select(call("ge", mul(SPLIT, Cast(Var("i"), "float32")), Const(-0.5, "float32")), FIVE, HERE),
], ids=["cast", "comparison", "product"])
def test_a_choice_by_indices_may_be_made_outside_of_what_is_compared(body: Expr) -> None:
    """Found by random programs: isl cuts loops where such a choice changes sides, and one side is a number then."""
    program = Program((ENDS,), (CUT,), (Compute(CUT, (Axis("i", dim("N")),), body),), (SizeParam("N"),))
    made = schedule_program(program, SMALL, None, None, "cut", [])
    func = lower(made.func, SMALL)
    assert "select(lt(add(" not in format_func(func)  # it is cut: or else this tries nothing
    assert check_values(program, func, None if made.scop is None else made.scop.program).undecided is None


@pytest.mark.parametrize("of", [
    lambda x: Cast(x, "int32"), lambda x: select(call("lt", x, FIVE), FIVE, HERE),
    lambda x: Cast(select(call("gt", Call("mod", (LATER, index(3)), "int64"), index(0)), x, FIVE), "int32"),
], ids=["cast", "comparison", "choice"])
def test_a_number_may_be_inlined_where_it_is_compared(of: Callable[[Expr], Expr]) -> None:
    """Found by random programs: a target's elements, some of which are made from indices alone, counted as data where they were
    read and as numbers where what they are stood in their place."""
    kept, here = Buffer("t", "float32", (dim("N"),)), Var("i")
    made = select(call("ge", HERE, FIVE), HERE, Cast(here, "float32"))
    out, axes = Buffer("y", of(HERE).dtype, (dim("N"),)), (Axis("i", dim("N")),)

    def program(*computes: Compute) -> Program:
        return Program((ENDS,), (out,), computes, (SizeParam("N"),))

    two = program(Compute(kept, axes, made), Compute(out, axes, of(Load(kept, (here,)))))
    found = schedule_program(program(Compute(out, axes, of(made))), SMALL, None, None, "inlined", [])
    func = lower(found.func, SMALL)
    assert found.scop is not None and check_values(two, func, found.scop.program).undecided is None

    def replaced(expr: Expr) -> Expr:
        """Another number in place of each that is made from an index."""
        inner = map_children(replaced, expr)
        return add(inner, funcs.c32(1.0)) if isinstance(inner, Cast) and inner.dtype == "float32" else inner

    (only,) = found.scop.program.computes
    wrong = replace(found.scop.program, computes=(replace(only, body=replaced(only.body)),))
    with pytest.raises(InternalError, match="another value in the scheduled Program"):
        check_values(two, func, wrong)


def halves(through: bool, kept: bool, limit: float = 2.5) -> Program:
    """y is 5 where half of a place is less than a limit, else x, or -1 where the half becomes 3: through a target of its
    own, which may be kept as an output."""
    j, rows = Axis("j", dim("N")), Buffer("t", "float32", (dim("N"),))

    def half(axis: str) -> Expr:
        return mul(Cast(Var(axis), "float32"), Const(0.5, "float32"))

    def of_half(at: Expr) -> Expr:
        other = select(call("eq", Cast(at, "int64"), index(3)), Const(-1.0, "float32"), HERE)
        return select(call("lt", at, Const(limit, "float32")), FIVE, other)

    first = Compute(rows, (j,), half("j"))
    last = Compute(CUT, (Axis("i", dim("N")),), of_half(Load(rows, (Var("i"),)) if through else half("i")))
    return Program((ENDS,), (rows, CUT) if kept else (CUT,), (first, last) if through or kept else (last,), (SizeParam("N"),))


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("meant", [False, True])
@pytest.mark.parametrize("made", [False, True])
def test_numbers_are_known_behind_memory(kept: bool, meant: bool, made: bool) -> None:
    """Found by random programs: what is compared or becomes an integer was a number where it is computed on the spot, and data
    where it had been stored, so that a temporary could not be written out."""
    found = schedule_program(halves(made, kept), SMALL, None, None, "halves", [])
    func, scheduled = lower(found.func, SMALL), None if found.scop is None else found.scop.program
    assert check_values(halves(meant, kept), func, scheduled).undecided is None
    with pytest.raises(InternalError, match=r"is not what its Program means: y\["):
        check_values(halves(meant, kept, 3.0), func, scheduled)


def test_what_nothing_folds_to_is_a_number_to_nobody() -> None:
    """Found by a random operator, the logarithm of a sum over an axis that may be empty: where it was, loops knew that the
    maximum is minus infinity, and te did not, so that comparisons with it came out otherwise."""
    table, axes = Buffer("x", "float32", (dim("N"), dim("M"), dim("K"))), (Axis("i", dim("N")), Axis("k", dim("K")))
    top, held, whole, out = (Buffer(name, "float32", (dim("N"), dim("K"))) for name in ("t", "h", "s", "y"))
    at, within = (Var("i"), Var("k")), (Axis("j", dim("M")),)
    greatest, zero, x = Load(top, at), Const(0.0, "float32"), Load(table, (Var("i"), Var("j"), Var("k")))
    least = call("and", call("isinf", greatest), call("lt", greatest, zero))
    program = Program((table,), (out,), (
        Compute(top, axes, x, within, MAX), Compute(held, axes, select(least, zero, greatest)),
        Compute(whole, axes, call("exp", call("sub", x, Load(held, at))), within, SUM),
        Compute(out, axes, add(call("log", Load(whole, at)), Load(held, at)))),
        (SizeParam("N", 0, hi=4), SizeParam("M", 0, hi=44), SizeParam("K", 0, hi=4)))
    made = schedule_program(program, SMALL, None, None, "nothing", [])
    assert made.scop is not None
    check_values(program, lower(made.func, SMALL), made.scop.program)


N, M = dim("N"), dim("M")
#: Products of up to five dims beside their quotients, remainders and extrema: far beyond 64 bits at the greatest sizes.
EXPRESSIONS: list[SymExpr] = [
    N * N * M + N * M, N * N * M * M * N - M, floordiv(N * N * M, M + 1), mod(N * N * M, N + M), sym_max(N * N * M, M),
    sym_min(N * N * M, M) - N * M * M, floordiv(M, N * N * M + 1), (N - M) * N * M, floordiv(-1 * N * N * M, N + 2),
]
SIZE = st.one_of(st.integers(1, 9), st.integers(2**31 - 1, 2**31 + 1), st.integers(2**46, 2**47))


@given(st.lists(st.tuples(SIZE, SIZE), min_size=1, max_size=4), st.sampled_from(EXPRESSIONS))
def test_sizes_are_exact_at_any_magnitude(cases: list[tuple[int, int]], expr: SymExpr) -> None:
    """Sizes are tried by the thousand, in arrays of 64 bits where these hold all that comes up."""
    found = Sizes({"N": np.array([n for n, _ in cases]), "M": np.array([m for _, m in cases])}, len(cases)).of(expr)
    assert np.broadcast_to(np.asarray(found), len(cases)).tolist() == [expr.evaluate({"N": n, "M": m}) for n, m in cases]

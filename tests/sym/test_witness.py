"""Points in scope refute only what no proof can show: at each of them all facts hold, whatever the loops are."""

from __future__ import annotations

import random

import pytest

from tsc.loop_ir.facts import inside
from tsc.loop_ir.nodes import Block, For
from tsc.sym import SymExpr, dim, sym_max, sym_min
from tsc.sym.witness import Point, extended, is_negative
from tsc.te.compute import SizeParam, facts_of
from tsc.te.expr import Call, Expr, Size, Var, call, index

N = dim("N")


def drawn(rng: random.Random, names: list[str]) -> tuple[SymExpr, Expr]:
    """A bound over sizes and the variables around it, as a SymExpr and as an index expression."""
    total, text = SymExpr.of(rng.randint(-3, 9)), index(0)
    text = index(total)
    for name in rng.sample(names, min(len(names), rng.randint(0, 2))):
        factor = rng.choice((1, 1, 2, -1, 16))
        total = total + dim(name) * factor
        text = call("add", text, call("mul", Size(dim(name)) if name in ("N", "M") else Var(name), index(factor)))
    if rng.random() < 0.3:
        cap = rng.randint(1, 64)
        return sym_min(total, cap), Call("min", (text, index(cap)), "int64")
    return total, text


@pytest.mark.defect(33)
@pytest.mark.parametrize("seed", range(60))
def test_every_point_lies_within_all_loops(seed: int) -> None:
    rng = random.Random(seed)
    facts = facts_of((SizeParam("N", 1), SizeParam("M", 0, 4, 512)))
    names, bounds = ["N", "M"], []
    for depth in range(rng.randint(1, 5)):
        (low, lo), (high, hi) = drawn(rng, names), drawn(rng, names)
        step = rng.choice((1, 1, 4))
        facts = inside(facts, For(f"i{depth}", lo, hi, Block(()), step=step))
        bounds.append((f"i{depth}", low, high))
        names.append(f"i{depth}")
    for point in facts._witnesses():
        assert point["N"] >= 1 and 0 <= point["M"] <= 512
        assert all(low.evaluate(point) <= point[name] < high.evaluate(point) for name, low, high in bounds)


@pytest.mark.parametrize("expr, lies", [
    (N - 1, False), (N - 2, True), (100 - N, True), (dim("i"), False), (N - dim("i") - 1, False), (N - dim("i") - 2, True),
    (sym_max(N, 5) - 5, False), (sym_max(N, 5) - 6, True), (dim("%opaque"), False), (dim("%opaque") - 1, True),
    (N // dim("i"), False)])
def test_what_is_refuted_and_what_is_not(expr: SymExpr, lies: bool) -> None:
    """`i` counts 0 .. N - 1 for N of at least 1; what nothing is known of is 0, and where 0 divides nothing is said."""
    points = extended(extended((Point(),), "N", (SymExpr.of(1),), ()), "i", (SymExpr.of(0),), (N - 1,))
    assert is_negative(expr, points) is lies


def test_a_loop_that_never_runs_leaves_no_point() -> None:
    facts = inside(facts_of((SizeParam("N", 1),)), For("i", index(5), index(3), Block(())))
    assert facts._witnesses() == ()


def test_loops_alike_share_what_was_found_out_and_others_do_not() -> None:
    facts = facts_of((SizeParam("N", 1),))
    one, other = For("i", index(0), Size(N), Block(())), For("i", index(0), Size(N), Block((Block(()),)))
    assert inside(facts, one) is inside(facts, other)
    assert inside(facts, one) is not inside(facts, For("i", index(0), Size(N - 1), Block(())))


def test_a_name_within_its_own_scope_means_the_inner_one() -> None:
    facts = inside(facts_of((SizeParam("N", 1),)), For("i", index(0), index(4), Block(())))
    again = inside(facts, For("i", index(7), index(9), Block(())))
    assert again.nonneg(dim("i") - 7) and not again.nonneg(3 - dim("i"))
    assert {p["i"] for p in again._witnesses()} == {7, 8}

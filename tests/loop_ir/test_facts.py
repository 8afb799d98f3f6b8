"""Facts against brute force: what is proved holds for all values, and reducing never changes a value."""

from __future__ import annotations

import itertools
import math
import operator
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsc.loop_ir.facts import inside
from tsc.loop_ir.nodes import Block, For, Let
from tsc.loop_ir.simplify import simplify_expr
from tsc.sym import SymExpr, dim, sym_max
from tsc.sym.expr import apply, coefficient_of
from tsc.sym.facts import Facts
from tsc.sym.identities import divisors
from tsc.te.compute import SizeParam, facts_of
from tsc.te.expr import Call, Const, Expr, Size, Var, add, call, format_expr, index, mul, wrapped
from tsc.te.index import to_sym

SIZES = (SizeParam("N", 1), SizeParam("M", 0, 4))


def nest() -> tuple[Facts, list[dict[str, int]]]:
    """for n1 in 0..N by 8: for j in 0..min(8, N-n1): let d = 4*j; and every valuation of it for some sizes."""
    n1 = For("n1", index(0), Size(dim("N")), Block(()), step=8)
    j = For("j", index(0), call("min", index(8), call("sub", Size(dim("N")), Var("n1"))), Block(()))
    d = Let("d", mul(index(4), Var("j")), Block(()))
    facts = inside(inside(inside(facts_of(SIZES), n1), j), d)
    points = [{"N": n, "M": m, "n1": a, "j": b, "d": 4 * b} for n, m in itertools.product((1, 7, 8, 9, 20), (0, 4, 12))
              for a in range(0, n, 8) for b in range(min(8, n - a))]
    return facts, points


FACTS, POINTS = nest()
NAMED: list[Expr] = [Var("n1"), Var("j"), Var("d"), Size(dim("N")), Size(dim("M"))]
#: Beyond what a double holds exactly.
LARGE = st.tuples(st.sampled_from([1 << 31, 1 << 53, 3 << 52, 1 << 62]), st.integers(-3, 3)).map(sum)
LEAVES = st.one_of(st.integers(-9, 20).map(index), st.sampled_from(NAMED), LARGE.map(index),
                   st.tuples(LARGE.map(index), st.sampled_from(NAMED)).map(lambda t: mul(*t)))


def combine(children: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    two = st.tuples(st.sampled_from(["add", "sub", "min", "max"]), children, children).map(lambda t: call(*t))
    scaled = st.tuples(st.integers(-8, 8), children).map(lambda t: mul(index(t[0]), t[1]))
    divided = st.tuples(st.sampled_from(["floordiv", "mod"]), children, st.sampled_from([2, 4, 8])).map(
        lambda t: call(t[0], t[1], index(t[2])))
    distance = children.map(lambda x: call("abs", x))
    return st.one_of(two, scaled, divided, distance)


EXPRESSIONS = st.recursive(LEAVES, combine, max_leaves=6)


MEANING = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "min": min, "max": max, "neg": operator.neg,
           "floordiv": operator.floordiv, "mod": operator.mod, "abs": abs}


def value(expr: Expr, point: dict[str, int]) -> int:
    """What a machine makes of an expression: int64, which wraps around."""
    match expr:
        case Var(name=name):
            return point[name]
        case Const(value=number):
            return int(number)
        case Size(value=size):
            return size.evaluate(point)
        case Call(fn=fn, args=args):
            return wrapped(MEANING[fn](*(value(a, point) for a in args)))
    raise AssertionError(expr)


def values(expr: Expr) -> tuple[SymExpr, list[int]]:
    """What the prover takes an expression for, and its values."""
    leaves: dict[str, Expr] = {}
    sym = to_sym(expr, leaves)
    return sym, [sym.evaluate(p | {name: value(leaf, p) for name, leaf in leaves.items()}) for p in POINTS]


@given(EXPRESSIONS)
def test_simplified_means_the_same(expr: Expr) -> None:
    simpler = simplify_expr(expr, FACTS)
    assert [value(simpler, p) for p in POINTS] == [value(expr, p) for p in POINTS]
    assert simplify_expr(simpler, FACTS) == simpler


@given(EXPRESSIONS)
def test_what_is_proved_holds(expr: Expr) -> None:
    sym, found = values(expr)
    assert found == [value(expr, p) for p in POINTS]
    if FACTS.nonneg(sym):
        assert min(found) >= 0
    divisor = FACTS.divisor(sym)
    assert all(v == 0 if divisor == 0 else v % divisor == 0 for v in found)


@given(EXPRESSIONS, EXPRESSIONS, st.sampled_from(["lt", "le", "gt", "ge", "eq", "ne"]))
def test_decided_conditions_are_right(a: Expr, b: Expr, fn: str) -> None:
    decided = simplify_expr(call(fn, a, b), FACTS)
    if isinstance(decided, Const):
        holds = {"lt": int.__lt__, "le": int.__le__, "gt": int.__gt__, "ge": int.__ge__, "eq": int.__eq__, "ne": int.__ne__}[fn]
        assert {holds(value(a, p), value(b, p)) for p in POINTS} == {bool(decided.value)}


def test_bounds_are_exact_beyond_what_a_double_holds() -> None:
    large, n, m = 1 << 53, dim("n"), dim("m")
    facts = facts_of((SizeParam("n", large), SizeParam("m", 1, 1, large)))
    assert facts.nonneg(n - large) and not facts.nonneg(n - large - 1)
    assert facts.nonneg(3 * (large - m)) and not facts.nonneg(3 * (large - m) - 1)
    assert not facts.nonneg(m * (large + 3) - (large + 4)) and not facts.nonneg((n // 2) - (1 << 52) - 1)
    assert not facts.nonneg((n * n) // (large + 1) - large)


def test_a_distance_is_an_extremum() -> None:
    far = to_sym(call("abs", call("sub", Var("j"), index(3))), {})
    assert far.dims() == {"j"} and [far.evaluate({"j": j}) for j in range(7)] == [3, 2, 1, 0, 1, 2, 3]


def test_panel_addresses_need_no_division() -> None:
    place = add(Var("n1"), Var("j"))
    assert format_expr(simplify_expr(mul(call("floordiv", place, index(8)), index(8)), FACTS)) == "n1"
    assert format_expr(simplify_expr(call("mod", place, index(8)), FACTS)) == "j"
    assert simplify_expr(call("lt", place, Size(dim("N"))), FACTS) == Const(True, "bool")


def test_quotient_and_remainder_divide_the_same_rest() -> None:
    """n1 is a multiple of 8: what is left of either in n1 + d is d, so that one loop over quotients serves both."""
    position = add(Var("n1"), Var("d"))
    assert format_expr(simplify_expr(call("mod", position, index(8)), FACTS)) == "mod(d, 8)"
    assert format_expr(simplify_expr(call("floordiv", position, index(8)), FACTS)) == "add(floordiv(n1, 8), floordiv(d, 8))"


def test_symbolic_bounds() -> None:
    assert FACTS.lt(dim("n1") + dim("j"), dim("N"))
    assert FACTS.nonneg(dim("N") * 3 - dim("n1") * 3 - dim("j"))
    assert not FACTS.lt(dim("n1") + 1, dim("N"))
    assert FACTS.divisor(dim("n1") + dim("M") * 2) == 8
    assert FACTS.reduce(SymExpr.of(5)) == SymExpr.of(5)


def test_a_proof_that_fails_is_not_searched_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops whose bounds are extrema of the loops around them, as windows make: the paths are many, the expressions few."""
    facts, outer, count, weaker = facts_of(SIZES), Size(dim("N")), itertools.count(), Facts._weaker
    for depth in range(8):
        low = call("max", index(0), call("sub", index(2), outer))
        loop = For(f"v{depth}", low, call("min", call("min", outer, index(64)), add(Size(dim("M")), outer)), Block(()))
        facts, outer = inside(facts, loop), Var(loop.var)
    monkeypatch.setattr(Facts, "_weaker", lambda self, expr: next(count) >= 0 and weaker(self, expr))
    assert not facts.nonneg(dim("v7") * 2 - dim("N") - 100)
    assert next(count) < 110


def test_a_loop_of_whole_steps_ends_a_step_below_its_bound() -> None:
    """for v in a .. a + 8 * b by 8, from anywhere: v <= a + 8 * b - 8, the end named by a Let or not."""
    begin = For("a", index(0), Size(dim("N")), Block(()))
    end = add(Var("a"), mul(call("floordiv", call("sub", Size(dim("N")), Var("a")), index(8)), index(8)))
    facts = inside(facts_of(SIZES), begin)
    named = inside(facts, Let("e", end, Block(())))
    for inner in (inside(facts, For("v", Var("a"), end, Block(()), step=8)),
                  inside(named, For("v", Var("a"), Var("e"), Block(()), step=8))):
        assert inner.le(dim("v"), dim("N") - 8) and not inner.le(dim("v"), dim("N") - 9)
    uneven = inside(named, For("v", add(Var("a"), index(1)), Var("e"), Block(()), step=8))
    assert not uneven.le(dim("v"), dim("N") - 8)


def test_a_quotient_by_a_size_times_that_size() -> None:
    """y * (x // y) <= x < y * (x // y) + y: runs of equal quotients by a size end where what is divided does."""
    y, x = Size(dim("N")), call("mul", Var("a"), index(16))
    outer = inside(facts_of(SIZES), For("a", index(0), Size(dim("M")), Block(())))
    facts = inside(outer, For("q", call("floordiv", x, y), add(call("floordiv", add(x, index(15)), y), index(1)), Block(())))
    begin = dim("q") * dim("N") - dim("a") * 16
    assert facts.le(begin, SymExpr.of(15)) and not facts.le(begin, SymExpr.of(14))
    assert facts.le(-begin, dim("N") - 1) and not facts.le(-begin, dim("N") - 2)


def test_what_grows_too_large_is_not_proved() -> None:
    """Found by random programs: Lets in terms of one another, written out, were larger than a size may be."""
    facts, name = facts_of(SIZES), "N"
    for depth in range(12):
        outer = Size(dim("N")) if name == "N" else Var(name)
        bound = call("max", call("min", call("floordiv", call("mul", outer, outer), index(3)), index(depth + 90)), index(depth))
        name = f"e{depth}"
        facts = inside(facts, Let(name, add(bound, outer), Block(())))
    inner = inside(facts, For("v", Var("e1"), Var(name), Block(()), step=8))
    assert not inner.le(dim("v"), dim("N"))


def test_a_variable_of_few_values_is_looked_at_one_by_one() -> None:
    """Found by random programs: rows of a register tile of 7, of which two tiles hold 8, counted in fours."""
    facts = inside(facts_of(SIZES), For("c", index(0), index(8), Block(()), step=7))
    c = dim("c")
    begin = c // 7 * 4 - c + sym_max(c - 4, 0)
    assert facts.nonneg(begin) and not facts.nonneg(begin - 1) and facts.nonneg(-begin)
    assert not inside(facts_of(SIZES), For("c", index(0), index(9), Block(()), step=2)).nonneg(begin)


def test_a_divisor_of_few_values_may_be_zero() -> None:
    """Of a dim declared from 0 to 3 all values are looked at, 0 too, where what is divided by it is nothing."""
    facts = facts_of((SizeParam("N", 0), SizeParam("K", 0, 1, 3)))
    assert not facts.nonneg(dim("N") // dim("K") - dim("N"))
    assert not facts.nonneg(dim("N") % dim("K") - dim("N"))


def test_quotients_and_remainders_of_one_value_cancel() -> None:
    """Found by random programs: a guard said of the remainder what the place says by the quotient."""
    facts = inside(facts_of(SIZES), For("c", index(0), Size(dim("N")), Block(())))
    c = dim("c")
    assert facts.reduce((c + 1) // 4 * 4 + (c + 1) % 4 - c) == SymExpr.of(1)
    assert facts.reduce((c + 1) % 4) == (c + 1) % 4


def test_whole_sizes_leave_a_quotient_by_that_size() -> None:
    """Found by random programs: a run of quotients by a size was a loop of one iteration that nobody saw to be one."""
    facts = inside(facts_of((SizeParam("K", 2, 1, 13), SizeParam("Z", 0))), For("c", index(0), Size(dim("Z")), Block(())))
    m, k, z = dim("c") % 7, dim("K"), dim("Z")
    assert facts.reduce((m * k + k - 1) // k) == m and facts.reduce((m * k + k - 1) % k) == k - 1
    assert facts.reduce((m * k + k) // k) == m + 1
    assert facts.reduce((m * z + z - 1) // z) == (m * z + z - 1) // z  # Z may be 0
    assert facts.reduce((m * k + dim("c")) // k) == m + dim("c") // k


@pytest.mark.parametrize("by", [12, 48, 64])
@pytest.mark.parametrize("step, lanes", [(16, 16), (16, 17), (4, 3), (6, 6), (5, 5)])
def test_a_rest_within_a_step_of_the_divisor_leaves_the_remainder(by: int, step: int, lanes: int) -> None:
    """Lanes of a vector are neighbours in a panel that is whole vectors wide: `(c + lane) % 64 == c % 64 + lane`."""
    zero = SymExpr.of(0)
    facts = facts_of(()).loop("c", zero, SymExpr.of(200), step).loop("lane", zero, SymExpr.of(lanes), 1)
    place = dim("c") + dim("lane")
    rest = facts.reduce(apply("%", [place, SymExpr.of(by)]))
    assert (coefficient_of(rest, "lane") == SymExpr.of(1)) == (math.gcd(step, by) >= lanes)
    for c in range(0, 200, step):
        for lane in range(lanes):
            assert rest.evaluate({"c": c, "lane": lane}) == (c + lane) % by


def test_quotients_have_the_bounds_of_what_they_divide() -> None:
    """Found by random operators: a window's last vector began at 16 * ((W + 1) // 4) - 16, of a width from 5 on."""
    facts = facts_of((SizeParam("W", 5, 1, 8), SizeParam("N", 2)))
    assert facts.nonneg((dim("W") + 1) // 4 * 16 - 16) and not facts.nonneg((dim("W") + 1) // 4 * 16 - 17)
    assert facts.nonneg(-(dim("W") // 3) + 2) and not facts.nonneg(-(dim("W") // 3) + 1)
    assert facts.nonneg(dim("W") // dim("N")) and not facts.nonneg(dim("W") // dim("N") - 1)
    assert facts.reduce((dim("W") * 4 - 13) // (dim("W") - 3)) == SymExpr.of(3)
    assert simplify_expr(Size((dim("W") * 4 - 13) // (dim("W") - 3) + 1), facts) == index(4)


def test_variables_of_few_values_are_looked_at_together() -> None:
    """Found by random programs: a tile of 3 columns in one of 4, whose number bounds that of the loop inside."""
    outer = inside(facts_of(SIZES), For("c", index(0), index(9), Block(()), step=4))
    c, d = dim("c"), dim("d")
    facts = inside(outer, For("d", index(0), call("sub", index(3), call("floordiv", Var("c"), index(4))), Block(())))
    place = c // 4 * 3 - c + d * 3 + sym_max(c - c // 4 * 3 - d * 3, 0)
    assert facts.nonneg(place) and not facts.nonneg(place - 1)
    assert facts.nonneg(-place + 6) and not facts.nonneg(-place + 5)


@pytest.mark.parametrize("by", [2 * (2**31 - 1), 3 * 2**40, 2**24 + 1])
def test_a_large_divisor_takes_no_time(by: int) -> None:
    """Found by mutated files: the divisors of a scale's denominator were tried one by one, for a minute."""
    facts, start = nest()[0], time.perf_counter()
    value = dim("N") * (by // 2) + dim("j") * 3 + 1
    reduced = facts.reduce(apply("//", [value, SymExpr.of(by)]))
    assert time.perf_counter() - start < 1
    for n, j in itertools.product((1, 7, 20), (0, 3, 7)):
        assert reduced.evaluate({"N": n, "j": j}) == (n * (by // 2) + j * 3 + 1) // by


def test_divisors_stand_in_order() -> None:
    for number in range(1, 200):
        assert divisors(number) == tuple(n for n in range(number // 2, 1, -1) if number % n == 0)

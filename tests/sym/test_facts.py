"""The search for a proof looks at each expression once, and at nothing behind what some size contradicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from itertools import product
from operator import mul
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tsc.sym import Range, SymExpr, dim, sym_max, sym_min
from tsc.sym.expr import apply
from tsc.sym.facts import Facts, Known
from tsc.sym.identities import with_quotients

H, W = dim("h"), dim("w")
RANGES = {"h": Range(75), "w": Range(75)}


def never_negative(expr: SymExpr, ranges: Mapping[str, Range]) -> bool:
    return Facts.of(ranges).nonneg(expr)


def edge(size: SymExpr) -> SymExpr:
    return ((size + 1) // 4 + 1) // 2 - 3


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[SymExpr]:
    """What is opened from now on."""
    found: list[SymExpr] = []
    weaker = Facts._weaker

    def noted(self: Facts, expr: SymExpr) -> Iterator[list[SymExpr]]:
        found.append(expr)
        return weaker(self, expr)

    monkeypatch.setattr(Facts, "_weaker", noted)
    return found


def test_an_expression_is_looked_at_once(looks: list[SymExpr]) -> None:
    unproved = H * W - 2 * (H // 2) * W  # w where h is odd
    quotients = sum((H - k * (H // k) for k in (3, 5, 7, 11)), SymExpr.of(0))
    assert not never_negative(unproved + quotients, RANGES)
    assert len(looks) == len(set(looks)) == 2 ** 4  # some opened, in any order: all orders are 65


@pytest.mark.parametrize("wrong", [H - 76, 76 - H, H - W, W - H, 1074 - H, edge(H) - 8, 64 * edge(H) * edge(W) - 449 * edge(H)])
def test_nothing_is_opened_where_a_size_says_otherwise(wrong: SymExpr, looks: list[SymExpr]) -> None:
    assert not never_negative(wrong, RANGES) and not looks


@pytest.mark.parametrize("right", [
    H - 75, edge(H) - 7, H - 2 * (H // 2), H * W - 75 * W, H - 4 * (H // 4), (H // 2) * 2 - H + 1, edge(H) * edge(W) - 49,
    edge(H) - (edge(H) - 1) // 2 - 3])
def test_what_was_proved_is(right: SymExpr) -> None:
    assert never_negative(right, RANGES)


def test_points_stay_in_range() -> None:
    assert never_negative(80 - H, {"h": Range(75, 80)}) and not never_negative(79 - H, {"h": Range(75, 80)})
    assert not never_negative(H // W, {"h": Range(0), "w": Range(0)})  # no value where w is 0


@pytest.mark.parametrize(("size", "ends"), [
    ((H + 1) // H, (1, 1)), ((-H - 1) // H, (-2, -2)), ((3 * H - 75) // H, (2, 2)), ((3 * H - 76) // H, (1, 2)),
    ((2 * H + W) // H, (2, None)), ((H * W + W) // W, (76, None)), ((W - 1) // H, (0, None)), ((H + 7) % H, (0, 7)),
    ((3 * H + W) % H, (0, None)),
])
def test_a_quotient_knows_multiples_of_its_divisor(size: SymExpr, ends: tuple[int | None, int | None]) -> None:
    assert Facts.of(RANGES).bounds(size) == ends
    for h in range(75, 100):
        for w in range(75, 100):
            low, value, high = ends[0], size.evaluate({"h": h, "w": w}), ends[1]
            assert (low is None or low <= value) and (high is None or value <= high)


A, B, I, J = map(dim, "abij")  # noqa: E741
LEAVES = st.one_of(st.integers(-6, 9).map(SymExpr.of), st.sampled_from([A, B, I, J]), st.sampled_from([A * B, A * I, B * J]))


def combined(inner: st.SearchStrategy[SymExpr]) -> st.SearchStrategy[SymExpr]:
    by = st.one_of(st.integers(2, 5).map(SymExpr.of), st.sampled_from([A, B, 4 * A, 2 * B, A * B, 3 * A * B]))
    return st.one_of(
        st.tuples(inner, inner).map(lambda t: t[0] + t[1]), st.tuples(inner, inner).map(lambda t: t[0] - t[1]),
        st.tuples(inner, st.integers(-3, 4)).map(lambda t: t[0] * t[1]), st.tuples(inner, by).map(lambda t: t[0] // t[1]),
        st.tuples(inner, by).map(lambda t: t[0] % t[1]), st.tuples(inner, inner).map(lambda t: sym_min(*t)),
        st.tuples(inner, inner).map(lambda t: sym_max(*t)), st.tuples(inner, by).map(lambda t: t[0] // t[1] * t[1]),
        st.tuples(inner, inner, by).map(lambda t: (t[0] * t[2] + t[1]) // t[2]),
        st.tuples(inner, st.sampled_from([I, J, A - 1, B - I]), st.sampled_from([A, B]), by, st.sampled_from(["//", "%"])).map(
            lambda t: apply(t[4], [t[0] * t[2] + t[1], t[2] * t[3]])))


EXPRESSIONS = st.recursive(LEAVES, combined, max_leaves=6)
RANGE = st.tuples(st.integers(1, 5), st.integers(0, 3), st.sampled_from([1, 1, 2])).map(
    lambda t: Range(-(-t[0] // t[2]) * t[2], (-(-t[0] // t[2]) + t[1]) * t[2], t[2]))
END = st.tuples(st.integers(-2, 6), st.sampled_from([0, 1, -1, 2]), st.sampled_from([0, 1, -1])).map(
    lambda t: t[0] + A * t[1] + B * t[2])


@given(EXPRESSIONS, st.integers(1, 9), st.integers(1, 9), st.integers(-9, 9), st.integers(0, 9))
def test_remainders_as_quotients_are_the_same(expr: SymExpr, a: int, b: int, i: int, j: int) -> None:
    point = {"a": a, "b": b, "i": i, "j": j}
    assert with_quotients(expr).evaluate(point) == expr.evaluate(point)


def test_what_is_rounded_up_is_divided() -> None:
    rounded = sym_min(H + 15 - apply("%", [H + 15, SymExpr.of(16)]) - 64 * W, 64)
    assert Facts.of(RANGES).divisor(with_quotients(rounded)) == 16


@given(RANGE, RANGE, END, END, END, st.sampled_from([1, 1, 4]), EXPRESSIONS)
@settings(max_examples=600)
def test_what_is_proved_holds_at_every_point(a: Range, b: Range, lo: SymExpr, hi: SymExpr, end: SymExpr, step: int,
                                             expr: SymExpr) -> None:
    """Of two sizes, a loop between bounds that rise and fall with them, and a loop around by a step."""
    facts = Facts.of({"a": a, "b": b}).loop("i", lo, hi, 1).loop("j", SymExpr.of(0), sym_min(end + I, 11), step)
    low, high = facts.bounds(expr)
    divisor, reduced, values = facts.divisor(expr), facts.reduce(expr), set[int]()
    for x, y in product(range(a.lo, a.hi + 1, a.divisor), range(b.lo, b.hi + 1, b.divisor)):
        sizes = {"a": x, "b": y}
        for i in range(lo.evaluate(sizes), hi.evaluate(sizes)):
            for j in range(0, min((end + I).evaluate({**sizes, "i": i}), 11), step):
                point = {**sizes, "i": i, "j": j}
                values.add(expr.evaluate(point))
                assert reduced.evaluate(point) == expr.evaluate(point)
    if values:
        least, most = min(values), max(values)
        assert (low is None or low <= least) and (high is None or most <= high)
        assert all(value % divisor == 0 if divisor else value == 0 for value in values)
        with patch("tsc.sym.facts.is_negative", lambda *_: False):  # which would refute what a wrong rule proves
            assert not facts.nonneg(expr - least - 1) and not facts.nonneg(most - 1 - expr)


def test_a_part_of_a_divisor_goes_with_what_is_below_it() -> None:
    """Rows of s elements, four of them together: where element i of row r is, and where the row's last one is."""
    s, r, i = dim("s"), dim("r"), dim("i")
    facts = Facts.of({"s": Range(1), "w": Range(1)}).loop("r", SymExpr.of(0), 9 * s, 1).loop("i", SymExpr.of(0), s, 1)
    assert facts.reduce((r * s + i) // (4 * s)) == r // 4 == facts.reduce((r * s + s - 1) // (4 * s))
    assert facts.reduce((r * s + i) % (4 * s)) == r % 4 * s + i
    assert facts.reduce((r * s + i) // (s * W)) == r // W and facts.reduce((r * s + i - s) // (4 * s)) == (r - 1) // 4
    for kept in ((r * s + 2 * i) // (4 * s), (r * s - i) // (4 * s)):
        assert facts.reduce(kept) == kept


def test_bounds_that_fall_with_a_size_fall_beyond_its_least() -> None:
    facts = Facts.of({"a": Range(3, 6), "b": Range(1)}).bind("i", Known((4 - A,), (SymExpr.of(9),), 1, 1))
    with patch("tsc.sym.facts.is_negative", lambda *_: False):
        assert facts.nonneg(A * B - A + I + 2) and not facts.nonneg(A * B - A + I + 1)


def test_numbers_of_any_length_beside_infinities() -> None:
    """A float has no more than 1,024 bits."""
    size, free = reduce(mul, [A] * 19), B
    facts = Facts.of({"a": Range(1, 2**63 - 1), "b": Range(), "n": Range(0, 2**63 - 1)})
    assert facts.bounds(size) == (1, (2**63 - 1) ** 19) and facts.bounds(size * free + size) == (2, None)
    assert facts.bounds(free - size) == (1 - (2**63 - 1) ** 19, None) and facts.bounds(size // free) == (0, (2**63 - 1) ** 19)
    assert facts.bounds((size * free + size) // free) == (1, 2 * (2**63 - 1) ** 19)
    assert facts.nonneg(size - 1) and facts.nonneg(size * free - size) and not facts.nonneg(size - free)
    assert not facts.nonneg(free - size // 7) and facts.nonneg(dim("n") - 2 * (dim("n") // 2))

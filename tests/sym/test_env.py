"""ShapeEnv: what it proves is true at every size in range, and what it assumes is guarded."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sym.test_expr import NAMES, expressions
from tsc.errors import ShapeError
from tsc.sym import Range, ShapeEnv, SymExpr, ceildiv, dim, sym_max, sym_min

B, L, N, S = dim("b"), dim("l"), dim("n"), dim("s")


def env_of(**ranges: tuple[int, ...]) -> ShapeEnv:
    env = ShapeEnv()
    for name, given_range in ranges.items():
        env.declare(name, *given_range)
    return env


def sizes_of(env: ShapeEnv) -> list[dict[str, int]]:
    """All sizes in range up to 6, for every Dim."""
    values = [[v for v in range(r.lo, min(6, r.hi or 6) + 1) if v % r.divisor == 0] for r in env.ranges.values()]
    return [dict(zip(env.ranges, chosen)) for chosen in itertools.product(*values)]


@given(expressions(), expressions(), st.sampled_from([0, 1, 2]), st.sampled_from([1, 2]))
@settings(max_examples=100, deadline=None)
def test_proofs_and_canonical_forms_are_sound(x: tuple[SymExpr, str], y: tuple[SymExpr, str], lo: int, divisor: int) -> None:
    env = env_of(a=(lo, 5), b=(1,), n=(divisor, 8, divisor))
    left, right = x[0], y[0]
    simple = env.canon(left)
    low, high = env.bounds(left)
    for sizes in sizes_of(env):
        a, b = left.evaluate(sizes), right.evaluate(sizes)
        assert simple.evaluate(sizes) == a
        assert (low is None or low <= a) and (high is None or a <= high)
        assert not (env.prove_le(left, right) and a > b)
        assert not (env.prove_eq(left, right) and a != b)
        assert not (env.prove_ne(left, right) and a == b)
        assert not (env.prove_divides(2, left) and a % 2)


@given(expressions(2), expressions(2), expressions(2))
@settings(max_examples=150, deadline=None)
def test_assumptions_leave_guards_that_say_as_much(
        x: tuple[SymExpr, str], y: tuple[SymExpr, str], z: tuple[SymExpr, str]) -> None:
    """Where all Guards hold, an assumption is true, and everything canonical still has its value."""
    env = env_of(**{n: (1, 6) for n in NAMES})
    try:
        env.assume_eq(x[0], y[0], "first")
        env.assume_le(y[0], z[0], "second")
    except ShapeError:
        return
    for sizes in sizes_of(env_of(**{n: (1, 6) for n in NAMES})):
        held = all(g.holds(sizes) for g in env.guards)
        truth = x[0].evaluate(sizes) == y[0].evaluate(sizes) and y[0].evaluate(sizes) <= z[0].evaluate(sizes)
        assert held == truth
        if held:
            assert all(env.canon(e).evaluate(sizes) == e.evaluate(sizes) for e in (x[0], y[0], z[0]))
            assert all(r.lo <= sizes[n] and (r.hi is None or sizes[n] <= r.hi) for n, r in env.ranges.items())


def test_proofs_see_what_terms_share() -> None:
    env = env_of(b=(1,), l=(1,), n=(1,))
    assert env.prove_le(L, B * L) and env.prove_le(B * L, B * L * N)
    assert env.prove_le(sym_min(L, 40), L) and env.prove_le(L, sym_max(L, N)) and not env.prove_le(L, sym_min(L, N))
    assert env.prove_le(L, ceildiv(L, 8) * 8) and env.prove_lt(ceildiv(L, 8) * 8 - 8, L)
    assert env.prove_lt((B - 1) * L + L - 1, B * L)
    assert not env.prove_lt(L, B * L) and not env.prove_ne(L, N)


def test_equal_dims_become_one_and_products_cancel() -> None:
    env = env_of(b=(1,), l=(1,), s=(1, 64))
    env.assume_eq(B * L * 12, B * S * 12, "node 'r'")
    assert env.canon(S) == env.canon(L) == L and env.ranges["l"] == Range(1, 64)
    assert len(env.guards) == 1 and env.remaining_guards() == ()
    env.assume_eq(S, L, "again")
    assert len(env.guards) == 1


def test_a_sum_replaces_a_dim_and_its_range_becomes_guards() -> None:
    env = env_of(past=(0,), seq=(1,), total=(4, 32, 4))
    env.assume_eq(dim("total"), dim("past") + dim("seq"), "node 'cat'")
    assert env.canon(dim("total")) == dim("past") + dim("seq")
    guards = env.remaining_guards()
    assert not all(g.holds({"past": 3, "seq": 2}) for g in guards)
    assert not all(g.holds({"past": 30, "seq": 6}) for g in guards)
    assert all(g.holds({"past": 6, "seq": 2}) for g in guards)


def test_minimum_equal_to_its_argument_is_a_bound() -> None:
    env = env_of(l=(1,))
    env.assume_eq(sym_min(L, 40), L, "node 'slice'")
    assert env.ranges["l"].hi == 40 and [str(g) for g in env.remaining_guards()] == ["l <= 40"]
    assert env.canon(sym_min(L, 512)) == L


def test_a_guard_on_two_dims_outlives_them_when_they_differ() -> None:
    env = env_of(b=(1,), l=(1,), n=(1,))
    env.assume_eq(B * L, N * N, "node 'view'")
    assert [str(g) for g in env.remaining_guards()] == ["b*l == n*n"] and not env.equal
    env.assume_eq(B * L, N * N, "node 'other'")
    assert len(env.guards) == 1


@pytest.mark.parametrize(("a", "b"), [(N, N + 1), (2 * N, SymExpr.of(7)), (N, SymExpr.of(0)), (dim("k"), SymExpr.of(12))])
def test_what_can_never_be_equal_is_an_error_that_says_where(a: SymExpr, b: SymExpr) -> None:
    env = env_of(n=(1,), k=(8, 64, 8))
    with pytest.raises(ShapeError, match="node 'x'"):
        env.assume_eq(a, b, "node 'x'")


def test_a_dim_the_user_asked_for_is_not_made_a_constant() -> None:
    env = ShapeEnv()
    env.declare("n", asked=True)
    with pytest.raises(ShapeError, match=r"node 'r'.*n fixed to 2.*free"):
        env.assume_eq(12 * N, 24, "node 'r'")
    env.declare("m")
    env.assume_eq(dim("m"), N, "node 'eq'")
    with pytest.raises(ShapeError, match="free"):
        env.assume_eq(dim("m"), 2, "node 'r'")


def test_ranges_narrow_and_run_out() -> None:
    env = env_of(n=(1, 10, 3))
    assert env.ranges["n"] == Range(3, 9, 3) and env.canon(N % 3) == SymExpr.of(0) and env.canon(N // 3 * 3) == N
    with pytest.raises(ShapeError, match="no size left"):
        env.declare("n", 20)
    with pytest.raises(ShapeError, match="node 'z'"):
        env.assume_le(N, 2, "node 'z'")


def test_no_size_is_beyond_memory() -> None:
    env = ShapeEnv()
    env.declare("n", 1, 2**70)
    assert env.ranges["n"].hi == 2**47
    for lo, divisor in ((2**47 + 1, 1), (1, 2**48)):
        with pytest.raises(ShapeError, match="'m' has no size left between"):
            env.declare("m", lo, divisor=divisor)
    with pytest.raises(ShapeError, match=r"no size left between 1 and 2 that is a multiple of 3; widen"):
        env.declare("m", 1, 2, 3)


def test_fresh_names_are_new() -> None:
    env = env_of(n=(1,))
    names = {str(env.fresh("n")) for _ in range(4)}
    assert len(names) == 4 and "n" not in names

"""Facts of a Program: they hold at every size in range, and only what relates two sizes is kept."""

from __future__ import annotations

from tsc.sym import ONE, ZERO, ShapeEnv, SymExpr, ceildiv, dim, sym_min
from tsc.te.passes.facts import size_facts

A, B, N = dim("A"), dim("B"), dim("N")


def facts(sizes: dict[SymExpr, str], env: ShapeEnv | None = None) -> list[str]:
    env = env or environment()
    return [str(fact) for fact in size_facts(sizes, env)]


def environment() -> ShapeEnv:
    env = ShapeEnv()
    for name in "ABN":
        env.declare(name)
    return env


def test_a_derived_size_is_tied_to_its_dim() -> None:
    assert facts({sym_min(N, 4) - ONE: "s0", N: "s1"}) == ["s0 == min(s1, 4) - 1"]


def test_a_dim_that_is_no_size_is_hidden_with_its_range() -> None:
    assert facts({N // 2: "s0", N // 3: "s1"}) == ["1 <= h0", "s0 == (h0 // 2)", "s1 == (h0 // 3)"]


def test_a_shifted_size_is_tied_to_what_it_is_shifted_from() -> None:
    assert facts({N // 2: "s0", N + ONE: "s1"}) == ["1 <= h0", "s0 == (h0 // 2)", "s1 == h0 + 1"]


def test_a_product_is_one_hidden_integer() -> None:
    assert facts({(A * B) // 2: "s0", (A * B) // 3: "s1"}) == ["1 <= h0", "s0 == (h0 // 2)", "s1 == (h0 // 3)"]


def test_a_product_with_a_quotient_lies_between_its_dividend_and_one_less_divisor() -> None:
    padded = -((-N) // B * B)  # N rounded up to a multiple of B
    assert facts({padded: "s0", N: "s1"})[-2:] == ["s1 <= s0", "s0 <= h0 + s1 - 1"]
    assert facts({N // B * B: "s0", N: "s1", B: "s2"})[-2:] == ["s1 - 1*s2 + 1 <= s0", "s0 <= s1"]
    assert facts({-((SymExpr.of(-8)) // B * B): "s0"})[-2:] == ["8 <= s0", "s0 <= h0 + 7"]
    assert facts({-3 * (SymExpr.of(-8) // B * B): "s0"})[-2:] == ["24 <= s0", "s0 <= 3*h0 + 21"]
    assert facts({3 * (N // B * B): "s0", N: "s1", B: "s2"})[-2:] == ["3*s1 - 3*s2 + 3 <= s0", "s0 <= 3*s1"]


def test_a_product_with_a_quotient_by_a_sum_is_a_sum_of_sizes_or_a_size_with_a_rest() -> None:
    cut = N // (A + 1)
    assert facts({cut * A + cut: "s0", N: "s1", A: "s2"})[-2:] == ["s1 - 1*s2 <= s0", "s0 <= s1"]
    assert facts({cut * A: "s0", cut: "s1", N: "s2", A: "s3"})[-2:] == ["s2 - 1*s3 <= s0 + s1", "s0 + s1 <= s2"]
    assert facts({cut * A + cut + B: "s0", N: "s1", A: "s2", B: "s3"})[-2:] == ["s1 - 1*s2 + s3 <= s0", "s0 <= s1 + s3"]


def test_products_that_are_no_sizes_are_tied_to_sizes() -> None:
    env = environment()
    found = [str(fact) for fact in size_facts({N * A + N * B: "s0", N: "s1", A: "s2", B: "s3"}, env, products=True)]
    assert found[-3:] == ["s0 == h0 + h1", "h0 == s1*s2", "h1 == s1*s3"]


def test_a_product_with_a_quotient_that_leaves_no_rest_is_tied_to_the_whole() -> None:
    env = environment()
    env.declare("C", 2, 16, 2)
    assert facts({A * dim("C"): "s0", A * (dim("C") // 2): "s1"}, env) == ["2*s1 == s0"]
    assert facts({A * N: "s0", A * (N // 2): "s1"}, env) == []
    found = facts({3 * A * (dim("C") // 2) + B: "s0", A * dim("C"): "s1", B: "s2"}, env)
    assert "2*s0 == 3*s1 + 2*s2" in found


def test_a_product_is_no_less_than_what_divides_it() -> None:
    sizes = {N * A: "s0", N * A * A: "s1", B: "s2"}
    assert [str(f) for f in size_facts(sizes, environment(), multiples=True)] == ["s0 <= s1"]
    env = ShapeEnv()
    for name in "ABN":
        env.declare(name, 0)
    assert size_facts(sizes, env, multiples=True) == ()


def test_a_quotient_rounded_up_is_tied_to_the_one_rounded_down() -> None:
    assert facts({-(SymExpr.of(-2) // N): "s0", SymExpr.of(1) // N: "s1"}) == ["s0 == s1 + 1"]
    assert facts({-((-A) // N): "s0", (A - 1) // N: "s1", A: "s2"}) == ["s0 == s1 + 1"]
    for a, n in ((1, 1), (5, 3), (6, 3), (7, 3), (2, 9)):
        assert -((-a) // n) == (a - 1) // n + 1


def test_quotients_by_one_size_are_ordered_as_what_is_divided() -> None:
    """Found by random programs: the place of element 2 in rows of n, of 7 elements in all, was not proved to be in a row."""
    rows = -(SymExpr.of(-7) // N)
    assert facts({SymExpr.of(2) // N: "s0", rows: "s1"})[-2:] == ["s1 == h0 + 1", "s0 <= h0"]
    assert facts({A // N: "s0", (A + B) // N: "s1"}) == ["s0 <= s1"]
    assert facts({A // N: "s0", (2 * A) // B: "s1"}) == facts({A // N: "s0", B // N: "s1"}) == []
    assert all(2 // n < -(-7 // n) for n in range(1, 20))


def test_what_is_rounded_up_is_tied_to_a_size_that_shares_its_dim() -> None:
    padded = -((-4 * N - 4) // B * B)  # 4 (N + 1) rounded up
    assert facts({N + ONE: "s0", padded: "s1"})[-3:] == ["s0 == h0 + 1", "4*h0 + 4 <= s1", "s1 <= 4*h0 + h1 + 3"]


def test_a_remainder_is_less_than_its_divisor() -> None:
    assert facts({A % N: "s0", N: "s1"}) == ["s0 + 1 <= s1"]
    assert facts({2 * (A % N): "s0", N: "s1"}) == []


def test_a_size_that_nothing_else_shares_has_no_facts() -> None:
    assert facts({(N - 3) // 2 + ONE: "s0", A: "s1"}) == []
    assert facts({A: "s0", B: "s1", A * B: "s2"}) == []


def test_guards_between_sizes_are_facts() -> None:
    env = environment()
    env.assume_le(ZERO, N - 2 * ceildiv(N, 3), "the last part")
    env.assume_le(A, B, "another kernel's dims")
    assert facts({ceildiv(N, 3): "s0", N: "s1"}, env) == ["s0 == ((s1 + 2) // 3)", "0 <= -2*s0 + s1"]


def test_facts_hold() -> None:
    env = environment()
    env.assume_le(A, B, "a symbolic bound")
    sizes = {sym_min(A, N - 1): "s0", N: "s1", (A + B) // 2: "s2", B: "s3", (A + 1) % 3: "s4"}
    found = size_facts(sizes, env)
    assert len(found) >= 4
    for a, b, n in ((1, 1, 1), (2, 7, 3), (5, 5, 9), (4, 130, 2)):
        known = {name: expr.evaluate({"A": a, "B": b, "N": n}) for expr, name in sizes.items()}
        hidden, = {name for fact in found for name in fact.names()} - known.keys()
        known[hidden] = a
        for fact in found:
            left, right = fact.left.evaluate(known), fact.right.evaluate(known)
            assert left == right if fact.relation == "==" else left <= right, fact

"""SymExpr against Python integers: one canonical form, the same value, read back as written."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tsc.sym import ONE, ZERO, OversizeError, SymExpr, ceildiv, dim, parse, product, sym_max, sym_min

NAMES = ("a", "b", "n")
SIZES = st.fixed_dictionaries({n: st.integers(0, 9) for n in NAMES})


@st.composite
def expressions(draw: st.DrawFn, depth: int = 3) -> tuple[SymExpr, str]:
    """An expression built by SymExpr's operators, and the same in Python's syntax."""
    if depth == 0 or draw(st.booleans()):
        if draw(st.booleans()):
            name = draw(st.sampled_from(NAMES))
            return dim(name), name
        value = draw(st.integers(-4, 6))
        return SymExpr.of(value), f"({value})"
    (x, s), (y, t) = draw(expressions(depth - 1)), draw(expressions(depth - 1))
    match draw(st.sampled_from(["+", "-", "*", "//", "%", "max", "min"])):
        case "+":
            return x + y, f"({s} + {t})"
        case "-":
            return x - y, f"({s} - {t})"
        case "*":
            return x * y, f"({s} * {t})"
        case "max":
            return sym_max(x, y), f"max({s}, {t})"
        case "min":
            return sym_min(x, y), f"min({s}, {t})"
        case op:
            k = draw(st.sampled_from([1, 2, 3, 4, 6, -2]))
            return (x // k if op == "//" else x % k), f"({s} {op} ({k}))"


@given(expressions(), SIZES)
@settings(max_examples=300, deadline=None)
def test_means_what_python_means(pair: tuple[SymExpr, str], sizes: dict[str, int]) -> None:
    expr, text = pair
    assert expr.evaluate(sizes) == eval(text, {}, sizes)
    assert parse(str(expr)) == expr


@given(expressions(), expressions(), SIZES)
@settings(max_examples=150, deadline=None)
def test_substitution_is_evaluation(pair: tuple[SymExpr, str], inner: tuple[SymExpr, str], sizes: dict[str, int]) -> None:
    expr, value = pair[0], inner[0]
    assert expr.substitute({"a": value}).evaluate(sizes) == expr.evaluate(sizes | {"a": value.evaluate(sizes)})


@given(expressions(), expressions(), SIZES)
@settings(max_examples=200)
def test_a_sum_of_substitutions_is_the_substitution_of_a_sum(
        pair: tuple[SymExpr, str], other: tuple[SymExpr, str], sizes: dict[str, int]) -> None:
    """Terms without a name stay as they are and are collected with what the others become: in one canonical form."""
    mapping = {"a": SymExpr.of(sizes["a"]), "n": dim("b") + 1}
    try:
        both = (pair[0] + other[0]).substitute(mapping)
        apart = pair[0].substitute(mapping) + other[0].substitute(mapping)
    except ZeroDivisionError:
        return
    assert both == apart == parse(str(both))


def test_a_substitution_that_grows_too_large_is_refused() -> None:
    many = {name: sum((dim(f"{name}{k}") for k in range(600)), ZERO) for name in "xy"}
    with pytest.raises(OversizeError, match="more than 1024 terms"):
        (dim("a") * many["x"]).substitute({"a": many["y"]})


@given(expressions())
def test_a_copy_of_another_process_is_equal(pair: tuple[SymExpr, str]) -> None:
    """Atoms are told by their type: a Dim is a str, and comes back as a Dim."""
    copy = pickle.loads(pickle.dumps(pair[0]))
    assert copy == pair[0] and hash(copy) == hash(pair[0])
    assert [type(a) for a in copy.atoms()] == [type(a) for a in pair[0].atoms()]


def test_equal_means_identical() -> None:
    b, n = dim("b"), dim("n")
    assert (b + n) * (b + n) == b * b + 2 * b * n + n * n
    assert b * n // n == b and (4 * b + 2) // 2 == 2 * b + 1 and (n // 2) // 4 == n // 8
    assert (64 * n) // (64 * b) == n // b and (6 * n + 4) // (4 * b) == (3 * n + 2) // (2 * b) and 2 * (n // 3) // 4 == n // 6
    assert sym_max(b, sym_max(n, 3), 1) == sym_max(3, n, b)
    assert product([]) == ONE and b - b == ZERO and ceildiv(n, 8) * 8 != n
    assert (n * b).dims() == {"n", "b"} and (n // 2).dims() == {"n"} and (b + 1).as_dim() is None


@pytest.mark.parametrize("text", ["", "a +", "a ** 2", "f(a)", "__import__('os')", "a if b else n", "1.5", "a.b"])
def test_parse_refuses_what_str_never_writes(text: str) -> None:
    with pytest.raises(ValueError, match="not a size expression"):
        parse(text)


def test_division_by_zero_is_an_error() -> None:
    with pytest.raises(ZeroDivisionError):
        dim("n") // 0

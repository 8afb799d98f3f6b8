"""Sizes are compared factor by factor: what is said to be proved holds, and maps of nets are in order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sym.test_expr import expressions
from tsc.plan.compare import Comparison, separate
from tsc.sym import ONE, ShapeEnv, SymExpr, dim, product

B, H, W, L = (dim(name) for name in "bhwl")


def env_of(least: int = 1) -> ShapeEnv:
    env = ShapeEnv()
    for name, lo in (("b", 0), ("h", least), ("w", least), ("l", 1)):
        env.declare(name, lo)
    return env


def edges(size: SymExpr) -> list[SymExpr]:
    """A length of an image and what windows and strides leave of it, one after the other; none below 0 from 75 on."""
    found = [size]
    for shrink in (2, 0, 4, 2, 0):
        found += [(found[-1] - 1) // 2 + 1, found[-1] // 2 - shrink]
    return [f for f in found if f.evaluate({"h": 75, "w": 75}) >= 0]


@st.composite
def maps(draw: st.DrawFn) -> SymExpr:
    height, width = (draw(st.sampled_from(edges(s))) for s in (H, W))
    batch, more = draw(st.sampled_from([ONE, B, B + 1])), draw(st.sampled_from([ONE, H, L]))
    return product((draw(st.integers(1, 9)), batch, height, width, more))


@given(maps(), maps(), st.lists(st.tuples(*[st.integers(0, 400)] * 4), min_size=1, max_size=8))
def test_what_is_proved_holds(x: SymExpr, y: SymExpr, more: list[tuple[int, int, int, int]]) -> None:
    if Comparison(env_of(75)).at_most(x, y):
        for b, h, w, length in ((0, 0, 0, 0), (1, 1, 0, 0), (1, 0, 1, 0), *more):
            point = {"b": b, "h": 75 + h, "w": 75 + w, "l": 1 + length}
            assert x.evaluate(point) <= y.evaluate(point), point


@pytest.mark.parametrize("level", range(4))
@pytest.mark.parametrize("least,shrink", [(75, 0), (75, 1), (75, 2), (1, 0)])
def test_maps_of_nets_are_in_order(level: int, least: int, shrink: int) -> None:
    """Of two maps of as many channels the later is the smaller one, of each number of channels up to what both edges allow."""
    proofs = Comparison(env_of(least))
    heights, widths = [H], [W]
    for found in (heights, widths):
        for _ in range(5):
            found.append((found[-1] - shrink - 1) // 2 + 1)
    sooner, later = (B * heights[k] * widths[k] for k in (level, level + 1))
    assert proofs.at_most(256 * later, 256 * sooner) and not proofs.at_most(sooner, later)
    assert proofs.at_most(0 * later, sooner) and not proofs.at_most(sooner, 0 * sooner)
    if shrink:  # a half, less one: three quarters of four times as many
        assert proofs.at_most(3 * 256 * later, 256 * sooner)


@pytest.mark.parametrize("small,large,proved", [
    (B * L, B * L, True), (2 * B * L, B * L, False), (3 * B * (L // 3), B * L, True), (4 * B * (L // 3), B * L, False),
    (B * L * L, B * L * L + 1, True), (B * L, B * L * H, True), (B * L * H, B * L, False), (SymExpr.of(3), SymExpr.of(3), True),
    (SymExpr.of(4), SymExpr.of(3), False), (5 * B, 5 * B * L, True), (B * (L + H), 2 * B * (L + H), True),
    (100 * B, B * (L + 9) * (H + 9), True), (101 * B, B * (L + 9) * (H + 9), False)])
def test_corners(small: SymExpr, large: SymExpr, proved: bool) -> None:
    assert Comparison(env_of()).at_most(small, large) is proved


@given(expressions(), expressions(), expressions(2))
def test_factors_make_the_whole(x: tuple[SymExpr, str], y: tuple[SymExpr, str], z: tuple[SymExpr, str]) -> None:
    renamed = y[0].substitute({name: dim(name + "2") for name in y[0].dims()})
    for whole in (x[0] * renamed, x[0] * 6, x[0] * renamed + z[0]):
        coefficient, factors = separate(whole)
        assert product(factors) * coefficient == whole and coefficient >= 0
        names = [name for factor in factors for name in factor.dims()]
        assert len(names) == len(set(names))


def test_factors_of_a_map() -> None:
    h, w = (H + 1) // 4 - 2, (W + 1) // 4 - 2
    coefficient, factors = separate(768 * B * h * w)
    assert coefficient == 768 and set(factors) == {B, h, w}
    assert separate(768 * B * h * w + 768) == (768, (B * h * w + 1,))

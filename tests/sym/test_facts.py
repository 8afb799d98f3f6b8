"""The search for a proof looks at each expression once, and at nothing behind what some size contradicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from tsc.sym import Range, SymExpr, dim
from tsc.sym.facts import Facts

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

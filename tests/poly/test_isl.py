"""The wall around isl: a budget that is spent is a PatternMismatch, whatever isl was at when it ran out."""

from __future__ import annotations

import pytest

from tsc.poly import PatternMismatch, isl


@pytest.mark.defect(33)
def test_a_spent_budget_is_a_mismatch_in_whatever_words_isl_says_it() -> None:
    """Reading a text ends in "syntax error" then, other operations in other words."""
    enough = 0
    for operations in range(1, 20000, 37):
        try:
            with isl.budget(operations):
                square = isl.Set("[N] -> { S[i, j] : 0 <= i, j < N }")
                square.intersect(isl.Set("[N] -> { S[i, j] : i < j }")).is_empty()
            enough += 1
        except PatternMismatch as mismatch:
            assert str(operations) in str(mismatch) and not enough
    assert 0 < enough < 540  # some budgets sufficed, some did not


def test_a_number_or_a_text_that_a_budget_does_not_reach_is_a_mismatch() -> None:
    """islpy has None for the text of what isl did not print, and numbers are read off their text."""
    ways = set()
    for operations in range(1, 3000):
        try:
            with isl.budget(operations):
                points = isl.Set("[N] -> { [a, b] : 0 <= a < N and a = 3b + 1 and N <= 50 and a >= 7 }")
                assert isl.least(points) == 7 and str(points)
        except PatternMismatch as mismatch:
            ways.add(type(mismatch.__cause__))
    assert ways == {isl.IslError, TypeError}


def test_a_mistake_within_a_budget_stays_one() -> None:
    with pytest.raises(isl.IslError), isl.budget(1000):
        isl.Set("{ S[i : 0 <= i }")

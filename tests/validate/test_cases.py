"""How much is evaluated of a kernel: about as many points as there is a budget for, whatever the sizes are."""

from __future__ import annotations

import pytest

from tests.poly import programs
from tsc.validate.cases import LEAST, limits_of


@pytest.mark.parametrize("terms", [0, 1, 5000])
def test_few_points_of_a_large_grid(terms: int) -> None:
    """Sums of no terms are points, too: their axes were taken whole."""
    (across, along), = limits_of(programs.gemm("M", "N", "K"), [{"M": 5000, "N": 4000, "K": terms}], 1000)
    assert across >= LEAST and across**2 * max(1, min(along, terms)) <= 1000

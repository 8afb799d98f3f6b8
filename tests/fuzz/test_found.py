"""Programs by number that random search found to fail once, where what mattered is hard to write down in less."""

from __future__ import annotations

import pytest

from tests.fuzz.run import run_batch


@pytest.mark.parametrize("number", [
    5097,  # a register tile's loop of no constant trip count was unrolled
])
def test_it_is_right_now(number: int) -> None:
    tally = run_batch(0, range(number, number + 1), mutants=0)
    assert not tally.failures, str(tally)

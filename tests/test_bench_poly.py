"""The clock of `dev.py bench poly`: stages do not overlap, claim nearly all the time, and are put back."""

from __future__ import annotations

import time

from benchmarks.poly import STAGES, Clock, Row, measure, of_model, table
from tests.poly import programs
from tests.poly.support import SMALL
from tests.test_tiny import tiny_model
from tsc.poly import isl


def _burn(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_a_stage_leaves_out_the_stages_inside() -> None:
    clock = Clock()
    inner = clock.timed("inner", lambda: _burn(0.02))

    def outer() -> None:
        _burn(0.01)
        inner()

    clock.timed("outer", outer)()
    assert 0.019 < clock.spent["inner"] < 0.03 and 0.009 < clock.spent["outer"] < 0.018


def test_a_kernel_is_measured_and_everything_is_put_back() -> None:
    generate = isl.generate
    row = measure("gemm_relu", programs.gemm(), SMALL, (), rounds=1)
    assert isl.generate is generate and all(f is not None for functions in STAGES.values() for f in functions)
    assert all(row.stages[stage] > 0 for stage in STAGES)
    assert row.refine > 0 and row.values > 0
    assert abs(sum(row.stages.values()) - row.total) < 1e-6 and row.stages["rest"] < 0.2 * row.total


def test_the_programs_of_a_model() -> None:
    found = of_model(tiny_model(), "tiny")
    assert found and all(title.startswith("tiny ") and program.computes for title, (program, _) in found.items())
    assert any(constants for _, constants in found.values())


def test_what_is_too_slow_is_marked() -> None:
    stages = dict.fromkeys([*STAGES, "rest"], 0.0)
    fast, slow = (Row("softmax", "cpu", "", stages, total, 200.0, 199.0) for total in (99.0, 101.0))
    assert "SLOW" not in table([fast]) and "SLOW" in table([slow])
    assert "SLOW" in table([Row("softmax", "cpu", "", stages, 99.0, 200.0, 201.0)]), "validation above 400 ms"
    assert Row("another", "cpu", "", stages, 0.0, 0.0, 0.0).limit == 1000.0

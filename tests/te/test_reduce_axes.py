"""Reduce axes merged and cut: the values stay the same, by the te evaluator in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.poly import programs
from tests.poly.support import inputs_for
from tsc.errors import InternalError
from tsc.te.compute import MAX, Compute, Program
from tsc.te.evaluate import evaluate
from tsc.te.passes.reduce_axes import in_lanes, one_reduce_axis


def _agree(before: Program, after: Program, sizes: Mapping[str, int]) -> None:
    inputs = inputs_for(before, sizes)
    expected, found = (evaluate(p, inputs, sizes, "float64") for p in (before, after))
    for output in before.outputs:
        np.testing.assert_allclose(found[output.name], expected[output.name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("make", "sizes", "merged"), [
    (programs.conv, {"B": 2, "H": 3, "W": 5}, "c_p_q"), (programs.total, {"R": 4, "C": 3}, None), (programs.gemm, {
        "M": 3, "N": 4, "K": 5}, "r"), (lambda: programs.conv(2, 3, (1, 4)), {"B": 1, "H": 2, "W": 6}, "c_p_q")])
def test_merged_axes_visit_the_same(make: Callable[[], Program], sizes: dict[str, int], merged: str | None) -> None:
    program = make()
    after = one_reduce_axis(program)
    axes = [a.name for c in after.computes for a in c.reduce_axes]
    assert axes == ([merged] if merged else ["r", "c"])  # two symbolic extents stay
    _agree(program, after, sizes)


@pytest.mark.parametrize("lanes", [1, 4, 32])
@pytest.mark.parametrize("columns", [1, 7, 32, 33])
def test_lanes_reduce_the_same(lanes: int, columns: int) -> None:
    program = programs.softmax()
    after = in_lanes(program, lanes)
    assert [c.name for c in after.computes if c.monoid] == ["mx_part", "mx", "sm_part", "sm"]
    _agree(program, after, {"R": 3, "C": columns})


def test_lanes_without_elements_are_neutral() -> None:
    """A maximum of negative numbers: an empty lane must not contribute zero."""
    program = programs.softmax("R", 2)
    first = replace(program, computes=program.computes[:1], outputs=(program.computes[0].target,))
    assert isinstance(first.computes[0], Compute) and first.computes[0].monoid == MAX
    x: dict[str, Any] = {"x": np.array([[-3.0, -2.0]], np.float32)}
    assert evaluate(in_lanes(first, 32), x, {"R": 1})["mx"].tolist() == [-2.0]


def test_several_axes_are_refused() -> None:
    with pytest.raises(InternalError, match="expected one"):
        in_lanes(programs.total(), 32)

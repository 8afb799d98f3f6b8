"""Computes that are computed where they are read: which are, with what values, and how far that goes."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest

from tests.poly.programs import at, axis, buffer, f32
from tests.poly.recurrences import EXAMPLES
from tests.poly.support import inputs_for
from tsc.poly import PatternMismatch
from tsc.poly.normalise import MOST_TERMS, inlined
from tsc.poly.pattern import IN_STRIPS
from tsc.te.compute import Compute, Program, SizeParam
from tsc.te.evaluate import evaluate
from tsc.te.expr import add, mul, walk


def links(count: int, reads: int) -> Program:
    """c0 = 2x, and each further link the sum of so many reads of the one before."""
    before = buffer("x", "N")
    computes = []
    for k in range(count):
        i, link = axis(f"i{k}", "N"), buffer(f"c{k}", "N")
        body = add(at(before, i), at(before, i)) if k == 0 else at(before, i)
        for _ in range(reads - 1 if k else 0):
            body = add(mul(body, f32(0.5)), at(before, i))
        computes.append(Compute(link, (i,), body))
        before = link
    return Program((buffer("x", "N"),), (before,), tuple(computes), (SizeParam("N"),))


def all_inlined(program: Program) -> Program:
    for compute in program.computes[:-1]:
        program = inlined(program, compute.name)
    return program


@pytest.mark.parametrize(("count", "reads"), [(1, 1), (2, 1), (40, 1), (2, 3), (5, 2)])
def test_what_is_inlined_has_the_same_values(count: int, reads: int) -> None:
    program = links(count, reads)
    made = all_inlined(program)
    assert len(made.computes) == 1
    x = inputs_for(program, {"N": 7})
    out = program.outputs[0].name
    np.testing.assert_array_equal(evaluate(made, x, {"N": 7})[out], evaluate(program, x, {"N": 7})[out])


@pytest.mark.parametrize("reads", [2, 3, 5])
def test_a_chain_that_reads_several_times_is_not_inlined_to_the_end(reads: int) -> None:
    """To the end it had as many terms as `reads` to the 60th power."""
    program = links(60, reads)
    with pytest.raises(PatternMismatch, match=f"computed where it is read has more than {MOST_TERMS} terms"):
        all_inlined(program)
    for form, _ in IN_STRIPS:
        with suppress(PatternMismatch):
            assert all(sum(1 for _ in walk(c.body)) <= reads * MOST_TERMS for c in form(program).computes)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_recurrence_stays(name: str) -> None:
    """It reads itself: where it is computed by its readers, these read what nobody writes."""
    program = EXAMPLES[name]().program
    carried = [c.name for c in program.computes if c.carried is not None]
    assert carried
    for each in carried:
        with pytest.raises(PatternMismatch, match=f"{each} is carried from trip to trip"):
            inlined(program, each)
    for form, _ in IN_STRIPS:
        with suppress(PatternMismatch):
            assert {*carried} <= {c.name for c in form(program).computes}

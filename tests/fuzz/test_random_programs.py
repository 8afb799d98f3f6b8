"""A seeded sample of random programs; ten thousand by `python3 dev.py fuzz --count 10000`. And: the fuzzer itself can fail."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from tests.fuzz import check as fuzz_check
from tests.fuzz import mutate
from tests.fuzz.check import MARGIN, Arrays, Run, Wrong, check, check_compiled, compare, compiled
from tests.fuzz.generate import Case, cases, random_case
from tests.fuzz.run import Wanted, run_batch
from tsc.codegen_c.specs import host_spec
from tsc.loop_ir.nodes import For, walk
from tsc.poly import PatternMismatch


def _more(*numbers: int) -> object:
    """A range that takes `-m slow`."""
    return pytest.param(range(*numbers), marks=pytest.mark.slow)


@pytest.mark.parametrize("numbers", [range(24), _more(24, 80)])
def test_a_sample(numbers: range) -> None:
    tally, count = run_batch(1, numbers), len(numbers)
    assert not tally.failures, str(tally)
    assert tally.outcomes["right"] >= 0.7 * count, str(tally)
    assert tally.outcomes["broken schedules refused"] > 0.5 * count, str(tally)
    assert tally.outcomes["broken loops refused"] > 0.4 * count, str(tally)
    assert tally.outcomes["values undecided"] == 0, str(tally)


@pytest.mark.parametrize("numbers", [range(10), _more(10, 32)])
def test_recurrences(numbers: range) -> None:
    tally, half = run_batch(1, numbers, wanted=Wanted(carried=True)), len(numbers) // 2
    assert not tally.failures, str(tally)
    assert tally.outcomes["right"] >= 0.8 * len(numbers), str(tally)
    assert tally.outcomes["broken schedules refused"] > half and tally.outcomes["broken loops refused"] > half, str(tally)
    assert tally.outcomes["values undecided"] == 0, str(tally)


@pytest.mark.parametrize("numbers", [range(8), _more(8, 32)])
def test_any_tiles(numbers: range) -> None:
    tally = run_batch(2, numbers, wanted=Wanted(configs=True))
    assert not tally.failures, str(tally)
    assert tally.outcomes["right"] >= 0.7 * len(numbers), str(tally)
    assert tally.outcomes["broken loops refused"] > 0.37 * len(numbers), str(tally)


def test_without_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """As kernels are made whose vectors a check refuses."""
    device = host_spec().scalar
    monkeypatch.setattr(fuzz_check, "SMALL", device)
    made = []
    for number in range(30):
        rng = Random(f"5/{number}")
        with suppress(PatternMismatch):
            made.append(check(random_case(rng), rng, f"k{number}", device=device))
    assert len(made) >= 20
    assert not any(isinstance(s, For) and s.kind == "vector" for m in made for s in walk(m.lowered.body))
    library = compiled(made)
    for one in made:
        check_compiled(one, library, Random(0))


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(cases())
def test_random_programs(case: Case) -> None:
    """Shrinks what fails; without the C compiler."""
    try:
        check(case, Random(0))
    except PatternMismatch as refusal:
        assert str(refusal)


def _run(case: Case) -> Run:
    return next(run for run in check(case, Random(0)).runs if all(v.size for v in run.expected.values()))


def test_a_wrong_value_and_a_write_outside_are_found() -> None:
    run = next(_run(c) for n in range(100) if (c := random_case(Random(f"2/{n}"))).kind == "stencil" and not c.loose)

    def right(arrays: Arrays) -> None:
        for name, want in run.expected.items():
            arrays[name][...] = want

    def wrong(arrays: Arrays) -> None:
        right(arrays)
        next(arrays[name] for name in run.expected).flat[0] += 1

    def outside(arrays: Arrays) -> None:
        right(arrays)
        array = next(arrays[name] for name in run.expected)
        memory = array.base
        while memory.base is not None:
            memory = memory.base
        memory[MARGIN + array.nbytes] = 0

    compare(run, "right", right)
    with pytest.raises(Wrong, match="instead of"):
        compare(run, "wrong", wrong)
    with pytest.raises(Wrong, match="outside its memory"):
        compare(run, "outside", outside)
    assert np.isfinite(next(iter(run.tolerance.values())))


def test_without_the_checks_broken_schedules_give_wrong_results(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("check_final", "check_loops", "verify"):
        monkeypatch.setattr(mutate, name, lambda *args: None)
    tally = run_batch(1, range(6), mutants=4)
    assert any("accepted an illegal schedule" in why for why in tally.failures), str(tally)

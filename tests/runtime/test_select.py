"""Which Variant runs: costs computed by hand, choices that follow them, and what a user is told."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runtime import test_variants
from tests.runtime.test_variants import N, executable
from tsc.runtime.cost import Cost, Rates, Work, cost_from_json, cost_to_json, total
from tsc.runtime.executable import Executable
from tsc.runtime.package import Module, Package
from tsc.runtime.plan import Call, Launch, Variant
from tsc.runtime.plan_json import plan_from_json, plan_to_json
from tsc.runtime.segments import rows_of
from tsc.runtime.select import MEMO, Selection, least
from tsc.sym import SymExpr, ceildiv

module = test_variants.module
NUMBERS = st.integers(0, 1 << 40)
KINDS = st.dictionaries(st.sampled_from(["sums", "bytes", "blocks", "steps"]), NUMBERS).map(lambda rates: tuple(rates.items()))


@pytest.mark.parametrize("blocks, steps, units, expected", [
    (1, 64, 108, (5, 40, 640)),        # one block alone: a wave of 40 + 10 * 64 steps
    (216, 216 * 64, 108, (5, 40, 640)),  # two blocks on each of 108 multiprocessors
    (217, 217 * 64, 108, (5, 80, 1280)),  # one more is another wave
    (432, 432 * 16, 108, (5, 80, 320)),
    (0, 0, 108, (5, 0, 0)),
])
def test_waves_of_equal_blocks(blocks: int, steps: int, units: int, expected: tuple[int, ...]) -> None:
    """(a + b * steps) * waves, as in section 6 of the paper."""
    rates = Rates(5, (("blocks", 40), ("steps", 10)), resident=2)
    assert tuple(rates.terms(blocks, {"steps": steps}, units).values()) == expected


def test_blocks_that_an_edge_cuts_off_cost_their_share() -> None:
    """129 rows in blocks of 128: on one core what is done, on two as long as half of it each, however it is cut."""
    rates = Rates(0, (("rows", 100),))
    assert rates.terms(2, {"rows": 129, "unknown": 7}, 1) == {"launch": 0, "wave's rows": 12900}
    assert [rates.terms(blocks, {"rows": 129}, 2)["wave's rows"] for blocks in (1, 2)] == [12900, 6450]


def test_waves_that_are_not_full() -> None:
    """Two blocks fit a multiprocessor: one on each takes what a block waits for and half of what keeps a full one busy; memory
    belongs to all of them."""
    rates = Rates(0, (("blocks", 100),), (("blocks", 30),), (("blocks", 2),), 2)
    assert [rates.terms(blocks, {}, 10) for blocks in (10, 20, 21)] == [
        {"launch": 0, "wave's blocks": 100, "unit's blocks": 30, "device's blocks": 20},
        {"launch": 0, "wave's blocks": 100, "unit's blocks": 60, "device's blocks": 40},
        {"launch": 0, "wave's blocks": 200, "unit's blocks": 90, "device's blocks": 42}]


def costing(function: str, blocks: SymExpr, launch: int, row: int, scratch: int = 0) -> Variant:
    cost = Cost(Rates(launch, (("rows", row),)), (Work("rows", N),))
    return Variant((Call(function, blocks, (0, 1), SymExpr.of(scratch), cost),))


#: 100 n against 1012 + 25 n: the second from n = 14 on, where it is ahead by 2.8 %; at 13 it is behind by as much.
FEW, MANY = costing("one_by_one", N, 0, 100), costing("by_eights", ceildiv(N, 8), 1012, 25, 8)


@pytest.mark.parametrize("variants", [(FEW, MANY), (MANY, FEW)])
def test_the_cheaper_one_runs(module: Module, variants: tuple[Variant, ...]) -> None:
    made = Executable(Package({"cpu-generic": test_variants.plan(*variants)}, {}, {"cpu-generic": module}), threads=1)
    for size in (0, 1, 7, 13, 14, 15, 100, 14, 13, 1):
        x = np.arange(size, dtype=np.float32)
        y, = made.run(None, {"x": x})
        np.testing.assert_array_equal(y, x + (1 if size < 14 else 2))
    assert made.peak_bytes(n=13) < made.peak_bytes(n=14)  # only one of them has scratch
    told = made.explain(n=13)
    assert "expected 0.000 us (launch 0.000, wave's rows 0.000), the best other 0.000: runs" in told
    assert "expected" not in made.explain()


def test_without_costs_the_first_one_runs(module: Module) -> None:
    for variants in ((test_variants.ONES, MANY), (FEW, test_variants.EIGHTS)):
        y, = executable(module, *variants).run(None, {"x": np.zeros(100, np.float32)})
        assert (y == 1).all()


def test_what_is_hardly_cheaper_is_not_worth_it() -> None:
    assert [least(costs) for costs in ([100, 99, 99], [100, 97, 98], [100], [100, 100], [0, 0, 1])] == [0, 1, 0, 0, 0]


def test_times_that_were_seen() -> None:
    """By a tenth more at 1000 and a tenth less at 3000: in the middle as the sum has it, outside as at the nearest end."""
    rates = Rates(0, (("blocks", 100),), seen=((1, 1000, 1100), (1, 3000, 900), (4, 1000, 2000)))
    assert [total(rates.terms(blocks, {}, 1)) for blocks in (0, 5, 10, 15, 20, 30, 60)] == [
        0, 550, 1100, 1575, 2000, 2700, 5400]
    assert rates.terms(20, {}, 1) == {"launch": 0, "wave's blocks": 2000, "else": 0}
    assert [total(rates.terms(40, {}, units)) for units in (4, 3, 8, 2)] == [2000, 2800, 1000, 2000]  # as on the nearest number


@given(rates=st.builds(Rates, NUMBERS, *[KINDS] * 3, st.integers(1, 4), st.just(()) | st.just(((1, 9, 1100), (2, 10**6, 900)))),
       blocks=NUMBERS, work=st.dictionaries(st.sampled_from(["sums", "bytes", "blocks"]), NUMBERS), units=st.integers(1, 200))
def test_a_sum_is_that_of_its_terms(rates: Rates, blocks: int, work: dict[str, int], units: int) -> None:
    assert rates.femtoseconds(blocks, work, units) == total(rates.terms(blocks, work, units))


def test_the_first_of_equals_runs() -> None:
    launch = Launch("add", (0, 1), (N,), (costing("f", N, 3, 1), costing("g", N, 3, 1)), "node")
    assert Selection([launch], 1).rows([4, 4], [4, 4]).calls.tolist() == [0]


def test_choices_depend_on_how_many_units_there_are() -> None:
    """Two large blocks beat eight small ones on one core and lose on eight."""
    def made(rate: int) -> Cost:
        return Cost(Rates(0, (("blocks", rate),)), ())

    large, small = (Variant((Call(name, SymExpr.of(blocks), (0,), cost=made(rate)),)) for name, blocks, rate in
                    (("large", 2, 100), ("small", 8, 30)))
    launch = Launch("add", (0,), (), (large, small), "node")
    assert [Selection([launch], units).rows([2, 8], []).calls.tolist() for units in (1, 2, 8)] == [[0], [0], [1]]


def test_each_launch_chooses_for_itself() -> None:
    launches = [Launch("add", (0, 1), (N,), (FEW, MANY), "a"), Launch("one", (0, 1), (N,), (test_variants.ONES,), "b"),
                Launch("add", (0, 1), (N,), (FEW, MANY), "c")]
    selection = Selection(launches, 1)
    assert len(selection.counts) == 4
    found = selection.rows([5, 1, 5, 100, 13], [5, 5, 100, 100])
    assert found.calls.tolist() == [0, 2, 4] and found.launches.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(found.storages, rows_of(launches, (0, 0, 1)).storages)
    assert selection.rows([5, 1, 5, 100, 13], [5, 5, 100, 100]) is found


def test_no_more_choices_are_kept_than_a_few() -> None:
    launches = [Launch("add", (0, 1), (N,), (FEW, MANY), str(k)) for k in range(8)]
    selection = Selection(launches, 1)
    for number in range(256):
        counts = [100 if number >> k & 1 else 1 for k in range(8) for _ in range(2)]
        chosen = [2 * k + (number >> k & 1) for k in range(8)]
        assert selection.rows([1] * 16, counts).calls.tolist() == chosen
    assert len(selection._memo) == MEMO


def test_costs_are_part_of_a_plan() -> None:
    plan = test_variants.plan(FEW, MANY)
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan
    assert plan.launches[0].selects and not test_variants.plan(FEW).launches[0].selects


@pytest.mark.parametrize("wrong", [
    3, [], [[1, {}, {}, {}, 0, []], []], [[1, {}, {}, {}, 1, []]], [[-1, {}, {}, {}, 1, []], []],
    [[1, {"a": 2.5}, {}, {}, 1, []], []], [[1, {}, {"a": "b"}, {}, 1, []], []], [[1, {}, {}, {}, 1, []], [["rows"]]],
    [[1, {}, {}, {}, 1, []], [["rows", "n*"]]], [[1, {}, {}, {}, 1, []], [["rows", "n"]] * 9], [[1, [], {}, {}, 1, []], []],
    [[1, {}, {}, {}, 1], []], [[1, {}, {}, {}, 1, [[3, 1], [3, 2]]], []], [[1, {}, {}, {}, 1, [[3, -1]]], []],
    [[1, {}, {}, {}, 1, [[k, 1] for k in range(65)]], []]])
def test_costs_that_are_none(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"cost|rate|work|resident"):
        cost_from_json(wrong)


def test_costs_round_trip() -> None:
    minutes = 10**17
    seen = Cost(Rates(minutes, (("a", minutes),), (("b", 3),), (("c", 4),), 5, ((1, 6, 7), (1, minutes, 9), (2, 3, 4))), ())
    for cost in (None, FEW.calls[0].cost, seen):
        assert cost_from_json(json.loads(json.dumps(cost_to_json(cost)))) == cost

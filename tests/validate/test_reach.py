"""Sizes are chosen by the Stores that they execute: each that any admissible sizes reach is executed in the comparison."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from random import Random

import numpy as np
import pytest

from benchmarks.poly import attention
from tests.loop_ir.funcs import size
from tests.poly import programs
from tests.poly.conv_programs import Window, canonical
from tests.poly.support import SMALL
from tsc.codegen_c.specs import CPU_SPECS
from tsc.errors import InternalError
from tsc.loop_ir.lower import lower
from tsc.loop_ir.nodes import Func, If, Stmt, Store, block, map_children, walk
from tsc.loop_ir.oracle.interpret import interpret
from tsc.poly.schedule import schedule_program
from tsc.target import DeviceSpec
from tsc.te.compute import Compute, Program, SizeParam
from tsc.te.expr import Const, add, call, index
from tsc.validate import Compared, check, check_values
from tsc.validate.cases import BUDGET, MOST, choose_sizes
from tsc.validate.frames import Sizes
from tsc.validate.reach import reached
from tsc.validate.witness import Case, completed

PROGRAMS: dict[str, Callable[[], Program]] = {
    "gemm": programs.gemm, "gemm_gelu": partial(programs.gemm, act="gelu"), "weights": partial(programs.gemm, "M", 768, 768),
    "row": partial(programs.gemm, 1, 70, "K"), "attention": attention, "scores": programs.attention_scores,
    "values": programs.attention_values, "conv": programs.conv, "softmax": programs.softmax, "norm": programs.layer_norm,
    "sums": programs.column_sums, "total": programs.total, "transpose": programs.transpose, "heads": programs.head_split,
    "concat": programs.concat, "where": programs.where}
SPECS = {**CPU_SPECS, "small": SMALL}


def compared(name: str, spec: DeviceSpec) -> tuple[Program, Func, Compared]:
    program = PROGRAMS[name]()
    found = schedule_program(program, spec, None, None, name, [b.name for b in program.inputs])
    func = lower(found.func, spec)
    return program, func, check_values(program, func, None if found.scop is None else found.scop.program)


@pytest.mark.defect(23)
@pytest.mark.parametrize(("name", "device"), [
    pytest.param(name, device, marks=pytest.mark.slow if device == ("cpu-generic", "cpu-avx2")[k % 2] else ())
    for k, name in enumerate(PROGRAMS) for device in SPECS])
def test_every_store_is_executed(name: str, device: str) -> None:
    _, func, found = compared(name, SPECS[device])
    assert found.undecided is None
    assert found.missed == (), f"of {sum(isinstance(s, Store) for s in walk(func.body))} stores"
    assert found.dead == ()  # no loop is without use


def guarded(func: Func, guards: Callable[[Store], Stmt]) -> Func:
    """`func` with something in place of its first Store."""
    first = next(s for s in walk(func.body) if isinstance(s, Store))

    def visit(stmt: Stmt) -> Stmt:
        return guards(first) if stmt is first else map_children(visit, stmt)

    return replace(func, body=visit(func.body))


def test_sizes_that_no_list_contains_are_solved_for() -> None:
    """A store behind a guard that holds at a single size, far from every tile's edge."""
    program, func, _ = compared("transpose", SMALL)
    name = program.sizes[0].name
    only = call("eq", size(name), index(331))
    broken = guarded(func, lambda s: block(s, If(only, replace(s))))
    added = next(s for s in walk(broken.body) if isinstance(s, If) and s.condition == only)
    cases, dead = completed(program, broken, *choose_sizes(program, broken, Random(0)), Random(0))
    assert not dead
    assert any(case.sizes[name] == 331 for case in cases)
    assert reached(broken, Sizes.of_cases([case.sizes for case in cases]))[id(added.then)].any()


def test_more_sizes_than_usual_are_some() -> None:
    """Found by random programs: of little data few sizes are taken several times, and more than usual were not taken once."""
    n, x, y = programs.axis("n", "N"), programs.buffer("x", "N"), programs.buffer("y", "N")
    program = Program((x,), (y,), (Compute(y, (n,), programs.at(x, n)),), (SizeParam("N"),))
    func = lower(schedule_program(program, SMALL, None, None, "copy", []).func, SMALL)
    broken = guarded(func, lambda s: block(s, *(If(call("eq", size("N"), index(k)), replace(s)) for k in range(1, 40))))
    assert len(choose_sizes(program, broken, Random(0))[0]) > MOST
    wrong = guarded(func, lambda s: block(s, *(If(call("eq", size("N"), index(k)), replace(
        s, value=Const(float(k), "float32"))) for k in range(1, 40))))
    with pytest.raises(InternalError, match="is not what its Program means"):
        check_values(program, wrong)


def test_what_no_sizes_execute_is_said() -> None:
    program, func, _ = compared("transpose", SMALL)
    never = call("lt", add(size(program.sizes[0].name), index(1)), index(1))
    broken = guarded(func, lambda s: block(s, If(never, Store(s.buffer, s.index, Const(0.0, "float32"), s.instance))))
    found = check_values(program, broken)
    assert len(found.dead) == 1 and not found.missed
    assert not found.notes()


def test_what_is_missed_is_named() -> None:
    program, func, _ = compared("gemm", SMALL)
    found = check_values(program, func, sizes=[{"M": 1, "N": 1, "K": 1}])
    assert found.undecided is None
    assert any("acc_update" in name for name in found.missed)
    (note,) = found.notes()
    assert "acc_update" in note


Round = tuple[int, int, set[int]]


def rounds(name: str, patch: pytest.MonkeyPatch, solved: bool) -> tuple[Compared, list[Round]]:
    """Values compared at very few points first: how many Cases, how many points and which Stores each time. With `solved`,
    sizes are found for the Stores that are left out."""
    seen: list[Round] = []
    run, complete = check._compared, check.completed

    def spied(program: Program, func: Func, scheduled: Program | None, cases: Sequence[Case], rng: Random,
              budget: int) -> check.Executed:
        found = run(program, func, scheduled, cases, rng, budget)
        seen.append((len(cases), budget, set(found.stores)))
        return found

    def solving(program: Program, func: Func, cases: Sequence[dict[str, int]],
                reached: Collection[int], rng: Random) -> tuple[list[Case], set[int]]:
        return complete(program, func, cases, reached, rng) if cases or solved else ([], set())

    patch.setattr(check, "_compared", spied)
    patch.setattr(check, "completed", solving)
    patch.setattr(check, "FIRST", 1)
    return compared(name, CPU_SPECS["cpu-avx512"])[2], seen


@pytest.mark.parametrize("name", ["norm", "softmax"])
def test_stores_that_few_points_leave_out_are_executed_on_their_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, (first, own) = rounds(name, monkeypatch, True)
    assert not found.missed
    assert own[2] - first[2]
    assert own[0] < first[0]


def test_where_none_are_solved_for_more_points_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    found, (first, again) = rounds("norm", monkeypatch, False)
    assert not found.missed
    assert again[2] - first[2]
    assert again[:2] == (first[0], BUDGET)


@pytest.mark.parametrize("device", SPECS)
@pytest.mark.parametrize("budget", [500, 10_000])
def test_what_stands_in_for_elements_outside_is_not_left_out(budget: int, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few terms of a sum may all be outside of a narrow image: of its rows nothing is wanted then but the zeros around."""
    monkeypatch.setattr(check, "FIRST", budget)
    monkeypatch.setattr(check, "BUDGET", budget)
    program = canonical(Window((9, 9), 2, 2, begins=(4, 4), ends=(4, 4), groups=2)).program
    found = schedule_program(program, SPECS[device], None, None, "window", [b.name for b in program.inputs])
    assert found.scop is not None
    assert check_values(program, lower(found.func, SPECS[device]), found.scop.program).undecided is None


@pytest.mark.parametrize("name", ["gemm", "softmax", "conv"])
def test_reached_stores_are_those_that_run(name: str) -> None:
    """Against the interpreter, at sizes around the tiles of the small device."""
    program, func, _ = compared(name, SMALL)
    rng = np.random.default_rng(0)
    for number in (0, 2) if name == "conv" else range(4):
        sizes = {s.name: s.lo + number * 3 + k for k, s in enumerate(program.sizes)}
        shapes = {b.name: tuple(e.evaluate(sizes) for e in b.shape) for b in func.buffers}
        arrays = {n: rng.standard_normal(shape).astype(np.float32) for n, shape in shapes.items()}
        done = reached(func, Sizes.of_cases([sizes]))
        for store in [s for s in walk(func.body) if isinstance(s, Store)]:
            counted = dict(arrays)
            assert (id(store) in done) == runs(func, store, counted, sizes)


def runs(func: Func, store: Store, arrays: dict[str, np.ndarray], sizes: dict[str, int]) -> bool:
    """Whether a Store is executed: an index outside of every buffer in its place is noticed."""
    beyond = Store(store.buffer, tuple(index(2**40) for _ in store.index), store.value, store.instance)

    def visit(stmt: Stmt) -> Stmt:
        return beyond if stmt is store else map_children(visit, stmt)

    try:
        interpret(replace(func, body=visit(func.body)), {n: a.copy() for n, a in arrays.items()}, sizes)
    except InternalError as error:
        return "out of bounds" in str(error)
    return False



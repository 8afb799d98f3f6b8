"""What trips hand on: two slices are kept where no more are used at a time, with the same values; all of them elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.loop_ir.funcs import buffer, c32, loop, store
from tests.poly.programs import at, axis
from tests.poly.recurrences import earlier
from tests.poly.support import inputs_for, run, scheduled
from tsc.codegen_c.specs import CPU_SPECS
from tsc.loop_ir.fold_storage import fold_storage
from tsc.loop_ir.lower import lower, settle
from tsc.loop_ir.marks import TRIP
from tsc.loop_ir.nodes import Allocate, For, Func, Stmt, block, walk
from tsc.te.compute import SUM, Carried, Compute, Program, SizeParam
from tsc.te.expr import Const, Expr, Load, Size, Var, add, call, index, mul, select

R, T = SizeParam("R"), SizeParam("T", lo=2)
AVX512 = CPU_SPECS["cpu-avx512"]


def final(along: int, reverse: bool = False, back: int = 1, asked: int = 1) -> Program:
    """out[r] = s[r, ..] `asked` trips before the end, where s[r, t] = x[r, t] + s[r, t - back] / 2."""
    shape = ("R", "T") if along else ("T", "R")
    x, s, out = buffer("x", *shape), buffer("s", *shape), buffer("out", "R")
    axes = tuple(axis(name.lower(), name) for name in shape)
    before = earlier(s, axes, along, reverse)
    if back > 1:
        place: list[Expr] = [Var(a.name) for a in axes]
        place[along] = add(place[along], index(-back))
        before = select(call("le", index(back), Var("t")), Load(s, tuple(place)), c32(0))
    body = add(at(x, *axes), mul(before, Const(0.5, "float32")))
    last = index(asked - 1) if reverse else add(Size(T_SIZE), index(-asked))
    row = Var("q")
    told = Load(s, (row, last) if along else (last, row))
    return Program((x,), (out,), (Compute(s, axes, body, carried=Carried("sum", "t", reverse)),
                                  Compute(out, (axis("q", "R"),), told)), (R, SizeParam("T", lo=asked)))


T_SIZE = buffer("x", "T").shape[0]


def shapes(func: Func) -> dict[str, list[str]]:
    return {s.buffer.name: list(map(str, s.buffer.shape)) for s in walk(func.body) if isinstance(s, Allocate)}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("along", [0, 1])
def test_two_slices_are_kept(along: int, reverse: bool) -> None:
    program = final(along, reverse)
    before = lower(scheduled(program).func, AVX512)
    after = settle(before)
    assert "T" in shapes(before)["s"] and "T" not in shapes(after)["s"] and "2" in shapes(after)["s"]
    assert "T" not in str(after.scratch)
    for t in (1, 2, 3, 4, 9):
        for r in (1, 5, 70):
            sizes = {"R": r, "T": t}
            given = inputs_for(program, sizes, t)
            np.testing.assert_array_equal(run(after, program, sizes, given)["out"], run(before, program, sizes, given)["out"])
            wanted = np.zeros(r, np.float32)
            for step in range(t)[::-1 if reverse else 1]:
                wanted = given["x"].take(step, axis=along) + wanted * np.float32(0.5)
            np.testing.assert_allclose(run(after, program, sizes, given)["out"], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("program", [final(0, back=2), final(1, asked=2), final(0, reverse=True, asked=2)])
def test_more_slices_stay(program: Program) -> None:
    before = lower(scheduled(program).func, AVX512)
    assert shapes(settle(before))["s"] == shapes(before)["s"] and "T" in shapes(before)["s"]


def test_a_state_that_is_summed_up_stays() -> None:
    program = final(0)
    s = program.computes[0].target
    told = Compute(program.outputs[0], (axis("q", "R"),), Load(s, (Var("k"), Var("q"))), (axis("k", "T"),), SUM)
    before = lower(scheduled(replace(program, computes=(program.computes[0], told))).func, AVX512)
    assert shapes(settle(before))["s"] == shapes(before)["s"]


# -- loops by hand ---------------------------------------------------------------------------------------------

S, X, Y = buffer("s", "T"), buffer("x", "T"), buffer("y", "T")
TRIPS, NOW = Var("t"), (Var("t"),)


def trips(*body: Stmt, mark: str = TRIP, step: int = 1) -> For:
    return loop("t", 0, Size(T_SIZE), *body, mark=mark, step=step)


def held(*body: Stmt) -> Func:
    return Func("f", (X, Y), ("y",), (T,), loop("b", 0, 1, Allocate(S, "scratch", block(*body)), kind="block"))


def kept(place: Callable[[Expr], Expr] = lambda t: t) -> Stmt:
    """s at a place is x[t]."""
    return store(S, (place(TRIPS),), Load(X, NOW))


def told(place: Expr) -> Stmt:
    return store(Y, (index(0),), Load(S, (place,)))


LAST = add(Size(T_SIZE), index(-1))
USED = store(Y, NOW, Load(S, NOW))


@pytest.mark.parametrize("func", [held(trips(kept(), USED)), held(trips(kept()), told(LAST)), held(trips(kept(), told(TRIPS))),
                                  held(store(S, (index(-1),), c32(0)), trips(kept(), told(add(TRIPS, index(-1)))))])
def test_loops_whose_slices_are_two(func: Func) -> None:
    assert shapes(fold_storage(func))["s"] == ["2"]


@pytest.mark.parametrize("func", [
    held(trips(kept(), USED, mark="")),                                       # it may have no order
    held(trips(kept(), USED, step=2)),
    held(trips(kept(lambda t: mul(t, index(2))), told(TRIPS))),
    held(trips(kept(lambda t: index(0)), told(index(0)))),
    held(trips(kept()), told(index(0))),                                      # not of the last trip
    held(told(LAST), trips(kept())),                                          # before the trips
    held(trips(kept()), loop("u", 0, Size(T_SIZE), store(Y, (Var("u"),), Load(S, (Var("u"),))))),
    held(trips(kept(), told(add(TRIPS, index(-2))))),
    held(trips(kept(), told(add(TRIPS, index(1))))),
    held(trips(kept(), store(S, (add(TRIPS, index(-1)),), c32(0)), USED)),     # it changes what was
    held(trips(kept()), trips(kept(), USED)),
    held(store(S, (index(0),), c32(0)), trips(kept(), told(add(TRIPS, index(-1))))),   # the loop begins there itself
    held(trips(kept(), store(Y, NOW, Load(S, (call("floordiv", TRIPS, index(2)),))))),
])
def test_loops_that_use_more(func: Func) -> None:
    assert fold_storage(func) == func

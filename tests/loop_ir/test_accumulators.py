"""Accumulators: where they are held in registers, that nothing else changes, and who must meet for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.codegen_cuda.generated import check, launched, load, printed
from tests.loop_ir.funcs import buffer, c32, loop, store
from tests.loop_ir.gpu_funcs import threads, warps
from tests.poly import programs
from tests.poly.support import inputs_for, on_gpu
from tsc.errors import InternalError
from tsc.loop_ir.gpu.accumulators import hold_accumulators, without_accumulators
from tsc.loop_ir.gpu.hazards import Hazard
from tsc.loop_ir.gpu.verify_sync import verify_synchronised
from tsc.loop_ir.lower import lower_gpu
from tsc.loop_ir.nodes import Allocate, Barrier, Block, For, Func, If, Stmt, Store, block, map_children, walk
from tsc.poly.tile import TileConfig
from tsc.te.compute import Program, SizeParam
from tsc.te.expr import Expr, Load, Var, call, index

ROWS = TileConfig(block_tile=(2, 1, 1))
PROGRAMS = {"softmax": lambda: programs.softmax(columns=70), "norm": lambda: programs.layer_norm(columns=33),
            "sums": programs.column_sums}


def held(func: Func) -> list[str]:
    """Whose places are held in registers."""
    names = [s.buffer.name for s in walk(func.body) if isinstance(s, Allocate)]
    return [name.partition("_held")[0] for name in names if "_held" in name]


def lowered(program: Program) -> Func:
    return lower_gpu(on_gpu(program, ROWS).func, 1)


def test_parts_and_folds_of_rows_are_held() -> None:
    assert held(lowered(PROGRAMS["softmax"]())) == ["mx_part", "mx", "sm_part", "sm"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name: str) -> None:
    """The same bits with and without, at odd sizes, races looked for."""
    program = PROGRAMS[name]()
    func = lowered(program)
    assert held(func)
    kernels, text = printed({"kernel": func})
    plain, plain_text = printed({"kernel": without_accumulators(func)})
    assert "_held" in text and "_held" not in plain_text
    for count in (1, 2, 7):
        sizes = {size.name: count for size in func.sizes}
        for mode in ("fast", "lazy", "race"):
            check(func, kernels["kernel"], load(text), program, sizes, mode)
        one, other = (launched(func, k["kernel"], load(t), inputs_for(program, sizes), sizes)[1]
                      for k, t in ((kernels, text), (plain, plain_text)))
        for key, values in one.items():
            np.testing.assert_array_equal(values, other[key])


def changed(stmt: Stmt, extra: Stmt) -> Stmt:
    """The loop of every held accumulator with one more statement in it."""
    if isinstance(stmt, Allocate) and "_held" in stmt.buffer.name and isinstance(stmt.body, Block):
        begin, around, end = stmt.body.body
        assert isinstance(around, For)
        return replace(stmt, body=Block((begin, replace(around, body=block(around.body, extra)), end)))
    return map_children(lambda s: changed(s, extra), stmt)


def test_what_is_used_besides_is_found() -> None:
    func = lowered(PROGRAMS["softmax"]())
    place = next(s for s in walk(func.body) if isinstance(s, Store) and s.buffer.name == "mx_part")
    for extra in (Barrier("warp"), replace(place, value=c32(1.0))):
        with pytest.raises(InternalError, match="stands for it"):
            without_accumulators(replace(func, body=changed(func.body, extra)))


# -- what is held ----------------------------------------------------------------------------------------------

S, X, Y = buffer("s", 2, 4), buffer("x", 8), buffer("y", 8)
W, T, C = Var("wm"), Var("t"), Var("c")


def kernel(*body: Stmt) -> Func:
    """Two warps of four threads."""
    whole = Allocate(S, "shared", warps(2, loop("t", 0, 4, *body, kind="thread")))
    return Func("kernel", (X, Y), ("y",), (SizeParam("N", lo=0),), loop("b", 0, 1, whole, kind="block"))


def summed(place: tuple[Expr, ...], *, lo: int | Expr = 0, hi: int | Expr = 8, read: Expr = C) -> For:
    return loop("c", lo, hi, store(S, place, call("add", Load(S, place), Load(X, (read,)))))


OWN = (W, T)
BEGIN = store(S, OWN, c32(0.0))


@pytest.mark.parametrize(("body", "count"), [
    ((BEGIN, summed(OWN)), 1),
    ((BEGIN, summed(OWN, hi=Var("N"))), 1),                                  # perhaps of no trips: its thread has begun it
    ((BEGIN, Barrier(), summed(OWN)), 1),                                    # it is surely stored
    ((BEGIN, Barrier(), summed(OWN, hi=Var("N"))), 1),                       # others who store there would race with it
    ((summed(OWN, hi=Var("N")),), 0),
    ((BEGIN, loop("d", 0, 2, summed(OWN))), 1),                              # around both loops
    ((BEGIN, loop("c", 0, 4, store(S, (W, C), c32(1.0)))), 0),               # another place in each trip
    ((BEGIN, loop("c", 0, 4, store(S, OWN, Load(S, (W, C))))), 0),           # it reads others, too
    ((BEGIN, loop("c", 0, 4, store(S, OWN, Load(X, (C,))))), 0),             # it does not read its own
    ((BEGIN, loop("c", 0, 4, Barrier("warp"), summed(OWN).body)), 0),        # threads meet in it
    ((BEGIN, loop("c", 0, 8, If(call("lt", T, index(2)), summed(OWN).body))), 1),       # asked once, outside
    ((BEGIN, loop("c", 0, 8, If(call("lt", C, index(2)), summed(OWN).body))), 1),
    ((If(call("lt", T, index(2)), BEGIN), loop("c", 0, 8, If(call("lt", C, T), summed(OWN).body))), 0)])  # begun by some
def test_which_are_held(body: tuple[Stmt, ...], count: int) -> None:
    made = hold_accumulators(kernel(*body))
    assert len(held(made)) == count
    assert not held(without_accumulators(made))


def test_an_accumulator_moves_no_store_over_a_condition_that_changes() -> None:
    made = hold_accumulators(kernel(BEGIN, loop("c", 0, 8, If(call("lt", C, index(2)), summed(OWN).body))))
    loops = [s for s in walk(made.body) if isinstance(s, For) and s.var == "c"]
    assert len(loops) == 1 and isinstance(loops[0].body, If)


# -- one thread alone ------------------------------------------------------------------------------------------

FIRST, TWO = call("lt", T, index(1)), call("lt", T, index(2))
ALONE = (W, index(0))
READ = store(Y, (call("add", call("mul", W, index(4)), T),), Load(S, ALONE))


def test_one_lane_need_not_meet_itself() -> None:
    write, more = store(S, ALONE, c32(0.0)), store(S, ALONE, call("add", Load(S, ALONE), c32(1.0)))
    verify_synchronised(kernel(If(FIRST, write), If(FIRST, more)))
    verify_synchronised(kernel(If(FIRST, block(write, more)), Barrier("warp"), READ))
    for body in ((If(FIRST, write), READ), (If(FIRST, write), If(TWO, more)), (If(TWO, write), If(TWO, more)),
                 (If(FIRST, block(write, more)), READ)):
        with pytest.raises(Hazard):
            verify_synchronised(kernel(*body))


def test_the_first_lane_of_every_warp_is_not_the_same() -> None:
    common = (index(0), index(0))
    write, more = store(S, common, c32(0.0)), store(S, common, call("add", Load(S, common), c32(1.0)))
    with pytest.raises(Hazard):
        verify_synchronised(kernel(If(FIRST, write), If(FIRST, more)))
    alone = call("lt", W, index(1))
    verify_synchronised(kernel(If(alone, If(FIRST, write)), If(alone, If(FIRST, more))))
    with pytest.raises(Hazard):  # of warps that are not counted from 0
        team = loop("wm", -1, 1, threads(2, 2, If(alone, If(call("lt", Var("tm"), index(1)), write)),
                                         If(alone, If(call("lt", Var("tm"), index(1)), more))), kind="warp")
        verify_synchronised(replace(kernel(write), body=loop("b", 0, 1, Allocate(S, "shared", team), kind="block")))

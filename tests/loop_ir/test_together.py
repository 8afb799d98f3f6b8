"""Stores of neighbours: which are made together, which must not be, and what they compute and move."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.codegen_cuda.generated import check, launched, load, printed
from tests.loop_ir.funcs import buffer, c32, loop
from tests.poly import programs
from tests.poly.support import inputs_for, on_gpu
from tsc.loop_ir.gpu.registers import without_registers
from tsc.loop_ir.gpu.threads import trips
from tsc.loop_ir.gpu.together import store_together
from tsc.loop_ir.lower import lower_gpu
from tsc.loop_ir.nodes import For, Func, If, Stmt, Store, map_children, walk
from tsc.poly.tile import TileConfig
from tsc.te.expr import Expr, Load, Var, add, call, index, mul, select

#: Lanes with four neighbours of a row of C each, and with two, as matrix instructions have them.
FOUR = TileConfig((8, 16, 1), (32, 32, 16), warp_tile=(16, 32), stages=2)
TWO = TileConfig((16, 8, 8), (32, 32, 16), warp_tile=(16, 32), stages=2)


def lowered(n: int | str, config: TileConfig) -> Func:
    return lower_gpu(on_gpu(programs.gemm("M", n, "K", act="gelu"), config).func, config.stages)


def stores(func: Func) -> set[tuple[str, int]]:
    """The buffers that are stored to in loops of kind "vector", and how many elements at once."""
    return {(s.body.buffer.name, trips(s) or 0) for s in walk(func.body) if isinstance(s, For) and s.kind == "vector"
            and isinstance(s.body, Store) and not s.body.asynchronous}


@pytest.mark.parametrize(("n", "config", "together"), [
    (64, FOUR, 4), (64, TWO, 2),
    (1000, FOUR, 4),             # a block hangs over the end, no row of four neighbours does
    (1002, FOUR, 0), (1002, TWO, 2),
    (77, TWO, 0), ("N", FOUR, 0)])
def test_where_stores_are_wide(n: int | str, config: TileConfig, together: int) -> None:
    """The bias is read as the result is stored. In each mode, at odd numbers of rows, values are right."""
    func = lowered(n, config)
    found = stores(func)
    assert {(name, size) for name, size in found if name == "out"} == ({("out", together)} if together else set())
    assert any(name.startswith("b_part") for name, _ in found) == (together > 0)
    assert not any("_part" in name for name, _ in stores(without_registers(func)))
    kernels, text = printed({"kernel": func})
    assert text.count("store_global_row(") == (together > 0) and text.count("load_constant_row<") == (together > 0)
    for rows in (1, 37):
        sizes = {"M": rows, "N": 77, "K": 19}
        for mode in ("fast", "lazy", "race"):
            check(func, kernels["kernel"], load(text), programs.gemm("M", n, "K", act="gelu"),
                  {s.name: sizes[s.name] for s in func.sizes}, mode)


@pytest.mark.parametrize("config", [FOUR, TWO])
def test_each_sector_is_touched_once(config: TileConfig) -> None:
    """Of the rows of C, which are whole sectors; one by one every word was a request of its own."""
    func, program = lowered(64, config), programs.gemm("M", 64, "K", act="gelu")
    apart = replace(func, body=_serial(func.body))
    sizes, found = {"M": 64, "K": 16}, {}
    for name, one in (("together", func), ("apart", apart)):
        kernels, text = printed({"kernel": one})
        report, _, _ = launched(one, kernels["kernel"], load(text), inputs_for(program, sizes), sizes, count=True)
        assert report is not None
        found[name] = report.global_sectors - report.ideal_sectors
    assert found["together"] == 0 < found["apart"]


def _serial(stmt: Stmt) -> Stmt:
    """Loops of kind "vector" that store to the output one by one."""
    if isinstance(stmt, For) and stmt.kind == "vector" and isinstance(stmt.body, Store) and stmt.body.buffer.name == "out":
        return replace(stmt, kind="serial")
    return map_children(_serial, stmt)


X, Y = buffer("x", 64), buffer("y", 64)
LANE, STEP = Var("lane"), Var("v")
OWN = add(mul(index(4), LANE), STEP)


def made(value: Expr, place: Expr = OWN, *, condition: Expr | None = None) -> Func:
    """y[place] = value for four neighbours v of each lane, perhaps under a condition."""
    store: Stmt = Store(Y, (place,), value)
    body = loop("v", 0, 4, store if condition is None else If(condition, store))
    return Func("f", (X, Y), ("y",), (), loop("block", 0, 1, loop("lane", 0, 16, body, kind="thread"), kind="block"))


@pytest.mark.parametrize(("func", "expected"), [
    (made(Load(X, (OWN,))), {("y", 4), ("x_part0", 4)}),
    (made(Load(X, (add(OWN, index(1)),))), {("y", 4)}),                  # not from a multiple of four on
    (made(Load(X, (mul(index(4), LANE),))), {("y", 4)}),                 # the same for all
    (made(c32(1.0), add(mul(index(4), STEP), LANE)), set()),             # no neighbours
    (made(c32(1.0), add(OWN, index(2))), set()),
    (made(Load(Y, (OWN,))), {("y", 4)}),
    (made(Load(Y, (add(mul(index(4), LANE), call("sub", index(3), STEP)),))), set()),  # what others have stored before
    (made(select(call("lt", STEP, index(2)), Load(X, (OWN,)), c32(0.0))), {("y", 4)}),  # what is read under a condition
    (made(c32(1.0), condition=call("lt", OWN, index(40))), {("y", 4)}),
    (made(c32(1.0), condition=call("ge", OWN, index(40))), {("y", 4)}),
    (made(c32(1.0), condition=call("lt", OWN, index(42))), set()),       # two of four
    (made(c32(1.0), condition=call("le", OWN, index(40))), set()),
    (made(c32(1.0), condition=call("gt", OWN, index(40))), set()),
    (made(c32(1.0), condition=call("lt", index(40), LANE)), {("y", 4)})])
def test_what_is_a_store_of_neighbours(func: Func, expected: set[tuple[str, int]]) -> None:
    assert stores(store_together(func)) == expected

"""Loops at quotients, and conditions as runs of lanes: against every single iteration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.loop_ir.funcs import buffer, c32, call_kernel, load_kernel, loop, size, store
from tsc.codegen_c.specs import CPU_SPECS
from tsc.config import Options
from tsc.loop_ir.cpu.vector_rules import lane_range
from tsc.loop_ir.cpu.vectorize import vectorize
from tsc.loop_ir.lower import lower
from tsc.loop_ir.nodes import For, Func, walk
from tsc.loop_ir.oracle.interpret import interpret
from tsc.loop_ir.simplify import simplify
from tsc.loop_ir.verify import verify
from tsc.sym import dim
from tsc.te.compute import SizeParam
from tsc.te.expr import INDEX, Call, Expr, Load, Size, Var, add, call, index, mul, select

LANE, W = Var("i"), Size(dim("W"))


def rows_shifted() -> Func:
    """y[i] = x[(i + 3) // W, (i + 3) % W - 1] where that column is inside the row, else 0, for 3 <= i + 3 < N."""
    place = add(LANE, index(3))
    row, column = Call("floordiv", (place, W), INDEX), call("sub", Call("mod", (place, W), INDEX), index(1))
    x, y = buffer("x", "H", "W"), buffer("y", "N")
    value = select(call("ge", column, index(0)), Load(x, (row, column)), c32(0))
    body = loop("i", 0, call("sub", size("N"), index(3)), store(y, (LANE,), value))
    return Func("shifted", (x, y), ("y",), (SizeParam("H"), SizeParam("W"), SizeParam("N", 4)), body)


def test_a_divisor_that_may_be_zero_is_left_alone() -> None:
    """Bounds of a loop at its quotients would divide by it where the loop has no iterations."""
    func = rows_shifted()
    made, _ = vectorize(replace(func, sizes=(SizeParam("H"), SizeParam("W", 0), SizeParam("N", 3))), CPU_SPECS["cpu-avx2"])
    assert not any(isinstance(s, For) and s.var == "i_q" for s in walk(made.body))
    y = np.full(3, 77, np.float32)
    interpret(made, {"x": np.zeros((2, 0), np.float32), "y": y}, {"H": 2, "W": 0, "N": 3})
    assert (y == 77).all()


@pytest.mark.parametrize("spec", ["cpu-avx512", "cpu-avx2"])
@pytest.mark.parametrize(("height", "width"), [(1, 4), (1, 40), (7, 5), (5, 16), (3, 33)])
def test_each_quotient_is_one_run(spec: str, height: int, width: int) -> None:
    made, reasons = vectorize(rows_shifted(), CPU_SPECS[spec])
    assert reasons == () and any(isinstance(s, For) and s.var == "i_q" for s in walk(made.body))
    x = np.random.default_rng(0).standard_normal((height, width)).astype(np.float32)
    count = height * width
    y = np.full(max(count, 4), 77, np.float32)
    interpret(made, {"x": x, "y": y}, {"H": height, "W": width, "N": max(count, 4)})
    shifted = np.pad(x, ((0, 0), (1, 0)))[:, :-1].reshape(-1)
    np.testing.assert_array_equal(y[:count - 3], shifted[3:count])
    assert (y[count - 3:] == 77).all()


def test_a_quotient_of_a_quotient_is_a_loop_of_its_own() -> None:
    """y[i] = x[i // 30, i // 5 % 6, i % 5]: three loops."""
    plane = Call("mod", (Call("floordiv", (LANE, index(5)), INDEX), index(6)), INDEX)
    place = (Call("floordiv", (LANE, index(30)), INDEX), plane, Call("mod", (LANE, index(5)), INDEX))
    x, y = buffer("x", "H", 6, 5), buffer("y", "N")
    body = loop("i", 0, size("N"), store(y, (LANE,), Load(x, place)))
    made, _ = vectorize(Func("f", (x, y), ("y",), (SizeParam("H"), SizeParam("N")), body), CPU_SPECS["cpu-avx512"])
    verify(simplify(made))
    data = np.arange(90, dtype=np.float32).reshape(3, 6, 5)
    found = np.zeros(83, np.float32)
    interpret(made, {"x": data, "y": found}, {"H": 3, "N": 83})
    np.testing.assert_array_equal(found, data.reshape(-1)[:83])


def test_short_and_varying_divisors_are_left_alone() -> None:
    x, y = buffer("x", "N"), buffer("y", "N")
    for by in (index(2), LANE):
        value = Load(x, (Call("floordiv", (LANE, by), INDEX),))
        func = Func("f", (x, y), ("y",), (SizeParam("N"),), loop("i", 0, size("N"), store(y, (LANE,), value)))
        made, _ = vectorize(func, CPU_SPECS["cpu-avx512"])
        assert not any(isinstance(s, For) and s.var == "i_q" for s in walk(made.body))


@pytest.mark.defect(32)
@pytest.mark.parametrize(("start", "shift", "vectors"), [
    (0, 0, True), (2, 0, True), (0, 4, True), (1, 0, False), (0, 1, False)])
@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8", "bool"])
def test_every_element_twice(start: int, shift: int, vectors: bool, dtype: str) -> None:
    """y[i] = x[(i + shift) // 2] from `start` on: vectors begin with the first of two equal elements, or there are none."""
    x, y = buffer("x", "M", dtype=dtype), buffer("y", "N", dtype=dtype)
    place = Call("floordiv", (add(LANE, index(shift)), index(2)), INDEX)
    body = loop("i", start, size("N"), store(y, (LANE,), Load(x, (place,))))
    plain = Func("twice", (x, y), ("y",), (SizeParam("N"), SizeParam("M")), body)
    made, _ = vectorize(simplify(plain), CPU_SPECS["cpu-avx2"])
    assert any(isinstance(s, For) and s.kind == "vector" for s in walk(made.body)) == vectors
    for count in (1, 2, 8, 15, 16, 17, 41):
        data = (np.arange(30) % 5 != 1).astype(dtype) if dtype == "bool" else np.arange(30).astype(dtype)
        expected = data[(np.arange(count) + shift) // 2]
        for run in (interpret, compiled):
            found = np.zeros(count, dtype)
            run(lower(plain, CPU_SPECS["cpu-avx2"]), {"x": data, "y": found}, {"N": count, "M": 30})
            np.testing.assert_array_equal(found[start:], expected[start:])


def compiled(func: Func, arrays: dict[str, Any], sizes: dict[str, int]) -> None:
    """What `interpret` does, in C."""
    assert call_kernel(load_kernel(func, CPU_SPECS["cpu-avx2"], Options()), func, arrays, sizes) == 0


@pytest.mark.parametrize("factor", [-3, -2, -1, 1, 2, 3])
@pytest.mark.parametrize("fn", ["lt", "le", "gt", "ge"])
@pytest.mark.parametrize("offset", range(-7, 8))
def test_a_comparison_is_a_run_of_lanes(factor: int, fn: str, offset: int) -> None:
    left: Expr = add(mul(LANE, index(factor)), index(offset))
    found = lane_range(call(fn, left, index(2)), "i")
    assert found is not None and not found.others
    holds = {"lt": int.__lt__, "le": int.__le__, "gt": int.__gt__, "ge": int.__ge__}[fn]
    lows, highs = ([x.evaluate({}) for x in bounds] for bounds in (found.lows, found.highs))
    for lane in range(-20, 21):
        inside = all(low <= lane for low in lows) and all(lane < high for high in highs)
        assert inside == holds(factor * lane + offset, 2), lane


def test_what_is_no_run_is_refused() -> None:
    x = buffer("x", "N")
    assert lane_range(call("lt", Load(x, (LANE,)), c32(0)), "i") is None
    assert lane_range(call("lt", Call("mod", (LANE, index(3)), INDEX), index(1)), "i") is None
    assert lane_range(Call("or", (call("lt", LANE, index(3)), call("gt", LANE, index(5))), "bool"), "i") is None
    both = lane_range(Call("and", (call("lt", LANE, index(3)), call("lt", Var("j"), index(5))), "bool"), "i")
    assert both is not None and len(both.highs) == len(both.others) == 1

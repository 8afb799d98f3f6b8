"""Copies of rows into columns: which are taken in squares, that they copy the same, and what is left as it was."""

from __future__ import annotations

import numpy as np
import pytest

from tests.loop_ir.funcs import buffer, c32, loop, store
from tsc.codegen_c.specs import BFLOAT_SPECS, CPU_SPECS
from tsc.loop_ir.cpu.squares import turn_copies
from tsc.loop_ir.lower import lower
from tsc.loop_ir.marks import COPY, SQUARES
from tsc.loop_ir.nodes import Func, Intrin, Stmt, walk
from tsc.loop_ir.oracle.interpret import interpret
from tsc.target import DeviceSpec
from tsc.te.expr import Buffer, Expr, Load, Var, add, call, index, mul, select

AVX512, AVX2, SSE = (CPU_SPECS[name] for name in ("cpu-avx512", "cpu-avx2", "cpu-generic"))
R, C, X = Var("r"), Var("c"), Var("x")


def squares(func: Func) -> list[str]:
    return [s.name for s in walk(func.body) if isinstance(s, Intrin)]


def func_of(body: Stmt, *buffers: Buffer) -> Func:
    return Func("f", buffers, (buffers[-1].name,), (), body)


def turned(rows: int, columns: int, swapped: bool = False) -> Func:
    """y[c, r] = x[r, c]."""
    x, y = buffer("x", rows, columns), buffer("y", columns, rows)
    moved = store(y, (C, R), Load(x, (R, C)))
    ranges = (("c", columns), ("r", rows)) if swapped else (("r", rows), ("c", columns))
    (outer, outers), (inner, inners) = ranges
    return func_of(loop(outer, 0, outers, loop(inner, 0, inners, moved, mark=COPY), mark=COPY), x, y)


def filled(func: Func) -> np.ndarray:
    x, y = func.buffers
    arrays = {b.name: np.zeros([e.as_int() or 0 for e in b.shape], np.float32) for b in (x, y)}
    arrays["x"][...] = np.arange(arrays["x"].size).reshape(arrays["x"].shape)
    interpret(func, arrays, {})
    return arrays["y"]


@pytest.mark.parametrize("spec", [AVX512, AVX2, SSE], ids=lambda s: s.name)
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(16, 16), (17, 40), (8, 9), (33, 15)])
def test_squares_copy_the_same(rows: int, columns: int, swapped: bool, spec: DeviceSpec) -> None:
    plain = turned(rows, columns, swapped)
    made = turn_copies(plain, spec)
    assert squares(made) == [SQUARES[spec.vector_bytes // 4]]
    np.testing.assert_array_equal(filled(made), filled(plain))
    lowered = lower(plain, spec)
    assert squares(lowered) == squares(made)
    np.testing.assert_array_equal(filled(lowered), filled(plain))


@pytest.mark.parametrize("spec", [AVX512, AVX2, SSE], ids=lambda s: s.name)
@pytest.mark.parametrize(("rows", "end"), [(32, 17), (32, 1), (16, 16), (48, 20), (16, 0), (19, 18)])
def test_rows_behind_the_end_are_zero(rows: int, end: int, spec: DeviceSpec) -> None:
    """y[c, r] = x[r, c] if r < end else 0, of an x that has no more rows."""
    x, y = buffer("x", end, 24), buffer("y", 24, rows)
    moved = store(y, (C, R), select(call("lt", R, index(end)), Load(x, (R, C)), c32(0.0)))
    plain = func_of(loop("r", 0, rows, loop("c", 0, 24, moved, mark=COPY), mark=COPY), x, y)
    made = turn_copies(plain, spec)
    assert squares(made) == [SQUARES[spec.vector_bytes // 4]]
    np.testing.assert_array_equal(filled(made), filled(plain))
    np.testing.assert_array_equal(filled(lower(plain, spec)), filled(plain))


def test_other_loops_go_outside() -> None:
    """y[c, x, r] = x[r, x, c]: the loop between the two stands around the squares."""
    x, y = buffer("x", 20, 3, 24), buffer("y", 24, 3, 20)
    moved = store(y, (C, X, R), Load(x, (R, X, C)))
    plain = func_of(loop("r", 0, 20, loop("x", 0, 3, loop("c", 0, 24, moved))), x, y)
    made = turn_copies(plain, AVX512)
    assert squares(made) == ["square_16"]
    np.testing.assert_array_equal(filled(made), filled(plain))


def unlike(kind: str) -> Func:
    """A nest that no squares are taken of."""
    rows, columns, dtype = (3, 64, "float32") if kind == "few rows" else (32, 32, "int64" if kind == "wide" else "float32")
    x, y = buffer("x", 64, 64, dtype=dtype), buffer("y", 64, 64, dtype=dtype)
    place: tuple[Expr, ...] = (R, C)
    target: tuple[Expr, ...] = (C, R)
    if kind == "in order":
        target = (R, C)
    elif kind == "every second":
        place = (R, mul(C, index(2)))
    elif kind == "in place":
        y = x
    value: Expr = Load(x, place)
    if kind == "computed":
        value = add(value, c32(1.0))
    elif kind == "ones behind":
        value = select(call("lt", R, index(20)), value, c32(1.0))
    elif kind == "a triangle of zeros":
        value = select(call("lt", R, C), value, c32(0.0))
    elif kind == "zeros before":
        value = select(call("ge", R, index(5)), value, c32(0.0))
    inner = loop("c", 0, columns, store(y, target, value))
    if kind == "triangle":
        inner = loop("c", 0, R, store(y, target, value))
    return func_of(loop("r", 0, rows, inner), *dict.fromkeys((x, y)))


@pytest.mark.parametrize("kind", ["few rows", "wide", "in order", "every second", "in place", "computed", "triangle",
                                  "ones behind", "a triangle of zeros", "zeros before"])
def test_what_is_no_such_copy_stays(kind: str) -> None:
    func = unlike(kind)
    assert turn_copies(func, AVX512).body == func.body


def test_a_device_without_squares() -> None:
    func = turned(32, 32)
    assert turn_copies(func, AVX512.scalar).body == func.body
    assert all(SQUARES[s.vector_bytes // 4] in s.intrinsics for s in (*CPU_SPECS.values(), *BFLOAT_SPECS.values()))

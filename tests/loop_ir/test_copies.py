"""Copies whose rows have their edges in common: which loops go inside, and that the same cells are copied."""

from __future__ import annotations

import numpy as np
import pytest

from tests.loop_ir.funcs import buffer, c32, loop, size, store
from tsc.codegen_c.specs import CPU_SPECS
from tsc.loop_ir.cpu.copies import TOGETHER, share_edges
from tsc.loop_ir.lower import lower
from tsc.loop_ir.marks import COPY
from tsc.loop_ir.nodes import For, Func, Let, Store, walk
from tsc.loop_ir.oracle.interpret import interpret
from tsc.te.compute import SizeParam
from tsc.te.expr import Expr, Load, Var, add, call, index, select


def rows(count: int, condition: Expr, mark: str = COPY) -> Func:
    """y[r, w] = x[r, w + 1] for `count` rows where a condition holds, behind a Let."""
    x, y = buffer("x", count, 7), buffer("y", count, 5)
    value = select(condition, Load(x, (Var("r"), add(Var("w"), Var("first")))), c32(0.0))
    columns = loop("w", 0, 5, store(y, (Var("r"), Var("w")), value), mark=mark)
    return Func("f", (x, y), ("y",), (), loop("r", 0, count, Let("first", index(1), columns), mark=mark))


@pytest.mark.parametrize("count", [1, TOGETHER - 1, TOGETHER, 2 * TOGETHER + 3])
def test_rows_go_inside_and_copy_the_same(count: int) -> None:
    func = rows(count, call("lt", Var("w"), index(3)))
    made = share_edges(func)
    assert [s.var for s in walk(made.body) if isinstance(s, For)] == ["r_group", "w", "r"]
    x = np.arange(7 * count, dtype=np.float32).reshape(count, 7)
    plain, shared = (np.empty((count, 5), np.float32) for _ in range(2))
    for one, y in ((func, plain), (made, shared)):
        interpret(one, {"x": x, "y": y}, {})
    assert np.array_equal(plain, shared) and np.array_equal(plain[:, :3], x[:, 1:4]) and not plain[:, 3:].any()


@pytest.mark.parametrize("name", CPU_SPECS)
@pytest.mark.parametrize("end", [0, 1, 16, 17, 31, 32])
def test_what_is_behind_the_end_is_stored_with_what_is_before_it(end: int, name: str) -> None:
    """y[r, w] = x[r, w] if w < n else 0, of an x that ends there: one loop over whole vectors where there are masks."""
    spec = CPU_SPECS[name]
    x, y = buffer("x", 3, "n"), buffer("y", 3, 32)
    value = select(call("lt", Var("w"), size("n")), Load(x, (Var("r"), Var("w"))), c32(0.0))
    columns = loop("w", 0, 32, store(y, (Var("r"), Var("w")), value), mark=COPY)
    func = Func("f", (x, y), ("y",), (SizeParam("n", 0, hi=32),), loop("r", 0, 3, columns, mark=COPY))
    made = lower(func, spec)
    whole = [s for s in walk(made.body) if isinstance(s, For) and s.kind == "vector" and isinstance(s.body, Store)]
    assert len(whole) == 1 or not spec.masks
    given, found = np.arange(3 * end, dtype=np.float32).reshape(3, end), np.full((3, 32), -1, np.float32)
    interpret(made, {"x": given, "y": found}, {"n": end})
    assert np.array_equal(found, np.pad(given, ((0, 0), (0, 32 - end))))


def test_loops_that_decide_stay_where_they_are() -> None:
    for func in (rows(9, call("lt", Var("r"), index(3))), rows(9, call("lt", Var("w"), index(3)), mark="")):
        assert share_edges(func).body == func.body


def test_without_edges_the_order_stays() -> None:
    x, y = buffer("x", 4, 9), buffer("y", 9, 4)
    inner = loop("k", 0, 9, store(y, (Var("k"), Var("j")), Load(x, (Var("j"), Var("k")))), mark=COPY)
    func = Func("f", (x, y), ("y",), (), loop("j", 0, 4, inner, mark=COPY))
    assert share_edges(func).body == func.body

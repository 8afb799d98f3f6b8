"""Register tiles that ask once, at their corners, whether anything that they read is outside of an image."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tsc
from tests.machine import runnable
from tests.memory.guarded import check_guarded
from tsc import te
from tsc.codegen_c.edges import asked_once
from tsc.loop_ir.marks import K
from tsc.loop_ir.nodes import Allocate, For, Func, If, Let, Stmt, Store, block, expressions, map_children, walk
from tsc.runtime.executable import Executable
from tsc.sym import SymExpr
from tsc.te.expr import Buffer, Call, Const, Expr, Load, Var, add, call, index, select
from tsc.te.expr import walk as walk_expr
from tsc.te.index import evaluated

Array = np.ndarray[Any, Any]
TARGETS = [spec.name for spec in runnable()]


def window(channels: int, kernel: int, stride: int, before: int, after: int, largest: bool, target: str) -> Executable:
    """By channels, which are last: the sum or the largest of what weights make of a window, zeros or nothing outside."""
    n, h, w = te.dim("N"), te.dim("H"), te.dim("W")
    x = te.placeholder((n, h, w, channels), "float32", "x")
    held = te.placeholder((kernel, kernel, channels), "float32", "w")
    dy, dx = te.reduce_axis(kernel, "dy"), te.reduce_axis(kernel, "dx")

    def read(b: te.Expr, i: te.Expr, j: te.Expr, c: te.Expr) -> te.Expr:
        y, z = stride * i + dy - before, stride * j + dx - before
        return te.where(te.all_of(y >= 0, y < h, z >= 0, z < w), x[b, y, z, c], -np.inf if largest else 0.0)

    high, wide = ((size + (before + after - kernel)) // stride + 1 for size in (h, w))
    y = te.compute((n, high, wide, channels), lambda b, i, j, c: te.max(read(b, i, j, c), (dy, dx)) if largest else
                   te.sum(read(b, i, j, c) * held[dy, dx, c], (dy, dx)), "y")
    return tsc.build(y, target=target)


def expected(x: Array, w: Array, stride: int, before: int, after: int, largest: bool) -> Array:
    """The same in float64, by NumPy."""
    kernel, around = w.shape[0], ((0, 0), (before, after), (before, after), (0, 0))
    padded = np.pad(x.astype(np.float64), around, constant_values=-np.inf if largest else 0)
    found = np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel), axis=(1, 2))[:, ::stride, ::stride]
    return found.max(axis=(4, 5)) if largest else np.einsum("bijcyx,yxc->bijc", found, w.astype(np.float64))


@pytest.mark.parametrize("target", [TARGETS[0], *(pytest.param(name, marks=pytest.mark.slow) for name in TARGETS[1:])])
@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize(("channels", "kernel", "stride", "before", "after"), [
    (64, 3, 1, 1, 1), (48, 3, 2, 1, 0), (17, 5, 3, 0, 4), (1, 2, 1, 1, 1), (130, 3, 1, 7, 0)])
def test_windows_by_channels(channels: int, kernel: int, stride: int, before: int, after: int, largest: bool,
                             target: str) -> None:
    """Images that are smaller than a tile and larger ones, whose tiles are inside, at each edge, and over all of them."""
    made, rng = window(channels, kernel, stride, before, after, largest, target), np.random.default_rng(channels)
    for batch, high, wide in ((1, 1, 1), (2, 3, 8), (1, 7, 7), (1, 2, 23), (1, 19, 4)):
        if min(high, wide) + before + after < kernel:
            continue
        x = rng.standard_normal((batch, high, wide, channels)).astype(np.float32)
        w = rng.standard_normal((kernel, kernel, channels)).astype(np.float32)
        feeds = {"x": x} if largest else {"x": x, "w": w}
        want = expected(x, w, stride, before, after, largest)
        for got in (made.run(None, feeds)[0], check_guarded(made, feeds)[0]):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


# -- which questions are asked where -----------------------------------------------------------------------------

X, ACC = Buffer("x", "float32", (SymExpr.of(64),)), Buffer("acc", "float32", (SymExpr.of(1), SymExpr.of(1)))
#: Values of the variable of the loop around a tile.
AROUND = 9


def tile(condition: Expr, hi: int, step: int) -> Func:
    """A sum over `k` of x[k + p] where a condition holds, in an accumulator, within a loop over `p`."""
    value = select(condition, Load(X, (add(Var("k"), Var("p")),)), Const(0.0, "float32"))
    cell = (index(0), index(0))
    update = For("k", index(0), index(hi), Store(ACC, cell, call("add", Load(ACC, cell), value)), step, mark=K)
    body = Allocate(ACC, "register", block(Store(ACC, cell, Const(0.0, "float32")), update))
    return Func("f", (X,), (), (), For("p", index(0), index(AROUND), body))


def chosen(func: Func) -> If | None:
    """The question before a tile, if there is one: where it does not hold the tile is as it was."""
    before = next(s for s in walk(func.body) if isinstance(s, For) and s.mark == K)
    found = [s for s in walk(asked_once(func).body) if isinstance(s, If)]
    assert len(found) <= 1 and all(choice.otherwise == before for choice in found)
    return found[0] if found else None


def selects(stmt: Stmt) -> int:
    nodes = (node for s in walk(stmt) for e in expressions(s) for node in walk_expr(e))
    return sum(isinstance(node, Call) and node.fn == "select" for node in nodes)


@st.composite
def comparisons(draw: st.DrawFn) -> Expr:
    factors = st.integers(-3, 3)
    terms = [call("mul", index(draw(factors)), Var(name)) for name in "kp"]
    value = add(add(terms[0], terms[1]), index(draw(st.integers(-9, 9))))
    return call(draw(st.sampled_from(("lt", "le", "gt", "ge"))), value, index(draw(st.integers(-9, 9))))


@given(comparisons(), st.none() | comparisons(), st.integers(1, 7), st.integers(1, 3))
def test_a_tile_asks_what_all_of_it_would(first: Expr, second: Expr | None, hi: int, step: int) -> None:
    """The question holds exactly where the condition does in each trip, and the tile then asks nothing."""
    condition = first if second is None else call("and", first, second)
    k, p = (g.ravel() for g in np.meshgrid(np.arange(0, hi, step), np.arange(AROUND), indexing="ij"))
    all_hold = np.broadcast_to(evaluated(condition, {"k": k, "p": p}), k.shape).reshape(-1, AROUND).all(axis=0)
    choice = chosen(tile(condition, hi, step))
    if choice is None:  # it is known without asking
        assert selects(tile(condition, hi, step).body) == 0
        return
    found = np.broadcast_to(evaluated(choice.condition, {"p": np.arange(AROUND)}), AROUND)
    np.testing.assert_array_equal(found, all_hold)
    assert selects(choice.then) == 0


def test_what_is_not_known_at_corners_is_asked_in_each_trip() -> None:
    """Conditions on data, on other than orders of indices, and such as are not affine."""
    read = Load(X, (Var("k"),))
    odd = call("eq", call("mod", Var("k"), index(2)), index(0))
    quotient = call("lt", call("floordiv", Var("k"), index(2)), index(1))
    for condition in (call("lt", read, Const(1.0, "float32")), odd, quotient, call("or", odd, call("lt", Var("k"), index(3)))):
        assert chosen(tile(condition, 5, 1)) is None


def test_ends_that_are_not_known_before_a_tile() -> None:
    """A loop whose end is read from memory, and a name that has its value within the tile alone."""
    counts = Buffer("counts", "int64", (SymExpr.of(AROUND),))
    for change in (lambda loop: replace(loop, hi=Load(counts, (Var("p"),))),
                   lambda loop: replace(loop, body=Let("b", add(Var("k"), index(1)), loop.body))):
        for at in "kb":
            func = tile(call("lt", Var(at), index(3)), 5, 1)
            known = next(s for s in walk(func.body) if isinstance(s, For) and s.mark == K)
            changed = map_loops(func.body, known, change(known))
            assert not any(isinstance(s, If) for s in walk(asked_once(replace(func, body=changed)).body))


def map_loops(stmt: Stmt, old: Stmt, new: Stmt) -> Stmt:
    """A statement with one within it replaced."""
    return new if stmt is old else map_children(lambda s: map_loops(s, old, new), stmt)

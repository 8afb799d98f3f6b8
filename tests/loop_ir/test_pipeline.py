"""Barriers and pipelines: derived, right at every trip count; what is taken away, the static check and the interpreter miss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.loop_ir import gpu_funcs
from tests.loop_ir.funcs import buffer, c32, loop, size, store
from tests.loop_ir.gpu_funcs import Tile, gemm, gemm_arrays, gemm_expected, warps
from tests.loop_ir.test_threads import without_each
from tsc.errors import InternalError
from tsc.loop_ir.gpu.barriers import insert_barriers
from tsc.loop_ir.gpu.hazards import Hazard
from tsc.loop_ir.gpu.pipeline import software_pipeline
from tsc.loop_ir.gpu.threads import team_sizes
from tsc.loop_ir.gpu.verify_sync import verify_synchronised
from tsc.loop_ir.nodes import Allocate, Barrier, Commit, For, Func, If, Stmt, Store, Wait, block, map_children, map_exprs, walk
from tsc.loop_ir.oracle.interpret import interpret
from tsc.loop_ir.print import format_func
from tsc.loop_ir.simplify import simplify
from tsc.loop_ir.verify import verify
from tsc.sym import SymExpr
from tsc.te.compute import SizeParam
from tsc.te.expr import Buffer, Call, Expr, Load, Var, add, call, index
from tsc.te.expr import map_children as map_operands

Arrays = dict[str, np.ndarray[Any, Any]]


def count(func: Func, kind: type) -> int:
    return sum(isinstance(s, kind) for s in walk(func.body))


def pipelined(stages: int, batched: bool = False) -> Func:
    made, reasons = software_pipeline(gemm(batched=batched, barriers=False), stages)
    assert reasons == ()
    return insert_barriers(made)


@pytest.mark.parametrize("func", [gemm(), gemm(Tile(1, 1, 2, 2, 1, 4)), gemm(batched=True), gpu_funcs.softmax()],
                         ids=["gemm", "one warp", "batched", "softmax"])
def test_derived_barriers_are_no_more_than_written_ones(func: Func) -> None:
    bare = replace(func, body=_without_barriers(func.body))
    with pytest.raises(Hazard):
        verify_synchronised(bare)
    derived = insert_barriers(bare)
    verify(derived)
    verify_synchronised(derived)
    assert count(derived, Barrier) == count(func, Barrier)
    alone = func.name == "softmax" or team_sizes(func.body) == (1, 2)  # a warp speaks to itself only
    assert {s.team for s in walk(derived.body) if isinstance(s, Barrier)} == {"warp" if alone else "block"}
    assert insert_barriers(func) == func


def _without_barriers(stmt: Stmt) -> Stmt:
    return block() if isinstance(stmt, Barrier) else map_children(_without_barriers, stmt)


@pytest.mark.parametrize("func", [insert_barriers(gemm(barriers=False)), insert_barriers(gpu_funcs.softmax(barriers=False))],
                         ids=lambda f: f.name)
def test_no_derived_barrier_can_be_left_out(func: Func) -> None:
    x = np.ones((3, 9), np.float32)
    sizes = {"M": 4, "N": 4, "K": 7, "R": 3, "C": 9}
    for body in without_each(func.body, lambda s: isinstance(s, Barrier)):
        refused(replace(func, body=body), sizes, gemm_arrays(sizes) if func.name == "gemm" else {"x": x, "y": np.empty_like(x)})


def refused(func: Func, sizes: dict[str, int], arrays: Arrays) -> None:
    """By the static check, and by the interpreter, in any order of threads."""
    with pytest.raises(InternalError):
        verify_synchronised(func)
    for seed in range(2):
        with pytest.raises(InternalError, match=r"is missing|when the block ends"):
            interpret(func, arrays, sizes, seed=seed)


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_pipelined_gemm_at_every_trip_count(stages: int) -> None:
    func = simplify(pipelined(stages), keep_marked=True)
    verify(func)
    verify_synchronised(func)
    assert [s.pending for s in walk(func.body) if isinstance(s, Wait)] == [stages - 2]
    assert count(func, Barrier) == 1
    for depth in (1, 3, 4, 9, 10, 17):  # 1, 1, 2, 3, 4, 6 tiles
        sizes = {"M": 3, "N": 5, "K": depth}
        arrays = gemm_arrays(sizes)
        interpret(func, arrays, sizes, seed=depth)
        np.testing.assert_allclose(arrays["y"], gemm_expected(arrays), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("depth", [1, 4, 9, 30])
@pytest.mark.parametrize("stages", [2, 3])
def test_a_count_of_tiles_that_has_a_least(stages: int, depth: int) -> None:
    """Conditions on the first tiles are decided then, and that the loop over them gets to wait is for the sizes to say."""
    made = gemm(barriers=False)
    made = replace(made, sizes=tuple(replace(s, lo=depth) if s.name == "K" else s for s in made.sizes))
    func = simplify(insert_barriers(software_pipeline(made, stages)[0]), keep_marked=True)
    verify_synchronised(func)
    sizes = {"M": 3, "N": 5, "K": depth}
    arrays = gemm_arrays(sizes)
    interpret(func, arrays, sizes, seed=depth)
    np.testing.assert_allclose(arrays["y"], gemm_expected(arrays), rtol=1e-5, atol=1e-5)


def test_pipelined_batches_and_no_tiles_at_all() -> None:
    func = pipelined(3, batched=True)
    for sizes in ({"B": 2, "M": 3, "N": 3, "K": 8}, {"B": 1, "M": 1, "N": 1, "K": 0}):
        arrays = gemm_arrays(sizes)
        interpret(func, arrays, sizes)
        np.testing.assert_allclose(arrays["y"], gemm_expected(arrays), rtol=1e-5, atol=1e-5)


def test_the_same_instances_run() -> None:
    sizes = {"M": 3, "N": 3, "K": 8}
    plain, piped = [], []  # type: ignore[var-annotated]
    interpret(gemm(), gemm_arrays(sizes), sizes, plain)
    interpret(pipelined(3), gemm_arrays(sizes), sizes, piped)
    assert sorted(plain) == sorted(piped)


# -- mutations -------------------------------------------------------------------------------------------------

def changed(func: Func, change: Callable[[Stmt], Stmt]) -> Func:
    def visit(stmt: Stmt) -> Stmt:
        return map_children(visit, change(stmt))
    return replace(func, body=visit(func.body))


def moved_stage(func: Func, by: int, kind: type[Stmt], mark: str) -> Func:
    """Within loops marked `mark`, stores (or what others load) go to another stage."""
    def index_of(place: tuple[Expr, ...]) -> tuple[Expr, ...]:
        first = place[0]
        assert isinstance(first, Call) and first.fn == "mod"
        return (call("mod", add(first.args[0], index(by)), first.args[1]), *place[1:])

    def swap(expr: Expr) -> Expr:
        inner = map_operands(swap, expr)
        staged = isinstance(inner, Load) and inner.buffer.name in ("left", "right")
        return Load(inner.buffer, index_of(inner.index)) if staged and isinstance(inner, Load) else inner

    def visit(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Store) and stmt.asynchronous and kind is Store:
            return replace(stmt, index=index_of(stmt.index))
        return map_children(visit, map_exprs(swap, stmt) if kind is For and isinstance(stmt, Store) else stmt)

    return changed(func, lambda s: visit(s) if isinstance(s, For) and s.mark == mark else s)


def fewer_stages(func: Func, stages: int) -> Func:
    """The pipeline as it is, on buffers of one stage less."""
    def smaller(b: Buffer) -> Buffer:
        return replace(b, shape=(SymExpr.of(stages - 1), *b.shape[1:])) if b.name in ("left", "right") else b

    def swap(expr: Expr) -> Expr:
        inner = map_operands(swap, expr)
        return replace(inner, buffer=smaller(inner.buffer), index=fold(inner)) if isinstance(inner, Load) else inner

    def fold(access: Load | Store) -> tuple[Expr, ...]:
        if access.buffer.name not in ("left", "right"):
            return access.index
        stage = access.index[0]
        assert isinstance(stage, Call)
        return (call("mod", stage.args[0], index(stages - 1)) if stages > 2 else index(0), *access.index[1:])

    def visit(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Store):
            stmt = replace(stmt, buffer=smaller(stmt.buffer), index=fold(stmt))
        if isinstance(stmt, Allocate):
            stmt = replace(stmt, buffer=smaller(stmt.buffer))
        return map_children(visit, stmt)
    return replace(func, body=map_exprs(swap, visit(func.body)))


SIZES = {"M": 4, "N": 3, "K": 20}


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_no_wait_and_no_barrier_can_be_weakened(stages: int) -> None:
    func, arrays = pipelined(stages), gemm_arrays(SIZES)
    interpret(func, arrays, SIZES)
    for kind in (Wait, Barrier, Commit):
        for body in without_each(func.body, lambda s, kind=kind: isinstance(s, kind)):  # type: ignore[misc]
            refused(replace(func, body=body), SIZES, arrays)
    refused(changed(func, lambda s: replace(s, pending=s.pending + 1) if isinstance(s, Wait) else s), SIZES, arrays)
    refused(changed(func, lambda s: Barrier("warp") if isinstance(s, Barrier) else s), SIZES, arrays)


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_every_stage_index_counts(stages: int) -> None:
    func, arrays = pipelined(stages), gemm_arrays(SIZES)
    refused(moved_stage(func, 1, Store, "k_tile"), SIZES, arrays)
    refused(moved_stage(func, 1, For, "k_tile"), SIZES, arrays)
    refused(moved_stage(func, -1, For, "k_tile"), SIZES, arrays)
    refused(moved_stage(func, 1, Store, "prologue"), SIZES, arrays)
    refused(fewer_stages(func, stages), SIZES, arrays)


# -- what is refused, and what is left ---------------------------------------------------------------------------

SHARED, X, Y = buffer("s", 4), buffer("x", 12), buffer("y", 4)
HERE = (Var("t"),)


def team(*body: Stmt) -> Func:
    """One warp of four."""
    whole = Allocate(SHARED, "shared", warps(1, loop("t", 0, 4, *body, kind="thread")))
    return Func("f", (X, Y), ("y",), (SizeParam("N"),), whole)


def copy() -> Stmt:
    return Store(SHARED, HERE, Load(X, HERE), asynchronous=True)


NEXT = (call("mod", add(Var("t"), index(1)), index(4)),)
READ = store(Y, HERE, Load(SHARED, NEXT))


@pytest.mark.parametrize(("body", "message"), [
    ((copy(), Commit()), "asynchronous copy that is a write of s .in loops wm, t. is never waited for"),
    ((copy(),), "is never waited for"),
    ((loop("u", 0, size("N"), copy(), Commit()),), "no wait between the asynchronous copy that is a write of s"),
    ((READ,), "a read of s .in loops wm, t. comes before any write to it"),
    ((copy(), Commit(), Wait(0), READ), "no warp barrier between a write of s .in loops wm, t. and a read of s"),
    ((copy(), Wait(0), Barrier(), READ), "no wait between"),
    ((copy(), Commit(), Wait(1), Barrier(), READ), "no wait between"),
    ((store(SHARED, HERE, c32(0)), If(call("lt", Var("t"), index(2)), block(store(SHARED, HERE, c32(0)), READ))),
     "threads must meet, but not all of them come there"),
])
def test_the_static_check_names_what_is_wrong(body: tuple[Stmt, ...], message: str) -> None:
    with pytest.raises(InternalError, match=message):
        verify_synchronised(team(*body))


def test_no_barrier_helps_where_not_all_come() -> None:
    inside = If(call("lt", Var("t"), index(2)), block(store(SHARED, HERE, c32(0)), READ))
    with pytest.raises(InternalError, match="threads must meet, but not all"):
        insert_barriers(team(inside))
    with pytest.raises(Hazard, match="no wait between"):
        insert_barriers(team(copy(), Commit(), READ))


def test_what_a_thread_keeps_to_itself_needs_no_barrier() -> None:
    own = team(store(SHARED, HERE, c32(0)), store(Y, HERE, Load(SHARED, HERE)))
    verify_synchronised(own)
    assert insert_barriers(own) == own


@pytest.mark.parametrize(("place", "own"), [
    (add(call("mul", index(2), Var("t")), Var("i")), True),
    (add(call("mul", index(4), Var("i")), Var("t")), True),
    (add(Var("t"), Var("i")), False),
    (Var("i"), False),
    (call("floordiv", Var("t"), index(2)), False),
])
def test_tiles_of_threads_are_told_apart(place: Expr, own: bool) -> None:
    tile = buffer("s", 8)

    def each(*body: Stmt) -> Stmt:
        return loop("i", 0, 2, *body)

    there = (place,)
    body = block(each(store(tile, there, c32(1))), each(store(tile, there, call("add", Load(tile, there), Load(tile, there)))),
                 each(store(Y, HERE, Load(tile, there))))
    whole = Allocate(tile, "shared", warps(1, loop("t", 0, 4, body, kind="thread")))
    func = Func("f", (X, Y), ("y",), (SizeParam("N"),), whole)
    assert (count(insert_barriers(func), Barrier) == 0) == own


def test_an_asynchronous_copy_waits_for_its_own_thread_too() -> None:
    read = store(Y, HERE, Load(SHARED, HERE))
    once = (copy(), Commit(), Wait(0), read)
    verify_synchronised(team(*once))
    with pytest.raises(Hazard, match=r"no warp barrier between a (read|write) of s"):
        verify_synchronised(team(*once, copy(), Commit(), Wait(0), read))
    assert count(insert_barriers(team(*once, copy(), Commit(), Wait(0), read)), Barrier) == 1


def _in_copies(change: Callable[[Store], Store]) -> Callable[[Stmt], Stmt]:
    return lambda s: change(s) if isinstance(s, Store) and s.buffer.name == "left" else s


@pytest.mark.parametrize(("change", "reason"), [
    (lambda s: Barrier() if isinstance(s, For) and s.mark == "init" else s, None),
    (lambda s: replace(s, mark="") if isinstance(s, For) and s.mark == "copy" else s, "does not copy and then compute"),
    (_in_copies(lambda s: replace(s, value=Call("exp", (s.value,), "float32"))), "what left gets is computed, not copied"),
    (lambda s: block(s, store(buffer("left", 4, 3), (index(0), index(0)), c32(0)))
     if isinstance(s, For) and s.mark == "epilogue" and s.var == "i" else s, "used outside of it"),
    (lambda s: replace(s, body=block(s.body, Barrier())) if isinstance(s, For) and s.mark == "k_tile" else s, "meet already"),
])
def test_loops_that_are_not_pipelined_say_why(change: Callable[[Stmt], Stmt], reason: str | None) -> None:
    func = gemm(barriers=False)

    def visit(stmt: Stmt) -> Stmt:
        return change(map_children(visit, stmt))
    made, reasons = software_pipeline(replace(func, body=visit(func.body)), 2)
    if reason is None:
        assert reasons == () and count(made, Wait) == 1
    else:
        assert len(reasons) == 1 and reason in reasons[0] and not count(made, Wait)
    with pytest.raises(InternalError, match="a pipeline of 1 stages"):
        software_pipeline(func, 1)


def forked() -> Func:
    """y[4 i + t] = the sum over tiles of x[4 k + (t + 1) % 4]: one nest of threads after the other, sums in registers."""
    total, thread, k = buffer("total", 2, 2), (Var("w"), Var("t")), Var("k")
    linear = add(call("mul", index(2), Var("w")), Var("t"))
    turned = call("mod", add(linear, index(1)), index(4))

    def step(*body: Stmt) -> Stmt:
        return loop("w", 0, 2, loop("t", 0, 2, *body, kind="thread"), kind="warp")

    fill = step(Store(SHARED, (linear,), Load(X, (add(call("mul", index(4), k), linear),))))
    use = step(store(total, thread, call("add", Load(total, thread), Load(SHARED, (turned,)))))
    tiles = loop("k", 0, size("N"), loop("c", 0, 1, fill, mark="copy"), use, mark="k_tile")
    body = Allocate(total, "register", block(step(store(total, thread, c32(0))), tiles,
                                             step(store(Y, (linear,), Load(total, thread)))))
    return Func("f", (X, Y), ("y",), (SizeParam("N"),), Allocate(SHARED, "shared", body))


def test_barriers_between_nests_of_threads() -> None:
    with pytest.raises(Hazard, match="no block barrier between a write of s"):
        verify_synchronised(forked())
    func = insert_barriers(forked())
    verify(func)
    assert count(func, Barrier) == 2
    arrays = {"x": np.arange(12, dtype=np.float32), "y": np.zeros(4, np.float32)}
    interpret(func, arrays, {"N": 3})
    assert arrays["y"].tolist() == [15, 18, 21, 12]
    for body in without_each(func.body, lambda s: isinstance(s, Barrier)):
        refused(replace(func, body=body), {"N": 3}, arrays)


def test_printed(golden: Callable[[str, str], None]) -> None:
    golden("loop_ir_pipeline.txt", format_func(simplify(pipelined(3), keep_marked=True)))

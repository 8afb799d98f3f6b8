"""Threads in loop IR: what the verifier refuses, and what the interpreter makes of races, copies and barriers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.loop_ir import gpu_funcs
from tests.loop_ir.funcs import buffer, c32, loop, size, store
from tests.loop_ir.gpu_funcs import Tile, gemm, gemm_arrays, gemm_expected, threads, warps
from tsc.codegen_c.emit import emit_c
from tsc.codegen_c.specs import CPU_SPECS
from tsc.errors import InternalError
from tsc.loop_ir.map_blocks import map_blocks
from tsc.loop_ir.nodes import (
    Allocate,
    Barrier,
    Block,
    Commit,
    Func,
    If,
    Intrin,
    Stmt,
    Store,
    Wait,
    block,
    map_children,
    walk,
)
from tsc.loop_ir.oracle.interpret import interpret
from tsc.loop_ir.print import format_func, format_stmt
from tsc.loop_ir.simplify import simplify
from tsc.loop_ir.verify import verify
from tsc.te.compute import SizeParam
from tsc.te.expr import Expr, Load, Var, call, index, mul

Arrays = dict[str, np.ndarray[Any, Any]]
X, Y, S, R = buffer("x", 8), buffer("y", 8), buffer("s", 8), buffer("r", 1)
W, T = Var("w"), Var("t")
LINEAR = call("add", mul(index(4), W), T)
ZERO = store(Y, (index(0),), c32(0.0))
TOUCH = store(Y, (LINEAR,), c32(1.0))


def team(*body: Stmt, lanes: int = 4) -> Stmt:
    """Two warps of four."""
    return loop("w", 0, 2, loop("t", 0, lanes, *body, kind="thread"), kind="warp")


def kernel(body: Stmt) -> Func:
    return Func("f", (X, Y), ("y",), (SizeParam("N"),), body)


def copy(target: Expr = LINEAR, source: Expr = LINEAR) -> Store:
    return Store(S, (target,), Load(X, (source,)), asynchronous=True)


def shared(*body: Stmt) -> Stmt:
    return Allocate(S, "shared", team(*body))


def read_of(place: Expr) -> Store:
    return store(Y, (LINEAR,), Load(S, (place,)))


MIRRORED = call("sub", index(7), LINEAR)
IN_WARP = call("add", mul(index(4), W), call("sub", index(3), T))


@pytest.mark.parametrize(("body", "message"), [
    (team(warps(2, ZERO)), "warp loop wm stands within a thread"),
    (warps(2, loop("u", 0, 2, warps(2, ZERO, var="w"))), "warp loop w stands within a warp"),
    (team(loop("u", 0, 2, loop("v", 0, 4, TOUCH, kind="thread"))), "thread loop v stands within a thread"),
    (block(team(TOUCH), loop("u", 0, 4, store(Y, (Var("u"),), c32(1.0)), kind="thread")), "u stands outside of the warps"),
    (block(team(TOUCH), team(TOUCH, lanes=3)), "nests of thread loops run"),
    (loop("w", 0, size("N"), loop("t", 0, 2, TOUCH, kind="thread"), kind="warp"), "no constant trip count"),
    (loop("w", 0, 2, loop("t", 2, 2, TOUCH, kind="thread"), kind="warp"), "run .'0'. times"),
    (Block((team(TOUCH), ZERO)), "a store to y is made by a whole block"),
    (warps(2, loop("t", 0, 4, Block(()), kind="thread"), ZERO), "made by a whole warp"),
    (team(Allocate(S, "shared", TOUCH)), "shared buffer s: .* is allocated within a thread"),
    (Allocate(S, "shared", store(Y, (index(0),), c32(1.0))), "shared, but there are no threads"),
    (Allocate(buffer("s", "N"), "shared", team(TOUCH)), "extents that are not constant"),
    (Barrier(), "a Barrier is for threads"),
    (block(team(TOUCH), Barrier("warp")), "a warp barrier is not within a warp"),
    (team(If(call("lt", T, index(2)), Barrier("warp"))), "a Barrier is not reached by all alike: the condition"),
    (team(If(call("lt", W, index(1)), Barrier())), "a Barrier is not reached by all alike: the condition"),
    (team(loop("c", T, 8, Barrier())), "not reached by all alike: loop c"),
    (team(loop("c", 0, T, loop("d", 0, Var("c"), Commit()))), "a Commit is not reached by all alike: loop c"),
    (team(If(call("lt", Load(X, (index(0),)), c32(1.0)), Wait(0))), "a Wait is not reached by all alike"),
    (team(Intrin("i", Barrier())), "a Barrier stands within an intrinsic"),
    (warps(2, Intrin("i", threads(2, 2, ZERO))), "thread loop tm stands within an intrinsic"),
    (shared(Wait(-1)), "a Wait for -1 pending groups"),
    (Allocate(S, "shared", team(Store(Y, (LINEAR,), Load(X, (LINEAR,)), asynchronous=True))), "into shared memory only"),
    (shared(Store(S, (LINEAR,), Load(Y, (LINEAR,)), asynchronous=True)), "only elements of inputs"),
    (shared(Store(S, (LINEAR,), c32(1.0), asynchronous=True)), "only elements of inputs"),
    (Store(Y, (index(0),), Load(X, (index(0),)), asynchronous=True), "a Store is for threads"),
])
def test_the_verifier_names_what_is_wrong(body: Stmt, message: str) -> None:
    with pytest.raises(InternalError, match=message):
        verify(kernel(body))


def run(body: Stmt, seed: int = 0) -> np.ndarray[Any, Any]:
    func = kernel(body)
    verify(func)
    arrays = {"x": np.arange(8, dtype=np.float32), "y": np.full(8, np.nan, np.float32)}
    interpret(func, arrays, {"N": 3}, seed=seed)
    return arrays["y"]


@pytest.mark.parametrize("seed", range(3))
def test_what_is_waited_for_and_handed_over_arrives(seed: int) -> None:
    assert run(shared(copy(), Commit(), Wait(0), Barrier(), read_of(MIRRORED)), seed).tolist() == [7, 6, 5, 4, 3, 2, 1, 0]
    assert run(shared(copy(), Commit(), Wait(0), Barrier("warp"), read_of(IN_WARP)), seed).tolist() == [3, 2, 1, 0, 7, 6, 5, 4]
    assert run(shared(copy(), Commit(), Wait(0), read_of(LINEAR)), seed).tolist() == list(range(8))
    loaded = Store(S, (LINEAR,), Load(X, (LINEAR,)))
    apart = Allocate(S, "shared", block(team(loaded), Barrier(), team(read_of(MIRRORED))))
    assert run(apart, seed).tolist() == [7, 6, 5, 4, 3, 2, 1, 0]


@pytest.mark.parametrize(("body", "message"), [
    (shared(copy(), Commit(), Wait(0), read_of(MIRRORED)), r"s\[\d\] .* a barrier (or a write )?is missing"),
    (shared(copy(), Commit(), Wait(0), Barrier("warp"), read_of(MIRRORED)), r"s\[\d\] .* is missing"),
    (shared(copy(), Commit(), Barrier(), read_of(MIRRORED)), r"s\[\d\] .*is read .*a copy of .* a wait is missing"),
    (shared(copy(), Commit(), Wait(1), Barrier(), read_of(LINEAR)), "a wait is missing"),
    (shared(copy(), Wait(0), Barrier(), read_of(LINEAR)), "a wait is missing"),
    (shared(copy(), Commit(), Barrier(), Wait(0), read_of(MIRRORED)), "a (wait|barrier|write) is missing"),
    (shared(copy(), copy(), Commit(), Wait(0)), r"s\[\d\] .*is written .* a wait is missing"),
    (shared(copy(), Commit()), "is still being copied when the block ends"),
    (shared(copy()), "is still being copied when the block ends"),
    (shared(store(S, (index(0),), c32(0.0))), r"s\[0\] .*is written by thread .* a barrier is missing"),
    (team(store(Y, (W,), c32(0.0))), r"y\[\d\] \(in loops w, t\) is written by thread \d of warp \d of block 0 after thread"),
    (loop("b", 0, 2, team(TOUCH), kind="block"), "of block 1 after thread . of warp . of block 0 wrote it"),
    (loop("w", 0, 2, Allocate(R, "register", loop("t", 0, 4, store(R, (index(0),), c32(0.0)), kind="thread")), kind="warp"),
     r"r\[0\] .* lies in the registers of"),
    (Allocate(R, "register", team(store(R, (index(0),), c32(0.0)))), "in the registers of thread"),
])
def test_the_interpreter_sees_what_hardware_would_make_of_it(body: Stmt, message: str) -> None:
    for seed in range(4):
        with pytest.raises(InternalError, match=message):
            run(body, seed)


def test_a_divergent_barrier_is_seen() -> None:
    body = team(If(call("lt", T, index(2)), Barrier()), TOUCH)
    arrays = {"x": np.zeros(8, np.float32), "y": np.zeros(8, np.float32)}
    with pytest.raises(InternalError, match="the threads of loop t wait at different barriers"):
        interpret(kernel(body), arrays, {"N": 1})


GEMM_SIZES = [{"M": 1, "N": 1, "K": 1}, {"M": 4, "N": 4, "K": 3}, {"M": 5, "N": 7, "K": 8}, {"M": 9, "N": 3, "K": 2}]


@pytest.mark.parametrize("sizes", GEMM_SIZES, ids=str)
def test_gemm(sizes: dict[str, int]) -> None:
    for func in (gemm(), simplify(gemm(Tile(1, 1, 2, 2, 1, 4))), map_blocks(simplify(gemm()))):
        verify(func)
        arrays = gemm_arrays(sizes)
        interpret(func, arrays, sizes)
        np.testing.assert_allclose(arrays["y"], gemm_expected(arrays), rtol=1e-5, atol=1e-5)


def test_batched_gemm() -> None:
    sizes = {"B": 2, "M": 3, "N": 5, "K": 4}
    arrays = gemm_arrays(sizes)
    interpret(gemm(batched=True), arrays, sizes, seed=1)
    np.testing.assert_allclose(arrays["y"], gemm_expected(arrays), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 5), (2, 4), (5, 9)])
def test_softmax(rows: int, columns: int) -> None:
    x = np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32) * 20
    arrays = {"x": x, "y": np.empty_like(x)}
    verify(gpu_funcs.softmax())
    interpret(gpu_funcs.softmax(), arrays, {"R": rows, "C": columns})
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    np.testing.assert_allclose(arrays["y"], e / e.sum(1, keepdims=True), rtol=2e-6, atol=2e-6)


def without_each(stmt: Stmt, matches: Callable[[Stmt], bool]) -> Iterator[Stmt]:
    """`stmt` without one of its matching leaves, for each."""
    for gone in range(sum(matches(s) for s in walk(stmt))):
        seen = iter(range(1000))

        def visit(s: Stmt, gone: int = gone, seen: Iterator[int] = seen) -> Stmt:
            return Block(()) if matches(s) and next(seen) == gone else map_children(visit, s)
        yield visit(stmt)


def test_no_barrier_can_be_left_out() -> None:
    sizes = {"M": 4, "N": 4, "K": 7}
    mutants = [(gemm(), sizes, gemm_arrays(sizes))]
    x = np.ones((3, 9), np.float32)
    mutants.append((gpu_funcs.softmax(), {"R": 3, "C": 9}, {"x": x, "y": np.empty_like(x)}))
    for func, sizes, arrays in mutants:
        bodies = list(without_each(func.body, lambda s: isinstance(s, Barrier)))
        assert len(bodies) == (2 if func.name == "gemm" else 6)
        for body in bodies:
            with pytest.raises(InternalError, match=r"a barrier (or a write )?is missing"):
                interpret(Func(func.name, func.buffers, func.outputs, func.sizes, body), arrays, sizes)


def test_printed() -> None:
    text = format_stmt(shared(copy(), Commit(), Wait(1), Barrier("warp")))
    assert text == ("allocate s: float32[8] shared\nfor w in 0 .. 2 warp\n  for t in 0 .. 4 thread\n"
                    "    s[add(mul(4, w), t)] <~ x[add(mul(4, w), t)]\n    commit\n    wait 1\n    barrier warp\n")
    assert "barrier block" in format_func(gemm())


@pytest.mark.parametrize("body", [
    team(TOUCH), Barrier(), Commit(), Wait(0), Allocate(S, "shared", Block(())), copy(index(0), index(0))])
def test_c_code_has_no_threads(body: Stmt) -> None:
    with pytest.raises(InternalError, match="which C code does not have"):
        emit_c(kernel(body), CPU_SPECS["cpu-generic"])


def test_what_a_team_does_together_is_reached_by_all_of_it() -> None:
    together = Intrin("i", TOUCH, "warp")
    verify(kernel(team(If(call("lt", W, index(1)), together))))
    with pytest.raises(InternalError, match="i is not reached by a whole warp alike: the condition"):
        verify(kernel(team(If(call("lt", T, index(1)), together))))
    with pytest.raises(InternalError, match="i is not within a warp"):
        verify(kernel(loop("t", 0, 8, Intrin("i", store(Y, (T,), c32(1.0)), "warp"), kind="thread")))

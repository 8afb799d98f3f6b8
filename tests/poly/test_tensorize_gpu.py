"""Matrix instructions found in the loops of lanes, on trees of the polyhedral stage; and what is not taken for one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.poly import programs
from tests.poly.support import inputs_for, on_gpu, run
from tests.poly.test_gpu import FOUR_WARPS
from tsc.errors import InternalError
from tsc.loop_ir.gpu.mma import MMA_F16, MMA_TF32, WGMMA_F16, Mma, read_mma_tile
from tsc.loop_ir.gpu.threads import trips
from tsc.loop_ir.gpu.warp_group import GroupProduct, read_group_product
from tsc.loop_ir.lower import lower_gpu
from tsc.loop_ir.nodes import Allocate, For, Func, If, Intrin, Stmt, Store, map_children, map_exprs, walk
from tsc.loop_ir.verify import verify
from tsc.poly.tile import TileConfig
from tsc.te.expr import Buffer, Call, Cast, Const, Expr, Load, Var, call, index
from tsc.te.expr import map_children as map_operands
from tsc.trace import Recorder

SQUARE = TileConfig((16, 8, 16), block_tile=(16, 16, 16), warp_tile=(16, 16))
SHORT = TileConfig((16, 8, 16), block_tile=(16, 16, 8), warp_tile=(16, 16))
TALL = TileConfig((16, 8, 16), block_tile=(32, 8, 16), warp_tile=(32, 8), stages=3)
OPERANDS = ("a", "w", "acc_i_tile", "acc_j_tile")


def mma(func: Func) -> list[Intrin]:
    return [s for s in walk(func.body) if isinstance(s, Intrin)]


@cache
def scheduled(config: TileConfig, transposed: bool = False) -> Func:
    return on_gpu(programs.gemm(transposed=transposed), config).func


def halves(func: Func) -> Func:
    """The same kernel on float16 operands, copied as they are and multiplied as float32."""
    def thin(b: Buffer) -> Buffer:
        return replace(b, dtype="float16") if b.name in OPERANDS else b

    def swap(expr: Expr, wide: bool) -> Expr:
        if isinstance(expr, Load) and expr.buffer.name in OPERANDS:
            load = Load(thin(expr.buffer), tuple(swap(i, wide) for i in expr.index))
            return Cast(load, "float32") if wide else load
        if isinstance(expr, Const) and expr.dtype == "float32" and not wide:
            return replace(expr, dtype="float16")
        inner = map_operands(lambda e: swap(e, wide), expr)
        return replace(inner, dtype="float16") if isinstance(inner, Call) and inner.dtype == "float32" and not wide else inner

    def visit(stmt: Stmt) -> Stmt:
        inner = map_children(visit, stmt)
        if isinstance(inner, Store):
            return replace(inner, buffer=thin(inner.buffer), value=swap(inner.value, inner.buffer.name not in OPERANDS))
        return replace(inner, buffer=thin(inner.buffer)) if isinstance(inner, Allocate) else inner

    return replace(func, body=visit(func.body), buffers=tuple(map(thin, func.buffers)))


def executed(func: Func, sizes: dict[str, int], dtype: str) -> np.ndarray[Any, Any]:
    program = programs.gemm()
    inputs = inputs_for(program, sizes)
    for name in ("a", "w"):
        inputs[name] = np.asarray(inputs[name], np.float16).astype(dtype)  # exact in either instruction's operands
    return np.asarray(run(func, program, sizes, inputs)["out"])


def expected(sizes: dict[str, int]) -> np.ndarray[Any, Any]:
    inputs = inputs_for(programs.gemm(), sizes)
    a, w = (np.asarray(inputs[n], np.float16).astype(np.float64) for n in ("a", "w"))
    return np.asarray(np.maximum(a @ w + inputs["b"], 0))


@pytest.mark.parametrize(("config", "instruction", "count", "sizes"), [
    (SQUARE, MMA_F16, 1, {"M": 1, "N": 1, "K": 1}),
    (SQUARE, MMA_F16, 1, {"M": 5, "N": 7, "K": 19}),
    (SQUARE, MMA_TF32, 1, {"M": 16, "N": 9, "K": 2}),
    (TALL, MMA_F16, 1, {"M": 19, "N": 11, "K": 5}),
    (FOUR_WARPS, MMA_TF32, 1, {"M": 3, "N": 5, "K": 5}),
], ids=str)
def test_values_are_those_of_the_loops(config: TileConfig, instruction: Mma, count: int, sizes: dict[str, int]) -> None:
    func = scheduled(config)
    func = halves(func) if instruction is MMA_F16 else func
    loops, made = lower_gpu(func, 1), lower_gpu(func, config.stages, (instruction,))
    assert [i.name for i in mma(made)] == [instruction.name] * count and not mma(loops)
    result = executed(made, sizes, instruction.dtype)
    np.testing.assert_array_equal(result, executed(loops, sizes, instruction.dtype))
    np.testing.assert_allclose(result, expected(sizes), rtol=1e-5, atol=1e-5)


def test_a_transposed_operand_and_the_first_instruction_that_fits() -> None:
    func = lower_gpu(scheduled(SQUARE, transposed=True), 2, (MMA_F16, MMA_TF32))
    assert [i.name for i in mma(func)] == [MMA_TF32.name]


def test_a_meaning_can_be_read() -> None:
    for func, instruction in ((scheduled(TALL), MMA_TF32), (halves(scheduled(TALL)), MMA_F16)):
        (intrin,) = mma(lower_gpu(func, 3, (instruction,)))
        tile = read_mma_tile(intrin.meaning)
        assert tile is not None and tile.depth == instruction.depth and tile.acc.name == "acc"
        assert isinstance(tile.left, Load) and tile.left.buffer.name == "acc_i_tile"
        assert isinstance(tile.right, Load) and tile.right.buffer.name == "acc_j_tile"
        assert tile.left.dtype == instruction.dtype
    assert read_mma_tile(For("i", index(0), index(2), Store(tile.acc, tile.registers, Const(0.0, "float32")))) is None


# -- warp groups -----------------------------------------------------------------------------------------------

GROUP = TileConfig((64, 8, 16), block_tile=(64, 16, 16), warp_tile=(16, 16))
GROUPS = TileConfig((64, 8, 16), block_tile=(128, 128, 64), warp_tile=(16, 128), stages=2)


@cache
def of_halves(config: TileConfig, transposed: bool = False) -> Func:
    """A product of float16 scheduled for a config; what is read of shared memory depends on the bytes of an element."""
    return on_gpu(programs.gemm(transposed=transposed, dtype="float16"), config).func


def group_product(func: Func) -> GroupProduct | str:
    """What the block's only intrinsic is."""
    (intrin,), warps = mma(func), {s.var: s for s in walk(func.body) if isinstance(s, For) and s.kind == "warp"}
    assert intrin.team == "block"
    return read_group_product(intrin.meaning, "lane", {name: range(trips(loop) or 0) for name, loop in warps.items()})


@pytest.mark.parametrize(("config", "sizes"), [
    (GROUP, {"M": 1, "N": 1, "K": 1}), (GROUP, {"M": 17, "N": 9, "K": 19})], ids=str)
def test_values_of_a_warp_group_are_those_of_the_loops(config: TileConfig, sizes: dict[str, int]) -> None:
    loops, made = lower_gpu(of_halves(config), 1), lower_gpu(of_halves(config), config.stages, (WGMMA_F16, MMA_F16))
    assert [i.name for i in mma(made)] == [WGMMA_F16.name] and not mma(loops)
    result = executed(made, sizes, "float16")
    np.testing.assert_array_equal(result, executed(loops, sizes, "float16"))
    np.testing.assert_allclose(result, expected(sizes), rtol=1e-5, atol=1e-5)


def test_operands_of_warp_groups() -> None:
    """Spans, offsets and steps of k as device/wgmma.cuh has them: bytes of rows along k, or along columns in panels."""
    found = group_product(lower_gpu(of_halves(GROUPS), 2, (WGMMA_F16,)))
    assert isinstance(found, GroupProduct) and found.columns == 128
    a, b = found.left, found.right
    assert (a.span, a.mn_major, a.stride, a.steps) == (128, False, 8 * 128, (0, 32, 64, 96))
    assert (b.span, b.mn_major, b.leading, b.stride, b.steps) == (128, True, 64 * 128, 8 * 128, (0, 2048, 4096, 6144))
    transposed = group_product(lower_gpu(of_halves(GROUPS, transposed=True), 2, (WGMMA_F16,)))
    assert isinstance(transposed, GroupProduct) and not transposed.right.mn_major and transposed.right.steps == a.steps
    narrow = group_product(lower_gpu(of_halves(GROUP), 1, (WGMMA_F16,)))
    assert isinstance(narrow, GroupProduct)
    assert (narrow.left.span, narrow.left.stride, narrow.right.span, narrow.right.leading) == (32, 256, 32, 0)


def test_other_tiles_are_not_those_of_a_warp_group() -> None:
    assert "not four by four" in refusal(of_halves(replace(GROUP, block_tile=(32, 16, 16))), WGMMA_F16)
    assert "not those of a warp group" in refusal(of_halves(replace(GROUP, block_tile=(64, 32, 16))), WGMMA_F16)
    assert "more than 16 rows" in refusal(of_halves(replace(GROUP, block_tile=(128, 16, 16), warp_tile=(32, 16))), WGMMA_F16)
    assert "do not lie as a warp group reads them" in refusal(of_halves(replace(GROUPS, instr_tile=(16, 8, 16))), WGMMA_F16)
    assert "its factors are not float16" in refusal(scheduled(GROUP), WGMMA_F16)
    for change in (lambda i: call("bitxor", i, index(8)), lambda i: call("mod", call("add", i, index(8)), index(64)),
                   lambda i: call("mod", call("mul", i, index(3)), index(64))):
        moved = mutated(of_halves(GROUPS), of_last(change), "acc_j_tile")
        assert "do not lie as a warp group reads them" in refusal(moved, WGMMA_F16)


def of_last(change: Callable[[Expr], Expr]) -> Callable[[Expr], Expr]:
    """A change of swizzled places alone."""
    return lambda place: change(place) if "bitxor" in repr(place) else place


def test_tf32_ignores_the_lower_bits() -> None:
    sizes = {"M": 3, "N": 3, "K": 3}
    inputs = inputs_for(programs.gemm(), sizes)
    made = run(lower_gpu(scheduled(SQUARE), 2, (MMA_TF32,)), programs.gemm(), sizes, inputs)["out"]
    cut = {n: (v.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) if n != "b" else v for n, v in inputs.items()}
    exact = run(lower_gpu(scheduled(SQUARE), 2), programs.gemm(), sizes, cut)["out"]
    np.testing.assert_array_equal(made, exact)
    assert (made != run(lower_gpu(scheduled(SQUARE), 2), programs.gemm(), sizes, inputs)["out"]).any()


# -- what is not taken for one ---------------------------------------------------------------------------------

def mutated(func: Func, change: Callable[[Expr], Expr], buffer: str) -> Func:
    """`func` with the indices of loads of `buffer` changed."""
    def swap(expr: Expr) -> Expr:
        inner = map_operands(swap, expr)
        return Load(inner.buffer, tuple(map(change, inner.index))) if isinstance(inner, Load) and inner.buffer.name == buffer \
            else inner
    return replace(func, body=map_exprs(swap, func.body))


def by_lane(expr: Expr, fn: Callable[[Expr], Expr]) -> Expr:
    return fn(Var("lane")) if expr == Var("lane") else map_operands(lambda e: by_lane(e, fn), expr)


def changed_lanes(func: Func, fn: Callable[[Expr], Expr]) -> Func:
    """Lanes go by other numbers in what is computed, not in what is copied."""
    def visit(stmt: Stmt) -> Stmt:
        if isinstance(stmt, For) and stmt.mark == "k":
            return map_exprs(lambda e: by_lane(e, fn), stmt)
        return map_children(visit, stmt)
    return replace(func, body=visit(func.body))


def refusal(func: Func, *instructions: Mma) -> str:
    recorder = Recorder()
    assert not mma(lower_gpu(func, 1, instructions, recorder))
    return next(d.reason for d in recorder.decisions if d.stage == "tensorize")


def test_other_loops_are_left_with_a_reason() -> None:
    func = scheduled(SQUARE)
    assert "its factors are not float16" in refusal(func, MMA_F16)
    assert "no matrix instruction" in refusal(func)
    assert "8 steps along k are no multiple of 16" in refusal(halves(scheduled(SHORT)), MMA_F16)
    crossed = changed_lanes(func, lambda lane: call("mod", call("add", lane, index(1)), index(32)))
    assert "operands are not those of a matrix instruction" in refusal(crossed, MMA_TF32)
    skewed = mutated(func, lambda i: call("mod", call("add", i, call("mod", Var("lane"), index(4))), index(16)), "acc_i_tile")
    assert "operands are not those of a matrix instruction" in refusal(skewed, MMA_TF32)


def test_a_part_of_a_warp_makes_no_matrix_instruction() -> None:
    func = lower_gpu(scheduled(SQUARE), 1, (MMA_TF32,))

    def guarded(stmt: Stmt) -> Stmt:
        return If(call("lt", Var("lane"), index(16)), stmt) if isinstance(stmt, Intrin) else map_children(guarded, stmt)
    with pytest.raises(InternalError, match="is not reached by a whole warp alike: the condition"):
        verify(replace(func, body=guarded(func.body)))

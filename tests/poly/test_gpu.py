"""Schedules for GPUs: values at odd and size-1 shapes in the interpreter, with its threads, and their form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.poly import programs
from tests.poly.support import check_values
from tests.poly.test_mutations_promotion import padded_product
from tsc.loop_ir.nodes import Allocate, Barrier, Block, For, Func, Stmt, block, map_children
from tsc.loop_ir.verify import verify
from tsc.poly.gpu import GpuTileConfig
from tsc.poly.schedule_gpu import schedule_gpu
from tsc.te.compute import Program

FOUR_WARPS = GpuTileConfig((32, 16, 16), (16, 8))
ONE_WARP = GpuTileConfig((16, 16, 8), (16, 16))


def with_barriers(func: Func) -> Func:
    """A barrier between any two steps of the threads, and at the end of every k tile."""
    def separate(stmt: Stmt) -> Stmt:
        match stmt:
            case Block(body=body):
                return block(*(part for s in body for part in (separate(s), Barrier())))
            case For(mark="k_tile"):
                return replace(stmt, body=block(separate(stmt.body), Barrier()))
            case For(kind="block" | "warp" | "thread") | Allocate():
                return map_children(separate, stmt)
        return stmt
    return replace(func, body=separate(func.body))


def kernel(program: Program, config: GpuTileConfig) -> Func:
    func, _, _ = schedule_gpu(program, config, "kernel")
    func = with_barriers(func)
    verify(func)
    return func


CASES: dict[str, tuple[Callable[[], Program], GpuTileConfig, list[dict[str, int]]]] = {
    "gemm": (programs.gemm, FOUR_WARPS, [{"M": 1, "N": 1, "K": 1}, {"M": 5, "N": 17, "K": 18}]),
    "gemm_transposed": (lambda: programs.gemm(transposed=True), ONE_WARP, [{"M": 3, "N": 9, "K": 11}]),
    "gemm_gelu_static": (lambda: programs.gemm("M", 24, 9, act="gelu"), ONE_WARP, [{"M": 7}]),
    "gemm_empty": (lambda: programs.gemm(lo=0), ONE_WARP, [{"M": 0, "N": 2, "K": 2}, {"M": 3, "N": 5, "K": 0}]),
    "pad_and_cast": (padded_product, ONE_WARP, [{"M": 5, "N": 7, "K": 3}]),
    "attention_scores": (programs.attention_scores, ONE_WARP, [{"B": 1, "L": 1, "T": 1}, {"B": 2, "L": 3, "T": 5}]),
    "attention_values": (programs.attention_values, ONE_WARP, [{"B": 2, "L": 5, "T": 3}]),
    "head_split": (lambda: programs.head_split(3, 4), ONE_WARP, [{"M": 5, "K": 3}]),
    "conv": (programs.conv, ONE_WARP, [{"B": 1, "H": 1, "W": 1}, {"B": 1, "H": 2, "W": 5}]),
    "conv_wide_kernel": (lambda: programs.conv(2, 3, (1, 4)), ONE_WARP, [{"B": 1, "H": 2, "W": 6}]),
}


@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    make, config, cases = CASES[name]
    program = make()
    func = kernel(program, config)
    for sizes in cases:
        check_values(func, program, sizes)

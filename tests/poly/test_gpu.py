"""Schedules for GPUs: values at odd and size-1 shapes in the interpreter, with its threads, and their form."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.poly import programs
from tests.poly.support import check_values
from tests.poly.test_mutations_promotion import padded_product
from tsc.loop_ir.barriers import insert_barriers
from tsc.loop_ir.nodes import Allocate, Barrier, For, Func, Store, Wait, walk
from tsc.loop_ir.pipeline import software_pipeline
from tsc.loop_ir.threads import nest_count, nests
from tsc.loop_ir.verify import verify
from tsc.poly import PatternMismatch
from tsc.poly.gpu import GpuTileConfig, copy_shape
from tsc.poly.schedule_gpu import schedule_gpu
from tsc.te.compute import SUM, Compute, Program, SizeParam

FOUR_WARPS = GpuTileConfig((32, 16, 16), (16, 8))
ONE_WARP = GpuTileConfig((16, 16, 8), (16, 16))
TWO_ROWS = GpuTileConfig((32, 16, 16), (16, 16))


def kernel(program: Program, config: GpuTileConfig, stages: int = 1) -> Func:
    """The kernel with its barriers; with several stages its copies are asynchronous."""
    func, _, _ = schedule_gpu(program, config, "kernel")
    if stages > 1:
        func, refused = software_pipeline(func, stages)
        assert not refused
    func = insert_barriers(func)
    verify(func)
    return func


CASES: dict[str, tuple[Callable[[], Program], GpuTileConfig, list[dict[str, int]]]] = {
    "gemm": (programs.gemm, FOUR_WARPS, [{"M": 1, "N": 1, "K": 1}, {"M": 5, "N": 11, "K": 18}]),
    "gemm_transposed": (lambda: programs.gemm(transposed=True), ONE_WARP, [{"M": 3, "N": 9, "K": 11}]),
    "gemm_gelu_static": (lambda: programs.gemm("M", 24, 9, act="gelu"), ONE_WARP, [{"M": 7}]),
    "gemm_empty": (lambda: programs.gemm(lo=0), ONE_WARP, [{"M": 0, "N": 2, "K": 2}, {"M": 3, "N": 5, "K": 0}]),
    "pad_and_cast": (padded_product, ONE_WARP, [{"M": 5, "N": 7, "K": 3}]),
    "attention_scores": (programs.attention_scores, ONE_WARP, [{"B": 1, "L": 1, "T": 1}, {"B": 2, "L": 3, "T": 5}]),
    "attention_values": (programs.attention_values, ONE_WARP, [{"B": 2, "L": 5, "T": 3}]),
    "head_split": (lambda: programs.head_split(3, 4), ONE_WARP, [{"M": 5, "K": 3}]),
    "conv": (programs.conv, ONE_WARP, [{"B": 1, "H": 1, "W": 1}, {"B": 1, "H": 2, "W": 5}]),
    "conv_wide_kernel": (lambda: programs.conv(2, 3, (1, 4)), ONE_WARP, [{"B": 1, "H": 2, "W": 6}]),
    "softmax": (programs.softmax, TWO_ROWS, [{"R": 1, "C": 1}, {"R": 3, "C": 37}]),
    "softmax_empty": (lambda: programs.softmax(lo=0), TWO_ROWS, [{"R": 0, "C": 3}, {"R": 2, "C": 0}]),
    "layer_norm": (lambda: programs.layer_norm(35), TWO_ROWS, [{"B": 1, "L": 1}, {"B": 2, "L": 3}]),
    "embedding": (lambda: programs.layer_norm(6, gather=True), TWO_ROWS, [{"B": 1, "L": 3, "V": 4}]),
}


@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    make, config, cases = CASES[name]
    program = make()
    func = kernel(program, config)
    for sizes in cases:
        check_values(func, program, sizes)


@pytest.mark.parametrize(("name", "stages"), [("gemm", 2), ("gemm_transposed", 3), ("attention_values", 2), ("head_split", 4)])
def test_values_with_copies_under_way(name: str, stages: int) -> None:
    """Asynchronous copies of later tiles, their waits and barriers derived."""
    make, config, cases = CASES[name]
    program = make()
    func = kernel(program, config, stages)
    assert any(isinstance(s, Wait) for s in walk(func.body))
    assert all(s.asynchronous for s in walk(func.body) if isinstance(s, Store) and s.buffer.name.endswith("_tile"))
    check_values(func, program, cases[-1])


def test_a_composed_prologue_is_computed_not_copied() -> None:
    func, _, _ = schedule_gpu(padded_product(), ONE_WARP, "kernel")
    _, reasons = software_pipeline(func, 2)
    assert len(reasons) == 1 and "is computed, not copied" in reasons[0]


def test_the_form_of_a_kernel() -> None:
    """One nest of whole warps, shared tiles outside of it, a thread's registers inside, constant trip counts but for k."""
    func, tree, log = schedule_gpu(programs.gemm(), FOUR_WARPS, "kernel")
    assert [nest_count(n) for n in nests(func.body, "warp")] == [4]
    assert [nest_count(n) for n in nests(func.body, "thread")] == [32]
    scopes = {s.buffer.name: (s.scope, *map(str, s.buffer.shape)) for s in walk(func.body) if isinstance(s, Allocate)}
    assert scopes == {"acc_i_tile": ("shared", "32", "16"), "acc_j_tile": ("shared", "16", "16"), "acc": ("register", "4")}
    varying = [s.mark for s in walk(func.body) if isinstance(s, For) and s.kind != "block" and nest_count((s,)) is None]
    assert varying == ["k_tile"]
    assert "k_tile" in tree and any("declared associative" in line for line in log)


@pytest.mark.parametrize(("shape", "warps", "most", "expected"), [
    ((128, 32), 4, 8, (4, 8, 8)), ((32, 128), 4, 8, (16, 2, 8)), ((16, 8), 1, 4, (2, 16, 4)), ((32, 16), 4, 4, (4, 8, 4)),
    ((16, 16), 4, 4, (8, 4, 2)), ((8, 64), 1, 4, (16, 2, 4)), ((4, 256), 4, 8, (32, 1, 8))])
def test_tiles_are_copied_in_whole_steps(shape: tuple[int, int], warps: int, most: int, expected: tuple[int, int, int]) -> None:
    across, down, vector = copy_shape(shape, warps, most)
    assert (across, down, vector) == expected
    assert across * down == 32 and shape[0] % (down * warps) == 0 and shape[1] % (across * vector) == 0


def test_the_form_of_a_row_kernel() -> None:
    """A warp a row, its lanes over columns; the only barriers are a warp's own."""
    func = kernel(programs.softmax(), TWO_ROWS)
    assert [nest_count(n) for n in nests(func.body, "warp")] == [2]
    assert [nest_count(n) for n in nests(func.body, "thread")] == [32]
    assert {s.buffer.name for s in walk(func.body) if isinstance(s, Allocate)} == {"mx_part", "mx", "sm_part", "sm"}
    assert {s.team for s in walk(func.body) if isinstance(s, Barrier)} == {"warp"}


def test_what_does_not_fit_is_refused_with_a_reason() -> None:
    with pytest.raises(PatternMismatch, match="in whole steps"):
        schedule_gpu(programs.gemm(), GpuTileConfig((16, 8, 3), (16, 8)), "kernel")
    with pytest.raises(PatternMismatch, match="no second axis"):
        schedule_gpu(programs.gemm(1, "N", "K"), ONE_WARP, "kernel")
    x, out, r = programs.buffer("x", "R"), programs.buffer("out"), programs.axis("r", "R")
    whole = Program((x,), (out,), (Compute(out, (), programs.at(x, r), (r,), SUM),), (SizeParam("R"),))
    for program, reason in ((whole, "has no rows"), (programs.total(), "several axes of symbolic extents")):
        with pytest.raises(PatternMismatch, match=reason):
            schedule_gpu(program, ONE_WARP, "kernel")
    with pytest.raises(PatternMismatch, match="nothing is reduced"):
        schedule_gpu(programs.transpose(), ONE_WARP, "kernel")

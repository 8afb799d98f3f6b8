"""Mistakes that kernels are prone to, put into the reference kernels one by one: each is found in the mode that claims it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from benchmarks.gpu.references import Shape
from tests.codegen_cuda.reference_runs import BY_NAME, execute

FP16, BF16, SOFTMAX, TRANSPOSE = "gemm_f16_sm80", "gemm_bf16_sm90a", "softmax_f32", "transpose_b32"


@dataclass(frozen=True, slots=True)
class Bug:
    """In kernel `kernel`, `old`, which its text has once, becomes `new`. `found` is how the launch ends in each mode that
    claims it; "wrong" is a launch that ends well and leaves wrong numbers."""

    what: str
    kernel: str
    old: str
    new: str
    found: dict[str, str]
    shape: Shape = (129, 136, 1000)


EXPECT = "mbarrier_arrive_expect(barrier, A_BYTES + B_BYTES)"
RELEASE = "if (tile != 0 && speaker) mbarrier_arrive(empty(last.stage));"

BUGS = (
    Bug("missing barrier", FP16, "block_sync();  // all copies", "// all copies", {"race": "race"}),
    Bug("missing barrier before shared memory is used anew", FP16, "cp_async_wait<0>();\n  block_sync();", "",
        {"race": "race"}, (1, 8, 8)),
    Bug("missing __syncwarp after writing", FP16, "warp_sync();  // the rows are whole", "", {"race": "race"}),
    Bug("missing __syncwarp before writing anew", FP16, "warp_sync();  // the rows are free again", "", {"race": "race"}),
    Bug("wait group off by one", FP16, "cp_async_wait<STAGES - 2>", "cp_async_wait<STAGES - 1>",
        {"lazy": "wrong", "race": "race"}),
    Bug("wrong stage written", FP16, "load_stage(shared + writing * STAGE_BYTES", "load_stage(shared + reading * STAGE_BYTES",
        {"lazy": "wrong", "race": "race"}),
    Bug("wrong stage read", FP16, "a_tile = shared + reading * STAGE_BYTES", "a_tile = shared + writing * STAGE_BYTES",
        {"lazy": "wrong", "race": "uninitialised"}),
    Bug("dropped row predicate", FP16, "const bool inside = m0 + row < m && tile", "const bool inside = tile",
        {"fast": "out of bounds"}),
    Bug("dropped k predicate", FP16, "m0 + row < m && tile * BK + chunk * 8 < k", "m0 + row < m", {"fast": "out of bounds"}),
    Bug("store past the last row", FP16, "if (to_m < m && to_n < n)", "if (to_n < n)", {"fast": "out of bounds"}),
    Bug("store into the next row", FP16, "if (to_m < m && to_n < n)", "if (to_m < m)", {"race": "race"}),
    Bug("missing barrier", SOFTMAX, "block_sync();", "", {"race": "uninitialised"}),
    Bug("missing barrier", TRANSPOSE, "block_sync();", "", {"race": "uninitialised"}),
    Bug("dropped predicate", TRANSPOSE, "column0 + i < columns && row0", "row0", {"fast": "out of bounds"}),
    Bug("missing empty-wait", BF16, "mbarrier_wait(empty(turn.stage), (turn.round + 1) & 1);", "",
        {"fast": "protocol", "race": "protocol"}),
    Bug("release before wgmma.wait", BF16, RELEASE, "if (speaker) mbarrier_arrive(empty(turn.stage));", {"race": "race"}),
    Bug("missing release", BF16, RELEASE, "", {"fast": "deadlock"}),
    Bug("wgmma wait group off by one", BF16, "wgmma_wait<1>()", "wgmma_wait<2>()", {"race": "race"}),
    Bug("accumulators read before wgmma.wait", BF16, "  wgmma_wait<0>();\n", "", {"lazy": "wrong"}),
    Bug("mbarrier over-arrival", BF16, "const bool speaker = lane_index() == 0;", "const bool speaker = lane_index() <= 1;",
        {"fast": "protocol", "race": "protocol"}),
    Bug("expect_tx too small", BF16, EXPECT, "mbarrier_arrive_expect(barrier, A_BYTES)", {"race": "race"}),
    Bug("expect_tx too large", BF16, EXPECT, EXPECT.replace(")", " + 16)"), {"fast": "deadlock"}),
    Bug("wrong parity", BF16, "mbarrier_wait(full(turn.stage), turn.round & 1)",
        "mbarrier_wait(full(turn.stage), (turn.round + 1) & 1)", {"race": "race"}),
    Bug("missing __syncwarp before the copy engine reads", BF16, "warp_sync();  // the buffer is full", "",
        {"race": "uninitialised"}),
    Bug("missing proxy fence", BF16, "fence_async_shared();", "", {"race": "protocol"}),
    Bug("missing wait for the copy engine's reads", BF16, "if (lane == 0) bulk_wait_read<1>();", "", {"race": "race"}),
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug.kernel}: {bug.what}")
def test_is_found(bug: Bug) -> None:
    reference = BY_NAME[bug.kernel]
    text = reference.source
    assert text.count(bug.old) == 1
    for mode, found in bug.found.items():
        run = execute(reference, text.replace(bug.old, bug.new), bug.shape, mode, timeout_ms=5000)
        if found == "wrong":
            assert run.report.ended == "ok" and run.worst > 1, (mode, run.report.text)
        else:
            assert run.report.ended == found, (mode, run.report.ended, run.report.text, run.worst)
            assert bug.kernel in run.report.text or run.report.kernel.decode() == bug.kernel


@pytest.mark.parametrize("seed", range(4))
def test_wrong_order_shows_under_stress(seed: int) -> None:
    # Without the barrier some order of the warps overwrites what is still read.
    reference = BY_NAME[FP16]
    text = reference.source.replace("block_sync();  // all copies", "// all copies")
    assert text != reference.source
    assert execute(reference, text, (129, 136, 1000), "stress", seed).worst > 1


def test_a_conflict_is_counted() -> None:
    reference = BY_NAME[TRANSPOSE]
    text = reference.source.replace("(column ^ row)", "column")
    assert text != reference.source
    run = execute(reference, text, (64, 64, 1), "fast", count=True)
    assert run.worst == 0
    # A column read of 32 lanes goes to one bank: 31 more wavefronts than the least, for each of 32 reads in each of 4 blocks.
    assert run.report.bank_conflicts == 4 * 32 * 31

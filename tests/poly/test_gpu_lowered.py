"""GPU schedules lowered: barriers and pipelines derived on the trees that the polyhedral stage makes, run with all threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.loop_ir.test_threads import without_each
from tests.poly import programs
from tests.poly.support import check_values, on_gpu
from tests.poly.test_gpu import FOUR_WARPS, ONE_WARP
from tests.poly.test_mutations_promotion import padded_product
from tsc.errors import InternalError
from tsc.loop_ir.gpu.verify_sync import verify_synchronised
from tsc.loop_ir.lower import lower_gpu
from tsc.loop_ir.nodes import Barrier, Commit, Wait, walk
from tsc.poly.tile import TileConfig
from tsc.te.compute import Program
from tsc.trace import Recorder

CASES: dict[str, tuple[Callable[[], Program], TileConfig, int, list[dict[str, int]]]] = {
    "gemm_serial": (programs.gemm, ONE_WARP, 1, [{"M": 3, "N": 5, "K": 17}]),
    "gemm": (programs.gemm, ONE_WARP, 2, [{"M": 1, "N": 1, "K": 1}, {"M": 3, "N": 5, "K": 17}]),
    "gemm_in_three_stages": (lambda: programs.gemm(transposed=True), ONE_WARP, 3, [{"M": 2, "N": 3, "K": 33}]),
    "gemm_of_four_warps": (programs.gemm, FOUR_WARPS, 3, [{"M": 3, "N": 5, "K": 18}]),
    "gemm_empty": (lambda: programs.gemm(lo=0), ONE_WARP, 2, [{"M": 0, "N": 2, "K": 2}, {"M": 3, "N": 5, "K": 0}]),
    "attention_scores": (programs.attention_scores, ONE_WARP, 2, [{"B": 2, "L": 3, "T": 5}]),
    "head_split": (lambda: programs.head_split(3, 4), ONE_WARP, 2, [{"M": 5, "K": 3}]),
    "conv": (programs.conv, ONE_WARP, 2, [{"B": 1, "H": 1, "W": 1}, {"B": 1, "H": 2, "W": 5}]),
}


@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    make, config, stages, cases = CASES[name]
    program = make()
    func = lower_gpu(on_gpu(program, config).func, stages)
    teams = [s.team for s in walk(func.body) if isinstance(s, Barrier)]
    one_tile = name == "attention_scores"  # k is 5 long: no loop, one wait for all copies
    assert teams == ["warp" if config is ONE_WARP else "block"] * (2 if stages == 1 else 1)
    waits = [0] if one_tile else [stages - 2] if stages > 1 else []
    assert [s.pending for s in walk(func.body) if isinstance(s, Wait)] == waits
    for sizes in cases:
        check_values(func, program, sizes)


def test_what_orders_threads_cannot_be_left_out() -> None:
    """In the static check: that the interpreter sees it too is shown on smaller kernels."""
    func = lower_gpu(on_gpu(programs.gemm(), FOUR_WARPS).func, 3)
    for body in without_each(func.body, lambda s: isinstance(s, Barrier | Wait | Commit)):
        with pytest.raises(InternalError):
            verify_synchronised(replace(func, body=body))


def test_computed_copies_are_not_asynchronous() -> None:
    recorder = Recorder()
    program = padded_product()
    func = lower_gpu(on_gpu(program, ONE_WARP).func, 2, recorder=recorder)
    assert any(d.stage == "pipeline" and "is computed, not copied" in d.reason for d in recorder.decisions)
    check_values(func, program, {"M": 5, "N": 7, "K": 3})

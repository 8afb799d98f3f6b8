"""Cycles of a launch, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tsc.codegen_cuda.specs import CUDA_SPECS, H100, H200
from tsc.errors import InternalError
from tsc.sol.bound import Block, Cycles, Grid, cycles, microseconds, waves
from tsc.sol.counted import Counted
from tsc.sol.loops import Executed, Known
from tsc.target import GpuLimits, GpuSpeed

LIMITS = CUDA_SPECS["sm_90a"].gpu or GpuLimits(0, 0, 0, 0, 0)
#: A block of 128 x 128 of a product of halves, 1024 terms: it reads 2 x 128 x 1024 halves and writes 128 x 128 floats.
TILE = Block(Counted(Known(), 128 * 128 * 1024, 5000, 2 * 128 * 1024 * 2 + 128 * 128 * 4), Executed(20_000, 8_000, 0, False),
             "wgmma.f16", 8)
#: 4096 x 1024 x 1024 in such blocks, two a multiprocessor: of 132 some have two.
PRODUCT = Grid(32 * 8, 2, 2 * 4096 * 1024 + 2 * 1024 * 1024 + 4 * 4096 * 1024)


def test_a_product_of_halves() -> None:
    found = cycles(TILE, PRODUCT, LIMITS, H100)
    assert found.tensor == 2 * 128 * 128 * 1024 / 2048 == 16384
    assert found.shared == 2 * 5000
    assert found.issue == 2 * 20_000 / 4
    assert found.l2 == pytest.approx(256 * (512 * 1024 + 64 * 1024) / 5120)
    assert found.dram == pytest.approx(27_262_976 * 1.98e9 / 3.35e12)
    assert (found.part, found.most) == ("l2", found.l2) and microseconds(found.most, H100) == pytest.approx(14.9, abs=0.05)
    assert waves(PRODUCT, LIMITS) == 256 / 264


def test_instructions_of_warps_have_a_rate_of_their_own() -> None:
    """62.9 % of what those of warp groups have."""
    found = cycles(replace(TILE, matrix="mma.f16"), PRODUCT, LIMITS, H100)
    assert found.tensor == pytest.approx(16384 / 0.629, rel=1e-3)


def test_a_warp_keeps_one_scheduler_busy() -> None:
    """Of two warps a block, alone on their multiprocessors: half of the schedulers and tensor cores; two blocks fill them."""
    pair = replace(TILE, warps=2)
    alone, two = cycles(pair, replace(PRODUCT, blocks=132), LIMITS, H100), cycles(pair, PRODUCT, LIMITS, H100)
    assert (alone.issue, alone.tensor, alone.shared) == (20_000 / 2, 16384, 5000)
    assert (two.issue, two.tensor, two.shared) == (2 * 20_000 / 4, 16384, 10_000)
    one_by_one = cycles(pair, replace(PRODUCT, resident=1), LIMITS, H100)
    assert one_by_one.issue == 2 * 20_000 / 2


def test_floats_have_a_pipe_that_is_half_as_wide_on_some() -> None:
    """64 products a cycle are two warps' instructions, of four that are issued."""
    a100 = CUDA_SPECS["sm_80"].speed
    assert a100 is not None and a100.fp32 == 64
    floats = Block(TILE.counted, Executed(20_000, 16_000, 0, False), "", 8)
    assert cycles(floats, PRODUCT, LIMITS, H100).issue == 2 * 20_000 / 4
    assert cycles(floats, PRODUCT, LIMITS, a100).issue == 2 * 16_000 / 2
    assert cycles(floats, PRODUCT, LIMITS, a100).tensor == 0


def test_memory() -> None:
    """What is in L2 needs no DRAM; who reads a part of a buffer needs no more than that; an unknown L2 bounds nothing."""
    assert cycles(TILE, PRODUCT, LIMITS, H200).dram == pytest.approx(27_262_976 * 1.98e9 / 4.8e12)
    assert cycles(TILE, PRODUCT, LIMITS, H200, cached=True).dram == 0
    rows = replace(TILE, counted=replace(TILE.counted, l2_bytes=64))
    assert cycles(rows, Grid(10, 1, 1 << 30), LIMITS, H200).dram == pytest.approx(640 * 1.98e9 / 4.8e12)
    assert cycles(TILE, PRODUCT, LIMITS, replace(H100, l2=None)).l2 == 0


def test_unknown_instructions() -> None:
    ada = CUDA_SPECS["sm_89"].speed or H100
    with pytest.raises(InternalError, match=r"nothing is known of wgmma\.f16 on L40S"):
        cycles(TILE, PRODUCT, LIMITS, ada)
    assert Cycles().most == 0


@pytest.mark.parametrize("arch, operations, clock, kind", [
    ("sm_80", 312e12, 1.41e9, "mma.f16"), ("sm_80", 156e12, 1.41e9, "mma.tf32"), ("sm_90a", 989.4e12, 1.83e9, "wgmma.f16"),
    ("sm_86", 149.7e12, 1.74e9, "mma.f16"), ("sm_89", 362e12, 2.52e9, "mma.f16"), ("sm_120a", 209.5e12, 2.407e9, "mma.f16")])
def test_the_table_is_that_of_data_sheets(arch: str, operations: float, clock: float, kind: str) -> None:
    """Operations a second, two a product, at the clock that they are given for."""
    spec = CUDA_SPECS[arch]
    assert spec.gpu is not None and isinstance(spec.speed, GpuSpeed)
    assert dict(spec.speed.tensor)[kind] * 2 * spec.gpu.multiprocessors * clock == pytest.approx(operations, rel=0.02)

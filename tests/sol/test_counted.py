"""What one block does: the emulator's counters against arithmetic, and machine code against them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.codegen_cuda.emulated import Module, aligned
from tests.codegen_cuda.reference_runs import BY_NAME, execute
from tsc.codegen_cuda import nvrtc
from tsc.codegen_cuda.build import CudaSource, build_cubin, build_emulated
from tsc.codegen_cuda.sass import disassemble, find_disassembler
from tsc.config import Options
from tsc.errors import LaunchError
from tsc.sol.loops import Known, executed, matrix_of, regions_of

ROWS = """#include "tsc_device.cuh"
using namespace tsc;
TSC_KERNEL(rows, 32, 1, const u32* places, float* sums) {
  const u32 lane = thread_index().x;
  for (u32 word = lane; word < 128; word += 32) store_shared<float>(shared_base() + word * 4u, 1.0f);
  block_sync();
  float row[4];
  load_shared_row<4>(row, shared_base() + places[lane]);
  sums[lane] = row[0] + row[1] + row[2] + row[3];
}
"""


@pytest.fixture(scope="module")
def rows() -> Module:
    try:
        binary = build_emulated(CudaSource("rows", ROWS), Options())
    except LaunchError as error:
        pytest.skip(str(error))
    with tempfile.TemporaryDirectory(prefix="tsc-test-") as folder:
        path = Path(folder) / "rows.so"
        path.write_bytes(binary)
        return Module(path)


@pytest.mark.parametrize("place, single, paired", [
    (lambda lane: 16 * lane, 4, 4),               # all different: a register of 32 lanes a wavefront
    (lambda lane: 16 * (lane // 4), 4, 2),        # neighbours alike
    (lambda lane: 16 * (lane % 2), 4, 2),         # those two apart alike
    (lambda lane: 16 * (lane % 4), 4, 4),         # alike, but neither neighbours nor those two apart
    (lambda lane: 0, 4, 2)])                      # all alike: four registers come back all the same
def test_neighbours_that_load_from_one_place(rows: Module, place: Callable[[int], int], single: int, paired: int) -> None:
    """Rows of 16 bytes, as https://forums.developer.nvidia.com/t/unexpected-shared-memory-bank-conflict/77228 has it; four
    stores of words beside."""
    places = aligned(np.array([place(lane) for lane in range(32)], np.uint32), False)
    report = rows.launch("rows", [places, aligned(np.zeros(32, np.float32))], shared=512, count=True)
    assert report.ended == "ok", report.text
    assert (report.shared_wavefronts - 4, report.paired_wavefronts - 4) == (single, paired)


@pytest.mark.skipif(not nvrtc.available(), reason="NVRTC is not installed: `pip install tsc-compiler[cuda]`")
@pytest.mark.skipif(find_disassembler() is None, reason="no nvdisasm: `pip install nvidia-cuda-nvdisasm`")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_a_product_written_by_hand(arch: str) -> None:
    """128 x 128 of fp16 by eight warps of 64 x 32, in tiles of 32 along k: one loop, once a tile."""
    reference, terms = BY_NAME["gemm_f16_sm80"], 320
    sass = disassemble(build_cubin(CudaSource(reference.name, reference.source), arch, Options()).binary)[reference.name]
    report = execute(reference, reference.source, (128, 128, terms), "fast", count=True).report
    assert report.mma_instructions * matrix_of(sass).products == 128 * 128 * terms and matrix_of(sass).kind == "mma.f16"
    known = Known(report.mma_instructions, report.shared_load_bytes, report.shared_store_bytes, report.global_load_bytes,
                  report.global_store_bytes)
    regions = regions_of(sass)
    found = executed(regions, known, 8)
    loops = [region for region in regions if region.known.matrix]
    assert len(loops) == 1 and loops[0].known.matrix == 4 * 4 * 2
    assert found.unexplained < 0.01 and not found.least
    around = found.instructions - 8 * (terms // 32) * loops[0].instructions
    assert 0 < around < 8 * 1.1 * sum(region.instructions for region in regions)

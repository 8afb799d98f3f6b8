"""The primitives as PTX: every test kernel compiles for every architecture, and what is meant for registers stays in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tsc.codegen_cuda.build import CudaSource, build_cubins
from tsc.codegen_cuda.specs import CUDA_SPECS
from tsc.config import Options
from tsc.errors import LaunchError

SOURCE = Path(__file__).parent / "primitives" / "primitives.cu"


def test_primitives_compile_everywhere_without_spills() -> None:
    source = CudaSource("primitives", SOURCE.read_text(encoding="utf-8"))
    try:
        cubins = build_cubins([(source, arch) for arch in CUDA_SPECS], Options())
    except LaunchError as error:
        pytest.skip(str(error))
    for cubin in cubins:
        assert {"mma_u8_2x4", "ldmatrix_4_transposed", "last_block"} <= {kernel.name for kernel in cubin.kernels}
        for kernel in cubin.kernels:
            assert (kernel.spill_stores, kernel.spill_loads, kernel.stack_frame) == (0, 0, 0), (cubin.arch, kernel.name)

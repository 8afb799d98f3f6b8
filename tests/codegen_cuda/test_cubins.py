"""The reference kernels' machine code on every architecture: nothing spilled, and the instructions that are meant."""

from __future__ import annotations

import functools

import pytest

from benchmarks.gpu.references import REFERENCES, Reference
from tests.codegen_cuda.reference_runs import BY_NAME
from tsc.codegen_cuda import nvrtc
from tsc.codegen_cuda.build import Cubin, CudaSource, build_cubins
from tsc.codegen_cuda.sass import disassemble, find_disassembler
from tsc.codegen_cuda.specs import CUDA_SPECS
from tsc.config import Options
from tsc.errors import LaunchError
from tsc.target import parse_target

pytestmark = pytest.mark.skipif(not nvrtc.available(), reason="NVRTC is not installed: `pip install tsc-compiler[cuda]`")
needs_sass = pytest.mark.skipif(find_disassembler() is None, reason="no nvdisasm: `pip install nvidia-cuda-nvdisasm`")
PAIRS = [(reference, arch) for reference in REFERENCES for arch in CUDA_SPECS if reference.runs_on(arch)]


@functools.cache
def cubins() -> dict[tuple[str, str], Cubin]:
    """All of them, built side by side. Skips the test where NVRTC cannot be loaded."""
    wanted = [(CudaSource(reference.name, reference.source), arch) for reference, arch in PAIRS]
    try:
        built = build_cubins(wanted, Options())
    except LaunchError as error:
        pytest.skip(str(error))
    return {(source.name, arch): cubin for (source, arch), cubin in zip(wanted, built)}


def test_every_architecture_is_covered() -> None:
    assert {"sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"} <= {arch for _, arch in PAIRS}


@pytest.mark.parametrize(("reference", "arch"), PAIRS, ids=lambda value: value if isinstance(value, str) else value.name)
def test_nothing_is_spilled(reference: Reference, arch: str) -> None:
    cubin = cubins()[reference.name, arch]
    info = cubin.kernel(reference.name)
    assert (info.spill_stores, info.spill_loads, info.stack_frame, info.static_shared) == (0, 0, 0, 0)
    threads = reference.block[0] * reference.block[1] * reference.block[2]
    assert info.max_threads == threads
    limits = parse_target(arch, CUDA_SPECS).gpu
    assert limits is not None
    assert reference.shared <= limits.shared_per_block
    assert info.registers * threads <= 65536
    assert "serialized" not in cubin.log  # ptxas says so where it makes wgmma wait for each other


@needs_sass
@pytest.mark.parametrize(("name", "arch", "wanted"), [
    *(("gemm_f16_sm80", arch, {"HMMA", "LDGSTS", "LDSM"}) for arch in CUDA_SPECS),
    ("gemm_bf16_sm90a", "sm_90a", {"HGMMA", "UTMALDG", "UTMASTG", "SYNCS"}),
])
def test_tensor_cores_and_asynchronous_copies_are_used(name: str, arch: str, wanted: set[str]) -> None:
    counts = disassemble(cubins()[name, arch].binary)[name].counts()
    assert wanted <= counts.keys()
    assert not {"LDL", "STL"} & counts.keys()


@needs_sass
@pytest.mark.parametrize("name", ["gemm_f16_sm80", "transpose_b32"])
def test_global_memory_is_accessed_in_wide_units(name: str) -> None:
    opcodes = disassemble(cubins()[name, "sm_90a"].binary)[name].opcodes
    stores = [opcode for opcode in opcodes if opcode.startswith("STG")]
    assert stores
    assert name == "transpose_b32" or all(".128" in opcode for opcode in stores)


def test_shared_memory_is_what_the_source_says() -> None:
    # The sizes that launches ask for stand in the sources' comments, and nowhere in code that runs.
    for name in ("gemm_f16_sm80", "gemm_bf16_sm90a", "softmax_f32", "transpose_b32"):
        assert f"// {BY_NAME[name].shared}\n" in BY_NAME[name].source

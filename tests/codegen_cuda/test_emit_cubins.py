"""Printed kernels as machine code, where NVRTC is installed: all of them compile, nothing is spilled, tensor cores are used."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from tests.codegen_cuda.generated import printed
from tests.codegen_cuda.test_emit import CASES, MATRIX
from tests.codegen_cuda.test_emit_scalars import BOTH, COMPARED, FUNCTIONS, UNARY, kernel, load_of
from tests.poly.support import on_gpu
from tests.poly.test_tensorize_gpu import halves, scheduled
from tsc.codegen_cuda import nvrtc
from tsc.codegen_cuda.build import CudaSource, build_cubins
from tsc.codegen_cuda.emit import emit_cuda
from tsc.codegen_cuda.sass import disassemble, find_disassembler
from tsc.codegen_cuda.specs import CUDA_SPECS
from tsc.config import Options
from tsc.errors import LaunchError
from tsc.loop_ir.gpu.tensorize_gpu import MMA_F16
from tsc.loop_ir.lower import lower_gpu
from tsc.te.expr import Call, Cast

pytestmark = pytest.mark.skipif(not nvrtc.available(), reason="NVRTC is not installed: `pip install tsc-compiler[cuda]`")


@cache
def kernels_text() -> str:
    funcs = {name: replace(lower_gpu(on_gpu(make(), config).func, stages), name=name)
             for name, (make, config, stages, _) in CASES.items()}
    for name, (config, instruction, transposed) in MATRIX.items():
        func = scheduled(config, transposed)
        func = halves(func) if instruction is MMA_F16 else func
        funcs[name] = replace(lower_gpu(func, config.stages, (instruction,)), name=name)
    return printed(funcs)[1]


@pytest.mark.parametrize("arch", CUDA_SPECS)
def test_nothing_is_spilled(arch: str) -> None:
    try:
        cubin, = build_cubins([(CudaSource("generated", kernels_text()), arch)], Options())
    except LaunchError as error:
        pytest.skip(str(error))
    assert len(cubin.kernels) == len(CASES) + len(MATRIX)
    for info in cubin.kernels:
        assert (info.spill_stores, info.spill_loads, info.stack_frame) == (0, 0, 0), info.name
    if find_disassembler() is not None:
        found = disassemble(cubin.binary)
        assert all("HMMA" in found[name].counts() for name in MATRIX)


def test_every_function_and_conversion_compiles() -> None:
    texts = []
    for dtype, functions in FUNCTIONS.items():
        x = load_of("a", dtype), load_of("b", dtype)
        made = {fn: Call(fn, x[:1] if fn in UNARY or fn == "neg" else x,
                         "bool" if fn in COMPARED or fn.startswith("is") else dtype) for fn in functions}
        assert dtype == "bool" or {*made} & {*BOTH}
        made |= {f"to_{other}": Cast(x[0], other) for other in (*FUNCTIONS, "float16") if other != dtype}
        texts.append(emit_cuda(kernel(f"functions_{dtype}", {"a": dtype, "b": dtype}, made)).text)
    try:
        cubin, = build_cubins([(CudaSource("functions", "\n".join(texts)), "sm_80")], Options())
    except LaunchError as error:
        pytest.skip(str(error))
    assert len(cubin.kernels) == len(FUNCTIONS)

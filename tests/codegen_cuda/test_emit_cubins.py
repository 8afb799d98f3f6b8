"""Printed kernels as machine code, where NVRTC is installed: all of them compile, nothing is spilled, tensor cores are used."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest
from onnx import TensorProto, helper

from tests.codegen_cuda.generated import printed
from tests.codegen_cuda.test_emit import CASES, MATRIX
from tests.codegen_cuda.test_emit_scalars import BOTH, COMPARED, FUNCTIONS, UNARY, kernel, load_of
from tests.poly.support import on_gpu
from tests.poly.test_tensorize_gpu import halves, scheduled
from tsc.codegen_cuda import nvrtc
from tsc.codegen_cuda.build import Cubin, CudaSource, build_cubins
from tsc.codegen_cuda.emit import emit_cuda
from tsc.codegen_cuda.sass import disassemble, find_disassembler
from tsc.codegen_cuda.specs import CUDA_SPECS
from tsc.config import Options
from tsc.errors import LaunchError
from tsc.kernels import workshop
from tsc.loop_ir.gpu.mma import MMA_F16
from tsc.loop_ir.lower import lower_gpu
from tsc.pipeline import build_package
from tsc.plan.kernel import Kernel
from tsc.poly.pattern.warps import GROUP_TILE, MATRIX_TILE
from tsc.poly.tile import TileConfig
from tsc.runtime.cost import Rates
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


def product_in(config: TileConfig, target: str, wanted: str) -> tuple[Cubin, str]:
    """A product of halves with 1024 columns and terms, in a config, whose text has what is wanted: machine code and text."""
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, 1024]) for name, rows in (("x", "m"), ("w", 1024))]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "product", given,
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    shop = replace(workshop(target, Options(precision="fp16")), pool=lambda group: {config: Rates()})
    try:
        build_package(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), {}, shop)
    except LaunchError as error:
        pytest.skip(str(error))
    (code,) = (code for kernel in shop.made.values() if isinstance(kernel, Kernel) for code in kernel.codes
               if wanted in code.source)
    assert code.config == config
    cubin, = build_cubins([(CudaSource("product", code.source), target)], Options())
    return cubin, code.source


def test_few_instructions_a_matrix_instruction() -> None:
    """A product of halves in tiles of 128 x 256 x 32: the loop over k has at most 2.7 instructions each, and one barrier."""
    found = TileConfig(MATRIX_TILE, (128, 256, 32), warp_tile=(64, 64), stages=4)
    cubin, _ = product_in(found, "sm_80", "mma_tile<f16>")
    (info,) = cubin.kernels
    assert (info.spill_stores, info.spill_loads, info.stack_frame) == (0, 0, 0)
    if find_disassembler() is None:
        pytest.skip("there is no nvdisasm")
    text = next(iter(disassemble(cubin.binary).values())).text.splitlines()
    loop = max(loops(text), key=lambda body: sum(" HMMA" in line for line in body))
    products = sum(" HMMA" in line for line in loop)
    assert products == 64 and sum("BAR.SYNC" in line for line in loop) == 1
    assert len(loop) <= 2.7 * products


def test_a_tile_of_k_of_a_warp_group_is_four_instructions() -> None:
    """Of 64 numbers of k: each thread's sums stay in registers, copies of 16 bytes and one barrier stand beside them."""
    found = TileConfig(GROUP_TILE, (128, 256, 64), warp_tile=(16, 256), stages=3)
    cubin, text = product_in(found, "sm_90a", "wgmma_steps<f16, 256>")
    (info,) = cubin.kernels
    assert (info.spill_stores, info.spill_loads, info.stack_frame) == (0, 0, 0) and info.registers <= 255
    assert "store_shared<" not in text
    if find_disassembler() is None:
        pytest.skip("there is no nvdisasm")
    loop = max(loops(next(iter(disassemble(cubin.binary).values())).text.splitlines()),
               key=lambda body: sum(" HGMMA" in line for line in body))
    counts = {name: sum(f" {name}" in line for line in loop) for name in ("HGMMA", "BAR.SYNC", "LDGSTS", "HMMA", "LDL")}
    assert counts == {"HGMMA": 4, "BAR.SYNC": 1, "LDGSTS": 12, "HMMA": 0, "LDL": 0}


def loops(text: list[str]) -> Iterator[list[str]]:
    """The instructions between a label and a later branch to it."""
    labels: dict[str, int] = {}
    instructions: list[str] = []
    for line in text:
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = len(instructions)
        elif re.match(r"\s*/\*[0-9a-f]+\*/\s+\S", line):
            instructions.append(line)
            back = re.search(r"BRA.*(\.L_x_\d+)", line)
            if back and back[1] in labels:
                yield instructions[labels[back[1]]:]

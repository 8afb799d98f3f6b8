"""GPU-shaped kernels printed as CUDA C++ and run in the emulator: values, races, uninitialised reads, at odd and empty shapes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.codegen_cuda.generated import check, load, printed
from tests.poly import test_gpu, test_gpu_lowered
from tests.poly.support import on_gpu
from tsc.loop_ir.lower import lower_gpu
from tsc.loop_ir.nodes import Func
from tsc.te.compute import Program

CASES = {**{f"plain_{name}": (make, config, 1, sizes) for name, (make, config, sizes) in test_gpu.CASES.items()},
         **test_gpu_lowered.CASES}


@pytest.fixture(scope="module")
def funcs() -> dict[str, tuple[Program, Func]]:
    made = {}
    for name, (make, config, stages, _) in CASES.items():
        program = make()
        made[name] = program, replace(lower_gpu(on_gpu(program, config).func, stages), name=name)
    return made


@pytest.mark.parametrize("mode", ["fast", "lazy", "race", "stress"])
def test_values(funcs: dict[str, tuple[Program, Func]], mode: str) -> None:
    kernels, text = printed({name: func for name, (_, func) in funcs.items()})
    module = load(text)
    assert module.kernels() == {kernel.name for kernel in kernels.values()}
    for name, (program, func) in funcs.items():
        for sizes in CASES[name][3]:
            check(func, kernels[name], module, program, sizes, mode)

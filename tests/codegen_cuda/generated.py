"""Generated kernels in the emulator: printed, built into one module, and run on a Program's inputs."""

from __future__ import annotations

import ctypes
import functools
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from tests.codegen_cuda.emulated import Module, Report, aligned
from tests.poly.support import inputs_for
from tsc.codegen_cuda.build import CudaSource, build_emulated
from tsc.codegen_cuda.emit import CudaKernel, emit_cuda
from tsc.config import Options
from tsc.errors import LaunchError
from tsc.loop_ir.nodes import Func
from tsc.te.compute import Program
from tsc.te.evaluate import evaluate


@functools.cache
def load(text: str) -> Module:
    """The kernels of a text, built. Skips the test where there is no C++ compiler."""
    try:
        binary = build_emulated(CudaSource("generated", text), Options())
    except LaunchError as error:
        pytest.skip(str(error))
    with tempfile.TemporaryDirectory(prefix="tsc-test-") as folder:
        path = Path(folder) / "generated.so"
        path.write_bytes(binary)
        return Module(path)


def launched(func: Func, kernel: CudaKernel, module: Module, inputs: Mapping[str, np.ndarray], sizes: Mapping[str, int],
             mode: str = "fast", seed: int = 1, count: bool = False) -> tuple[Report | None, dict[str, np.ndarray], int]:
    """One launch: its report (None: there are no blocks; what it moves only if asked to `count`), the outputs and the status.
    Outputs and scratch begin as NaN."""
    arrays = {}
    for buffer in func.buffers:
        shape = tuple(extent.evaluate(sizes) for extent in buffer.shape)
        if buffer.name in func.outputs:
            raw = np.full(int(np.prod(shape)) * np.dtype(buffer.dtype).itemsize, 0xFF, np.uint8).view(buffer.dtype)
            arrays[buffer.name] = aligned(raw.reshape(shape))
        else:
            arrays[buffer.name] = aligned(np.ascontiguousarray(inputs[buffer.name], buffer.dtype), writable=False)
    blocks, status = func.blocks.evaluate(sizes), aligned(np.zeros(1, np.uint32))
    scratch = aligned(np.full(max(1, blocks * func.scratch.evaluate(sizes)), 0xFF, np.uint8))
    report = None
    if blocks:
        numbers = [ctypes.c_int64(sizes[size.name]) for size in func.sizes]
        report = module.launch(kernel.name, [*(arrays[b.name] for b in func.buffers), *numbers, scratch, status],
                               grid=(blocks,), block=(max(kernel.threads, 32),), shared=kernel.shared, mode=mode, seed=seed,
                               count=count)
    return report, {name: arrays[name] for name in func.outputs}, int(status[0])


def check(func: Func, kernel: CudaKernel, module: Module, program: Program, sizes: Mapping[str, int], mode: str,
          tolerance: float = 2e-5, seed: int = 1) -> None:
    """One launch ends well, and gives what `program` does in float64."""
    inputs = inputs_for(program, sizes)
    report, found, status = launched(func, kernel, module, inputs, sizes, mode, seed)
    assert report is None or report.ended == "ok", f"{mode} at {dict(sizes)}: {report.ended}: {report.text}"
    assert not status
    expected = evaluate(program, inputs, sizes, "float64")
    for name, values in found.items():
        np.testing.assert_allclose(values, expected[name], rtol=tolerance, atol=tolerance, err_msg=f"{name} at {dict(sizes)}")


def printed(funcs: Mapping[str, Func]) -> tuple[dict[str, CudaKernel], str]:
    """The kernels of Funcs, and all of them as one text."""
    kernels = {name: emit_cuda(func) for name, func in funcs.items()}
    return kernels, "\n".join(kernel.text for kernel in kernels.values())

"""The reference kernels (benchmarks/gpu/references.py) in the emulator: built once a text, run with a report of how it went."""

from __future__ import annotations

import ctypes
import functools
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from benchmarks.gpu.references import REFERENCES, Problem, Reference, Shape
from tests.codegen_cuda.emulated import MODES, U32, Dim3, LaunchOptions, Module, Range, Report, aligned
from tsc.codegen_cuda.build import CudaSource, build_emulated
from tsc.config import Options
from tsc.errors import LaunchError
from tsc.runtime.drivers.host import HostDriver
from tsc.runtime.drivers.protocol import Function, Memory
from tsc.runtime.drivers.stub import STUB_DEVICE

_MAPS = HostDriver(STUB_DEVICE)  # makes tensor maps; launches go past it, for their reports
BY_NAME = {reference.name: reference for reference in REFERENCES}


@dataclass(frozen=True, slots=True)
class Run:
    """How a launch ended and what it left in the output, whose `worst` element is off by that multiple of what is allowed."""

    report: Report
    output: np.ndarray
    worst: float


@functools.cache
def load(text: str) -> Module:
    """The kernels of a source text, built. Skips the test where there is no C++ compiler."""
    try:
        module = build_emulated(CudaSource("reference", text), Options())
    except LaunchError as error:
        pytest.skip(str(error))
    with tempfile.TemporaryDirectory(prefix="tsc-test-") as folder:
        path = Path(folder) / "reference.so"
        path.write_bytes(module)
        return Module(path)


@functools.cache
def problem_of(name: str, shape: Shape) -> Problem:
    """Random inputs for a kernel at a shape, the same each time."""
    return BY_NAME[name].problem(shape, np.random.default_rng(shape))


def execute(reference: Reference, text: str, shape: Shape, mode: str, seed: int = 1, count: bool = False,
            timeout_ms: int = 20_000) -> Run:
    """One launch of the kernel as `text` has it."""
    problem = problem_of(reference.name, shape)
    dtype, sizes = problem.output
    output = aligned(np.full(int(np.prod(sizes)) * np.dtype(dtype).itemsize, 0xFF, np.uint8)).view(dtype).reshape(sizes)
    arrays = [*(aligned(array, writable=False) for array in problem.inputs), output]
    *inputs, target = (Memory(array.ctypes.data, array, array.nbytes) for array in arrays)
    launch = reference.launch(_MAPS, Function(0, None, reference.name), shape, inputs, target)
    ranges = (Range * len(arrays))(*(Range(a.ctypes.data, a.nbytes, int(a.flags.writeable), 0) for a in arrays))
    options = LaunchOptions(
        ctypes.sizeof(LaunchOptions), MODES[mode], seed, 2, int(count), timeout_ms, len(arrays), ranges, 0, 0)
    report = Report(struct_size=ctypes.sizeof(Report))
    load(text).library.tsc_emu_launch(
        reference.name.encode(), Dim3(*launch.grid), Dim3(*launch.block), Dim3(*launch.cluster), U32(launch.shared),
        ctypes.c_void_p(launch.args.table), ctypes.byref(options), ctypes.byref(report))
    return Run(report, output, reference.worst(shape, output, problem.expected))

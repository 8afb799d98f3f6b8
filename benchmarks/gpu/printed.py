"""Kernels that the compiler prints, beside te's evaluation in float64: fixed programs, matrix instructions, random ones.

Made where islpy is: what the GPU's machine gets are texts' binaries and cases.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.gpu.conformance import Array, Case, Parameter, Results
from tests.codegen_cuda import test_emit
from tests.codegen_cuda.generated import printed
from tests.fuzz.check import Run
from tests.poly import programs
from tests.poly.support import inputs_for, on_gpu
from tests.poly.test_tensorize_gpu import halves, scheduled
from tsc.codegen_cuda.emit import CudaKernel
from tsc.loop_ir.gpu.mma import MMA_F16
from tsc.loop_ir.lower import lower_gpu
from tsc.loop_ir.nodes import Func
from tsc.te.evaluate import evaluate

#: Programs with sizes at which they run, and products of matrix instructions.
PROGRAMS = (*test_emit.CASES, *test_emit.MATRIX)
#: The random programs that are tried; some of them are not scheduled for GPUs.
SEEDS = range(500, 720)
#: Sizes of products of matrix instructions: one row past a warp's, and long sums.
_PRODUCTS = ({"M": 1, "N": 1, "K": 1}, {"M": 19, "N": 23, "K": 37}, {"M": 133, "N": 70, "K": 129})


@dataclass(frozen=True, slots=True)
class Printed:
    """The text of all kernels, launches of them, and what these must give."""

    text: str
    cases: list[Case]
    expected: Results


#: Floats are compared as values, not bit by bit: of two zeros a maximum may give either.
_VALUES = float(np.finfo(np.float32).tiny)


def make_printed(names: Collection[str], seeds: range) -> Printed:
    """Those of PROGRAMS of some names, and the random ones of some seeds."""
    fixed = {name: (_plain if name in test_emit.CASES else _matrix)(name) for name in names}
    runs = {**fixed, **test_emit.random_programs(seeds)}
    kernels, text = printed({name: func for name, (func, _) in runs.items()})
    cases: list[Case] = []
    expected: Results = {}
    for name, (func, given) in runs.items():
        for run in given:
            for case, outputs in _launched(name, func, kernels[name], run):
                cases.append(case)
                expected[case.name] = outputs
    return Printed(text, cases, expected)


def _plain(name: str) -> tuple[Func, list[Run]]:
    make, config, stages, sizes = test_emit.CASES[name]
    program = make()
    func = replace(lower_gpu(on_gpu(program, config).func, stages), name=name)
    given = [(at, inputs_for(program, at)) for at in sizes]
    return func, [_run(func, inputs, evaluate(program, inputs, at, "float64"), at) for at, inputs in given]


def _matrix(name: str) -> tuple[Func, list[Run]]:
    config, instruction, transposed = test_emit.MATRIX[name]
    func = scheduled(config, transposed)
    func = halves(func) if instruction is MMA_F16 else func
    func = replace(lower_gpu(func, config.stages, (instruction,)), name=name)
    program = programs.gemm(transposed=transposed)
    runs = []
    for sizes in _PRODUCTS:
        inputs = inputs_for(program, sizes)
        inputs |= {n: np.asarray(inputs[n], np.float16).astype(np.float32) for n in ("a", "w")}  # exact operands
        runs.append(_run(func, inputs, evaluate(program, inputs, sizes, "float64"), sizes))
    return func, runs


def _run(func: Func, inputs: dict[str, Array], expected: dict[str, Array], sizes: Mapping[str, int]) -> Run:
    dtypes = {b.name: b.dtype for b in func.buffers if b.name in func.outputs}
    far = {n: 2e-5 * max(1.0, float(np.abs(expected[n]).max(initial=0))) for n in dtypes}
    return Run(sizes, inputs, {n: expected[n] for n in dtypes}, dtypes, far, 0)


def _launched(name: str, func: Func, kernel: CudaKernel, run: Run) -> Iterator[tuple[Case, tuple[Array, ...]]]:
    """The launch of one run, unless it has no blocks. Outputs begin as NaN; scratch and a status word come last."""
    blocks = func.blocks.evaluate(run.sizes)
    if not blocks:
        return
    arrays: list[Array] = []
    outputs: list[Array] = []
    written: list[int] = []
    close = 0.0
    for buffer in func.buffers:
        shape = tuple(extent.evaluate(run.sizes) for extent in buffer.shape)
        if buffer.name in func.outputs:
            written.append(len(arrays))
            outputs.append(run.expected[buffer.name].astype(buffer.dtype).reshape(shape))
            largest = float(np.abs(outputs[-1][np.isfinite(outputs[-1])].astype(np.float64)).max(initial=0))
            values = _VALUES if buffer.dtype.startswith("float") else 0.0
            close = max(close, values, run.tolerance[buffer.name] / max(largest, 1e-30))
            arrays.append(np.full(int(np.prod(shape)) * np.dtype(buffer.dtype).itemsize, 0xFF, np.uint8).view(buffer.dtype)
                          .reshape(shape))
        else:
            arrays.append(np.ascontiguousarray(run.inputs[buffer.name], buffer.dtype))
    parameters = [Parameter("memory", k) for k in range(len(arrays))]
    parameters += [Parameter("scalar", dtype="int64", value=run.sizes[size.name]) for size in func.sizes]
    parameters += [Parameter("memory", len(arrays)), Parameter("memory", len(arrays) + 1)]
    written.append(len(arrays) + 1)
    arrays += [np.full(max(1, blocks * func.scratch.evaluate(run.sizes)), 0xFF, np.uint8), np.zeros(1, np.uint32)]
    label = f"{name} at {', '.join(f'{size} {value}' for size, value in run.sizes.items())}"
    yield (Case(label, "printed", kernel.name, (blocks, 1, 1), (max(kernel.threads, 32), 1, 1), (1, 1, 1), kernel.shared,
                tuple(parameters), tuple(arrays), tuple(written), close), (*outputs, np.zeros(1, np.uint32)))


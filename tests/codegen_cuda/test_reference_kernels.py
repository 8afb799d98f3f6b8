"""Every reference kernel agrees with float64 NumPy at odd shapes, in all modes of the emulator, and is quick about it."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks.gpu.references import REFERENCES, SHAPES, Reference, Shape
from tests.codegen_cuda.reference_runs import BY_NAME, execute, load
from tsc.codegen_cuda.build import CudaSource, build_emulated
from tsc.config import Options

RUNS = [("fast", 0), ("lazy", 0), ("race", 0), *(("stress", seed) for seed in range(4))]
each = pytest.mark.parametrize("reference", REFERENCES, ids=lambda reference: reference.name)


@each
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_agrees_with_numpy_in_every_mode(reference: Reference, shape: Shape) -> None:
    outputs = []
    for mode, seed in RUNS:
        run = execute(reference, reference.source, shape, mode, seed)
        assert run.report.ended == "ok", (mode, seed, run.report.text)
        assert run.worst <= 1, (mode, seed, run.worst)
        outputs.append(run.output)
    for output in outputs[1:]:
        np.testing.assert_array_equal(output.view(np.uint8), outputs[0].view(np.uint8))


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 257, 1), (65, 33, 1)], ids=str)
@pytest.mark.parametrize("name", ["softmax_f32", "transpose_b32"])
def test_sizes_that_divide_nothing(name: str, shape: Shape) -> None:
    run = execute(BY_NAME[name], BY_NAME[name].source, shape, "race")
    assert run.report.ended == "ok", run.report.text
    assert run.worst <= 1


@each
def test_no_bank_conflicts(reference: Reference) -> None:
    report = execute(reference, reference.source, (200, 264, 1000), "fast", count=True).report
    assert report.shared_wavefronts > 0
    assert report.bank_conflicts == 0, [(line.line, line.bank_conflicts) for line in report.lines[:report.line_count]]


@pytest.mark.parametrize("name", ["gemm_f16_sm80", "transpose_b32"])
def test_global_traffic_is_whole_sectors(name: str) -> None:
    report = execute(BY_NAME[name], BY_NAME[name].source, (128, 256, 64), "fast", count=True).report
    assert report.ideal_sectors > 0
    assert report.global_sectors == report.ideal_sectors


@pytest.mark.parametrize("name", ["gemm_f16_sm80", "gemm_bf16_sm90a"])
def test_emulation_is_quick(name: str, tmp_path: Path) -> None:
    reference = BY_NAME[name]
    load(reference.source)  # skips where nothing can be built
    execute(reference, reference.source, (1, 8, 8), "fast")
    start = time.perf_counter()
    execute(reference, reference.source, (200, 264, 1000), "fast")
    assert time.perf_counter() - start < 1
    # What a kernel costs that was never built before; the emulator's own units were.
    start = time.perf_counter()
    build_emulated(CudaSource(name, f"{reference.source}// {tmp_path}\n"), Options())
    assert time.perf_counter() - start < 4

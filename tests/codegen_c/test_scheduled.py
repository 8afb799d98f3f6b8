"""What the polyhedral stage makes, three ways at odd sizes and size 1: te evaluator, loop-IR interpreter, compiled C."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.loop_ir import funcs
from tests.poly import programs, test_chain
from tsc.codegen_c.build import build_module
from tsc.codegen_c.specs import CPU_SPECS, host_spec
from tsc.config import Options
from tsc.loop_ir.lower import lower
from tsc.loop_ir.nodes import Func
from tsc.loop_ir.oracle.interpret import interpret
from tsc.poly.schedule import schedule_program
from tsc.target import DeviceSpec
from tsc.te.compute import Program
from tsc.te.evaluate import evaluate
from tsc.te.expr import Buffer

PROGRAMS: dict[str, Callable[[], Program]] = {
    "gemm": lambda: programs.gemm(act="gelu"), "gemm_transposed": lambda: programs.gemm(transposed=True),
    "gemm_fixed": lambda: programs.gemm("M", 48, 20), "attention_scores": programs.attention_scores,
    "attention_values": programs.attention_values, "head_split": programs.head_split, "softmax": programs.softmax,
    "layer_norm": programs.layer_norm, "gathered_layer_norm": lambda: programs.layer_norm(20, gather=True),
    **{f"chain_{name}": make for name, make in test_chain.PROGRAMS.items()},
    "transpose": programs.transpose, "concat": programs.concat, "where": programs.where,
    "chosen_columns": programs.chosen_columns, "conv": programs.conv}
CASES = [*((name, host_spec()) for name in PROGRAMS),
         *((name, CPU_SPECS["cpu-generic"]) for name in ("gemm", "attention_values", "layer_norm"))]


@functools.cache
def made(name: str, spec: DeviceSpec) -> Func:
    func = schedule_program(PROGRAMS[name](), spec, None, None, name).func
    return lower(func, spec)


@pytest.fixture(scope="module", autouse=True)
def built_together() -> None:
    """Compile every kernel at once, in parallel; the cache then has each object."""
    spec = host_spec()
    build_module({name: funcs.source(made(name, spec), spec) for name in PROGRAMS}, spec, Options())


def data(buffer: Buffer, sizes: dict[str, int], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    shape = tuple(e.evaluate(sizes) for e in buffer.shape)
    if buffer.dtype == "bool":
        return rng.random(shape) > 0.4
    if buffer.dtype.startswith("int"):
        return rng.integers(0, 2, shape).astype(buffer.dtype)
    return rng.standard_normal(shape).astype(buffer.dtype)


@pytest.mark.parametrize(("name", "spec"), [pytest.param(n, s, id=f"{n}-{s.name}") for n, s in CASES])
def test_three_ways(name: str, spec: DeviceSpec) -> None:
    program, func = PROGRAMS[name](), made(name, spec)
    kernel = funcs.load_kernel(func, spec, Options())
    for seed in (1, 2, 5, 19):
        sizes = {s.name: math.ceil(max(s.lo, seed + i) / s.divisor) * s.divisor for i, s in enumerate(program.sizes)}
        inputs = {b.name: data(b, sizes, np.random.default_rng(seed)) for b in program.inputs}
        expected = evaluate(program, inputs, sizes)
        arrays = inputs | {b.name: np.empty(expected[b.name].shape, b.dtype) for b in program.outputs}

        def compare(what: str, run: Callable[[], object], arrays: dict[str, Any] = arrays, expected: Any = expected) -> None:
            for buffer in program.outputs:
                arrays[buffer.name][...] = 77
            run()
            for buffer in program.outputs:
                np.testing.assert_allclose(arrays[buffer.name], expected[buffer.name], rtol=1e-5, atol=1e-5, err_msg=what)

        if seed < 5:
            compare("interpreted", lambda arrays=arrays, sizes=sizes: interpret(func, arrays, sizes))
        compare("compiled", lambda arrays=arrays, sizes=sizes: funcs.call_kernel(kernel, func, arrays, sizes))

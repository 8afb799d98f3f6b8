"""Convolutions and pooling, three ways and against NumPy in float64, at odd sizes and size 1."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from tests.loop_ir import funcs
from tests.poly.conv_programs import DIMS, WINDOWS, Window, canonical, named, reference, shape_of
from tsc.codegen_c.build import build_module
from tsc.codegen_c.emit import emit_c
from tsc.codegen_c.specs import CPU_SPECS, host_spec
from tsc.config import Options
from tsc.loop_ir.lower import lower
from tsc.loop_ir.nodes import Allocate, For, Func, Store, walk
from tsc.loop_ir.oracle.interpret import interpret
from tsc.poly.schedule import schedule_program
from tsc.target import DeviceSpec
from tsc.te.evaluate import evaluate
from tsc.te.expr import Call
from tsc.te.expr import walk as walk_expr

CASES = [*((name, host_spec()) for name in WINDOWS), *((name, CPU_SPECS["cpu-avx2"]) for name in ("uneven", "depthwise"))]
SIZES = ((1, 1, 1, 1), (2, 3, 5, 2), (1, 7, 19, 3), (1, 2, 83, 1))


@functools.cache
def made(name: str, spec: DeviceSpec) -> tuple[Func, list[str]]:
    scheduled = schedule_program(canonical(WINDOWS[name]).program, spec, None, None, f"{name}_{spec.vector_bytes}")
    return lower(scheduled.func, spec), list(scheduled.log)


@pytest.fixture(scope="module", autouse=True)
def built_together() -> None:
    """Compile every kernel at once, in parallel; the cache then has each object."""
    for spec in dict.fromkeys(s for _, s in CASES):
        build_module({n: funcs.source(made(n, spec)[0], spec) for n, s in CASES if s == spec}, spec, Options())


def inputs(window: Window, sizes: dict[str, int], rng: np.random.Generator) -> dict[str, Any]:
    spatial = [e.evaluate(sizes) for e in window.input_extents()]
    x = rng.standard_normal((sizes["B"], window.channels, *spatial)).astype(np.float32)
    weights = (window.out, window.channels // window.groups, *window.kernel)
    w = {"w": rng.standard_normal(weights).astype(np.float32)} if window.out else {}
    return {"x": x, **w, "bias": rng.standard_normal(window.out or window.channels).astype(np.float32)}


@pytest.mark.parametrize(("name", "spec"), [pytest.param(n, s, id=f"{n}-{s.name}") for n, s in CASES])
def test_three_ways(name: str, spec: DeviceSpec) -> None:
    window, lowered = WINDOWS[name], canonical(WINDOWS[name])
    func, _ = made(name, spec)
    kernel = funcs.load_kernel(func, spec, Options())
    least = {d: r.lo for d, r in window.env().ranges.items()}
    for number, wanted in enumerate(SIZES):
        sizes = {d: max(n, least.get(d, 1)) for d, n in zip(("B", *DIMS), wanted)}
        given, own = inputs(window, sizes, np.random.default_rng(number)), named(lowered, sizes)
        arrays = {b.name: given[lowered.buffers[b.name]].reshape(shape_of(b, own)) for b in lowered.program.inputs}
        expected = reference(window, given["x"], given.get("w"), given["bias"])
        (target,) = lowered.program.outputs

        def compare(what: str, found: Any, expected: Any = expected) -> None:
            np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=2e-5, atol=2e-5, err_msg=what)

        compare("te", evaluate(lowered.program, arrays, own)[target.name])
        arrays[target.name] = np.full(shape_of(target, own), 77, np.float32)
        if number < 2:
            interpret(func, arrays, own)
            compare("interpreted", arrays[target.name])
            arrays[target.name][...] = 77
        funcs.call_kernel(kernel, func, arrays, own)
        compare("compiled", arrays[target.name])


@pytest.mark.parametrize("name", WINDOWS)
def test_patterns_follow_from_accesses(name: str) -> None:
    """What shares operands along another axis is a contraction, everything else over a window a stencil."""
    window = WINDOWS[name]
    _, log = made(name, host_spec())
    shared = window.out > 0 and (window.groups == 1 or name in ("grouped_deep", "grouped_point"))
    assert f"the pattern is {'contraction' if shared else 'stencil'}" in log, log


@pytest.mark.parametrize("spec", ["cpu-avx512", "cpu-avx2"])
@pytest.mark.parametrize("name", ["depthwise", "depthwise_spaced", "depthwise_line", "depthwise_wide", "pool", "grouped"])
def test_windows_accumulate_in_vector_registers(name: str, spec: str) -> None:
    """Their halos are there for whole vectors, so that no vector needs a mask, whatever the device."""
    func, _ = made(name, CPU_SPECS[spec])
    registers = {s.buffer.name for s in walk(func.body) if isinstance(s, Allocate) and s.scope == "register"}
    assert any(b.startswith("acc_") for b in registers), registers
    loops = [s for s in walk(func.body) if isinstance(s, For) and s.kind == "vector"]
    window = [x for s in loops for x in walk(s.body) if isinstance(x, Store) and x.buffer.name in registers]
    assert window and not any(isinstance(n, Call) and n.fn == "select" for x in window for n in walk_expr(x.value))


@pytest.mark.parametrize(("target", "stride", "least", "most"), [
    ("cpu-avx512", 2, 300, 600), ("cpu-avx512", 3, 1, 130), ("cpu-avx2", 2, 300, 600), ("cpu-avx2", 3, 1, 130),
    ("cpu-generic", 4, 1, 180)])
def test_what_is_read_one_by_one_is_not_written_out_by_hundreds(target: str, stride: int, least: int, most: int) -> None:
    """gcc took 14 s over 496 vectors of every third element; those of every second are two loads where vectors have masks."""
    spec = CPU_SPECS[target]
    program = canonical(Window((3, 4), 6, 4, groups=2, strides=(1, stride))).program
    text = emit_c(lower(schedule_program(program, spec, None, None, "spaced").func, spec), spec)
    assert least <= text.count("tsc_spaced") <= most

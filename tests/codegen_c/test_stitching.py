"""Stitched reductions, each one kernel, three ways: te evaluator, interpreter and compiled C, at odd sizes, 1 and 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.codegen_c.test_scheduled import data
from tests.loop_ir import funcs
from tests.poly import programs
from tests.poly.programs import at, axis, buffer, f32
from tests.te.test_factor import arg, attention, softmax, variance
from tsc.codegen_c.build import build_module
from tsc.codegen_c.emit import emit_c
from tsc.codegen_c.specs import host_spec
from tsc.config import Options
from tsc.loop_ir.lower import lower
from tsc.loop_ir.nodes import Func
from tsc.loop_ir.oracle.interpret import interpret
from tsc.poly.schedule import schedule_program
from tsc.te.compute import MAX, MIN, SUM, Compute, Program, SizeParam
from tsc.te.evaluate import evaluate
from tsc.te.expr import Load, add, call, mul
from tsc.te.factored.chunks import cut
from tsc.te.factored.factor import factor


def column_softmax() -> Program:
    """Softmax over the first axis: rows are columns."""
    x, e, out = (buffer(n, "R", "C") for n in ("x", "e", "out"))
    mx, sm = buffer("mx", "C"), buffer("sm", "C")
    r0, r1, r2, r3 = (axis(f"r{i}", "R") for i in range(4))
    c0, c1, c2, c3 = (axis(f"c{i}", "C") for i in range(4))
    return Program(
        (x,), (out,),
        (Compute(mx, (c0,), at(x, r0, c0), (r0,), MAX),
         Compute(e, (r1, c1), call("exp", call("sub", at(x, r1, c1), at(mx, c1)))),
         Compute(sm, (c2,), at(e, r2, c2), (r2,), SUM),
         Compute(out, (r3, c3), call("div", at(e, r3, c3), at(sm, c3)))), (SizeParam("R", 0), SizeParam("C", 0)))


def batch_norm() -> Program:
    """(x - least) / greatest of [N, C, S] over N and S: the reduced axes stand on both sides of the kept one."""
    x, out = buffer("x", "N", "C", "S"), buffer("out", "N", "C", "S")
    low, high = buffer("low", "C"), buffer("high", "C")
    (n0, c0, s0), (n1, c1, s1), (n2, c2, s2) = ((axis(f"n{i}", "N"), axis(f"c{i}", "C"), axis(f"s{i}", "S")) for i in range(3))
    return Program(
        (x,), (out,),
        (Compute(low, (c0,), at(x, n0, c0, s0), (n0, s0), MIN), Compute(high, (c1,), at(x, n1, c1, s1), (n1, s1), MAX),
         Compute(out, (n2, c2, s2), call("sub", at(x, n2, c2, s2), add(at(low, c2), at(high, c2))))),
        tuple(SizeParam(n, 0) for n in "NCS"))


def side_by_side() -> Program:
    """Least, greatest and sum of each row, three outputs that nothing but x connects."""
    x = buffer("x", "R", "C")
    computes = []
    for k, monoid in enumerate((MIN, MAX, SUM)):
        r, c = axis(f"r{k}", "R"), axis(f"c{k}", "C")
        computes.append(Compute(buffer(f"out{k}", "R"), (r,), at(x, r, c), (c,), monoid))
    return Program((x,), tuple(c.target for c in computes), tuple(computes), (SizeParam("R", 0), SizeParam("C", 0)))


def skip_norm() -> Program:
    """RMS norm of x + z, with the sum as a second and the statistic as a third output."""
    x, z, t, out = (buffer(n, "R", "C") for n in ("x", "z", "t", "out"))
    sq, rms = buffer("sq", "R"), buffer("rms", "R")
    (r0, c0), (r1, c1), (r2, _), (r3, c3) = ((axis(f"r{i}", "R"), axis(f"c{i}", "C")) for i in range(4))
    return Program(
        (x, z), (out, t, rms),
        (Compute(t, (r0, c0), add(at(x, r0, c0), at(z, r0, c0))),
         Compute(sq, (r1,), mul(at(t, r1, c1), at(t, r1, c1)), (c1,), SUM),
         Compute(rms, (r2,), call("sqrt", add(at(sq, r2), f32(1e-3)))),
         Compute(out, (r3, c3), call("div", at(t, r3, c3), at(rms, r3)))), (SizeParam("R", 0), SizeParam("C", 0)))


def whole_mean() -> Program:
    """x minus the sum of all of x: no row at all."""
    x, out, sm = buffer("x", "R", "C"), buffer("out", "R", "C"), buffer("sm")
    r0, c0, r1, c1 = axis("r0", "R"), axis("c0", "C"), axis("r1", "R"), axis("c1", "C")
    return Program((x,), (out,), (Compute(sm, (), at(x, r0, c0), (r0, c0), SUM),
                                  Compute(out, (r1, c1), call("sub", at(x, r1, c1), Load(sm, ())))),
                   (SizeParam("R", 0), SizeParam("C", 0)))


def parts(program: Program, names: list[str], chunk: int = 32) -> Program:
    """The kernel over chunks of a reduction that is cut."""
    made = factor(program, names, chunk)
    return cut(made, [c.name for c in made.computes if c.name.endswith("_part")])[0]


def fold(program: Program, names: list[str], chunk: int = 32) -> Program:
    """The kernel that folds what `parts` left."""
    made = factor(program, names, chunk)
    return cut(made, [c.name for c in made.computes if c.name.endswith("_part")])[1]


PROGRAMS: dict[str, Callable[[], Program]] = {
    "column_softmax": column_softmax, "batch_norm": batch_norm, "side_by_side": side_by_side, "skip_norm": skip_norm,
    "whole_mean": whole_mean, "arg_max": arg, "arg_min_last": lambda: arg(MIN, True), "variance": variance,
    "online_softmax": lambda: factor(softmax(), ["mx", "sm"], 16),
    "online_variance": lambda: factor(variance(), ["total", "square"], 16),
    "softmax_parts": lambda: parts(softmax(), ["mx", "sm"]), "softmax_fold": lambda: fold(softmax(), ["mx", "sm"]),
    "variance_parts": lambda: parts(variance(), ["total", "square"]), "arg_parts": lambda: parts(arg(), ["top", "out"]),
    "arg_fold": lambda: fold(arg(), ["top", "out"]), "split_k": lambda: parts(programs.gemm(), ["acc"]),
    "total_parts": lambda: parts(programs.total(), ["out"], 8),
    "column_parts": lambda: parts(programs.column_sums(), ["out"], 8),
    "attention_parts": lambda: parts(attention("early"), ["mx", "sm", "o"], 16),
    "attention_fold": lambda: fold(attention("early"), ["mx", "sm", "o"], 16)}
SIZES = ((1, 1, 1, 1), (3, 33, 17, 5), (5, 1, 40, 2), (17, 70, 1, 3), (2, 16, 32, 1), (4, 0, 3, 3), (0, 4, 4, 4))


@pytest.fixture(scope="module")
def made() -> dict[str, Func]:
    """Every kernel, scheduled; compiled at once, so that the cache then has each object."""
    spec = host_spec()
    found = {name: lower(schedule_program(make(), spec, None, None, name).func, spec) for name, make in PROGRAMS.items()}
    build_module({name: emit_c(func, spec) for name, func in found.items()}, spec, Options())
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_three_ways(name: str, made: dict[str, Func]) -> None:
    program, func = PROGRAMS[name](), made[name]
    kernel = funcs.load_kernel(func, host_spec(), Options())
    for seed, values in enumerate(SIZES):
        sizes = {s.name: max(s.lo, value) for s, value in zip(program.sizes, values)}
        inputs = {b.name: data(b, sizes, np.random.default_rng(seed)) for b in program.inputs}
        expected = evaluate(program, inputs, sizes, "float64")
        arrays: dict[str, Any] = inputs | {b.name: np.empty(expected[b.name].shape, b.dtype) for b in program.outputs}
        runs: dict[str, Callable[[], object]] = {"compiled": lambda a=arrays, s=sizes: funcs.call_kernel(kernel, func, a, s)}
        if seed < 3 or seed > 4:
            runs["interpreted"] = lambda a=arrays, s=sizes: interpret(func, a, s)
        for what, run in runs.items():
            for buffer_ in program.outputs:
                arrays[buffer_.name][...] = 77
            run()
            for buffer_ in program.outputs:
                np.testing.assert_allclose(arrays[buffer_.name], expected[buffer_.name], rtol=1e-4, atol=1e-4,
                                           err_msg=f"{what}, {buffer_.name} at {sizes}")


def test_parts_of_a_row_are_blocks_of_their_own() -> None:
    """One row of 100000 elements is one block as it stands, and as many as it has chunks when it is cut."""
    both = softmax(), parts(softmax(), ["mx", "sm"], 4096)
    spec = host_spec()
    blocks = [lower(schedule_program(p, spec, None, None, "k").func, spec).blocks for p in both]
    assert [b.evaluate({"R": 1, "C": 100_000}) for b in blocks] == [1, 25]

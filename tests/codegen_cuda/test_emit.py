"""GPU-shaped kernels printed as CUDA C++, in the emulator: values, races, uninitialised reads, at odd and empty shapes."""

from __future__ import annotations

import itertools
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.codegen_cuda.generated import check, launched, load, printed
from tests.fuzz.check import Run, compare
from tests.fuzz.check import _lowered as lowered
from tests.fuzz.check import _run as run_of
from tests.fuzz.check import _sizes as sizes_of
from tests.fuzz.generate import random_case
from tests.poly import programs, test_gpu, test_gpu_lowered
from tests.poly.support import inputs_for, on_gpu
from tests.poly.test_gpu import FOUR_WARPS, ONE_WARP
from tests.poly.test_tensorize_gpu import SHORT, SQUARE, TALL, halves, scheduled
from tsc.codegen_c.scalar import Scope
from tsc.codegen_cuda.narrow import comparison_text
from tsc.loop_ir.gpu.mma import MMA_F16, MMA_TF32, WGMMA_F16
from tsc.loop_ir.lower import lower_gpu
from tsc.loop_ir.nodes import Func, Intrin, Stmt, Store, map_children, map_exprs, walk
from tsc.poly import PatternMismatch
from tsc.poly.tile import TileConfig
from tsc.sym import SymExpr, dim
from tsc.te.compute import Program, SizeParam, facts_of
from tsc.te.evaluate import evaluate
from tsc.te.expr import Buffer, Call, Expr, Load, Size, Var, add, index, mul
from tsc.te.expr import map_children as map_operands

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


# -- matrix instructions -----------------------------------------------------------------------------------------

MATRIX = {f"mma_{k}": (config, instruction, transposed) for k, (config, instruction, transposed) in enumerate([
    (SQUARE, MMA_F16, False), (SQUARE, MMA_F16, True), (TALL, MMA_F16, False), (FOUR_WARPS, MMA_TF32, False),
    (SQUARE, MMA_TF32, True), (SHORT, MMA_TF32, False)])}


@pytest.fixture(scope="module")
def matrix() -> dict[str, Func]:
    made = {}
    for name, (config, instruction, transposed) in MATRIX.items():
        func = scheduled(config, transposed)
        func = lower_gpu(halves(func) if instruction is MMA_F16 else func, config.stages, (instruction,))
        assert [s.name for s in walk(func.body) if isinstance(s, Intrin)] == [instruction.name]
        made[name] = replace(func, name=name)
    return made


@pytest.mark.parametrize("mode", ["fast", "race"])
def test_matrix_instructions(matrix: dict[str, Func], mode: str) -> None:
    """Operands that the instruction takes as they are: products are exact, and sums differ by their order alone."""
    kernels, text = printed(matrix)
    module = load(text)
    for name, func in matrix.items():
        for sizes in ({"M": 1, "N": 1, "K": 1}, {"M": 19, "N": 23, "K": 37}, {"M": 16, "N": 8, "K": 16}):
            program = programs.gemm(transposed=MATRIX[name][2])
            inputs = inputs_for(program, sizes)
            inputs |= {n: np.asarray(inputs[n], np.float16).astype(np.float32) for n in ("a", "w")}
            report, found, _ = launched(func, kernels[name], module, inputs, sizes, mode)
            assert report is not None and report.ended == "ok", f"{name}, {mode} at {sizes}: {report and report.text}"
            assert report.mma_instructions > 0
            want = evaluate(program, inputs, sizes, "float64")["out"]
            np.testing.assert_allclose(found["out"], want, rtol=1e-5, atol=1e-5, err_msg=f"{name} at {sizes}")


GROUP = {f"group_{k}": (TileConfig((64, 8, 16), block, warp_tile=(16, block[1]), stages=stages), transposed)
         for k, (block, stages, transposed) in enumerate([
             ((64, 16, 16), 2, False), ((64, 64, 64), 3, False), ((128, 128, 64), 3, False), ((64, 32, 32), 2, True),
             ((128, 256, 32), 2, False), ((64, 128, 64), 4, True)])}


@pytest.fixture(scope="module")
def group() -> dict[str, Func]:
    """Products of halves by warp groups."""
    made = {}
    for name, (config, transposed) in GROUP.items():
        func = on_gpu(programs.gemm(transposed=transposed, dtype="float16"), config).func
        made[name] = replace(lower_gpu(func, config.stages, (WGMMA_F16,)), name=name)
        assert [s.name for s in walk(made[name].body) if isinstance(s, Intrin)] == [WGMMA_F16.name]
    return made


@pytest.mark.parametrize("mode", ["fast", "lazy", "race", "stress"])
def test_warp_groups(group: dict[str, Func], mode: str) -> None:
    """As matrix instructions of a warp; what is written to shared memory is fenced for them."""
    kernels, text = printed(group)
    module = load(text)
    for name, func in group.items():
        program = programs.gemm(transposed=GROUP[name][1], dtype="float16")
        for sizes in ({"M": 1, "N": 1, "K": 1}, {"M": 67, "N": 131, "K": 75}):
            check(func, kernels[name], module, program, sizes, mode)


def test_what_is_not_fenced_is_found(group: dict[str, Func]) -> None:
    kernels, text = printed({"group_1": group["group_1"]})
    module = load(text.replace("fence_async_shared();", ""))
    inputs = inputs_for(programs.gemm(dtype="float16"), {"M": 3, "N": 5, "K": 7})
    report, _, _ = launched(group["group_1"], kernels["group_1"], module, inputs, {"M": 3, "N": 5, "K": 7}, "race")
    assert report is not None and report.ended == "protocol" and "without fence_async_shared" in report.text


# -- data errors, names, element types ---------------------------------------------------------------------------

def test_an_index_out_of_bounds_sets_the_status_and_reads_nothing() -> None:
    make, config, _ = test_gpu.CASES["embedding"]
    program = make()
    func = lower_gpu(on_gpu(program, config).func, 1)
    kernels, text = printed({"embedding": func})
    for table, row, code in ((4, 4, 1), (4, -5, 1), (4, -4, 0), (4, 3, 0), (0, 0, 1)):
        sizes = {"B": 1, "L": 3, "V": table}
        inputs = inputs_for(program, sizes | {"V": max(table, 1)})
        inputs = {name: x[:table] if x.shape[0] == max(table, 1) and x.dtype.kind == "f" and x.ndim == 2 else x
                  for name, x in inputs.items()}
        ids = next(name for name, x in inputs.items() if x.dtype.kind == "i")
        inputs[ids] = np.full_like(inputs[ids], row)
        report, _, status = launched(func, kernels["embedding"], load(text), inputs, sizes)
        assert report is not None and report.ended == "ok" and status == code, (table, row, report and report.text)


def test_names_that_the_text_has_already() -> None:
    """Buffers and sizes that are called as what the text itself uses."""
    program = programs.gemm("M", "N", "K")
    names = {"a": "thread", "w": "status", "b": "float", "out": "scratch"}
    func = lower_gpu(on_gpu(program, ONE_WARP).func, 2)
    kernels, text = printed({"names": renamed(func, names)})
    inputs = inputs_for(program, {"M": 3, "N": 5, "K": 9})
    report, found, _ = launched(renamed(func, names), kernels["names"], load(text),
                                {names[n]: x for n, x in inputs.items()}, {"M": 3, "N": 5, "K": 9})
    assert report is not None and report.ended == "ok"
    want = evaluate(program, inputs, {"M": 3, "N": 5, "K": 9}, "float64")["out"]
    np.testing.assert_allclose(found["scratch"], want, rtol=2e-5, atol=2e-5)


def renamed(func: Func, names: dict[str, str]) -> Func:
    """The same kernel with other names of its arguments."""
    def of(buffer: Buffer) -> Buffer:
        return replace(buffer, name=names.get(buffer.name, buffer.name))

    def expression(e: Expr) -> Expr:
        inner = map_operands(expression, e)
        return replace(inner, buffer=of(inner.buffer)) if isinstance(inner, Load) else inner

    def statement(stmt: Stmt) -> Stmt:
        inner = map_children(statement, stmt)
        return replace(inner, buffer=of(inner.buffer)) if isinstance(inner, Store) else inner

    body = statement(map_exprs(expression, func.body))
    return replace(func, body=body, buffers=tuple(map(of, func.buffers)), outputs=tuple(names.get(n, n) for n in func.outputs))


# -- random programs ---------------------------------------------------------------------------------------------

def random_programs(seeds: range) -> dict[str, tuple[Func, list[Run]]]:
    """What is scheduled for a GPU at all, with data at some sizes."""
    made = {}
    for seed in seeds:
        rng = Random(seed)
        case = random_case(rng)
        runs = [r for most in (1, 3, 17) if (r := run_of(case, sizes_of(case, rng, most), seed)) is not None]
        program, runs = lowered(case, runs) if case.loose else (case.program, runs)
        try:
            func = lower_gpu(on_gpu(program, ONE_WARP).func, 1 + seed % 3)
        except PatternMismatch:
            continue
        made[f"seed_{seed}"] = replace(func, name=f"seed_{seed}"), runs
    return made


@pytest.mark.parametrize("seeds", [range(500, 520), pytest.param(range(520, 720), marks=pytest.mark.slow)], ids=str)
def test_random_programs(seeds: range) -> None:
    made = random_programs(seeds)
    kernels, text = printed({name: func for name, (func, _) in made.items()})
    module = load(text)
    for name, (func, runs) in made.items():
        for run, mode in itertools.product(runs, ("fast", "race")):
            def execute(arrays: dict[str, Any], run: Run = run, mode: str = mode, func: Func = func, name: str = name) -> None:
                report, found, status = launched(func, kernels[name], module, run.inputs, run.sizes, mode)
                assert (report is None or report.ended == "ok") and not status, report and report.text
                for output, values in found.items():
                    arrays[output][...] = values

            compare(run, f"{name}, {mode}", execute)
    assert len(made) > len(seeds) // 8


@pytest.mark.parametrize("fn", ["lt", "le", "gt", "ge"])
def test_comparisons_in_32_bits(fn: str) -> None:
    """What the variables of loops add is compared with all else, however far that is."""
    facts = facts_of((SizeParam("n", -(1 << 62)),)).loop("c", SymExpr.of(0), SymExpr.of(64), 8).loop(
        "d", SymExpr.of(0), SymExpr.of(2), 1)
    scope = Scope(facts, {f"var {v}": v for v in "cd"} | {"size n": "n"}, ())
    sides = (add(Size(dim("n")), Var("d")), mul(index(2), Var("c")))
    for left, right in (sides, sides[::-1]):
        text = comparison_text(Call(fn, (left, right), "bool"), scope, ("c", "d"))
        assert text.startswith("(int32_t(") and comparison_text(Call(fn, (left, right), "bool"), scope, ()) == ""
        for n, c, d in itertools.product((-(1 << 40), -(1 << 30), -3, 0, 15, 16, 17, 112, 1 << 40), (0, 8, 56), (0, 1)):
            names = {"n": n, "c": c, "d": d, "int32_t": int, "clipped": lambda x: max(-(1 << 30), min(1 << 30, x))}
            one, other = (n + d, 2 * c) if left is sides[0] else (2 * c, n + d)
            assert eval(text, names) == {"lt": one < other, "le": one <= other, "gt": one > other, "ge": one >= other}[fn]

"""Attention as one kernel, in the emulator: values in every mode at odd lengths, and what it moves."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import TypeAlias

import numpy as np
import pytest

from tests.codegen_cuda.emulated import Module
from tests.codegen_cuda.generated import launched, load, printed
from tests.loop_ir.test_threads import without_each
from tests.poly.chain_programs import attention_chain
from tests.poly.support import inputs_for
from tsc.codegen_cuda.emit import CudaKernel, emit_cuda
from tsc.errors import InternalError
from tsc.loop_ir.gpu.verify_sync import verify_synchronised
from tsc.loop_ir.nodes import Barrier, Func, Intrin, Wait, map_exprs, walk
from tsc.poly.pattern import IN_STRIPS
from tsc.poly.schedule import schedule_program
from tsc.targets import find
from tsc.te.compute import Program
from tsc.te.evaluate import evaluate
from tsc.te.expr import Cast, Const, Expr, Load, map_children
from tsc.te.factored.strips import scaled_late
from tsc.validate import check_values


def halves(program: Program) -> Program:
    """The same of factors in fp16, and of what is multiplied with them rounded, as `narrow_factors` has them."""
    names = {b.name for b in program.inputs} - {"mask"}

    def visit(expr: Expr) -> Expr:
        inner = map_children(visit, expr)
        if isinstance(inner, Load) and inner.buffer.name in names:
            return Cast(Load(replace(inner.buffer, dtype="float16"), inner.index), "float32")
        return Cast(Cast(inner, "float16"), "float32") if isinstance(inner, Load) and inner.buffer.name == "p" else inner

    return replace(program, inputs=tuple(replace(b, dtype="float16") if b.name in names else b for b in program.inputs),
                   computes=tuple(replace(c, body=visit(c.body)) for c in program.computes))


PROGRAMS = {
    "plain": ("fp32", attention_chain(2, 16)), "guarded": ("tf32", attention_chain(2, 5, guarded=True)),
    "halves": ("fp16", halves(attention_chain(2, 64, guarded=True))),
    "shared": ("fp16", halves(attention_chain(4, 40, hoisted=False, causal=True, past=True, shared=2)))}
Built: TypeAlias = tuple[Mapping[str, CudaKernel], Module]
TOLERANCE = {"fp32": 2e-5, "tf32": 2e-3, "fp16": 2e-3}


@cache
def kernel(name: str) -> Func:
    precision, program = PROGRAMS[name]
    target = find("emu:sm_80", precision)
    made = schedule_program(scaled_late(program), target.spec, None, None, name, forms=IN_STRIPS)
    assert any(line == "the pattern is strips" for line in made.log)
    return target.lower(made.func, target.spec, made.config, None, lambda *_: False)


@pytest.fixture(scope="module")
def built() -> Built:
    kernels, text = printed({name: kernel(name) for name in PROGRAMS})
    return kernels, load(text)


def sizes_of(program: Program, rows: int, length: int) -> dict[str, int]:
    found = {"B": 1, "L": rows, "T": length, "P": max(1, length - rows)}
    return {s.name: found[s.name] for s in program.sizes}


@pytest.mark.parametrize("mode", ["fast", "lazy", "race"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_values(built: Built, name: str, mode: str) -> None:
    precision, program = PROGRAMS[name]
    kernels, module = built
    for rows, length in ((1, 1), (7, 3), (65, 130), (3, 200)) if mode == "fast" else ((7, 70),):
        sizes = sizes_of(program, rows, length)
        inputs = inputs_for(program, sizes)
        report, found, _ = launched(kernel(name), kernels[name], module, inputs, sizes, mode)
        assert report is not None and report.ended == "ok", report and report.text
        np.testing.assert_allclose(found["out"], evaluate(program, inputs, sizes, "float64")["out"], rtol=TOLERANCE[precision],
                                   atol=TOLERANCE[precision], err_msg=f"{name} at {sizes}")


def test_a_masked_row(built: Built) -> None:
    """Of -inf alone: NaN, which a guard makes 0."""
    kernels, module = built
    for name, value in (("plain", np.nan), ("guarded", 0.0)):
        program = PROGRAMS[name][1]
        sizes = {"B": 2, "L": 3, "T": 5}
        inputs = inputs_for(program, sizes)
        inputs["mask"][1] = -np.inf
        _, found, _ = launched(kernel(name), kernels[name], module, inputs, sizes)
        assert np.isfinite(found["out"][0]).all()
        np.testing.assert_array_equal(found["out"][1], value)


def test_what_it_moves(built: Built) -> None:
    """Of keys a tile for each block of rows and phase, of values one; scores and shares never. In loops no bank conflicts."""
    kernels, module = built
    program, func = PROGRAMS["halves"][1], kernel("halves")
    sizes = {"B": 1, "L": 128, "T": 192}
    report, _, _ = launched(func, kernels["halves"], module, inputs_for(program, sizes), sizes, count=True)
    assert report is not None
    blocks, row = 4, 64 * 2
    lanes, warps = 32, 4
    masks = blocks * warps * lanes * 2 * sizes["T"] // 4 * 2 * 4  # each lane reads its columns' for both of its rows
    assert report.global_load_bytes == blocks * 64 * row + blocks * sizes["T"] * row * 3 + masks
    assert report.global_store_bytes == 2 * 128 * 64 * 4
    assert report.mma_instructions == blocks * warps * sizes["T"] // 64 * (2 * 32 + 32)
    assert report.bank_conflicts == blocks * 2 * 2 * 4 * 3  # two folds, two warps each, four reads of rows of four words


@pytest.mark.parametrize(("name", "instruction"), [("guarded", "mma_m16n8k8_tf32"), ("halves", "mma_m16n8k16_f16"),
                                                   ("shared", "mma_m16n8k16_f16")])
def test_all_products_are_on_matrix_instructions(name: str, instruction: str) -> None:
    found = [s.name for s in walk(kernel(name).body) if isinstance(s, Intrin)]
    assert set(found) == {instruction} and len(found) == 3


def test_values_are_compared_where_all_elements_are_too_many() -> None:
    """Of 12 heads, some elements; a wrong kernel is seen."""
    program = attention_chain(12, 64)
    target = find("emu:sm_80", "tf32")
    made = schedule_program(program, target.spec, None, None, "heads", forms=IN_STRIPS)
    func = target.lower(made.func, target.spec, made.config, None, lambda *_: False)
    assert made.scop is not None
    sizes = [{"B": 3, "L": 1, "T": 3}]
    assert check_values(program, func, made.scop.program, sizes).undecided is None
    assert "have to be looked at" in str(check_values(program, func, None, sizes).undecided)

    def wrong(expr: Expr) -> Expr:
        inner = map_children(wrong, expr)
        return Const(0.5, "float32") if inner == Const(0.25, "float32") else inner

    with pytest.raises(InternalError, match="another value"):
        check_values(program, replace(func, body=map_exprs(wrong, func.body)), made.scop.program, sizes)


def test_threads_stay_together() -> None:
    """No element's exponential is a way that some lanes go, and where the keys end is compared in 32 bits."""
    text = emit_cuda(kernel("halves")).text
    assert "? tsc_exp_float32" not in text and text.count("chosen((int32_t(") == 1
    assert not re.search(r"\? \(?acc_1\b[^?]*< T", text)


def test_what_orders_threads_cannot_be_left_out() -> None:
    func = kernel("halves")
    barriers = [s.team for s in walk(func.body) if isinstance(s, Barrier)]
    assert barriers.count("warp") == 1  # a warp's strip is its own
    for body in without_each(func.body, lambda s: isinstance(s, Barrier | Wait)):  # the rows' tile is waited for with the first
        with pytest.raises(InternalError):
            verify_synchronised(replace(func, body=body))

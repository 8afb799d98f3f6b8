"""A kernel with several Variants: named apart from their functions, each held to its own blocks and scratch."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.runtime.plans import straight
from tsc.codegen_c.build import build_module
from tsc.codegen_c.specs import CPU_SPECS
from tsc.config import Options
from tsc.errors import PackageError
from tsc.runtime.executable import Executable
from tsc.runtime.interface import BufferUse, KernelInterface, interface_from_json, interface_to_json, read_interface
from tsc.runtime.package import Module, Package
from tsc.runtime.peak import scratch_bytes
from tsc.runtime.plan import Launch, Plan, Storage, TensorSpec, Variant
from tsc.runtime.plan_json import plan_from_json, plan_to_json
from tsc.sym import Range, SymExpr, ceildiv, dim

SOURCE = """
#include <stdint.h>
typedef struct { void *const *buffers; const int64_t *sizes; } tsc_args;

static void up_to(const tsc_args *a, int64_t begin, int64_t end, float by) {
    const float *x = a->buffers[0];
    float *y = a->buffers[1];
    for (int64_t i = begin; i < end && i < a->sizes[0]; i++)
        y[i] = x[i] + by;
}

int32_t one_by_one(const tsc_args *a, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    up_to(a, begin, end, 1);
    return 0;
}

int32_t by_eights(const tsc_args *a, int64_t begin, int64_t end, void *scratch) {
    *(double *)scratch = 2;
    up_to(a, 8 * begin, 8 * end, (float)*(double *)scratch);
    return 0;
}
"""
N = dim("n")
ONES, EIGHTS = Variant("one_by_one", N), Variant("by_eights", ceildiv(N, 8), SymExpr.of(8))
USES = (BufferUse("float32", 4 * N, False), BufferUse("float32", 4 * N, True))


def interface(*variants: Variant) -> KernelInterface:
    return KernelInterface(USES, (("n", Range(0)),), (), variants)


@pytest.fixture(scope="module")
def module() -> Module:
    """The kernel `add`, with two functions: they add 1 and 2, so that it shows which one ran."""
    kernels = {"add": interface(ONES, EIGHTS)}
    return Module(build_module({"add": SOURCE}, CPU_SPECS["cpu-generic"], Options(), kernels))


def plan(*variants: Variant) -> Plan:
    return straight(
        inputs=(TensorSpec("x", "float32", (N,)),), outputs=(TensorSpec("y", "float32", (N,)),),
        ranges={"n": Range(0)}, guards=(),
        storages=(Storage("input"), Storage("output")), constants=(), copies=(), arena_bytes=SymExpr.of(0),
        launches=(Launch("add", (0, 1), (N,), variants, "node"),))


def executable(module: Module, *variants: Variant) -> Executable:
    return Executable(Package({"cpu-generic": plan(*variants)}, {}, {"cpu-generic": module}))


@pytest.mark.parametrize("variants", [(ONES,), (EIGHTS,), (ONES, EIGHTS), (EIGHTS, ONES)])
@pytest.mark.parametrize("size", [0, 1, 7, 8, 1001])
def test_one_of_them_runs(module: Module, variants: tuple[Variant, ...], size: int) -> None:
    x = np.arange(size, dtype=np.float32)
    y, = executable(module, *variants).run(None, {"x": x})
    np.testing.assert_array_equal(y, x + (1 if variants[0] is ONES else 2))


def test_memory_is_for_the_largest_of_them(module: Module) -> None:
    assert [scratch_bytes(plan(*v)).evaluate({"n": 9}) for v in ((ONES,), (EIGHTS,), (ONES, EIGHTS))] == [0, 64, 64]


@pytest.mark.parametrize("variants", [(ONES, EIGHTS), (EIGHTS,)])
def test_round_trips(variants: tuple[Variant, ...]) -> None:
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan(*variants))))) == plan(*variants)
    assert interface_from_json(json.loads(json.dumps(interface_to_json(interface(*variants))))) == interface(*variants)


@pytest.mark.parametrize("wrong", [
    replace(EIGHTS, blocks=N), replace(EIGHTS, scratch=SymExpr.of(0)), replace(ONES, blocks=N + 1)])
def test_each_is_held_to_its_own_numbers(module: Module, wrong: Variant) -> None:
    other = ONES if wrong.function == EIGHTS.function else EIGHTS
    with pytest.raises(PackageError, match=r"blocks and \d+ bytes of scratch"):
        executable(module, other, wrong).prepare(n=9)


@pytest.mark.parametrize("variants", [[], [["f", "n", "0"]] * 2, [["f", "n"]], [[3, "n", "0"]], None])
def test_variants_that_are_none(variants: object) -> None:
    data = plan_to_json(plan(ONES))
    data["body"][-1]["variants"] = variants
    with pytest.raises(ValueError, match=r"variant|function"):
        plan_from_json(data)


def test_a_function_that_is_not_in_the_binary(module: Module) -> None:
    for name in (b"by_eights", b"one_by_one"):
        with pytest.raises(ValueError, match="no code for its kernel 'add'"):
            read_interface(module.binary.replace(b'"' + name, b'"' + name[::-1]))

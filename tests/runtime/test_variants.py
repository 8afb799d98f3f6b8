"""A kernel with several Variants: named apart from their functions, each held to its own blocks and scratch."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.runtime.plans import one_call, straight
from tsc.codegen_c.build import build_module
from tsc.codegen_c.specs import CPU_SPECS
from tsc.config import Options
from tsc.errors import PackageError
from tsc.runtime.executable import Executable
from tsc.runtime.interface import BufferUse, KernelInterface, interface_from_json, interface_to_json, read_interface
from tsc.runtime.package import Module, Package
from tsc.runtime.peak import scratch_bytes
from tsc.runtime.plan import Call, Launch, Plan, Storage, TensorSpec, Variant
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
ONES, EIGHTS = one_call("one_by_one", N, 2), one_call("by_eights", ceildiv(N, 8), 2, SymExpr.of(8))
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
    one_call("by_eights", N, 2, SymExpr.of(8)), one_call("by_eights", ceildiv(N, 8), 2), one_call("one_by_one", N + 1, 2)])
def test_each_is_held_to_its_own_numbers(module: Module, wrong: Variant) -> None:
    other = ONES if wrong.calls[0].function == "by_eights" else EIGHTS
    with pytest.raises(PackageError, match=r"blocks and \d+ bytes of scratch"):
        executable(module, other, wrong).prepare(n=9)


def listed(*call: object, temporaries: object = ()) -> list[object]:
    return [[list(call)], temporaries]


@pytest.mark.parametrize("variants", [
    [], [listed("f", "n", [0], "0")] * 2, [listed("f", "n", [0])], [listed(3, "n", [0], "0")], None, [[[], []]], [[]],
    [[[["f", "n", [0], "0"]] * 2, []]], [listed("f", "n", 0, "0")], [listed("f", "n", [0], "0", temporaries=["nothing to it"])],
    [listed("f", "n", [0], "0", temporaries=["n"] * 17)]])
def test_variants_that_are_none(variants: object) -> None:
    data = plan_to_json(plan(ONES))
    data["body"][-1]["variants"] = variants
    with pytest.raises(ValueError, match=r"variant|function|call|temporary"):
        plan_from_json(data)


def test_a_function_that_is_not_in_the_binary(module: Module) -> None:
    for name in (b"by_eights", b"one_by_one"):
        with pytest.raises(ValueError, match="no code for its kernel 'add'"):
            read_interface(module.binary.replace(b'"' + name, b'"' + name[::-1]))


# -- several calls and what they leave for each other ----------------------------------------------------------------

IN_STEPS = Variant((Call("one_by_one", N, (0, 2)), Call("by_eights", ceildiv(N, 8), (2, 1), SymExpr.of(8))), (4 * N,))
ARENA = (Storage("arena", 0, SymExpr.of(0), 4 * N), Storage("arena", 0, 64 * ceildiv(4 * N, 64), 4 * N))


def in_steps(temporaries: tuple[int, ...] = (2,), variants: tuple[Variant, ...] = (IN_STEPS,),
             storages: tuple[Storage, ...] = ARENA, more: tuple[Launch, ...] = ()) -> Plan:
    """y = x + 3 by way of a temporary; `more` launches come behind."""
    return straight(
        inputs=(TensorSpec("x", "float32", (N,)),), outputs=(TensorSpec("y", "float32", (N,)),),
        ranges={"n": Range(0)}, guards=(), storages=(Storage("input"), Storage("output"), *storages), constants=(), copies=(),
        arena_bytes=128 * ceildiv(4 * N, 64),
        launches=(Launch("add", (0, 1), (N,), variants, "node", temporaries=temporaries), *more))


@pytest.fixture(scope="module")
def both() -> Module:
    """`add` can be run in two steps, too."""
    kernels = {"add": interface(IN_STEPS), "add_one": interface(one_call("only_one", N, 2))}
    source = SOURCE.replace("one_by_one", "only_one")
    sources = {"add": SOURCE, "only": source.replace("by_eights", "never")}
    return Module(build_module(sources, CPU_SPECS["cpu-generic"], Options(), kernels))


def made(both: Module, plan: Plan) -> Executable:
    return Executable(Package({"cpu-generic": plan}, {}, {"cpu-generic": both}))


@pytest.mark.parametrize("size", [0, 1, 7, 8, 1001])
def test_calls_run_one_after_the_other(both: Module, size: int) -> None:
    x = np.arange(size, dtype=np.float32)
    executable = made(both, in_steps())
    for n in (size, size // 2, size):
        y, = executable.run(None, {"x": x[:n]})
        np.testing.assert_array_equal(y, x[:n] + 3)
    profile = executable.profile({"x": x})
    assert [(row.kernel, row.calls) for row in profile.kernels] == [("add", 1)]


BEHIND = Launch("add_one", (2, 1), (N,), (one_call("only_one", N, 2),), "behind")
SWAPPED = Variant((replace(IN_STEPS.calls[0], args=(2, 0)), IN_STEPS.calls[1]), IN_STEPS.temporaries)


@pytest.mark.parametrize(("plan", "message"), [
    (in_steps(temporaries=()), "0 temporaries, which are not as many"),
    (in_steps(temporaries=(2, 3)), "2 temporaries, which are not as many"),
    (in_steps(temporaries=(0,)), "temporary that it uses otherwise"),
    (in_steps(temporaries=(9,)), "storage that does not exist"),
    (in_steps(more=(BEHIND,)), "read what nobody has written"),
    (in_steps(variants=(SWAPPED,)), "none of its variants"),
    (in_steps(variants=(replace(IN_STEPS, calls=IN_STEPS.calls[:1]),)), "none of its variants"),
    (in_steps(variants=(replace(IN_STEPS, temporaries=()),)), "none of its variants"),
    (in_steps(storages=(replace(ARENA[0], bytes=4 * N - 4), ARENA[1])), r"a temporary of it has 36 bytes and storage 2 32"),
], ids=lambda value: value[:24] if isinstance(value, str) else "")
def test_temporaries_that_are_none(both: Module, plan: Plan, message: str) -> None:
    with pytest.raises(PackageError, match=message):
        made(both, plan).prepare(n=9)


def test_a_temporary_shares_no_memory_with_what_is_alive(both: Module) -> None:
    first = Launch("add_one", (0, 3), (N,), (one_call("only_one", N, 2),), "first")
    last = replace(BEHIND, args=(3, 1))
    plan = in_steps(storages=(ARENA[0], replace(ARENA[1], offset=SymExpr.of(0))))
    middle, = plan.launches
    binds = tuple(step for step in plan.body if step is not middle)
    with pytest.raises(PackageError, match="two values in the same place"):
        made(both, replace(plan, body=(*binds, first, middle, last))).prepare(n=9)


def test_a_call_of_more_than_there_is() -> None:
    wrong = replace(IN_STEPS, calls=(replace(IN_STEPS.calls[0], args=(0, 3)), IN_STEPS.calls[1]))
    with pytest.raises(ValueError, match="more than its 3 buffers and temporaries"):
        interface_from_json(json.loads(json.dumps(interface_to_json(interface(wrong)))))

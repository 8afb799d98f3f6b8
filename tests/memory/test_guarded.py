"""The guarded mode itself: kernels that touch what is not theirs are found, each in a run that names it; right ones pass."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from tests.memory.cases import TARGETS, lacking, samples
from tests.memory.guarded import FILLS, FLUSHES, MemoryFault, check_guarded, computed_with_unwritten, run_guarded
from tests.memory.mutate import Mutation, built, move_masks, shift_loads, shift_stores
from tests.runtime.plans import launched, straight
from tsc.codegen_c.build import build_module
from tsc.codegen_c.specs import CPU_SPECS
from tsc.config import Options
from tsc.errors import InputError, ShapeError
from tsc.runtime.package import Module, Package
from tsc.runtime.plan import Copy, Storage, TensorSpec
from tsc.sym import ZERO, Range, ceildiv, dim

#: t = x + w by way of scratch, then y = 2 * t, eight elements a block, masked at the end; each macro breaks one thing.
KERNELS = r"""
#include <stdint.h>
#include <string.h>
#ifndef SHIFT_READ
#define SHIFT_READ 0
#endif
#ifndef SHIFT_WRITE
#define SHIFT_WRITE 0
#endif
#ifndef SCRATCH_READ
#define SCRATCH_READ 0
#endif
typedef struct { void *const *buffers; const int64_t *sizes; } tsc_args;

int32_t add(const tsc_args *a, int64_t begin, int64_t end, void *scratch) {
  const float *x = a->buffers[0], *w = a->buffers[1];
  float *t = a->buffers[2], *row = scratch;
  int64_t n = a->sizes[0];
  for (int64_t b = begin; b < end; ++b) {
    int64_t lanes = n - 8 * b < 8 ? n - 8 * b : 8;
#ifdef READ_ALL_LANES
    lanes = 8;
#endif
    for (int64_t l = 0; l < lanes; ++l) row[l] = x[8 * b + l + SHIFT_READ] + w[(8 * b + l) % 3];
#ifdef WRITE_INPUT
    ((float *)x)[8 * b] = 1;
#endif
#ifdef SHIFT_TOO_FAR
    row[0] = (float)(1 << (n + 25));
#endif
#ifdef CAST_TOO_LARGE
    row[0] = (float)(int32_t)(x[0] * 1e30f);
#endif
#ifdef WRITE_ALL_LANES
    lanes = 8;
#endif
    for (int64_t l = 0; l < lanes; ++l) t[8 * b + l + SHIFT_WRITE] = row[l + SCRATCH_READ];
  }
  return 0;
}

int32_t twice(const tsc_args *a, int64_t begin, int64_t end, void *scratch) {
  const float *t = a->buffers[0];
  float *y = a->buffers[1], *wide = scratch;
  int64_t n = a->sizes[0];
  for (int64_t b = begin; b < end; ++b) {
    int64_t lanes = n - 8 * b < 8 ? n - 8 * b : 8, counted = lanes;
#ifdef MASK_ONE_LESS
    counted = lanes - 1;
#endif
    for (int64_t l = 0; l < counted; ++l) wide[l] = t[8 * b + l];
#ifdef COMPUTE_ALL_LANES
    for (int64_t l = 0; l < 8; ++l) wide[l] *= 2;
#else
    for (int64_t l = 0; l < lanes; ++l) wide[l] *= 2;
#endif
#ifdef STATUS
    if (b == 0) return 1;
#endif
#ifdef HANG
    for (volatile int forever = 1; forever;) {}
#endif
#ifdef FORGET
    if (b == 0) lanes -= 1;
#endif
    for (int64_t l = 0; l < lanes; ++l) y[8 * b + l] = wide[l];
  }
  return 0;
}
"""
N = dim("n")


def text(**broken: int | None) -> str:
    """KERNELS with macros defined."""
    return "".join(f"#define {name} {'' if value is None else f'({value})'}\n" for name, value in broken.items()) + KERNELS


def package(**broken: int | None) -> Package:
    """x: float32[n], w: float32[3] constant -> y = 2 * (x + w[i % 3]), z = x; with macros defined."""
    spec = CPU_SPECS["cpu-generic"]
    binary = build_module({"kernels": text(**broken)}, spec, Options())
    plan = straight(
        inputs=(TensorSpec("x", "float32", (N,)),),
        outputs=(TensorSpec("y", "float32", (N,)), TensorSpec("z", "float32", (N,))),
        ranges={"n": Range(0)}, guards=(),
        storages=(Storage("input"), Storage("constant"), Storage("arena", 0, ZERO, 4 * N), Storage("output"),
                  Storage("output", 1)),
        constants=("w",),
        launches=(launched("add", (0, 1, 2), (N,), ceildiv(N, 8), 4 * (ZERO + 8), "first"),
                  launched("twice", (2, 3), (N,), ceildiv(N, 8), 4 * (ZERO + 8), "second", ("a bad block",))),
        copies=(Copy(0, 4, 4 * N),), arena_bytes=4 * N)
    return Package({"cpu-generic": plan}, {"w": np.arange(3, dtype=np.float32)}, {spec.name: Module(binary, spec.cpu_flags)})


def data(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.float32) + 1


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 1024, 1031])
def test_right_kernels_pass(count: int) -> None:
    x = data(count)
    y, z = check_guarded(package(), {"x": x})
    np.testing.assert_array_equal(y, 2 * (x + np.resize(np.arange(3, dtype=np.float32), count)))
    np.testing.assert_array_equal(z, x)
    assert computed_with_unwritten(package(), {"x": x}) == []


@pytest.mark.parametrize(("broken", "message"), [
    ({"SHIFT_READ": 1}, "'add' of node 'first' .* SIGSEGV 0 bytes behind the end of input 'x'"),
    ({"SHIFT_READ": -1}, "'add' of node 'first' .* SIGSEGV 4 bytes before the start of input 'x'"),
    ({"READ_ALL_LANES": None}, "SIGSEGV 0 bytes behind the end of input 'x'"),
    ({"SHIFT_WRITE": -1}, "wrote . bytes before the start of the value at 0 of the arena"),
    ({"WRITE_ALL_LANES": None}, "SIGSEGV 0 bytes behind the end of the value at 0 of the arena"),
    ({"SCRATCH_READ": 1}, "SIGSEGV 0 bytes behind the end of the scratch of"),
    ({"WRITE_INPUT": None}, "SIGSEGV at byte .* of input 'x'"),
    ({"MASK_ONE_LESS": None}, "output 'y' .* depends on what nobody wrote"),
    ({"FORGET": None}, "output 'y' .* depends on what nobody wrote: 4 bytes differ"),
], ids=lambda value: next(iter(value)) if isinstance(value, dict) else "")
def test_a_broken_kernel_is_found(broken: dict[str, int | None], message: str) -> None:
    with pytest.raises(MemoryFault, match=message):
        check_guarded(package(**broken), {"x": data(1031)})


def test_what_a_buffer_leaves_of_its_pages_is_watched() -> None:
    with pytest.raises(MemoryFault, match="wrote 1 bytes before the start of the value at 0 of the arena"):
        run_guarded(package(SHIFT_WRITE=-1), {"x": data(5)}, "end")
    with pytest.raises(MemoryFault, match="wrote 0 bytes behind the end of the value at 0 of the arena"):
        run_guarded(package(SHIFT_WRITE=1), {"x": data(5)}, "start")
    with pytest.raises(MemoryFault, match=r"'add' .* SIGSEGV 4 bytes before the start of the value at 0 of the arena"):
        run_guarded(package(SHIFT_WRITE=-1), {"x": data(5)}, "start")


def test_lanes_that_nobody_wrote_are_seen_in_the_flags_though_no_result_depends_on_them() -> None:
    wide = package(COMPUTE_ALL_LANES=None)
    check_guarded(wide, {"x": data(13)})
    assert computed_with_unwritten(wide, {"x": data(13)}) == ["twice (node 'second')"]
    assert computed_with_unwritten(wide, {"x": data(16)}) == []


@pytest.mark.parametrize("flush", FLUSHES)
@pytest.mark.parametrize("fill", FILLS)
def test_errors_of_the_data_stay_errors_of_the_data(flush: str, fill: str) -> None:
    with pytest.raises(InputError, match=r"a bad block .in the kernel of node 'second'"):
        run_guarded(package(STATUS=None), {"x": data(9)}, flush, fill)  # type: ignore[arg-type]
    with pytest.raises(ShapeError):
        run_guarded(package(), {"x": data(4).reshape(2, 2)}, flush, fill)  # type: ignore[arg-type]


def test_a_kernel_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.memory.guarded.SECONDS", 1)
    with pytest.raises(MemoryFault, match=r"'twice' .* ended with signal 14"):
        run_guarded(package(HANG=None), {"x": data(9)})


# -- compiled kernels, broken just before they are printed ---------------------------------------------------------

# Which byte of an element of four a fault names is the CPU's to say: Intel's names the last of a masked store, AMD's the first.
@pytest.mark.parametrize(("name", "target"), [*(("Add-0", target) for target in TARGETS), ("Softmax-0", "cpu-avx512")])
@pytest.mark.parametrize(("mutation", "message"), [
    (partial(shift_loads, by=1), r"SIGSEGV [0-3] bytes behind the end of input"),
    (partial(shift_loads, by=-1), r"SIGSEGV 4 bytes before the start of input"),
    (partial(shift_stores, by=1), r"SIGSEGV [0-3] bytes behind the end of output"),
    (partial(shift_stores, by=-1), r"(before the start of output)|(depends on what nobody wrote)"),
    (partial(move_masks, by=1), r"SIGSEGV [0-3] bytes behind the end of (input|output)"),
    (partial(move_masks, by=-1), r"depends on what nobody wrote"),
], ids=["read one past", "read one before", "write one past", "write one before", "one lane more", "one lane less"])
def test_broken_loops_are_found(mutation: Mutation, message: str, name: str, target: str) -> None:
    if reason := lacking(target, "gcc"):
        pytest.skip(reason)
    case = samples()[name]
    with pytest.raises(MemoryFault, match=message):
        check_guarded(built(case, target, mutation), case.feeds[0])

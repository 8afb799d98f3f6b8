"""Hand-written kernels, built by whatever C compiler there is, to test the runtime without the compiler above it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.runtime import region_plans
from tests.runtime.plans import interface, launched, straight
from tsc.codegen_c.build import build_module
from tsc.codegen_c.specs import CPU_SPECS
from tsc.config import Options
from tsc.runtime.executable import Executable
from tsc.runtime.package import Module, Package
from tsc.runtime.plan import Copy, Plan, Storage, TensorSpec
from tsc.sym import ONE, ZERO, Guard, Range, SymExpr, ceildiv, dim

KERNELS = r"""
#include <stdint.h>
#include <string.h>
typedef struct { void *const *buffers; const int64_t *sizes; } tsc_args;
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* t[r][c] = x[r][c] + w[c], one block a row, by way of scratch */
int32_t add_row(const tsc_args *a, int64_t begin, int64_t end, void *scratch) {
    const float *x = a->buffers[0], *w = a->buffers[1];
    float *y = a->buffers[2], *row = scratch;
    int64_t c = a->sizes[1];
    for (int64_t r = begin; r < end; ++r) {
        for (int64_t j = 0; j < c; ++j) row[j] = x[r * c + j] + w[j];
        memcpy(y + r * c, row, (size_t)c * 4);
    }
    return 0;
}

/* y[i] = 2 * t[i] + t[rows-1-row(i)][...] : reads what other blocks of the launch before wrote; 16 elements a block */
int32_t mirror(const tsc_args *a, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    const float *t = a->buffers[0];
    float *y = a->buffers[1];
    int64_t rows = a->sizes[0], c = a->sizes[1], n = rows * c;
    for (int64_t i = begin * 16; i < least(end * 16, n); ++i) y[i] = 2 * t[i] + t[(rows - 1 - i / c) * c + i % c];
    return 0;
}

/* y[i] = table[ids[i]]; status 1 when out of bounds */
int32_t gather(const tsc_args *a, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    const float *table = a->buffers[0];
    const int64_t *ids = a->buffers[1];
    float *y = a->buffers[2];
    int32_t status = 0;
    for (int64_t i = begin; i < end; ++i) {
        int64_t id = ids[i];
        if (id < 0 || id >= a->sizes[1]) { status = 1; id = 0; }
        y[i] = table[id];
    }
    return status;
}

/* y[0] += 1, one block */
int32_t bump(const tsc_args *a, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    if (begin == 0 && end > 0) ((float *)a->buffers[0])[0] += 1;
    return 0;
}
"""


R, C = dim("r"), dim("c")


INTERFACES = {
    name: interface(name, *buffers, **more) for name, buffers, more in (
        ("add_row", (("float32", R * C, False), ("float32", C, False), ("float32", R * C, True)),
         {"sizes": ("r", "c"), "blocks": R, "scratch": 4 * C}),
        ("mirror", (("float32", R * C, False), ("float32", R * C, True)), {"sizes": ("r", "c"), "blocks": ceildiv(R * C, 16)}),
        ("gather", (("float32", C, False), ("int64", R, False), ("float32", R, True)), {"sizes": ("r", "c"), "blocks": R}),
        ("bump", (("float32", ONE, True),), {}))
}


@pytest.fixture(scope="session")
def binary() -> bytes:
    """A shared object of KERNELS and the runtime."""
    return build_module({"kernels": KERNELS}, CPU_SPECS["cpu-generic"], Options(), INTERFACES)


def chain_plan() -> Plan:
    """t = x + w; y = mirror(t); z = x passed through; over x: float32[n, c], c at most 64, n + c even."""
    n, c = dim("n"), dim("c")
    return straight(
        inputs=(TensorSpec("x", "float32", (n, c)), TensorSpec("w", "float32", (c,))),
        outputs=(TensorSpec("y", "float32", (n, c)), TensorSpec("z", "float32", (n, c))),
        ranges={"n": Range(), "c": Range(1, 64)},
        guards=(Guard("==", (n + c) % 2, ZERO, "the parity node"),),
        storages=(Storage("input", 0), Storage("input", 1), Storage("arena", 0, SymExpr.of(64), 4 * n * c),
                  Storage("output", 0), Storage("output", 1)),
        constants=(),
        launches=(launched("add_row", (0, 1, 2), (n, c), n, 4 * c, "first"),
                  launched("mirror", (2, 3), (n, c), ceildiv(n * c, 16), ZERO, "second")),
        copies=(Copy(0, 4, 4 * n * c),),
        arena_bytes=4 * n * c + 64)


def gather_plan(rows: int) -> Plan:
    """y = table[ids] with a constant table of `rows`."""
    n = dim("n")
    return straight(
        inputs=(TensorSpec("ids", "int64", (n,)),), outputs=(TensorSpec("y", "float32", (n,)),),
        ranges={"n": Range(0)}, guards=(),
        storages=(Storage("constant", 0), Storage("input", 0), Storage("output", 0)), constants=("table",),
        launches=(
            launched("gather", (0, 1, 2), (n, SymExpr.of(rows)), n, ZERO, "lookup", ("index out of bounds of 'table'",)),),
        copies=(), arena_bytes=ZERO)


def bump_plan(launches: int) -> Plan:
    """y[0] starts at 0 from x and is bumped by many launches of one block, with wide ones between."""
    n = dim("n")
    wide = launched("add_row", (0, 1, 2), (n, ONE), n, SymExpr.of(4), "wide")
    bump = launched("bump", (3,), (), ONE, ZERO, "bump")
    return straight(
        inputs=(TensorSpec("x", "float32", (n, ONE)), TensorSpec("w", "float32", (ONE,))),
        outputs=(TensorSpec("y", "float32", (n, ONE)), TensorSpec("count", "float32", (ONE,))),
        ranges={"n": Range()}, guards=(),
        storages=(Storage("input", 0), Storage("input", 1), Storage("output", 0), Storage("output", 1)), constants=(),
        launches=(launched("add_row", (1, 1, 3), (ONE, ONE), ONE, SymExpr.of(4), "start"), *(wide, bump, bump) * launches),
        copies=(), arena_bytes=ZERO)


def expected_chain(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """What `chain_plan` computes."""
    t = x + w
    return 2 * t + t[::-1]


@pytest.fixture
def chain(binary: bytes) -> Package:
    return Package({"cpu-generic": chain_plan()}, {}, {"cpu-generic": Module(binary)}, ("fuse: first: alone",))


@pytest.fixture
def lookup(binary: bytes) -> Callable[[np.ndarray], Package]:
    return lambda table: Package({"cpu-generic": gather_plan(len(table))}, {"table": table}, {"cpu-generic": Module(binary)})


@pytest.fixture
def bumps(binary: bytes) -> Package:
    return Package({"cpu-generic": bump_plan(20)}, {}, {"cpu-generic": Module(binary)})


@pytest.fixture
def expected() -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    return expected_chain


@pytest.fixture(scope="session")
def made() -> Callable[..., Executable]:
    """An Executable of a Plan over the kernels of `region_plans`."""
    binary = build_module({"kernels": region_plans.KERNELS}, CPU_SPECS["cpu-generic"], Options(), region_plans.INTERFACES)
    return lambda plan, threads=1: Executable(Package({"cpu-generic": plan}, {}, {"cpu-generic": Module(binary)}), threads)

"""The emulation itself: its arithmetic is AVX-512's; code for that target runs, is right, touches nothing beyond a buffer."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.emulated import avx512
from tests.machine import c_compiler

ROOT = Path(__file__).resolve().parents[2]
#: Tests that run code for a target and compare it with an oracle, a few of each kind.
TESTS = ("tests/ops/test_compiled_samples.py", "tests/codegen_c/test_math.py", "tests/memory/test_guarded.py",
         "tests/graph/test_apart.py", "tests/graph/test_bfloat_products.py")
CHOSEN = "Softmax or MatMul or Concat or Erf or accuracy or (cpu-avx512 and not whole_products) or test_products"

CALLS = r"""
typedef emulated_float16 *lanes;
void scale(lanes p, lanes n, lanes y) { *y = emulated_scale(*p, *n); }
void fma16(lanes a, lanes b, lanes c) { *c = emulated_fma_floats(*a, *b, *c); }
void move(const float *p, float *y, int mask) { emulated_store(y, emulated_load(p, (emulated_float16){0}, mask), mask); }
"""


def aligned(values: np.ndarray) -> np.ndarray:
    """Sixteen floats on 64 bytes."""
    room = np.zeros(32, np.float32)
    start = -room.ctypes.data % 64 // 4
    room[start:start + 16] = values
    return room[start:start + 16]


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if not {"avx2", "fma"} <= avx512.cpu.read_cpu_flags():
        pytest.skip("this machine lacks avx2 or fma")
    folder = tmp_path_factory.mktemp("emulated")
    (folder / "calls.c").write_text(CALLS, encoding="utf-8")
    subprocess.run([*c_compiler().split(), "-O2", "-w", "-fPIC", "-shared", "-mavx2", "-mfma", "-ffp-contract=off", "-include",
                    avx512.HEADER, "calls.c", "-o", "calls.so"], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "calls.so"))


def test_scaling_is_rounded_once(calls: ctypes.CDLL) -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        p = aligned(rng.uniform(-2, 2, 16).astype(np.float32))
        n = aligned(rng.integers(-160, 140, 16).astype(np.float32))
        p[:4], n[:4] = [np.inf, -np.inf, np.nan, 0], [-3, 4000, 5, -4000]
        y = aligned(np.zeros(16))
        calls.scale(*(ctypes.c_void_p(x.ctypes.data) for x in (p, n, y)))
        with np.errstate(over="ignore"):
            want = np.ldexp(p.astype(np.float64), np.clip(n, -1000, 1000).astype(int)).astype(np.float32)
        np.testing.assert_array_equal(y, want)


def test_products_are_fused(calls: ctypes.CDLL) -> None:
    a = aligned(np.full(16, 1 + 2.0 ** -12))
    c = aligned(np.full(16, -(1 + 2.0 ** -11)))
    calls.fma16(*(ctypes.c_void_p(x.ctypes.data) for x in (a, a, c)))
    np.testing.assert_array_equal(c, np.full(16, 2.0 ** -24, np.float32))


@pytest.mark.parametrize("mask", [0, 1, 0x8000, 0x5AA5, 0xFFFF])
def test_masked_lanes_are_left_alone(calls: ctypes.CDLL, mask: int) -> None:
    x, y = np.arange(1, 17, dtype=np.float32), np.full(16, -1, np.float32)
    calls.move(ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data), mask)
    lanes = (mask >> np.arange(16) & 1).astype(bool)
    np.testing.assert_array_equal(y, np.where(lanes, x, -1))


@pytest.mark.skipif(not avx512.needed(), reason="this machine has AVX-512 itself, or lacks AVX2")
def test_code_for_the_target_runs_and_is_right() -> None:
    command = [sys.executable, "-m", "pytest", "--emulate", "-p", "no:cacheprovider", "-k", CHOSEN, *TESTS]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout

"""Words of whole numbers in C, scalar and in vectors, against their meaning; and register tiles of them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codegen_c.test_math import apply
from tests.loop_ir import funcs
from tests.machine import runnable
from tests.poly import programs
from tsc.codegen_c.emit import emit_c
from tsc.loop_ir.lower import lower
from tsc.loop_ir.marks import PAIR_TILE, QUAD_TILE
from tsc.poly.schedule import schedule_program
from tsc.target import DeviceSpec
from tsc.te.evaluate import evaluate
from tsc.te.intrinsics import MEANING

Array = np.ndarray[tuple[int, ...], np.dtype[np.int32]]


def numbers(*shape: int) -> Array:
    """Among them those whose parts are the least and the greatest."""
    rng = np.random.default_rng(sum(shape))
    ends = np.array([0, -1, 0x7FFF7FFF, -0x7FFF8000, -0x7F7F7F80, 0x7F7F7F7F, -(1 << 31)], np.int32)
    found = rng.integers(-(1 << 31), 1 << 31, shape).astype(np.int32)
    return np.where(rng.random(shape) < 0.3, rng.choice(ends, shape), found).astype(np.int32)


@pytest.mark.parametrize("spec", runnable(), ids=lambda s: s.name)
@pytest.mark.parametrize(("fn", "arguments"), [("pair", 2), ("quad", 4), ("dot_pair", 2), ("dot_quad", 2)])
def test_vectors_and_a_rest(fn: str, arguments: int, spec: DeviceSpec) -> None:
    given = [numbers(16 * 9 + 7 + k)[k:] for k in range(arguments)]
    np.testing.assert_array_equal(apply(fn, "int32", *given, spec=spec), MEANING[fn](*given))


@pytest.mark.parametrize("spec", runnable(), ids=lambda s: s.name)
@pytest.mark.parametrize(("parts", "dot"), [(2, PAIR_TILE), (4, QUAD_TILE)])
def test_register_tiles(parts: int, dot: str, spec: DeviceSpec) -> None:
    """One word a step where a device has the instruction; else as whatever it computes."""
    program = programs.words(parts)
    func = lower(schedule_program(program, spec, None, None, f"words_{parts}").func, spec)
    tiles = {PAIR_TILE: " = tsc_dot_int32x", QUAD_TILE: " = tsc_dot_bytes_int32x"}
    assert (tiles[dot] in emit_c(func, spec)) == (dot in spec.intrinsics)
    for m, n, k in ((1, 1, 1), (7, 64, 5), (13, 65, 3), (6, 131, 17)):
        given, out = {"w": numbers(m, k), "x": numbers(n, k)}, np.zeros((m, n), np.int32)
        sizes = {"M": m, "N": n, "K": k}
        funcs.run_compiled(func, spec, {**given, "out": out}, sizes)
        np.testing.assert_array_equal(out, evaluate(program, given, sizes)["out"])

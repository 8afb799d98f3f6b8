"""Each Func four times: NumPy in float64, the interpreter before and after lowering, compiled C; at odd sizes and size 1."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.loop_ir import funcs
from tests.machine import runnable
from tsc.codegen_c.specs import CPU_SPECS, host_spec
from tsc.errors import InputError
from tsc.loop_ir.lower import lower
from tsc.loop_ir.nodes import Func
from tsc.loop_ir.oracle.interpret import interpret
from tsc.target import DeviceSpec

Arrays = dict[str, np.ndarray[Any, Any]]
SPECS = [pytest.param(spec, id=spec.name) for spec in runnable()]


def random(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


erf = np.vectorize(math.erf, otypes=[np.float64])


def agree(func: Func, spec: DeviceSpec, arrays: Arrays, sizes: dict[str, int], expected: np.ndarray[Any, Any],
          interpreted: bool = True, tolerance: float = 2e-6) -> None:
    (output,) = func.outputs
    lowered = lower(func, spec)

    def compare(what: str, run: Callable[[], object]) -> None:
        arrays[output][...] = 77
        run()
        np.testing.assert_allclose(arrays[output], expected, rtol=tolerance, atol=tolerance, err_msg=what)

    if interpreted:
        compare("interpreted before lowering", lambda: interpret(func, arrays, sizes))
        compare("interpreted after lowering", lambda: interpret(lowered, arrays, sizes))
    compare("compiled", lambda: funcs.run_compiled(lowered, spec, arrays, sizes))


@pytest.mark.parametrize("spec", SPECS)
def test_gemm_gelu(spec: DeviceSpec) -> None:
    mr, nr = spec.instr_tile
    for m, n, k in ((1, 1, 1), (mr, nr, 3), (2 * mr + 1, 2 * nr + 5, 2), (67, 131, 37)):
        x, w, b = random(m, k), random(k, n), random(n)
        z = x.astype(np.float64) @ w + b
        agree(funcs.gemm_gelu("N", "K", mr, nr), spec, {"x": x, "w": w, "b": b, "y": np.empty((m, n), np.float32)},
              {"M": m, "N": n, "K": k}, 0.5 * z * (1 + erf(z / np.sqrt(2))), interpreted=m * n * k < 5000, tolerance=1e-5)


@pytest.mark.parametrize("spec", SPECS)
def test_scores_through_a_promoted_panel(spec: DeviceSpec) -> None:
    for h, q, s in ((1, 1, 1), (2, 9, 3), (3, 8, 65)):
        a, b = random(h, q, 5), random(h, s, 5)
        agree(funcs.scores(5, *spec.instr_tile), spec, {"q": a, "kt": b, "s": np.empty((h, q, s), np.float32)},
              {"H": h, "Q": q, "S": s}, np.einsum("hqd,hsd->hqs", a.astype(np.float64), b) * 0.125, interpreted=h < 3)


@pytest.mark.parametrize("spec", SPECS)
def test_softmax(spec: DeviceSpec) -> None:
    for r, c in ((1, 1), (5, 16), (3, 37), (4, 7)):
        x = random(r, c) * 20
        e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
        agree(funcs.softmax(2), spec, {"x": x, "y": np.empty_like(x)}, {"R": r, "C": c}, e / e.sum(1, keepdims=True))


@pytest.mark.parametrize("spec", SPECS)
def test_transpose_and_select(spec: DeviceSpec) -> None:
    for a, b in ((1, 1), (7, 6), (5, 33)):
        x, z = random(b, a), random(a, b)
        agree(funcs.transpose_add(), spec, {"x": x, "z": z, "y": np.empty((a, b), np.float32)}, {"A": a, "B": b},
              np.where(z > 0, x.T + z, x.T))


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("width", [20, "W"])
def test_gather(spec: DeviceSpec, width: int | str) -> None:
    func, table, mask = funcs.gather(width), random(5, 20), np.random.default_rng(1).random((4, 20)) > 0.5
    sizes = {"N": 4, "V": 5} | ({"W": 20} if width == "W" else {})
    arrays = {"ids": np.array([0, -5, 4, 2]), "table": table, "mask": mask, "y": np.empty((4, 20), np.float32)}
    agree(func, spec, arrays, sizes, table[arrays["ids"]] * mask)
    lowered = lower(func, spec)
    for wrong in (5, -6):
        arrays["ids"] = np.array([0, 1, wrong, 2])
        code = funcs.run_compiled(lowered, spec, arrays, sizes)
        assert lowered.messages[code - 1] == "table"
        with pytest.raises(InputError, match=f"index {wrong} into table"):
            interpret(lowered, arrays, sizes)


def test_blocks_are_decoded_in_order() -> None:
    func = funcs.shifted_blocks()
    lowered, sizes = lower(func, CPU_SPECS["cpu-generic"]), {"N": 13}
    x = random(3, 13)
    arrays = {"x": x, "y": np.zeros_like(x)}
    nest: list[tuple[str, tuple[int, ...]]] = []
    interpret(func, arrays, sizes, nest)
    arrays["y"] = np.zeros_like(x)
    blocks: list[tuple[str, tuple[int, ...]]] = []
    assert lowered.blocks.evaluate(sizes) == 6
    for number in range(6):
        interpret(lowered, arrays, sizes, blocks, (number, number + 1))
    assert nest == blocks
    np.testing.assert_array_equal(arrays["y"][1:], 2 * x[1:])
    assert not arrays["y"][0].any()


def test_lowering_executes_the_same_instances() -> None:
    sizes = {"R": 5, "C": 19}
    arrays = {"x": random(5, 19), "y": np.empty((5, 19), np.float32)}
    func, before, after = funcs.softmax(2), [], []  # type: ignore[var-annotated]
    interpret(func, arrays, sizes, before)
    interpret(lower(func, CPU_SPECS["cpu-generic"]), arrays, sizes, after)
    assert sorted(before) == sorted(after)
    assert len(set(before)) == len(before)


def test_rows_do_not_depend_on_their_batch() -> None:
    """One reduction order: a row's bits are the same alone and among others, at any tile height."""
    spec = host_spec()
    mr, nr = spec.instr_tile
    func = lower(funcs.gemm_gelu("N", "K", mr, nr), spec)
    x, w, b = random(2 * mr + 1, 29), random(29, 40), random(40)
    many, one = np.empty((len(x), 40), np.float32), np.empty((1, 40), np.float32)
    funcs.run_compiled(func, spec, {"x": x, "w": w, "b": b, "y": many}, {"M": len(x), "N": 40, "K": 29})
    for row in (0, mr - 1, 2 * mr):
        funcs.run_compiled(func, spec, {"x": x[row:row + 1].copy(), "w": w, "b": b, "y": one}, {"M": 1, "N": 40, "K": 29})
        np.testing.assert_array_equal(one[0], many[row])

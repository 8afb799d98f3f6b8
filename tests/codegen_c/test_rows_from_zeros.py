"""Register tiles some of whose rows are outside of an image: they are read from zeros, which is chosen before the k loop."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tsc
from tests.machine import runnable
from tests.memory.guarded import check_guarded
from tsc import te
from tsc.codegen_c.rows import FEW
from tsc.runtime.executable import Executable

Array = np.ndarray[Any, Any]
ZEROS = int(re.findall("#define TSC_ZEROS (.*)", (Path(tsc.__file__).parent / "codegen_c" / "tsc_kernel.h").read_text())[0])
TARGETS = [spec.name for spec in runnable()]
#: Columns of the result, fewer than a vector and more than a tile.
WIDE = 70


def window(channels: int, kernel: int, stride: int, pad: int, weights: Array, target: str = "cpu") -> Executable:
    """A convolution of images whose channels are last, padded with zeros."""
    n, h, w = te.dim("N", 0), te.dim("H"), te.dim("W")
    x = te.placeholder((n, h, w, channels), "float32", "x")
    held = te.constant(weights, "w")
    dy, dx, c = te.reduce_axis(kernel, "dy"), te.reduce_axis(kernel, "dx"), te.reduce_axis(channels, "c")

    def read(b: te.Expr, i: te.Expr, j: te.Expr) -> te.Expr:
        y, z = stride * i + dy - pad, stride * j + dx - pad
        return te.where(te.all_of(y >= 0, y < h, z >= 0, z < w), x[b, y, z, c], 0.0)

    shape = (n, (h + (2 * pad - kernel)) // stride + 1, (w + (2 * pad - kernel)) // stride + 1, weights.shape[-1])
    y = te.compute(shape, lambda b, i, j, k: te.sum(read(b, i, j) * held[dy, dx, c, k], (dy, dx, c)), "y")
    return tsc.build(y, target=target)


def expected(x: Array, weights: Array, stride: int, pad: int) -> Array:
    """The same in float64, by NumPy."""
    kernel = weights.shape[0]
    padded = np.pad(x.astype(np.float64), ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    found = np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel), axis=(1, 2))[:, ::stride, ::stride]
    return np.einsum("bijcyx,yxck->bijk", found, weights.astype(np.float64))


@pytest.mark.parametrize("target", [TARGETS[0], *(pytest.param(name, marks=pytest.mark.slow) for name in TARGETS[1:])])
@pytest.mark.parametrize(("channels", "kernel", "stride", "pad"), [
    (FEW, 3, 1, 1), (FEW + 1, 3, 2, 1), (ZEROS, 1, 1, 1), (ZEROS + 1, 3, 1, 1), (2 * ZEROS + 5, 2, 1, 2), (33, 3, 1, 8)])
def test_windows_beyond_an_image(channels: int, kernel: int, stride: int, pad: int, target: str, tmp_path: Path,
                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """More padding than there are pixels, loops as long as the zeros, longer ones, and such as begin again."""
    monkeypatch.setenv("TSC_DUMP", str(tmp_path))
    rng = np.random.default_rng(channels)
    weights = rng.standard_normal((kernel, kernel, channels, WIDE)).astype(np.float32)
    made = window(channels, kernel, stride, pad, weights, target)
    assert any("tsc_zeros" in path.read_text() for path in tmp_path.rglob("*.c"))
    for batch, high, wide in ((1, 1, 1), (2, 3, 8), (1, 7, 7), (1, 2, 15), (0, 3, 3)):
        x = rng.standard_normal((batch, high, wide, channels)).astype(np.float32)
        want = expected(x, weights, stride, pad)
        for got in (made.run(None, {"x": x})[0], check_guarded(made, {"x": x})[0]):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-6 * channels * kernel)


def test_what_is_outside_counts_as_zero_and_no_less() -> None:
    """Zero times a weight that is infinite, or no number, is no number: of such weights alone."""
    weights = np.ones((3, 3, 16, 16), np.float32)
    weights[0, 0, 3, 5], weights[2, 2, 0, 7] = np.inf, np.nan
    made = window(16, 3, 1, 1, weights)
    x = np.full((1, 4, 9, 16), 2, np.float32)
    with np.errstate(invalid="ignore"):
        want = expected(x, weights, 1, 1)
    np.testing.assert_array_equal(made.run(None, {"x": x})[0], want.astype(np.float32))


def test_few_trips_ask_in_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TSC_DUMP", str(tmp_path))
    window(FEW - 1, 3, 1, 1, np.ones((3, 3, FEW - 1, WIDE), np.float32))
    assert not any("tsc_zeros" in path.read_text() for path in tmp_path.rglob("*.c"))

"""Sums of products on a GPU whose factors are no tiles of rows and columns."""

from __future__ import annotations

import numpy as np

import tsc
from tsc import te


def test_a_factor_that_is_the_same_in_all_steps() -> None:
    """y[i, j] = sum over r of a[i, r] * b[j]: nothing of b is a tile along r."""
    m, n, k = te.dim("M"), te.dim("N"), te.dim("K")
    a, b, r = te.placeholder((m, k), "float32", "a"), te.placeholder((n,), "float32", "b"), te.reduce_axis(k, "r")
    y = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[j], r), "y")
    executable, rng = tsc.build(y, target="emu:sm_80"), np.random.default_rng(0)
    for rows, columns, depth in ((1, 1, 1), (3, 70, 5), (33, 17, 40)):
        x, w = rng.standard_normal((rows, depth), np.float32), rng.standard_normal(columns, np.float32)
        expected = x.astype(np.float64).sum(axis=1, keepdims=True) * w
        np.testing.assert_allclose(executable.run(None, {"a": x, "b": w})[0], expected, rtol=1e-4, atol=1e-5)

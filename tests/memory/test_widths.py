"""Products of symbolic width: what is behind the last column of a panel is filled as far as vectors read it."""

from __future__ import annotations

import numpy as np

import tsc
from tests.graph.models import model
from tests.memory.guarded import check_guarded
from tests.memory.test_squares import on_each_cpu

WIDTHS = (1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 47, 63, 64, 65, 79, 127, 128, 129)


@on_each_cpu
def test_widths_around_vectors_and_tiles(target: str) -> None:
    proto = model("y = MatMul (a, b)", "float[m, k] a, float[k, n] b", "float[m, n] y")
    executable, rng = tsc.compile(proto, target=target), np.random.default_rng(0)
    for width in WIDTHS:
        a, b = rng.standard_normal((7, 5), np.float32), rng.standard_normal((5, width), np.float32)
        (y,) = check_guarded(executable, {"a": a, "b": b})
        np.testing.assert_allclose(y, np.float64(a) @ b, rtol=1e-4, atol=1e-5)

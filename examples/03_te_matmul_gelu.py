"""A matmul with bias and GELU, element by element, compiled for every size: `python examples/03_te_matmul_gelu.py`."""

from __future__ import annotations

import math

import numpy as np

import tsc
from tsc import te


def linear_gelu() -> te.Tensor:
    """y = gelu(x @ w + bias) for x [M, K], w [K, N], bias [N]."""
    m, n, k = te.dim("M"), te.dim("N"), te.dim("K")
    x, w = te.placeholder((m, k), "float32", "x"), te.placeholder((k, n), "float32", "w")
    bias = te.placeholder((n,), "float32", "bias")
    r = te.reduce_axis(k, "r")
    product = te.compute((m, n), lambda i, j: te.sum(x[i, r] * w[r, j], axis=r), "product")

    def gelu(i: te.Scalar, j: te.Scalar) -> te.Scalar:
        value = product[i, j] + bias[j]
        return 0.5 * value * (1.0 + te.erf(value / math.sqrt(2.0)))

    return te.compute((m, n), gelu, "y")


def expected(x: np.ndarray, w: np.ndarray, bias: np.ndarray) -> np.ndarray:
    value = x.astype(np.float64) @ w + bias
    return 0.5 * value * (1 + np.vectorize(math.erf)(value / math.sqrt(2)))


def main() -> None:
    kernel = tsc.build(linear_gelu())
    rng = np.random.default_rng(0)
    for m, k, n in ((1, 64, 64), (7, 33, 65), (128, 256, 100)):
        feeds = {name: rng.standard_normal(shape).astype(np.float32)
                 for name, shape in (("x", (m, k)), ("w", (k, n)), ("bias", (n,)))}
        y, = kernel.run(None, feeds)
        error = np.abs(y - expected(**feeds)).max()
        print(f"x [{m}, {k}] @ w [{k}, {n}]: largest error {error:.1e}")
        assert error < 1e-3
    print("launches: {launches}, kernels: {kernels}, compilations: {compiles}".format_map(kernel.stats))


if __name__ == "__main__":
    main()

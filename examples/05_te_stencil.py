"""Two steps of a heat equation on a grid of any size, with fixed borders: `python examples/05_te_stencil.py`."""

from __future__ import annotations

import numpy as np

import tsc
from tsc import te


def heat(grid: te.Tensor, rate: te.Tensor, name: str) -> te.Tensor:
    """One explicit step: each inner cell moves towards the mean of its four neighbours; border cells stay."""
    h, w = grid.shape

    def cell(i: te.Scalar, j: te.Scalar) -> te.Scalar:
        inner = te.all_of(i >= 1, i < h - 1, j >= 1, j < w - 1)
        around = grid[i - 1, j] + grid[i + 1, j] + grid[i, j - 1] + grid[i, j + 1]
        return te.where(inner, grid[i, j] + rate[()] * (around - 4.0 * grid[i, j]), grid[i, j])

    return te.compute((h, w), cell, name)


def expected(grid: np.ndarray, rate: float, steps: int) -> np.ndarray:
    value = grid.astype(np.float64)
    for _ in range(steps):
        around = value[:-2, 1:-1] + value[2:, 1:-1] + value[1:-1, :-2] + value[1:-1, 2:]
        value = value.copy()
        value[1:-1, 1:-1] += rate * (around - 4 * value[1:-1, 1:-1])
    return value


def main() -> None:
    grid = te.placeholder((te.dim("H"), te.dim("W")), "float32", "grid")
    rate = te.placeholder((), "float32", "rate")
    once = heat(grid, rate, "once")
    kernel = tsc.build([once, heat(once, rate, "twice")])
    rng = np.random.default_rng(0)
    for shape in ((1, 1), (3, 3), (17, 40), (300, 200)):
        start = rng.standard_normal(shape).astype(np.float32)
        results = kernel.run(None, {"grid": start, "rate": np.float32(0.1)})
        error = max(np.abs(got - expected(start, 0.1, steps)).max() for steps, got in enumerate(results, 1))
        print(f"grid {shape[0]} x {shape[1]}: largest error {error:.1e}")
        assert error < 1e-5
    print("launches: {launches}, kernels: {kernels}, compilations: {compiles}".format_map(kernel.stats))


if __name__ == "__main__":
    main()

"""An LSTM layer as a recurrence, compiled for any length and batch: `python examples/06_te_lstm.py`."""

from __future__ import annotations

import numpy as np

import tsc
from tsc import te

HIDDEN = 24


def sigmoid(x: te.Scalar) -> te.Scalar:
    return 1.0 / (1.0 + te.exp(-x))


def lstm() -> te.Tensor:
    """h [T, B, HIDDEN] from x [T, B, 4 * HIDDEN], the gates' inputs in the order i, o, f, c, and w [HIDDEN, 4 * HIDDEN]."""
    t, b = te.dim("T"), te.dim("B")
    x, w = te.placeholder((t, b, 4 * HIDDEN), "float32", "x"), te.placeholder((HIDDEN, 4 * HIDDEN), "float32", "w")
    h, c, r = te.state((t, b, HIDDEN), name="h"), te.state((t, b, HIDDEN), name="c"), te.reduce_axis(HIDDEN, "r")
    mixed = te.compute((t, b, 4 * HIDDEN), lambda s, n, j: te.sum(
        w[r, j] * te.where(s >= 1, h[s - 1, n, r], 0.0), axis=r), "mixed")

    def gate(number: int, s: te.Scalar, n: te.Scalar, j: te.Scalar) -> te.Scalar:
        at = s, n, j + number * HIDDEN
        return x[at] + mixed[at]

    def cell(s: te.Scalar, n: te.Scalar, j: te.Scalar) -> te.Scalar:
        kept = sigmoid(gate(2, s, n, j)) * te.where(s >= 1, c[s - 1, n, j], 0.0)
        return kept + sigmoid(gate(0, s, n, j)) * te.tanh(gate(3, s, n, j))

    memory = te.scan(c, cell)
    return te.scan(h, lambda s, n, j: sigmoid(gate(1, s, n, j)) * te.tanh(memory[s, n, j]))


def expected(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    h = c = np.zeros((x.shape[1], HIDDEN))
    found = []
    for step in x.astype(np.float64):
        i, o, f, g = np.split(step + h @ w, 4, axis=1)
        c = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
        h = np.tanh(c) / (1 + np.exp(-o))
        found.append(h)
    return np.array(found)


def main() -> None:
    kernel = tsc.build(lstm())
    rng = np.random.default_rng(0)
    w = (rng.standard_normal((HIDDEN, 4 * HIDDEN)) / 5).astype(np.float32)
    for steps, batch in ((1, 1), (7, 3), (128, 5)):
        x = rng.standard_normal((steps, batch, 4 * HIDDEN)).astype(np.float32)
        h, = kernel.run(None, {"x": x, "w": w})
        error = np.abs(h - expected(x, w)).max()
        print(f"{steps} steps of {batch} rows: largest error {error:.1e}")
        assert error < 1e-4
    print("launches: {launches}, kernels: {kernels}, compilations: {compiles}".format_map(kernel.stats))


if __name__ == "__main__":
    main()

"""Attention with a causal mask, any number of queries, keys and heads: `python examples/04_te_attention.py`."""

from __future__ import annotations

import math

import numpy as np

import tsc
from tsc import te

DEPTH = 32


def attention() -> te.Tensor:
    """softmax(q @ k' / sqrt(depth)) @ v for q [B, H, L, depth] and k, v [B, H, T, depth]; query i sees keys up to i + T - L."""
    b, h, length, t = te.dim("B"), te.dim("H"), te.dim("L"), te.dim("T")
    q = te.placeholder((b, h, length, DEPTH), "float32", "q")
    k, v = (te.placeholder((b, h, t, DEPTH), "float32", name) for name in "kv")
    d, seen, summed, mixed = te.reduce_axis(DEPTH, "d"), *(te.reduce_axis(t, name) for name in ("p", "r", "s"))

    def cell(n: te.Scalar, g: te.Scalar, i: te.Scalar, j: te.Scalar) -> te.Scalar:
        return te.where(j <= i + t - length, score[n, g, i, j] / math.sqrt(DEPTH), -1e30)

    score = te.compute((b, h, length, t), lambda n, g, i, j: te.sum(q[n, g, i, d] * k[n, g, j, d], axis=d), "score")
    masked = te.compute((b, h, length, t), cell, "masked")
    top = te.compute((b, h, length), lambda n, g, i: te.max(masked[n, g, i, seen], axis=seen), "top")
    weight = te.compute((b, h, length, t), lambda n, g, i, j: te.exp(masked[n, g, i, j] - top[n, g, i]), "weight")
    total = te.compute((b, h, length), lambda n, g, i: te.sum(weight[n, g, i, summed], axis=summed), "total")
    mix = te.compute((b, h, length, DEPTH),
                     lambda n, g, i, j: te.sum(weight[n, g, i, mixed] * v[n, g, mixed, j], axis=mixed), "mix")
    return te.compute((b, h, length, DEPTH), lambda n, g, i, j: mix[n, g, i, j] / total[n, g, i], "y")


def expected(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    score = q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2) / math.sqrt(DEPTH)
    length, t = score.shape[-2:]
    score[..., ~np.tri(length, t, t - length, dtype=bool)] = -np.inf
    weight = np.exp(score - score.max(-1, keepdims=True))
    return weight / weight.sum(-1, keepdims=True) @ v


def main() -> None:
    kernel = tsc.build(attention())
    rng = np.random.default_rng(0)
    for batch, heads, length, t in ((1, 2, 1, 1), (2, 3, 5, 9), (1, 4, 64, 64)):
        feeds = {name: rng.standard_normal((batch, heads, n, DEPTH)).astype(np.float32)
                 for name, n in (("q", length), ("k", t), ("v", t))}
        y, = kernel.run(None, feeds)
        error = np.abs(y - expected(**feeds)).max()
        print(f"{length} queries, {t} keys, {heads} heads: largest error {error:.1e}")
        assert error < 1e-4
    print("launches: {launches}, kernels: {kernels}, compilations: {compiles}".format_map(kernel.stats))


if __name__ == "__main__":
    main()

"""Tensor expressions written in the DSL, for tests; none of the two is an ONNX operator."""

from __future__ import annotations

from tsc import te
from tsc.sym import ShapeEnv
from tsc.te.compute import Program
from tsc.te.dsl.assemble import assemble, declare, reached
from tsc.te.passes.transform import lower


def banded(width: int = 2) -> te.Tensor:
    """y[i, j] = sum over |i-c| <= width of exp(x[i, c]) * w[c, j], divided by the sum of exp(x[i, c]) over the same band.

    A banded matmul with a fused row statistic, x [M, M], w [M, N].
    """
    m, n = te.dim("M"), te.dim("N")
    x, w = te.placeholder((m, m), "float32", "x"), te.placeholder((m, n), "float32", "w")
    near, far = te.reduce_axis(2 * width + 1, "o"), te.reduce_axis(2 * width + 1, "o")

    def weight(i: te.Scalar, column: te.Scalar) -> te.Scalar:
        return te.where(te.all_of(column >= 0, column < m), te.exp(x[i, column]), 0.0)

    def cell(i: te.Scalar, j: te.Scalar) -> te.Reduction:
        column = i + far - width
        return te.sum(weight(i, column) * te.where(te.all_of(column >= 0, column < m), w[column, j], 0.0), axis=far)

    total = te.compute((m,), lambda i: te.sum(weight(i, i + near - width), axis=near), "total")
    product = te.compute((m, n), cell, "product")
    return te.compute((m, n), lambda i, j: product[i, j] / total[i], "y")


def log_sum_exp() -> te.Tensor:
    """y[i] = log of the sum over k of exp(x[i, k] - max over k of x[i, k]), plus that maximum."""
    m, n = te.dim("M"), te.dim("N")
    x = te.placeholder((m, n), "float32", "x")
    a, b = te.reduce_axis(n, "a"), te.reduce_axis(n, "b")
    top = te.compute((m,), lambda i: te.max(x[i, a], axis=a), "top")
    rest = te.compute((m,), lambda i: te.sum(te.exp(x[i, b] - top[i]), axis=b), "rest")
    return te.compute((m,), lambda i: te.log(rest[i]) + top[i], "y")


def program_of(*outputs: te.Tensor) -> Program:
    """All of `outputs` as one canonical Program."""
    env = ShapeEnv()
    declare(reached(outputs), env)
    made = assemble(outputs, env)
    names = {t.name for t in outputs}
    computes = tuple(d.compute for d in made.definitions)
    return lower(Program((), tuple(c.target for c in computes if c.name in names), computes, ()), env).program

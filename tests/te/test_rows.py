"""Which Programs compute row by row: by hand, and of random ones by what they compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

import numpy as np
import pytest

from tests.fuzz.check import COMPILED, Arrays, _data, _sizes, _work
from tests.fuzz.generate import Case, random_case
from tsc import te
from tsc.sym import ShapeEnv
from tsc.te.compute import Program
from tsc.te.dsl.assemble import assemble, declare, reached
from tsc.te.evaluate import evaluate
from tsc.te.expr import Buffer
from tsc.te.passes.transform import lower
from tsc.te.rows import independent_rows

N, M = te.dim("N"), te.dim("M")
OF_COLUMNS, OF_ROWS = te.reduce_axis(M, "over_columns"), te.reduce_axis(N, "over_rows")
Made = Callable[[te.Tensor, te.Tensor, te.Tensor], te.Tensor]


def of(made: Made) -> str | None:
    """What counts the rows of what is made of x: float32[N, M], w: float32[M, 3] and ids: int64[N]."""
    x, w = te.placeholder((N, M), "float32", "x"), te.placeholder((M, 3), "float32", "w")
    env, outputs = ShapeEnv(), (made(x, w, te.placeholder((N,), "int64", "ids")),)
    declare(reached(outputs), env)
    computes = tuple(d.compute for d in assemble(outputs, env).definitions)
    found = lower(Program((), (computes[-1].target,), computes, ()), env)
    rows = independent_rows(found.program)
    return rows and str(found.sizes[rows])


@pytest.mark.parametrize("made, rows", [
    (lambda x, w, ids: te.compute((N, M), lambda i, j: x[i, j] * 2.0, "y"), "M*N"),
    (lambda x, w, ids: te.compute((N, M), lambda i, j: x[i, M - 1 - j], "y"), "N"),
    (lambda x, w, ids: te.compute((N,), lambda i: te.sum(x[i, OF_COLUMNS], OF_COLUMNS), "y"), "N"),
    (lambda x, w, ids: te.compute((N, 3), lambda i, c: te.sum(x[i, OF_COLUMNS] * w[OF_COLUMNS, c], OF_COLUMNS), "y"), "N"),
    (lambda x, w, ids: te.compute((N, 3), lambda i, c: w[ids[i], c], "y"), "N"),
    (lambda x, w, ids: te.compute((N, M), lambda i, j: te.where(j < 2, x[i, j], te.cast(j, "float32")), "y"), "N"),
    (lambda x, w, ids: te.compute((N, M), lambda i, j: x[i, j] / te.cast(N, "float32"), "y"), "M*N"),  # elements, N the same
])
def test_rows(made: Made, rows: str) -> None:
    assert of(made) == rows


@pytest.mark.parametrize("made", [
    lambda x, w, ids: te.compute((M, N), lambda j, i: x[i, j], "y"),                            # columns of it
    lambda x, w, ids: te.compute((N, M), lambda i, j: x[N - 1 - i, j], "y"),                    # another row
    lambda x, w, ids: te.compute((N, M), lambda i, j: x[i // 2, j], "y"),
    lambda x, w, ids: te.compute((N, M), lambda i, j: x[i, j] + x[0, j], "y"),
    lambda x, w, ids: te.compute((N, M), lambda i, j: x[ids[i], j], "y"),
    lambda x, w, ids: te.compute((N, M), lambda i, j: x[i, j] * te.cast(i, "float32"), "y"),    # the number of the row
    lambda x, w, ids: te.compute((N, M), lambda i, j: te.where(i < 2, x[i, j], 0.0), "y"),
    lambda x, w, ids: te.compute((N, M), lambda i, j: x[i, M - 1 - j] / te.cast(N, "float32"), "y"),  # how many there are
    lambda x, w, ids: te.compute((M,), lambda j: te.sum(x[OF_ROWS, j], OF_ROWS), "y"),          # all of them
    lambda x, w, ids: te.compute((N, N), lambda i, k: te.sum(x[i, OF_COLUMNS] * x[k, OF_COLUMNS], OF_COLUMNS), "y"),
    lambda x, w, ids: te.compute((3, N), lambda c, i: w[ids[i], c], "y"),
])
def test_no_rows(made: Made) -> None:
    assert of(made) is None


def _behind(buffers: Mapping[str, Buffer], name: str, one: Arrays, other: Arrays) -> Arrays:
    """The arrays of two calls, rows one behind the other."""
    rows = {key for key, buffer in buffers.items() if any(name in size.dims() for size in buffer.shape)}
    return {key: np.concatenate([array, other[key]]) if key in rows else array for key, array in one.items()}


def _joins(case: Case, rng: Random) -> bool:
    """Whether a Program has rows; then that two calls with their rows one behind the other are one. Raises AssertionError."""
    name = independent_rows(case.program)
    if name is None:
        return False
    size = next(size for size in case.program.sizes if size.name == name)
    sizes = [_sizes(case, rng, most) for most in (5, 9)]
    sizes[1] = sizes[0] | {name: sizes[1][name]}
    both = sizes[0] | {name: sizes[0][name] + sizes[1][name]}
    if (size.hi is not None and both[name] > size.hi) or _work(case.program, both) > COMPILED:
        return False
    inputs = [_data(case, own, np.random.default_rng(rng.randrange(1 << 30))) for own in sizes]
    given = {buffer.name: buffer for buffer in case.program.inputs}
    shared = {key: array for key, array in inputs[0].items() if not any(name in d.dims() for d in given[key].shape)}
    found = [evaluate(case.program, own | shared, own_sizes) for own, own_sizes in zip(inputs, sizes)]
    whole = evaluate(case.program, _behind(given, name, inputs[0] | shared, inputs[1] | shared), both)
    for buffer in case.program.outputs:
        np.testing.assert_array_equal(whole[buffer.name], np.concatenate([own[buffer.name] for own in found]))
    return True


def test_random_programs() -> None:
    joined = sum(_joins(random_case(rng := Random(f"rows/{number}"), carried=number % 4 == 0), rng) for number in range(1200))
    assert joined > 50, joined

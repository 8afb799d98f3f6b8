"""Dividing axes: window partitions become permutations of axes, and what cannot be divided is left as it is."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.te.test_transform import at, axis, buffer, check, environment, loose, run
from tsc.sym import dim
from tsc.te.compute import SUM, Compute, Program
from tsc.te.expr import Call, Expr, Var, add, call, index, loads, mul, walk
from tsc.te.passes.divide import divide
from tsc.te.passes.transform import simplified

N = dim("N")


def quotient(x: Expr, by: int) -> Expr:
    return call("floordiv", x, index(by))


def rest(x: Expr, by: int) -> Expr:
    return call("mod", x, index(by))


def windows(rows: int, columns: int, height: int, width: int) -> Program:
    """A product per window, [N * rows * columns, height * width, 2], put back into an image [N, rows * height, columns * width]
    that is written as [N, all pixels, 2]."""
    x = buffer("x", N * (rows * columns), height * width, 3)
    w = buffer("w", 3, 2)
    b, p, c, k = axis("b", N * (rows * columns)), axis("p", height * width), axis("c", 2), axis("k", 3)
    acc = Compute(buffer("acc", N * (rows * columns), height * width, 2), (b, p, c), call("mul", at(x, b, p, k), at(w, k, c)),
                  (k,), SUM)
    line = columns * width
    n, i, d = axis("n", N), axis("i", rows * height * line), axis("d", 2)
    v: Expr = Var("i")
    row, column = quotient(v, line), rest(v, line)
    window = add(add(mul(Var("n"), index(rows * columns)), mul(quotient(row, height), index(columns))), quotient(column, width))
    pixel = add(mul(rest(row, height), index(width)), rest(column, width))
    y = Compute(buffer("y", N, rows * height * line, 2), (n, i, d), at(acc.target, window, pixel, d))
    return loose(acc, y)


def data(rows: int, columns: int, height: int, width: int, n: int) -> dict[str, Any]:
    rng = np.random.default_rng(n)
    return {"x": rng.standard_normal((n * rows * columns, height * width, 3)).astype(np.float32),
            "w": rng.standard_normal((3, 2)).astype(np.float32)}


def target_indices(program: Program) -> list[Expr]:
    targets = {c.name for c in program.computes}
    return [i for c in program.computes for load in loads(c.body) if load.buffer.name in targets for i in load.index]


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 4), st.integers(2, 4), st.integers(2, 3), st.integers(2, 5), st.integers(1, 3))
def test_windows_become_a_permutation(rows: int, columns: int, height: int, width: int, n: int) -> None:
    known = data(rows, columns, height, width, n)
    found = check(windows(rows, columns, height, width), known, {"N": n})
    assert all(isinstance(i, Var) for i in target_indices(found.program)), str(found.program)
    product = (known["x"].astype(np.float64) @ known["w"]).reshape(n, rows, columns, height, width, 2)
    want = product.transpose(0, 1, 3, 2, 4, 5).ravel()
    np.testing.assert_allclose(run(found, known, {"N": n})["y"], want, rtol=1e-4, atol=1e-5)


def test_what_no_target_is_divided_by_stays() -> None:
    x = buffer("x", N, 4, 5)
    n, i = axis("n", N), axis("i", 20)
    y = Compute(buffer("y", N, 20), (n, i), at(x, n, rest(Var("i"), 4), quotient(Var("i"), 4)))
    program = loose(y)
    assert divide(program, environment()) is program


def test_a_reader_that_would_divide_a_sum_prevents_the_cut() -> None:
    """z reads y at i + 1, whose quotient by 4 is no quotient of an axis: y keeps its dim."""
    x, n, i, j = buffer("x", N, 20), axis("n", N), axis("i", 20), axis("j", 19)
    t = Compute(buffer("t", N, 5, 4), (axis("m", N), axis("a", 5), axis("b", 4)),
                at(x, Var("m"), add(mul(Var("a"), index(4)), Var("b"))))
    y = Compute(buffer("y", N, 20), (n, i), at(t.target, n, quotient(Var("i"), 4), rest(Var("i"), 4)))
    z = Compute(buffer("z", N, 19), (axis("o", N), j), at(y.target, Var("o"), add(Var("j"), index(1))))
    program = simplified(loose(t, y, z), environment())
    kept = divide(program, environment())
    assert [c.target.shape for c in kept.computes if c.name == "y"] == [y.target.shape]
    divisions = [e for e in target_indices(kept) for e in walk(e) if isinstance(e, Call) and e.fn in ("floordiv", "mod")]
    assert len(divisions) == 2
    check(loose(t, y, z), {"x": np.random.default_rng(0).standard_normal((3, 20)).astype(np.float32)}, {"N": 3})

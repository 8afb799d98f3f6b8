"""Inputs read as a Reshape, a Tile, a Transpose or patches read them, lowered: whatever sizes they divide by, each access is
exact, and the canonical Program has the values of the loose one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.poly.programs import at, axis, buffer, v
from tsc.poly.scop import build_scop
from tsc.sym import ShapeEnv, SymExpr, ceildiv, dim
from tsc.te.compute import Compute, Program, SizeParam
from tsc.te.evaluate import evaluate
from tsc.te.expr import Expr, add, call, index, mul
from tsc.te.passes import transform

N, M, K = dim("N"), dim("M"), dim("K")
Shape = tuple[SymExpr | int, ...]
Places = tuple[Expr, ...]


def over(x: Expr, by: SymExpr | int) -> Expr:
    return call("floordiv", x, index(SymExpr.of(by)))


def rest(x: Expr, by: SymExpr | int) -> Expr:
    return call("mod", x, index(SymExpr.of(by)))


def row(x: Expr, width: SymExpr | int, y: Expr) -> Expr:
    return add(mul(x, index(SymExpr.of(width))), y)


#: The shape of the input, that of the output, and where an element is read.
READ: dict[str, tuple[Shape, Shape, Callable[..., Places]]] = {
    "flat from a sum of axes": (((N + 2 * M) * K,), (N, M, K), lambda a, b, c: (row(row(b, 2, a), K, c),)),
    "an axis less than the whole": (((N + M) * K + M,), (N + M - 1, K), lambda a, c: (row(a, K, c),)),
    "rows of a sum": ((N * M + N,), (N, M + 1), lambda a, b: (row(a, M + 1, b),)),
    "flattened": ((N + M, K), ((N + M) * K,), lambda p: (over(p, K), rest(p, K))),
    "flattened, columns of a sum": ((K, N + M), ((N + M) * K,), lambda p: (over(p, N + M), rest(p, N + M))),
    "flattened, turned": ((K, N + M), ((N + M) * K,), lambda p: (rest(p, K), over(p, K))),
    "three axes": ((N, M, K), (N * M * K,), lambda p: (over(p, M * K), rest(over(p, K), M), rest(p, K))),
    "three axes turned": ((K, N, M), (N * M * K,), lambda p: (rest(p, K), over(p, M * K), rest(over(p, K), M))),
    "cut elsewhere": ((N * M, K), (N, M * K), lambda a, p: (row(a, M, over(p, K)), rest(p, K))),
    "cut elsewhere, back": ((N, M * K), (N * M, K), lambda a, p: (over(a, M), row(rest(a, M), K, p))),
    "constants": ((M, 2 * N), (N, 2 * M), lambda a, p: (rest(p, M), row(a, 2, over(p, M)))),
    "repeated": ((N,), (N * M,), lambda p: (over(p, M),)),
    "tiled": ((N + 1,), (N * M,), lambda p: (rest(p, N + 1),)),
    "padded to a multiple": ((ceildiv(N, M), M), (N,), lambda p: (over(p, M), rest(p, M))),
    "padded to a multiple of a sum": ((ceildiv(N + 1, M + 1), M + 1), (N + 1,), lambda p: (over(p, M + 1), rest(p, M + 1))),
    "cut to a multiple": ((M, N // M), ((N // M) * M,), lambda p: (rest(p, M), over(p, M))),
    "cut to a multiple of a sum": ((M + 1, N // (M + 1)), (N // (M + 1) * (M + 1),),
                                   lambda p: (rest(p, M + 1), over(p, M + 1))),
    "behind an offset": ((N * M + 3,), (N, M), lambda a, b: (add(row(a, M, b), index(3)),)),
    "reversed": ((N, M), (N * M,), lambda p: tuple(f(call("sub", index(N * M - 1), p), M) for f in (over, rest))),
    "diagonal": ((N * N + N * M,), (N,), lambda a: (mul(a, index(N + M)),)),
    "a quotient of a quotient": ((N,), (N * M * K,), lambda p: (over(over(p, M), K),)),
    "a remainder of a remainder": ((M,), (N * M * K,), lambda p: (rest(rest(p, M * K), M),)),
    "a remainder of a quotient": ((K,), (N * M * K,), lambda p: (rest(over(p, M), K),)),
    "windows": ((N, M), (N * (M - 2), 3), lambda p, c: (over(p, M - 2), add(rest(p, M - 2), c))),
    "windows turned": ((M, N), (N * (M - 2), 3), lambda p, c: (add(rest(p, M - 2), c), over(p, M - 2))),
    "patches": ((N * K, M * K), (N * M, K * K), lambda p, q: (row(over(p, M), K, over(q, K)), row(rest(p, M), K, rest(q, K)))),
    "unfolded": ((N + M, K), (N * (M + 1), K), lambda p, c: (add(over(p, M + 1), rest(p, M + 1)), c)),
    "depth to space": ((K, K, N, M), (N * K, M * K), lambda a, b: (rest(a, K), rest(b, K), over(a, K), over(b, K))),
}


@pytest.mark.parametrize("name", READ)
def test_each_access_is_exact(name: str) -> None:
    shape, extents, where = READ[name]
    x, out = buffer("x", *shape), buffer("out", *extents)
    axes = tuple(axis(f"a{k}", e) for k, e in enumerate(extents))
    sizes = (SizeParam("N"), SizeParam("M", 3), SizeParam("K"))
    env = ShapeEnv()
    for size in sizes:
        env.declare(size.name, size.lo)
    loose = Program((x,), (out,), (Compute(out, axes, at(x, *where(*map(v, axes)))),), sizes)
    lowered = transform.lower(loose, env)
    assert not build_scop(lowered.program).notes
    for at_sizes in ({"N": 4, "M": 3, "K": 2}, {"N": 7, "M": 5, "K": 1}, {"N": 1, "M": 4, "K": 5}):
        data = np.random.default_rng(0).random([SymExpr.of(e).evaluate(at_sizes) for e in shape]).astype(np.float32)
        inner = {n: e.evaluate(at_sizes) for n, e in lowered.sizes.items()}
        given, = lowered.program.inputs
        made, = evaluate(lowered.program, {given.name: data.reshape([e.evaluate(inner) for e in given.shape])}, inner).values()
        np.testing.assert_array_equal(made.ravel(), evaluate(loose, {"x": data}, at_sizes)["out"].ravel())

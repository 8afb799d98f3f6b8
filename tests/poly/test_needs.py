"""What accesses need of sizes, where no fact says it: exactly the sizes at which every element that is read exists."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from tsc.errors import InternalError
from tsc.poly.scop import build_scop, needs, unproved
from tsc.sym import SymExpr, dim
from tsc.te.compute import SUM, Axis, Compute, Fact, Program, SizeParam
from tsc.te.evaluate import evaluate
from tsc.te.expr import Buffer, Expr, Load, Var, add, call, index, mul

M, N = dim("M"), dim("N")
K, ROW = Var("i"), Var("r")


def reading(place: Expr, extent: SymExpr, reduced: SymExpr | None = None) -> Program:
    """y[i < M] = x[place], or its sum over r."""
    source, target = Buffer("x", "float32", (extent,)), Buffer("y", "float32", (M,))
    rows = () if reduced is None else (Axis("r", reduced),)
    compute = Compute(target, (Axis("i", M),), Load(source, (place,)), rows, SUM if rows else None)
    return Program((source,), (target,), (compute,), (SizeParam("M", 1), SizeParam("N", 0)))


PROGRAMS = {
    "as long": reading(K, N),
    "every second": reading(add(mul(K, index(2)), index(1)), N),
    "each twice": reading(call("floordiv", K, index(2)), N),
    "backwards": reading(call("sub", index(5), K), SymExpr.of(6)),
    "a window": reading(add(K, ROW), N, SymExpr.of(3)),
    "a window of a size": reading(add(K, ROW), 2 * N, N),
    "up to a bound": reading(call("min", K, index(4)), N),
}


def stays_inside(program: Program, sizes: dict[str, int]) -> bool:
    """By trying."""
    shape = tuple(e.evaluate(sizes) for e in program.inputs[0].shape)
    try:
        evaluate(program, {"x": np.zeros(shape, np.float32)}, sizes)
    except InternalError:
        return False
    return True


@pytest.mark.parametrize("name", PROGRAMS)
def test_they_hold_exactly_where_all_that_is_read_exists(name: str) -> None:
    program = PROGRAMS[name]
    held = needs(program)
    assert held and unproved(program) is not None
    assert unproved(replace(program, facts=held)) is None and not needs(replace(program, facts=held))
    build_scop(replace(program, facts=held))
    for m, n in product(range(1, 12), range(12)):
        sizes = {"M": m, "N": n}
        assert all(fact.left.evaluate(sizes) <= fact.right.evaluate(sizes) for fact in held) == stays_inside(program, sizes)


def test_nothing_is_needed_where_facts_suffice_or_no_sizes_would() -> None:
    assert not needs(reading(K, M))
    assert not needs(replace(PROGRAMS["as long"], facts=(Fact(M + 1, "<=", N),)))
    assert not needs(reading(add(K, index(7)), SymExpr.of(7)))

"""Reads that leave their tensor: found exactly where enumeration finds them, with an example that really is one."""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from tsc import te
from tsc.poly.scop import escapes
from tsc.sym import ShapeEnv
from tsc.te.compute import Program
from tsc.te.dsl.assemble import declare, definition
from tsc.te.passes.transform import canonical

SMALL = st.integers(-2, 2)


@settings(max_examples=60)
@given(a=SMALL, b=SMALL, c=SMALL, slack=st.integers(0, 3), guard=st.sampled_from(["none", "low", "high", "both", "wrong"]))
def test_escapes_agree_with_enumeration(a: int, b: int, c: int, slack: int, guard: str) -> None:
    """y[i, j] = x[a*i + b*j + c] for x [n + slack], y [n, 3], under guards that do or do not keep the index inside."""
    def place(i: int, j: int) -> int:
        return a * i + b * j + c

    def kept(i: int, j: int, n: int) -> bool:
        at = place(i, j)
        return (at >= 0 or guard not in ("low", "both")) and (at < n + slack or guard not in ("high", "both")) and (
            at <= n + slack or guard != "wrong")

    def outside(i: int, j: int, n: int) -> bool:
        return kept(i, j, n) and not 0 <= place(i, j) < n + slack

    size = te.dim("n")
    x = te.placeholder((size + slack,), "float32", "x")

    def cell(i: te.Scalar, j: te.Scalar) -> te.Scalar:
        at = a * i + b * j + c
        conditions = [at >= 0] * (guard in ("low", "both")) + [at < size + slack] * (guard in ("high", "both"))
        conditions += [at <= size + slack] * (guard == "wrong")
        return te.where(te.all_of(*conditions), x[at], 0.0) if conditions else x[at] + 0.0

    y = te.compute((size, 3), cell, "y")
    env = ShapeEnv()
    declare([y], env)
    compute = definition(y, env).compute
    found = list(escapes(canonical(Program((), (compute.target,), (compute,), ()), env).program))
    assert bool(found) == any(outside(i, j, n) for n in range(1, 9) for i, j in product(range(n), range(3)))
    for compute, number, example in found:
        n = compute.axes[0].extent.evaluate(example)
        i, j = (example[axis.name] for axis in compute.axes)
        assert number == 0 and 0 <= i < n and 0 <= j < 3 and outside(i, j, n)

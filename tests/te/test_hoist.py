"""Hoisting keeps a program's meaning, whatever the terms, and leaves alone what it must."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.te.test_transform import at, axis, buffer, environment
from tsc.sym import dim
from tsc.te.compute import MAX, SUM, Axis, Compute, Monoid, Program
from tsc.te.evaluate import evaluate
from tsc.te.expr import Buffer, Call, Const, Expr, Load, add, call, mul
from tsc.te.passes.hoist import hoist, split_scales

A, K, N = dim("A"), dim("K"), dim("N")
X, V, S, T = buffer("x", A, K), buffer("v", K, N), buffer("s", A), buffer("t", N)
ACC, OUT, P = buffer("acc", A, N), buffer("out", N, A), buffer("p", A, K)
SIZES = {"A": 3, "K": 5, "N": 4}


def scaled_operand(reads: int = 1, output: bool = False, monoid: Monoid = SUM, dtype: str = "float32",
                   share: str = "div") -> Program:
    """out[j, i] = (max or sum over k of p[i, k] * v[k, j]) + s[i], p[i, k] = x[i, k] / s[i]."""
    def typed(b: Buffer) -> Buffer:
        return replace(b, dtype=dtype)

    i, j, k, m, n, y, x = (axis(name, extent) for name, extent in zip("ijkmnyx", (A, N, K, A, K, N, A)))
    term = mul(at(typed(P), i, k), at(typed(V), k, j))
    for _ in range(reads - 1):
        term = mul(term, at(typed(P), i, k))
    return Program(
        (typed(X), typed(V), typed(S)), (typed(OUT), typed(P)) if output else (typed(OUT),),
        (Compute(typed(P), (m, n), call(share, at(typed(X), m, n), at(typed(S), m))),
         Compute(typed(ACC), (i, j), term, (k,), monoid),
         Compute(typed(OUT), (y, x), add(at(typed(ACC), x, y), at(typed(S), x)))), ())


def values(program: Program, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    shapes = {b.name: tuple(d.evaluate(SIZES) for d in b.shape) for b in program.inputs}
    inputs = {name: rng.uniform(0.5, 2.0, shape) for name, shape in shapes.items()}
    return evaluate(program, inputs, SIZES, "float64")["out"]


def test_a_division_happens_once_an_output_and_its_operand_is_read_as_stored() -> None:
    program = scaled_operand()
    after = hoist(program, ["acc"], environment())
    assert str(after.computes[1]) == "acc[i<A, j<N] = add over k<K: mul(x[i, k], v[k, j])"
    assert str(after.computes[2]) == "out[y<N, x<A] = add(div(acc[x, y], s[x]), s[x])"
    np.testing.assert_allclose(values(after), values(program), rtol=1e-12)


@pytest.mark.parametrize("program", [
    scaled_operand(reads=2), scaled_operand(output=True), scaled_operand(monoid=MAX), scaled_operand(dtype="float16"),
    scaled_operand(dtype="int64"), scaled_operand(share="add")],
    ids=["read twice", "an output", "a maximum", "narrow floats", "integers", "no scale"])
def test_what_cannot_be_hoisted_stays(program: Program) -> None:
    assert hoist(program, ["acc"], environment()) is program


def test_a_sum_that_may_be_empty_stays() -> None:
    """0 / 0 is no 0."""
    env = environment()
    env.declare("E", 0)
    program = scaled_operand()
    empty = tuple(replace(c, reduce_axes=tuple(Axis(a.name, dim("E")) for a in c.reduce_axes)) for c in program.computes)
    assert hoist(replace(program, computes=empty), ["acc"], env).computes == empty


@st.composite
def terms(draw: st.DrawFn, depth: int = 4) -> Expr:
    """Products, quotients and sums of what varies with k and what does not."""
    i, j, k = axis("i", A), axis("j", N), axis("k", K)
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from([at(X, i, k), at(V, k, j), at(S, i), at(T, j), Const(0.75, "float32")]))
    fn = draw(st.sampled_from(["mul", "mul", "div", "div", "add"]))
    return call(fn, draw(terms(depth - 1)), draw(terms(depth - 1)))


@settings(max_examples=150, deadline=None)
@given(terms(), st.integers(0, 100))
def test_any_terms_keep_their_sum(term: Expr, seed: int) -> None:
    i, j, k, y, x = (axis(name, extent) for name, extent in zip("ijkyx", (A, N, K, N, A)))
    program = Program((X, V, S, T), (OUT,), (
        Compute(ACC, (i, j), term, (k,), SUM), Compute(OUT, (y, x), mul(at(ACC, x, y), at(ACC, x, y)))), ())
    after = hoist(program, ["acc"], environment())
    np.testing.assert_allclose(values(after, seed), values(program, seed), rtol=1e-10)
    core = after.computes[0].body
    assert not split_scales(core, {"k"}).scales or not _varies(core)


def _varies(expr: Expr) -> bool:
    return any(isinstance(e, Load) and e.buffer.name in "xv" for e in _walk(expr))


def _walk(expr: Expr) -> list[Expr]:
    return [expr, *(e for a in getattr(expr, "args", ()) for e in _walk(a))]


def test_a_wrong_hoist_is_seen() -> None:
    """The oracle notices a scale applied with the wrong axis' value."""
    program = scaled_operand()
    after = hoist(program, ["acc"], environment())
    wrong = replace(after.computes[2], body=add(call("mul", at(ACC, axis("x", A), axis("y", N)), at(S, axis("x", A))),
                                               at(S, axis("x", A))))
    assert not np.allclose(values(replace(after, computes=(*after.computes[:2], wrong))), values(program))


def test_scales_come_in_the_order_they_are_applied() -> None:
    i, k = axis("i", A), axis("k", K)
    found = split_scales(call("div", mul(at(S, i), at(X, i, k)), Const(2.0, "float32")), {"k"})
    assert str(found.core) == str(at(X, i, k))
    assert [fn for fn, _ in found.scales] == ["mul", "div"] and isinstance(found.scales[1][1], Const)
    assert split_scales(Call("exp", (at(X, i, k),), "float32"), {"k"}).scales == ()

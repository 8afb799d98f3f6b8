"""The te evaluator against NumPy: reductions in slabs, guarded reads, data errors, precision."""

from __future__ import annotations

import numpy as np
import pytest

from tsc.errors import InputError, InternalError
from tsc.sym import SymExpr, dim
from tsc.te import evaluate as module
from tsc.te.compute import MAX, SUM, Axis, Compute, Monoid, Program, SizeParam
from tsc.te.evaluate import evaluate
from tsc.te.expr import Buffer, Cast, CheckedIndex, Const, Expr, Load, Size, Var, add, call, index, mul, select

N, K = dim("n"), dim("k")
AI, AJ, AR = Axis("i", N), Axis("j", SymExpr.of(3)), Axis("r", K)
VI, VJ, VR = Var("i"), Var("j"), Var("r")
A = Buffer("a", "float32", (N, K))
B = Buffer("b", "float32", (K, SymExpr.of(3)))


def program(inputs: tuple[Buffer, ...], *computes: Compute) -> Program:
    return Program(inputs, (computes[-1].target,), computes, (SizeParam("n"), SizeParam("k")))


def vector(body: Expr, dtype: str = "float32") -> Compute:
    return Compute(Buffer("y", dtype, (N,)), (AI,), body)


@pytest.mark.parametrize("chunk", [1, 7, 1 << 22])
def test_a_matmul_in_slabs_of_any_size(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK", chunk)
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(5, 7)).astype(np.float32), rng.normal(size=(7, 3)).astype(np.float32)
    body = mul(Load(A, (VI, VR)), Load(B, (VR, VJ)))
    made = program((A, B), Compute(Buffer("y", "float32", (N, SymExpr.of(3))), (AI, AJ), body, (AR,), SUM))
    got = evaluate(made, {"a": a, "b": b}, {"n": 5, "k": 7})["y"]
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, a.astype(np.float64) @ b, rtol=1e-5, atol=1e-6)


def test_float64_is_closer_than_float32() -> None:
    a = np.random.default_rng(1).uniform(size=(1, 5000)).astype(np.float32)
    made = program((A,), Compute(Buffer("y", "float32", (N,)), (AI,), call("exp", Load(A, (VI, VR))), (AR,), SUM))
    exact = np.exp(a.astype(np.float64)).sum(1)
    wide = evaluate(made, {"a": a}, {"n": 1, "k": 5000}, dtype="float64")["y"]
    assert wide.dtype == np.float64
    np.testing.assert_allclose(wide, exact, rtol=1e-14)


@pytest.mark.parametrize("fn", ["add", "mul", "max", "min"])
def test_a_reduction_over_nothing_is_the_identity(fn: str) -> None:
    monoid = Monoid(fn)
    made = program((A,), Compute(Buffer("y", "float32", (N,)), (AI,), Load(A, (VI, VR)), (AR,), monoid))
    got = evaluate(made, {"a": np.empty((2, 0), np.float32)}, {"n": 2, "k": 0})["y"]
    np.testing.assert_array_equal(got, np.full(2, monoid.identity("float32"), np.float32))


def test_a_later_compute_reads_an_earlier_one() -> None:
    top = Compute(Buffer("m", "float32", (N,)), (AI,), Load(A, (VI, VR)), (AR,), MAX)
    shifted = Compute(Buffer("y", "float32", (N, K)), (AI, AR), call("sub", Load(A, (VI, VR)), Load(top.target, (VI,))))
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    got = evaluate(program((A,), top, shifted), {"a": a}, {"n": 2, "k": 3})
    np.testing.assert_array_equal(got["m"], a.max(1))
    np.testing.assert_array_equal(got["y"], a - a.max(1, keepdims=True))


def test_only_the_chosen_side_of_a_select_must_be_inside() -> None:
    previous = call("sub", VI, index(1))
    guarded = select(call("ge", previous, index(0)), Load(A, (previous, index(0))), Const(-1.0, "float32"))
    a = np.arange(4, dtype=np.float32).reshape(4, 1)
    np.testing.assert_array_equal(evaluate(program((A,), vector(guarded)), {"a": a}, {"n": 4, "k": 1})["y"], [-1, 0, 1, 2])
    unguarded = vector(Load(A, (previous, index(0))))
    with pytest.raises(InternalError, match=r"buffer a .* read outside"):
        evaluate(program((A,), unguarded), {"a": a}, {"n": 4, "k": 1})


def test_a_checked_index_counts_from_the_end_and_names_its_tensor() -> None:
    ids = Buffer("ids", "int64", (N,))
    made = program((A, ids), vector(Load(A, (CheckedIndex(Load(ids, (VI,)), N, "ids"), index(0)))))
    a = np.arange(3, dtype=np.float32).reshape(3, 1)
    got = evaluate(made, {"a": a, "ids": np.array([-1, 0, 2])}, {"n": 3, "k": 1})["y"]
    np.testing.assert_array_equal(got, [2, 0, 2])
    for bad in (3, -4):
        with pytest.raises(InputError, match=f"index {bad} of 'ids'"):
            evaluate(made, {"a": a, "ids": np.array([0, bad, 1])}, {"n": 3, "k": 1})


def test_a_checked_index_in_the_other_branch_is_no_error() -> None:
    ids = Buffer("ids", "int64", (N,))
    read = Load(A, (CheckedIndex(Load(ids, (VI,)), N, "ids"), index(0)))
    body = select(call("lt", Load(ids, (VI,)), index(2)), read, Const(0.0, "float32"))
    a = np.ones((2, 1), np.float32)
    np.testing.assert_array_equal(
        evaluate(program((A, ids), vector(body)), {"a": a, "ids": np.array([9, 1])}, {"n": 2, "k": 1})["y"], [0, 1])


def test_casts_follow_c() -> None:
    x = Buffer("a", "float32", (N,))
    values = np.array([-1.7, 0.0, 0.4, 2.9], np.float32)
    for dtype, want in (("int32", [-1, 0, 0, 2]), ("bool", [True, False, True, True])):
        got = evaluate(program((x,), vector(Cast(Load(x, (VI,)), dtype), dtype)), {"a": values}, {"n": 4, "k": 1})["y"]
        np.testing.assert_array_equal(got, np.array(want, dtype))


def test_sizes_are_integers_of_the_call() -> None:
    made = program((), vector(Cast(add(VI, Size(N * K + 1)), "float32")))
    np.testing.assert_array_equal(evaluate(made, {}, {"n": 3, "k": 5})["y"], [16, 17, 18])


def test_an_input_of_another_shape_is_refused() -> None:
    made = program((A,), vector(Load(A, (VI, index(0)))))
    with pytest.raises(InternalError, match=r"shape \(2, 2\), expected \(2, 3\)"):
        evaluate(made, {"a": np.zeros((2, 2), np.float32)}, {"n": 2, "k": 3})


def test_literals_are_equal_that_are_the_same() -> None:
    """Programs that differ in the sign of a zero alone are two: equal ones share a kernel."""
    zero, negative, nan = (Const(v, "float32") for v in (0.0, -0.0, float("nan")))
    assert zero != negative and zero == Const(0, "float32") and zero != Const(0.0, "float64")
    assert nan == Const(float("nan"), "float32") and nan != zero and hash(nan) == hash(Const(-float("nan"), "float32"))
    assert len({zero, negative, nan, Const(0.0, "float32"), Const(float("nan"), "float32")}) == 3

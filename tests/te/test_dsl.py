"""The tensor DSL: what expressions mean, what they become, and that `tsc.build` runs them at any shape."""

from __future__ import annotations

import doctest
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tsc
import tsc.build_te
from tests.poly.support import SMALL, WIDE
from tests.te.expressions import banded, log_sum_exp, program_of
from tsc import te
from tsc.poly.schedule import schedule_program
from tsc.poly.steps import Steps
from tsc.te.dsl import maths, scalar, tensor

RNG = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("module", [scalar, tensor, maths, tsc.build_te], ids=lambda m: m.__name__)
def test_the_examples_of_the_docstrings(module: Any) -> None:
    done = doctest.testmod(module)
    assert done.failed == 0 and (done.attempted > 0 or module is scalar)


def _chosen(condition: Callable[[te.Scalar], te.Scalar]) -> te.Tensor:
    x = te.placeholder((te.dim("N"),), "float32", "x")
    return te.compute((te.dim("N"),), lambda i: te.where(condition(i), x[i], 0.0), "y")


@pytest.mark.parametrize("c", [2**63 - 1, -(2**63), 2**62, -(2**49)])
def test_no_arithmetic_of_an_index_leaves_int64(c: int) -> None:
    for condition in (lambda i: i + c > 5, lambda i: c - i > 5, lambda i: i * c > 5, lambda i: te.dim("N") + c > i):
        with pytest.raises(tsc.ModelError, match=f"test_dsl.py:[0-9]+: the literal {c} is too large"):
            _chosen(condition)
    x = normal(9)
    found = tsc.build(_chosen(lambda i: i < c)).run(None, {"x": x})[0]
    assert (found == (x if c > 0 else 0)).all()
    i = np.arange(9, dtype=np.uint64)
    found = tsc.build(_chosen(lambda i: te.cast(i, "uint64") * abs(c) > 5)).run(None, {"x": x})[0]
    assert (found == np.where(i * np.uint64(abs(c)) > 5, x, 0)).all()


def test_literals_one_after_the_other_leave_int64_together() -> None:
    n, c = te.dim("N"), 2**31 - 1
    for condition in (lambda i: i * c * 3 > 5, lambda i: n * c * c > i, lambda i: (i * c + n) * c > 5,
                      lambda i: te.minimum(i * c, n) * -9 < 5, lambda i: i * c // 2 * c > 5):
        with pytest.raises(tsc.ModelError, match="is too large for the arithmetic of an index"):
            _chosen(condition)
    x = normal(9)
    for least in (c * 8, c * 8 + 1):
        found = tsc.build(_chosen(lambda i, least=least: i * c >= least)).run(None, {"x": x})[0]
        assert (found == np.where(np.arange(9) * c >= least, x, 0)).all()


# -- what expressions become -----------------------------------------------------------------------------------

def test_names_of_axes_and_sizes_stay() -> None:
    m, n = te.dim("M", 1, 64, divisor=8), te.dim("N")
    x = te.placeholder((m, n), "float32", "x")
    k = te.reduce_axis(n, "k")
    y = te.compute((m, 2), lambda row, part: te.sum(x[row, k] * te.cast(part + 1, "float32"), axis=k), "y")
    assert str(y.definition) == "y[row<M, part<2] = add over k<N: mul(x[row, k], float32(add(part, 1)))"
    assert str(x) == "x: float32[M, N]" and str(x.shape[1]) == "N" and y.shape[1] == 2
    assert str(te.dim("a") * 2 + te.dim("b") // 4) == "2*a + (b // 4)"


def test_any_number_of_indices() -> None:
    x = te.placeholder((2, 3, 4), "float32", "x")
    assert str(te.compute((2, 3, 4), lambda *at: x[at] + 1.0, "y").definition).startswith("y[at0<2, at1<3, at2<4]")


@pytest.mark.parametrize("combine, fn", [
    (lambda a, b: a + b, "add"), (lambda a, b: b * a, "mul"), (te.maximum, "max"), (te.minimum, "min")])
def test_declared_monoids_are_recognised(combine: Callable[..., Any], fn: str) -> None:
    x, k = te.placeholder((5,), "float32", "x"), te.reduce_axis(5, "k")
    monoid = te.reduce(combine, x[k], axis=k).monoid
    assert monoid.fn == fn


# -- running ---------------------------------------------------------------------------------------------------

SHAPES = [(1, 1), (1, 5), (7, 1), (5, 3), (33, 70)]


@pytest.fixture(scope="module")
def banded_kernel() -> tsc.runtime.executable.Executable:
    return tsc.build(banded(), threads=2)


@pytest.mark.parametrize("m, n", SHAPES)
def test_a_banded_matmul_with_a_row_statistic(banded_kernel: Any, m: int, n: int) -> None:
    x, w = normal(m, m), normal(m, n)
    weights = np.exp(x.astype(np.float64)) * (np.abs(np.arange(m)[:, None] - np.arange(m)) <= 2)
    expected = weights @ w / weights.sum(1, keepdims=True)
    np.testing.assert_allclose(banded_kernel.run(None, {"x": x, "w": w})[0], expected, rtol=2e-5, atol=2e-5)


def test_it_is_one_kernel_compiled_once_and_kept_in_a_package(banded_kernel: Any, tmp_path: Path) -> None:
    assert banded_kernel.stats["launches"] == 1 and banded_kernel.stats["compiles"] == 1
    banded_kernel.save(tmp_path / "banded.tscpack")
    feeds = {"x": normal(6, 6), "w": normal(6, 2)}
    np.testing.assert_array_equal(
        tsc.load(tmp_path / "banded.tscpack").run(None, feeds)[0], banded_kernel.run(None, feeds)[0])


def test_what_is_no_operator_leaves_the_same_dump() -> None:
    """The steps, the log and the tree of a user's expression have the form of those of a built-in softmax."""
    found = []
    for program in (program_of(banded()), program_of(log_sum_exp())):
        steps = Steps()
        result = schedule_program(program, SMALL, None, None, "kernel", steps=steps)
        found.append(([title for title, _ in steps.kept], [line.split("\n")[0].split(" ")[0] for line in result.log]))
    assert found[0][0] == found[1][0]
    assert {"rows", "stage", "dropped"} <= set(found[0][1]) and set(found[0][1]) == set(found[1][1])


def test_golden_of_a_banded_matmul(golden: Callable[[str, str], None]) -> None:
    result = schedule_program(program_of(banded()), WIDE, None, None, "kernel")
    refusals = tuple(f"{pattern}: " for pattern in ("scan", "stencil", "contraction", "chain", "reduction", "injective"))
    log = [line for line in result.log if not line.startswith(refusals)]  # of the patterns there are, which is not the point
    golden("poly/banded.txt", "\n".join([str(program_of(banded())), *log, "tree", result.tree]))


def test_matmul_with_epilogue_is_one_contraction() -> None:
    m, weight = te.dim("M"), normal(6, 70)
    a, w = te.placeholder((m, 6), "float32", "a"), te.constant(weight, "w")
    r = te.reduce_axis(6, "r")
    c = te.compute((m, 70), lambda i, j: te.sum(a[i, r] * w[r, j], axis=r), "c")
    y = te.compute((m, 70), lambda i, j: te.maximum(c[i, j] - 1.0, 0.0), "y")
    kernel = tsc.build(y)
    assert kernel.stats["launches"] == 1 and "the pattern is contraction" in kernel.explain()
    for rows in (1, 8, 13):
        x = normal(rows, 6)
        np.testing.assert_allclose(
            kernel.run(None, {"a": x})[0], np.maximum(x.astype(np.float64) @ weight - 1, 0), rtol=1e-5, atol=1e-5)


def test_what_a_model_says_too_is_the_same_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """relu(a @ w) as an ONNX model and as expressions: equal Programs, hence one kernel, with every stage dumped alike."""
    m, r, w = te.dim("M"), te.reduce_axis(6, "r"), normal(6, 70)
    a, weight = te.placeholder((m, 6), "float32", "a"), te.constant(w, "w")
    c = te.compute((m, 70), lambda i, j: te.sum(a[i, r] * weight[r, j], axis=r), "c")
    y = te.compute((m, 70), lambda i, j: te.maximum(c[i, j], 0.0), "y")
    nodes = [helper.make_node("MatMul", ["a", "w"], ["c"], "dense"), helper.make_node("Relu", ["c"], ["y"], "relu")]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("a", TensorProto.FLOAT, ["M", 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["M", 70])], [numpy_helper.from_array(w, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    dumps = []
    for name, make in (("te", lambda: tsc.build(y)), ("onnx", lambda: tsc.compile(model))):
        monkeypatch.setenv("TSC_DUMP", str(tmp_path / name))
        make()
        dumps.append({f.name: f.read_text() for f in (tmp_path / name).iterdir() if f.name.startswith("contraction_")})
    assert {name.rpartition(".")[2] for name in dumps[0]} == {"te", "factoring", "config", "schedule", "loop_ir", "c"}
    assert dumps[0] == dumps[1]


FLOATS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "exp": (te.exp, np.exp), "log": (lambda x: te.log(abs(x)), lambda x: np.log(np.abs(x))),
    "sqrt": (lambda x: te.sqrt(x * x), np.abs), "tanh": (te.tanh, np.tanh), "sin": (te.sin, np.sin), "cos": (te.cos, np.cos),
    "erf": (te.erf, lambda x: np.vectorize(math.erf)(x)), "floor": (te.floor, np.floor), "ceil": (te.ceil, np.ceil),
    "power": (lambda x: abs(x) ** 1.5, lambda x: np.abs(x) ** 1.5),
    "shares": (lambda x: 1.0 / (x + 4.0) - x, lambda x: 1 / (x + 4) - x),
    "cut": (lambda x: te.minimum(te.maximum(x, -1), 1), lambda x: np.clip(x, -1, 1)),
    "whole": (lambda x: te.cast(te.cast(x * 3.0, "int32"), "float32"), lambda x: np.trunc(x * 3)),
    "choice": (lambda x: te.where(te.any_of(x < -1.0, x > 1.0) & ~(x == 2.0), -x, np.float32(2) * x),
               lambda x: np.where((x < -1) | (x > 1), -x, 2 * x))}


def test_functions_of_scalars() -> None:
    n = te.dim("n")
    x = te.placeholder((n,), "float32", "x")
    values = [te.compute((n,), partial(_applied, function, x), name) for name, (function, _) in FLOATS.items()]
    a = normal(37)
    for name, got in zip(FLOATS, tsc.build(values).run(None, {"x": a})):
        np.testing.assert_allclose(got, FLOATS[name][1](a.astype(np.float64)), rtol=2e-5, atol=2e-6, err_msg=name)


def _applied(function: Callable[..., Any], x: te.Tensor, i: te.Scalar) -> te.Scalar:
    made: te.Scalar = function(x[i])
    return made


def test_what_does_not_fit_is_cut_and_said_so() -> None:
    """Two products of unlike shapes with a reduction over both: several kernels, each cut with its reason."""
    m, k = te.dim("M"), te.dim("K")
    a, b = te.placeholder((m, k), "float32", "a"), te.placeholder((k, m), "float32", "b")
    r, s = te.reduce_axis(k, "r"), te.reduce_axis(m, "s")
    c = te.compute((m, m), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), "c")
    d = te.compute((m, m), lambda i, j: te.sum(c[i, s] * c[s, j], axis=s), "d")
    kernel = tsc.build([d, c])
    assert kernel.stats["launches"] > 1 and "split: d: not in the kernel of c: " in kernel.explain()
    x, y = normal(9, 4), normal(4, 9)
    product = x.astype(np.float64) @ y
    first, second = kernel.run(None, {"a": x, "b": y})
    np.testing.assert_allclose(second, product, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(first, product @ product, rtol=1e-4, atol=1e-4)


def test_indices_that_are_data_are_checked_when_it_runs() -> None:
    n, v = te.dim("n"), te.dim("v")
    ids, table = te.placeholder((n,), "int32", "ids"), te.placeholder((v, 3), "float32", "table")
    kernel = tsc.build(te.compute((n, 3), lambda i, j: table[ids[i], j] * 2.0, "rows"))
    rows, some = normal(5, 3), np.array([4, 0, -1], np.int32)
    np.testing.assert_array_equal(kernel.run(None, {"ids": some, "table": rows})[0], rows[some] * 2)
    assert "is indexed by data" in kernel.explain()
    with pytest.raises(tsc.InputError, match="'ids' holds an index that is out of bounds"):
        kernel.run(None, {"ids": some + 2, "table": rows})


@pytest.mark.parametrize("rows", [1, 20, 130, 290])
@pytest.mark.parametrize(("place", "meaning"), [
    (lambda i: te.cast(i, "uint8"), lambda i: i.astype(np.uint8)),
    (lambda i: te.cast(i, "int8"), lambda i: i.astype(np.int8)),
    (lambda i: te.cast(te.cast(i, "int32") * 5, "int64"), lambda i: i * 5),
    (lambda i: te.cast(te.cast(i, "float32") * 0.5, "int64"), lambda i: i // 2),
], ids=["uint8", "int8", "int32", "float32"])
def test_indices_of_other_integers_are_checked_when_it_runs(rows: int, place: Callable[[te.Scalar], te.Scalar],
                                                            meaning: Callable[[Any], Any]) -> None:
    """Nobody checked them: isl says nothing of a Cast."""
    m = te.dim("M")
    x, z = te.placeholder((te.dim("N"),), "float32", "x"), te.placeholder((m,), "float32", "z")
    exe = tsc.build(te.compute((m,), lambda i: x[place(i)] + z[i], "y"))
    feeds, at = {"x": normal(150), "z": normal(rows)}, meaning(np.arange(rows)).astype(np.int64)
    if (at < 150).all():
        assert (exe.run(None, feeds)[0] == feeds["x"][at] + feeds["z"]).all()
    else:
        with pytest.raises(tsc.InputError, match="an index expression holds an index that is out of bounds"):
            exe.run(None, feeds)


def test_indices_that_are_not_affine_are_allowed_and_explained() -> None:
    n, length = te.dim("n"), te.dim("L")
    x, y = te.placeholder((n * length,), "float32", "x"), te.placeholder((n, length), "float32", "y")
    flat = te.compute((n * length,), lambda i: x[i] + y[i // length, i % length], "flat")
    square = te.compute((n,), lambda i: x[i * i], "square")
    kernel = tsc.build([flat, square])
    a, b = normal(6), normal(2, 3)
    outputs = kernel.run(None, {"x": a, "y": b})
    np.testing.assert_array_equal(outputs[0], a + b.ravel())
    np.testing.assert_array_equal(outputs[1], a[[0, 1]])
    text = kernel.explain()
    assert "proved to stay within it" in text and "'x[i * i]' is not affine" in text and "checked at run time" in text
    with pytest.raises(tsc.InputError, match="out of bounds"):
        kernel.run(None, {"x": normal(3), "y": normal(3, 1)})


def test_scalars_integers_conditions_and_several_outputs() -> None:
    n = te.dim("n", 0)
    x, shift = te.placeholder((n,), "int64", "x"), te.placeholder((), "int64", "shift")
    k = te.reduce_axis(n, "k")
    moved = te.compute((n,), lambda i: (x[i] + shift[()]) // 2 * 3 % 5, "moved")
    odd = te.compute((n,), lambda i: te.any_of(moved[i] % 2 == 1, ~(moved[i] >= 0)), "odd")
    least = te.compute((), lambda: te.min(x[k], axis=k), "least")
    total = te.compute((), lambda: te.reduce(lambda a, b: a | b, odd[k], axis=k), "total")
    kernel = tsc.build([moved, odd, least, total], inputs=[shift, x])
    assert [i.name for i in kernel.inputs] == ["shift", "x"]
    a = np.array([5, -3, 8, 0, 2], np.int64)
    results = kernel.run(None, {"x": a, "shift": np.array(1)})
    expected = (a + 1) // 2 * 3 % 5
    for got, want in zip(results, (expected, expected % 2 == 1, a.min(), bool((expected % 2 == 1).any()))):
        np.testing.assert_array_equal(got, want)
    empty = kernel.run(None, {"x": a[:0], "shift": np.array(1)})
    assert empty[0].shape == (0,) and empty[2] == np.iinfo(np.int64).max and not empty[3]


def test_ranges_are_checked_when_it_runs() -> None:
    n = te.dim("n", 4, 16, divisor=4)
    x = te.placeholder((n,), "float32", "x")
    kernel = tsc.build(te.compute((n,), lambda i: te.exp(x[i]), "y"))
    np.testing.assert_allclose(kernel.run(None, {"x": np.zeros(8, np.float32)})[0], np.ones(8))
    for wrong in (3, 6, 20):
        with pytest.raises(tsc.ShapeError, match="n"):
            kernel.run(None, {"x": np.zeros(wrong, np.float32)})

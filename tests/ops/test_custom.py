"""Operators that users write as tensor expressions, in ONNX models: `tsc.op` and `tsc.compile(..., ops=[...])`."""

from __future__ import annotations

import doctest
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tsc
from tsc import te
from tsc.explain import explain_node
from tsc.ops import define
from tsc.ops.define import CustomOp

DOMAIN = "com.example"
RNG = np.random.default_rng(0)


def model(nodes: Sequence[onnx.NodeProto], inputs: dict[str, list[Any]], outputs: Sequence[str],
          **weights: Any) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes), "custom", [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def node(op: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, f"the_{op}", domain=DOMAIN, **attributes)


@tsc.op(DOMAIN, "Banded", shapes=[("M", "M"), ("M", "N")])
def banded(x: te.Tensor, w: te.Tensor, width: int = 2) -> te.Tensor:
    """A banded matmul over softmax weights: rows of x within `width` of the diagonal."""
    m, n = w.shape
    near, far = te.reduce_axis(2 * width + 1, "o"), te.reduce_axis(2 * width + 1, "o")

    def weight(i: te.Scalar, column: te.Scalar) -> te.Scalar:
        return te.where(te.all_of(column >= 0, column < m), te.exp(x[i, column]), 0.0)

    def cell(i: te.Scalar, j: te.Scalar) -> te.Reduction:
        column = i + far - width
        return te.sum(weight(i, column) * te.where(te.all_of(column >= 0, column < m), w[column, j], 0.0), axis=far)

    total = te.compute((m,), lambda i: te.sum(weight(i, i + near - width), axis=near), "total")
    product = te.compute((m, n), cell, "product")
    return te.compute((m, n), lambda i, j: product[i, j] / total[i], "y")


@tsc.op(DOMAIN, "Extremes")
def extremes(x: te.Tensor) -> tuple[te.Tensor, te.Tensor]:
    """The greatest and the least of each row, scaled by a table."""
    rows, columns = x.shape
    a, b = te.reduce_axis(columns, "a"), te.reduce_axis(columns, "b")
    scale = te.constant(np.array([2.0, -1.0], np.float32), "scale")
    top = te.compute((rows,), lambda i: te.max(x[i, a], axis=a), "top")
    low = te.compute((rows,), lambda i: te.min(x[i, b], axis=b), "low")
    return (te.compute((rows,), lambda i: top[i] * scale[0], "first"),
            te.compute((rows,), lambda i: (low[i] + top[i]) * scale[1], "second"))


@pytest.fixture(scope="module")
def banded_model() -> onnx.ModelProto:
    """tanh(banded(relu(x), w, width=1)); x is [rows, columns], which the operator says are equal."""
    return model(
        [helper.make_node("Relu", ["x"], ["r"], "relu"), node("Banded", ["r", "w"], ["b"], width=1),
         helper.make_node("Tanh", ["b"], ["y"], "tanh")], {"x": ["rows", "columns"], "w": ["rows", 4]}, ["y"])


def expected(x: Any, w: Any) -> Any:
    near = np.abs(np.arange(len(x))[:, None] - np.arange(len(x))) <= 1
    weights = np.exp(np.maximum(x.astype(np.float64), 0)) * near
    return np.tanh(weights @ w / weights.sum(1, keepdims=True))


def test_a_model_with_an_operator_of_ones_own(banded_model: onnx.ModelProto, tmp_path: Path) -> None:
    """Any shape; its three Computes are one kernel; and the Package needs no operator any more."""
    executable = tsc.compile(banded_model, ops=[banded])
    assert executable.stats["launches"] == 3
    executable.save(tmp_path / "m.tscpack")
    for run in (executable, tsc.load(tmp_path / "m.tscpack")):
        for n in (1, 2, 9, 40):
            x, w = (RNG.standard_normal(s).astype(np.float32) for s in ((n, n), (n, 4)))
            np.testing.assert_allclose(run.run(None, {"x": x, "w": w})[0], expected(x, w), rtol=1e-5, atol=1e-5)
    with pytest.raises(tsc.ShapeError):
        executable.run(None, {"x": np.zeros((3, 4), np.float32), "w": np.zeros((3, 4), np.float32)})


def test_without_the_operator_the_model_is_refused(banded_model: onnx.ModelProto) -> None:
    with pytest.raises(tsc.UnsupportedError, match=r"com\.example\.Banded"):
        tsc.compile(banded_model)


def test_explain_tells_of_its_kernel(banded_model: onnx.ModelProto) -> None:
    text = explain_node(banded_model, "the_Banded", ops=[banded])
    assert "== the kernel of the_Banded/total, the_Banded/product, b" in text
    assert "tree: separate stages" in text and "writes b: at most" in text


def test_several_outputs_constants_and_what_is_not_needed() -> None:
    both = tsc.compile(model([node("Extremes", ["x"], ["p", "q"])], {"x": ["n", "m"]}, ["q", "p"]), ops=[extremes])
    one = tsc.compile(model([node("Extremes", ["x"], ["", "q"])], {"x": ["n", "m"]}, ["q"]), ops=[extremes])
    for shape in ((1, 1), (5, 7)):
        x = RNG.standard_normal(shape).astype(np.float32)
        top, low = x.max(1), x.min(1)
        second, first = both.run(None, {"x": x})
        np.testing.assert_array_equal(first, top * 2)
        np.testing.assert_array_equal(second, -(low + top))
        np.testing.assert_array_equal(one.run(None, {"x": x})[0], -(low + top))


def test_weights_of_the_model_are_inputs_like_any_other() -> None:
    @tsc.op(DOMAIN, "Linear")
    def linear(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        (m, k), n = x.shape, w.shape[1]
        r = te.reduce_axis(k, "r")
        return te.compute((m, n), lambda i, j: te.sum(x[i, r] * w[r, j], axis=r), "y")

    weight = RNG.standard_normal((6, 70)).astype(np.float32)
    kernel = tsc.compile(model([node("Linear", ["x", "w"], ["y"])], {"x": ["n", 6]}, ["y"], w=weight), ops=[linear])
    x = RNG.standard_normal((9, 6)).astype(np.float32)
    np.testing.assert_allclose(kernel.run(None, {"x": x})[0], x.astype(np.float64) @ weight, rtol=1e-5, atol=1e-5)
    assert [i.name for i in kernel.inputs] == ["x"]


@tsc.op(DOMAIN, "Swish")
def swish(x: te.Tensor) -> te.Tensor:
    return te.compute(x.shape, lambda *i: x[i] / (1.0 + te.exp(-x[i])), "y")


@tsc.op(DOMAIN, "Skewed", shapes=[("M", "K"), ("K", "N")])
def skewed(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """A matmul over a's columns in reverse."""
    (m, k), n = a.shape, b.shape[1]
    r = te.reduce_axis(k, "r")
    return te.compute((m, n), lambda i, j: te.sum(a[i, k - 1 - r] * b[r, j], axis=r), "y")


@tsc.op(DOMAIN, "Spread")
def spread(x: te.Tensor) -> te.Tensor:
    r = te.reduce_axis(x.shape[1], "r")
    return te.compute(x.shape[:1], lambda i: te.max(x[i, r], axis=r), "y")


def test_one_compute_fuses_like_any_other_node() -> None:
    """Swish is an epilogue of a MatMul; a skewed matmul takes a Relu; a row maximum takes the Exp before it."""
    w = RNG.standard_normal((6, 5)).astype(np.float32)
    kernels = [tsc.compile(m, ops=[swish, skewed, spread]) for m in (
        model([helper.make_node("MatMul", ["x", "w"], ["a"], "dense"), node("Swish", ["a"], ["y"])],
              {"x": ["n", 6]}, ["y"], w=w),
        model([node("Skewed", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"], "relu")], {"x": ["n", 6]}, ["y"], w=w),
        model([helper.make_node("Exp", ["x"], ["a"], "exp"), node("Spread", ["a"], ["y"])], {"x": ["n", "m"]}, ["y"]))]
    assert [k.stats["launches"] for k in kernels] == [1, 1, 1], [k.explain() for k in kernels]
    for rows in (1, 9, 23):
        x = RNG.standard_normal((rows, 6)).astype(np.float32)
        wide = x.astype(np.float64)
        product = wide @ w
        for kernel, want in zip(kernels, (product / (1 + np.exp(-product)), np.maximum(wide[:, ::-1] @ w, 0),
                                          np.exp(wide).max(1))):
            np.testing.assert_allclose(kernel.run(None, {"x": x})[0], want, rtol=1e-5, atol=1e-5)


def test_the_example_of_the_docstring() -> None:
    done = doctest.testmod(define)
    assert done.attempted and not done.failed


# -- refusals --------------------------------------------------------------------------------------------------

@tsc.op(DOMAIN, "Wrong")
def beyond(x: te.Tensor) -> te.Tensor:
    n, m = x.shape
    return te.compute((n, m), lambda i, j: x[i, j + 1], "y")  # !


@tsc.op(DOMAIN, "Wrong")
def ill_typed(x: te.Tensor) -> te.Tensor:
    return te.compute(x.shape, lambda i, j: x[i, j] + i, "y")  # !


@tsc.op(DOMAIN, "Wrong")
def gives_it_back(x: te.Tensor) -> te.Tensor:
    return x


@tsc.op(DOMAIN, "Wrong")
def gives_nothing(x: te.Tensor) -> None:
    te.compute(x.shape, lambda i, j: x[i, j], "y")


@tsc.op(DOMAIN, "Wrong")
def size_of_its_own(x: te.Tensor) -> te.Tensor:
    return te.compute((te.dim("Z"),), lambda i: 1.0, "y")


@tsc.op(DOMAIN, "Wrong", shapes=[("M",)])
def other_rank(x: te.Tensor) -> te.Tensor:
    return te.compute(x.shape, lambda i: x[i], "y")


@tsc.op(DOMAIN, "Wrong")
def other_inputs(x: te.Tensor, y: te.Tensor) -> te.Tensor:
    return te.compute(x.shape, lambda i, j: x[i, j], "z")


@pytest.mark.parametrize("wrong, kind, words", [
    (beyond, tsc.ShapeError, ("x[i, j + 1] reads outside",)), (ill_typed, tsc.ModelError, ("float32", "int64")),
    (gives_it_back, tsc.ModelError, ("an input back",)), (gives_nothing, tsc.ModelError, ("NoneType",)),
    (size_of_its_own, tsc.ModelError, ("'Z'",)), (other_rank, tsc.ModelError, ("rank 1",)),
    (other_inputs, tsc.ModelError, ("'y'",))], ids=lambda x: getattr(getattr(x, "function", None), "__name__", ""))
def test_a_wrong_operator_is_refused_at_its_node(wrong: CustomOp, kind: type[Exception], words: tuple[str, ...]) -> None:
    with pytest.raises(kind) as caught:
        tsc.compile(model([node("Wrong", ["x"], ["y"])], {"x": ["n", "m"]}, ["y"]), ops=[wrong])
    text = str(caught.value)
    assert type(caught.value) is kind and "node 'the_Wrong'" in text and all(w in text for w in words), text
    lines, first = inspect.getsourcelines(wrong.function)
    marked = [first + k for k, line in enumerate(lines) if "# !" in line]
    assert not marked or f"test_custom.py:{marked[0]}:" in text, text


@pytest.mark.parametrize("attributes", [{"colour": 1}, {"width": 1, "x": 2}])
def test_attributes_that_do_not_fit(attributes: dict[str, Any]) -> None:
    wrong = model([node("Banded", ["x", "w"], ["y"], **attributes)], {"x": ["n", "n"], "w": ["n", 2]}, ["y"])
    with pytest.raises(tsc.ModelError, match="the_Banded"):
        tsc.compile(wrong, ops=[banded])


@pytest.mark.parametrize("domain", ["", "ai.onnx", "tsc"])
def test_the_standards_domain_is_not_for_users(domain: str) -> None:
    decorate: Callable[[], Any] = lambda: tsc.op(domain, "Relu")  # noqa: E731
    with pytest.raises(tsc.ModelError, match=r"test_custom\.py.*domain"):
        decorate()

"""te.state and te.scan: recurrences that users write, alone and in an ONNX operator of theirs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tsc
from tsc import te

PRIVATE = tsc.Options(use_cache=False)


def running(x: te.Tensor, reverse: bool = False, axis: int = 0) -> te.Tensor:
    """The running sum of a matrix along an axis."""
    total = te.state(x.shape, name="total", axis=axis, reverse=reverse)

    def added(*at: te.Scalar) -> te.Scalar:
        step = at[axis]
        there = (*at[:axis], step + 1 if reverse else step - 1, *at[axis + 1:])
        inside = step + 1 < x.shape[axis] if reverse else step >= 1
        return x[at] + te.where(inside, total[there], 0.0)

    return te.scan(total, added)


def matrix() -> te.Tensor:
    return te.placeholder((te.dim("n"), te.dim("m")), "float32", "x")


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_running_sum_and_what_is_made_of_it(reverse: bool, axis: int) -> None:
    x = matrix()
    sums = running(x, reverse, axis)
    kernel = tsc.build([te.compute(x.shape, lambda i, j: sums[i, j] * 2.0, "twice"), sums], options=PRIVATE)
    for shape in ((1, 1), (1, 9), (33, 5), (4, 70)):
        data = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        turned = np.flip(data, axis) if reverse else data
        expected = np.cumsum(turned, axis, dtype=np.float64)
        expected = np.flip(expected, axis) if reverse else expected
        twice, total = kernel.run(None, {"x": data})
        np.testing.assert_allclose(total, expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(twice, 2 * expected, rtol=1e-5, atol=1e-5)


def test_two_states_of_one_trip_each_reading_the_other() -> None:
    n = te.dim("n")
    x, a, b = te.placeholder((n,), "float32", "x"), te.state((n,), name="a"), te.state((n,), name="b")
    first = te.scan(a, lambda t: x[t] + te.where(t >= 1, b[t - 1], 1.0))
    second = te.scan(b, lambda t: first[t] * 0.5 - te.where(t >= 2, first[t - 2], 0.0))
    kernel = tsc.build([second, first], options=PRIVATE)
    data = np.random.default_rng(0).standard_normal(17).astype(np.float32)
    left, right = [], []
    for t, value in enumerate(data.astype(np.float64)):
        left.append(value + (right[-1] if t else 1.0))
        right.append(left[-1] * 0.5 - (left[t - 2] if t >= 2 else 0.0))
    found = kernel.run(None, {"x": data})
    np.testing.assert_allclose(found, [right, left], rtol=1e-5, atol=1e-5)
    assert kernel.stats["launches"] == 1


def test_an_initial_state_and_a_product_before() -> None:
    """A projection of all steps at once has a kernel with register tiles of its own."""
    t, b, k = te.dim("T"), te.dim("B"), te.reduce_axis(40, "k")
    x, w = te.placeholder((t, b, 40), "float32", "x"), te.constant(np.eye(40, 16, dtype=np.float32), "w")
    start = te.placeholder((b, 16), "float32", "start")
    made = te.compute((t, b, 16), lambda s, n, j: te.sum(x[s, n, k] * w[k, j], axis=k), "made")
    h = te.state((t, b, 16))
    kernel = tsc.build(te.scan(h, lambda s, n, j: te.tanh(made[s, n, j] + te.where(s >= 1, h[s - 1, n, j], start[n, j]))),
                       options=PRIVATE)
    rng = np.random.default_rng(0)
    for steps, rows in ((1, 1), (9, 5), (40, 2)):
        feeds = {"x": rng.standard_normal((steps, rows, 40)).astype(np.float32),
                 "start": rng.standard_normal((rows, 16)).astype(np.float32)}
        state, expected = feeds["start"].astype(np.float64), []
        for step in feeds["x"]:
            state = np.tanh(step[:, :16] + state)
            expected.append(state)
        np.testing.assert_allclose(kernel.run(None, feeds)[0], expected, rtol=1e-5, atol=1e-5)
    assert kernel.stats["launches"] == 2


def test_in_an_operator_of_a_model() -> None:
    made = tsc.op("com.example", "Running")(lambda x: running(x, axis=1))
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", "m"]) for name in "xy"]
    nodes = [helper.make_node("Abs", ["x"], ["a"]), helper.make_node("Running", ["a"], ["b"], "sums", domain="com.example"),
             helper.make_node("Neg", ["b"], ["y"])]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.example", 1)]
    model = helper.make_model(helper.make_graph(nodes, "g", values[:1], values[1:]), opset_imports=opsets, ir_version=9)
    onnx.checker.check_model(model)
    data = np.random.default_rng(0).standard_normal((5, 13)).astype(np.float32)
    found, = tsc.compile(model, ops=[made], options=PRIVATE).run(None, {"x": data})
    np.testing.assert_allclose(found, -np.cumsum(np.abs(data), 1), rtol=1e-5, atol=1e-5)


def wrong_state() -> te.Tensor:
    return te.state((te.dim("n"),), name="s")


def reading(step: Callable[[te.Tensor, te.Scalar], object]) -> te.Tensor:
    found = wrong_state()
    return te.scan(found, lambda t: step(found, t))


def never_made() -> te.Tensor:
    found = wrong_state()
    return te.compute(found.shape, lambda t: te.where(t >= 1, found[t - 1], 0.0), "y")


def both_ways() -> te.Tensor:
    n = te.dim("n")
    a, b = te.state((n,), name="a"), te.state((n,), name="b", reverse=True)
    first = te.scan(a, lambda t: te.where(t >= 1, b[t - 1], 0.0))
    return te.scan(b, lambda t: first[t] + 1.0)


def one_more() -> te.Tensor:
    n, found = te.dim("n"), wrong_state()
    longer = te.compute((n + 1,), lambda t: te.where((t >= 1) & (t < n), found[t - 1], 0.0), "longer")
    return te.scan(found, lambda t: longer[t] + 1.0)


WRONG: dict[str, tuple[Callable[[], te.Tensor], str]] = {
    "the same trip": (lambda: reading(lambda s, t: s[t] + 1.0), "not there yet"),
    "a later trip": (lambda: reading(lambda s, t: te.where(t + 1 < te.dim("n"), s[t + 1], 0.0)), "not there yet"),
    "before the first trip": (lambda: reading(lambda s, t: s[t - 1] + 1.0), "outside the tensor"),
    "another type": (lambda: reading(lambda s, t: t), "gives int64, expected float32"),
    "a state that nothing makes": (never_made, "the state 's' is read, but"),
    "states that go different ways": (both_ways, "not along one axis, the same way"),
    "a part with other trips": (one_more, "another number of them"),
    "no state": (lambda: te.scan(matrix(), lambda i, j: 0.0), "te.scan takes a te.state"),
    "an axis that is none": (lambda: te.state((4,), axis=1), "cannot be carried along axis 1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_are_told_at_the_users_line(name: str) -> None:
    make, words = WRONG[name]
    with pytest.raises((tsc.ModelError, tsc.ShapeError), match=words) as caught:
        tsc.build(make(), options=PRIVATE)
    assert "test_recurrence.py:" in str(caught.value)

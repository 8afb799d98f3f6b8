"""`Executable.run(out=)`: results in the caller's arrays, wherever these lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import tsc

F = TensorProto.FLOAT


@pytest.fixture(scope="module")
def two() -> tsc.Executable:
    """Two outputs, one of which is read to make the other."""
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("ReduceSum", ["y"], ["z"], keepdims=0)]
    graph = helper.make_graph(nodes, "two", [helper.make_tensor_value_info("x", F, ["n", 7])],
                              [helper.make_tensor_value_info("y", F, ["n", 7]), helper.make_tensor_value_info("z", F, [])])
    return tsc.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
                       dims={"n": (0, 1 << 20)}, threads=2)


def data(n: int) -> np.ndarray:
    return np.random.default_rng(n).standard_normal((n, 7)).astype(np.float32)


@pytest.mark.parametrize("n", [1, 3, 64])
def test_results_are_in_the_callers_arrays(two: tsc.Executable, n: int) -> None:
    x, y, z = data(n), np.full((n, 7), 9, np.float32), np.full((), 9, np.float32)
    found = two.run(None, {"x": x}, {"y": y, "z": z})
    assert found[0] is y and found[1] is z
    np.testing.assert_array_equal(y, np.maximum(x, 0))
    np.testing.assert_allclose(z, np.maximum(x, 0).sum(dtype=np.float64), rtol=1e-5)


def test_an_output_that_nobody_asked_for_is_written_too(two: tsc.Executable) -> None:
    x, y = data(5), np.empty((5, 7), np.float32)
    found, = two.run(["z"], {"x": x}, out={"y": y})
    np.testing.assert_array_equal(y, np.maximum(x, 0))
    assert found.shape == ()


def test_arrays_that_are_not_contiguous(two: tsc.Executable) -> None:
    x, room = data(4), np.full((8, 14), 9, np.float32)
    target = room[::2, 3:10]
    assert two.run(None, {"x": x}, {"y": target})[0] is target
    np.testing.assert_array_equal(target, np.maximum(x, 0))
    assert (room[1::2] == 9).all() and (room[:, :3] == 9).all() and (room[:, 10:] == 9).all()
    raw = np.zeros(4 * 7 * 4 + 1, np.uint8)[1:].view(np.float32).reshape(4, 7)  # not aligned
    two.run(None, {"x": x}, {"y": raw})
    np.testing.assert_array_equal(raw, np.maximum(x, 0))


def test_an_array_that_is_fed_as_well(two: tsc.Executable) -> None:
    """In place, and one row on: what is read must not have been written."""
    room = np.vstack([data(6), np.zeros((1, 7), np.float32)])
    want = np.maximum(room[:6], 0)
    two.run(None, {"x": room[:6]}, {"y": room[1:]})
    np.testing.assert_array_equal(room[1:], want)
    x = data(6)
    want = np.maximum(x, 0)
    two.run(None, {"x": x}, {"y": x})
    np.testing.assert_array_equal(x, want)


def test_nothing_has_no_elements(two: tsc.Executable) -> None:
    y = np.empty((0, 7), np.float32)
    assert two.run(None, {"x": np.empty((0, 7), np.float32)}, {"y": y})[0] is y


def _read_only() -> np.ndarray:
    made = np.empty((2, 7), np.float32)
    made.flags.writeable = False
    return made


@pytest.mark.parametrize(("out", "error", "message"), [
    ([1], tsc.InputError, "out is a dict"), ({"w": data(2)}, tsc.InputError, "there is no output 'w'"),
    ({"y": [[1.0] * 7] * 2}, tsc.InputError, "no memory to write to"), ({"y": _read_only()}, tsc.InputError, "read-only"),
    ({"y": np.empty((2, 7))}, tsc.InputError, "has dtype float64, expected float32"),
    ({"y": data(3)}, tsc.ShapeError, r"has shape \(3, 7\), expected \(2, 7\)")])
def test_what_cannot_be_written(two: tsc.Executable, out: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        two.run(None, {"x": data(2)}, out)


def test_two_outputs_in_one_place(two: tsc.Executable) -> None:
    y = np.empty((2, 7), np.float32)
    with pytest.raises(tsc.InputError, match="lies where another output's lies"):
        two.run(None, {"x": data(2)}, {"y": y, "z": y[0, 0:1].reshape(())})


def test_all_blocks_of_many_threads_write_there(two: tsc.Executable) -> None:
    x = np.random.default_rng(0).standard_normal((30_000, 7)).astype(np.float32)
    y = np.empty_like(x)
    two.run(["y"], {"x": x}, {"y": y})
    np.testing.assert_array_equal(y, np.maximum(x, 0))

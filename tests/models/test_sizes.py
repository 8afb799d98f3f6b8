"""Small graphs, one for each way two sizes meet a tile: size 1, primes, a tile and one more or less, range ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

import tsc

SIZES = (1, 2, 3, 6, 7, 8, 13, 15, 16, 17, 31, 33, 63, 64, 65, 97, 127, 128, 129, 193)


def model(nodes: list[onnx.NodeProto], inputs: dict[str, list[Any]], output: list[Any]) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, "sizes", [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, output)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def product() -> onnx.ModelProto:
    return model([helper.make_node("MatMul", ["a", "b"], ["y"], "dense")], {"a": ["m", "k"], "b": ["k", "n"]}, ["m", "n"])


def scores() -> onnx.ModelProto:
    nodes = [helper.make_node("Transpose", ["b"], ["t"], "turn", perm=[0, 1, 3, 2]),
             helper.make_node("MatMul", ["a", "t"], ["s"], "scores"),
             helper.make_node("Softmax", ["s"], ["y"], "softmax", axis=-1)]
    return model(nodes, {"a": ["b", 3, "s", 9], "b": ["b", 3, "s", 9]}, ["b", 3, "s", "s"])


def softmax(x: NDArray[Any]) -> NDArray[Any]:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def feed(rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    return rng.standard_normal(shape).astype(np.float32)


def test_product() -> None:
    executable = tsc.compile(product())
    rng = np.random.default_rng(0)
    others = rng.permutation(len(SIZES)), rng.permutation(len(SIZES))
    for m, i, j in zip(SIZES, *others):
        for shape in ((m, SIZES[i], SIZES[j]), (SIZES[j], m, SIZES[i]), (SIZES[i], SIZES[j], m)):
            a, b = feed(rng, shape[0], shape[1]), feed(rng, shape[1], shape[2])
            got, want = executable.run(None, {"a": a, "b": b})[0], a.astype(np.float64) @ b
            np.testing.assert_allclose(got, want, atol=1e-5 * shape[1], err_msg=str(shape))


def test_scores_of_every_length() -> None:
    executable = tsc.compile(scores())
    rng = np.random.default_rng(0)
    for length in SIZES:
        a, b = feed(rng, 2, 3, length, 9), feed(rng, 2, 3, length, 9)
        want = softmax(a.astype(np.float64) @ b.swapaxes(2, 3))
        np.testing.assert_allclose(executable.run(None, {"a": a, "b": b})[0], want, atol=1e-5, err_msg=str(length))


@pytest.mark.parametrize("size", [0, 1, 17])
def test_zero_only_where_declared(size: int) -> None:
    nodes = [helper.make_node("Relu", ["a"], ["y"], "relu")]
    executable = tsc.compile(model(nodes, {"a": ["n", 5]}, ["n", 5]), dims={"n": (0, 17)})
    a = feed(np.random.default_rng(0), size, 5)
    np.testing.assert_array_equal(executable.run(None, {"a": a})[0], np.maximum(a, 0))

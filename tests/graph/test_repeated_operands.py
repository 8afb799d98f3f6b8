"""Nodes that read one value twice: index arithmetic makes one term of both, or none (found by random operators and models)."""

from __future__ import annotations

import itertools
import time

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tsc


@pytest.mark.parametrize("op", ["Add", "Sub"])
def test_a_chain_of_doublings_does_not_double(op: str) -> None:
    """What is doubled thirty times is no expression of 2^30 parts, nor is any part of it looked at so often."""
    names, meaning = ["x", *(f"c{i}" for i in range(60))], {"Add": np.add, "Sub": np.subtract}[op]
    nodes = [helper.make_node(op, [a, "y" if i % 2 else a], [b]) for i, (a, b) in enumerate(itertools.pairwise(names))]
    model = _model(nodes, {"x": ["n"], "y": ["n"]}, names[-1])
    begin = time.process_time()
    executable = tsc.compile(model, options=tsc.Options(use_cache=False))
    assert time.process_time() - begin < 8
    x, y = np.arange(-3, 4), np.array([1, -1, 0, 5, 2**40, 7, 9])
    expected = x
    for i in range(60):
        expected = meaning(expected, y if i % 2 else expected)
    np.testing.assert_array_equal(executable.run(None, {"x": x, "y": y})[0], expected)


def test_a_difference_of_one_value_is_an_operand() -> None:
    """What is left of `x - x` reads nothing, and is multiplied like any matrix."""
    nodes = [helper.make_node("Identity", ["x"], ["same"]), helper.make_node("Sub", ["same", "x"], ["zero"]),
             helper.make_node("MatMul", ["zero", "w"], ["out"])]
    executable = tsc.compile(_model(nodes, {"x": ["n", 3], "w": [3, "m"]}, "out"))
    rng = np.random.default_rng(0)
    feeds = {"x": rng.integers(-9, 9, (5, 3)), "w": rng.integers(-9, 9, (3, 17))}
    np.testing.assert_array_equal(executable.run(None, feeds)[0], np.zeros((5, 17), np.int64))


def _model(nodes: list[onnx.NodeProto], inputs: dict[str, list[str | int]], output: str) -> onnx.ModelProto:
    given = [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name, shape in inputs.items()]
    rank = max(map(len, inputs.values()))
    made = helper.make_tensor_value_info(output, TensorProto.INT64, [f"o{k}" for k in range(rank)])
    graph = helper.make_graph(nodes, "repeated", given, [made])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)

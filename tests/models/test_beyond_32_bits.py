"""Arrays of more than 2^31 elements: no place in them fits 32 bits. Needs 8 GB of free memory, runs with `-m slow`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

import tsc
from tests.machine import runnable

COUNT = 2**31 + 37
SIDE = 46_349  # squared, more than 2^31
FREE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(FREE < 8 << 30, reason="needs 8 GB of free memory")]


def ramp(count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Bytes whose period is no multiple of anything."""
    return np.resize(np.random.default_rng(0).integers(0, 255, 1_000_003, dtype=np.uint8), count)


def ints(name: str, *values: int) -> Any:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def run(node: NodeProto, dims: Sequence[str], feeds: dict[str, Any], constants: Sequence[Any], target: str) -> Any:
    """The one output, of bytes or (ArgMax) of places."""
    kinds = {"uint8": TensorProto.UINT8, "int64": TensorProto.INT64}
    inputs = [helper.make_tensor_value_info(n, kinds[x.dtype.name], dims if n == "x" else ["k"]) for n, x in feeds.items()]
    made = TensorProto.INT64 if node.op_type == "ArgMax" else TensorProto.UINT8
    outputs = [helper.make_tensor_value_info("y", made, [f"o{d}" for d in dims])]
    graph = helper.make_graph([node], "beyond", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    (found,) = tsc.compile(model, target=target).run(None, feeds)
    return found


@pytest.mark.parametrize("target", [spec.name for spec in runnable()])
class TestBeyond:
    def test_reversed(self, target: str) -> None:
        x = ramp(COUNT)
        constants = [ints("from", -1), ints("to", -2**62), ints("axis", 0), ints("step", -1)]
        node = helper.make_node("Slice", ["x", "from", "to", "axis", "step"], ["y"])
        assert np.array_equal(run(node, ["n"], {"x": x}, constants, target), x[::-1])

    def test_gathered(self, target: str) -> None:
        x, i = ramp(COUNT), np.array([0, COUNT - 1, 2**31 - 1, 2**31, 2**31 + 1, -1, -COUNT], np.int64)
        found = run(helper.make_node("Gather", ["x", "i"], ["y"]), ["n"], {"x": x, "i": i}, [], target)
        assert np.array_equal(found, x[i])

    def test_the_place_of_the_greatest(self, target: str) -> None:
        x = ramp(COUNT)
        x[COUNT - 2] = 255
        found = run(helper.make_node("ArgMax", ["x"], ["y"], axis=0), ["n"], {"x": x}, [], target)
        assert found.tolist() == [COUNT - 2]

    def test_transposed(self, target: str) -> None:
        x = ramp(SIDE * SIDE).reshape(SIDE, SIDE)
        found = run(helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0]), ["n", "m"], {"x": x}, [], target)
        assert all(np.array_equal(found[k], x[:, k]) for k in (0, 1, SIDE // 2, SIDE - 2, SIDE - 1))

    def test_lower_triangle(self, target: str) -> None:
        x = ramp(SIDE * SIDE).reshape(SIDE, SIDE)
        found = run(helper.make_node("Trilu", ["x"], ["y"], upper=0), ["n", "m"], {"x": x}, [], target)
        for k in (0, 1, SIDE // 2, SIDE - 1):
            assert np.array_equal(found[k, :k + 1], x[k, :k + 1]) and not found[k, k + 1:].any()

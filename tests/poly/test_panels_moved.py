"""Panels whose columns are apart in memory: nothing moves them as vectors, and they are copied element by element."""

from __future__ import annotations

import warnings

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import tsc


@pytest.mark.parametrize("stride", [1, 2, 4])
def test_columns_of_merged_rows_of_an_image(stride: int) -> None:
    """Windows of an image whose rows are one axis of the result, by weights that are fed: no vector is refused."""
    values = {"x": (1, 3, 40, 40), "w": (24, 3, 5, 5)}
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in values.items()]
    node = helper.make_node("Conv", ["x", "w"], ["y"], strides=[stride] * 2, kernel_shape=[5, 5])
    graph = helper.make_graph([node], "g", given, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with warnings.catch_warnings(action="error", category=tsc.SlowKernelWarning):
        made = tsc.compile(model)
    rng = np.random.default_rng(stride)
    feeds = {name: rng.standard_normal(dims).astype(np.float32) for name, dims in values.items()}
    wanted, = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)
    np.testing.assert_allclose(made.run(None, feeds)[0], wanted, rtol=1e-4, atol=1e-4)

"""Windows over dims that are declared to have few sizes: rows of the image are quotients by a size; proofs see through them."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tsc
from tests.machine import runnable

RNG = np.random.default_rng(0)

CASES = {  # they were computed element by element, with a SlowKernelWarning
    "strided": ([1, 3, 12, "a"], (5, 3, 3, 3), (13, 17), {"strides": [3, 2], "dilations": [3, 2], "pads": [3, 1, 1, 2]}),
    "one less": ([2, 1, 9, "a"], (2, 1, 4, 3), (7, 8), {"dilations": [1, 3], "pads": [0, 2, 0, 3]}),
    "grouped": ([1, 9, 6, 7, "a"], (6, 3, 3, 4, 4), (5, 8), {"group": 3, "dilations": [1, 2, 1], "pads": [1, 3, 1, 1, 3, 2]})}


@pytest.mark.parametrize(("name", "spec"), [
    pytest.param(name, spec, id=f"{name}-{spec.name}", marks=() if k == 0 or name == "one less" else pytest.mark.slow)
    for name in CASES for k, spec in enumerate(runnable())])
def test_windows_stay_in_vectors(name: str, spec: object, tmp_path: Path) -> None:
    shape, weights, (low, high), attributes = CASES[name]
    w = RNG.standard_normal(weights).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], **attributes)], "conv",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * len(shape))], [numpy_helper.from_array(w, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error", tsc.SlowKernelWarning)
        made = tsc.compile(model, dims={"a": (low, high)}, target=spec.name)  # type: ignore[attr-defined]
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for size in {low, high}:
        x = RNG.standard_normal([size if n == "a" else n for n in shape]).astype(np.float32)
        np.testing.assert_allclose(made.run(None, {"x": x})[0], session.run(None, {"x": x})[0], 1e-4, 1e-4)

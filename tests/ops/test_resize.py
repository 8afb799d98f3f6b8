"""Resize compiled once with symbolic dims and sizes that come from shape arithmetic, against ONNX Runtime at many shapes."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tsc
from tests.ops.harness import run_node
from tsc.errors import ModelError
from tsc.ir import Node


def like(attrs: dict[str, Any]) -> onnx.ModelProto:
    """x[N, C, H, W] resized to the height and width of y[h, w]."""
    static = {"start": np.array([0]), "two": np.array([2])}
    nodes = [helper.make_node("Shape", ["x"], ["shape"], "shape"), helper.make_node("Shape", ["y"], ["wanted"], "wanted"),
             helper.make_node("Slice", ["shape", "start", "two"], ["kept"], "kept"),
             helper.make_node("Concat", ["kept", "wanted"], ["sizes"], "sizes", axis=0),
             helper.make_node("Resize", ["x", "", "", "sizes"], ["z"], "resize", **attrs)]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 2, "H", "W"]),
              helper.make_tensor_value_info("y", TensorProto.FLOAT, ["h", "w"])]
    graph = helper.make_graph(nodes, "like", inputs, [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)],
                              [numpy_helper.from_array(v, n) for n, v in static.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=10)


@pytest.mark.parametrize("attrs", [
    {"mode": "linear", "coordinate_transformation_mode": "half_pixel"},
    {"mode": "cubic", "coordinate_transformation_mode": "align_corners"},
    pytest.param({"mode": "cubic", "coordinate_transformation_mode": "pytorch_half_pixel", "exclude_outside": 1},
                 marks=pytest.mark.slow),
    {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    {"mode": "linear", "antialias": 1, "exclude_outside": 1}, {"mode": "cubic", "antialias": 1, "exclude_outside": 1},
    {"mode": "linear", "antialias": 1},
], ids=["linear", "corners", "cubic", "nearest", "blended", "blended cubic", "blended edges"])
def test_sizes_of_another_tensor(attrs: dict[str, Any]) -> None:
    model = like(attrs)
    executable = tsc.compile(model, threads=1)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    rng = np.random.default_rng(0)
    for height, width, h, w in ((4, 5, 8, 10), (5, 3, 5, 3), (1, 7, 3, 1), (9, 4, 2, 13), (16, 16, 31, 33), (3, 2, 1, 1)):
        feeds = {"x": rng.standard_normal((2, 2, height, width)).astype(np.float32), "y": np.zeros((h, w), np.float32)}
        got, want = executable.run(None, feeds)[0], np.asarray(session.run(None, feeds)[0])
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=str((height, width, h, w)))
    assert executable.stats["compiles"] == 1


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 11])
def test_nearest_follows_exact_arithmetic(size: int) -> None:
    """(2 i + 1) * extent / (2 size) - 1/2 in rationals, halves down: no rounding of the scale moves an element."""
    x = np.arange(9, dtype=np.float32)
    node = Node("Resize", ("x", "", "", "sizes"), ("y",), {}, "resize")
    got = run_node(node, {"x": x, "sizes": np.array([size])}, 19, (2, 3), {"x": ("N",)})["y"]
    doubled = [(2 * i + 1) * 9 - size for i in range(size)]  # over 2 * size
    nearest = [-((size - d) // (2 * size)) for d in doubled]
    np.testing.assert_array_equal(got, np.clip(nearest, 0, 8))


def test_filters_are_right_on_a_gpu() -> None:
    """The reductions that make their threads have axes of the same names as theirs; the check of values took those for one."""
    model = like({"mode": "cubic", "antialias": 1, "exclude_outside": 1})
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a kernel that a check refused
        executable = tsc.compile(model, target="emu:sm_80")
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 2, 9, 13)).astype(np.float32), "y": np.zeros((2, 5), np.float32)}
    want = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)[0]
    np.testing.assert_allclose(executable.run(None, feeds)[0], want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("inputs", "attrs", "error", "text"), [
    ({"sizes": np.array([4, 4])}, {}, ModelError, "2 sizes for 1 axes"),
    ({"sizes": np.array([4])}, {"mode": "bilinear"}, ModelError, "mode 'bilinear'"),
    ({"scales": np.array([-2], np.float32)}, {}, ModelError, "the scale -2.0"),
], ids=["sizes", "mode", "scale"])
def test_refusals(inputs: dict[str, Any], attrs: dict[str, Any], error: type[Exception], text: str) -> None:
    names = ("x", "", *(n if n in inputs else "" for n in ("scales", "sizes")))
    with pytest.raises(error, match=text):
        run_node(Node("Resize", names, ("y",), attrs, "resize"), {"x": np.zeros(9, np.float32), **inputs}, 19, (2, 3))

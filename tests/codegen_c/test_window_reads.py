"""Windows read nothing outside of their image, in any build: what is blended away might be in a page that is not there."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tsc
from tests.machine import runnable
from tests.memory.guarded import check_guarded, computed_with_unwritten

SPECS = [spec.name for spec in runnable()]
#: The declared shapes of image and kernel, the kernel's own, and the shape of an image to run with.
Case = tuple[tuple[int | str, ...], tuple[int | str, ...], tuple[int, ...], tuple[int, ...]]
CASES: dict[str, Case] = {
    "column": (("n", 3, "h", 1), ("o", "c", "kh", "kw"), (4, 3, 3, 3), (1, 3, 5, 1)),
    "point": (("n", 2, 1, 1), (3, 2, 3, 33), (3, 2, 3, 33), (2, 2, 1, 1)),
}


def convolution(image: tuple[int | str, ...], declared: tuple[int | str, ...], kernel: tuple[int, ...]) -> onnx.ModelProto:
    """A convolution that keeps the size, its kernel fed."""
    pads = [k // 2 for k in kernel[2:]]
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=pads * 2)
    inputs = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, dims) for n, dims in (("x", image), ("w", declared))]
    output = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["a", "b", "c", "d"])
    graph = helper.make_graph([node], "window", inputs, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


@pytest.mark.defect(12)
@pytest.mark.parametrize("target", SPECS)
@pytest.mark.parametrize("name", CASES)
def test_a_convolution_stays_within_its_image(name: str, target: str) -> None:
    image, declared, kernel, shape = CASES[name]
    model = convolution(image, declared, kernel)
    rng = np.random.default_rng(0)
    feeds: dict[str, Any] = {n: rng.standard_normal(s).astype(np.float32) for n, s in (("x", shape), ("w", kernel))}
    (found,) = check_guarded(tsc.compile(model, target=target), feeds)
    (expected,) = ReferenceEvaluator(model).run(None, feeds)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def window(op: str, size: str, **attributes: Any) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """A window over each channel alone (an average, a maximum, a convolution in groups) and an odd image."""
    rng, shape = np.random.default_rng(1), (2, 4, 9, 11)
    feeds = {"x": rng.standard_normal(shape).astype(np.float32)}
    dims = ("n", 4, "h", "w") if size == "any" else shape
    weights = [numpy_helper.from_array(rng.standard_normal((8, 1, 3, 3)).astype(np.float32), "w")] if op == "Conv" else []
    node = helper.make_node(op, ["x", *(w.name for w in weights)], ["y"], kernel_shape=[3, 3], **attributes)
    graph = helper.make_graph([node], "window", [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, dims)],
                              [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["a", "b", "c", "d"])], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), feeds


@pytest.mark.defect(31)
@pytest.mark.parametrize(("size", "target"), [
    pytest.param(size, target, marks=pytest.mark.slow if k and size == "known" else ())
    for size in ("any", "known") for k, target in enumerate(SPECS)])
@pytest.mark.parametrize(("op", "attributes"), [
    ("Conv", {"group": 4, "pads": [1] * 4}), ("Conv", {"group": 4}), ("Conv", {"group": 4, "strides": [2, 2], "pads": [1] * 4}),
    ("MaxPool", {"strides": [2, 2], "pads": [1] * 4}), ("MaxPool", {})], ids=["padded", "bare", "spaced", "pool", "bare pool"])
def test_no_lane_computes_with_what_nobody_wrote(op: str, attributes: dict[str, Any], size: str, target: str) -> None:
    """Lanes past the edge of the image read the block's copy of it; denormals there are 10 to 30 times slower on some CPUs."""
    model, feeds = window(op, size, **attributes)
    compiled = tsc.compile(model, target=target)
    assert computed_with_unwritten(compiled, feeds) == []
    (found,) = check_guarded(compiled, feeds)
    (expected,) = ReferenceEvaluator(model).run(None, feeds)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.defect(32)
@pytest.mark.parametrize("target", SPECS)
def test_every_element_twice(target: str) -> None:
    """Nearest upsampling by two: half a vector is read, whatever the width."""
    scales = numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales")
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="nearest", nearest_mode="floor",
                            coordinate_transformation_mode="asymmetric")
    inputs = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ("n", 2, "h", "w"))]
    outputs = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["a", "b", "c", "d"])]
    graph = helper.make_graph([node], "twice", inputs, outputs, [scales])
    made = tsc.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), target=target)
    for width in (1, 3, 8, 21, 40):
        x = np.random.default_rng(width).standard_normal((1, 2, 3, width)).astype(np.float32)
        np.testing.assert_array_equal(check_guarded(made, {"x": x})[0], x.repeat(2, 2).repeat(2, 3))

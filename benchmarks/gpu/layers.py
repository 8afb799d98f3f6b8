"""Single layers in fp32, their sizes free, whose kernels are timed beside torch's; made where onnx is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def _model(nodes: list[onnx.NodeProto], inputs: dict[str, list[int | str]], held: dict[str, np.ndarray] | None = None
           ) -> onnx.ModelProto:
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    made = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "layer", given, made, [numpy_helper.from_array(a, n) for n, a in (held or {}).items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def softmax() -> onnx.ModelProto:
    return _model([helper.make_node("Softmax", ["x"], ["y"], axis=-1)], {"x": ["n", 1024]})


def layer_norm() -> onnx.ModelProto:
    return _model([helper.make_node("LayerNormalization", ["x", "scale", "shift"], ["y"], axis=-1)],
                  {"x": ["n", 1024], "scale": [1024], "shift": [1024]})


def transpose() -> onnx.ModelProto:
    return _model([helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0])], {"x": ["n", "m"]})


def bias_relu() -> onnx.ModelProto:
    return _model([helper.make_node("Add", ["x", "b"], ["s"]), helper.make_node("Relu", ["s"], ["y"])],
                  {"x": ["n", 1024], "b": [1024]})


def product() -> onnx.ModelProto:
    return _model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": ["m", 1024], "w": [1024, 1024]})


def attention() -> onnx.ModelProto:
    nodes = [helper.make_node("MatMul", ["q", "k"], ["s"]), helper.make_node("Mul", ["s", "part"], ["t"]),
             helper.make_node("Softmax", ["t"], ["p"], axis=-1), helper.make_node("MatMul", ["p", "v"], ["y"])]
    return _model(nodes, {"q": ["b", 12, "t", 64], "k": ["b", 12, 64, "t"], "v": ["b", 12, "t", 64]},
                  {"part": np.array(0.125, np.float32)})


def convolution() -> onnx.ModelProto:
    return _model([helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])],
                  {"x": ["n", 64, "h", "w_"], "w": [64, 64, 3, 3]})


LAYERS: dict[str, Callable[[], onnx.ModelProto]] = {
    f.__name__: f for f in (softmax, layer_norm, transpose, bias_relu, product, attention, convolution)}

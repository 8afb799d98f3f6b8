"""Single layers in fp32, their sizes free, whose kernels are timed beside torch's; made where onnx is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.gpu.timed import values


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
    return multiplied(1024, 1024)


def multiplied(n: int, k: int) -> onnx.ModelProto:
    """A product of so many columns and terms."""
    return _model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": ["m", k], "w": [k, n]})


def attention() -> onnx.ModelProto:
    nodes = [helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]), helper.make_node("MatMul", ["q", "kt"], ["s"]),
             helper.make_node("Mul", ["s", "part"], ["t"]),
             helper.make_node("Softmax", ["t"], ["p"], axis=-1), helper.make_node("MatMul", ["p", "v"], ["y"])]
    return _model(nodes, {"q": ["b", 12, "t", 64], "k": ["b", 12, "t", 64], "v": ["b", 12, "t", 64]},
                  {"part": np.array(0.125, np.float32)})


def convolution() -> onnx.ModelProto:
    return _model([helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])],
                  {"x": ["n", 64, "h", "w_"], "w": [64, 64, 3, 3]})


def encoder() -> onnx.ModelProto:
    """A layer of BERT-base, its weights given: [b, t, 768] in 12 heads."""
    nodes: list[onnx.NodeProto] = []

    def node(op: str, *inputs: str, to: str = "", **attributes: object) -> str:
        nodes.append(helper.make_node(op, inputs, [to or f"v{len(nodes)}"], **attributes))
        return nodes[-1].output[0]

    def dense(x: str, name: str) -> str:
        return node("Add", node("MatMul", x, f"w{name}"), f"b{name}")

    def heads(x: str, *order: int) -> str:
        return node("Transpose", node("Reshape", x, "split"), perm=order)

    q, k, v = (dense("x", name) for name in "qkv")
    scores = node("Mul", node("MatMul", heads(q, 0, 2, 1, 3), heads(k, 0, 2, 3, 1)), "part")
    mixed = node("MatMul", node("Softmax", scores, axis=-1), heads(v, 0, 2, 1, 3))
    context = node("Reshape", node("Transpose", mixed, perm=(0, 2, 1, 3)), "merged")
    first = node("LayerNormalization", node("Add", dense(context, "o"), "x"), "s1", "t1", axis=-1)
    inner = dense(first, "1")
    bent = node("Mul", node("Mul", inner, node("Add", node("Erf", node("Mul", inner, "root")), "one")), "half")
    node("LayerNormalization", node("Add", dense(bent, "2"), first), "s2", "t2", axis=-1, to="y")
    held = {"split": np.array([0, 0, 12, 64]), "merged": np.array([0, 0, 768]), "part": np.array(0.125, np.float32),
            "root": np.array(0.5**0.5, np.float32), "one": np.array(1, np.float32), "half": np.array(0.5, np.float32)}
    given: dict[str, list[int | str]] = {"x": ["b", "t", 768], "w1": [768, 3072], "b1": [3072], "w2": [3072, 768], "b2": [768]}
    given |= {f"w{name}": [768, 768] for name in "qkvo"} | {f"{name}": [768] for name in
                                                            ("bq", "bk", "bv", "bo", "s1", "t1", "s2", "t2")}
    return _model(nodes, given, held)


def with_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """A layer whose inputs of fixed sizes are constants."""
    shapes = {given.name: [d.dim_param or d.dim_value for d in given.type.tensor_type.shape.dim] for given in model.graph.input}
    for given in list(model.graph.input):
        if all(isinstance(d, int) for d in shapes[given.name]):
            model.graph.initializer.append(numpy_helper.from_array(values(given.name, shapes[given.name]), given.name))
            model.graph.input.remove(given)
    return model


LAYERS: dict[str, Callable[[], onnx.ModelProto]] = {
    f.__name__: f for f in (softmax, layer_norm, transpose, bias_relu, product, attention, convolution, encoder)}
#: Those with products, which there are in less precision, too.
MULTIPLYING = ("product", "attention", "convolution", "encoder")

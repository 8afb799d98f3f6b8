"""Two transformers as torch's exporter leaves them, with random weights: BERT-base with its pooler, and GPT-2 without its head.

Batch and length are free. Structures are those of the `transformers` library's BertModel and GPT2Model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HIDDEN, HEADS, LAYERS = 768, 12, 12
HEAD = HIDDEN // HEADS


class Net:
    """A model in the making over tokens [batch, length]: each method adds nodes and gives the name of their value."""

    def __init__(self, name: str, inputs: Sequence[str]) -> None:
        self.name = name
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.inputs = [helper.make_tensor_value_info(i, TensorProto.INT64, ["batch", "length"]) for i in inputs]
        self.rng = np.random.default_rng(0)
        self.length = self.node("Gather", [self.node("Shape", inputs[:1]), self.whole(1)])

    def node(self, op: str, inputs: Sequence[str], **attributes: object) -> str:
        made = f"{op.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [made], **attributes))
        return made

    def held(self, array: np.ndarray) -> str:
        name = f"weight{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def weight(self, *shape: int) -> str:
        return self.held(self.rng.standard_normal(shape, np.float32) * np.float32(0.02))

    def whole(self, *numbers: int) -> str:
        return self.held(np.array(numbers))

    def real(self, number: float) -> str:
        return self.held(np.array(number, np.float32))

    def table(self, ids: str, rows: int) -> str:
        """Rows of a table."""
        return self.node("Gather", [self.weight(rows, HIDDEN), ids])

    def positions(self, rows: int) -> str:
        """The first rows of a table, as many as there are tokens."""
        return self.node("Slice", [self.weight(rows, HIDDEN), self.whole(0), self.length, self.whole(0)])

    def add(self, x: str, y: str) -> str:
        return self.node("Add", [x, y])

    def norm(self, x: str, epsilon: float) -> str:
        return self.node("LayerNormalization", [x, self.weight(HIDDEN), self.weight(HIDDEN)], axis=-1, epsilon=epsilon)

    def dense(self, x: str, depth: int, width: int) -> str:
        return self.add(self.node("MatMul", [x, self.weight(depth, width)]), self.weight(width))

    def heads(self, x: str, *order: int) -> str:
        """[batch, length, hidden] as heads, its axes in an order."""
        return self.node("Transpose", [self.node("Reshape", [x, self.whole(0, 0, HEADS, HEAD)])], perm=order)

    def attended(self, q: str, k: str, v: str, masked: Callable[[str], str]) -> str:
        """softmax(q k / 8) v over heads, [batch, length, hidden]; `masked` scores enter the softmax."""
        scores = self.node("MatMul", [self.heads(q, 0, 2, 1, 3), self.heads(k, 0, 2, 3, 1)])
        weights = self.node("Softmax", [masked(self.node("Div", [scores, self.real(HEAD ** 0.5)]))], axis=-1)
        context = self.node("Transpose", [self.node("MatMul", [weights, self.heads(v, 0, 2, 1, 3)])], perm=(0, 2, 1, 3))
        return self.node("Reshape", [context, self.whole(0, 0, HIDDEN)])

    def gelu(self, x: str) -> str:
        erf = self.node("Erf", [self.node("Div", [x, self.real(2 ** 0.5)])])
        return self.node("Mul", [self.node("Mul", [x, self.add(erf, self.real(1.0))]), self.real(0.5)])

    def gelu_by_tanh(self, x: str) -> str:
        cube = self.node("Mul", [self.node("Pow", [x, self.real(3.0)]), self.real(0.044715)])
        tanh = self.node("Tanh", [self.node("Mul", [self.add(x, cube), self.real((2 / np.pi) ** 0.5)])])
        return self.node("Mul", [self.node("Mul", [x, self.real(0.5)]), self.add(tanh, self.real(1.0))])

    def model(self, outputs: dict[str, tuple[int | str, ...]]) -> onnx.ModelProto:
        """The whole model, whose values of some names are outputs of some shapes."""
        found = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()]
        graph = helper.make_graph(self.nodes, self.name, self.inputs, found, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def bert_base() -> onnx.ModelProto:
    net, epsilon = Net("bert_base", ["input_ids", "attention_mask", "token_type_ids"]), 1e-12
    words = net.add(net.table("input_ids", 30522), net.table("token_type_ids", 2))
    x = net.norm(net.add(words, net.positions(512)), epsilon)
    mask = net.node("Cast", [net.node("Unsqueeze", ["attention_mask", net.whole(1, 2)])], to=TensorProto.FLOAT)
    penalty = net.node("Mul", [net.node("Sub", [net.real(1.0), mask]), net.real(float(np.finfo(np.float32).min))])
    for _ in range(LAYERS):
        q, k, v = (net.dense(x, HIDDEN, HIDDEN) for _ in range(3))
        context = net.attended(q, k, v, lambda scores: net.add(scores, penalty))
        x = net.norm(net.add(net.dense(context, HIDDEN, HIDDEN), x), epsilon)
        inner = net.gelu(net.dense(x, HIDDEN, 4 * HIDDEN))
        x = net.norm(net.add(net.dense(inner, 4 * HIDDEN, HIDDEN), x), epsilon)
    first = net.node("Gather", [x, net.held(np.array(0))], axis=1)
    pooled = net.node("Tanh", [net.dense(first, HIDDEN, HIDDEN)])
    return net.model({x: ("batch", "length", HIDDEN), pooled: ("batch", HIDDEN)})


def gpt2() -> onnx.ModelProto:
    net, epsilon, most = Net("gpt2", ["input_ids"]), 1e-5, 1024
    x = net.add(net.table("input_ids", 50257), net.positions(most))
    lower = net.held(np.tril(np.ones((1, 1, most, most), bool)))
    zero, axes = net.whole(0, 0), net.whole(2, 3)
    seen = net.node("Slice", [lower, zero, net.node("Concat", [net.length, net.length], axis=0), axes])
    for _ in range(LAYERS):
        merged = net.dense(net.norm(x, epsilon), HIDDEN, 3 * HIDDEN)
        q, k, v = (net.node("Slice", [merged, net.whole(part * HIDDEN), net.whole((part + 1) * HIDDEN), net.whole(2)])
                   for part in range(3))
        context = net.attended(q, k, v, lambda scores: net.node(
            "Where", [seen, scores, net.real(float(np.finfo(np.float32).min))]))
        x = net.add(net.dense(context, HIDDEN, HIDDEN), x)
        inner = net.gelu_by_tanh(net.dense(net.norm(x, epsilon), HIDDEN, 4 * HIDDEN))
        x = net.add(net.dense(inner, 4 * HIDDEN, HIDDEN), x)
    return net.model({net.norm(x, epsilon): ("batch", "length", HIDDEN)})


TRANSFORMERS: dict[str, Callable[[], onnx.ModelProto]] = {f.__name__: f for f in (bert_base, gpt2)}

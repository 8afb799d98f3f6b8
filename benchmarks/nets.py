"""Convolutional nets as torch's exporter leaves them: batch norms behind a convolution folded into it, random weights.

Batch, height and width are free. Structures are those of torchvision's nets of these names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Pair = tuple[int, int]


class Net:
    """A model in the making: each method adds nodes and gives the name of their value."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.channels: dict[str, int] = {"image": 3}
        self.rng = np.random.default_rng(0)

    def node(self, op: str, inputs: Sequence[str], channels: int, **attributes: object) -> str:
        made = f"{op.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [made], **attributes))
        self.channels[made] = channels
        return made

    def weight(self, *shape: int, transposed: bool = False) -> str:
        name = f"weight{len(self.weights)}"
        data = self.rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(np.prod(shape[1:])))
        data = np.ascontiguousarray(data.T) if transposed else np.abs(data) if len(shape) == 1 else data
        self.weights.append(numpy_helper.from_array(data, name))
        return name

    def conv(self, x: str, channels: int, kernel: int | Pair = 1, stride: int = 1, pad: int | Pair = 0,
             relu: bool = True, bias: bool = True, group: int = 1) -> str:
        (high, wide), (top, left) = ((v, v) if isinstance(v, int) else v for v in (kernel, pad))
        weights = [self.weight(channels, self.channels[x] // group, high, wide), *([self.weight(channels)] if bias else [])]
        made = self.node("Conv", [x, *weights], channels, kernel_shape=[high, wide], strides=[stride, stride],
                         pads=[top, left, top, left], group=group)
        return self.relu(made) if relu else made

    def relu(self, x: str) -> str:
        return self.node("Relu", [x], self.channels[x])

    def norm(self, x: str) -> str:
        count = self.channels[x]
        return self.node("BatchNormalization", [x, *(self.weight(count) for _ in range(4))], count)

    def pool(self, op: str, x: str, kernel: int, stride: int, pad: int = 0) -> str:
        more = {"count_include_pad": 1} if op == "AveragePool" else {}
        return self.node(op, [x], self.channels[x], kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4, **more)

    def constant(self, value: float) -> str:
        name = f"weight{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.array(value, np.float32), name))
        return name

    def linear(self, x: str, columns: int) -> str:
        product = self.node("MatMul", [x, self.weight(columns, self.channels[x], transposed=True)], columns)
        return self.add(product, self.weight(columns))

    def gelu(self, x: str) -> str:
        count = self.channels[x]
        inner = self.node("Erf", [self.node("Div", [x, self.constant(2**0.5)], count)], count)
        grown = self.node("Mul", [x, self.node("Add", [inner, self.constant(1)], count)], count)
        return self.node("Mul", [grown, self.constant(0.5)], count)

    def turned(self, x: str, *perm: int) -> str:
        return self.node("Transpose", [x], self.channels[x], perm=perm)

    def row_norm(self, x: str) -> str:
        count = self.channels[x]
        return self.node("LayerNormalization", [x, self.weight(count), self.weight(count)], count, epsilon=1e-6)

    def add(self, x: str, y: str) -> str:
        return self.node("Add", [x, y], self.channels[x])

    def concat(self, *parts: str) -> str:
        return self.node("Concat", parts, sum(self.channels[p] for p in parts), axis=1)

    def classified(self, x: str, normed: bool = False) -> onnx.ModelProto:
        """The whole model, with the mean over positions, its norm, and a classifier of 1000 classes behind `x`."""
        count = self.channels[x]
        flat = self.node("Flatten", [self.node("GlobalAveragePool", [x], count)], count)
        flat = self.row_norm(flat) if normed else flat
        self.nodes.append(helper.make_node("Gemm", [flat, self.weight(1000, count), self.weight(1000)], ["classes"], transB=1))
        image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, "height", "width"])
        classes = helper.make_tensor_value_info("classes", TensorProto.FLOAT, ["batch", 1000])
        graph = helper.make_graph(self.nodes, self.name, [image], [classes], self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def resnet50() -> onnx.ModelProto:
    net = Net("resnet50")
    x = net.pool("MaxPool", net.conv("image", 64, 7, 2, 3), 3, 2, 1)
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            inner = net.conv(net.conv(net.conv(x, width), width, 3, stride, 1), 4 * width, relu=False)
            x = net.relu(net.add(inner, x if block else net.conv(x, 4 * width, 1, stride, relu=False)))
    return net.classified(x)


def densenet121() -> onnx.ModelProto:
    net = Net("densenet121")
    x = net.pool("MaxPool", net.conv("image", 64, 7, 2, 3), 3, 2, 1)
    for stage, layers in enumerate((6, 12, 24, 16)):
        features = [x]
        for _ in range(layers):
            joined = net.concat(*features) if len(features) > 1 else x
            features.append(net.conv(net.conv(net.relu(net.norm(joined)), 128), 32, 3, 1, 1, relu=False, bias=False))
        x = net.relu(net.norm(net.concat(*features)))
        if stage < 3:
            x = net.pool("AveragePool", net.conv(x, net.channels[x] // 2, relu=False, bias=False), 2, 2)
    return net.classified(x)


def inception_v3() -> onnx.ModelProto:
    net = Net("inception_v3")
    conv = net.conv
    x = conv(conv(conv("image", 32, 3, 2), 32, 3), 64, 3, 1, 1)
    x = net.pool("MaxPool", conv(conv(net.pool("MaxPool", x, 3, 2), 80), 192, 3), 3, 2)
    for features in (32, 64, 64):
        x = net.concat(conv(x, 64), conv(conv(x, 48), 64, 5, 1, 2), conv(conv(conv(x, 64), 96, 3, 1, 1), 96, 3, 1, 1),
                       conv(net.pool("AveragePool", x, 3, 1, 1), features))
    x = net.concat(conv(x, 384, 3, 2), conv(conv(conv(x, 64), 96, 3, 1, 1), 96, 3, 2), net.pool("MaxPool", x, 3, 2))
    for width in (128, 160, 160, 192):
        deep = conv(x, width)
        for kernel, pad, channels in (((7, 1), (3, 0), width), ((1, 7), (0, 3), width), ((7, 1), (3, 0), width)):
            deep = conv(deep, channels, kernel, 1, pad)
        side = conv(conv(conv(x, width), width, (1, 7), 1, (0, 3)), 192, (7, 1), 1, (3, 0))
        x = net.concat(conv(x, 192), side, conv(deep, 192, (1, 7), 1, (0, 3)),
                       conv(net.pool("AveragePool", x, 3, 1, 1), 192))
    deep = conv(conv(conv(conv(x, 192), 192, (1, 7), 1, (0, 3)), 192, (7, 1), 1, (3, 0)), 192, 3, 2)
    x = net.concat(conv(conv(x, 192), 320, 3, 2), deep, net.pool("MaxPool", x, 3, 2))
    for _ in range(2):
        side, deep = conv(x, 384), conv(conv(x, 448), 384, 3, 1, 1)
        crossed = (conv(y, 384, k, 1, p) for y in (side, deep) for k, p in _CROSS)
        x = net.concat(conv(x, 320), *crossed, conv(net.pool("AveragePool", x, 3, 1, 1), 192))
    return net.classified(x)


def mobilenet_v2() -> onnx.ModelProto:
    net = Net("mobilenet_v2")

    def clipped(x: str) -> str:
        return net.node("Clip", [x, net.constant(0), net.constant(6)], net.channels[x])

    def conv(x: str, channels: int, kernel: int = 1, stride: int = 1, group: int = 1) -> str:
        return clipped(net.conv(x, channels, kernel, stride, kernel // 2, relu=False, group=group))

    x = conv("image", 32, 3, 2)
    for grown, width, blocks, first in ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
                                        (6, 160, 3, 2), (6, 320, 1, 1)):
        for block in range(blocks):
            inner, hidden = x, grown * net.channels[x]
            if grown > 1:
                inner = conv(inner, hidden)
            inner = net.conv(conv(inner, hidden, 3, 1 if block else first, hidden), width, relu=False)
            x = net.add(x, inner) if block else inner
    return net.classified(conv(x, 1280))


def convnext_tiny() -> onnx.ModelProto:
    net = Net("convnext_tiny")

    def pixel_norm(x: str) -> str:
        return net.turned(net.row_norm(net.turned(x, 0, 2, 3, 1)), 0, 3, 1, 2)

    x = pixel_norm(net.conv("image", 96, 4, 4, relu=False))
    for stage, blocks in enumerate((3, 3, 9, 3)):
        width = 96 << stage
        if stage:
            x = net.conv(pixel_norm(x), width, 2, 2, relu=False)
        for _ in range(blocks):
            inner = net.turned(net.conv(x, width, 7, 1, 3, relu=False, group=width), 0, 2, 3, 1)
            inner = net.linear(net.gelu(net.linear(net.row_norm(inner), 4 * width)), width)
            scaled = net.node("Mul", [net.turned(inner, 0, 3, 1, 2), net.weight(width, 1, 1)], width)
            x = net.add(scaled, x)
    return net.classified(x, normed=True)


_CROSS: tuple[tuple[Pair, Pair], ...] = (((1, 3), (0, 1)), ((3, 1), (1, 0)))
NETS: dict[str, Callable[[], onnx.ModelProto]] = {f.__name__: f for f in (
    resnet50, densenet121, inception_v3, mobilenet_v2, convnext_tiny)}

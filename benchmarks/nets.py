"""Three convolutional nets as torch's exporter leaves them: batch norms behind a convolution folded into it, random weights.

Batch, height and width are free. Structures are those of torchvision's resnet50, densenet121 and inception_v3.
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

    def weight(self, *shape: int) -> str:
        name = f"weight{len(self.weights)}"
        data = self.rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(np.prod(shape[1:])))
        self.weights.append(numpy_helper.from_array(np.abs(data) if len(shape) == 1 else data, name))
        return name

    def conv(self, x: str, channels: int, kernel: int | Pair = 1, stride: int = 1, pad: int | Pair = 0,
             relu: bool = True, bias: bool = True) -> str:
        (high, wide), (top, left) = ((v, v) if isinstance(v, int) else v for v in (kernel, pad))
        weights = [self.weight(channels, self.channels[x], high, wide), *([self.weight(channels)] if bias else [])]
        made = self.node("Conv", [x, *weights], channels, kernel_shape=[high, wide], strides=[stride, stride],
                         pads=[top, left, top, left])
        return self.relu(made) if relu else made

    def relu(self, x: str) -> str:
        return self.node("Relu", [x], self.channels[x])

    def norm(self, x: str) -> str:
        count = self.channels[x]
        return self.node("BatchNormalization", [x, *(self.weight(count) for _ in range(4))], count)

    def pool(self, op: str, x: str, kernel: int, stride: int, pad: int = 0) -> str:
        more = {"count_include_pad": 1} if op == "AveragePool" else {}
        return self.node(op, [x], self.channels[x], kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4, **more)

    def add(self, x: str, y: str) -> str:
        return self.node("Add", [x, y], self.channels[x])

    def concat(self, *parts: str) -> str:
        return self.node("Concat", parts, sum(self.channels[p] for p in parts), axis=1)

    def classified(self, x: str) -> onnx.ModelProto:
        """The whole model, with the mean over positions and a classifier of 1000 classes behind `x`."""
        count = self.channels[x]
        flat = self.node("Flatten", [self.node("GlobalAveragePool", [x], count)], count)
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


_CROSS: tuple[tuple[Pair, Pair], ...] = (((1, 3), (0, 1)), ((3, 1), (1, 0)))
NETS: dict[str, Callable[[], onnx.ModelProto]] = {f.__name__: f for f in (resnet50, densenet121, inception_v3)}

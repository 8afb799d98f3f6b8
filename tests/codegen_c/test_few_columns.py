"""Sums of products with few columns: vectors run along the other factor, where that has more that lie next to each other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tsc
from tsc.config import Options
from tsc.kernels import workshop
from tsc.pipeline import build_package
from tsc.poly.pattern.contraction import Contraction
from tsc.poly.schedule import prepared

RNG = np.random.default_rng(0)


def model(nodes: list[onnx.NodeProto], x: list[int | str], rank: int, **weights: np.ndarray) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, "few", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * rank)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def weights(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def shuffled(x: list[int | str]) -> onnx.ModelProto:
    """A convolution to nine channels that are the pixels of an image three times as large."""
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
             helper.make_node("DepthToSpace", ["c"], ["y"], blocksize=3, mode="CRD")]
    return model(nodes, x, 4, w=weights(9, 5, 3, 3), b=weights(9))


def channels_last(x: list[int | str]) -> onnx.ModelProto:
    """A convolution to three channels, which are moved behind the image."""
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 0, 0, 1], strides=[1, 1]),
             helper.make_node("Transpose", ["c"], ["y"], perm=[0, 2, 3, 1])]
    return model(nodes, x, 4, w=weights(3, 5, 3, 3), b=weights(3))


def transposed(x: list[int | str]) -> onnx.ModelProto:
    """The columns of a matrix times a narrow one."""
    nodes = [helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]), helper.make_node("MatMul", ["t", "w"], ["y"])]
    return model(nodes, x, 2, w=weights(40, 3))


CASES = [
    (shuffled, ["n", 5, 17, 20], [(1, 5, 17, 20), (3, 5, 17, 20)], 20),
    (shuffled, ["n", 5, "h", "w"], [(1, 5, 17, 20), (2, 5, 1, 1), (3, 5, 2, 33)], None),
    (channels_last, ["n", 5, 17, 18], [(1, 5, 17, 18), (4, 5, 17, 18)], None),
    (transposed, [40, "m"], [(40, 1), (40, 15), (40, 70)], None)]


@pytest.mark.parametrize(("make", "shape", "shapes", "columns"), CASES)
def test_few_columns(make: object, shape: list[int | str], shapes: list[tuple[int, ...]], columns: int | None,
                     tmp_path: Path) -> None:
    proto = make(shape)  # type: ignore[operator]
    shop = workshop("cpu", Options(cache_dir=tmp_path))
    build_package(proto, None, shop)
    found = [prepared(order.program, shop.device.spec, order.constants) for order, _ in shop.orders]
    product = next(a.found for a in found if a is not None and isinstance(a.found, Contraction))
    extents = {axis.name: axis.extent for axis in product.anchor.axes}
    few = extents[product.n].as_int()
    assert few is None or few >= 16
    assert columns is None or few == columns
    made = tsc.compile(proto, options=tsc.Options(cache_dir=tmp_path))
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for size in shapes:
        x = RNG.standard_normal(size).astype(np.float32)
        np.testing.assert_allclose(made.run(None, {"x": x})[0], session.run(None, {"x": x})[0], 1e-4, 1e-4)

"""A small model whose kernels are tuned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tsc.config import Options
from tsc.kernels import Workshop, workshop
from tsc.tuning import groups_of
from tsc.tuning_group import Group

DIMS = {"n": (1, 24)}


def model() -> onnx.ModelProto:
    """relu(x @ w + b), and the softmax of x: two kernels."""
    rng = np.random.default_rng(0)
    held = {"w": rng.standard_normal((40, 56), np.float32), "b": rng.standard_normal(56, np.float32)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Add", ["a", "b"], ["c"]),
             helper.make_node("Relu", ["c"], ["y"]), helper.make_node("Softmax", ["x"], ["z"], axis=-1)]
    graph = helper.make_graph(nodes, "model", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 40])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 56]),
                               helper.make_tensor_value_info("z", TensorProto.FLOAT, ["n", 40])],
                              [numpy_helper.from_array(array, name) for name, array in held.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def groups(cache: Path, target: str = "cpu") -> tuple[list[Group], Workshop]:
    """The model's Groups."""
    shop = workshop(target, Options(cache_dir=cache))
    found, _ = groups_of(model(), DIMS, shop, [{"n": 1}, {"n": 5}, {"n": 24}])
    return found, shop


def product(found: list[Group]) -> Group:
    """The matrix product among Groups."""
    return next(group for group in found if "contraction" in group.order.symbol())



"""`explain --node` beyond one plain kernel: what is shared, merged, cut into parts, or in no kernel."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper

import tsc
from tsc.explain import explain_node


def model(nodes: list[onnx.NodeProto], inputs: dict[str, list[str | int]], outputs: list[str]) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_kernel_for_groups_equal_up_to_constants() -> None:
    """Four row sums over 100, 132, 164 and 196 columns: one Program, in which the columns are a size."""
    widths = {f"x{k}": 100 + 32 * k for k in range(4)}
    nodes = [helper.make_node("ReduceMax", [x], [f"y{x}"], f"max_{x}", axes=[1], keepdims=0) for x in widths]
    text = explain_node(model(nodes, {x: ["batch", n] for x, n in widths.items()}, [f"y{x}" for x in widths]), "max_x2",
                        sizes={"batch": 10})
    sizes = [line.split(" is ")[1] for line in text.splitlines() if line.startswith("  s") and " is " in line]
    assert "--- shared" in text and sorted(sizes) == ["164", "batch"]
    assert "x 164 a block" in text and "reads at most" in text


def test_what_is_in_no_kernel_and_what_does_not_exist() -> None:
    nodes = [helper.make_node("Shape", ["x"], ["s"], "shape"), helper.make_node("Reshape", ["x", "s"], ["r"], "same"),
             helper.make_node("Relu", ["r"], ["y"], "relu")]
    small = model(nodes, {"x": ["n", 4]}, ["y"])
    assert "relu (Relu)" in explain_node(small, "relu") and "relu (Relu)" in explain_node(small, "y")
    with pytest.raises(tsc.InputError, match="'shape' is in no kernel"):
        explain_node(small, "shape")
    with pytest.raises(tsc.InputError, match="there is no node 'rely'; did you mean 'relu'"):
        explain_node(small, "rely")

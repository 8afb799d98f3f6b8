"""The nets whose compile time is measured are those that they are named after."""

from __future__ import annotations

from math import prod
from pathlib import Path

import onnx
import pytest

from benchmarks import compiling
from benchmarks.nets import NETS
from benchmarks.transformers import TRANSFORMERS
from tests.test_tiny import tiny_model

#: Parameters as torchvision publishes them, without the auxiliary classifier that inference has no use for.
PUBLISHED = {"resnet50": 25_557_032, "densenet121": 7_978_856, "inception_v3": 23_834_568, "mobilenet_v2": 3_504_872,
             "convnext_tiny": 28_589_128}
#: Those whose biases are their convolutions' own, and no norm's.
BIASED = {"convnext_tiny"}


@pytest.mark.parametrize("name", NETS)
def test_nets_have_the_parameters_that_are_published(name: str) -> None:
    """A norm has a scale and a shift a channel; of a folded one a bias is left, others have mean and variance, too."""
    model = NETS[name]()
    onnx.checker.check_model(model)
    onnx.shape_inference.infer_shapes(model, strict_mode=True)
    sizes = {w.name: prod(w.dims) for w in model.graph.initializer if len(w.dims)}
    folded = sum(sizes[node.input[2]] for node in model.graph.node
                 if node.op_type == "Conv" and len(node.input) > 2 and name not in BIASED)
    statistics = sum(sizes[x] for node in model.graph.node if node.op_type == "BatchNormalization" for x in node.input[3:])
    assert sum(sizes.values()) + folded - statistics == PUBLISHED[name]


@pytest.mark.slow
@pytest.mark.parametrize("name, published", [("bert_base", 109_482_240), ("gpt2", 124_439_808)])
def test_transformers_have_the_parameters_that_are_published(name: str, published: int) -> None:
    model = TRANSFORMERS[name]()
    onnx.checker.check_model(model)
    onnx.shape_inference.infer_shapes(model, strict_mode=True)
    held = [w.dims for w in model.graph.initializer if w.data_type == onnx.TensorProto.FLOAT]
    assert sum(prod(dims) for dims in held if len(dims)) == published


def test_one_round(tmp_path: Path) -> None:
    path = tmp_path / "tiny.onnx"
    path.write_bytes(tiny_model().SerializeToString())
    found = compiling.measured(str(path), 1, 0)
    assert list(found) == list(compiling.REQUESTS) and all(run["kernels"] and run["cpu"] > 0 for [run] in found.values())
    assert found["cached"][0]["cpu"] < found["cold"][0]["cpu"]

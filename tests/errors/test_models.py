"""Wrong models: each is refused when it is compiled."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tsc

Refused = Callable[..., AbstractContextManager[None]]


def model(nodes: list[onnx.NodeProto], inputs: dict[str, list[Any]], output: list[Any], **weights: Any) -> onnx.ModelProto:
    """A model over float32 inputs with one output 'y'."""
    graph = helper.make_graph(
        nodes, "bad", [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, output)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_no_such_file(tmp_path: Path, refused: Refused) -> None:
    with refused(tsc.ModelError, "absent.onnx"):
        tsc.compile(tmp_path / "absent.onnx")


@pytest.mark.parametrize("keep", [0.0, 0.01, 0.3, 0.7, 0.99])
def test_truncated_file(tmp_path: Path, lookup_model: onnx.ModelProto, refused: Refused, keep: float) -> None:
    data = lookup_model.SerializeToString()
    path = tmp_path / "cut.onnx"
    path.write_bytes(data[:int(len(data) * keep)])
    with refused(tsc.ModelError, "cut.onnx"):
        tsc.compile(path)
    assert [p.name for p in tmp_path.iterdir()] == ["cut.onnx"]


def test_not_a_model(tmp_path: Path, refused: Refused) -> None:
    path = tmp_path / "picture.onnx"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8)
    with refused(tsc.ModelError, "picture.onnx"):
        tsc.compile(path)


def test_altered_weight(lookup_model: onnx.ModelProto, refused: Refused) -> None:
    """A weight whose bytes no longer fit its declared shape."""
    altered = onnx.ModelProto.FromString(lookup_model.SerializeToString())
    altered.graph.initializer[1].raw_data = altered.graph.initializer[1].raw_data[:-4]
    with refused(tsc.ModelError, "'w'"):
        tsc.compile(altered)


def test_value_that_nobody_makes(refused: Refused) -> None:
    bad = model([helper.make_node("Add", ["x", "ghost"], ["y"], "haunted")], {"x": ["n"]}, ["n"])
    with refused(tsc.ModelError, "haunted", "ghost"):
        tsc.compile(bad)


def test_all_unsupported_operators_at_once(refused: Refused) -> None:
    bad = model([
        helper.make_node("Relu", ["x"], ["a"], "fine"),
        helper.make_node("FlipTable", ["a"], ["b"], "first", domain="com.example"),
        helper.make_node("Unflip", ["b"], ["c"], "second", domain="com.example"),
        helper.make_node("FlipTable", ["c"], ["y"], "third", domain="com.example")], {"x": ["n"]}, ["n"])
    bad.opset_import.append(helper.make_opsetid("com.example", 1))
    with refused(tsc.UnsupportedError, "first", "second", "third", "FlipTable", "Unflip"):
        tsc.compile(bad)


def test_matmul_of_unequal_sizes(refused: Refused) -> None:
    dense = helper.make_node("MatMul", ["x", "w"], ["y"], "dense")
    bad = model([dense], {"x": ["n", 5]}, ["n", 3], w=np.ones((6, 3), np.float32))
    with refused(tsc.ShapeError, "dense"):
        tsc.compile(bad)


def test_range_that_contradicts_the_model(refused: Refused) -> None:
    """n must equal 7, since it is added to a constant of 7 and n = 1 is outside the user's range."""
    bad = model([helper.make_node("Add", ["x", "w"], ["y"], "shift")], {"x": ["n"]}, [7], w=np.ones(7, np.float32))
    with pytest.raises((tsc.ModelError, tsc.ShapeError)) as caught:
        tsc.compile(bad, dims={"n": (10, 20)})
    assert "shift" in str(caught.value) and "\n" not in str(caught.value)


def test_unknown_dim_name(lookup_model: onnx.ModelProto) -> None:
    with pytest.raises((tsc.ModelError, tsc.ShapeError), match="colour"):
        tsc.compile(lookup_model, dims={"colour": (1, 4)})


def test_unknown_target(lookup_model: onnx.ModelProto, refused: Refused) -> None:
    with refused(tsc.LaunchError, "abacus", "cpu-avx2"):
        tsc.compile(lookup_model, target="abacus")


def test_external_data_outside_the_folder(tmp_path: Path, lookup_model: onnx.ModelProto, refused: Refused) -> None:
    secret = tmp_path / "secret.bin"
    secret.write_bytes(bytes(4 * 24))
    folder = tmp_path / "model"
    folder.mkdir()
    for location in ("../secret.bin", str(secret)):
        evil = onnx.ModelProto.FromString(lookup_model.SerializeToString())
        weight = evil.graph.initializer[1]
        weight.ClearField("raw_data")
        weight.data_location = TensorProto.EXTERNAL
        for key, value in (("location", location), ("offset", "0"), ("length", "96")):
            weight.external_data.add(key=key, value=value)
        (folder / "evil.onnx").write_bytes(evil.SerializeToString())
        with refused(tsc.ModelError, "secret.bin"):
            tsc.compile(folder / "evil.onnx")
    link = folder / "link.bin"
    link.symlink_to(secret)
    evil.graph.initializer[1].external_data[0].value = "link.bin"
    (folder / "evil.onnx").write_bytes(evil.SerializeToString())
    with refused(tsc.ModelError, "link.bin"):
        tsc.compile(folder / "evil.onnx")

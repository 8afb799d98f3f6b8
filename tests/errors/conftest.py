"""What every test here asserts: one typed error, one sentence, the culprit named, nothing left behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

Refused = Callable[..., AbstractContextManager[None]]


#: Seconds in which what is wrong is refused, also on a busy machine: a file is not read to its end first.
PATIENCE = 60


@contextmanager
def _refused(kind: type[Exception], *words: str) -> Iterator[None]:
    begin = time.monotonic()
    with pytest.raises(kind) as caught:
        yield
    assert time.monotonic() - begin < PATIENCE, "it was refused, but late"
    text = str(caught.value)
    assert type(caught.value) is kind, f"a {type(caught.value).__name__}, not a {kind.__name__}: {text}"
    assert text and "\n" not in text, f"not one sentence: {text!r}"
    for word in words:
        assert word in text, f"'{word}' is not named in: {text}"


@pytest.fixture
def refused() -> Refused:
    """`with refused(Kind, "culprit", …):` exactly this type of error, in one line that names each culprit."""
    return _refused


@pytest.fixture(scope="session")
def lookup_model() -> onnx.ModelProto:
    """y = relu(table[ids] @ w), ids [batch, seq] of a vocabulary of 10, plus bias [batch]."""
    rng = np.random.default_rng(0)
    weights = {"table": rng.standard_normal((10, 6)).astype(np.float32), "w": rng.standard_normal((6, 4)).astype(np.float32)}
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"], "lookup", axis=0),
        helper.make_node("MatMul", ["rows", "w"], ["wide"], "dense"),
        helper.make_node("Add", ["wide", "shift"], ["moved"], "move"),
        helper.make_node("Relu", ["moved"], ["y"], "relu")]
    graph = helper.make_graph(
        nodes, "lookup",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "seq"]),
         helper.make_tensor_value_info("shift", TensorProto.FLOAT, ["batch", "seq", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "seq", 4])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

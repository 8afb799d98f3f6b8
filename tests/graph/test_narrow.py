"""Factors of fewer bits: which values get a rounded copy, where it is made, and what stays as it is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest

from tests.graph.models import model as text_model
from tsc.errors import TscError
from tsc.graph.onnx.importer import import_onnx
from tsc.ir import Graph
from tsc.pipeline import front
from tsc.targets import find
from tsc.trace import Recorder

BODY = """
    h = MatMul(x, w)
    q = Add(h, b)
    parts = Reshape(q, split)
    left = Transpose<perm = [0, 2, 1, 3]>(parts)
    right = Transpose<perm = [0, 2, 3, 1]>(parts)
    s = MatMul(left, right)
    p = Softmax<axis = -1>(s)
    y = Add(p, mask)
    r = Add(q, z)"""


def model() -> onnx.ModelProto:
    made = text_model(BODY, "float[n, t, 8] x, float[n, t, 8] z, float[t] mask", "float[n, 2, t, t] y, float[n, t, 8] r",
                      "int64[4] split = {0, 0, 2, 4}")
    weights = np.full((8, 8), 1e6, np.float32)
    weights[0, 0] = -np.inf
    made.graph.initializer.extend([onnx.numpy_helper.from_array(weights, "w"),
                                   onnx.numpy_helper.from_array(np.ones(8, np.float32), "b")])
    return made


def graph_of(factors: str) -> Graph:
    return front(model(), None, Recorder(), replace(find("cpu"), factors=factors))[0]


def test_values_that_are_multiplied_have_one_copy_each() -> None:
    graph = graph_of("float16")
    narrow = {value for value in graph.names() if value in graph.types and graph.types[value].dtype == "float16"}
    casts = [node for node in graph.nodes if node.op == "Cast"]
    assert len(casts) == 2  # of x, and of q, which both of its transposes read
    products = [node for node in graph.nodes if node.op == "MatMul"]
    assert len(products) == 2 and all(graph.types[v].dtype == "float16" for node in products for v in node.inputs)
    assert all(graph.types[v].dtype == "float32" for node in products for v in node.outputs)
    moved = [node for node in graph.nodes if node.op in ("Transpose", "Reshape") and node.outputs[0] in narrow]
    assert moved and all(node.inputs[0] in narrow for node in moved)
    sums = [node for node in graph.nodes if node.op == "Add"]
    assert sums and all(graph.types[v].dtype == "float32" for node in sums for v in (*node.inputs, *node.outputs))


def test_rows_that_are_no_whole_accesses_stay_as_they_are() -> None:
    """A row of an input that is as long as the sequence, unless that is known to be a multiple of 8; what is made of a product,
    point by point, is rounded in any case: it is in no memory where one kernel makes both."""
    device = replace(find("cpu"), factors="float16")
    for factor, dims, rounded in (("g", {}, 2), ("g", {"t": (8, None, 8)}, 3), ("p", {}, 3)):
        body = BODY.replace("y = Add(p, mask)", f"v = Transpose<perm = [0, 2, 1, 3]>(parts)\n    y = MatMul({factor}, v)")
        results = "float[n, 2, t, 4] y, float[n, t, 8] r, float[n, 2, t, t] p"
        made = text_model(body, "float[n, t, 8] x, float[n, t, 8] z, float[n, 2, t, t] g", results,
                          "int64[4] split = {0, 0, 2, 4}")
        made.graph.initializer.extend([onnx.numpy_helper.from_array(np.ones((8, 8), np.float32), "w"),
                                       onnx.numpy_helper.from_array(np.ones(8, np.float32), "b")])
        graph = front(made, dims, Recorder(), device)[0]
        products = [node for node in graph.nodes if node.op == "MatMul"]
        assert sum("sum_dtype" in node.attrs for node in products) == rounded and len(products) == 3


@pytest.mark.parametrize(("sizes", "rounded"), [((8, 16, 8), True), ((12, 8, 12), False)])
def test_what_is_split_is_rounded_before(sizes: tuple[int, int, int], rounded: bool) -> None:
    """Where each part has whole accesses in its rows; of a part that nobody multiplies there is a copy that nobody reads."""
    body = """
        a, b, c = Split<axis = 2>(x, sizes)
        left = Slice(a, zero, eight, two)
        right = Transpose<perm = [0, 2, 1]>(b)
        s = MatMul(left, w)
        y = MatMul(s, right)
        r = Relu(c)"""
    last = sizes[2]
    made = text_model(body, f"float[n, t, {sum(sizes)}] x, float[8, {sizes[1]}] w", f"float[n, t, t] y, float[n, t, {last}] r",
                      f"int64[3] sizes = {{{', '.join(map(str, sizes))}}}, int64[1] zero = {{0}}, int64[1] eight = {{8}}, "
                      "int64[1] two = {2}")
    graph = front(made, None, Recorder(), replace(find("cpu"), factors="float16"))[0]
    splits = [node for node in graph.nodes if node.op == "Split"]
    assert sum(graph.types[node.inputs[0]].dtype == "float16" for node in splits) == rounded
    casts = [node for node in graph.nodes if node.op == "Cast" and node.inputs[0] in ("x", *splits[0].outputs)]
    assert [node.inputs[0] for node in casts] == ["x"] * rounded


def test_constants_saturate() -> None:
    (rounded,) = (value for value in graph_of("float16").constants.values() if value.dtype == np.float16)
    assert rounded.min() == -65504 and rounded.max() == 65504


def test_nothing_changes_where_factors_are_as_they_are() -> None:
    graph = graph_of("float32")
    assert not any(node.op == "Cast" or "sum_dtype" in node.attrs for node in graph.nodes)


def test_no_file_can_ask_for_sums_of_another_type() -> None:
    made = model()
    made.graph.node[0].attribute.append(onnx.helper.make_attribute("sum_dtype", "float64"))
    with pytest.raises(TscError, match="sum_dtype"):
        import_onnx(made)

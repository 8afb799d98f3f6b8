"""Pooling against the standard's text, window by window: its formula for the sizes, and what each window covers.

The reference evaluator of onnx 1.23 ignores the padding before an axis and refuses `ceil_mode` beside `auto_pad`; ONNX Runtime
leaves dilations out of the padding that `auto_pad` asks for and rounds up under VALID. With explicit padding it agrees.
"""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import tsc
from tests.ops.harness import run_node
from tsc.ir import Node
from tsc.ops.samples import floats

_GRID = [
    dict(size=d, kernel=k, stride=s, dilation=r, pads=p, ceil=c, include=i, auto=a)
    for d, k, s, r, p, c, i, a in itertools.product(
        (1, 2, 3, 5, 6, 7), (1, 2, 3, 4), (1, 2, 3), (1, 2), ((0, 0), (1, 0), (0, 1), (1, 1), (2, 1), (1, 2)), (0, 1), (0, 1),
        ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"))
    if max(p) < k and (a == "NOTSET" or p == (0, 0))]


def windows(case: dict[str, Any]) -> tuple[int, int, int]:
    """How many windows there are, and the padding before and after; fewer than one: the window is larger than what there is."""
    span, size, stride = (case["kernel"] - 1) * case["dilation"] + 1, case["size"], case["stride"]
    if case["auto"].startswith("SAME"):
        count = math.ceil(size / stride)
        total = max((count - 1) * stride + span - size, 0)
        less, more = total // 2, total - total // 2
        return (count, less, more) if case["auto"] == "SAME_UPPER" else (count, more, less)
    if case["auto"] == "VALID":
        return (math.ceil((size - span + 1) / stride) if case["ceil"] else (size - span) // stride + 1), 0, 0
    begin, end = case["pads"]
    room = (size + begin + end - span) / stride + 1
    count = math.ceil(room) if case["ceil"] else math.floor(room)
    return sum(1 for o in range(count) if o * stride - begin < size), begin, end


def expected(case: dict[str, Any], op: str, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    count, begin, end = windows(case)
    result = []
    for o in range(count):
        places = [o * case["stride"] - begin + k * case["dilation"] for k in range(case["kernel"])]
        inside = [x[p] for p in places if 0 <= p < len(x)]
        if op == "MaxPool":
            result.append(max(inside, default=-np.inf))
        else:
            members = sum(-begin <= p < len(x) + end for p in places) if case["include"] else len(inside)
            result.append(sum(inside) / members if members else np.nan)
    return np.array(result, np.float32) if count >= 1 else None


def attributes(case: dict[str, Any], op: str) -> dict[str, Any]:
    made = {"kernel_shape": (case["kernel"],), "strides": (case["stride"],), "dilations": (case["dilation"],),
            "ceil_mode": case["ceil"], "auto_pad": case["auto"]}
    if case["auto"] == "NOTSET":
        made["pads"] = case["pads"]
    return made | ({"count_include_pad": case["include"]} if op == "AveragePool" else {})


def by_runtime(case: dict[str, Any], op: str, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    node = helper.make_node(op, ["x"], ["y"], **attributes(case, op))
    graph = helper.make_graph([node], "pool", [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 1, len(x)))],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 1, None))])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    return np.asarray(onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x.reshape(1, 1, -1)})[0]).ravel()


@pytest.mark.defect(13)
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_windows_are_what_the_text_says(op: str) -> None:
    compared = 0
    for case in random.Random(op).sample(_GRID, 250):
        x = np.arange(1, case["size"] + 1, dtype=np.float32)
        want = expected(case, op, x)
        if want is None:
            continue
        node = Node(op, ("x",), ("y",), attributes(case, op), "node")
        got = run_node(node, {"x": x.reshape(1, 1, -1)}, 22, (), {"x": ("", "", "n")})["y"].ravel()
        np.testing.assert_allclose(got, want, rtol=1e-6, err_msg=str(case))
        if case["auto"] == "NOTSET" and not np.isnan(want).any():
            np.testing.assert_allclose(by_runtime(case, op, x), want, rtol=1e-6, err_msg=str(case))
            compared += 1
    assert compared > 50


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_a_window_larger_than_the_padded_dim_leaves_a_guard(op: str) -> None:
    node = Node(op, ("x",), ("y",), {"kernel_shape": (4,), "pads": (1, 0), "ceil_mode": 0}, "node")
    with pytest.raises(AssertionError, match="n"):  # the harness holds the guards against the sizes
        run_node(node, {"x": np.zeros((1, 1, 2), np.float32)}, 22, (), {"x": ("", "", "n")})


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("size", [9, 2**24 + 1, 2**31 - 1, 2**40])
@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER"])
def test_windows_far_larger_than_the_image_are_of_all_of_it(op: str, size: int, auto: str) -> None:
    x = floats(1, 2, 5)
    y, = _compiled(op, [1, 2, 5], kernel_shape=[size], auto_pad=auto).run(None, {"x": x})
    row = {"MaxPool": x.max(-1), "AveragePool": x.mean(-1), "LpPool": np.sqrt(np.square(x).sum(-1))}[op]
    np.testing.assert_allclose(y, np.repeat(row[..., None], 5, axis=-1), rtol=1e-5)


@pytest.mark.parametrize("unknown", [False, True])
@pytest.mark.parametrize("attributes", [
    dict(kernel_shape=[2**62], auto_pad="SAME_UPPER"), dict(kernel_shape=[3], dilations=[2**62], auto_pad="SAME_LOWER"),
    dict(kernel_shape=[7], dilations=[2**62], strides=[2**62], auto_pad="SAME_UPPER"),
    dict(kernel_shape=[2**62], dilations=[2], strides=[2**62], pads=[2**63 - 2, 1])])
def test_what_64_bits_do_not_hold_is_refused(attributes: dict[str, Any], unknown: bool) -> None:
    for count_include_pad in (0, 1):
        with pytest.raises(tsc.UnsupportedError, match="'N'"):
            _compiled("AveragePool", [1, 2, "a" if unknown else 5], count_include_pad=count_include_pad, **attributes)


def test_large_windows_over_an_image_of_unknown_size_are_refused() -> None:
    large = dict(kernel_shape=[2**31 - 1], auto_pad="SAME_UPPER")
    with pytest.raises(tsc.UnsupportedError, match="'N'"):
        _compiled("MaxPool", [1, 2, "a"], **large)
    x = floats(1, 2, 5)
    y, = _compiled("MaxPool", [1, 2, "a"], {"a": (1, 9)}, **large).run(None, {"x": x})
    assert (y == x.max(-1, keepdims=True)).all()


def test_a_distance_beyond_all_sizes_between_elements_of_one_is_none() -> None:
    x = floats(1, 2, 5)
    y, = _compiled("AveragePool", [1, 2, 5], kernel_shape=[1], dilations=[2**63 - 1]).run(None, {"x": x})
    assert (y == x).all()


def _compiled(op: str, shape: list[int | str], dims: dict[str, Any] | None = None, **attributes: Any) -> Any:
    """A model of one node 'N'."""
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"], "N", **attributes)], "g",
                              [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    return tsc.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10), dims=dims)

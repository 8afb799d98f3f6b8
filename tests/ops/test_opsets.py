"""Older forms of operators: attributes that later became inputs, and semantics that changed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.ops import test_samples as samples
from tests.ops.harness import run_node
from tests.ops.test_samples import check
from tsc.ir import Node
from tsc.ops import find
from tsc.ops.base import Sample
from tsc.ops.samples import floats, scalar, vector

X = floats(2, 3, 4)

CASES: Sequence[tuple[str, int, Sample]] = (
    ("Slice", 7, Sample([floats(5, 7)], {"starts": (1, -3), "ends": (4, 100), "axes": (0, 1)})),
    ("Slice", 10, Sample([floats(5, 7), vector(1), vector(4)])),
    ("Pad", 7, Sample([floats(3, 5)], {"pads": (1, 0, 0, 2), "value": 2.0})),
    ("Pad", 10, Sample([floats(3, 5)], {"pads": (1, 1, 0, 2), "mode": "reflect"})),
    ("Clip", 7, Sample([X], {"min": -0.5, "max": 0.5})),
    ("OneHot", 9, Sample([vector(0, 2, 3, 7), scalar(4, "int64"), np.array([-1.5, 2.5], np.float32)])),
    ("Flatten", 8, Sample([X], {"axis": 2})),
    ("MaxPool", 8, Sample([floats(1, 2, 7, 8)], {"kernel_shape": (2, 3), "strides": (2, 2), "auto_pad": "SAME_LOWER"})),
    ("AveragePool", 7, Sample([floats(1, 2, 7, 8)], {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)})),
    ("BatchNormalization", 7, Sample([floats(2, 3, 4), *(floats(3, low=0.5) for _ in range(4))])),
    ("Gemm", 7, Sample([floats(3, 5), floats(5, 2), floats(1, 2)], {"alpha": 0.5})),
    ("Upsample", 7, Sample([floats(1, 2, 3, 5)], {"scales": (1.0, 1.0, 2.0, 3.0)})),
    ("Upsample", 9, Sample([floats(1, 2, 3, 5), np.array([1, 1, 2, 3], np.float32)], {"mode": "linear"})),
    ("Squeeze", 11, Sample([floats(1, 3, 1)], {"axes": (0, -1)})),
    ("Unsqueeze", 11, Sample([floats(3, 5)], {"axes": (0, -1)})),
    ("ReduceSum", 11, Sample([X], {"axes": (0, 2), "keepdims": 0})),
    ("ReduceSum", 13, Sample([X, vector(-1)])),
    ("ReduceMean", 11, Sample([X], {"axes": (-1,)})),
    ("ReduceMax", 13, Sample([X], {"axes": (1,)})),
    ("ReduceL2", 13, Sample([X], {"axes": (1, 2), "keepdims": 0})),
    ("Softmax", 11, Sample([X], {"axis": 1})),
    ("Softmax", 12, Sample([X])),
    ("LogSoftmax", 11, Sample([X], {"axis": 0})),
    ("Softmax", 13, Sample([X], {"axis": 1})),
    ("Split", 11, Sample([floats(2, 7)], {"axis": 1, "split": (3, 4)}, outputs=2)),
    ("Split", 13, Sample([floats(6, 2)], {}, outputs=3)),
    ("Clip", 11, Sample([X, scalar(-0.5), scalar(0.5)])),
    ("Pad", 13, Sample([floats(3, 5), vector(1, 0, 0, 2), scalar(2.0)])),
    ("Slice", 11, Sample([floats(5, 7), vector(-3), vector(2**31 - 1), vector(1), vector(1)])),
    ("Dropout", 11, Sample([X], {"ratio": 0.3})),
    ("Gemm", 11, Sample([floats(3, 5), floats(5, 2), floats(2)], {"alpha": 0.5})),
    ("BatchNormalization", 11, Sample([floats(2, 3, 4), *(floats(3, low=0.5) for _ in range(4))])),
    ("ArgMax", 11, Sample([X], {"axis": -1, "keepdims": 0})),
)


@pytest.mark.parametrize("naming", ["static", "apart"])
@pytest.mark.parametrize(("name", "opset", "sample"), CASES, ids=[f"{n}-{o}-{i}" for i, (n, o, _) in enumerate(CASES)])
def test_older_form(name: str, opset: int, sample: Sample, naming: str) -> None:
    op = find(name)
    assert op is not None
    check(op, sample, opset, naming)


@pytest.mark.parametrize(("scales", "mode"), [((2, 1.5), "nearest"), ((0.5, 0.75), "nearest"), ((2, 3), "linear")])
def test_resize_had_one_more_input_only(scales: tuple[float, float], mode: str) -> None:
    op, sample = find("Resize"), Sample([floats(1, 2, 6, 5), np.array([1, 1, *scales], np.float32)], {"mode": mode})
    assert op is not None
    _, node, feeds = samples._model(op, sample, 10)
    want, = samples._expected(op, sample, 10)
    np.testing.assert_allclose(run_node(node, feeds, 10, (1,), {"x0": ("N", "", "H", "W")})["y0"], want, rtol=2e-5, atol=2e-6)


def test_group_normalization_had_one_scale_a_group() -> None:
    """Up to opset 20; the reference evaluator only knows the later form, so NumPy says what is meant."""
    from_group = floats(2), floats(2, low=1)
    x = floats(2, 4, 5)
    grouped = x.reshape(2, 2, 10).astype(np.float64)
    normal = (grouped - grouped.mean(2, keepdims=True)) / np.sqrt(grouped.var(2, keepdims=True) + 1e-5)
    want = (normal * from_group[0][:, None] + from_group[1][:, None]).reshape(x.shape)
    node = Node("GroupNormalization", ("x", "s", "b"), ("y",), {"num_groups": 2}, "node")
    got = run_node(node, {"x": x, "s": from_group[0], "b": from_group[1]}, 18)["y"]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)

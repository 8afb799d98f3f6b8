"""Every operator's samples, static and with symbolic dims, against the ONNX reference evaluator."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.ops.harness import run_node
from tsc.ir import Node
from tsc.ops import all_ops, find
from tsc.ops.base import OpDef, Sample

OPSET = 24
CASES = [pytest.param(op, sample, id=f"{op.name}-{k}")
         for op in all_ops() if op.samples is not None for k, sample in enumerate(op.samples())]


def _onnx_attr(value: Any) -> Any:
    return numpy_helper.from_array(value) if isinstance(value, np.ndarray) else list(value) if isinstance(value, tuple) else value


def _model(op: OpDef, sample: Sample, opset: int) -> tuple[onnx.ModelProto, Node, dict[str, np.ndarray[Any, Any]]]:
    names = ["" if x is None else f"x{i}" for i, x in enumerate(sample.inputs)]
    outputs = [f"y{i}" for i in range(sample.outputs)]
    feeds = {n: np.asarray(x) for n, x in zip(names, sample.inputs) if x is not None}
    attrs = {k: _onnx_attr(v) for k, v in sample.attrs.items()}
    node = helper.make_node(op.name, names, outputs, name="node", domain=op.domain, **attrs)
    inputs = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in feeds.items()]
    infos = [helper.make_value_info(n, onnx.TypeProto()) for n in outputs]
    model = helper.make_model(helper.make_graph([node], "sample", inputs, infos), opset_imports=[helper.make_opsetid("", opset)])
    return model, Node(op.name, tuple(names), tuple(outputs), dict(sample.attrs), "node", op.domain), feeds


def check(op: OpDef, sample: Sample, opset: int, symbolic: bool) -> None:
    model, node, feeds = _model(op, sample, opset)
    expected = ReferenceEvaluator(model).run(None, feeds)
    # a dim of 1 may be there to broadcast: that is a static fact, never a Dim
    sizes = {n: tuple(f"d{d}" if d > 1 else "" for d in x.shape) for n, x in feeds.items()} if symbolic else {}
    got = run_node(node, feeds, opset, op.static_inputs, sizes)
    for name, want in zip(node.outputs, expected):
        want = np.asarray(want)
        assert got[name].dtype == want.dtype and got[name].shape == want.shape
        if want.dtype.kind == "f":
            np.testing.assert_allclose(got[name], want, rtol=2e-5, atol=2e-6)
        else:
            np.testing.assert_array_equal(got[name], want)


@pytest.mark.parametrize(("op", "sample"), CASES)
def test_static(op: OpDef, sample: Sample) -> None:
    check(op, sample, OPSET, symbolic=False)


@pytest.mark.parametrize(("op", "sample"), CASES)
def test_symbolic(op: OpDef, sample: Sample) -> None:
    check(op, sample, OPSET, symbolic=True)


def test_every_standard_operator_has_samples_and_one_meaning() -> None:
    for op in all_ops():
        assert (op.te is None) != (op.decompose is None), op.name
        assert op.samples is not None or op.domain == "tsc", op.name
        assert find(op.name, op.domain) is op

"""Every operator's samples, static and with symbolic dims, against the ONNX reference evaluator or ONNX Runtime."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.ops.harness import run_node
from tsc.graph.onnx.importer import NEWEST_OPSET
from tsc.graph.onnx.schema import attribute_defaults, find_schema, newest_of
from tsc.ir import Node
from tsc.ops import all_ops, find
from tsc.ops.base import OpDef, Sample
from tsc.ops.define import CUSTOM
from tsc.ops.microsoft.domain import IN_STANDARD, MICROSOFT

OPSET = NEWEST_OPSET


def named(op: OpDef) -> str:
    """An operator with its domain, where that is not the standard's."""
    return ".".join(filter(None, (op.domain, op.name)))


CASES = [pytest.param(op, sample, id=f"{named(op)}-{k}")
         for op in all_ops() if op.samples is not None for k, sample in enumerate(op.samples())]
#: dims that must be static: (operator, input, dim from the end)
STATIC = {("Det", "x0", -1), ("Det", "x0", -2), ("GatherND", "x1", -1), ("ScatterND", "x1", -1), ("DFT", "x0", -1),
          ("DeformConv", "x1", -1), ("DeformConv", "x1", -2),
          *(("LinearAttention", f"x{k}", -1) for k in range(6)), ("LinearAttention", "x3", -2), ("LinearAttention", "x3", -3),
          ("CausalConvWithState", "x1", -1), ("CausalConvWithState", "x1", -3)}
#: where the reference evaluator of onnx 1.23 is wrong or incomplete: no broadcasting Mean, no scalar Softsign, no negative
#: pads, a global pool that reduces the channels too, no GlobalLpPool, local responses of as many channels as images; of
#: classical models no scores of two classes by one, and no transforms of what TreeEnsemble says
BY_RUNTIME = {"Mean", "Softsign", "Pad", "GlobalMaxPool", "RNN", "GRU", "LSTM", "GlobalLpPool", "LRN", "LinearClassifier",
              "TreeEnsembleClassifier", "TreeEnsemble"}


def of_domain(domain: str, few: int) -> list[Any]:
    """The samples of a domain's operators: a few of them by default, all with `-m slow`."""
    own = [case for case in CASES if case.values[0].domain == domain]
    chosen = set(Random(0).sample([str(case.id) for case in own], few))
    return [pytest.param(*case.values, id=case.id, marks=() if case.id in chosen else pytest.mark.slow) for case in own]


def _onnx_attr(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return numpy_helper.from_array(value)
    return list(value) if isinstance(value, tuple) else value


def domain_in_files(op: OpDef) -> str:
    """The domain of an operator's nodes."""
    return "" if op.name in IN_STANDARD else op.domain


def domain_opset(op: OpDef) -> int:
    """The newest opset of an operator's own domain that has it and does not advise against it."""
    newest = newest_of(op.domain)
    return next((opset for opset in range(newest, 1, -1) if (
        schema := find_schema(op.name, opset, op.domain)) is not None and not schema.deprecated), 1)


def _model(op: OpDef, sample: Sample, opset: int) -> tuple[onnx.ModelProto, Node, dict[str, np.ndarray[Any, Any]]]:
    names = ["" if x is None else f"x{i}" for i, x in enumerate(sample.inputs)]
    outputs = [f"y{i}" for i in range(sample.outputs)]
    feeds = {n: np.asarray(x) for n, x in zip(names, sample.inputs) if x is not None}
    attrs = {k: _onnx_attr(v) for k, v in sample.attrs.items()}
    node = helper.make_node(op.name, names, outputs, name="node", domain=domain_in_files(op), **attrs)
    inputs = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in feeds.items()]
    infos = [helper.make_value_info(n, onnx.TypeProto()) for n in outputs]
    graph = helper.make_graph([node], "sample", inputs, infos)
    own = domain_opset(op)
    others = [helper.make_opsetid(op.domain, own)] if op.domain else []
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset), *others], ir_version=10)
    defaults = dict(attribute_defaults(op.name, own, op.domain)) if op.domain else {}
    return model, Node(op.name, tuple(names), tuple(outputs), defaults | dict(sample.attrs), "node", op.domain), feeds


def _expected(op: OpDef, sample: Sample, opset: int) -> list[np.ndarray[Any, Any]]:
    if op.name in BY_RUNTIME or op.domain == MICROSOFT or opset < OPSET:  # the reference evaluator does not know old semantics
        model, _, feeds = _model(op, sample, min(opset, 21))
        session = onnxruntime.InferenceSession(onnx.shape_inference.infer_shapes(model).SerializeToString())
        return [np.asarray(y) for y in session.run(None, feeds)]
    model, _, feeds = _model(op, sample, opset)
    return [np.asarray(y) for y in ReferenceEvaluator(model).run(None, feeds)]


def _sizes(op: OpDef, feeds: dict[str, np.ndarray[Any, Any]], naming: str) -> dict[str, tuple[str, ...]]:
    """Dim names by input: none, the same name for the same extent, or all apart. A 1 is static (it broadcasts)."""
    def name(value: str, k: int, extent: int, rank: int) -> str:
        if naming == "static" or extent <= 1 or (op.name, value, k - rank) in STATIC:
            return ""
        return f"d{extent}" if naming == "shared" else f"{value}_{k}"
    return {n: tuple(name(n, k, d, x.ndim) for k, d in enumerate(x.shape)) for n, x in feeds.items()}


def check(op: OpDef, sample: Sample, opset: int, naming: str) -> None:
    _, node, feeds = _model(op, sample, opset)
    got = run_node(node, feeds, opset, op.static_inputs, _sizes(op, feeds, naming))
    for name, want in zip(node.outputs, _expected(op, sample, opset)):
        assert got[name].dtype == want.dtype and got[name].shape == want.shape
        if want.dtype.kind == "f":
            np.testing.assert_allclose(got[name], want, rtol=2e-5, atol=2e-6)
        else:
            np.testing.assert_array_equal(got[name], want)


@pytest.mark.parametrize("naming", ["static", "shared", "apart"])
@pytest.mark.parametrize(("op", "sample"), CASES)
def test_sample(op: OpDef, sample: Sample, naming: str) -> None:
    check(op, sample, OPSET, naming)


def test_every_standard_operator_has_samples_and_one_meaning() -> None:
    for op in all_ops():
        assert (op.te is None) != (op.decompose is None) or (
            op.te is None and (op.region is not None or op.name in (CUSTOM, "Choose", "Repeat"))), op.name
        assert op.samples is not None or op.domain == "tsc", op.name
        assert find(op.name, op.domain) is op

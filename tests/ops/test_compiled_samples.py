"""Operator samples compiled with symbolic dims and run, against the reference: a few of them by default, all with `-m slow`."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import tsc
from tests.ops import test_samples as samples
from tsc.ops.base import OpDef, Sample

#: Sizes with min, max and divisions, a guard that a proof needs, an output without elements, reductions over no axes.
ALWAYS = {"Slice-0", "Slice-1", "Slice-2", "Slice-3", "Slice-4", "Slice-5", "Split-1", "Conv-3", "ReduceL2-4", "ReduceLogSum-4",
          "ReduceLogSumExp-4"}
STANDARD = [case for case in samples.CASES if not case.values[0].domain]
CHOSEN = ALWAYS | set(random.Random(0).sample(sorted(str(case.id) for case in STANDARD), 15))
CASES = [pytest.param(*case.values, id=case.id, marks=() if case.id in CHOSEN else pytest.mark.slow) for case in STANDARD]


def model(nodes: list[onnx.NodeProto], feeds: dict[str, Any], shapes: dict[str, Any], static: dict[str, Any],
          outputs: list[onnx.ValueInfoProto], opset: int = samples.OPSET,
          domains: dict[str, int] | None = None) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), shapes[n]) for n, x in feeds.items()]
    graph = helper.make_graph(nodes, "sample", inputs, outputs, [numpy_helper.from_array(x, n) for n, x in static.items()])
    opsets = [helper.make_opsetid(domain, version) for domain, version in {"": opset, **(domains or {})}.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def sample_model(op: OpDef, sample: Sample) -> tuple[onnx.ModelProto, dict[str, Any] | None, dict[str, Any], dict[str, Any]]:
    """A sample as a model with symbolic dims: the model, `dims` to compile it with, the shapes of its values and the feeds."""
    values = {f"x{i}": np.asarray(x) for i, x in enumerate(sample.inputs) if x is not None}
    static = {n: x for n, x in values.items() if int(n[1:]) in op.static_inputs}
    feeds = {n: x for n, x in values.items() if n not in static}
    shapes = {n: [name or size for name, size in zip(names, values[n].shape)]
              for n, names in samples._sizes(op, values, "shared").items()}
    names = ["" if x is None else f"x{i}" for i, x in enumerate(sample.inputs)]
    outputs = [f"y{i}" for i in range(sample.outputs)]
    attrs = {k: samples._onnx_attr(v) for k, v in sample.attrs.items()}
    node = helper.make_node(op.name, names, outputs, "node", domain=samples.domain_in_files(op), **attrs)
    infos = [helper.make_value_info(n, onnx.TypeProto()) for n in outputs]
    empty = {name: (0, None) for n, x in feeds.items() for name, size in zip(shapes[n], x.shape) if size == 0 and name}
    domains = {op.domain: samples.domain_opset(op)} if op.domain else None
    return model([node], feeds, shapes, static, infos, domains=domains), empty or None, shapes, feeds


def compiled_sample(op: OpDef, sample: Sample) -> list[np.ndarray[Any, Any]]:
    """The outputs of a sample's node, compiled."""
    source, dims, _, feeds = sample_model(op, sample)
    return tsc.compile(source, dims=dims, threads=1).run(None, feeds)


@pytest.mark.parametrize(("op", "sample"), CASES)
def test_sample(op: OpDef, sample: Sample) -> None:
    for got, want in zip(compiled_sample(op, sample), samples._expected(op, sample, samples.OPSET)):
        assert got.dtype == want.dtype and got.shape == want.shape
        if want.dtype.kind == "f":
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)
        else:
            np.testing.assert_array_equal(got, want)


# -- slices and empty tensors at many sizes ----------------------------------------------------------------------

def sliced(starts: list[Any], ends: list[Any], axes: list[int], steps: list[int]) -> onnx.ModelProto:
    """x[H, W] cut; a bound is an integer, or (axis, offset) for that dim's size plus the offset."""
    nodes = [helper.make_node("Shape", ["x"], ["shape"], "shape")]
    static = {"axes": np.array(axes), "steps": np.array(steps)}

    def bound(name: str, value: Any) -> str:
        if isinstance(value, int):
            static[name] = np.array([value])
            return name
        static.update({f"{name}_axis": np.array([value[0]]), f"{name}_offset": np.array([value[1]])})
        nodes.append(helper.make_node("Gather", ["shape", f"{name}_axis"], [f"{name}_size"], f"{name}_size"))
        nodes.append(helper.make_node("Add", [f"{name}_size", f"{name}_offset"], [name], name))
        return name

    for name, values in (("starts", starts), ("ends", ends)):
        parts = [bound(f"{name}{k}", value) for k, value in enumerate(values)]
        nodes.append(helper.make_node("Concat", parts, [name], name, axis=0))
    nodes.append(helper.make_node("Slice", ["x", "starts", "ends", "axes", "steps"], ["y"], "slice"))
    x = np.zeros((1, 1), np.float32)
    return model(nodes, {"x": x}, {"x": ["H", "W"]}, static, [helper.make_tensor_value_info("y", 1, ["h", "w"])], 21)


@pytest.mark.parametrize("cut", [
    ([2, -5], [9, 2**63 - 1], [0, 1], [1, 1]),
    ([-4], [-1], [1], [2]),
    ([7, (1, -1)], [-(2**63) + 1, 0], [0, 1], [-2, -1]),
    ([0], [(1, -1)], [1], [3]),
    ([(0, -1)], [(0, 0)], [0], [1]),
    ([3], [2], [0], [1]),
    pytest.param(([-100], [-200], [0], [-1]), marks=pytest.mark.defect(13)),
    ([0, (0, -2)], [(1, -1), (0, 1)], [0, 1], [1, 1]),
    pytest.param(([(1, 0)], [(0, 5)], [0], [1]), marks=pytest.mark.slow),
    pytest.param(([(1, -4)], [(1, 0)], [0], [2]), marks=pytest.mark.slow),
    pytest.param(([(1, 2)], [-(2**63)], [0], [-1]), marks=pytest.mark.slow),
    pytest.param(([(1, -3)], [0], [0], [-1]), marks=pytest.mark.slow),
], ids=["clamped", "from the end", "backwards", "a size less one", "the last row", "nothing", "before the start, backwards",
        "other sizes", "from another dim's end", "of unknown sign", "backwards from another dim", "backwards, either sign"])
def test_slice_at_every_size(cut: tuple[list[Any], list[Any], list[int], list[int]]) -> None:
    made = sliced(*cut)
    executable = tsc.compile(made, threads=1)
    session = onnxruntime.InferenceSession(made.SerializeToString())
    for shape in ((1, 1), (2, 3), (3, 8), (5, 7), (8, 4), (9, 2), (11, 130)):
        x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        got, want = executable.run(None, {"x": x})[0], np.asarray(session.run(None, {"x": x})[0])
        assert got.shape == want.shape
        np.testing.assert_array_equal(got, want)


def test_empty_tensors() -> None:
    x, w = np.zeros((4, 0), np.float32), np.zeros((0, 5), np.float32)
    info = [helper.make_tensor_value_info("y", 1, None)]
    for node, static, want in (
            (helper.make_node("MatMul", ["x", "w"], ["y"], "product"), {"w": w}, x @ w),
            (helper.make_node("ReduceSum", ["x", "axes"], ["y"], "sum"), {"axes": np.array([1])}, np.zeros((4, 1), np.float32)),
            (helper.make_node("Softmax", ["x"], ["y"], "softmax"), {}, x),
            (helper.make_node("Relu", ["x"], ["y"], "relu"), {}, x)):
        executable = tsc.compile(model([node], {"x": x}, {"x": ["N", 0]}, static, info), threads=1)
        got, = executable.run(None, {"x": x})
        assert got.shape == want.shape
        np.testing.assert_array_equal(got, want)

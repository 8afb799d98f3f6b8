"""Nodes that do not fit themselves: samples with an input, its shape, dtype or contents, or an attribute changed.

Whatever is changed, the compiler's front end ends well or in a typed error that names the node: never in an InternalError,
never in an untyped one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper

import tsc
from tests.ops import test_samples as samples
from tests.ops.test_compiled_samples import model
from tsc import pipeline
from tsc.errors import InternalError, ModelError, ShapeError, TscError
from tsc.graph.fusion.to_te import lower_group
from tsc.ops import all_ops
from tsc.ops.base import OpDef, Sample
from tsc.ops.define import is_custom
from tsc.targets import find
from tsc.trace import Recorder

OPS = [op for op in all_ops() if not op.domain and op.samples is not None and op.samples()]
_NUMBERS = (0, -1, -7, 10**6, 2**31, 2**63 - 1, -(2**63))
_VALUES: dict[str, tuple[Any, ...]] = {
    "INT": (*_NUMBERS, 1, 2, 3), "FLOAT": (0.0, -1.0, float("nan"), float("inf"), 1e38), "STRING": ("", "nonsense"),
    "FLOATS": ((), (1.0,), (0.0,) * 4), "TENSOR": (np.zeros(0, np.float32), np.zeros((2, 2), np.float32))}


def shapes_of(x: NDArray[Any]) -> Iterator[NDArray[Any]]:
    yield np.zeros((), x.dtype)
    yield from (x[None], x[..., None], x.reshape(-1))
    if x.ndim:
        yield from (np.concatenate([x, x[:1]]), x[:-1], x[..., :-1], x[:0])


def changed(op: OpDef, sample: Sample) -> Iterator[tuple[str, Sample]]:
    def with_input(i: int, x: NDArray[Any] | None) -> Sample:
        return Sample([*sample.inputs[:i], x, *sample.inputs[i + 1:]], sample.attrs, sample.outputs)

    for i, given in enumerate(sample.inputs):
        if given is None:
            continue
        x = np.asarray(given)
        yield f"no input {i}", with_input(i, None)
        yield from ((f"input {i} of shape {y.shape}", with_input(i, y)) for y in shapes_of(x))
        yield from ((f"input {i} of {d}", with_input(i, x.astype(d)))
                    for d in ("float32", "float64", "int64", "int32", "uint8", "uint64", "bool") if x.dtype != d)
        if i in op.static_inputs and x.dtype == np.int64 and x.size:
            for number in _NUMBERS:
                y = x.copy()
                y.reshape(-1)[0] = number
                yield f"{number} in input {i}", with_input(i, y)
    for name, attribute in onnx.defs.get_schema(op.name, samples.OPSET).attributes.items():
        kind = attribute.type.name
        old = tuple(sample.attrs.get(name, (1, 1))) if kind == "INTS" else ()
        values = ((), (*old, 1), old[:-1], *((n, *old[1:]) for n in _NUMBERS)) if kind == "INTS" else _VALUES.get(kind, ())
        for value in values:
            if name not in ("to", "dtype", "stash_type") or abs(value) < 2**31:
                yield f"{name}={value}", Sample(sample.inputs, {**sample.attrs, name: value}, sample.outputs)
        yield f"no {name}", Sample(sample.inputs, {k: v for k, v in sample.attrs.items() if k != name}, sample.outputs)
    yield from ((f"{n} inputs", Sample(sample.inputs[:n], sample.attrs, sample.outputs)) for n in range(1, len(sample.inputs)))


def built(op: OpDef, sample: Sample, symbolic: bool) -> onnx.ModelProto:
    values = {f"x{i}": np.asarray(x) for i, x in enumerate(sample.inputs) if x is not None}
    static = {n: x for n, x in values.items() if int(n[1:]) in op.static_inputs}
    feeds = {n: x for n, x in values.items() if n not in static}
    shapes = {n: [f"d{d}" if symbolic and d > 1 else d for d in x.shape] for n, x in feeds.items()}
    names = ["" if x is None else f"x{i}" for i, x in enumerate(sample.inputs)]
    outputs = [f"y{i}" for i in range(sample.outputs)]
    attrs = {k: samples._onnx_attr(v) for k, v in sample.attrs.items()}
    node = helper.make_node(op.name, names, outputs, "culprit", **attrs)
    return model([node], feeds, shapes, static, [helper.make_value_info(n, onnx.TypeProto()) for n in outputs])


def lowered(made: onnx.ModelProto) -> None:
    graph, env, groups = pipeline.front(made, None, Recorder(), find("cpu"))
    for group in groups:
        if not is_custom(group.anchor):  # its Computes are there already
            lower_group(group, graph, env)


def check(op: OpDef, cases: list[tuple[str, Sample]]) -> None:
    for what, sample in cases:
        for symbolic in (False, True):
            try:
                made = built(op, sample, symbolic)
            except (ValueError, TypeError):  # no file can say it
                continue
            try:
                lowered(made)
            except InternalError as error:
                raise AssertionError(f"{what}: {error}") from error
            except TscError as error:
                assert isinstance(error, ModelError | ShapeError) and "'culprit" in str(error), f"{what}: {error}"


@pytest.mark.defect(18)
@pytest.mark.parametrize("op", OPS, ids=[op.name for op in OPS])
def test_a_few_changes(op: OpDef) -> None:
    cases = [c for sample in (op.samples() if op.samples else ()) for c in changed(op, sample)]
    check(op, random.Random(op.name).sample(cases, min(6, len(cases))))


@pytest.mark.slow
@pytest.mark.parametrize("op", OPS, ids=[op.name for op in OPS])
def test_every_change(op: OpDef) -> None:
    seen: dict[str, Sample] = {}
    for sample in op.samples() if op.samples else ():
        for what, case in changed(op, sample):
            seen.setdefault(what, case)
    check(op, list(seen.items()))


def floats(*shape: int) -> NDArray[Any]:
    return np.ones(shape, np.float32)


_IMAGE, _KERNEL, _SCALES = floats(1, 4, 5, 5), floats(2, 4, 2, 2), np.array([1, 1, 1e38, 1], np.float32)


@pytest.mark.defect(18, 19)
@pytest.mark.parametrize(("op", "inputs", "attrs", "said"), [
    ("GroupNormalization", [_IMAGE], {"num_groups": 2}, "inputs"),
    ("GroupNormalization", [_IMAGE, floats(4), floats(4)], {"num_groups": 0}, "num_groups 0"),
    ("GroupNormalization", [_IMAGE, floats(3), floats(4)], {"num_groups": 2}, "input 1"),
    ("Conv", [_IMAGE, _KERNEL], {"strides": (1,)}, r"strides \(1,\)"),
    ("Conv", [_IMAGE, _KERNEL], {"strides": (-1, 1)}, r"strides \(-1, 1\)"),
    ("Conv", [_IMAGE, _KERNEL], {"dilations": (0, 1)}, r"dilations \(0, 1\)"),
    ("Conv", [_IMAGE, _KERNEL], {"kernel_shape": (3, 3)}, "kernel_shape"),
    ("Conv", [_IMAGE, _KERNEL], {"pads": (-1, 0, 0, 0)}, "pads -1"),
    ("Conv", [_IMAGE, floats(3, 2, 2, 2)], {"group": 2}, "group must divide"),
    ("MaxPool", [_IMAGE], {"kernel_shape": (2, 0)}, r"kernel_shape \(2, 0\)"),
    ("Resize", [_IMAGE, None, _SCALES], {}, "the scale 9.99"),
    ("Where", [floats(3), floats(3), floats(3)], {}, "condition"),
    ("Div", [floats(3), None], {}, "'B'"),
    ("Gather", [floats(3), floats(2)], {}, "indices"),
    ("Add", [np.array([True]), np.array([True])], {}, "bool"),
    ("Gemm", [floats(1, 2), floats(2, 3), floats(5, 3)], {}, "input 2"),
    ("PRelu", [floats(1, 3), floats(2, 3)], {}, "input 1"),
    ("Unsqueeze", [floats(3), np.array([0, 0])], {}, "each once"),
    ("Slice", [floats(3), np.array([0, 0]), np.array([1])], {}, "starts"),
    ("Reshape", [floats(4), np.array([-2, 2])], {}, "-2"),
    ("ConstantOfShape", [np.array([-1])], {}, "below 0"),
    ("DepthToSpace", [_IMAGE], {"blocksize": 3}, "divide"),
    ("GatherND", [floats(3), np.zeros((2, 2), np.int64)], {}, "index depth of 2"),
    ("GatherElements", [floats(2, 3), np.zeros((5, 3), np.int64)], {"axis": 1}, "axis 0"),
    ("Pad", [floats(2, 4), np.array([2, 0, 0, 0])], {"mode": "reflect"}, "axis 0"),
    ("Range", [np.array(0), np.array(4), np.array(0)], {}, "step of 0"),
])
def test_the_node_and_what_is_wrong_with_it_are_named(op: str, inputs: list[Any], attrs: dict[str, Any], said: str) -> None:
    definition = next(o for o in all_ops() if o.name == op and not o.domain)
    with pytest.raises((ModelError, ShapeError), match=f"culprit.*{said}"):
        lowered(built(definition, Sample(inputs, attrs), symbolic=False))


@pytest.mark.defect(18)
def test_constant_extremes_are_folded_as_they_would_be_computed() -> None:
    least, least32 = np.array([-(2**63)]), np.array([-(2**31)], np.int32)
    for op, inputs, want in (
            ("Div", [least, np.array([-1])], least), ("Div", [least32, np.array([-1], np.int32)], least32),
            ("Neg", [least], least), ("Abs", [least], least), ("Mul", [least, np.array([3])], least)):
        static = {f"x{i}": x for i, x in enumerate(inputs)}
        node = helper.make_node(op, list(static), ["y"], "node")
        made = model([node], {}, {}, static, [helper.make_value_info("y", onnx.TypeProto())])
        got, = tsc.compile(made, threads=1).run(None, {})
        np.testing.assert_array_equal(got, want)

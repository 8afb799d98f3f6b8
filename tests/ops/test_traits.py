"""What OpDefs say of their operators, and what is read off their te bodies, against the reference evaluator on the samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tests.ops import test_samples as samples
from tests.ops.extremes import extreme_samples, extremes
from tests.ops.harness import Lowered, lower_node
from tsc.errors import TscError
from tsc.ops import all_ops, find
from tsc.ops.base import OpDef, PatternKind, Sample
from tsc.ops.define import CUSTOM
from tsc.ops.derive import compute_kind, is_copy, permutation
from tsc.sym import ShapeEnv
from tsc.te.compute import Axis, Compute
from tsc.te.expr import Buffer, Load, map_loads

Array = NDArray[Any]

#: From what is cheapest to fuse to what is dearest: an operator is of the dearest kind that a sample shows.
ORDER = (PatternKind.ELEMENTWISE, PatternKind.BROADCAST, PatternKind.INJECTIVE, PatternKind.REDUCE, PatternKind.CONTRACTION,
         PatternKind.OPAQUE)
SAMPLED = [op for op in all_ops() if op.samples is not None and op.samples()]
#: Nodes of these are made of users' Computes, by the kind that is read off those.
BROUGHT = {CUSTOM} | {f"te.{kind.value}" for kind in PatternKind}


def named(op: OpDef) -> str:
    return op.name


def reference(op: OpDef, sample: Sample) -> Array:
    """The first output, by the reference evaluator."""
    model, _, feeds = samples._model(op, sample, samples.OPSET)
    with np.errstate(all="ignore"):
        return np.asarray(ReferenceEvaluator(model).run(None, feeds)[0])


def with_input(sample: Sample, k: int, array: Array) -> Sample:
    return replace(sample, inputs=[array if i == k else x for i, x in enumerate(sample.inputs)])


def same_bits(a: Array, b: Array) -> bool:
    """Equal arrays, zeros by their signs; what is no number has no bits of its own."""
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    if a.dtype.kind != "f":
        return bool(np.array_equal(a, b))
    return bool(np.array_equal(a, b, equal_nan=True) and np.array_equal(np.signbit(a[a == 0]), np.signbit(b[b == 0])))


# -- kinds -----------------------------------------------------------------------------------------------------

def canonical(compute: Compute, env: ShapeEnv) -> Compute:
    """The Compute with all that is known of sizes by now."""
    def settled(load: Load) -> Load:
        return Load(Buffer(load.buffer.name, load.buffer.dtype, tuple(map(env.canon, load.buffer.shape))), load.index)

    axes = tuple(Axis(a.name, env.canon(a.extent)) for a in compute.axes)
    return replace(compute, axes=axes, body=map_loads(settled, compute.body))


def lowerings(op: OpDef) -> Iterator[tuple[Sample, Lowered]]:
    """The samples of an operator, lowered with static and with symbolic sizes."""
    for sample in op.samples() if op.samples is not None else ():
        for naming in ("static", "shared", "apart"):
            _, node, feeds = samples._model(op, sample, samples.OPSET)
            yield sample, lower_node(node, feeds, samples.OPSET, op.static_inputs, samples._sizes(op, feeds, naming))[0]


@pytest.fixture(scope="module")
def derived() -> dict[str, set[PatternKind]]:
    """By operator, the kinds of the Computes that samples are lowered to; a compound's are those of its parts, which moves
    nothing where it views."""
    found: dict[str, set[PatternKind]] = {}
    for op in SAMPLED:
        for _, lowered in lowerings(op):
            for part, compute in lowered.parts:
                kind = compute_kind(canonical(compute, lowered.env))
                found.setdefault(part.name, set()).add(kind)
                if op.decompose is not None and not part.is_view:
                    found.setdefault(op.name, set()).add(kind)
    return found


def test_every_operator_is_of_the_kind_that_its_te_body_shows(derived: dict[str, set[PatternKind]]) -> None:
    wrong = {op.name: (op.kind, derived[op.name]) for op in all_ops()
             if op.name in derived and op.kind is not max(derived[op.name], key=ORDER.index)}
    assert not wrong
    left = {op.name for op in all_ops()} - derived.keys() - BROUGHT
    assert left == {"Constant", "If", "Loop", "Scan", "Choose", "Repeat", "Number", "JoinSlices", "Frames", "Upsample",
                    "Scatter", "FromBfloat", "ToBfloat", "Words", "Reorder", "Alias"}, (
        "a constant is no Compute, nor is what has graphs, nor its parts; frames are STFT's where the step is fed; the newest "
        "opset has no Upsample, nor Scatter; bfloat16, words and orders of memory have tests of their own")


# -- copies and permutations, read off te bodies -----------------------------------------------------------------

def moved(sample: Sample, lowered: Lowered) -> tuple[Array, Load, dict[str, Any]] | None:
    """Of an operator that is one Compute whose element is an operand's: the operand, that element, and the axes."""
    compute = canonical(lowered.computes[0], lowered.env)
    if len(lowered.computes) > 1 or compute.monoid is not None or not isinstance(compute.body, Load):
        return None
    operand = np.asarray(sample.inputs[int(compute.body.buffer.name[1:])])
    return operand, compute.body, {a.name: a.extent for a in compute.axes}


@pytest.mark.parametrize("op", [op for op in SAMPLED if op.te is not None], ids=named)
def test_what_copies_or_permutes_by_its_te_body_does(op: OpDef) -> None:
    for sample, lowered in lowerings(op):
        found = moved(sample, lowered)
        if found is None or op.name in samples.BY_RUNTIME:
            continue
        operand, element, axes = found
        made, perm = reference(op, sample), permutation(element, axes)
        assert is_copy(element, axes) == same_bits(made, operand)
        if perm is not None:
            assert same_bits(made, operand.transpose(perm))
        elif made.ndim == operand.ndim == 2 and len(set(operand.shape)) == 2 and 1 not in operand.shape:
            assert not same_bits(made, operand.T)


def test_permutations_are_found() -> None:
    op = find("Transpose")
    assert op is not None
    for sample, lowered in lowerings(op):
        found = moved(sample, lowered)
        assert found is not None
        rank = found[0].ndim
        assert permutation(*found[1:]) == sample.attrs.get("perm", tuple(reversed(range(rank))))


@pytest.mark.parametrize("op", [op for op in SAMPLED if op.is_view or op.kind is PatternKind.BROADCAST], ids=named)
def test_views_keep_the_order_and_broadcasts_repeat(op: OpDef) -> None:
    for sample in op.samples() if op.samples is not None else ():
        made, operand = reference(op, sample), np.asarray(sample.inputs[0])
        assert same_bits(made, operand.reshape(made.shape) if op.is_view else np.broadcast_to(operand, made.shape))


@pytest.mark.parametrize("op", [op for op in SAMPLED if op.associative], ids=named)
def test_associative_operators_take_some_operands_before_others(op: OpDef) -> None:
    for sample in op.samples() if op.samples is not None else ():
        operands = [np.asarray(x) for x in sample.inputs] * 2
        for k in range(1, len(operands)):
            for some, rest in ((slice(0, k), slice(k, None)), (slice(k, None), slice(0, k))):
                inner = reference(op, replace(sample, inputs=operands[some]))
                split = [inner, *operands[rest]] if some.start == 0 else [*operands[rest], inner]
                np.testing.assert_allclose(reference(op, replace(sample, inputs=split)),
                                           reference(op, replace(sample, inputs=operands)), rtol=1e-6, atol=1e-6)


# -- neutral elements ------------------------------------------------------------------------------------------

def keeps(op: OpDef, k: int, number: float, dtype: str) -> bool:
    """Whether the result is the other of two operands wherever operand `k` is `number`."""
    x = extremes(dtype)
    held = np.array([number]).astype(dtype)
    return same_bits(reference(op, Sample([held, x] if k == 0 else [x, held])), x)


def dtypes(op: OpDef) -> list[str]:
    return sorted({dtype for dtype, _ in extreme_samples(op, samples.OPSET)})


@pytest.mark.parametrize("op", [op for op in all_ops() if op.neutral], ids=named)
def test_a_neutral_element_leaves_the_other_operand_as_it_is(op: OpDef) -> None:
    assert len(op.neutral) == 2 and dtypes(op)
    for dtype in dtypes(op):
        for k, number in enumerate(op.neutral):
            assert number is None or keeps(op, k, number, dtype), (dtype, k, number)


@pytest.mark.parametrize("name", ["Add", "Sub", "Mul", "Div", "And", "Or", "Xor"])
def test_all_neutral_elements_among_the_usual_numbers_are_declared(name: str) -> None:
    op = find(name)
    assert op is not None
    for k in (0, 1):
        numbers = (True, False) if dtypes(op) == ["bool"] else (0.0, -0.0, 1.0, -1.0)
        found = [n for n in numbers if all(keeps(op, k, n, dtype) for dtype in dtypes(op))]
        declared = [float(n) for n in op.neutral[k:k + 1] if n is not None]
        assert repr(declared) == repr([float(n) for n in found])  # which tells -0.0 from 0.0


def test_a_zero_of_the_wrong_sign_is_no_neutral_element() -> None:
    add, sub = find("Add"), find("Sub")
    assert add is not None and sub is not None
    assert not keeps(add, 1, 0.0, "float32") and not keeps(sub, 1, -0.0, "float32") and not keeps(sub, 0, 0.0, "float32")


# -- linearity -------------------------------------------------------------------------------------------------

def is_linear(op: OpDef, k: int) -> bool:
    """Whether sums and multiples of operand `k` become those of the result, on every sample in doubles."""
    rng, seen = np.random.default_rng(0), 0
    for sample in op.samples() if op.samples is not None else ():
        if k >= len(sample.inputs) or any(x is None or x.dtype.kind != "f" for x in sample.inputs):
            continue
        wide = replace(sample, inputs=[np.asarray(x, np.float64) for x in sample.inputs])
        x = np.asarray(wide.inputs[k])
        y, factor = rng.uniform(-2, 2, x.shape), rng.uniform(-2, 2)
        both, own, other = (reference(op, with_input(wide, k, a)) for a in (x + factor * y, x, y))
        if both.dtype.kind != "f" or not np.allclose(both, own + factor * other, rtol=1e-9, atol=1e-9):
            return False
        seen += 1
    return seen > 0


ARITHMETIC = [
    op for op in SAMPLED if op.broadcasts_from is not None and op.te is not None and op.name not in samples.BY_RUNTIME]


@pytest.mark.parametrize("op", ARITHMETIC, ids=named)
def test_the_operands_that_an_operator_is_linear_in_are_declared(op: OpDef) -> None:
    count = max(len(s.inputs) for s in op.samples()) if op.samples is not None else 0
    assert tuple(k for k in range(count) if is_linear(op, k)) == op.linear


def test_nothing_else_declares_to_be_linear_or_to_broadcast() -> None:
    names = {op.name for op in ARITHMETIC} | samples.BY_RUNTIME
    assert {op.name for op in all_ops() if op.linear or op.neutral or op.broadcasts_from is not None} <= names


# -- broadcasting ----------------------------------------------------------------------------------------------

def unexpanded(op: OpDef, first: int) -> Iterator[tuple[Sample, Sample]]:
    """Samples with an operand from `first` on that others expand, and the same with that operand expanded before."""
    for sample in op.samples() if op.samples is not None else ():
        arrays = [np.asarray(x) for x in sample.inputs if x is not None]
        if len(arrays) < len(sample.inputs):
            continue
        whole = np.broadcast_shapes(*(x.shape for x in arrays))
        for k in range(first, len(arrays)):
            if arrays[k].shape != whole:
                yield sample, with_input(sample, k, np.broadcast_to(arrays[k], whole).copy())


@pytest.mark.parametrize("op", [op for op in ARITHMETIC if op.name != "Clip"], ids=named)  # its bounds are scalars
def test_an_operand_need_not_be_expanded(op: OpDef) -> None:
    pairs = list(unexpanded(op, op.broadcasts_from or 0))
    assert pairs or max(len(s.inputs) for s, _ in lowerings(op)) == 1
    for small, large in pairs:
        np.testing.assert_allclose(reference(op, small), reference(op, large), rtol=1e-6)  # NumPy squares for a scalar 2


def test_an_operand_that_gives_the_shape_alone_must_be_expanded() -> None:
    op = find("PRelu")
    assert op is not None and op.broadcasts_from == 1
    x, slope = np.array([-2.0], np.float32), np.array([1, 2, 3, 4], np.float32)
    for large in (False, True):
        sample = Sample([np.broadcast_to(x, 4) if large else x, slope])
        _, node, feeds = samples._model(op, sample, samples.OPSET)
        if large:
            assert lower_node(node, feeds, samples.OPSET)[0].types["y0"].rank == 1
        else:
            with pytest.raises(TscError, match="input 1"):
                lower_node(node, feeds, samples.OPSET)


# -- constants -------------------------------------------------------------------------------------------------

def test_a_literal_is_what_the_reference_makes_of_the_attributes() -> None:
    op = find("Constant")
    assert op is not None and op.literal is not None and [o.name for o in all_ops() if o.literal] == ["Constant"]
    for attrs in ({"value_float": 1.5}, {"value_floats": [1.0, 2.0]}, {"value_int": 3}, {"value_ints": [3, 4, 5]},
                  {"value": np.array([[1, 2]], np.int32)}):
        proto = helper.make_node("Constant", [], ["y"], **{k: samples._onnx_attr(v) for k, v in attrs.items()})
        graph = helper.make_graph([proto], "g", [], [helper.make_empty_tensor_value_info("y")])
        want = ReferenceEvaluator(helper.make_model(graph)).run(None, {})[0]
        assert same_bits(op.literal(attrs, "node 'c'"), np.asarray(want))

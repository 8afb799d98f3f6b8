"""Every operator's samples with extreme data: the evaluator and compiled C against the reference evaluator or ONNX Runtime.

Where those are no oracle, `extremes.CONVENTIONS` says why and what holds instead.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tsc
from tests.ops import test_samples as samples
from tests.ops.extremes import CONVENTIONS, ZEROS, extreme_samples
from tests.ops.harness import run_node
from tests.ops.test_compiled_samples import compiled_sample
from tsc.codegen_c.specs import CPU_SPECS
from tsc.ops import all_ops, find
from tsc.ops.base import OpDef, Sample
from tsc.runtime.drivers.cpu import read_cpu_flags

Arrays = list[np.ndarray[Any, Any]]
NUMERIC = [op for op in all_ops() if not op.domain and next(extreme_samples(op, samples.OPSET), None) is not None]
#: Operators of which nothing is compared for integers, for any type, or with ONNX Runtime: CONVENTIONS says why.
_INTEGERS_LEFT = {
    "Gemm", "ReduceMean", "ReduceLogSum", "ReduceLogSumExp", "Shrink", "Pow", "ReduceSumSquare", "OneHot", "ReduceL2",
    "QuantizeLinear"}
_BY_TEXT = {"MaxPool", "GlobalMaxPool", "ReduceLogSumExp", "Resize", "RMSNormalization", "PRelu", "LogSoftmax", "LRN", "DFT",
            "STFT", "MelWeightMatrix", "DeformConv", "RoiAlign", "LinearAttention"}
_BY_RUNTIME = {"AveragePool", "Conv", "Softsign", "Mean", "Pad", "LpPool", "GlobalLpPool", "LpNormalization", "QuantizeLinear"}


def wanted(op: OpDef, dtype: str, sample: Sample) -> Arrays | None:
    """What the oracle gives; None where there is none."""
    floats = dtype.startswith("float")
    if op.name in _BY_TEXT or (op.name in _INTEGERS_LEFT and not floats) or (op.name in {"OneHot", "TopK"} and floats) or (
            op.name == "DequantizeLinear" and dtype == "int32") or (
            op.name == "ScatterElements" and floats and sample.attrs.get("reduction") in ("min", "max")):
        return None
    model, _, feeds = samples._model(op, sample, 21 if op.name in _BY_RUNTIME else samples.OPSET)
    if op.name not in _BY_RUNTIME:
        found = [np.asarray(y) for y in ReferenceEvaluator(model).run(None, feeds)]
        if op.name == "LayerNormalization":  # the statistics are of type U, which stash_type says; the reference keeps x's
            return [found[0], *(y.astype(np.float32) for y in found[1:])]
        return found
    try:
        return [np.asarray(y) for y in onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)]
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented:
        return None


def compare(op: OpDef, got: Arrays, want: Arrays, sample: Sample) -> None:
    for own, other in zip(got, want, strict=True):
        assert own.dtype == other.dtype and own.shape == other.shape
        if other.dtype.kind != "f":
            np.testing.assert_array_equal(own, other, err_msg=str(sample.attrs))
            continue
        np.testing.assert_allclose(own, other, rtol=2e-5, atol=2e-6, err_msg=str(sample.attrs))
        if op.name not in ZEROS:
            zeros = (own == 0) & (other == 0)
            np.testing.assert_array_equal(np.signbit(own)[zeros], np.signbit(other)[zeros], err_msg=str(sample.attrs))


def evaluated(op: OpDef, sample: Sample) -> Arrays:
    _, node, feeds = samples._model(op, sample, samples.OPSET)
    found = run_node(node, feeds, samples.OPSET, op.static_inputs, samples._sizes(op, feeds, "shared"))
    return [found[name] for name in node.outputs]


@pytest.mark.defect(13)
@pytest.mark.parametrize("op", NUMERIC, ids=[op.name for op in NUMERIC])
def test_extremes(op: OpDef) -> None:
    compared = 0
    with np.errstate(all="ignore"):
        for dtype, sample in extreme_samples(op, samples.OPSET):
            want = wanted(op, dtype, sample)
            if want is not None:
                compare(op, evaluated(op, sample), want, sample)
                compared += 1
    assert compared or op.name in CONVENTIONS, "no oracle, and no word about it"


def test_every_operator_over_numbers_is_here() -> None:
    left = {op.name for op in all_ops() if not op.domain} - {op.name for op in NUMERIC}
    assert left <= {
        "Range", "Shape", "Size", "ConstantOfShape", "Constant", "EyeLike", "Upsample", "BlackmanWindow", "If", "Scatter",
        "NonMaxSuppression", "Loop", "Scan"}, left


_COMPILED = ("Div", "Mod", "Pow", "Max", "Clip", "Sign", "Round", "ArgMax", "Softplus")


@pytest.mark.defect(13)
@pytest.mark.parametrize("op", [
    pytest.param(op, id=op.name, marks=() if op.name in _COMPILED else pytest.mark.slow) for op in NUMERIC])
def test_compiled_extremes_are_the_evaluators(op: OpDef) -> None:
    """Each dtype once; the evaluator is held to the oracles above."""
    seen: set[str] = set()
    for dtype, sample in extreme_samples(op, samples.OPSET):
        if dtype in seen or (op.name in _COMPILED and dtype not in ("float32", "int32", "int64", "uint8")):
            continue
        seen.add(dtype)
        with np.errstate(all="ignore"):
            compare(op, compiled_sample(op, sample), evaluated(op, sample), sample)


# -- what the text decides ---------------------------------------------------------------------------------------

def by_text(op: str, *inputs: np.ndarray[Any, Any], **attrs: Any) -> np.ndarray[Any, Any]:
    found = find(op)
    assert found is not None
    return evaluated(found, Sample(list(inputs), attrs))[0]


@pytest.mark.defect(13)
def test_the_logarithm_of_a_sum_with_infinities() -> None:
    inf, nan = np.inf, np.nan
    x = np.array([[inf, inf], [-inf, -inf], [inf, 1], [-inf, 1], [nan, inf], [500, 500]], np.float32)
    want = np.array([inf, -inf, inf, 1, nan, 500 + np.log(2)])  # log(sum(exp(x))), as the standard's function body says
    np.testing.assert_allclose(by_text("ReduceLogSumExp", x, np.array([1]), keepdims=0), want, rtol=1e-6)


@pytest.mark.defect(13)
def test_what_is_no_number_is_the_extremum() -> None:
    nan = np.nan
    x = np.array([[nan, nan, nan], [1, nan, 3], [nan, 5, nan], [3, 2, nan], [1, 2, 0]], np.float32)
    for op in ("ArgMax", "ArgMin"):
        first = by_text(op, x, axis=1, keepdims=0)
        last = by_text(op, x, axis=1, keepdims=0, select_last_index=1)
        assert first.tolist() == [0, 1, 0, 2, 1 if op == "ArgMax" else 2]
        assert last.tolist() == [2, 1, 2, 2, 1 if op == "ArgMax" else 2]
    assert np.isnan(by_text("MaxPool", x[None], kernel_shape=(3,))).tolist() == [[[True], [True], [True], [True], [False]]]


def test_integers_that_do_not_fit_wrap_around() -> None:
    least = np.array([-(2**31)], np.int32)
    assert by_text("Div", least, np.array([-1], np.int32)) == least
    assert by_text("Div", least, np.array([5], np.int32)) == -429496729
    assert by_text("Abs", least) == by_text("Neg", least) == least
    assert by_text("Mod", least, np.array([0], np.int32)) == 0
    assert by_text("Pow", least, np.array([2])) == 0 and by_text("Pow", np.array([2]), np.array([-1])) == 0
    most = np.array([2**31 - 1, 2**31 - 1], np.int32)
    assert by_text("ReduceMean", most, np.array([0]), keepdims=0) == 2**31 - 1
    assert by_text("Gemm", np.array([[3]], np.int32), np.array([[5]], np.int32), alpha=0.5) == 7
    assert by_text("Shrink", np.array([-7, 0, 5], np.int8), bias=0.3, lambd=0.8).tolist() == [-6, 0, 4]
    assert by_text("Shrink", np.array([3, 0]), bias=-1e38).tolist() == [-2**63, 0]  # no integer, and so as casts have it


def test_a_slice_backwards_to_the_greatest_end_is_empty() -> None:
    """The end is clamped to the last element. ONNX Runtime steps down to the first; the text asks for INT_MIN there."""
    x, one = np.arange(4.0), np.array([-1])
    assert by_text("Slice", x, np.array([3]), np.array([2**63 - 1]), np.array([0]), one).size == 0
    assert by_text("Slice", x, np.array([3]), np.array([-(2**63)]), np.array([0]), one).tolist() == [3, 2, 1, 0]
    assert by_text("Slice", x, np.array([-100]), np.array([-200]), np.array([0]), one).tolist() == [0]


@pytest.mark.parametrize("k", [-(2**63), -3, 0, 2**31, 2**63 - 1, *(
    pytest.param(k, marks=pytest.mark.slow) for k in (1 - 2**63, -(2**62), 2, 2**62))])
def test_a_diagonal_may_lie_beyond_every_matrix(k: int) -> None:
    """Row and diagonal together fit no int64: in Python's integers they do."""
    x = np.arange(1.0, 21.0, dtype=np.float32).reshape(4, 5)
    apart = [[j - i - k for j in range(5)] for i in range(4)]
    for sizes in ((4, 5), ("a", "b")):
        assert (_over(sizes, x, "EyeLike", [], k=k) == np.array([[a == 0 for a in row] for row in apart])).all()
        for upper, kept in ((1, [[a >= 0 for a in row] for row in apart]), (0, [[a <= 0 for a in row] for row in apart])):
            assert (_over(sizes, x, "Trilu", [np.array(k)], upper=upper) == np.where(kept, x, 0)).all()


def _over(sizes: tuple[int | str, ...], x: np.ndarray[Any, Any], op: str, constants: Arrays, **attributes: Any) -> Any:
    """One operator over x, whose dims have these sizes or names, and constants."""
    names = [f"c{n}" for n in range(len(constants))]
    graph = helper.make_graph(
        [helper.make_node(op, ["x", *names], ["y"], **attributes)], "g", [helper.make_tensor_value_info("x", 1, sizes)],
        [helper.make_tensor_value_info("y", 1, [None, None])],
        [numpy_helper.from_array(c, name) for name, c in zip(names, constants)])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return tsc.compile(made, threads=1).run(None, {"x": x})[0]


@pytest.mark.parametrize("target", ["cpu-avx512", "cpu-avx2", "cpu-generic"])
@pytest.mark.parametrize("scale", [3e4, pytest.param(1e30, marks=pytest.mark.slow), 3.4e38])
@pytest.mark.parametrize("form", [
    "Softmax(h)", "LogSoftmax(h)", "Softmax<axis = 0>(h)", "ReduceLogSumExp<axes = [1], keepdims = 1>(h)", "Sub(h, m)"])
def test_a_row_of_large_products_less_its_greatest(form: str, scale: float, target: str) -> None:
    """0 at the greatest: of a product that is not rounded what rounding takes would be left, its exponential is anything."""
    if not set(CPU_SPECS[target].cpu_flags) <= read_cpu_flags():
        pytest.skip(f"this machine is no {target}")
    inner = ""
    if form == "Sub(h, m)":
        inner = "m = ReduceMax<axes = [1], keepdims = 1>(h)"
    text = f"""<ir_version: 8, opset_import: ["" : 13]> g (float[n, w] x) => (y) {{
        s = Constant<value_float = {scale!r}>()
        h = Mul(x, s)
        {inner}
        y = {form}
    }}"""
    made = onnx.parser.parse_model(text.replace("=> (y)", "=> (float[n, v] y)"))
    run = tsc.compile(made, threads=1, target=target)
    for rows, width in ((1, 1), (3, 4), (5, 17), (16, 130)):
        x = np.random.default_rng(width).uniform(0.1, 0.9, (rows, width)).astype(np.float32)
        h = (x * np.float32(scale)).astype(np.float64)
        axis = 0 if "axis = 0" in form else 1
        apart = h - h.max(axis, keepdims=True)
        total = np.exp(apart).sum(axis, keepdims=True)
        wanted = {"Softmax": np.exp(apart) / total, "LogSoftmax": apart - np.log(total),
                  "ReduceLogSumExp": h.max(axis, keepdims=True) + np.log(total), "Sub": apart}
        found = run.run(None, {"x": x})[0]
        with np.errstate(over="ignore"):
            np.testing.assert_allclose(found, wanted[form.split("(")[0].split("<")[0]].astype(np.float32), rtol=2e-5, atol=1e-6)

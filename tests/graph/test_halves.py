"""Models of halves: what they compute in, where they round, and how near they are to what their float32 originals give."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import tsc
from tests.models.test_shared_models import ENTRIES, FOLDER, RECIPES
from tsc.graph.onnx.importer import import_onnx
from tsc.graph.rewriting.halves import compute_wide
from tsc.graph.shapes import infer_shapes
from tsc.ir import Graph

Arrays = dict[str, np.ndarray[Any, Any]]


def parsed(body: str, inputs: str, outputs: str, held: str = "") -> onnx.ModelProto:
    """A model of text, in which halves are written as their bits."""
    found: onnx.ModelProto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g ({inputs}) => ({outputs}) <{held}> {{ {body} }}')
    return found


def widened(model: onnx.ModelProto) -> Graph:
    graph, env = import_onnx(model)
    return compute_wide(infer_shapes(graph, env), env)


def halves(graph: Graph) -> set[str]:
    """The values that are halves, but for those of no node."""
    return {value for node in graph.nodes for value in (*node.inputs, *node.outputs) if graph.types[value].dtype == "float16"}


def test_only_conversions_have_halves() -> None:
    graph = widened(parsed("h = MatMul(x, w) g = Add(h, b) y = Relu(g)", "float16[n, 2] x", "float16[n, 2] y, float16[n, 2] g",
                           "float16[2, 2] w = {15360, 16384, 0, 1}, float16[2] b = {14336, 1}"))
    assert halves(graph) == {"x", "y", "g"}
    assert all(node.op == "Cast" for node in graph.nodes for v in (*node.inputs, *node.outputs) if v in ("x", "y", "g"))
    assert all(array.dtype == np.float32 for array in graph.constants.values())


def test_a_graph_without_halves_is_itself() -> None:
    graph, env = import_onnx(parsed("y = Exp(x)", "float[n] x", "float[n] y"))
    graph = infer_shapes(graph, env)
    assert compute_wide(graph, env) is graph


def test_nodes_that_round_still_do() -> None:
    """Whether a Cast says so or what it is to be like; what only the type is taken of stays a half."""
    body = "a = Cast<to = 10>(x) b = Mul(a, two) c = CastLike(x, one) d = Add(b, c) y = Cast<to = 1>(d)"
    model = parsed(body, "float[n] x", "float[n] y", "float16 two = {16384}, float16 one = {15360}")
    x = np.array([1 / 3, 1e-9, 70000.0, -7.0], np.float32)
    with np.errstate(over="ignore"):
        rounded = x.astype(np.float16).astype(np.float32)
    got, = tsc.compile(model).run(None, {"x": x})
    np.testing.assert_array_equal(got, 3 * rounded)


def test_what_goes_in_may_come_out() -> None:
    """An input, a constant and a view of an input that are outputs."""
    model = parsed("v = Reshape(x, flat) r = Identity(x) q = Identity(w)", "float16[n, 2] x",
                   "float16[m] v, float16[n, 2] r, float16[2] q", "float16[2] w = {15360, 47104}, int64[1] flat = {-1}")
    x = np.array([[1, 65504], [np.inf, 6e-8], [np.nan, -0.0]], np.float16)
    for array, expected in zip(tsc.compile(model).run(None, {"x": x}), (x.ravel(), x, np.array([1, -0.5], np.float16))):
        assert array.dtype == np.float16
        np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("target", ["cpu", "emu:sm_80"])
def test_halves_that_are_made_of_nothing(target: str) -> None:
    """Numbers that stand in a kernel, in an output that nothing has widened."""
    model = parsed("y = EyeLike<dtype = 10>(x) t = Transpose(y) c = Concat<axis = 0>(t, half)", "float[n, m] x",
                   "float16[n, m] y, float16[k, l] c", "float16[1, 40] half = {" + ", ".join(["14336"] * 40) + "}")
    y, c = tsc.compile(model, target=target).run(None, {"x": np.zeros((40, 37), np.float32)})
    np.testing.assert_array_equal(y, np.eye(40, 37, dtype=np.float16))
    np.testing.assert_array_equal(c, np.concatenate([np.eye(37, 40), np.full((1, 40), 0.5)]).astype(np.float16))


# -- every half, and every float at which rounding changes ------------------------------------------------------

CONVERT = {
    "widened": ("y = Cast<to = 1>(x)", "float16[n] x", "float[n] y"),
    "rounded": ("y = Cast<to = 10>(x)", "float[n] x", "float16[n] y"),
    "doubles": ("y = Cast<to = 10>(x)", "double[n] x", "float16[n] y"),
    "integers": ("y = Cast<to = 10>(x)", "int64[n] x", "float16[n] y"),
    "cut": ("y = Cast<to = 7>(x)", "float16[n] x", "int64[n] y"),
    "truth": ("y = Cast<to = 9>(x)", "float16[n] x", "bool[n] y")}
EVERY = np.arange(2**16, dtype=np.uint16).view(np.float16)


def edges(dtype: type[np.floating[Any]]) -> np.ndarray[Any, Any]:
    """Halves, what lies in the middle between two, and the numbers beside those."""
    finite = np.unique(EVERY[np.isfinite(EVERY)].astype(dtype))
    middle = np.concatenate([(finite[1:] + finite[:-1]) / 2, np.array([65520, -65520], dtype)])
    near = [np.nextafter(middle, dtype(side)) for side in (-np.inf, np.inf)]
    others = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e30, -1e30, 1e-40], dtype)
    return np.concatenate([finite, middle, *near, others])


FED = {"widened": EVERY, "rounded": edges(np.float32), "doubles": edges(np.float64),
       "integers": np.concatenate([np.arange(-5000, 70000), np.array([2**62, -2**62, 65519, 65520])]),
       "cut": EVERY[np.isfinite(EVERY)], "truth": EVERY}


@pytest.mark.parametrize("target", ["cpu", "cpu-generic", "emu:sm_80"])
def test_conversions(target: str) -> None:
    """As NumPy has them: to the nearest, ties to even, infinite beyond the range."""
    for name, (body, inputs, outputs) in CONVERT.items():
        got, = tsc.compile(parsed(body, inputs, outputs), target=target).run(None, {"x": FED[name]})
        with np.errstate(over="ignore"):
            expected = FED[name].astype(got.dtype)
        np.testing.assert_array_equal(got, expected, err_msg=name)
        if got.dtype.kind == "f":
            kept = ~np.isnan(expected)
            np.testing.assert_array_equal(np.signbit(got[kept]), np.signbit(expected[kept]), err_msg=name)


# -- whole models ----------------------------------------------------------------------------------------------

def in_halves(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model of float32 as exporters write it in halves: weights, inputs, outputs, constants and conversions."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.graph.value_info[:]
    for value in (*made.graph.input, *made.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    for tensor in made.graph.initializer:
        _round(tensor)
    for node in made.graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                _round(attribute.t)
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.FLOAT16
    return made


def _round(tensor: TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT:
        array = np.clip(numpy_helper.to_array(tensor), -65504, 65504).astype(np.float16)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


@pytest.mark.skipif(RECIPES is None, reason=f"no shared model files at {FOLDER}")
@pytest.mark.parametrize(("name", "target"), [
    ("mnist_cntk", "cpu"), pytest.param("bert.ts", "emu:sm_80", marks=pytest.mark.slow),
    *(pytest.param(name, "cpu", marks=pytest.mark.slow) for name in (  # bert.ts of bfloats is run by default
        "bert.ts", "gpt2.ts", "albert.dynamo", "llama_kv.dynamo", "t5.dynamo", "swin.ts", "clip_text.ts", "vit.dynamo"))])
def test_models(name: str, target: str) -> None:
    """Weights and inputs have 11 digits: 2e-3 of the largest value is a few of their roundings. The same numbers in float32
    give the same, rounded."""
    entry, largest = ENTRIES[name], 0.0
    original = onnx.load(FOLDER / entry["file"])
    model, plain = in_halves(original), tsc.compile(original)
    executable = tsc.compile(model, target=target)
    for shape in entry["shapes"][:2]:
        feeds: Arrays = RECIPES.feeds(entry, shape, seed=3)
        given = {k: v.astype(np.float16) if v.dtype == np.float32 else v for k, v in feeds.items()}
        for got, expected in zip(executable.run(None, given), plain.run(None, feeds), strict=True):
            assert got.dtype == (np.float16 if expected.dtype == np.float32 else expected.dtype)
            largest = max(largest, float(np.abs(got.astype(np.float64) - expected).max() / np.abs(expected).max()))
    assert largest <= 5e-3

"""Functions in place of their calls: a model's own and the standard's bodies, with the defaults of what is called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, parser
from onnx.reference import ReferenceEvaluator

import tsc
from tests.graph.models import model
from tsc.config import Limits
from tsc.errors import ModelError, UnsupportedError
from tsc.graph.onnx.importer import import_onnx

RNG = np.random.default_rng(0)


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


LABELS = np.array([0, 1, 3])
#: node lines, inputs, outputs, feeds, opset; every attribute with a default is left out at least once
BODIES = {
    "mean variance": ("y = MeanVarianceNormalization(x)", "float[N, 3, H, W] x", "float[N, 3, H, W] y", [(2, 3, 4, 5)], 13),
    "mean variance, axes": (
        "y = MeanVarianceNormalization<axes = [1]>(x)", "float[N, 3, W] x", "float[N, 3, W] y", [(2, 3, 4)], 9),
    "hann": (
        "s = Constant<value_int = 11>()\n w = HannWindow(s)\n y = Mul(w, x)", "float[n, 11] x", "float[n, 11] y",
        [(2, 11)], 17),
    "hamming": ("s = Constant<value_int = 1>()\n w = HammingWindow(s)\n y = Mul(w, x)", "float[n] x", "float[n] y", [(3,)], 17),
    "hamming, symmetric": (
        "s = Constant<value_int = 7>()\n w = HammingWindow<periodic = 0>(s)\n y = Mul(w, x)", "float[7] x", "float[7] y",
        [(7,)], 17),
    "blackman": (
        "s = Constant<value_int = 8>()\n w = BlackmanWindow(s)\n y = Mul(w, x)", "float[8] x", "float[8] y", [(8,)], 20),
    "centre crop": (
        "s = Constant<value_ints = [2, 3]>()\n y = CenterCropPad(x, s)", "float[4, 5] x", "float[2, 3] y", [(4, 5)], 18),
    "rotary": (
        "y = RotaryEmbedding(x, c, s)", "float[b, 2, n, 8] x, float[b, n, 4] c, float[b, n, 4] s", "float[b, 2, n, 8] y",
        [(2, 2, 3, 8), (2, 3, 4), (2, 3, 4)], 23),
    "attention": (
        "y = Attention(q, k, v)", "float[b, 2, n, 8] q, float[b, 2, n, 8] k, float[b, 2, n, 8] v", "float[b, 2, n, 8] y",
        [(2, 2, 3, 8)] * 3, 23),
    "loss": ("y = SoftmaxCrossEntropyLoss(x, t)", "float[n, 4] x, int64[n] t", "float y", [(3, 4), LABELS], 13),
}


def check(proto: onnx.ModelProto, feeds: Sequence[Any]) -> None:
    named = {i.name: floats(*f) if isinstance(f, tuple) else f for i, f in zip(proto.graph.input, feeds)}
    want = ReferenceEvaluator(proto).run(None, named)
    got = tsc.compile(proto, threads=1).run(None, named)
    np.testing.assert_allclose(got[0], want[0], rtol=2e-5, atol=2e-6)


@pytest.mark.defect(1)
@pytest.mark.parametrize("name", BODIES)
def test_bodies_of_the_standard_have_its_defaults(name: str) -> None:
    body, inputs, outputs, feeds, opset = BODIES[name]
    check(model(body, inputs, outputs, opset=opset), feeds)


SCALED = """<ir_version: 9, opset_import: ["" : 17, "f" : 1]>
main (float[n] x) => (float[n] y) { h = f.outer(x) y = f.scale<by = 3.0>(h) }
<domain: "f", opset_import: ["" : 17, "f" : 1]> outer (a) => (b) { b = f.scale(a) }
<domain: "f", opset_import: ["" : 17]> scale <by: float = 2.0> (a) => (b) {
    c = Constant<value_float: float = @by>() b = Mul(a, c) }
"""


@pytest.mark.defect(1)
def test_functions_of_the_model_have_their_defaults() -> None:
    x = floats(5)
    np.testing.assert_allclose(tsc.compile(parser.parse_model(SCALED), threads=1).run(None, {"x": x})[0], 6 * x, rtol=1e-6)


# -- what no function may do -----------------------------------------------------------------------------------

def calling(functions: dict[str, list[str]], calls: str = "f0") -> onnx.ModelProto:
    """A model that calls `calls`; each function calls those it names one after the other, Relu among them."""
    def chain(names: list[str]) -> list[onnx.NodeProto]:
        return [helper.make_node(n, [f"v{k}"], [f"v{k + 1}"], domain="" if n == "Relu" else "f") for k, n in enumerate(names)]

    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    made = [helper.make_function("f", name, ["v0"], [f"v{len(names)}"], chain(names), opsets)
            for name, names in functions.items()]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy")
    graph = helper.make_graph([helper.make_node(calls, ["x"], ["y"], domain="f")], "g", [x], [y])
    return helper.make_model(graph, functions=made, opset_imports=opsets, ir_version=9)


@pytest.mark.defect(15)
def test_functions_that_double_forty_times_are_refused_at_once() -> None:
    doubling = {f"f{k}": [f"f{k + 1}"] * 2 for k in range(40)} | {"f40": ["Relu"]}
    with pytest.raises(UnsupportedError, match=rf"expand to {2 ** 40} nodes.*Limits\(nodes"):
        import_onnx(calling(doubling))
    small = {f"f{k}": [f"f{k + 1}"] * 2 for k in range(4)} | {"f4": ["Relu"]}
    assert len(import_onnx(calling(small))[0].nodes) == 16
    with pytest.raises(UnsupportedError, match="more than the limit of 15"):
        import_onnx(calling(small), limits=Limits(nodes=15))


@pytest.mark.defect(18)
def test_deep_functions_are_refused_or_inlined() -> None:
    def deep(count: int) -> dict[str, list[str]]:
        return {f"f{k}": [f"f{k + 1}"] for k in range(count)} | {f"f{count}": ["Relu"]}

    assert [n.op for n in import_onnx(calling(deep(50)))[0].nodes] == ["Relu"]
    for count in (70, 5000):
        with pytest.raises(UnsupportedError, match=rf"call one another {count + 1} deep.*Limits\(nesting"):
            import_onnx(calling(deep(count)))


@pytest.mark.defect(18)
def test_functions_defined_twice_or_in_a_circle_are_refused() -> None:
    twice = calling({"f0": ["Relu"]})
    twice.functions.append(twice.functions[0])
    with pytest.raises(ModelError, match="defines the function 'f0' twice"):
        import_onnx(twice)
    with pytest.raises(ModelError, match="calls itself"):
        import_onnx(calling({"f0": ["f1"], "f1": ["Relu", "f0"]}))

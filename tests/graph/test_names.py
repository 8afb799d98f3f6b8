"""Names that the compiler makes up never meet a name of the file, and outputs are what the file declares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import tsc
from tests.graph.models import ATTENTION, attention, gelu, model
from tests.graph.run_graph import front_end
from tsc.errors import ModelError
from tsc.graph.onnx.importer import import_onnx
from tsc.graph.shapes import infer_shapes

Sizes = dict[str, int]


def _random(proto: onnx.ModelProto, sizes: Sizes) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {i.name: rng.standard_normal([sizes.get(d.dim_param, d.dim_value) for d in i.type.tensor_type.shape.dim]).astype(
        np.float32) for i in proto.graph.input}


def view_of_view() -> onnx.ModelProto:
    """Becomes one Reshape with a shape operand of its own."""
    return model("a = Flatten<axis = 1>(x)\n y = Unsqueeze(a, k)", "float[n, 2, 3] x", "float[n, 6, 1] y", "int64[1] k = {2}")


def scaled() -> onnx.ModelProto:
    """The scale moves behind the contraction."""
    return model("s = Mul(x, half)\n t = Transpose<perm = [1, 0]>(s)\n y = MatMul(z, t)", "float[n, 4] x, float[m, 4] z",
                 "float[m, n] y", "float half = {0.5}")


def merged() -> onnx.ModelProto:
    """The projections of a layer, with constant weights, two of them with a bias: they become one."""
    proto = model(ATTENTION.replace("q0 = MatMul(x, wq)", "q00 = MatMul(x, wq)\n q0 = Add(q00, bq)").replace(
        "v0 = MatMul(x, wv)", "v00 = MatMul(x, wv)\n v0 = Add(v00, bq)"), "float[B, L, 6] x, float[B, 1, 1, L] mask",
        "float[B, L, 6] y", "float scale = {0.5}, int64[4] split = {0, 0, 2, 3}, int64[3] merge = {0, 0, 6}")
    rng = np.random.default_rng(1)
    arrays = {name: rng.standard_normal((6, 6)) for name in ("wq", "wk", "wv", "wo")} | {"bq": rng.standard_normal(6)}
    proto.graph.initializer.extend(numpy_helper.from_array(a.astype(np.float32), name) for name, a in arrays.items())
    return proto


def decomposed() -> onnx.ModelProto:
    return model("g = Gemm<alpha = 0.5>(x, w, b)\n y = LayerNormalization(g, b)", "float[n, 4] x", "float[n, 4] y",
                 "float[4, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 1, 0, 3, 0, 5, 0, 7, 0}, float[4] b = {1, 2, 3, 4}")


def wide() -> onnx.ModelProto:
    """A constant that is packed."""
    proto = model("y = MatMul(x, w)", "float[n, 40] x", "float[n, 70] y")
    weight = np.random.default_rng(1).standard_normal((40, 70)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    return proto


MODELS: dict[Callable[[], onnx.ModelProto], Sizes] = {
    view_of_view: {"n": 3}, scaled: {"n": 3, "m": 5}, merged: {"B": 2, "L": 3}, decomposed: {"n": 5}, wide: {"n": 9},
    gelu: {"B": 2, "L": 3}, attention: {"B": 2, "L": 5}}


def made_up(proto: onnx.ModelProto) -> list[str]:
    """The names of values that are not the file's: of the rewritten graph, of its kernels' buffers, of the plan's constants."""
    graph, _ = front_end(proto)
    executable = tsc.compile(proto, threads=1)
    own = {v for n in proto.graph.node for v in (*n.input, *n.output)}
    found = graph.names() | set(executable._plan.constants) | {f"{v}.acc" for v in own}
    return sorted(found - own - {""})


@pytest.mark.defect(3)
@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_a_name_that_the_compiler_makes_up_may_be_the_files(make: Callable[[], onnx.ModelProto]) -> None:
    """Each of them in turn is the name of an initializer of another shape, which the model adds to an output."""
    plain = make()
    feeds = _random(plain, MODELS[make])
    names = made_up(plain)
    proto = make()
    for k, name in enumerate(names):
        proto.graph.initializer.append(numpy_helper.from_array(np.float32([[k + 1]]), name))
        proto.graph.node.append(helper.make_node("Add", [proto.graph.output[0].name, name], [f"extra {k}"]))
        proto.graph.output.append(helper.make_value_info(f"extra {k}", onnx.TypeProto()))
    inferred = onnx.shape_inference.infer_shapes(proto).SerializeToString()
    want = onnxruntime.InferenceSession(inferred).run(None, feeds)
    for got, expected in zip(tsc.compile(proto, threads=1).run(None, feeds), want):
        assert got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.defect(3)
@pytest.mark.parametrize(("declared", "fits"), [
    ("float[n, 3]", True), ("float[a, b]", True), ("float[5, 3]", True), ("float[n, 1]", False), ("float[n]", False),
    ("float[n, 3, 1]", False), ("int64[n, 3]", False)])
def test_an_output_is_what_the_file_declares(declared: str, fits: bool) -> None:
    proto = model("y = Relu(x)", "float[n, 3] x", f"{declared} y")
    if fits:
        infer_shapes(*import_onnx(proto))
    else:
        with pytest.raises(ModelError, match="output 'y' is declared as"):
            infer_shapes(*import_onnx(proto))


def test_fixed_sizes_of_outputs_follow_the_users_dims() -> None:
    proto = model("y = Relu(x)", "float[1, 3] x", "float[1, 3] y")
    infer_shapes(*import_onnx(proto, {"x": ("n", 3)}))

"""The operators of classical models, compiled with a symbolic batch, against ONNX Runtime; what they refuse; and models that
scikit-learn trains."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as Missing

import tsc
from tests.ops.forests import MODES, Attrs, forest, model, rows
from tests.ops.test_microsoft import OPSET, symbolic
from tests.ops.test_samples import _model, of_domain
from tsc.errors import ModelError, TscError, UnsupportedError
from tsc.graph.onnx.importer import import_onnx
from tsc.graph.onnx.schema import find_schema, newest_of
from tsc.graph.shapes import infer_shapes
from tsc.ops import all_ops, find
from tsc.ops.base import OpDef, Sample

Array = NDArray[Any]
DOMAIN = "ai.onnx.ml"
OWN = of_domain(DOMAIN, 14)
TREES = {"TreeEnsembleRegressor": "target", "TreeEnsembleClassifier": "class"}


def runtime(proto: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    """What ONNX Runtime makes of a model."""
    return [np.asarray(y) for y in onnxruntime.InferenceSession(proto.SerializeToString()).run(None, dict(feeds))]


def same(got: Sequence[Array], want: Sequence[Array]) -> None:
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        if b.dtype.kind == "f":
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)
        else:
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("op", "sample"), OWN)
def test_compiled(op: OpDef, sample: Sample) -> None:
    proto, feeds = symbolic(op, sample)
    try:
        want = runtime(onnx.shape_inference.infer_shapes(proto), feeds)
    except Missing:  # it has kernels for some types alone
        want = [np.asarray(y) for y in ReferenceEvaluator(proto).run(None, feeds)]
    same(tsc.compile(proto, threads=1).run(None, feeds), want)


# -- forests -----------------------------------------------------------------------------------------------------

def random_forest(seed: int) -> tuple[onnx.ModelProto, Array]:
    """A forest of any kind with a symbolic batch, and rows for it."""
    rng = np.random.default_rng(seed)
    op = str(rng.choice([*TREES]))
    word, features, double = TREES[op], int(rng.integers(1, 6)), rng.random() < 0.2
    targets = int(rng.choice([1, 3, 4] if word == "class" else [1, 2, 3]))
    modes = (MODES[:1], MODES[1:2], MODES)[rng.integers(3)]
    attrs = forest(rng, word, int(rng.integers(1, 9)), int(rng.integers(0, 6)), features, targets,
                   str(rng.choice(["all", "own"] if targets > 1 else ["all"])), modes, float(rng.choice([-1, 0])))
    if rng.random() < 0.4:
        attrs["nodes_missing_value_tracks_true"] = rng.integers(0, 2, len(attrs["nodes_modes"])).tolist()
    if rng.random() < 0.5:
        attrs["base_values"] = rng.normal(size=targets).tolist()
    transforms = ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"]
    if word == "class":
        attrs |= {"classlabels_int64s": rng.permutation(20)[:max(2, targets)].tolist(),
                  "post_transform": str(rng.choice(transforms))}
    else:
        attrs |= {"n_targets": targets, "aggregate_function": str(rng.choice(["SUM", "AVERAGE", "MIN", "MAX"])),
                  "post_transform": str(rng.choice(transforms[:3]))}
    for name in ("nodes_values", f"{word}_weights", "base_values"):
        if double and name in attrs:
            attrs[f"{name}_as_tensor"] = np.array(attrs.pop(name))
    dtype = "float64" if double else "float32"
    return model(op, attrs, {"x": (dtype, ["N", features])}, 2 if word == "class" else 1), rows(rng, 40, features, dtype)


@pytest.mark.parametrize("seed", [*range(9), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(9, 40))])
def test_random_forests(seed: int) -> None:
    proto, x = random_forest(seed)
    executable = tsc.compile(proto, threads=1, dims={"N": (0, None)})
    for count in (0, 1, 3, len(x)):
        same(executable.run(None, {"x": x[:count]}), runtime(proto, {"x": x[:count]}))


@pytest.mark.parametrize("how", ["SUM", "MIN", pytest.param("MAX", marks=pytest.mark.slow)])
@pytest.mark.parametrize("word", ["target", "class"])
def test_leaves_that_say_nothing_of_some_targets(word: str, how: str) -> None:
    """A score that nobody votes for is 0, and no candidate for the label."""
    rng = np.random.default_rng(3)
    attrs = forest(rng, word, 4, 3, 3, 3, "some", low=-1.0)
    attrs[f"{word}_weights"] = [-abs(w) for w in attrs[f"{word}_weights"]]
    if word == "class" and how != "SUM":
        pytest.skip("a classifier sums")
    attrs |= {"classlabels_int64s": [5, 6, 7]} if word == "class" else {"n_targets": 3, "aggregate_function": how}
    op = next(op for op, own in TREES.items() if own == word)
    proto, x = model(op, attrs, {"x": ("float32", ["N", 3])}, 2 if word == "class" else 1), rows(rng, 50, 3)
    same(tsc.compile(proto, threads=1).run(None, {"x": x}), runtime(proto, {"x": x}))


@pytest.mark.parametrize("dtype", ["int64", "int32", "float64"])
def test_features_of_other_types(dtype: str) -> None:
    rng = np.random.default_rng(5)
    attrs = forest(rng, "class", 3, 4, 4, 3, "all") | {"classlabels_int64s": [1, 2, 3]}
    proto, x = model("TreeEnsembleClassifier", attrs, {"x": (dtype, ["N", 4])}, 2), rng.integers(-2, 3, (30, 4)).astype(dtype)
    same(tsc.compile(proto, threads=1).run(None, {"x": x}), runtime(proto, {"x": x}))


def test_nodes_may_have_several_parents() -> None:
    """LightGBM's converter asks for members of a set one after the other, and goes to the same child for each."""
    attrs: Attrs = {
        "nodes_treeids": [0] * 5, "nodes_nodeids": [0, 1, 2, 3, 4], "nodes_featureids": [0] * 5,
        "nodes_values": [1.0, 3.0, 5.0, 0.0, 0.0], "nodes_modes": ["BRANCH_EQ"] * 3 + ["LEAF"] * 2,
        "nodes_truenodeids": [3, 3, 3, 0, 0], "nodes_falsenodeids": [1, 2, 4, 0, 0], "target_treeids": [0, 0],
        "target_nodeids": [3, 4], "target_ids": [0, 0], "target_weights": [10.0, -10.0], "n_targets": 1}
    x = np.arange(7, dtype=np.float32)[:, None]
    got, = tsc.compile(model("TreeEnsembleRegressor", attrs, {"x": ("float32", ["N", 1])}, 1), threads=1).run(None, {"x": x})
    np.testing.assert_array_equal(got[:, 0], np.where(np.isin(x[:, 0], [1, 3, 5]), 10, -10))


def test_thresholds_that_are_no_number_hold_as_comparisons_do() -> None:
    for k, mode in enumerate(MODES):
        attrs: Attrs = {
            "nodes_treeids": [0] * 3, "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0] * 3,
            "nodes_values": [float("nan"), 0.0, 0.0], "nodes_modes": [mode, "LEAF", "LEAF"], "nodes_truenodeids": [1, 0, 0],
            "nodes_falsenodeids": [2, 0, 0], "target_treeids": [0, 0], "target_nodeids": [1, 2], "target_ids": [0, 0],
            "target_weights": [1.0, -1.0], "n_targets": 1}
        x = np.array([[0], [np.nan]], np.float32)
        executable = tsc.compile(model("TreeEnsembleRegressor", attrs, {"x": ("float32", ["N", 1])}, 1), threads=1)
        assert executable.run(None, {"x": x})[0][:, 0].tolist() == [1 if MODES[k] == "BRANCH_NEQ" else -1] * 2


def test_one_row_may_be_a_list() -> None:
    rng = np.random.default_rng(2)
    attrs = forest(rng, "target", 3, 3, 4, 2, "all") | {"n_targets": 2}
    x = rng.normal(size=4).astype(np.float32)
    proto = model("TreeEnsembleRegressor", attrs, {"x": ("float32", [4])}, 1)
    whole = model("TreeEnsembleRegressor", attrs, {"x": ("float32", ["N", 4])}, 1)
    same(tsc.compile(proto, threads=1).run(None, {"x": x}), runtime(whole, {"x": x[None]}))


@pytest.mark.parametrize(("number", "transform"), [
    (1, lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True)), (2, lambda x: 1 / (1 + np.exp(-x)))])
def test_transforms_are_numbered_as_the_standard_does(number: int, transform: Any) -> None:
    """ONNX Runtime has the first two of them exchanged."""
    op = find("TreeEnsemble", DOMAIN)
    assert op is not None and op.samples is not None
    sample = op.samples()[0]
    plain, after = (_model(op, Sample(sample.inputs, {**sample.attrs, "post_transform": k}), OPSET) for k in (0, number))
    want = transform(np.asarray(ReferenceEvaluator(plain[0]).run(None, plain[2])[0]))
    np.testing.assert_allclose(tsc.compile(after[0], threads=1).run(None, after[2])[0], want, rtol=2e-5)


# -- other corners -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("op", "attrs", "x"), [
    ("Normalizer", {"norm": "MAX"}, np.array([[-3, 1], [-2, -1], [0, 0]], np.float32)),
    ("Normalizer", {"norm": "L1"}, np.array([[-3, 1], [2, 1]], np.int64)),
    ("LabelEncoder", {"keys_floats": [1.0, 1.0, float("nan"), 0.0], "values_int64s": [5, 6, 7, 9]},
     np.array([1, 2, np.nan, -0.0, 0], np.float32)),
    ("OneHotEncoder", {"cats_int64s": [1, 2]}, np.array([1, 2, 1.5, 7], np.float32)),
    ("Scaler", {"offset": [1.0, 2.0], "scale": [3.0, 4.0]}, np.array([[1, 2], [3, 4]], np.int64)),
    ("LinearRegressor", {"coefficients": [1.0, 2.0, 3.0, 4.0], "targets": 2, "post_transform": "SOFTMAX"},
     np.ones((2, 2), np.float32)),
    ("LinearRegressor", {"coefficients": [1.0, 2.0], "post_transform": "PROBIT"},
     np.array([[0.2, 0.1], [0.5, 0.2]], np.float32)),
    *(("LinearClassifier", {"coefficients": [0.5, -1.0], "intercepts": [0.1], "classlabels_ints": [4, 2], "post_transform": t},
       np.array([[1, 2], [-1, -2]], np.float32)) for t in ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")),
    ("LinearClassifier", {"coefficients": [0.1, 0.2, 0.3, 0.1], "intercepts": [0.1, 0.05], "classlabels_ints": [4, 2],
                          "post_transform": "PROBIT"}, np.array([[1, 1], [0.5, 1]], np.float32))])
def test_as_onnx_runtime(op: str, attrs: Attrs, x: Array) -> None:
    outputs = 2 if "Classifier" in op else 1
    proto = model(op, attrs, {"x": (x.dtype.name, ["N", *x.shape[1:]])}, outputs, own=4)
    same(tsc.compile(proto, threads=1).run(None, {"x": x}), runtime(proto, {"x": x}))


def test_a_category_that_is_not_known_is_an_error_where_that_is_asked() -> None:
    proto = model("OneHotEncoder", {"cats_int64s": [1, 2], "zeros": 0}, {"x": ("int64", ["N"])}, 1)
    executable = tsc.compile(proto, threads=1)
    assert executable.run(None, {"x": np.array([2, 1])})[0].tolist() == [[0, 1], [1, 0]]
    with pytest.raises(TscError):
        executable.run(None, {"x": np.array([2, 3])})


# -- what is refused ---------------------------------------------------------------------------------------------

def changed(name: str, value: Any, op: str = "TreeEnsembleRegressor") -> onnx.ModelProto:
    """The first sample of an operator with an attribute of another value."""
    found = find(op, DOMAIN)
    assert found is not None and found.samples is not None
    sample = found.samples()[0]
    return _model(found, Sample(sample.inputs, {**sample.attrs, name: value}, sample.outputs), OPSET)[0]


@pytest.mark.parametrize(("op", "name"), [
    ("LinearClassifier", "classlabels_strings"), ("TreeEnsembleClassifier", "classlabels_strings"),
    ("SVMClassifier", "classlabels_strings"), ("OneHotEncoder", "cats_strings"), ("LabelEncoder", "keys_strings"),
    ("LabelEncoder", "values_strings")])
def test_strings_are_refused_by_name(op: str, name: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"node 'node' \({op}\).*'{name}'.*export"):
        tsc.compile(changed(name, ("a", "b"), op))


def test_a_map_of_scores_is_refused_with_what_to_do() -> None:
    proto = model("Normalizer", {}, {"x": ("float32", ["N", 3])}, 1)
    proto.graph.node.append(helper.make_node("ZipMap", ["y0"], ["z"], "zip", domain=DOMAIN, classlabels_int64s=[1, 2, 3]))
    with pytest.raises(UnsupportedError, match=r"ZipMap at 'zip' \(.*options=\{'zipmap': False\}\)"):
        tsc.compile(proto)


@pytest.mark.parametrize(("name", "value", "says"), [
    ("nodes_values", (0.5,), "1 nodes_values"), ("nodes_modes", ("LEAF",) * 3, "3 nodes_modes"),
    ("nodes_modes", ("BRANCH_MEMBER",) * 15, "mode 'BRANCH_MEMBER'"), ("nodes_truenodeids", (99,) * 15, "child of node 99"),
    ("nodes_truenodeids", (0,) * 15, "below themselves"), ("nodes_nodeids", (0,) * 15, "two nodes of one number"),
    ("nodes_featureids", (-1,) * 15, "feature -1"), ("nodes_featureids", (3,) * 15, "all features"),
    ("nodes_featureids", (2**40,) * 15, "feature"), ("target_ids", (1,) * 9, "target 1"), ("target_ids", (0,), "1 target_ids"),
    ("target_nodeids", (77,) * 9, "weight of node 77"), ("n_targets", 0, "0 targets"), ("n_targets", 2**40, "targets"),
    ("base_values", (1.0, 2.0), "2 base values"), ("aggregate_function", "MEDIAN", "'MEDIAN'"),
    ("post_transform", "EXP", "'EXP'"), ("nodes_missing_value_tracks_true", (1,), "1 nodes_missing_value_tracks_true")])
def test_trees_that_are_none(name: str, value: Any, says: str) -> None:
    with pytest.raises(TscError, match=f"node 'node'.*{says}") as caught:
        infer_shapes(*import_onnx(changed(name, value)))
    assert "does not fit" not in str(caught.value)


def test_a_tree_that_is_too_deep() -> None:
    count = 5000
    attrs: Attrs = {
        "nodes_treeids": [0] * (2 * count + 1), "nodes_nodeids": [*range(2 * count + 1)],
        "nodes_featureids": [0] * (2 * count + 1), "nodes_values": [0.0] * (2 * count + 1),
        "nodes_modes": ["BRANCH_LEQ"] * count + ["LEAF"] * (count + 1),
        "nodes_truenodeids": [*range(1, count), 2 * count] + [0] * (count + 1),
        "nodes_falsenodeids": [*range(count, 2 * count)] + [0] * (count + 1), "target_treeids": [], "target_nodeids": [],
        "target_ids": [], "target_weights": [], "n_targets": 1}
    with pytest.raises(UnsupportedError, match="more than 4096 levels"):
        infer_shapes(*import_onnx(model("TreeEnsembleRegressor", {k: v for k, v in attrs.items() if v != []}, {
            "x": ("float32", ["N", 1])}, 1)))


@pytest.mark.parametrize(("op", "name", "value"), [
    ("Scaler", "scale", (1.0,)), ("Scaler", "offset", (1.0,) * 4), ("Imputer", "imputed_value_floats", (1.0, 2.0)),
    ("Normalizer", "norm", "L3"), ("FeatureVectorizer", "inputdimensions", (1, 2)), ("OneHotEncoder", "cats_int64s", (1, 1)),
    ("LabelEncoder", "keys_int64s", (1,)), ("LinearRegressor", "coefficients", (1.0,) * 4), ("LinearRegressor", "targets", 2),
    ("LinearClassifier", "classlabels_ints", (1, 2)), ("SVMRegressor", "rho", (1.0, 2.0)), ("SVMRegressor", "n_supports", 5),
    ("SVMClassifier", "coefficients", (1.0,) * 9), ("SVMClassifier", "kernel_type", "COSINE")])
def test_attributes_that_do_not_fit(op: str, name: str, value: Any) -> None:
    with pytest.raises(TscError, match=rf"node 'node' \({op}\)") as caught:
        infer_shapes(*import_onnx(changed(name, value, op)))
    assert "does not fit" not in str(caught.value)


def test_every_attribute_is_accounted_for() -> None:
    for op in (op for op in all_ops() if op.domain == DOMAIN):
        found = [find_schema(op.name, opset, DOMAIN) for opset in range(1, newest_of(DOMAIN) + 1)]
        names = {name for schema in found if schema is not None for name in schema.attributes}
        assert {*op.reads, *op.ignores} <= names, op.name
        assert names - {*op.reads, *op.ignores} <= {*op.instead}, op.name


@pytest.mark.parametrize("op", ["Scaler", "Normalizer", "TreeEnsembleRegressor", "LinearRegressor"])
def test_rows_of_higher_rank(op: str) -> None:
    found = find(op, DOMAIN)
    assert found is not None and found.samples is not None
    proto = _model(found, found.samples()[0], OPSET)[0]
    proto.graph.input[0].type.tensor_type.shape.dim.add().dim_value = 2
    with pytest.raises(ModelError, match=rf"node 'node' \({op}\).*rank 3"):
        infer_shapes(*import_onnx(proto))


# -- what scikit-learn trains --------------------------------------------------------------------------------------

def trained(name: str) -> tuple[onnx.ModelProto, Array]:
    """A model that scikit-learn has fitted, and rows for it."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    skl2onnx = pytest.importorskip("skl2onnx", reason="skl2onnx is not installed")
    found, x = importlib.import_module("tests.ops.trained").fitted(name)
    options = {id(found): {"zipmap": False}} if hasattr(found, "classes_") else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        proto = skl2onnx.to_onnx(found, x[:1], options=options, target_opset={"": 17, DOMAIN: 3})
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    return proto, x


@pytest.mark.parametrize("name", [
    "three classes", "line", "forest of three classes", "forest", "boosted three classes", "boosted", "columns", "neighbours",
    "vectors for numbers", *(pytest.param(name, marks=pytest.mark.slow) for name in (
        "two classes", "forest of two classes", "boosted two classes", "perceptron", "vectors", "isolation"))])
def test_trained_by_scikit_learn(name: str) -> None:
    proto, x = trained(name)
    executable = tsc.compile(proto, threads=1, dims={"N": (0, None)})
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    for count in (1, 3, 100):
        want = [np.asarray(y) for y in session.run(None, {"X": x[:count]})]
        same(executable.run(None, {"X": x[:count]}), want)
    for got, full in zip(executable.run(None, {"X": x[:0]}), want):  # ONNX Runtime's Reshape fails there
        assert got.dtype == full.dtype and got.shape == (0, *full.shape[1:])


def test_lists_of_features_are_rows() -> None:
    """'1-D tensors are treated as [1,C]': found by a mutated file, in which they were columns, as in the reference."""
    body = "y = ai.onnx.ml.FeatureVectorizer<inputdimensions=[2, 5]>(a, b)"
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 1]> g (float[n] a, float[m] b) => (float[p,q] y) {{ {body} }}')
    feeds = {"a": np.arange(4, dtype=np.float32), "b": np.arange(3, dtype=np.float32) + 10}
    wanted = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)
    np.testing.assert_array_equal(tsc.compile(model).run(None, feeds)[0], wanted[0])
    assert wanted[0].tolist() == [[0, 1, 10, 11, 12, 0, 0]]

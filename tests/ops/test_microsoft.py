"""Operators that are not the standard's, compiled with symbolic dims, against ONNX Runtime; their forms against its schemas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import helper
from onnxruntime.capi import onnxruntime_pybind11_state as runtime

import tsc
from tests.graph.models import model
from tests.ops.test_samples import _expected, _model, _sizes, of_domain
from tsc.errors import ModelError, TscError, UnsupportedError
from tsc.graph.onnx.importer import import_onnx
from tsc.graph.onnx.schema import FLAGS, find_schema
from tsc.ops import all_ops
from tsc.ops.base import OpDef, Sample

OWN = of_domain("com.microsoft", 24)
FORMED = [op for op in all_ops() if op.form is not None]
OPSET = 17
SCHEMAS = {(schema.domain, schema.name): schema for schema in runtime.get_all_operator_schema()}


def symbolic(op: OpDef, sample: Sample) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """A sample as a model whose dims have names, and its feeds; what must be constant is."""
    proto, _, feeds = _model(op, sample, OPSET)
    names = _sizes(op, feeds, "shared")
    for value in proto.graph.input:
        for name, dim in zip(names[value.name], value.type.tensor_type.shape.dim):
            if name:
                dim.dim_param = name
    fixed = [value for value in proto.graph.input if int(value.name[1:]) in op.static_inputs]
    for value in fixed:
        proto.graph.input.remove(value)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(feeds.pop(value.name), value.name))
    return proto, feeds


@pytest.mark.parametrize(("op", "sample"), OWN)
def test_compiled(op: OpDef, sample: Sample) -> None:
    proto, feeds = symbolic(op, sample)
    for got, want in zip(tsc.compile(proto, threads=1).run(None, feeds), _expected(op, sample, OPSET), strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        if want.dtype.kind == "f":
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)
        else:
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("op", FORMED, ids=lambda op: op.name)
def test_forms_are_those_of_onnx_runtime(op: OpDef) -> None:
    own, schema = op.form, SCHEMAS.get((op.domain, op.name)) or SCHEMAS["", op.name]
    assert own is not None
    for words, formals in ((own.inputs, schema.inputs), (own.outputs, schema.outputs)):
        assert [word.partition(":")[0].rstrip("?*") for word in words.split()] == [f.name for f in formals][:len(words.split())]
    made = find_schema(op.name, 1, op.domain)
    assert made is not None
    assert (made.min_input, made.max_input) == (schema.min_input, schema.max_input)
    assert made.min_output == schema.min_output and made.max_output <= schema.max_output
    known: dict[str, Any] = {}
    for name, attribute in schema.attributes.items():
        proto = onnx.AttributeProto()
        proto.ParseFromString(attribute._default_value or b"")
        known[name] = helper.get_attribute_value(proto) if attribute._default_value else None
        assert (name in own.required) == attribute.required, name
    stated = {**dict.fromkeys((*own.optional, *own.required)), **own.defaults}
    assert stated.keys() <= known.keys()
    assert own.off.keys() <= stated.keys() - {*op.reads, *op.ignores}
    for name, value in stated.items():
        found = known[name].decode() if isinstance(known[name], bytes) else known[name]
        assert found == pytest.approx(value) if isinstance(value, float) else found == value, name


@pytest.mark.parametrize(("change", "says"), [
    (lambda node: node.input.append("x0"), "has 3 inputs"),
    (lambda node: node.attribute.append(helper.make_attribute("beta", 1.0)), "'beta', which"),
    (lambda node: node.attribute.append(helper.make_attribute("alpha", 1)), "'alpha' of another type"),
    (lambda node: node.attribute.append(helper.make_attribute("transA", 2)), "'transA' = 2, expected 0 or 1"),
    (lambda node: node.input.__setitem__(1, ""), "lacks its input 'B'")])
def test_nodes_of_another_form(change: Any, says: str) -> None:
    op = next(op for op in FORMED if op.name == "FusedMatMul")
    proto, _, _ = _model(op, Sample([np.ones((2, 3), np.float32), np.ones((3, 2), np.float32)]), OPSET)
    change(proto.graph.node[0])
    with pytest.raises(ModelError, match=says):
        tsc.compile(proto)


@pytest.mark.parametrize(("op", "flag"), [(op, flag) for op in all_ops() if op.domain for flag in sorted(FLAGS & {*op.reads})],
                         ids=lambda value: value if isinstance(value, str) else value.name)
def test_a_flag_is_0_or_1(op: OpDef, flag: str) -> None:
    """Found by mutated models: ONNX Runtime takes unidirectional = 64 for no."""
    assert op.samples is not None
    sample = op.samples()[0]
    proto, _, _ = _model(op, replace(sample, attrs={**sample.attrs, flag: 64}), OPSET)
    with pytest.raises(ModelError, match=f"'{flag}' = 64, expected 0 or 1"):
        import_onnx(proto)


@pytest.mark.parametrize(("op", "name"), [(op, name) for op in FORMED for name in getattr(op.form, "off", {})],
                         ids=lambda value: value if isinstance(value, str) else value.name)
def test_what_is_not_done_may_be_said_and_not_asked_for(op: OpDef, name: str) -> None:
    """Exporters of language models write attributes of what they do not use."""
    assert op.samples is not None and op.form is not None
    sample = next(s for s in op.samples() if s.attrs.get(name) == op.form.off[name])
    import_onnx(_model(op, sample, OPSET)[0])
    with pytest.raises(UnsupportedError, match=f"'{name}' = 1, which is not supported"):
        import_onnx(_model(op, replace(sample, attrs={**sample.attrs, name: 1}), OPSET)[0])


@pytest.mark.parametrize(("domain", "version", "says"), [
    ("com.microsoft", 2**40, "1 is the newest"), ("com.microsoft", 0, "which there is not"),
    ("ai.onnx.ml", 6, "5 is the newest"), ("ai.onnx.ml", -1, "which there is not")])
def test_opsets_of_other_domains(domain: str, version: int, says: str) -> None:
    """Found by mutated models: a version beyond 32 bits was an untyped error."""
    op = next(op for op in all_ops() if op.domain == domain and op.samples is not None)
    assert op.samples is not None
    proto, _, _ = _model(op, op.samples()[0], OPSET)
    next(o for o in proto.opset_import if o.domain == domain).version = version
    with pytest.raises(TscError, match=f"is of opset {version} of '{domain}'.*{says}"):
        import_onnx(proto)


def test_element_types_that_an_operator_does_not_take() -> None:
    op = next(op for op in FORMED if op.name == "FusedMatMul")
    for other in (np.ones((3, 2), np.float64), np.ones((3, 2), np.int32)):
        proto, _, _ = _model(op, Sample([np.ones((2, 3), np.float32), other]), OPSET)
        with pytest.raises(ModelError, match=r"node 'node'.*FusedMatMul"):
            tsc.compile(proto)


def test_what_is_made_of_parts_names_its_node() -> None:
    op = next(op for op in FORMED if op.name == "FusedMatMul")
    proto, _, _ = _model(op, Sample([np.ones((2, 3), np.float32), np.ones((4, 2), np.float32)]), OPSET)
    with pytest.raises(tsc.TscError, match="node 'node"):
        tsc.compile(proto)


def test_an_activation_that_is_not_known() -> None:
    op = next(op for op in FORMED if op.name == "FusedGemm")
    proto, _, _ = _model(op, Sample([np.ones((2, 3), np.float32), np.ones((3, 2), np.float32)], {"activation": "Mish"}), OPSET)
    with pytest.raises(UnsupportedError, match="activation 'Mish'"):
        tsc.compile(proto)


# -- attention ---------------------------------------------------------------------------------------------------

RNG = np.random.default_rng(0)


def numbers(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape, np.float32)


def attention(body: str, inputs: str, outputs: str) -> onnx.ModelProto:
    text = f'<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>\nmain ({inputs}) => ({outputs}) {{ {body} }}'
    return onnx.parser.parse_model(text)


def compare(proto: onnx.ModelProto, *runs: dict[str, Any], dims: dict[str, Any] | None = None) -> None:
    """A model's outputs beside ONNX Runtime's."""
    compiled, session = tsc.compile(proto, dims=dims, threads=1), onnxruntime.InferenceSession(proto.SerializeToString())
    for feeds in runs:
        for got, want in zip(compiled.run(None, feeds), session.run(None, feeds), strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)


def test_masks_that_say_where_sequences_begin_and_end() -> None:
    proto = attention(
        "mask = Concat<axis = 0>(ends, starts)\n y = com.microsoft.Attention<num_heads = 2>(x, w, , mask)",
        "float[B, L, 6] x, float[6, 24] w, int32[B] ends, int32[B] starts", "float[B, L, 8] y")
    compare(proto, *({"x": numbers(b, length, 6), "w": numbers(6, 24), "starts": np.arange(b).astype(np.int32),
                      "ends": np.arange(length, length - b, -1).astype(np.int32)} for b, length in ((1, 3), (2, 5), (3, 17))))


PARTED = "float[B, L, 8] q, float[B, M, 8] k, float[B, M, 8] v"


@pytest.mark.parametrize(("body", "inputs", "packed"), [
    ("com.microsoft.MultiHeadAttention<num_heads = 2>(qkv)", "float[B, L, 2, 3, 4] qkv", lambda q, k, v: {
        "qkv": np.stack([x.reshape(*x.shape[:2], 2, 4) for x in (q, k, v)], 3)}),
    ("com.microsoft.MultiHeadAttention<num_heads = 2>(q, kv)", "float[B, L, 8] q, float[B, M, 2, 2, 4] kv", lambda q, k, v: {
        "q": q, "kv": np.stack([x.reshape(*x.shape[:2], 2, 4) for x in (k, v)], 3)})], ids=["all", "keys and values"])
def test_packed_operands(body: str, inputs: str, packed: Any) -> None:
    """ONNX Runtime has them on GPUs alone: beside its attention of operands that are not packed."""
    proto = attention(f"y = {body}", inputs, "float[B, L, 8] y")
    parted = attention("y = com.microsoft.MultiHeadAttention<num_heads = 2>(q, k, v)", PARTED, "float[B, L, 8] y")
    compiled, session = tsc.compile(proto, threads=1), onnxruntime.InferenceSession(parted.SerializeToString())
    for batch, length in ((1, 1), (2, 5)):
        operands = [numbers(batch, length, 8) for _ in range(3)]
        got, = compiled.run(None, packed(*operands))
        want, = session.run(None, dict(zip("qkv", operands)))
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)


DECODER = """
    ones = ReduceSum<keepdims = 0>(mask, last_axis)
    before = Sub(ones, one)
    last = Cast<to = 6>(before)
    size = Shape<start = 1, end = 2>(mask)
    all = Squeeze(size)
    total = Cast<to = 6>(all)
    y, keys, values = com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 2, do_rotary = 1>(
        q, k, v, past_k, past_v, last, total, cos, sin)"""


def decoder() -> onnx.ModelProto:
    """Grouped attention as exporters of language models have it: lengths are those of a mask."""
    proto = attention(
        DECODER, "float[B, S, 64] q, float[B, S, 32] k, float[B, S, 32] v, float[B, 2, P, 16] past_k, "
        "float[B, 2, P, 16] past_v, int64[B, T] mask, float[40, 8] cos, float[40, 8] sin",
        "float[B, S, 64] y, float[B, 2, C, 16] keys, float[B, 2, C, 16] values")
    proto.graph.initializer.extend([onnx.numpy_helper.from_array(np.array(1), "one"),
                                    onnx.numpy_helper.from_array(np.array([1]), "last_axis")])
    return proto


def test_a_decoder_with_a_cache_that_grows_and_one_with_room() -> None:
    """A prompt, then token by token, and some at once; a cache of past keys alone, and one of fixed size."""
    cos, sin = numbers(40, 8), numbers(40, 8)

    def feeds(batch: int, rows: int, past: int, total: int, hidden: int = 0) -> dict[str, Any]:
        mask = np.ones((batch, total), np.int64)
        mask[batch - 1, :hidden] = 0
        made = {"q": numbers(batch, rows, 64), "k": numbers(batch, rows, 32), "v": numbers(batch, rows, 32)}
        return made | {"past_k": numbers(batch, 2, past, 16), "past_v": numbers(batch, 2, past, 16), "mask": mask, "cos": cos,
                       "sin": sin}

    compare(decoder(), feeds(2, 5, 0, 5), feeds(2, 1, 5, 6), feeds(3, 1, 6, 7, 2), feeds(1, 4, 7, 11), feeds(2, 1, 16, 9),
            feeds(1, 1, 0, 1), feeds(1, 3, 32, 12), dims={"P": (0, None)})


def test_a_prompt_that_is_padded_behind() -> None:
    """Rows behind a sequence's end are nobody's."""
    compiled = tsc.compile(decoder(), dims={"P": (0, None)}, threads=1)
    session = onnxruntime.InferenceSession(decoder().SerializeToString())
    feeds = {"q": numbers(2, 5, 64), "k": numbers(2, 5, 32), "v": numbers(2, 5, 32), "past_k": numbers(2, 2, 0, 16),
             "past_v": numbers(2, 2, 0, 16), "mask": np.array([[1] * 5, [1, 1, 1, 0, 0]]), "cos": numbers(40, 8),
             "sin": numbers(40, 8)}
    got, want = compiled.run(None, feeds), session.run(None, feeds)
    for k, length in enumerate((5, 3)):
        np.testing.assert_allclose(got[0][k, :length], want[0][k, :length], rtol=2e-5, atol=2e-6)
        for mine, own in zip(got[1:], want[1:]):
            np.testing.assert_allclose(mine[k, :, :length], own[k, :, :length], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(("body", "inputs"), [
    ("y = LayerNormalization<axis = -1, epsilon = 0.5>(x, s, b)", "float[N, 8] x, float[8] s, float[8] b"),
    ("y = SimplifiedLayerNormalization<axis = -1, epsilon = 0.5>(x, s)", "float[N, 8] x, float[8] s")])
def test_norms_that_onnx_runtime_writes_into_older_files(body: str, inputs: str) -> None:
    """As if they were of the standard's domain."""
    proto = model(body, inputs, "float[N, 8] y", opset=12)
    compare(proto, *({"x": numbers(n, 8), "s": numbers(8), "b": numbers(8)} if "b)" in body else {
        "x": numbers(n, 8), "s": numbers(8)} for n in (1, 5)))

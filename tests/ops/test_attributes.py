"""Attributes: each that the standard has is read, of no consequence, or refused by name; none is left out of account."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.graph.models import model
from tests.ops.harness import run_node
from tests.ops.test_opsets import CASES as OLDER
from tests.ops.test_samples import CASES, OPSET, _model, _sizes
from tsc.errors import ModelError, UnsupportedError
from tsc.graph.onnx.importer import NEWEST_OPSET, OLDEST_OPSET, import_onnx
from tsc.graph.onnx.schema import find_schema
from tsc.graph.shapes import infer_shapes
from tsc.ops import all_ops, find
from tsc.ops.base import InferContext, OpDef, Sample

STANDARD = [op for op in all_ops() if not op.domain]
#: What the standard has in opsets up to the newest, and a node may not ask for.
REFUSED = {
    ("Constant", "sparse_value"), ("Constant", "value_string"), ("Constant", "value_strings"), ("Range", "stash_type"),
    ("Scan", "directions")}


def schemas(op: OpDef) -> list[Any]:
    found = [find_schema(op.name, opset) for opset in range(OLDEST_OPSET, NEWEST_OPSET + 1)]
    return [schema for schema in found if schema is not None]


@pytest.mark.defect(2)
def test_every_attribute_of_the_standard_is_accounted_for() -> None:
    refused = set()
    for op in STANDARD:
        names = {name for schema in schemas(op) for name in schema.attributes}
        assert {*op.reads, *op.ignores} <= names, op.name
        refused |= {(op.name, name) for name in names - {*op.reads, *op.ignores}}
    assert refused == REFUSED


@pytest.mark.defect(2)
def test_what_is_read_is_declared_and_what_is_declared_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read: dict[str, set[str]] = defaultdict(set)
    plain = InferContext.attr

    def attr(self: InferContext, name: str, default: Any = None) -> Any:
        read[self.node.op].add(name)
        return plain(self, name, default)

    monkeypatch.setattr(InferContext, "attr", attr)
    newer = [(case.values[0].name, OPSET, case.values[1]) for case in CASES if not case.values[0].domain]
    for name, opset, sample in (*newer, *OLDER, ("Upsample", 7, Sample([np.ones((1, 1, 2, 2), np.float32)], {
            "scales": (1.0, 1.0, 2.0, 2.0)}))):
        op = find(name)
        assert op is not None
        _, node, feeds = _model(op, sample, opset)
        run_node(node, feeds, opset, op.static_inputs, _sizes(op, feeds, "static"))
    for op in STANDARD:
        known = {name for schema in schemas(op) for name in schema.attributes}
        assert read[op.name] & known <= {*op.reads, *op.ignores}, op.name
        elsewhere = op.decompose or op.region or op.name == "Constant"  # by what it is made of, or stands for it; by import
        assert elsewhere or set(op.reads) <= read[op.name], op.name


@pytest.mark.parametrize(("op", "sample"), CASES)
def test_every_sample_is_a_node_of_the_standard(op: OpDef, sample: Sample) -> None:
    """Import takes it with all its attributes, and shape inference with its element types."""
    proto, node, _ = _model(op, sample, OPSET)
    graph = infer_shapes(*import_onnx(proto)) if not _needs_constants(op) else import_onnx(proto)[0]
    assert graph.outputs == node.outputs


def _needs_constants(op: OpDef) -> bool:
    return bool(op.static_inputs)


@pytest.mark.defect(2)
@pytest.mark.parametrize(("body", "opset", "says"), [
    ("y = Range<stash_type = 10>(x, x, x)", 28, "'stash_type' = 10"),
    ("y = MaxPool<kernel_shape = [1], storage_order = 1>(x)", 17, ""),
    ("y = SpaceToDepth<blocksize = 2, mode = \"CRD\">(x)", 28, ""),
    ("y = SpaceToDepth<blocksize = 2, mode = \"DCR\">(x)", 28, "")])
def test_an_attribute_that_is_not_read_is_refused_by_name(body: str, opset: int, says: str) -> None:
    proto = model(body, "float[n] x", "float[m] y", opset=opset)
    if says:
        with pytest.raises(UnsupportedError, match=f"_0.*{says}.*default"):
            import_onnx(proto)
    else:
        assert len(import_onnx(proto)[0].nodes) == 1


@pytest.mark.defect(2)
def test_defaults_of_the_standard_are_filled_in() -> None:
    graph, _ = import_onnx(model("a = Softmax(x)\n y = Clip(a)", "float[n, 3] x", "float[n, 3] y", opset=7))
    assert graph.nodes[0].attrs == {"axis": 1} and graph.nodes[1].attrs["max"] == np.finfo(np.float32).max
    graph, _ = import_onnx(model("y = Softmax(x)", "float[n, 3] x", "float[n, 3] y", opset=13))
    assert graph.nodes[0].attrs == {"axis": -1}


@pytest.mark.defect(2)
def test_opsets_that_nobody_checked_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever onnx package is installed, and however new."""
    assert NEWEST_OPSET == OPSET <= onnx.defs.onnx_opset_version()
    monkeypatch.setattr(onnx.defs, "onnx_opset_version", lambda: NEWEST_OPSET + 5)
    import_onnx(model("y = Relu(x)", "float[n] x", "float[n] y", opset=NEWEST_OPSET))
    with pytest.raises(UnsupportedError, match=f"opset {NEWEST_OPSET + 1}, but {NEWEST_OPSET} is the newest"):
        import_onnx(model("y = Relu(x)", "float[n] x", "float[n] y", opset=NEWEST_OPSET + 1))


# -- nodes that are not of the standard's form -----------------------------------------------------------------

@pytest.mark.defect(19)
@pytest.mark.parametrize(("body", "inputs", "says"), [
    ("y = Add(x, x)", "bool[n] x", "'A' of type bool"),
    ("y = Gather(x, i)", "float[n] x, float[k] i", "'indices' of type float32"),
    ("y = Where(x, x, x)", "float[n] x", "'condition' of type float32"),
    ("y = And(x, x)", "float[n] x", "'A' of type float32"),
    ("y = Softmax(x)", "int32[n] x", "'input' of type int32"),
    ("y = Div(x, x)", "bool[n] x", "'A' of type bool")])
def test_element_types_that_the_standard_does_not_allow(body: str, inputs: str, says: str) -> None:
    with pytest.raises(ModelError, match=f"_0.*{says}"):
        infer_shapes(*import_onnx(model(body, inputs, "float[n] y")))


@pytest.mark.defect(18)
@pytest.mark.parametrize("inputs", [["a", ""], ["", "a"], ["a"], ["a", "a", "a"]])
def test_a_required_input_left_out(inputs: list[str]) -> None:
    proto = model("y = Div(a, a)", "float[n] a", "float[n] y")
    del proto.graph.node[0].input[:]
    proto.graph.node[0].input.extend(inputs)
    with pytest.raises(ModelError, match=r"Div_0.* (lacks its input|has . inputs)"):
        import_onnx(proto)


@pytest.mark.defect(19)
@pytest.mark.parametrize("number", [2, -1, 64, 2**40])
@pytest.mark.parametrize(
    "body", ["ReduceMax<axes = [0], keepdims = {}>(a)", "CumSum<exclusive = {}>(a, k)", "Trilu<upper = {}>(a)"])
def test_a_flag_is_0_or_1(body: str, number: int) -> None:
    """ONNX Runtime takes keepdims = 64 for no, NumPy for yes."""
    proto = model(f"y = {body.format(number)}", "float[n, m] a", "float[p, q] y", "int64 k = {0}")
    with pytest.raises(ModelError, match=f"= {number}, expected 0 or 1"):
        import_onnx(proto)
    import_onnx(model(f"y = {body.format(1)}", "float[n, m] a", "float[p, q] y", "int64 k = {0}"))


def test_a_nodes_name_may_be_anything() -> None:
    """Found by mutated models: a line break in it made two lines of the error."""
    proto = model("y = Relu(a)", "float[n] a", "float[n] y")
    proto.graph.node[0].op_type, proto.graph.node[0].name = "SequenceEmpty", "a\nb"
    with pytest.raises(UnsupportedError) as caught:
        import_onnx(proto)
    assert str(caught.value).endswith("SequenceEmpty at 'SequenceEmpty_0'")


@pytest.mark.defect(19)
def test_an_attribute_given_twice_and_operators_of_no_opset() -> None:
    proto = model("y = Softmax<axis = 0>(a)", "float[n] a", "float[n] y")
    proto.graph.node[0].attribute.append(helper.make_attribute("axis", 1))
    with pytest.raises(ModelError, match="'axis' more than once"):
        import_onnx(proto)
    with pytest.raises(ModelError, match=r"Gelu_0.*no operator of opset 17"):
        import_onnx(model("y = Gelu(a)", "float[n] a", "float[n] y"))


@pytest.mark.defect(19)
def test_the_compilers_own_primitives_are_no_operators_of_a_model() -> None:
    for op in (o for o in all_ops() if o.domain == "tsc"):
        if op.name.isidentifier():
            for domain in ("", "tsc"):
                proto = model("y = Relu(a)", "float[n] a", "float[n] y")
                proto.graph.node[0].op_type, proto.graph.node[0].domain = op.name, domain
                with pytest.raises(UnsupportedError, match=op.name):
                    import_onnx(proto)

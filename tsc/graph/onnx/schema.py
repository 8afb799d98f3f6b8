"""Nodes against the ONNX standard: operand counts, attributes and their defaults, element types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, helper
from onnx.defs import OpSchema

from tsc import ops
from tsc.errors import ModelError, UnsupportedError
from tsc.graph.onnx.data import read_attribute
from tsc.ops.base import OpDef
from tsc.ops.form import Form


def check_node(node: NodeProto, domain: str, opset: int, where: str) -> None:
    """Raise ModelError for a node that is not of its operator's form at an opset of its domain. What users define is not
    checked."""
    schema = find_schema(node.op_type, opset, domain)
    if schema is None and domain:
        return
    if schema is None:
        raise ModelError(f"{where} is no operator of opset {opset}, which the model imports; export it again for a newer one")
    for what, count, least, most in (("inputs", len(node.input), schema.min_input, schema.max_input),
                                     ("outputs", len(node.output), schema.min_output, schema.max_output)):
        if not least <= count <= most:
            raise ModelError(f"{where} has {count} {what}, but opset {opset} allows {_span(least, most)}; export it again")
    for value, formal in zip(node.input, schema.inputs):
        if not value and formal.option == OpSchema.FormalParameterOption.Single:
            raise ModelError(f"{where} lacks its input '{formal.name}', which opset {opset} requires; export it again")
    given = [a.name for a in node.attribute]
    for attribute in node.attribute:
        name = attribute.name
        if given.count(name) > 1:
            raise ModelError(f"{where} has the attribute '{name}' more than once; export it again")
        if name not in schema.attributes:
            raise ModelError(f"{where} has the attribute '{name}', which opset {opset} does not know; export it again")
        if attribute.type != schema.attributes[name].type.value:
            raise ModelError(f"{where} has an attribute '{name}' of another type than opset {opset} says; export it again")
        if name in FLAGS and attribute.i not in (0, 1):
            raise ModelError(f"{where} has the attribute '{name}' = {attribute.i}, expected 0 or 1; export it again")
    missing = [name for name, a in schema.attributes.items() if a.required and name not in given]
    if missing:
        raise ModelError(f"{where} lacks the attribute '{missing[0]}', which opset {opset} requires; export it again")


def refuse_unread(attrs: Mapping[str, Any], operator: OpDef, defaults: Mapping[str, Any], where: str) -> None:
    """Raise UnsupportedError for an attribute that no rule of an operator reads, unless it is at its default or says that
    something is not done."""
    harmless = (defaults, {} if operator.form is None else operator.form.off)
    for name, value in attrs.items():
        if name in operator.instead:
            if not np.size(value):
                continue
            raise UnsupportedError(f"{where} has the attribute '{name}' = {str(value)[:60]}: {operator.instead[name]}")
        if name not in (*operator.reads, *operator.ignores) and not any(
                name in known and np.array_equal(value, known[name]) for known in harmless):
            raise UnsupportedError(f"{where} has the attribute '{name}' = {str(value)[:60]}, which is not supported; only its "
                                   f"default ({defaults.get(name, 'to be left out')}) is")


@lru_cache(maxsize=4096)
def attribute_defaults(op: str, opset: int, domain: str = "") -> Mapping[str, Any]:
    """What the standard says of the attributes that a node leaves out."""
    return {proto.name: read_attribute(proto, None, f"the schema of {op}") for proto in default_protos(op, opset, domain)}


def default_protos(op: str, opset: int, domain: str = "") -> Iterator[onnx.AttributeProto]:
    """The attributes with a default, as a node would state them."""
    schema = find_schema(op, opset, domain)
    for attribute in () if schema is None else schema.attributes.values():
        if attribute.default_value.type:
            yield attribute.default_value


def check_dtypes(op: str, domain: str, opset: int, dtypes: Sequence[str | None], where: str) -> None:
    """Raise ModelError where an operand is of an element type that its operator does not allow for it, or where operands that
    it wants of one type are of several; an opset is the standard's, other domains count as their newest."""
    schema = find_schema(op, newest_of(domain) if domain else opset, domain)
    seen: dict[str, str] = {}
    for k, dtype in enumerate(dtypes):
        if schema is None or not schema.inputs or dtype is None:
            continue
        formal = schema.inputs[min(k, len(schema.inputs) - 1)]
        if f"tensor({_ONNX_NAMES.get(dtype, dtype)})" not in formal.types:
            raise ModelError(f"{where} has the input '{formal.name}' of type {dtype}, but opset {opset} does not allow that; "
                             "cast it")
        first = seen.setdefault(formal.type_str, dtype)
        if first != dtype and formal.is_homogeneous and "(" not in formal.type_str:
            raise ModelError(f"{where} has operands of type {first} and {dtype}, expected one type; cast one of them")


#: Attributes that say yes or no. Runtimes differ on what any other number means.
FLAGS = frozenset({
    "allowzero", "antialias", "causal", "ceil_mode", "channels_last", "count_include_pad", "detect_negative", "detect_positive",
    "do_rotary", "exclude_outside", "exclusive", "fmod", "interleaved", "is_causal", "is_packed_batching", "keepdims",
    "noop_with_empty_axes", "one_class", "past_present_share_buffer", "reverse", "rotary_interleaved", "select_last_index",
    "spatial", "storage_order", "training_mode", "transA", "transB", "transBatchA", "transBatchB", "unidirectional", "upper",
    "zeros"})

#: The standard's names of element types where they are not NumPy's.
_ONNX_NAMES = {"float32": "float", "float64": "double"}


def _span(least: int, most: int) -> str:
    return f"{least} or more" if most > 1 << 16 else str(least) if least == most else f"{least} to {most}"


def newest_of(domain: str) -> int:
    """The newest opset of a domain other than the standard's that was read against the OpDefs."""
    return 5 if domain == "ai.onnx.ml" else 1


@lru_cache(maxsize=4096)
def find_schema(op: str, opset: int, domain: str = "") -> OpSchema | None:
    """The standard's schema of an operator at an opset, or one made of the form that its OpDef states; None where there is
    neither."""
    if onnx.defs.has(op, opset, domain):
        return onnx.defs.get_schema(op, opset, domain)
    operator = ops.find(op, domain)
    return None if operator is None or operator.form is None else _schema(operator.form, op, domain)


def _schema(form: Form, op: str, domain: str) -> OpSchema:
    attributes = [OpSchema.Attribute(name, helper.make_attribute(name, value)) for name, value in form.defaults.items()]
    for kinds, required in ((form.optional, False), (form.required, True)):
        attributes += [OpSchema.Attribute(name, getattr(OpSchema.AttrType, kind.upper()), required=required)
                       for name, kind in kinds.items()]
    types = [(key, [f"tensor({_ONNX_NAMES.get(dtype, dtype)})" for dtype in dtypes], "") for key, dtypes in form.types.items()]
    inputs, outputs = ([_operand(word) for word in words.split()] for words in (form.inputs, form.outputs))
    return OpSchema(op, domain, 1, "", inputs=inputs, outputs=outputs, type_constraints=types, attributes=attributes)


def _operand(word: str) -> OpSchema.FormalParameter:
    name, _, key = word.partition(":")
    options = OpSchema.FormalParameterOption
    option = {"?": options.Optional, "*": options.Variadic}.get(name[-1], options.Single)
    return OpSchema.FormalParameter(name.rstrip("?*"), key, param_option=option, is_homogeneous=not name.endswith("**"))

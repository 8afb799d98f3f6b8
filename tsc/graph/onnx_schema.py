"""Nodes against the ONNX standard: operand counts, attributes, and element types that must be the same."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import onnx
from onnx import NodeProto
from onnx.defs import OpSchema

from tsc.errors import ModelError


def check_node(node: NodeProto, opset: int, where: str) -> None:
    """Raise ModelError for operands or attributes that the standard does not know. Other domains are not checked."""
    schema = _schema(node.op_type, opset) if node.domain in ("", "ai.onnx") else None
    if schema is None:
        return
    for what, count, least, most in (("inputs", len(node.input), schema.min_input, schema.max_input),
                                     ("outputs", len(node.output), schema.min_output, schema.max_output)):
        if not least <= count <= most:
            raise ModelError(f"{where} has {count} {what}, but opset {opset} allows {_span(least, most)}; export it again")
    given = {a.name: a.type for a in node.attribute}
    for name, kind in given.items():
        if name not in schema.attributes:
            raise ModelError(f"{where} has the attribute '{name}', which opset {opset} does not know; export it again")
        if kind != schema.attributes[name].type.value:
            raise ModelError(f"{where} has an attribute '{name}' of another type than opset {opset} says; export it again")
    missing = [name for name, a in schema.attributes.items() if a.required and name not in given]
    if missing:
        raise ModelError(f"{where} lacks the attribute '{missing[0]}', which opset {opset} requires; export it again")


def check_dtypes(op: str, domain: str, opset: int, dtypes: Sequence[str | None], where: str) -> None:
    """Raise ModelError where operands that the standard wants of one element type are of several."""
    schema = None if domain else _schema(op, opset)
    if schema is None:
        return
    seen: dict[str, str] = {}
    for k, dtype in enumerate(dtypes):
        formal = schema.inputs[min(k, len(schema.inputs) - 1)]
        if dtype is None or not formal.is_homogeneous or "(" in formal.type_str:
            continue
        first = seen.setdefault(formal.type_str, dtype)
        if first != dtype:
            raise ModelError(f"{where} has operands of type {first} and {dtype}, expected one type; cast one of them")


def _span(least: int, most: int) -> str:
    return f"{least} or more" if most > 1 << 16 else str(least) if least == most else f"{least} to {most}"


@lru_cache(maxsize=4096)
def _schema(op: str, opset: int) -> OpSchema | None:
    return onnx.defs.get_schema(op, opset, "") if onnx.defs.has(op, opset, "") else None

"""Functions of a model, and function bodies of the standard, in place of the nodes that call them."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx.inliner
from onnx import FunctionProto, ModelProto, NodeProto, helper

from tsc.config import Limits
from tsc.errors import ModelError, UnsupportedError
from tsc.graph.onnx.file import all_nodes, allow, plain_domain
from tsc.graph.onnx.schema import default_protos, find_schema

#: Bodies may be made of operators that are bodies themselves; the standard's own are three deep.
_MOST_ROUNDS = 64
#: How many bytes calls may add to a model: a body with weights is copied for each of its calls.
_MOST_GROWTH = 256 << 20

Key = tuple[str, str, str]
IsKnown = Callable[[NodeProto], bool]


def inline_functions(model: ModelProto, label: str, limits: Limits) -> ModelProto:
    """The model without calls of its own functions.

    Raises ModelError for functions that are defined twice or call themselves, UnsupportedError where they are nested deeper or
    expand to more than `limits` allow.
    """
    if not model.functions:
        return model
    bodies: dict[Key, FunctionProto] = {}
    for body in model.functions:
        key = (plain_domain(body.domain), body.name, body.overload)
        if key in bodies:
            raise ModelError(f"{label} defines the function '{body.name}' twice; export it again")
        bodies[key] = body
    _check_expansion(model, bodies, label, limits)
    filled = ModelProto()
    filled.CopyFrom(model)
    inner = (n for f in filled.functions for n in all_nodes(f.node, label, limits))
    for node in (*all_nodes(filled.graph.node, label, limits), *inner):
        called = bodies.get(_key(node))
        for default in () if called is None else called.attribute_proto:
            _add_default(node, default)
    try:
        return onnx.inliner.inline_local_functions(filled)
    except Exception as error:
        raise ModelError(f"{label} has functions that cannot be put in place of their calls ({_first_line(error)}); "
                         "export it again") from error


def inline_bodies(model: ModelProto, opset: int, is_known: IsKnown, label: str, limits: Limits) -> ModelProto:
    """The model with the standard's function bodies in place of the nodes that are not known, where the standard has one."""
    typed: ModelProto | None = None
    for _ in range(_MOST_ROUNDS):
        nodes = all_nodes((typed or model).graph.node, label, limits)
        operator = next((n.op_type for n in nodes if not is_known(n) and _has_body(n, opset)), None)
        if operator is None:
            return typed or model
        typed = _with_bodies(_typed(model) if typed is None else typed, operator, opset, label, limits)
    raise UnsupportedError(f"{label} uses the operator {operator}, whose function bodies are nested too deep")


def _with_bodies(model: ModelProto, operator: str, opset: int, label: str, limits: Limits) -> ModelProto:
    """`model` with all nodes of one operator replaced by its body, which knows no defaults: each node must state them."""
    for node in all_nodes(model.graph.node, label, limits):
        if node.op_type == operator and not plain_domain(node.domain):
            for default in default_protos(operator, opset):
                _add_default(node, default)
    try:
        return onnx.inliner.inline_selected_functions(
            model, [("", operator), ("ai.onnx", operator)], inline_schema_functions=True)
    except Exception as error:
        raise UnsupportedError(f"{label} uses operators that are not supported, and whose function bodies cannot be inlined: "
                               f"{operator}") from error


def _add_default(node: NodeProto, default: onnx.AttributeProto) -> None:
    if all(a.name != default.name for a in node.attribute):
        node.attribute.append(default)


def _typed(model: ModelProto) -> ModelProto:
    """A copy that declares the types of its initializers: a body may depend on the types of its inputs."""
    typed = ModelProto()
    typed.CopyFrom(model)
    declared = {i.name for i in (*typed.graph.input, *typed.graph.value_info)}
    typed.graph.value_info.extend(
        helper.make_tensor_value_info(t.name, t.data_type, tuple(t.dims))
        for t in typed.graph.initializer if t.name not in declared)
    return typed


def _has_body(node: NodeProto, opset: int) -> bool:
    schema = None if plain_domain(node.domain) else find_schema(node.op_type, opset)
    return schema is not None and bool(schema.has_function or schema.has_context_dependent_function)


def _key(node: NodeProto) -> Key:
    return plain_domain(node.domain), node.op_type, node.overload


def _check_expansion(model: ModelProto, bodies: dict[Key, FunctionProto], label: str, limits: Limits) -> None:
    """Raise where calls go in a circle, too deep, or to too many nodes: a few functions that double double very often."""
    sizes: dict[Key, tuple[int, int, int]] = {}  # nodes, bytes and depth of a function with all that it calls
    open_: set[Key] = set()
    calls = {key: [_key(n) for n in all_nodes(body.node, label, limits) if _key(n) in bodies] for key, body in bodies.items()}
    for start in bodies:
        pending = [start]
        while pending:
            key = pending[-1]
            missing = [c for c in calls[key] if c not in sizes]
            if key in sizes or not missing:
                pending.pop()
                open_.discard(key)
                sizes.setdefault(key, _expanded(bodies[key], calls[key], sizes))
                continue
            open_.add(key)
            circle = next((c for c in missing if c in open_), None)
            if circle is not None:
                raise ModelError(f"{label}: function '{circle[1]}' calls itself, which ONNX does not allow; export it again")
            pending.append(missing[0])
    found = [sizes[_key(n)] for n in all_nodes(model.graph.node, label, limits) if _key(n) in sizes]
    nodes = len(model.graph.node) - len(found) + sum(n for n, _, _ in found)
    depth = max((d for _, _, d in found), default=0)
    if nodes > limits.nodes or sum(b for _, b, _ in found) > _MOST_GROWTH:
        raise UnsupportedError(f"{label} has functions that expand to {nodes} nodes, more than the limit of {limits.nodes} or "
                               f"of {_MOST_GROWTH >> 20} MB; {allow('nodes')} or export it without them")
    if depth > limits.nesting:
        raise UnsupportedError(f"{label} has functions that call one another {depth} deep, more than the limit of "
                               f"{limits.nesting}; {allow('nesting')}")


def _expanded(body: FunctionProto, calls: list[Key], sizes: dict[Key, tuple[int, int, int]]) -> tuple[int, int, int]:
    inner = [sizes[c] for c in calls]
    return (len(body.node) - len(calls) + sum(n for n, _, _ in inner), body.ByteSize() + sum(b for _, b, _ in inner),
            1 + max((d for _, _, d in inner), default=0))


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200] or type(error).__name__

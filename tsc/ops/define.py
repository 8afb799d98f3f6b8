"""Operators that users define as tensor expressions.

A user's operator is a value, handed to `tsc.compile(..., ops=[...])`; nothing is registered anywhere. At import each of its
nodes becomes a `te.custom` node that carries the definition, so that whatever comes later needs no table.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tsc.errors import InputError, ModelError, ShapeError
from tsc.ir import Node, TensorType
from tsc.ops.base import InferContext, Lowering, OpDef, PatternKind, Reduction
from tsc.ops.derive import compute_kind
from tsc.ops.shapes import canonical, unify
from tsc.sym import SymExpr
from tsc.te.compute import Compute
from tsc.te.dsl.assemble import Definition, canonical_sizes, sources
from tsc.te.dsl.scalar import place_of, refuse
from tsc.te.dsl.tensor import Tensor
from tsc.te.expr import Expr, Load, Var, map_children

#: The operator that all nodes of users' operators become.
CUSTOM = "te.custom"

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class CustomOp:
    """A user's operator of `domain`: `function` of tensors (and attributes, by keyword) to a tensor or several.

    `shapes` says for each input which dims it has, an int or a name each; equal names are equal dims.
    """

    domain: str
    name: str
    function: Function = field(repr=False)
    shapes: tuple[tuple[int | str, ...], ...] | None = None

    def __call__(self, *tensors: Tensor, **attributes: Any) -> Any:
        return self.function(*tensors, **attributes)


def op(domain: str, name: str, shapes: Sequence[Sequence[int | str]] | None = None) -> Callable[[Function], CustomOp]:
    """Make a function of tensors the meaning of ONNX nodes: hand what this gives to `tsc.compile(..., ops=[...])`.

    The function is called with a tensor for each input of a node, and the node's attributes by keyword; it gives a tensor of
    te.compute, or several. Sizes come from the shapes of the inputs.

    Args:
        domain: The nodes' domain, one of your own.
        name: The operator's name there.
        shapes: For each input which dims it has, a number or a name each; equal names are equal dims.

    Raises:
        ModelError: The domain is the standard's.

    Examples:
        >>> from tsc import op, te
        >>> @op("com.example", "Double")
        ... def double(x):
        ...     return te.compute(x.shape, lambda *i: x[i] + x[i], "y")
        >>> double
        CustomOp(domain='com.example', name='Double', shapes=None)
    """
    if domain in ("", "ai.onnx", "tsc"):
        refuse(f"domain '{domain}' is not for users' operators; choose a domain of your own, say 'com.example'")

    def made(function: Function) -> CustomOp:
        return CustomOp(domain, name, function, None if shapes is None else tuple(map(tuple, shapes)))

    return made


def custom_node(definition: CustomOp, node: Node) -> Node:
    """A node of a user's operator, with the definition in it."""
    return Node(CUSTOM, node.inputs, node.outputs, {"definition": definition, "attributes": dict(node.attrs)}, node.name, "tsc")


def is_custom(node: Node) -> bool:
    """Whether a node is of a user's operator, whose Computes it brings."""
    return node.op == CUSTOM


def applied(ctx: InferContext) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The placeholders that stand for the inputs of a `te.custom` node, and the tensors that its function makes of them.

    Raises ModelError or ShapeError, naming the node, where they do not fit.
    """
    definition: CustomOp = ctx.node.attrs["definition"]
    where = f"node '{ctx.node.name}' ({definition.domain}.{definition.name})"
    attributes = ctx.node.attrs["attributes"]
    names = _parameters(definition.function, len(ctx.types), attributes, where)
    _unify(definition, ctx, where)
    place = place_of(definition.function)
    given = tuple(Tensor(name, ctx.type(k).dtype, canonical(ctx, k), {}, place) for k, name in enumerate(names))
    try:
        made = definition.function(*given, **attributes)
    except (ModelError, ShapeError, InputError) as error:
        raise type(error)(f"{where}: {error}") from error
    outputs = tuple(made) if isinstance(made, list | tuple) else (made,)
    for tensor in outputs:
        if not isinstance(tensor, Tensor) or tensor.definition is None:
            found = "an input back" if isinstance(tensor, Tensor) else f"a {type(tensor).__name__}"
            raise ModelError(f"{where}: the function at {place} gives {found}, expected tensors that te.compute made")
        if tensor.dims:
            raise ModelError(f"{where}: '{tensor.name}' has the dim '{next(iter(tensor.dims))}' of its own; take sizes from "
                             "the shapes of the inputs")
    if len(outputs) < len(ctx.node.outputs) or len({t.name for t in outputs}) < len(outputs):
        raise ModelError(f"{where} has {len(ctx.node.outputs)} outputs, but its function gives {len(outputs)} or one twice")
    return given, outputs


def _parameters(function: Function, count: int, attributes: dict[str, Any], where: str) -> list[str]:
    """The names of the parameters that `count` inputs are bound to."""
    try:
        bound = inspect.signature(function).bind(*range(count), **attributes)
    except TypeError as error:
        raise ModelError(f"{where} has {count} inputs and the attributes {', '.join(attributes) or 'none'}, which do not fit "
                         f"the function at {place_of(function)}: {error}") from error
    names: list[str] = []
    for name, value in bound.arguments.items():
        if name not in attributes and not isinstance(value, dict):
            names += [name] if isinstance(value, int) else [f"{name}{k}" for k in range(len(value))]
    return names


def _unify(definition: CustomOp, ctx: InferContext, where: str) -> None:
    known: dict[str, SymExpr] = {}
    for k, shape in enumerate(definition.shapes or ()):
        if k >= len(ctx.types):
            break
        if len(shape) != ctx.type(k).rank:
            raise ModelError(f"{where}: input {k} is {ctx.type(k)}, expected rank {len(shape)}")
        for entry, extent in zip(shape, canonical(ctx, k)):
            wanted = known.setdefault(entry, extent) if isinstance(entry, str) else SymExpr.of(entry)
            unify(ctx.env, wanted, extent, f"{where}: dim '{entry}' of its inputs")


def _types(ctx: InferContext) -> tuple[TensorType, ...]:
    return tuple(TensorType(t.dtype, tuple(map(ctx.env.canon, t.extents))) for t in applied(ctx)[1])


# -- operators of one Compute ----------------------------------------------------------------------------------

def defined_node(definition: Definition, output: str, name: str) -> Node:
    """A node that computes one value by one Compute over the names of values: fused like any other of its kind."""
    kind = compute_kind(definition.compute)
    return Node(f"te.{kind.value}", tuple(sources(definition)), (output,), {"definition": definition}, name, "tsc")


def _defined_types(ctx: InferContext) -> tuple[TensorType, ...]:
    target = ctx.node.attrs["definition"].compute.target
    return (TensorType(target.dtype, tuple(map(ctx.env.canon, target.shape))),)


def _defined_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr | Reduction:
    node, env = lowering.infer.node, lowering.infer.env
    compute: Compute = node.attrs["definition"].compute
    axes = tuple(lowering.axis("k", env.canon(a.extent)) for a in compute.reduce_axes)
    places: dict[str, Expr] = {a.name: place for a, place in zip(compute.axes, at)}
    places |= {a.name: lowering.var(made) for a, made in zip(compute.reduce_axes, axes)}

    def visit(expr: Expr) -> Expr:
        match expr:
            case Var(name=name):
                return places[name]
            case Load(buffer=buffer, index=index):
                return lowering.read(node.inputs.index(buffer.name), tuple(map(visit, index)))
        return map_children(visit, expr)

    body = visit(canonical_sizes(compute.body, env))
    return body if compute.monoid is None else Reduction(compute.monoid, axes, body)


#: `te.custom` has neither a te body nor a decomposition: `graph/define.py` gives its nodes the Computes of their functions.
OPS: tuple[OpDef, ...] = (
    OpDef(CUSTOM, PatternKind.OPAQUE, _types, domain="tsc"),
    *(OpDef(f"te.{kind.value}", kind, _defined_types, te=_defined_te, domain="tsc") for kind in PatternKind
      if kind is not PatternKind.OPAQUE))

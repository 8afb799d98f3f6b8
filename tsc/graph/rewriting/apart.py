"""Rows of a product as bytes less what belongs to all of a row, which is summed up apart.

Where a device takes four steps at once of bytes with a sign and bytes without (`loop_ir/cpu/dots.py`), the sum over k of
(u[m, k] - z[m]) * w[k, n] is that of u[m, k] * w[k, n], less z[m] times the sum over k of w[k, n], which is a constant of
weights. int32 wraps around alike on both sides, so that no bit differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tsc.graph.dataflow import element_of
from tsc.graph.views import is_view
from tsc.ir import Graph, Node
from tsc.ops import definition
from tsc.sym import ONE, ShapeEnv
from tsc.te.expr import Call, Cast, Expr, Load, Var, loads

BYTES = ("int8", "uint8")
#: Of what dtypes conversions are followed back.
_WHOLE = (*BYTES, "int16", "uint16", "int32")


@dataclass(frozen=True, slots=True)
class Rows:
    """Whole numbers `source - less`: bytes, and a number or the name of an int32 value that has one for each row."""

    source: str
    less: int | str


def rows_of(graph: Graph, env: ShapeEnv, producers: Mapping[str, Node], value: str) -> Rows | None:
    """What the whole numbers of a value are made of; None where these are no bytes. A difference is one where it is taken in
    int32: bytes wrap around where the sums do not."""
    less: int | str = 0
    match _body(graph, env, producers, value):
        case Call(fn="sub", args=(Load(buffer=first), Load(buffer=second))) if (
                graph.types[value].dtype == "int32" and graph.types[first.name].shape == graph.types[value].shape
                and graph.types[second.name].shape[-1:] in ((), (ONE,))):
            array = graph.constants.get(second.name)
            value, less = first.name, second.name if array is None or array.size != 1 else int(array.item())
    if value in producers and (source := converted(graph, env, producers[value], value)) is not None:
        value = source
    return Rows(value, less) if graph.types[value].dtype in BYTES else None


def converted(graph: Graph, env: ShapeEnv, node: Node, value: str) -> str | None:
    """Of what whole numbers a node's output `value` is a conversion, element by element."""
    body = _body(graph, env, {value: node}, value)
    if not isinstance(body, Cast) or not isinstance(body.value, Load) or body.value.dtype not in _WHOLE:
        return None
    source = body.value.buffer.name
    return source if graph.types[source].shape == graph.types[value].shape else None


def _body(graph: Graph, env: ShapeEnv, producers: Mapping[str, Node], value: str) -> Expr | None:
    """The element of a value, where a node computes it and it is no sum."""
    node = producers.get(value)
    if node is None or is_view(node) or definition(node).te is None:
        return None
    element = element_of(graph, env, node, node.outputs.index(value))
    return None if element.reduction else element.body


def sums_columns(graph: Graph, env: ShapeEnv, product: Node, number: int) -> bool:
    """Whether a product sums up along the columns of one of its inputs, a matrix that has a column for each place along the
    product's last dim."""
    element = element_of(graph, env, product, 0)
    own = [load for load in loads(element.body) if load.buffer.name == product.inputs[number]]
    if element.reduction is None or len(element.reduction.axes) != 1:
        return False
    column = Var(f"d{graph.types[product.outputs[0]].rank - 1}")
    return bool(own) and all(load.index == (Var(element.reduction.axes[0].name), column) for load in own)

"""Users' operators: each of their nodes gets the Computes that its function makes, over the names of graph values.

One Compute alone is a node that fuses like any other. Several are fused by what their user wrote, as one unit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from tsc.graph.shapes import Knowledge
from tsc.ir import Graph, Node, TensorType, unused_name
from tsc.ops.define import applied, defined_node, is_custom
from tsc.sym import ShapeEnv, SymExpr
from tsc.te.compute import needed as needed_computes
from tsc.te.dsl.assemble import Definition, assemble, renamed


def define(graph: Graph, env: ShapeEnv) -> Graph:
    """`graph` with the Computes of every `te.custom` node in its attributes, as `definitions`, or in its place where there is
    one. What is computed on the way and the constants it takes become values of the graph.

    Raises ModelError or ShapeError, naming the node.
    """
    if not any(is_custom(node) for node in graph.nodes):
        return graph
    known = Knowledge.of(graph, env)
    types, constants = dict(graph.types), dict(graph.constants)
    taken = graph.names()
    nodes = tuple(_defined(node, known, types, constants, taken) if is_custom(node) else node for node in graph.nodes)
    return replace(graph, nodes=nodes, types=types, constants=constants)


def _defined(node: Node, known: Knowledge, types: dict[str, TensorType], constants: dict[str, NDArray[Any]],
             taken: set[str]) -> Node:
    given, outputs = applied(known.context(node))
    made = assemble(outputs, known.env)
    names = {t.name: value for t, value in zip(given, node.inputs)}
    names |= {t.name: value for t, value in zip(outputs, node.outputs) if value}
    for tensor in made.constants:
        if tensor.data is not None:
            value = names[tensor.name] = unused_name(f"{node.name}/{tensor.name}", taken)
            constants[value] = tensor.data
            types[value] = TensorType(tensor.dtype, tuple(map(SymExpr.of, tensor.data.shape)))
    for item in made.definitions:
        if item.compute.name not in names:
            value = names[item.compute.name] = unused_name(f"{node.name}/{item.compute.name}", taken)
            types[value] = TensorType(item.compute.target.dtype, item.compute.target.shape)
    definitions = tuple(renamed(d, names) for d in made.definitions)
    if len(definitions) == 1 and definitions[0].compute.carried is None:
        return defined_node(definitions[0], definitions[0].compute.name, node.name)
    return replace(node, attrs={**node.attrs, "definitions": definitions})


def definitions_of(graph: Graph) -> Iterator[tuple[Node, Sequence[Definition]]]:
    """The nodes of users' operators with their Computes."""
    for node in graph.nodes:
        found = node.attrs["definitions"] if is_custom(node) else [d for d in [node.attrs.get("definition")] if d is not None]
        if found:
            yield node, found


def needed(node: Node, outputs: Collection[str]) -> list[Definition]:
    """The Computes of a `te.custom` node that `outputs` need."""
    kept = needed_computes([item.compute for item in node.attrs["definitions"]], outputs)
    return [item for item in node.attrs["definitions"] if item.compute in kept]

"""Lists that a loop appends to and that are joined behind it, as exporters write what a program gathers: slices of the loop."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import GraphProto, ModelProto, NodeProto

from tsc.graph.onnx.file import plain_domain
from tsc.graph.onnx.order import inner_graphs
from tsc.ops.control import APPEND, EMPTY_LIST, JOIN_LIST, JOIN_SLICES, LOOP


def without_lists(model: ModelProto) -> ModelProto:
    """The model with slices in place of lists that begin empty, get one element in each trip of a loop, and are only joined
    behind it; the model itself where there are none."""
    if not any(_is(node, EMPTY_LIST) for node in _all(model.graph)):
        return model
    made = ModelProto()
    made.CopyFrom(model)
    _rewrite(made.graph)
    return made


def _rewrite(graph: GraphProto) -> None:
    for node in graph.node:
        for inner in inner_graphs(node):
            _rewrite(inner)
    empty = {node.output[0] for node in graph.node if _is(node, EMPTY_LIST)}
    for node in graph.node:
        if _is(node, LOOP):
            _slice(graph, node, empty)
    used = {*_read(graph), *(output.name for output in graph.output)}
    for k in reversed(range(len(graph.node))):
        if _is(graph.node[k], EMPTY_LIST) and graph.node[k].output[0] not in used:
            del graph.node[k]


def _slice(graph: GraphProto, loop: NodeProto, empty: set[str]) -> None:
    """Turn the lists among a loop's states into slices."""
    body = next(attribute.g for attribute in loop.attribute if attribute.name == "body")
    joins: list[NodeProto] = []
    for k in reversed(range(min(len(loop.input) - 2, len(loop.output)))):
        own, made, result = body.input[2 + k].name, body.output[1 + k].name, loop.output[k]
        appends = [n for n in body.node if _is(n, APPEND) and list(n.output) == [made] and len(n.input) == 2]
        readers = [n for n in graph.node if result in n.input]
        if (loop.input[2 + k] not in empty or not appends or appends[0].input[0] != own
                or [*_read(body)].count(own) != 1 or made in _read(body)
                or [o.name for o in body.output].count(made) != 1 or any(o.name == result for o in graph.output)
                or [*_read(graph)].count(result) != len(readers) or not all(_is(n, JOIN_LIST) for n in readers)):
            continue
        element = appends[0].input[1]
        body.node.remove(appends[0])
        del loop.input[2 + k], body.input[2 + k], body.output[1 + k], loop.output[k]
        body.output.add(name=element)
        loop.output.append(result)
        joins += readers
    for reader in joins:
        reader.domain, reader.op_type = JOIN_SLICES


def _is(node: NodeProto, op: str) -> bool:
    return node.op_type == op and not plain_domain(node.domain)


def _all(graph: GraphProto) -> Iterator[NodeProto]:
    for node in graph.node:
        yield node
        for inner in inner_graphs(node):
            yield from _all(inner)


def _read(graph: GraphProto) -> Iterator[str]:
    """Each value that a node reads, once for each time, graphs within nodes among them."""
    for node in _all(graph):
        yield from node.input
        for inner in inner_graphs(node):
            yield from (output.name for output in inner.output)

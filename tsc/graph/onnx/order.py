"""Nodes in an order in which each value is made before it is read. The standard asks for one; tools that append nodes to a
graph do not all keep it, and ONNX Runtime does not mind."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto


def in_order(model: ModelProto) -> ModelProto:
    """The model with such an order in every graph and function, of those possible the one that takes the earliest node next;
    the model itself where it has one. Nodes that wait for each other stay behind the others."""
    if all(map(_is_ordered, (model.graph, *model.functions))):
        return model
    made = ModelProto()
    made.CopyFrom(model)
    for holder in (made.graph, *made.functions):
        _sort(holder)
    return made


def inner_graphs(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs that a node holds."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g


def _is_ordered(holder: GraphProto | FunctionProto) -> bool:
    return _order(holder) == [*range(len(holder.node))] and all(
        _is_ordered(inner) for node in holder.node for inner in inner_graphs(node))


def _sort(holder: GraphProto | FunctionProto) -> None:
    for node in holder.node:
        for inner in inner_graphs(node):
            _sort(inner)
    nodes = []
    for k in _order(holder):
        nodes.append(NodeProto())
        nodes[-1].CopyFrom(holder.node[k])
    del holder.node[:]
    holder.node.extend(nodes)


def _order(holder: GraphProto | FunctionProto) -> list[int]:
    """The numbers of nodes in order."""
    makers: dict[str, int] = {}
    for k, node in enumerate(holder.node):
        for name in filter(None, node.output):
            makers.setdefault(name, k)
    awaited = [{makers[name] for name in _reads(node) if name in makers} for node in holder.node]
    readers: list[list[int]] = [[] for _ in awaited]
    for k, before in enumerate(awaited):
        for other in before:
            readers[other].append(k)
    missing = [len(before) for before in awaited]
    ready, order = [k for k, count in enumerate(missing) if not count], list[int]()
    while ready:
        order.append(heapq.heappop(ready))
        for k in readers[order[-1]]:
            missing[k] -= 1
            if not missing[k]:
                heapq.heappush(ready, k)
    return order + [k for k, count in enumerate(missing) if count]


def _reads(node: NodeProto) -> Iterator[str]:
    """What a node reads of the graph that it is in, by the graphs that it holds too."""
    yield from node.input
    for inner in inner_graphs(node):
        own = {v.name for v in (*inner.input, *inner.initializer)} | {name for n in inner.node for name in n.output}
        read = (*(name for n in inner.node for name in _reads(n)), *(output.name for output in inner.output))
        yield from (name for name in read if name not in own)

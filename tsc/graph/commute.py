"""Commuting: an elementwise node over moved data becomes the same node over the data where it was made, moved afterwards.

`Mul(Transpose(Reshape(MatMul)), 0.125)` scales in the matmul's epilogue then, and the Transpose is free again to be inlined
into the next kernel's reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tsc.graph.dataflow import dynamic_inputs, item_of, scalar_constant
from tsc.graph.group import definition
from tsc.graph.views import is_view
from tsc.ir import Graph, Node, TensorType
from tsc.ops.base import PatternKind
from tsc.sym import ShapeEnv


def commute(graph: Graph, env: ShapeEnv) -> Graph:
    """Move elementwise nodes whose other operands are scalar constants before the permutations and views they follow.

    Only where a kernel makes the data (not a model input), so that there is a kernel to take the node in. Values keep their
    names; moved copies get new ones.
    """
    moving = _Moving(graph, env, graph.producers(), dict(graph.types), [])
    for node in graph.nodes:
        chain = _movement_before(moving, node)
        if chain:
            moving.rebuild(node, chain)
        else:
            moving.add(node)
    return replace(graph, nodes=tuple(_used(moving.nodes, graph)), types=moving.types)


@dataclass(slots=True)
class _Moving:
    graph: Graph
    env: ShapeEnv
    producers: dict[str, Node]
    types: dict[str, TensorType]
    nodes: list[Node]

    def add(self, node: Node) -> None:
        self.nodes.append(node)
        self.producers |= {out: node for out in node.outputs if out}

    def rebuild(self, node: Node, chain: list[Node]) -> None:
        """`node` over the chain's source, then copies of the chain (given last to first) that end in `node`'s output."""
        moved, source = chain[0].outputs[0], chain[-1].inputs[0]
        result, dtype = node.outputs[0], self.types[node.outputs[0]].dtype
        value = f"{result}.before"
        self.types[value] = TensorType(dtype, self.types[source].shape)
        self.add(replace(node, inputs=tuple(source if i == moved else i for i in node.inputs), outputs=(value,)))
        for k, step in enumerate(reversed(chain)):
            made = result if step is chain[0] else f"{result}.moved{k}"
            self.types[made] = TensorType(dtype, self.types[step.outputs[0]].shape)
            self.add(replace(step, inputs=(value, *step.inputs[1:]), outputs=(made,), name=f"{step.name}/{node.name}"))
            value = made


def _movement_before(moving: _Moving, node: Node) -> list[Node]:
    """The permutations and views, last first, that `node` may move in front of; empty where it may not or need not."""
    opdef = definition(node)
    data = [i for i in dynamic_inputs(moving.graph, node) if not scalar_constant(moving.graph, i)]
    if opdef.kind is not PatternKind.ELEMENTWISE or len(data) != 1 or len(node.outputs) != 1:
        return []
    if moving.types[node.outputs[0]].rank != moving.types[data[0]].rank:
        return []
    chain = list(_chain(moving, data[0]))
    while chain and is_view(chain[-1]):
        chain.pop()  # a view before the first permutation costs nothing where it is
    if not chain or chain[-1].inputs[0] not in moving.producers:
        return []
    rank = moving.types[chain[-1].inputs[0]].rank
    scalars = [moving.graph.constants[i].ndim for i in node.inputs if scalar_constant(moving.graph, i)]
    return chain if all(ndim <= rank for ndim in scalars) else []


def _chain(moving: _Moving, value: str) -> Iterator[Node]:
    graph = replace(moving.graph, types=moving.types)
    while value in moving.producers:
        node = moving.producers[value]
        if not is_view(node) and not item_of(graph, moving.env, node, node.outputs.index(value), 0).is_permutation:
            return
        yield node
        value = node.inputs[0]


def _used(nodes: list[Node], graph: Graph) -> Iterator[Node]:
    """The nodes that something still reads, in order."""
    needed = set(graph.outputs)
    kept: list[Node] = []
    for node in reversed(nodes):
        if needed & set(node.outputs):
            needed.update(node.inputs)
            kept.append(node)
    return reversed(kept)

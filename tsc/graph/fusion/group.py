"""FusionGroup: the nodes that become one kernel, and the record of why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tsc.ir import Graph, Node
from tsc.ops import definition
from tsc.ops.base import PatternKind


@dataclass(frozen=True, slots=True)
class Decision:
    """One fusion decision: whether `node` joined the group anchored at `anchor`, and why or why not."""

    node: str
    anchor: str
    fused: bool
    reason: str


@dataclass(frozen=True, slots=True)
class FusionGroup:
    """Nodes in topological order that become one kernel. `kind` is the anchor's: contraction, reduce or injective (which
    stands for all groups without a reduction). `inputs` and `outputs` are value names in a deterministic order. A chain has
    `links`: the groups that it is made of, in order, each a kernel if no schedule fits them all; what they hand on is stored
    within the chain's kernel."""

    name: str
    kind: PatternKind
    nodes: tuple[Node, ...]
    anchor: Node
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    decisions: tuple[Decision, ...] = ()
    links: tuple[FusionGroup, ...] = ()


def leaves(group: FusionGroup) -> Iterator[FusionGroup]:
    """The groups that a chain is made of in the end, in order; a group that is no chain alone."""
    for link in group.links:
        yield from leaves(link)
    if not group.links:
        yield group


def splits(group: FusionGroup) -> bool:
    """Whether `split_group` has parts to make of a group."""
    return len(group.nodes) > 1 or len(group.outputs) > 1


def split_group(group: FusionGroup, graph: Graph) -> tuple[FusionGroup, ...]:
    """The links of a chain, else one group a node, in order, else one an output: what is left when no schedule fits the whole
    group. Only what the group's outputs need is made."""
    if group.links:
        return group.links
    read = {i for node in group.nodes for i in graph.used_inputs(node)}
    needed = [[o for o in node.outputs if o in read or o in group.outputs] for node in group.nodes]
    parts = [(node, tuple(outputs)) for node, outputs in zip(group.nodes, needed) if not definition(node).is_view]
    if len(group.nodes) == 1:
        parts = [(group.anchor, (output,)) for output in group.outputs]
    return tuple(
        FusionGroup(f"{group.name}.{i}", node_kind(node), (node,), node, tuple(dict.fromkeys(graph.used_inputs(node))), outputs)
        for i, (node, outputs) in enumerate(parts))


def node_kind(node: Node) -> PatternKind:
    """The kind of a group made of one node: contraction, reduce, or injective for all the rest."""
    kind = definition(node).kind
    return kind if kind in (PatternKind.CONTRACTION, PatternKind.REDUCE) else PatternKind.INJECTIVE

"""FusionGroup: the nodes that become one kernel, and the record of why."""

from __future__ import annotations

from dataclasses import dataclass

from tsc.ir import Node
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
    stands for all groups without a reduction). `inputs` and `outputs` are value names in a deterministic order."""

    name: str
    kind: PatternKind
    nodes: tuple[Node, ...]
    anchor: Node
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    decisions: tuple[Decision, ...] = ()

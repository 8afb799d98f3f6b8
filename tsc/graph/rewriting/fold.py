"""Constant folding: a node all of whose inputs are constants is computed now."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from tsc.graph.node_values import Budget, known_outputs
from tsc.graph.shapes import Knowledge
from tsc.ir import Graph, Node
from tsc.sym import ShapeEnv

#: A folded value may be larger than the constants it is made of up to this size: what only grows is better made at run time.
MOST_BYTES = 1 << 20


def fold_constants(graph: Graph, env: ShapeEnv, budget: Budget, held: Collection[str] = ()) -> Graph:
    """Replace nodes whose data inputs are all constants and whose outputs are static and not too large, as far as the `budget`
    goes, but for those that make what is `held`.

    What a node generates from nothing (Range, ConstantOfShape) stays: its few instructions are cheaper than memory.
    Raises ModelError when a constant index is out of bounds.
    """
    constants = dict(graph.constants)
    known = Knowledge.of(graph, env)
    known.constants = constants
    kept = []
    for node in graph.nodes:
        values = None if any(o in held for o in node.outputs) else _folded(node, known, constants, budget)
        if values is None:
            kept.append(node)
        else:
            constants |= values
    return graph if len(kept) == len(graph.nodes) else replace(graph, nodes=tuple(kept), constants=constants)


def _folded(node: Node, known: Knowledge, constants: Mapping[str, NDArray[Any]],
            budget: Budget) -> dict[str, NDArray[Any]] | None:
    most = max(MOST_BYTES, sum(constants[i].nbytes for i in node.inputs if i in constants))
    return known_outputs(node, known.context(node), known.output_types(node), most, budget)

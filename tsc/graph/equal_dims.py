"""Dims that an exporter named apart though the model means one: a dim that is read at every index of another.

`mask[arange(batch)]` reads `batch` rows of a mask whose own batch has another name. The standard only asks that there be
enough of them, so equality cannot be proved: it is assumed, and a Guard checks it. Which dim is read at which index is what
the te bodies say.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from tsc.graph.dataflow import dynamic_inputs, element_at, element_of
from tsc.ir import Graph, Node
from tsc.ops import definition
from tsc.ops.base import PatternKind
from tsc.sym import ShapeEnv, SymExpr
from tsc.te.expr import Cast, CheckedIndex, Expr, Load, Var, walk

#: An index of more operations is no position.
MOST_NODES = 512


def assume_counted_dims(graph: Graph, env: ShapeEnv) -> None:
    """Unify each bare Dim that a node of an inferred graph reads at computed positions 0, 1, .. D-1 with the bare Dim D."""
    producers = graph.producers()
    for node in graph.nodes:
        if not _looks_up(graph, node, producers):
            continue
        element = element_of(graph, env, node, 0)
        for place in (e for e in walk(element.body) if isinstance(e, CheckedIndex)):
            count = _count(place.value, element.extents, producers, graph, env)
            if count is None:
                continue
            extent, count = env.canon(place.extent), env.canon(count)
            if extent != count and extent.as_dim() is not None and count.as_dim() is not None:
                where = f"node '{node.name}' ({node.op})"
                env.assume_eq(count, extent, f"{where}: a dim that is read at each index of another must be equal to it")


def _looks_up(graph: Graph, node: Node, producers: Mapping[str, Node]) -> bool:
    """Whether a node may read one operand at positions that are computed."""
    operator, data = definition(node), dynamic_inputs(graph, node)
    return operator.te is not None and operator.kind is PatternKind.INJECTIVE and len(data) > 1 and any(
        i in producers and i not in graph.contents and graph.types[i].dtype in ("int32", "int64") for i in data)


def _count(place: Expr, extents: Mapping[str, SymExpr], producers: Mapping[str, Node], graph: Graph,
           env: ShapeEnv) -> SymExpr | None:
    """D where `place` is 0, 1, .. D-1 along an axis, through whatever moves or converts it; else None."""
    while _is_small(place):
        match place:
            case Var(name=name):
                return extents[name]
            case Cast(value=value):
                place = value
            case Load(buffer=buffer, index=index) if buffer.name in producers:
                found = element_at(graph, env, producers[buffer.name], buffer.name, index, extents)
                if found is None:
                    return None
                place = found
            case _:
                return None
    return None


def _is_small(place: Expr) -> bool:
    """Whether an index may be a position that was moved: what looks up in what was looked up, again and again, doubles."""
    return sum(1 for _ in islice(walk(place), MOST_NODES)) < MOST_NODES

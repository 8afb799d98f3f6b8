"""Dims of what a run adds to: keys and values of the tokens before, of which there are none when a text begins."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tsc.ir import Graph, Node
from tsc.ops import definition
from tsc.sym import ShapeEnv


def let_states_be_empty(graph: Graph, env: ShapeEnv) -> None:
    """Make 0 the least size of Dims along which inputs are only added to, but for those that the user declared: exporters'
    decoders are run with no past first, by programs that never say so."""
    same = {name: name for name in graph.inputs}  # each input, also by the names of what is nothing but that
    read: dict[str, list[int | None]] = {name: [] for name in graph.inputs}
    for node in graph.nodes:
        for k, name in enumerate(node.inputs):
            if name not in same or k in definition(node).static_inputs:
                continue
            if definition(node).grows is not None and len(node.inputs) == 1:
                same.update(dict.fromkeys(filter(None, node.outputs), same[name]))
                continue
            axis = _grown(node, k, same.keys() | graph.constants.keys())
            read[same[name]].append(axis if axis is None or axis >= 0 else axis + graph.types[same[name]].rank)
    for name in {*graph.outputs} & same.keys():
        read[same[name]].append(None)
    growing = {(name, axes[0]) for name, axes in read.items() if axes and set(axes) == {axes[0]} and axes[0] is not None}
    places = list(_places(graph))
    found = {name for place, name in places if place in growing}
    for name in sorted(found - {name for place, name in places if place not in growing} - env.asked):
        env.let_be_empty(name)


def _grown(node: Node, k: int, given: Collection[str]) -> int | None:
    """The axis along which a node adds to its input number k something that is not given: that is computed, or that the node
    itself adds to nothing."""
    grows = definition(node).grows
    axis = None if grows is None else grows(node, k)
    if grows is None or axis is None:
        return None
    adds = (bool(other) and (other not in given or grows(node, j) is None) for j, other in enumerate(node.inputs) if j != k)
    return axis if any(adds) else None


def _places(graph: Graph) -> Iterator[tuple[tuple[str, int], str]]:
    """Each axis of an input with each Dim that its size is made of."""
    for name in graph.inputs:
        for axis, size in enumerate(graph.types[name].shape):
            yield from (((name, axis), dim) for dim in size.dims())

"""Views: values that are another value's memory, row-major, under another shape. The plan gives them no storage."""

from __future__ import annotations

from collections.abc import Mapping

from tsc.ir import Graph, Node
from tsc.ops import definition


def is_view(node: Node) -> bool:
    """Whether the node's output is its first input's memory in the same row-major order."""
    return definition(node).is_view


def resolve(value: str, producers: Mapping[str, Node]) -> str:
    """The value whose memory `value` is (itself when it is no view), given `graph.producers()`."""
    while value in producers and is_view(producers[value]):
        value = producers[value].inputs[0]
    return value


def root(value: str, graph: Graph) -> str:
    """The value whose memory `value` is: views resolved. For many values, build `graph.producers()` once and `resolve`."""
    return resolve(value, graph.producers())

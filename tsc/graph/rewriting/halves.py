"""Models of halves: what is stored so is computed in float32, and rounded where the model says so.

Inputs and outputs keep their type; a Cast stands behind each input, before each output, and behind whatever makes halves of
other values, so that a node that rounds still does. Values between are not rounded: they are more exact than those of a runtime
that stores each as a half, and nothing overflows on the way. Constants become float32, which holds each half exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tsc.config import DEFAULT_LIMITS, Limits
from tsc.graph.shapes import Knowledge, infer_shapes
from tsc.ir import Graph, Node, TensorType, unused_name
from tsc.ops import definition
from tsc.ops.elementwise import cast_node
from tsc.sym import ShapeEnv

HALF, WIDE = "float16", "float32"


def compute_wide(graph: Graph, env: ShapeEnv, limits: Limits = DEFAULT_LIMITS) -> Graph:
    """An inferred graph whose nodes, but for conversions, have no operands of halves; the graph itself where there are none."""
    if not any(t.dtype == HALF for t in graph.types.values()):
        return graph
    widening = _Widening(graph, env, limits)
    nodes = tuple(widening.nodes())
    read = {*graph.outputs, *(value for node in nodes for value in node.inputs)}
    constants = {value: array for value, array in widening.constants.items() if value in read}
    types = {value: widening.types[value] for value in (*graph.inputs, *constants)}
    return infer_shapes(replace(graph, nodes=nodes, types=types, constants=constants, contents=graph.told()), env, limits)


class _Widening:
    """The wide values of a graph: `wide` says by what name a half is known as one."""

    def __init__(self, graph: Graph, env: ShapeEnv, limits: Limits) -> None:
        self.graph, self.wide, self._names = graph, dict[str, str](), graph.names()
        self.constants, self.types = dict(graph.constants), {v: graph.types[v] for v in (*graph.inputs, *graph.constants)}
        for value, array in graph.constants.items():
            if array.dtype.name == HALF:
                name = self._renamed(value)
                self.constants[name], self.types[name] = array.astype(WIDE), TensorType(WIDE, graph.types[value].shape)
        wide = replace(graph, types=self.types, constants=self.constants, contents=graph.told())
        self._known = Knowledge.of(wide, env, limits)

    def nodes(self) -> Iterator[Node]:
        """All nodes, conversions among them."""
        for value in self.graph.inputs:
            if self.graph.types[value].dtype == HALF:
                yield self._cast(value, self._renamed(value), WIDE)
        for node in self.graph.nodes:
            node = self._widened(node)
            self._known.infer(node)
            made = [o for o in node.outputs if o and self.graph.types[o].dtype == HALF]
            rounded = [o for o in made if self._known.types[o].dtype == HALF]
            names = {o: self._renamed(o) for o in made if o in self.graph.outputs and o not in rounded}
            for value in names:
                del self._known.types[value]
            yield self._inferred(replace(node, outputs=tuple(names.get(o, o) for o in node.outputs))) if names else node
            for value in names:
                yield self._cast(self.wide[value], value, HALF)
            for value in rounded:
                yield self._cast(value, self._renamed(value), WIDE)

    def _widened(self, node: Node) -> Node:
        """A node that reads wide values, but for what it takes a type or a shape of."""
        still = definition(node).static_inputs
        return replace(node, inputs=tuple(v if k in still else self.wide.get(v, v) for k, v in enumerate(node.inputs)))

    def _renamed(self, value: str) -> str:
        self.wide[value] = unused_name(f"{value}/{WIDE}", self._names)
        return self.wide[value]

    def _cast(self, value: str, made: str, dtype: str) -> Node:
        return self._inferred(cast_node(value, made, dtype, f"{value}/{dtype}"))

    def _inferred(self, node: Node) -> Node:
        self._known.infer(node)
        return node

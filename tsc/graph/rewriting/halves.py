"""Models of halves, float16 or bfloat16: what is stored so is computed in float32, and rounded where the model says so.

Inputs and outputs keep their type; a Cast stands behind each input, before each output, and behind whatever makes halves of
other values, so that a node that rounds still does. Values between are not rounded: they are more exact than those of a runtime
that stores each as a half, and nothing overflows on the way. Constants become float32, which holds each half exactly.
Of bfloat16, for which NumPy and C have no type, kernels see the bits (`Graph.outside` says what they are to whoever calls).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace

from tsc.config import DEFAULT_LIMITS, Limits
from tsc.errors import UnsupportedError
from tsc.graph.shapes import Knowledge, infer_shapes
from tsc.ir import Graph, Node, TensorType, unused_name
from tsc.ops import definition
from tsc.ops.bits import from_bfloat_node, to_bfloat_node
from tsc.ops.control import runs_graphs
from tsc.ops.elementwise import cast_node
from tsc.ops.shapes import HALVES
from tsc.sym import ShapeEnv

HALF, BFLOAT, WIDE = "float16", "bfloat16", "float32"
#: What the bits of a bfloat16 are stored as.
BITS = "uint16"


def compute_wide(graph: Graph, env: ShapeEnv, limits: Limits = DEFAULT_LIMITS) -> Graph:
    """An inferred graph whose nodes, but for conversions, have no operands of halves; the graph itself where there are none."""
    if not any(t.dtype in HALVES for t in graph.types.values()):
        return graph
    widening = _Widening(graph, env, limits)
    nodes = tuple(widening.nodes())
    read = {*graph.outputs, *(value for node in nodes for value in node.inputs)}
    constants = {value: array for value, array in widening.constants.items() if value in read}
    types = {value: widening.types[value] for value in (*graph.inputs, *constants)}
    outside = {value: BFLOAT for value in (*graph.inputs, *graph.outputs) if graph.types[value].dtype == BFLOAT}
    declared = {name: (BITS if name in outside else dtype, sizes) for name, (dtype, sizes) in graph.declared.items()}
    graph = replace(graph, nodes=nodes, constants=constants, contents=graph.told(), outside=outside, declared=declared)
    return infer_shapes(replace(graph, types=types), env, limits)


class _Widening:
    """The wide values of a graph: `wide` says by what name a half is known as one."""

    def __init__(self, graph: Graph, env: ShapeEnv, limits: Limits) -> None:
        self.graph, self.wide, self._names = graph, dict[str, str](), graph.names()
        self.constants, self.types = dict(graph.constants), {v: graph.types[v] for v in (*graph.inputs, *graph.constants)}
        for value, array in graph.constants.items():
            if array.dtype.name in HALVES:
                name = self._renamed(value)
                self.constants[name], self.types[name] = array.astype(WIDE), TensorType(WIDE, graph.types[value].shape)
                if array.dtype.name == BFLOAT and value in graph.outputs:
                    self.constants[value] = array.view(BITS)
        self.types |= {value: TensorType(BITS, known.shape) for value, known in self.types.items()
                       if known.dtype == BFLOAT and value in (*graph.inputs, *graph.outputs)}
        wide = replace(graph, types=self.types, constants=self.constants, contents=graph.told())
        self._known = Knowledge.of(wide, env, limits)

    def nodes(self) -> Iterator[Node]:
        """All nodes, conversions among them."""
        dtypes = {value: known.dtype for value, known in self.graph.types.items()}
        for value in self.graph.inputs:
            if dtypes[value] in HALVES:
                yield self._opened(value, dtypes[value])
        for node in self.graph.nodes:
            made = [o for o in node.outputs if o and dtypes[o] in HALVES]
            if runs_graphs(node):
                node = yield from self._as_it_is(node, dtypes)
            else:
                node = self._widened(node)
            if definition(node).converts and BFLOAT in map(dtypes.get, made):
                yield from self._rounded(node)
                continue
            self._known.infer(node)
            rounded = [o for o in made if self._known.types[o].dtype in HALVES]
            names = {o: self._renamed(o) for o in made if o in self.graph.outputs and o not in rounded}
            for value in names:
                del self._known.types[value]
            yield self._inferred(replace(node, outputs=tuple(names.get(o, o) for o in node.outputs))) if names else node
            for value in names:
                yield self._closed(self.wide[value], value, dtypes[value])
            for value in rounded:
                if dtypes[value] == BFLOAT:
                    raise UnsupportedError(f"node '{node.name}' ({node.op}) makes bfloat16 of other types, which is not "
                                           "supported; make float32 and cast that")
                yield self._opened(value, dtypes[value])

    def _as_it_is(self, node: Node, dtypes: Mapping[str, str]) -> Generator[Node, None, Node]:
        """A node whose graphs read halves, which are made of the wide values first."""
        read: dict[str, str] = {}
        for value in node.inputs:
            if dtypes[value] == HALF and (value not in self._known.types or self._known.types[value].dtype != HALF):
                read[value] = unused_name(f"{value}/{HALF}", self._names)
                yield self._closed(self.wide.get(value, value), read[value], HALF)
        if BFLOAT in (*map(dtypes.get, node.inputs), *map(dtypes.get, node.outputs)):
            raise UnsupportedError(f"node '{node.name}' ({node.op}) hands bfloat16 to its graphs, which is not supported; "
                                   "convert it to float32 first")
        return replace(node, inputs=tuple(read.get(value, value) for value in node.inputs))

    def _rounded(self, node: Node) -> Iterator[Node]:
        """A conversion to bfloat16: of a float32, and back for whatever reads it."""
        source, made = node.inputs[0], node.outputs[0]
        if self._known.types[source].dtype != WIDE:
            source = unused_name(f"{made}/{WIDE}", self._names)
            yield self._cast(node.inputs[0], source, WIDE)
        yield self._closed(source, made, BFLOAT)
        yield self._opened(made, BFLOAT)

    def _opened(self, value: str, dtype: str) -> Node:
        """A half as a float32."""
        wide = self._renamed(value)
        if dtype != BFLOAT:
            return self._cast(value, wide, WIDE)
        return self._inferred(from_bfloat_node(value, wide, f"{value}/{WIDE}"))

    def _closed(self, value: str, made: str, dtype: str) -> Node:
        """A float32 as a half."""
        if dtype != BFLOAT:
            return self._cast(value, made, dtype)
        return self._inferred(to_bfloat_node(value, made, f"{value}/{dtype}"))

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

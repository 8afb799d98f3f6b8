"""Compound operators to primitive ones, by the OpDefs' own decompositions (section 4.1 of the TSCompiler paper).

Operators that have only the ONNX standard's function body were inlined at import, so every operator here has an OpDef.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from tsc.errors import InternalError
from tsc.graph.shapes import Knowledge
from tsc.ir import Graph, Node, TensorType, unused_name
from tsc.ops import definition
from tsc.ops.base import MOST_OPERANDS, Builder
from tsc.ops.control import runs_graphs
from tsc.ops.elementwise import copy_node
from tsc.sym import ShapeEnv, SymExpr


def decompose(graph: Graph, env: ShapeEnv) -> Graph:
    """Replace every node whose OpDef has a decomposition by primitives, until each has a te body. Value names of `graph` stay.

    `graph` is inferred; what is new is inferred on the way, and not held to the standard's element types, which for an opset
    may be fewer than the node's own. Each new node is named after the node it comes from.
    """
    known = Knowledge.of(replace(graph, primitives=True), env)
    expansion = _Expansion(known, dict(graph.constants), graph.names() | {n.name for n in graph.nodes})
    nodes = tuple(new for node in graph.nodes for new in expansion.expand(node))
    read = _read(replace(graph, nodes=nodes))
    counts = {env.counts[key]: made for key, made in expansion.counts.items() if key[0] in read}
    return replace(graph, nodes=nodes, types=known.types, constants=expansion.constants, contents=known.contents,
                   fractions=known.fractions, primitives=True, counts=counts, outputs=(*graph.outputs, *counts.values()))


def _read(graph: Graph) -> set[str]:
    """All outputs of the nodes that outputs depend on, be it by their shapes."""
    producers, found, waiting = graph.producers(), set[str](), list(graph.outputs)
    while waiting:
        value = waiting.pop()
        if value not in found and value in producers:
            found.update(producers[value].outputs)
            waiting += producers[value].inputs
    return found


@dataclass(slots=True)
class _Expansion:
    """The state of one decomposition: what is known so far, and the names taken."""

    known: Knowledge
    constants: dict[str, NDArray[Any]]
    taken: set[str] = field(default_factory=set)
    counts: dict[tuple[str, int], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.known.constants = self.constants

    def expand(self, node: Node) -> Iterator[Node]:
        """The primitives that compute the outputs of `node`, in order."""
        rule = self._rule(node)
        if rule is None:
            for part in self._narrowed(node) if definition(node).associative else (node,):
                self.known.infer(part)
                yield part
            keys = [(output, 0) for output in node.outputs if runs_graphs(node)]  # which may be the count of its trips
            self.counts.update((key, key[0]) for key in keys if key in self.known.env.counts)
            return
        made: list[Node] = []
        results = rule(Builder(
            self.known.context(node), lambda op, inputs, count, **attrs: self._emit(node, made, op, inputs, count, attrs),
            lambda array: self._constant(node, array),
            lambda value, number: self.counts.__setitem__((node.outputs[0], number), value)))
        if len(results) < sum(1 for o in node.outputs if o):
            raise InternalError(f"the decomposition of {node.op} gives {len(results)} of {len(node.outputs)} outputs")
        for part in self._renamed(node, made, results):
            yield from self.expand(part)

    def _rule(self, node: Node) -> Callable[[Builder], tuple[str, ...]] | None:
        """The decomposition of a node, if it has one."""
        operator = definition(node)
        if operator.told is not None and any(node.inputs[operator.axes:operator.axes + 1]):
            axes = self.known.contents_of(node.inputs[operator.axes])
            if axes is not None and any(axis.as_int() is None for axis in axes.ravel()):
                return operator.told
        return operator.decompose

    def _narrowed(self, node: Node) -> Iterator[Node]:
        """A node of many operands as a balanced tree of such as have few."""
        inputs = node.inputs
        while len(inputs) > MOST_OPERANDS:
            count = -(-len(inputs) // -(-len(inputs) // MOST_OPERANDS))
            chunks = [inputs[k:k + count] for k in range(0, len(inputs), count)]
            names = [self._unused(f"{node.name}/{node.op}") for _ in chunks]
            yield from (Node(node.op, chunk, (name,), node.attrs, name) for chunk, name in zip(chunks, names))
            inputs = tuple(names)
        yield replace(node, inputs=inputs)

    def _emit(self, origin: Node, made: list[Node], op: str, inputs: tuple[str, ...], count: int,
              attrs: dict[str, Any]) -> tuple[str, ...]:
        names = tuple(self._unused(f"{origin.name}/{op}") for _ in range(count))
        made.append(Node(op, tuple(inputs), names, attrs, names[0]))
        self.known.infer(made[-1])
        return names

    def _constant(self, origin: Node, array: NDArray[Any]) -> str:
        name = self._unused(f"{origin.name}/constant")
        self.constants[name] = array
        self.known.types[name] = TensorType(array.dtype.name, tuple(map(SymExpr.of, array.shape)))
        return name

    def _renamed(self, node: Node, made: list[Node], results: tuple[str, ...]) -> list[Node]:
        """`made` with its results under the names of the outputs of `node`; Identity where one cannot be renamed."""
        own = {output for n in made for output in n.outputs}
        names: dict[str, str] = {}
        copies = []
        for result, output in zip(results, node.outputs):
            if not output:
                continue
            if result in own and result not in names:
                names[result] = output
            else:
                name = self._unused(f"{node.name}/copy")
                copies.append(copy_node(names.get(result, result), output, name))
        nodes = [replace(n, inputs=tuple(names.get(i, i) for i in n.inputs), outputs=tuple(names.get(o, o) for o in n.outputs))
                 for n in made]
        for old in names:
            self.known.types.pop(old, None)
            self.known.contents.pop(old, None)
        return nodes + copies

    def _unused(self, base: str) -> str:
        return unused_name(base, self.taken)

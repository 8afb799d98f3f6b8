"""Graphs within nodes while they are made parts of a plan: names, what they read from outside, and what is known in them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from numpy.typing import NDArray

from tsc.config import Limits
from tsc.errors import ModelError, UnsupportedError
from tsc.graph.onnx.file import allow
from tsc.graph.shapes import Knowledge, infer_shapes
from tsc.ir import Contents, Graph, Node, TensorType, unused_name
from tsc.ops.generate import sizes_node
from tsc.sym import ShapeEnv, SymExpr


@dataclass(frozen=True, slots=True, eq=False)
class Body:
    """A graph that is run as a region of the plan, its types known, and what is known of sizes where it is."""

    graph: Graph
    env: ShapeEnv


@dataclass(slots=True)
class Scope:
    """A graph while its nodes are looked at, in order, and what is known so far."""

    graph: Graph
    env: ShapeEnv
    limits: Limits
    nested: Callable[[Graph, ShapeEnv, Limits], Graph]  # what becomes of the nodes of a graph within
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, NDArray[Any]] = field(init=False)
    types: dict[str, TensorType] = field(init=False)
    taken: set[str] = field(init=False)
    known: Knowledge = field(init=False)

    def __post_init__(self) -> None:
        self.constants, self.types, self.taken = dict(self.graph.constants), dict(self.graph.types), self.graph.names()
        graph = replace(self.graph, types=self.types, constants=self.constants)
        self.known = Knowledge.of(graph, self.env, self.limits)

    def add(self, node: Node) -> None:
        """Add a node without graphs of its own."""
        version = self.env.version
        self.known.infer(node)
        if self.env.version != version:
            self.known.refresh()
        self.nodes.append(node)
        if len(self.nodes) > self.limits.nodes:
            raise UnsupportedError(f"the model has more than {self.limits.nodes} nodes; {allow('nodes')}")

    def constant(self, base: str, array: NDArray[Any]) -> str:
        """A new constant, named after `base`."""
        name = unused_name(base, self.taken)
        self.constants[name] = array
        self.types[name] = self.known.types[name] = TensorType(array.dtype.name, tuple(map(SymExpr.of, array.shape)))
        return name

    def renaming(self, graph: Graph) -> dict[str, str]:
        """New names of what a graph within a node defines."""
        return {value: unused_name(value, self.taken) for value in (*graph.inputs, *_defined(graph))}

    # -- bodies --------------------------------------------------------------------------------------------------------

    def opened(self, inner: Graph, node: Node) -> Opened:
        """A graph within a node by new names, and what it reads from outside."""
        names = self.renaming(inner)
        nodes = tuple(renamed(inner, names, node.name))
        own = {*names.values()}
        read = [v for v in dict.fromkeys((*_read(nodes), *(names.get(v, v) for v in inner.outputs))) if v not in own]
        constants = {names[value]: array for value, array in inner.constants.items()}
        return Opened(inner, names, nodes, constants, read)

    def body(self, opened: Opened, env: ShapeEnv, inputs: Mapping[str, TensorType], read: Sequence[str],
             before: Iterable[Node] = (), after: Iterable[Node] = (), outputs: Sequence[str] | None = None,
             contents: Mapping[str, Contents] = MappingProxyType({})) -> Body:
        """The graph as a Body in `env`, with inputs of its own, of which some hold `contents`, and those that it reads from
        outside; nodes `before` and `after` its own; it makes `outputs`, by default its own."""
        constants, known = dict(opened.constants), self.known
        settled, types = list[Node](), dict(inputs) | {v: known.types[v] for v in read}
        for value in opened.read:
            array, held = known.constant_of(value), known.contents_of(value)
            if value in types:
                continue
            if array is not None:
                constants[value] = array
            elif held is not None:
                settled.append(sizes_node(held, known.types[value].dtype, value, f"{opened.inner.name}/{value}"))
        types |= {v: TensorType(a.dtype.name, tuple(map(SymExpr.of, a.shape))) for v, a in constants.items()}
        results = [opened.names.get(v, v) for v in opened.inner.outputs] if outputs is None else outputs
        graph = Graph(opened.inner.name, (*inputs, *read), tuple(results), (*settled, *before, *opened.nodes, *after), types,
                      constants, contents, self.graph.opset,
                      fractions={v: known.fractions[v] for v in read if v in known.fractions})
        graph = self.nested(graph, env, self.limits)
        return Body(infer_shapes(graph, env, self.limits), env)

    def captured(self, opened: Opened) -> list[str]:
        """What a graph reads from outside that is neither constant nor made of sizes."""
        return [v for v in opened.read if self.known.constant_of(v) is None and self.known.contents_of(v) is None]

    def outer(self, size: SymExpr, env: ShapeEnv, kept: Collection[str] = ()) -> SymExpr | None:
        """A size of a body in terms of what is known outside, and of Dims that are `kept`; None where that cannot be."""
        size, computed = env.canon(size), env.definitions()
        while loose := [name for name in size.dims() if name not in self.env.ranges and name not in kept]:
            if not computed.keys() >= {*loose}:
                return None
            size = size.substitute({name: computed[name] for name in loose})
        return self.env.canon(size)


@dataclass(frozen=True, slots=True)
class Opened:
    """A graph within a node by the `names` that its values have outside, and what it `read`s of other values."""

    inner: Graph
    names: Mapping[str, str]
    nodes: tuple[Node, ...]
    constants: dict[str, NDArray[Any]]
    read: Sequence[str]


def fitting(found: TensorType, wanted: TensorType, what: str) -> None:
    """Raise ModelError where a value is of another element type or rank than is wanted."""
    if found.dtype != wanted.dtype or found.rank != wanted.rank:
        raise ModelError(f"{what} is {found}, expected {wanted.dtype} of rank {wanted.rank}")


# -- names -----------------------------------------------------------------------------------------------------

def _defined(graph: Graph) -> Iterator[str]:
    yield from graph.constants
    for node in graph.nodes:
        yield from filter(None, node.outputs)


def _read(nodes: Iterable[Node]) -> Iterator[str]:
    """What nodes read, also by graphs in them."""
    for node in nodes:
        yield from filter(None, node.inputs)
        for inner in node.attrs.values():
            if isinstance(inner, Graph):
                own = {*inner.inputs, *_defined(inner)}
                yield from (v for v in (*_read(inner.nodes), *inner.outputs) if v not in own)


def renamed(graph: Graph, names: Mapping[str, str], within: str) -> Iterator[Node]:
    """The nodes of a graph with other names of values, also where graphs in them read these."""
    for node in graph.nodes:
        inputs, outputs = (tuple(names.get(v, v) for v in values) for values in (node.inputs, node.outputs))
        attrs = {k: _reading(v, names) if isinstance(v, Graph) else v for k, v in node.attrs.items()}
        yield replace(node, inputs=inputs, outputs=outputs, attrs=attrs, name=f"{within}/{node.name}")


def _reading(graph: Graph, names: Mapping[str, str]) -> Graph:
    """A graph within a node with other names of what it reads from outside."""
    own = {*graph.inputs, *_defined(graph)}
    outside = {old: new for old, new in names.items() if old not in own}
    return replace(graph, nodes=tuple(_inside(node, outside) for node in graph.nodes),
                   outputs=tuple(outside.get(v, v) for v in graph.outputs))


def _inside(node: Node, names: Mapping[str, str]) -> Node:
    attrs = {k: _reading(v, names) if isinstance(v, Graph) else v for k, v in node.attrs.items()}
    return replace(node, inputs=tuple(names.get(v, v) for v in node.inputs), attrs=attrs)

"""Channels last: convolutions of many channels, and all between them, on images whose channels are consecutive in memory.

There a convolution is a product of pixels and weights: vectors go along output channels, of which weights lie ready in panels,
and what it reads of an image is neither copied window by window nor cut off where a small image ends in the middle of a vector.
What reads an image at its own pixels takes any order. Where an area of such values ends it is copied into the other order:
areas are chosen that compute enough for that. An image that the model itself turns there, for what works on the channels of a
pixel, is the same memory on both sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, field, replace

from tsc.graph.dataflow import dynamic_inputs, element_of
from tsc.graph.rewriting.rewrite import drop_dead
from tsc.graph.rewriting.same_memory import sources
from tsc.graph.views import is_view
from tsc.ir import Graph, Node, TensorType, unused_name
from tsc.ops import definition
from tsc.ops.base import PatternKind
from tsc.ops.contraction import of_each_channel, sums_channels
from tsc.ops.control import runs_graphs
from tsc.ops.define import is_custom
from tsc.ops.movement import Order, alias_node, reorder_node
from tsc.sym import ONE, Range, ShapeEnv, SymExpr, product
from tsc.target import DeviceSpec
from tsc.te.expr import loads, variables

#: An area has at least so many multiplications for each element that is copied at its ends. Each takes some percent less: for
#: lone convolutions that paid with 144 and more of them, and with 128 and fewer it did not (Zen 5, with AVX-512 and with AVX2).
WORTH = 200
#: So many multiplications are worth as much as an element of a convolution by channels, where vectors would else lie along rows
#: of an image and end with each.
EACH = 100
#: The size of dims at which areas are weighed.
NOMINAL = 224


def channels_last(graph: Graph, env: ShapeEnv, spec: DeviceSpec) -> Graph:
    """The graph with areas whose values have their channels last, where vectors go along what is last."""
    areas = _Areas(graph, env, graph.producers())
    if spec.gpu is not None or not any(map(areas.weights_order, graph.nodes)):
        return graph
    for node in graph.nodes:
        areas.add(node)
    areas.look_outside()
    chosen = {value for area in areas.found() if areas.gains(area) for value in area}
    return drop_dead(_turned(graph, chosen, areas)) if chosen else graph


@dataclass(slots=True)
class _Areas:
    """Values that have one order together. `inside` are the nodes that take either, what they `made`, and among them the
    `convolutions`; `read` is what others read, and whoever calls. An image that has `begun` is, with its channels last, the
    memory of another value as it is; a value that has `ended` is, as it is, that of an image with its channels last."""

    graph: Graph
    env: ShapeEnv
    producers: Mapping[str, Node]
    read: set[str] = field(default_factory=set)
    begun: dict[str, str] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)
    made: set[str] = field(default_factory=set)
    parents: dict[str, str] = field(default_factory=dict)
    inside: set[int] = field(default_factory=set)
    convolutions: list[Node] = field(default_factory=list)

    def add(self, node: Node) -> None:
        """Tie together what a node reads and makes, if it takes any order."""
        convolves = bool(self.weights_order(node))
        values = [v for v in (*(node.inputs[:1] if convolves else node.inputs), *node.outputs) if self.is_image(v)]
        if not values or not (self.makes_image(node) if convolves else self.takes_any(node)):
            return
        self.inside.add(id(node))
        self.made |= {*node.outputs}
        self.convolutions += [node] if convolves else []
        for value in values:
            self.parents[self.root(value)] = self.root(values[0])

    def look_outside(self) -> None:
        """Learn what is read outside of areas, and what is the memory of an image there."""
        outside = [node for node in self.graph.nodes if id(node) not in self.inside]
        for value in (node.outputs[0] for node in outside if len(node.outputs) == 1):
            for element in sources(self.graph, self.env, self.producers, value, self.made):
                source = element.load.buffer.name
                if self.is_image(value) and element.same((rows(element.load.index), last(element.at))):
                    self.begun.setdefault(value, source)
                if self.is_image(source) and element.same((last(element.load.index), rows(element.at))):
                    self.ended.setdefault(value, source)
        entering = {i for node in self.graph.nodes if id(node) in self.inside for i in node.inputs} - self.made
        self.read = {*self.graph.outputs, *(self.begun.get(i, i) for i in entering)}
        for node in reversed(outside):
            if self.read & {*node.outputs} and node.outputs[0] not in self.ended:
                self.read |= {*dynamic_inputs(self.graph, node)}

    def makes_image(self, node: Node) -> bool:
        """Whether a convolution is of numbers of which vectors along channels are made."""
        return self.is_image(node.outputs[0]) and self.graph.types[node.inputs[0]].dtype == "float32"

    def takes_any(self, node: Node) -> bool:
        """Whether it makes no difference for what a node computes in which order its images are."""
        kinds = (PatternKind.ELEMENTWISE, PatternKind.INJECTIVE, PatternKind.REDUCE)
        alike = definition(node).kind in kinds and not (is_view(node) or runs_graphs(node) or is_custom(node))
        return alike and all(self.keeps_dims(node, output) for output in range(len(node.outputs)))

    def weights_order(self, node: Node) -> tuple[int, ...]:
        """The dims of the constant weights of a convolution that images with channels last want, slowest first: those along
        which it sums up last, or else along which images are as long; () where there is no such convolution."""
        weights = self.graph.constants.get(node.inputs[1]) if len(node.inputs) > 1 else None
        if weights is None:
            return ()
        window = range(2, weights.ndim)
        return (0, *window, 1) if sums_channels(node) else (1, *window, 0) if of_each_channel(node, weights.shape) else ()

    def keeps_dims(self, node: Node, output: int) -> bool:
        """Whether each dim of the images that an output is made of follows the same dim of the output alone."""
        rank = len(self.graph.types[node.outputs[output]].shape)
        own = {f"d{dim}" for dim in range(rank)}
        found = [load.index for load in loads(element_of(self.graph, self.env, node, output).body)
                 if self.is_image(load.buffer.name)]
        return all(len(place) == rank and all(variables(at) & own <= {f"d{dim}"} for dim, at in enumerate(place))
                   for place in found)

    def is_image(self, value: str) -> bool:
        """Whether it makes a difference for a value whether its channels are last."""
        known = self.graph.types.get(value)
        if known is None or len(known.shape) < 4 or value in self.graph.constants:
            return False
        moved = [d for d in (0, *range(2, len(known.shape)), 1) if self.env.canon(known.shape[d]) != ONE]
        return moved != sorted(moved)

    def root(self, value: str) -> str:
        """What stands for the area of a value."""
        while (parent := self.parents.setdefault(value, value)) != value:
            self.parents[value] = self.parents[parent]
            value = parent
        return value

    def found(self) -> list[set[str]]:
        """The areas."""
        found: dict[str, set[str]] = {}
        for value in list(self.parents):
            found.setdefault(self.root(value), set()).add(value)
        return list(found.values())

    def ends(self, area: Iterable[str]) -> tuple[set[str], set[str]]:
        """The values of an area that come from elsewhere, and those that are read elsewhere."""
        values = set(area)
        return values - self.made - self.begun.keys(), values & self.made & self.read

    def gains(self, area: set[str]) -> bool:
        """Whether so much is computed in an area that copies at its ends are worth it."""
        nodes = [n for n in self.convolutions if n.outputs[0] in area]
        products = sum(self._elements(n.outputs[0]) * (self.graph.constants[n.inputs[1]][:1].size if sums_channels(n) else EACH)
                       for n in nodes)
        return bool(nodes) and products >= WORTH * sum(self._elements(v) for ends in self.ends(area) for v in ends)

    def _elements(self, value: str) -> int:
        size = product(map(self.env.canon, self.graph.types[value].shape))
        return size.evaluate({name: _nominal(self.env.ranges.get(name, Range())) for name in size.dims()})


def rows(dims: Sized) -> Order:
    """The dims of a value, slowest first, that memory has row by row."""
    return tuple(range(len(dims)))


def last(dims: Sized) -> Order:
    """Those of an image whose channels are last."""
    return (0, *range(2, len(dims)), 1)


def _nominal(known: Range) -> int:
    size = max(known.lo, NOMINAL if known.hi is None else min(known.hi, NOMINAL))
    return -(-size // known.divisor) * known.divisor


def _turned(graph: Graph, chosen: set[str], areas: _Areas) -> Graph:
    """The graph whose `chosen` values have their channels last: under new names, with copies of those that others have too."""
    taken = graph.names()
    weights = {n.inputs[1]: areas.weights_order(n) for n in areas.convolutions if n.outputs[0] in chosen}
    names = {value: unused_name(f"{value}.last", taken) for value in sorted(chosen | weights.keys())}
    given, wanted = areas.ends(chosen)
    begun = {value: source for value, source in areas.begun.items() if value in chosen}
    ended = {value: image for value, image in areas.ended.items() if image in chosen}

    def shape(value: str) -> tuple[SymExpr, ...]:
        return graph.types[value].shape

    def alias(source: str, output: str, orders: tuple[Order, Order], node: Node) -> Node:
        return alias_node(source, output, shape(node.outputs[0]), orders, node.name)

    def nodes() -> Iterator[Node]:
        for value in (v for v in graph.inputs if v in given):
            yield reorder_node(value, names[value], value)
        for node in graph.nodes:
            image = ended.get(node.outputs[0])
            if image is not None:
                yield alias(names[image], node.outputs[0], (last(shape(image)), rows(shape(node.outputs[0]))), node)
            elif id(node) in areas.inside:
                yield replace(node, inputs=tuple(names.get(i, i) for i in node.inputs),
                              outputs=tuple(names.get(o, o) for o in node.outputs))
            else:
                yield node
            for value in (o for o in node.outputs if o in chosen):
                if value in begun:
                    yield alias(begun[value], names[value], (rows(shape(begun[value])), last(shape(value))), node)
                elif value in given:
                    yield reorder_node(value, names[value], node.name)
                elif value in wanted:
                    yield reorder_node(names[value], value, node.name)

    types: dict[str, TensorType] = {**graph.types, **{new: graph.types[old] for old, new in names.items()}}
    constants = {**graph.constants, **{names[weight]: graph.constants[weight] for weight in weights}}
    found = weights | {value: last(shape(value)) for value in chosen}
    return replace(graph, nodes=tuple(nodes()), types=types, constants=constants,
                   orders={names[value]: order for value, order in found.items()})

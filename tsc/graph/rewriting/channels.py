"""Channels last: convolutions of many channels, and all between them, on images whose channels are consecutive in memory.

There a convolution is a product of pixels and weights: vectors go along output channels, of which weights lie ready in panels,
and what it reads of an image is neither copied window by window nor cut off where a small image ends in the middle of a vector.
What reads an image at its own pixels takes any order. Where a region of such values ends it is copied into the other order:
regions are chosen that compute enough for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from tsc.graph.dataflow import element_of
from tsc.graph.views import is_view
from tsc.ir import Graph, Node, TensorType, unused_name
from tsc.ops import definition
from tsc.ops.base import PatternKind
from tsc.ops.contraction import of_each_channel, sums_channels
from tsc.ops.control import runs_graphs
from tsc.ops.define import is_custom
from tsc.ops.movement import reorder_node
from tsc.sym import ONE, Range, ShapeEnv, product
from tsc.te.expr import loads, variables

#: A region has at least so many multiplications for each element that is copied at its ends. Each takes some percent less, by
#: which a copy is paid for from 120 to 170 on (`dev.py bench layers --only conv` with another WORTH).
WORTH = 200
#: So many multiplications are worth as much as an element of a convolution by channels, where vectors would else lie along rows
#: of an image and end with each.
EACH = 100
#: The size of dims at which regions are weighed.
NOMINAL = 224


def channels_last(graph: Graph, env: ShapeEnv) -> Graph:
    """The graph with regions whose values have their channels last."""
    regions = _Regions(graph, env)
    for node in graph.nodes:
        regions.add(node)
    chosen = {value for region in regions.found() if regions.gains(region) for value in region}
    return _turned(graph, chosen, regions) if chosen else graph


@dataclass(slots=True)
class _Regions:
    """Values that have one order together; `inside` are the nodes that take either."""

    graph: Graph
    env: ShapeEnv
    parents: dict[str, str] = field(default_factory=dict)
    inside: set[int] = field(default_factory=set)

    def add(self, node: Node) -> None:
        """Tie together what a node reads and makes, if it takes any order."""
        convolves = bool(self.weights_order(node))
        values = [v for v in (*(node.inputs[:1] if convolves else node.inputs), *node.outputs) if self.is_image(v)]
        if convolves and not (self.is_image(node.outputs[0]) and self.graph.types[node.inputs[0]].dtype == "float32"):
            return
        kinds = (PatternKind.ELEMENTWISE, PatternKind.INJECTIVE, PatternKind.REDUCE)
        if not convolves and (not values or definition(node).kind not in kinds or is_view(node) or runs_graphs(node)
                              or is_custom(node) or not all(self.keeps_dims(node, o) for o in range(len(node.outputs)))):
            return
        self.inside.add(id(node))
        for value in values:
            self.parents[self.root(value)] = self.root(values[0])

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
        """What stands for the region of a value."""
        while (parent := self.parents.setdefault(value, value)) != value:
            self.parents[value] = self.parents[parent]
            value = parent
        return value

    def found(self) -> list[set[str]]:
        """The regions."""
        found: dict[str, set[str]] = {}
        for value in list(self.parents):
            found.setdefault(self.root(value), set()).add(value)
        return list(found.values())

    def ends(self, region: Iterable[str]) -> tuple[set[str], set[str]]:
        """The values of a region that come from elsewhere, and those that are read elsewhere."""
        values = set(region)
        made = {o for node in self.graph.nodes if id(node) in self.inside for o in node.outputs}
        read = {i for node in self.graph.nodes if id(node) not in self.inside for i in node.inputs}
        return values - made, values & (read | set(self.graph.outputs))

    def gains(self, region: set[str]) -> bool:
        """Whether so much is computed in a region that copies at its ends are worth it."""
        nodes = [n for n in self.graph.nodes if id(n) in self.inside and self.weights_order(n) and n.outputs[0] in region]
        products = sum(self._elements(n.outputs[0]) * (self.graph.constants[n.inputs[1]][:1].size if sums_channels(n) else EACH)
                       for n in nodes)
        return products >= WORTH * sum(self._elements(v) for ends in self.ends(region) for v in ends) and bool(nodes)

    def _elements(self, value: str) -> int:
        size = product(map(self.env.canon, self.graph.types[value].shape))
        return size.evaluate({name: _nominal(self.env.ranges.get(name, Range())) for name in size.dims()})


def _nominal(known: Range) -> int:
    size = max(known.lo, NOMINAL if known.hi is None else min(known.hi, NOMINAL))
    return -(-size // known.divisor) * known.divisor


def _turned(graph: Graph, chosen: set[str], regions: _Regions) -> Graph:
    """The graph whose `chosen` values have their channels last: under new names, with copies of those that others have too."""
    taken = graph.names()
    weights = {n.inputs[1]: order for n in graph.nodes if id(n) in regions.inside and n.outputs[0] in chosen
               and (order := regions.weights_order(n))}
    names = {value: unused_name(f"{value}.last", taken) for value in sorted(chosen | weights.keys())}
    given, wanted = regions.ends(chosen)

    def nodes() -> Iterator[Node]:
        for value in (v for v in graph.inputs if v in given):
            yield reorder_node(value, names[value], value)
        for node in graph.nodes:
            inside = id(node) in regions.inside
            yield replace(node, inputs=tuple(names.get(i, i) for i in node.inputs),
                          outputs=tuple(names.get(o, o) for o in node.outputs)) if inside else node
            for value in (o for o in node.outputs if o in chosen):
                if value in given:
                    yield reorder_node(value, names[value], node.name)
                elif value in wanted:
                    yield reorder_node(names[value], value, node.name)

    types: dict[str, TensorType] = {**graph.types, **{new: graph.types[old] for old, new in names.items()}}
    constants = {**graph.constants, **{names[weight]: graph.constants[weight] for weight in weights}}
    orders = weights | {value: (0, *range(2, len(graph.types[value].shape)), 1) for value in chosen}
    return replace(graph, nodes=tuple(nodes()), types=types, constants=constants,
                   orders={names[value]: order for value, order in orders.items()})

"""Values that are one memory in different orders of their dims: what a node moves that need not be moved."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from tsc.graph.dataflow import axes_of, element_at, value_type
from tsc.ir import Graph, Node
from tsc.ops import definition
from tsc.ops.base import PatternKind
from tsc.ops.movement import Order, alias_index
from tsc.sym import ShapeEnv, SymExpr, product
from tsc.te.expr import Expr, Load, loads
from tsc.te.linear import Ranges, simplify


@dataclass(frozen=True, slots=True)
class Moved:
    """The element `at` an index of a value of some `shape` is that which `load` reads, of a value of the shape `source`."""

    at: tuple[Expr, ...]
    shape: tuple[SymExpr, ...]
    load: Load
    source: tuple[SymExpr, ...]
    ranges: Ranges

    def same(self, orders: tuple[Order, Order]) -> bool:
        """Whether both values are one memory where it has the dims of the source, and those of the value, in such orders."""
        canon = self.ranges.env.canon
        if canon(product(self.shape)) != canon(product(self.source)):
            return False
        return all(simplify(a, self.ranges) == simplify(b, self.ranges)
                   for a, b in zip(alias_index(self.at, self.shape, self.source, orders), self.load.index, strict=True))


def sources(graph: Graph, env: ShapeEnv, producers: Mapping[str, Node], value: str, ends: Collection[str]) -> Iterator[Moved]:
    """What an element of a value is an element of, value by value, up to one of the `ends`, as long as nodes only move it to
    where no data decide."""
    at, extents = axes_of(graph, env, value)
    index, shape = at, tuple(extents.values())
    while (node := producers.get(value)) is not None and definition(node).kind is PatternKind.INJECTIVE and value not in ends:
        load = element_at(graph, env, node, value, index, extents)
        if not isinstance(load, Load) or not load.index or sum(1 for _ in loads(load)) > 1:
            return
        value, index = load.buffer.name, load.index
        yield Moved(at, shape, load, value_type(graph, env, value).shape, Ranges(extents, env))

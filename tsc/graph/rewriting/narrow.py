"""Precision: the factors of products are stored with fewer bits, and added up as before.

A value that is multiplied gets a rounded copy, where it is computed: what only moves data on the way to a product moves the
copy. Constants are rounded now, those beyond the range to the greatest number that there is. All else stays as it is: sums,
softmax and norms, and what is added to a result; so do factors whose rows in memory are no whole accesses, which would be
copied number by number, and those of convolutions, which are. A factor that is made of another product's result, element by
element, is in no memory where one kernel computes both. Of bfloat16, for which NumPy and C have no type, kernels see the bits;
it is for products with constant weights, whose steps are stored side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc.graph.dataflow import Item, items_of
from tsc.graph.rewriting.apart import sums_columns
from tsc.graph.views import is_view
from tsc.ir import Graph, Node, TensorType, unused_name
from tsc.ops import definition
from tsc.ops.base import PatternKind
from tsc.ops.bits import is_from_bfloat, to_bfloat_node
from tsc.ops.contraction import with_factors
from tsc.ops.elementwise import cast_node
from tsc.sym import ShapeEnv
from tsc.te.intrinsics import MEANING

WIDE, BFLOAT = "float32", "bfloat16"
#: Rows of halves are made of accesses of so many.
TOGETHER = 8


def narrow_factors(graph: Graph, env: ShapeEnv, dtype: str) -> Graph:
    """A graph of primitives whose products of `float32` have factors of `dtype`; the graph itself where that is no other."""
    if dtype == WIDE:
        return graph
    rounding = _Rounding(graph, env, dtype)
    nodes: list[Node] = []
    for node in graph.nodes:
        if WIDE in definition(node).widens and (
                _has_weights(graph, env, node) if dtype == BFLOAT else rounding.gains(node)):
            factors = tuple(rounding.rounded(x) for x in node.inputs[:2])
            nodes += rounding.taken()
            node = with_factors(node, factors, WIDE)
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes), types=rounding.types, constants=rounding.constants)


def _has_weights(graph: Graph, env: ShapeEnv, node: Node) -> bool:
    """Whether a product of floats is one with constants that are stored for steps in twos, of which none is left over."""
    weights = graph.constants.get(node.inputs[1])
    return (weights is not None and weights.ndim == 2 and len(weights) % 2 == 0 and weights.size > 0
            and {graph.types[x].dtype for x in node.inputs[:2]} == {WIDE} and sums_columns(graph, env, node, 1))


@dataclass(frozen=True, slots=True)
class _Form:
    """How numbers of few bits are stored, the greatest of them, and what rounds to them: arrays, and in a graph a value, given
    its name, the result's and the node's; and which nodes made floats of such numbers."""

    stored: str
    most: float
    rounded: Callable[[NDArray[np.float32]], NDArray[Any]]
    node: Callable[[str, str, str], Node]
    is_widened: Callable[[Node], bool]


_FORMS: Mapping[str, _Form] = {
    "float16": _Form("float16", 65504.0, lambda x: x.astype(np.float16),
                     lambda source, output, name: cast_node(source, output, "float16", name), lambda node: True),
    BFLOAT: _Form("uint16", float.fromhex("0x1.fep127"), MEANING["to_bfloat"], to_bfloat_node, is_from_bfloat)}


class _Rounding:
    """Rounded copies of a graph's values, each made once, and the nodes that make them."""

    def __init__(self, graph: Graph, env: ShapeEnv, dtype: str) -> None:
        self.types, self.constants = dict(graph.types), dict(graph.constants)
        self._producers, self._names, self._env, self._dtype = graph.producers(), graph.names(), env, dtype
        self._form = _FORMS[dtype]
        self._items: dict[str, Item] = items_of(graph, env)
        self._made: dict[str, str] = {}
        self._nodes: list[Node] = []

    def gains(self, node: Node) -> bool:
        """Whether a product's factors are such as are read in whole accesses, or in no memory."""
        worth = [self.is_worth(x) for x in node.inputs[:2]]
        return any(worth) and all(yes or self.is_handed_on(x) for yes, x in zip(worth, node.inputs))

    def is_worth(self, value: str) -> bool:
        """Whether a value's copy would have whole accesses in each of its rows, and each part of a value that is split."""
        while (node := self._producers.get(value)) is not None and self._moves(node):
            if len(node.outputs) > 1 and not all(map(self._has_whole_rows, node.outputs)):
                return False
            value = node.inputs[0]
        return self._has_whole_rows(value)

    def _has_whole_rows(self, value: str) -> bool:
        found = self.types[value]
        return found.dtype == WIDE and bool(found.shape) and self._env.prove_divides(TOGETHER, found.shape[-1])

    def is_handed_on(self, value: str) -> bool:
        """Whether a value is made, element by element, of the result of a product."""
        shape, pending, seen = self.types[value].shape, [value], set[str]()
        while pending:
            seen.add(one := pending.pop())
            node, item = self._producers.get(one), self._items.get(one)
            if node is not None and WIDE in definition(node).widens and self.types[value].dtype == WIDE:
                return True
            if node is not None and item is not None and item.kind is PatternKind.ELEMENTWISE:
                pending += [x for x in node.inputs if x in self.types and self.types[x].shape == shape and x not in seen]
        return False

    def taken(self) -> list[Node]:
        """The nodes made since it was last asked, in order."""
        made, self._nodes = self._nodes, []
        return made

    def rounded(self, value: str) -> str:
        """The name of a value's copy."""
        if value not in self._made:
            self._make(value)
        return self._made[value]

    def _make(self, value: str) -> None:
        node = self._producers.get(value)
        if value in self.constants:
            most = np.float32(self._form.most)
            self.constants[self._copy(value)] = self._form.rounded(np.clip(self.constants[value], -most, most))
        elif node is not None and [self.types[v].dtype for v in node.inputs if v] == [self._form.stored] and (
                self._form.is_widened(node)):
            self._made[value] = node.inputs[0]  # it was one: nothing but conversions reads them (rewriting/halves.py)
        elif node is not None and self._moves(node):
            inputs = (self.rounded(node.inputs[0]), *node.inputs[1:])
            copies = tuple(map(self._copy, node.outputs))
            self._nodes.append(replace(node, inputs=inputs, outputs=copies, name=f"{node.name}/{self._dtype}"))
        else:
            name = value if node is None else node.name
            self._nodes.append(self._form.node(value, self._copy(value), f"{name}/{self._dtype}"))

    def _copy(self, value: str) -> str:
        """A name for a value's copy, which has that type from now on."""
        copy = self._made[value] = unused_name(f"{value}/{self._dtype}", self._names)
        self.types[copy] = TensorType(self._form.stored, self.types[value].shape)
        return copy

    def _moves(self, node: Node) -> bool:
        """Whether a node only moves what its first input holds, as far as anybody reads it."""
        items = [self._items[value] for value in node.outputs if value in self._items]
        return is_view(node) or (bool(items) and all(item.is_map and item.reads == node.inputs[:1] for item in items))

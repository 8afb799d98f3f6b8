"""Whole numbers of few bits: products in int32 whose factors are seen to fit into 16 bits read them so.

A factor that was widened is read as it was before; what is computed of bytes, as a number less its zero point, is stored in 16
bits; constants take as many as they need, but 16 where a sum runs along their rows: those of two steps are read together
(`loop_ir/cpu/pairs.py`). All is exact.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tsc.graph.dataflow import element_of
from tsc.graph.views import is_view
from tsc.ir import Graph, Node, TensorType, unused_name
from tsc.ops import definition
from tsc.ops.contraction import by_channels, with_factors
from tsc.ops.elementwise import cast_node
from tsc.sym import ShapeEnv, SymExpr
from tsc.te.expr import Cast, Load, loads, variables
from tsc.te.passes.narrow import INT16, Ends, ends_of, ends_of_dtype, within

SUMS = "int32"
#: How many nodes a factor is followed back through.
_DEPTH = 16
_DTYPES = ("int8", "uint8", "int16")


def narrow_integers(graph: Graph, env: ShapeEnv) -> Graph:
    """A graph of primitives whose products of int32 have narrower factors, where both are seen to fit."""
    narrowing = _Narrowing(graph, env)
    nodes: list[Node] = []
    for node in graph.nodes:
        factors = narrowing.factors(node)
        if factors is not None:
            nodes += narrowing.taken()
            node = narrowing.by_channels(with_factors(node, factors, SUMS))
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes), types=narrowing.types, constants=narrowing.constants)


class _Narrowing:
    """Narrower copies of a graph's values, each made once, and the nodes that make them."""

    def __init__(self, graph: Graph, env: ShapeEnv) -> None:
        self.types, self.constants = dict(graph.types), dict(graph.constants)
        self._graph, self._env, self._producers, self._names = graph, env, graph.producers(), graph.names()
        self._made: dict[tuple[str, str], str] = {}
        self._nodes: list[Node] = []

    def factors(self, node: Node) -> tuple[str, str] | None:
        """The narrower factors of a product; None where it is none in int32, or one of them is not seen to fit."""
        if SUMS not in definition(node).widens or any(self.types[x].dtype != SUMS for x in node.inputs[:2]):
            return None
        if not all(within(self._ends(x, _DEPTH), INT16) for x in node.inputs[:2]):
            return None
        left, right = (self._narrow(x, node) for x in node.inputs[:2])
        return left, right

    def taken(self) -> list[Node]:
        """The nodes made since it was last asked, in order."""
        made, self._nodes = self._nodes, []
        return made

    def by_channels(self, node: Node) -> Node:
        """A convolution of a constant kernel, summed up in an order in which steps come in pairs."""
        kernel = self.constants.get(node.inputs[1])
        found = None if kernel is None else by_channels(node, kernel)
        if found is None:
            return node
        node, array = found
        source = node.inputs[1]
        if (source, "by channels") not in self._made:
            copy = self._made[source, "by channels"] = unused_name(f"{source}/by_channels", self._names)
            self.constants[copy] = array
            self.types[copy] = TensorType(array.dtype.name, tuple(map(SymExpr.of, array.shape)))
        return replace(node, inputs=(node.inputs[0], self._made[source, "by channels"], *node.inputs[2:]))

    def _ends(self, value: str, depth: int) -> Ends | None:
        """Between which numbers the elements of a value lie."""
        own, node = self.types.get(value), self._producers.get(value)
        if value in self.constants:
            return _ends_in(self.constants[value])
        if own is not None and (known := ends_of_dtype(own.dtype)) is not None:
            return known
        if node is None or not depth:
            return None
        if is_view(node):
            return self._ends(node.inputs[0], depth - 1)
        if definition(node).te is None:
            return None
        element = element_of(self._graph, self._env, node, node.outputs.index(value))
        return None if element.reduction else ends_of(element.body, lambda load: self._ends(load.buffer.name, depth - 1))

    def _narrow(self, value: str, product: Node) -> str:
        """The name of a value's copy, as a product reads it."""
        node = self._producers.get(value)
        if value in self.constants:
            array = self.constants[value]
            dtype = next(d for d in _DTYPES if within(_ends_in(array), ends_of_dtype(d)))
            dtype = "int16" if self._runs_along(value, product) else dtype
            if (value, dtype) not in self._made:
                self.constants[self._copy(value, dtype)] = array.astype(dtype)
            return self._made[value, dtype]
        if node is not None and not is_view(node) and definition(node).te is not None:
            body = element_of(self._graph, self._env, node, node.outputs.index(value)).body
            if isinstance(body, Cast) and isinstance(body.value, Load) and body.value.dtype in _DTYPES and (
                    self.types[body.value.buffer.name].shape == self.types[value].shape):
                return body.value.buffer.name
        if (value, "int16") not in self._made:
            name = value if node is None else node.name
            self._nodes.append(cast_node(value, self._copy(value, "int16"), "int16", f"{name}/int16"))
        return self._made[value, "int16"]

    def _runs_along(self, value: str, product: Node) -> bool:
        """Whether what a product sums up lies next to each other in a value."""
        element = element_of(self._graph, self._env, product, 0)
        summed = {axis.name for axis in element.reduction.axes} if element.reduction is not None else set()
        own = [load for load in loads(element.body) if load.buffer.name == value]
        return any(load.index and bool(summed & variables(load.index[-1])) for load in own)

    def _copy(self, value: str, dtype: str) -> str:
        """A name for a value's copy, which has that type from now on."""
        copy = self._made[value, dtype] = unused_name(f"{value}/{dtype}", self._names)
        self.types[copy] = TensorType(dtype, self.types[value].shape)
        return copy


def _ends_in(array: NDArray[np.int32]) -> Ends:
    return (int(array.min()), int(array.max())) if array.size else (0, 0)

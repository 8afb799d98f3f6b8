"""Scales commute with contractions: `MatMul(q * s, k)` becomes `MatMul(q, k) * s`.

A contraction is linear in each operand. Behind it a scale is one operation in its epilogue; before it, it would be a kernel of
its own wherever data is moved between the two (attention scales queries and keys after splitting heads). Of whole numbers, as
quantised weights are, a scale for each row or column of the result goes behind it, too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from tsc.graph.dataflow import element_of, item_of, scalar_constant
from tsc.graph.rewriting.integers import is_whole
from tsc.graph.views import is_view
from tsc.ir import Graph, Node, TensorType, unused_name
from tsc.ops import definition
from tsc.ops.base import PatternKind
from tsc.sym import ShapeEnv, SymExpr
from tsc.te.expr import Var, loads, variables

#: Types wide enough that scaling late cannot overflow where scaling early did not, short of the type's own limits.
_WIDE = ("float32", "float64")


def scale_after_contraction(graph: Graph, env: ShapeEnv) -> Graph:
    """Move multiplications and divisions by scalar constants behind the contractions whose operand they alone make, or, in
    products of whole numbers, that others read, too.

    Views and index maps may stand between the two. Values keep their names; what is rebuilt before gets new ones.
    """
    moving = _Moving(graph, env, graph.producers(), {v: len(c) for v, c in graph.consumers().items()}, dict(graph.types),
                     graph.names(), dict(graph.constants))
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes += moving.rebuilt(node) if definition(node).kind is PatternKind.CONTRACTION else [node]
    if len(nodes) == len(graph.nodes):
        return graph
    needed = set(graph.outputs)
    kept: list[Node] = []
    for node in reversed(nodes):
        if needed & set(node.outputs):
            needed.update(node.inputs)
            kept.append(node)
    return replace(graph, nodes=tuple(reversed(kept)), types=moving.types, constants=moving.constants)


@dataclass(slots=True)
class _Moving:
    graph: Graph
    env: ShapeEnv
    producers: dict[str, Node]
    uses: dict[str, int]
    types: dict[str, TensorType]
    taken: set[str]
    constants: dict[str, NDArray[Any]]

    def rebuilt(self, contraction: Node) -> list[Node]:
        """The contraction over unscaled operands, with the nodes that make these, and the scales behind it."""
        before: list[Node] = []
        scales: list[tuple[Node, str]] = []
        operands = list(contraction.inputs)
        whole = all(map(self.of_whole, operands[:2]))  # each such product gains, whoever else reads what was scaled
        for k, operand in enumerate(operands):
            chain = self.chain(operand, whole)
            if not chain:
                continue
            scale = chain[-1] if self.fits(chain[-1], contraction) else self.placed(chain, contraction)
            if scale is not None:
                scales.append((scale, self.data(chain[-1])))
                steps, operands[k] = self.moved(chain, operand)
                before += steps
        if not scales:
            return [contraction]
        result = contraction.outputs[0]
        names = [unused_name(f"{result}.unscaled{k}", self.taken) for k in range(len(scales))] + [result]
        self.types |= {name: self.types[result] for name in names}
        made = [*before, replace(contraction, inputs=tuple(operands), outputs=(names[0],))]
        for (scale, data), source, target in zip(scales, names, names[1:]):
            made.append(replace(scale, inputs=tuple(source if i == data else i for i in scale.inputs), outputs=(target,)))
        return made

    def of_whole(self, value: str) -> bool:
        """Whether a value is whole numbers that are scaled and moved."""
        chain = self.chain(value, shared=True)
        return bool(chain) and is_whole(self.graph, self.env, self.producers, self.data(chain[-1]))

    def chain(self, value: str, shared: bool) -> list[Node]:
        """From `value` back to a scale: index maps and views, then the scale; empty where there is none, or where others read
        what stands there, unless it may be `shared`."""
        result: list[Node] = []
        while value in self.producers and (shared or (self.uses[value] == 1 and value not in self.graph.outputs)):
            node = self.producers[value]
            result.append(node)
            if self.data(node):
                return result
            if not is_view(node) and not item_of(self.graph, self.env, node, node.outputs.index(value), 0).is_map:
                return []
            value = node.inputs[0]
        return []

    def data(self, node: Node) -> str:
        """What a node scales by scalar constants, or whole numbers by any; "" when it does no such thing."""
        for k in definition(node).linear:
            held = [i for j, i in enumerate(node.inputs) if j != k]
            data = node.inputs[k]
            if self.types[data].dtype not in _WIDE or not all(i in self.graph.constants for i in held):
                continue
            if all(scalar_constant(self.graph, i) for i in held) or is_whole(self.graph, self.env, self.producers, data):
                return data
        return ""

    def placed(self, chain: list[Node], contraction: Node) -> Node | None:
        """A scale of numbers that belong to places along one axis of the result, as it stands behind the contraction; None
        where it is another."""
        scale, result, operand = chain[-1], self.types[contraction.outputs[0]], chain[0].outputs[0]
        data = self.types[self.data(scale)]
        if len(chain) > 1 or self.types[operand] != data or result.dtype != data.dtype:
            return None
        element = element_of(self.graph, self.env, contraction, 0)
        reads = {load.index for load in loads(element.body) if load.buffer.name == operand}
        at = next(iter(reads)) if len(reads) == 1 else ()
        names: dict[str, str] = {}
        for name in (i for i in scale.inputs if i in self.graph.constants):
            array = self.graph.constants[name]
            dims = [d for d, extent in enumerate(array.shape, data.rank - array.ndim) if extent != 1]
            place = at[dims[0]] if len(dims) == 1 and len(at) == data.rank else None
            if not isinstance(place, Var) or any(place.name in variables(i) for i in at if i is not place):
                return None
            axis = list(element.extents).index(place.name)
            if axis >= result.rank:
                return None
            names[name] = unused_name(f"{name}.placed", self.taken)
            self.constants[names[name]] = array.reshape([array.size if d == axis else 1 for d in range(result.rank)])
            self.types[names[name]] = TensorType(data.dtype, tuple(map(SymExpr.of, self.constants[names[name]].shape)))
        return replace(scale, inputs=tuple(names.get(i, i) for i in scale.inputs))

    def fits(self, scale: Node, contraction: Node) -> bool:
        """Whether the scale is one number, and changes neither the operand's rank nor the contraction's dtype or rank."""
        if any(i != self.data(scale) and not scalar_constant(self.graph, i) for i in scale.inputs):
            return False
        data, result = self.types[self.data(scale)], self.types[contraction.outputs[0]]
        ranks = [self.graph.constants[i].ndim for i in scale.inputs if i in self.graph.constants]
        return (self.types[scale.outputs[0]].rank == data.rank and result.dtype == data.dtype
                and all(rank <= min(result.rank, data.rank) for rank in ranks))

    def moved(self, chain: list[Node], operand: str) -> tuple[list[Node], str]:
        """Copies of the index maps and views over what the scale scaled, and the last one's value."""
        value = self.data(chain[-1])
        steps: list[Node] = []
        wanted = [operand, *(node.inputs[0] for node in chain[:-1])]
        for node, made in zip(reversed(chain[:-1]), reversed(wanted[:-1])):
            outputs = tuple(unused_name(f"{o}.unscaled", self.taken) if o else "" for o in node.outputs)
            self.types |= {new: self.types[old] for new, old in zip(outputs, node.outputs) if old}
            steps.append(replace(node, inputs=(value, *node.inputs[1:]), outputs=outputs))
            value = outputs[node.outputs.index(made)]
        return steps, value

"""The model graph: Graph, Node, TensorType. Values are named; a Graph is replaced, never mutated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc.draw import Box, chart, page
from tsc.sym import SymExpr

#: What a file declares of an output: its element type, and its sizes, None where they are not fixed, or None without a rank.
DeclaredType = tuple[str, tuple[int | None, ...] | None]
#: Symbolic contents of a small integer (or bool) tensor: an object array of SymExpr.
Contents = NDArray[np.object_]
#: How finely sizes see real numbers: a float32 from 2^-7 on is a whole number of steps, and one of 2^17 a size at its limit.
STEPS = 1 << 30


@dataclass(frozen=True, slots=True)
class TensorType:
    """A dtype (NumPy's name: "float32", "int64", "bool", …) and a symbolic shape."""

    dtype: str
    shape: tuple[SymExpr, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Node:
    """One operator application. `name` is the ONNX node's name (made up where absent) and is what errors cite.

    An absent optional input or output is "". Attributes are plain Python values: int, float, str, tuples of them,
    NDArray for tensors, Graph for subgraphs.
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    domain: str = ""


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in topological order over named values.

    `types` holds what is known of each value (all of them after shape inference); `constants` are initializers and folded
    values; `contents` the symbolic contents of values that are shape arithmetic, `fractions` of inputs whose elements need not
    be whole, in steps of 1 / STEPS; `declared` is what the file says of outputs; `outside` what an input or output is to
    whoever calls, where kernels see its bits as another type; `counts` the values that tell Dims which only data decide, by
    Dim: they are made as outputs are, and are the last of `outputs`; `orders` are the dims, slowest first, of values that
    memory does not have row by row (what is said of their shapes and indices is said of them as they are).
    The nodes are the model's own, to which the standard's rules apply, until they are decomposed into `primitives`.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    types: Mapping[str, TensorType] = field(default_factory=dict)
    constants: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    contents: Mapping[str, Contents] = field(default_factory=dict)
    opset: int = 0
    declared: Mapping[str, DeclaredType] = field(default_factory=dict)
    outside: Mapping[str, str] = field(default_factory=dict)
    primitives: bool = False
    counts: Mapping[str, str] = field(default_factory=dict)
    fractions: Mapping[str, Contents] = field(default_factory=dict)
    orders: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def told(self) -> dict[str, Contents]:
        """What inputs hold that sizes depend on, by input."""
        return {name: self.contents[name] for name in self.inputs if name in self.contents}

    def names(self) -> set[str]:
        """Every name that stands for a value: what a new one must not be."""
        made = (o for node in self.nodes for o in node.outputs)
        return {*self.types, *self.constants, *self.contents, *self.inputs, *self.outputs, *made}

    def producers(self) -> dict[str, Node]:
        """Value name -> the Node that makes it."""
        return {out: node for node in self.nodes for out in node.outputs if out}

    def consumers(self) -> dict[str, list[Node]]:
        """Value name -> the Nodes that read it, in order, each once."""
        result: dict[str, list[Node]] = {}
        for node in self.nodes:
            for value in dict.fromkeys(i for i in node.inputs if i):
                result.setdefault(value, []).append(node)
        return result

    def _repr_html_(self) -> str:
        """What a notebook shows: inputs, weights, and the nodes with what flows between them, as inline SVG."""
        return graph_html(self)

    def used_inputs(self, node: Node) -> Iterator[str]:
        """The present inputs of `node`."""
        return (i for i in node.inputs if i)


def unused_name(base: str, taken: set[str]) -> str:
    """`base`, or with a number behind it where that is `taken`; it is taken from now on. A file may have any names."""
    name, k = base, 1
    while name in taken:
        k += 1
        name = f"{base}_{k}"
    taken.add(name)
    return name


def graph_html(graph: Graph) -> str:
    """One self-contained `div` with inline SVG, names escaped, of bounded size."""
    def typed(value: str) -> str:
        return str(graph.types.get(value, "of unknown type"))

    boxes = [Box(f"input {v}", (typed(v),), "input") for v in graph.inputs]
    boxes += [Box(f"{n.op} {n.name}", tuple(f"{o}: {typed(o)}" for o in n.outputs if o), "node") for n in graph.nodes]
    made = {v: k for k, v in enumerate(graph.inputs)}
    made |= {o: len(graph.inputs) + k for k, n in enumerate(graph.nodes) for o in n.outputs if o}
    edges = [(made[i], len(graph.inputs) + k) for k, n in enumerate(graph.nodes) for i in n.inputs if i in made]
    edges += [(made[v], len(boxes) + k) for k, v in enumerate(graph.outputs) if v in made]
    boxes += [Box(f"output {v}", (typed(v),), "output") for v in graph.outputs]
    weights = sum(array.nbytes for array in graph.constants.values())
    return page(f"graph {graph.name}",
                [f"{len(graph.nodes)} nodes, {len(graph.constants)} constants of {weights} bytes, opset {graph.opset}"],
                [chart(boxes, edges, "nodes and outputs")])


def format_graph(graph: Graph) -> str:
    """Readable text of a Graph: its inputs, one node a line with its types, its outputs."""
    def typed(value: str) -> str:
        order = f", in memory by dims {graph.orders[value]}" if value in graph.orders else ""
        return f"{value}: {graph.types[value]}{order}" if value in graph.types else value

    lines = [f"graph {graph.name} (opset {graph.opset})", *(f"  input  {typed(v)}" for v in graph.inputs)]
    for node in graph.nodes:
        attrs = "".join(f" {k}={v!r}" for k, v in node.attrs.items() if not isinstance(v, np.ndarray | Graph))
        lines.append(f"  {', '.join(map(typed, node.outputs))} = {node.op}({', '.join(node.inputs)}){attrs}  # {node.name}")
    return "\n".join([*lines, *(f"  output {typed(v)}" for v in graph.outputs)]) + "\n"

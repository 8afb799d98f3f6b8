"""Graph rewriting: symbolic contents settled, constants folded, local rules, equal nodes merged, dead ones dropped, scales
put behind contractions, contractions of one value merged.

After it no node reads a static operand from memory: such operands are known through `Graph.contents` or `Graph.constants`
alone and may have no producer.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tsc.config import DEFAULT_LIMITS, Limits
from tsc.graph.node_values import Budget
from tsc.graph.rewriting.commute import scale_after_contraction
from tsc.graph.rewriting.fold import fold_constants
from tsc.graph.rewriting.integers import narrow_integers, quantised_factors
from tsc.graph.rewriting.merge import Tell, merge_contractions
from tsc.graph.rewriting.simplify import RULES, Surroundings
from tsc.graph.shapes import infer_shapes
from tsc.ir import Graph, Node, TensorType
from tsc.ops import definition
from tsc.ops.elementwise import copy_node
from tsc.ops.generate import sizes_node
from tsc.sym import ShapeEnv, SymExpr

#: Rounds until nothing changes; each makes the graph smaller, so few are needed.
_MOST_ROUNDS = 32


def rewrite(graph: Graph, env: ShapeEnv, tell: Tell = lambda decision: None, limits: Limits = DEFAULT_LIMITS,
            dots: Collection[int] = ()) -> Graph:
    """The same function with fewer nodes. `graph` is inferred and made of primitives; so is the result. Where products of whole
    numbers gain, of which a device takes so many steps (`dots`) at once, floats between whole numbers and a product of two such
    factors are folded only if the product stays one of floats.

    `tell` gets every decision about contractions that could be merged.
    """
    budget, held = Budget(limits.folding), quantised_factors(graph, env) if dots else set[str]()
    for _ in range(_MOST_ROUNDS):
        before = graph.nodes
        graph = settle_contents(graph, held)
        graph = fold_constants(drop_dead(graph), env, budget, held)
        graph = apply_rules(graph, env)
        graph = merge_equal(graph)
        graph = drop_dead(graph)
        if graph.nodes == before:
            break
        graph = infer_shapes(graph, env)
    graph = scale_after_contraction(graph, env)
    if dots:
        graph = drop_dead(narrow_integers(graph, env, dots))
        graph = fold_constants(graph, env, budget) if held else graph
    return merge_contractions(graph, env, tell)


# -- contents --------------------------------------------------------------------------------------------------

def settle_contents(graph: Graph, held: Collection[str] = ()) -> Graph:
    """Shape arithmetic that is read as data becomes a constant, or a node that reads nothing where it depends on Dims; what is
    `held` stays as it is."""
    data = _read_as_data(graph)
    constants = dict(graph.constants)
    nodes = []
    for node in graph.nodes:
        outputs = [o for o in node.outputs if o]
        if not node.inputs or any(o in held for o in outputs) or not all(o in graph.contents for o in outputs):
            nodes.append(node)
            continue
        for output in (o for o in outputs if o in data):
            contents, dtype = graph.contents[output], graph.types[output].dtype
            numbers = [v.as_int() for v in contents.ravel()]
            if None in numbers:
                nodes.append(sizes_node(contents, dtype, output, node.name))
            else:
                constants[output] = np.array(numbers, dtype=dtype).reshape(contents.shape)
    return replace(graph, nodes=tuple(nodes), constants=constants)


# -- rules -----------------------------------------------------------------------------------------------------

def apply_rules(graph: Graph, env: ShapeEnv) -> Graph:
    """One pass of the local rules over all nodes."""
    around = Surroundings(graph, env, graph.producers(), {}, graph.names())
    same: dict[str, str] = {}
    nodes = []
    for node in graph.nodes:
        found = next((f for f in (rule(node, around) for rule in RULES) if f is not None), None)
        if isinstance(found, str):
            same[node.outputs[0]] = found
        nodes.append(found if isinstance(found, Node) else node)
    types = {**graph.types, **{n: TensorType("int64", (SymExpr.of(len(c)),)) for n, c in around.new_contents.items()}}
    graph = replace(graph, nodes=tuple(nodes), types=types, contents={**graph.contents, **around.new_contents})
    return replace_values(graph, same)


def replace_values(graph: Graph, same: Mapping[str, str]) -> Graph:
    """Read `same[value]` wherever `value` is read, and drop the node that makes it. Names of graph outputs stay."""
    if not same:
        return graph
    made = {o for n in graph.nodes for o in n.outputs if o} - set(graph.outputs)
    final: dict[str, str] = {}
    for value in same:
        source = value
        while source in same:
            source = same[source]
        final[value] = source
    renamed: dict[str, str] = {}  # a source that takes over the name of a graph output
    for value in graph.outputs:
        if value in final and final[value] in made and final[value] not in renamed:
            renamed[final[value]] = value

    def name(value: str) -> str:
        value = final.get(value, value)
        return renamed.get(value, value)

    nodes = []
    for node in graph.nodes:
        output = node.outputs[0] if node.outputs else ""
        if output not in final:
            nodes.append(replace(node, inputs=tuple(map(name, node.inputs)), outputs=tuple(map(name, node.outputs))))
        elif output in graph.outputs and name(output) != output:
            nodes.append(copy_node(name(output), output, node.name))
    types = {**graph.types, **{new: graph.types[old] for old, new in renamed.items()}}
    return replace(graph, nodes=tuple(nodes), types=types)


# -- equal and dead nodes --------------------------------------------------------------------------------------

def merge_equal(graph: Graph) -> Graph:
    """Nodes that do the same to the same operands become one; so do small equal constants."""
    same: dict[str, str] = {}
    seen: dict[Hashable, Node] = {}
    constants: dict[Hashable, str] = {}
    for name, array in graph.constants.items():
        if array.nbytes <= 1024 and name not in graph.outputs:
            first = constants.setdefault((array.dtype.name, array.shape, array.tobytes()), name)
            if first != name:
                same[name] = first
    for node in graph.nodes:
        key = (node.op, node.domain, tuple(same.get(i, i) for i in node.inputs), len(node.outputs), _frozen(node.attrs))
        first_node = seen.setdefault(key, node)
        if first_node is not node:
            same |= {b: a for a, b in zip(first_node.outputs, node.outputs) if a and b}
    return replace_values(graph, same)


def drop_dead(graph: Graph) -> Graph:
    """Only what an output depends on, through operands that are read at run time."""
    live = set(graph.outputs)
    nodes = []
    for node in reversed(graph.nodes):
        if live.intersection(node.outputs):
            nodes.append(node)
            live.update(_data_inputs(node))
    nodes.reverse()
    read = {*live, *graph.inputs, *graph.outputs, *(i for n in nodes for i in n.inputs if i)}
    read.update(o for n in nodes for o in n.outputs if o)
    return replace(
        graph, nodes=tuple(nodes), types={k: t for k, t in graph.types.items() if k in read},
        constants={k: c for k, c in graph.constants.items() if k in read},
        contents={k: c for k, c in graph.contents.items() if k in read})


def _data_inputs(node: Node) -> Iterable[str]:
    static = definition(node).static_inputs
    return (i for k, i in enumerate(node.inputs) if i and k not in static)


def _read_as_data(graph: Graph) -> set[str]:
    return {*graph.outputs, *(i for n in graph.nodes for i in _data_inputs(n))}


def _frozen(value: Any) -> Hashable:
    match value:
        case np.ndarray():
            return (value.dtype.name, value.shape, str(value.tolist()) if value.dtype == object else value.tobytes())
        case Mapping():
            return tuple(sorted((k, _frozen(v)) for k, v in value.items()))
        case list() | tuple():
            return tuple(map(_frozen, value))
    return (type(value).__name__, value)

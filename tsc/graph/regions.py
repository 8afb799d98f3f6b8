"""Graphs within nodes. One that constants and sizes choose takes the place of its node; where only the run knows, a node with a
`Body` for each graph does, which the plan runs as a region of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from tsc.config import Limits
from tsc.errors import DataDependentError, UnsupportedError
from tsc.graph.bodies import Body, Scope, renamed
from tsc.graph.repeats import repeat
from tsc.ir import Graph, Node, TensorType, unused_name
from tsc.ops import definition
from tsc.ops.control import Choice, Repetition, choose_node
from tsc.ops.elementwise import copy_node
from tsc.sym import ShapeEnv


def with_regions(graph: Graph, env: ShapeEnv, limits: Limits) -> Graph:
    """`graph` without nodes that have graphs but those that the plan runs. What chooses is found as types are, from inputs on.

    Raises UnsupportedError, naming the node, for shapes that only the run knows, and as `infer_shapes` does.
    """
    if not any(definition(node).region for node in graph.nodes):
        return graph
    scope = Scope(graph, env, limits, with_regions)
    _walk(scope)
    told = {name: scope.known.contents[name] for name in graph.inputs if name in scope.known.contents}
    return replace(graph, nodes=tuple(scope.nodes), types=scope.types, constants=scope.constants,
                   contents={**graph.contents, **told}, fractions=scope.known.fractions)


def _walk(scope: Scope) -> None:
    """Look at all nodes."""
    pending = deque(scope.graph.nodes)
    while pending:
        node = pending.popleft()
        rule = definition(node).region
        if rule is None:
            scope.add(node)
            continue
        try:
            match scope.known.asked(node, rule):
                case Graph() as branch:
                    pending.extendleft(reversed([*_inlined(scope, branch, node)]))
                case Choice() as choice:
                    _choose(scope, node, choice)
                case Repetition() as repetition:
                    repeat(scope, node, repetition)
        except DataDependentError as error:  # of a node within, which reads something from here
            scope.known.learn(error)
            pending.appendleft(node)


def _inlined(scope: Scope, branch: Graph, node: Node) -> Iterator[Node]:
    """The nodes of a graph that takes the place of its node."""
    names = scope.renaming(branch)
    for value, array in branch.constants.items():
        scope.constants[names[value]] = array
        scope.types[names[value]] = scope.known.types[names[value]] = branch.types[value]
    yield from renamed(branch, names, node.name)
    for value, output in zip(branch.outputs, node.outputs):
        if output:
            yield copy_node(names.get(value, value), output, f"{node.name}/{output}")


def _choose(scope: Scope, node: Node, choice: Choice) -> None:
    """A node that runs one of two graphs; what they make has one type."""
    opened = [scope.opened(graph, node) for graph in (choice.then, choice.otherwise)]
    read = [*dict.fromkeys(value for one in opened for value in scope.captured(one))]
    bodies = [scope.body(one, scope.env.fork(), {}, read) for one in opened]
    types = []
    outputs = [output or unused_name(f"{node.name}/unread", scope.taken) for output in node.outputs]
    for place, output in enumerate(outputs):
        made = [_type_of(scope, body, place) for body in bodies]
        if made[0] is None or made[0] != made[1]:
            kinds = " or ".join(str(body.graph.types[body.graph.outputs[place]]) for body in bodies)
            raise UnsupportedError(f"node '{node.name}' ({node.op}) makes '{output}' as {kinds}, as only the run decides, "
                                   "which is not supported; export it so that both have one shape or, where sizes decide, "
                                   "give dims that do (dims={'length': (512, 576)})")
        types.append(made[0])
    scope.add(choose_node(node.inputs[0], read, outputs, types, bodies, node.name))


def _type_of(scope: Scope, body: Body, place: int) -> TensorType | None:
    """The type of an output of a body, in terms of what is known outside."""
    known = body.graph.types[body.graph.outputs[place]]
    shape = [scope.outer(size, body.env) for size in known.shape]
    return None if None in shape else TensorType(known.dtype, tuple(s for s in shape if s is not None))

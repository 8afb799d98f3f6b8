"""Graphs within nodes: the one that constants and sizes choose takes the place of its node."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace

from tsc.config import Limits
from tsc.errors import UnsupportedError
from tsc.graph.onnx.file import allow
from tsc.graph.shapes import Knowledge
from tsc.ir import Graph, Node, unused_name
from tsc.ops import definition
from tsc.ops.control import handed_on
from tsc.sym import ShapeEnv


def choose_branches(graph: Graph, env: ShapeEnv, limits: Limits) -> Graph:
    """`graph` without nodes that stand for one of several graphs. What chooses is found as types are, from inputs on.

    Raises UnsupportedError, naming the node, where only the run knows, and as `infer_shapes` does.
    """
    if not any(definition(node).chosen for node in graph.nodes):
        return graph
    taken, constants, types = graph.names(), dict(graph.constants), dict(graph.types)
    known = Knowledge.of(replace(graph, types=types, constants=constants), env, limits)
    nodes, pending = list[Node](), deque(graph.nodes)
    while pending:
        node = pending.popleft()
        chosen = definition(node).chosen
        if chosen is None:
            version = env.version
            known.infer(node)
            if env.version != version:
                known.refresh()
            nodes.append(node)
            if len(nodes) > limits.nodes:
                raise UnsupportedError(f"the model has more than {limits.nodes} nodes; {allow('nodes')}")
            continue
        branch = chosen(known.context(node))
        names = {value: unused_name(value, taken) for value in _defined(branch)}
        for value, array in branch.constants.items():
            constants[names[value]], known.types[names[value]] = array, branch.types[value]
        types |= {names[value]: branch.types[value] for value in branch.constants}
        pending.extendleft(reversed([*_renamed(branch, names, node.name), *(
            handed_on(names.get(value, value), output, f"{node.name}/{output}")
            for value, output in zip(branch.outputs, node.outputs) if output)]))
    told = {name: known.contents[name] for name in graph.inputs if name in known.contents}
    return replace(graph, nodes=tuple(nodes), types=types, constants=constants, contents={**graph.contents, **told})


def _defined(branch: Graph) -> Iterator[str]:
    yield from branch.constants
    for node in branch.nodes:
        yield from filter(None, node.outputs)


def _renamed(branch: Graph, names: Mapping[str, str], within: str) -> Iterator[Node]:
    """The nodes of a branch with other names of values, also where graphs in them read these."""
    for node in branch.nodes:
        inputs, outputs = (tuple(names.get(v, v) for v in values) for values in (node.inputs, node.outputs))
        attrs = {k: _reading(v, names) if isinstance(v, Graph) else v for k, v in node.attrs.items()}
        yield replace(node, inputs=inputs, outputs=outputs, attrs=attrs, name=f"{within}/{node.name}")


def _reading(graph: Graph, names: Mapping[str, str]) -> Graph:
    """A graph within a node with other names of what it reads from outside."""
    own = {*_defined(graph)}
    outside = {old: new for old, new in names.items() if old not in own}
    return replace(graph, nodes=tuple(_inside(node, outside) for node in graph.nodes),
                   outputs=tuple(outside.get(v, v) for v in graph.outputs))


def _inside(node: Node, names: Mapping[str, str]) -> Node:
    attrs = {k: _reading(v, names) if isinstance(v, Graph) else v for k, v in node.attrs.items()}
    return replace(node, inputs=tuple(names.get(v, v) for v in node.inputs), attrs=attrs)

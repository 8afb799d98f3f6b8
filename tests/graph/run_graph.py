"""An oracle for the front end: run a Graph node by node at concrete sizes, by the te meaning of its operators."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tsc.graph.decompose import decompose
from tsc.graph.node_values import node_program
from tsc.graph.onnx.importer import import_onnx
from tsc.graph.rewriting.rewrite import rewrite
from tsc.graph.shapes import Knowledge, infer_shapes
from tsc.ir import Graph
from tsc.ops import definition
from tsc.sym import ShapeEnv
from tsc.te.evaluate import evaluate


def front_end(source: str | Path | onnx.ModelProto, dims: Mapping[str, Any] | None = None) -> tuple[Graph, ShapeEnv]:
    """A model through all stages before fusion."""
    graph, env = import_onnx(source, dims)
    graph = infer_shapes(graph, env)
    return rewrite(infer_shapes(decompose(graph, env), env), env), env


def bind(graph: Graph, feeds: Mapping[str, np.ndarray]) -> dict[str, int]:
    """The size of each Dim, from the inputs that have it alone as a dim; every other input dim must agree."""
    sizes: dict[str, int] = {}
    pairs = [(d, n) for i in graph.inputs for d, n in zip(graph.types[i].shape, feeds[i].shape)]
    for d, n in pairs:
        if d.as_dim() is not None:
            sizes.setdefault(d.as_dim().name, n)
    assert all(d.evaluate(sizes) == n for d, n in pairs)
    return sizes


def run_graph(graph: Graph, env: ShapeEnv, feeds: Mapping[str, np.ndarray]) -> list[Any]:
    """The outputs of an inferred graph of primitives; every value's shape is checked against its symbolic type."""
    sizes = bind(graph, feeds)
    assert all(g.holds(sizes) for g in env.remaining_guards())
    known = Knowledge.of(graph, env)
    values: dict[str, np.ndarray] = {**graph.constants, **feeds}
    for node in graph.nodes:
        static = definition(node).static_inputs
        for k, output in enumerate(node.outputs):
            if not output:
                continue
            program = node_program(node, k, known.context(node), known.output_types(node))
            inputs = {f"i{j}": values[i] for j, i in enumerate(node.inputs) if i and j not in static}
            values[output] = evaluate(program, inputs, sizes)["o"].astype(graph.types[output].dtype)
            assert values[output].shape == tuple(d.evaluate(sizes) for d in graph.types[output].shape), (node, output)
    return [values[o] for o in graph.outputs]

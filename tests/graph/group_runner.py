"""Running lowered groups in the te evaluator, one after the other: what the compiled kernels must compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tsc.codegen_c.specs import host_spec
from tsc.graph.decompose import decompose
from tsc.graph.fusion.chain import chain_level
from tsc.graph.fusion.fuse import LEVELS, Level, fuse
from tsc.graph.fusion.group import FusionGroup
from tsc.graph.fusion.to_te import LoweredGroup, lower_group
from tsc.graph.onnx.importer import import_onnx
from tsc.graph.rewriting.rewrite import rewrite
from tsc.graph.shapes import infer_shapes
from tsc.graph.views import root
from tsc.ir import Graph
from tsc.sym import ShapeEnv
from tsc.te.evaluate import evaluate


def front_end(source: Any, dims: Mapping[str, Any] | None = None) -> tuple[Graph, ShapeEnv]:
    """The graph that fusion sees."""
    graph, env = import_onnx(source, dims)
    graph = infer_shapes(graph, env)
    graph = infer_shapes(decompose(graph, env), env)
    return rewrite(graph, env), env


Groups = list[tuple[FusionGroup, LoweredGroup]]


#: All levels but the one that joins groups.
UNCHAINED = tuple(level for level in LEVELS if level is not chain_level)


def lowered(source: Any, dims: Mapping[str, Any] | None = None,
            levels: Sequence[Level] | None = None) -> tuple[Graph, ShapeEnv, Groups]:
    """A model's groups with their programs."""
    graph, env = front_end(source, dims)
    return graph, env, [(g, lower_group(g, graph, env)) for g in fuse(graph, env, host_spec(), levels)]


def run_groups(graph: Graph, env: ShapeEnv, groups: Groups, feeds: Mapping[str, Any],
               dtype: str | None = None) -> list[Any]:
    """The model's outputs; every read of a group must have been written by an earlier one."""
    dims: dict[str, int] = {}
    for name in graph.inputs:
        for extent, size in zip(graph.types[name].shape, feeds[name].shape):
            found = extent.as_dim()
            if found is not None:
                dims[found.name] = size
    memory: dict[str, Any] = {**graph.constants, **feeds}
    for _, low in groups:
        sizes = {name: expr.evaluate(dims) for name, expr in low.sizes.items()}
        buffers = {b.name: b for b in (*low.program.inputs, *low.program.outputs)}
        shapes = {name: tuple(d.evaluate(sizes) for d in b.shape) for name, b in buffers.items()}
        inputs = {b.name: np.asarray(memory[low.values[b.name]]).reshape(shapes[b.name]) for b in low.program.inputs}
        made = evaluate(low.program, inputs, sizes, dtype)
        for b in low.program.outputs:
            memory[low.values[b.name]] = made[b.name]
    results = []
    for name in graph.outputs:
        shape = tuple(env.canon(d).evaluate(dims) for d in graph.types[name].shape)
        results.append(np.asarray(memory[root(name, graph)]).reshape(shape))
    return results

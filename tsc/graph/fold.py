"""Constant folding: a node all of whose inputs are constants is computed now, by the meaning of its own te body."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc.errors import InputError, InternalError, ModelError
from tsc.graph.group import definition
from tsc.graph.shapes import Knowledge
from tsc.ir import Graph, Node, TensorType
from tsc.ops.base import Lowering, Reduction
from tsc.sym import ShapeEnv, SymExpr
from tsc.te.compute import Axis, Compute, Program
from tsc.te.evaluate import evaluate
from tsc.te.expr import Buffer, Expr, Load, Var

#: A folded value may be larger than the constants it is made of up to this size: what only grows is better made at run time.
MOST_BYTES = 1 << 20


def fold_constants(graph: Graph, env: ShapeEnv) -> Graph:
    """Replace nodes whose data inputs are all constants and whose outputs are static and not too large.

    What a node generates from nothing (Range, ConstantOfShape) stays: its few instructions are cheaper than memory.
    Raises ModelError when a constant index is out of bounds.
    """
    constants = dict(graph.constants)
    known = Knowledge.of(graph, env)
    known.constants = constants
    kept = []
    for node in graph.nodes:
        values = _folded(node, known, constants)
        if values is None:
            kept.append(node)
        else:
            constants |= values
    return graph if len(kept) == len(graph.nodes) else replace(graph, nodes=tuple(kept), constants=constants)


def _folded(node: Node, known: Knowledge, constants: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]] | None:
    operator = definition(node)
    data = [i for k, i in enumerate(node.inputs) if i and k not in operator.static_inputs]
    if operator.te is None or not data or not all(i in constants for i in data):
        return None
    outputs = [(k, o, _static(known.types[o])) for k, o in enumerate(node.outputs) if o]
    sizes = [prod(s) * np.dtype(known.types[o].dtype).itemsize for _, o, s in outputs if s is not None]
    if len(sizes) != len(outputs) or sum(sizes) > max(MOST_BYTES, sum(constants[i].nbytes for i in data)):
        return None
    if operator.is_view:
        return {o: constants[node.inputs[0]].reshape(s or ()) for _, o, s in outputs}
    inputs = {f"i{k}": constants[i] for k, i in enumerate(node.inputs) if i in constants}
    try:
        return {o: evaluate(node_program(node, k, known), inputs, {})["o"].astype(known.types[o].dtype, copy=False)
                for k, o, _ in outputs}
    except InputError as error:
        raise ModelError(f"node '{node.name}' ({node.op}) cannot be computed from its constant inputs: {error}") from error


def node_program(node: Node, output: int, known: Knowledge) -> Program:
    """One output of one node as a Program: inputs are `i0, i1, ..` (static ones left out), the target is `o`."""
    operator, ctx = definition(node), known.context(node)
    if operator.te is None:
        raise InternalError(f"node '{node.name}' ({node.op}) has no te body; it should have been decomposed")
    buffers = {k: Buffer(f"i{k}", t.dtype, t.shape) for k, t in enumerate(ctx.types) if t is not None}
    reduce_axes: list[Axis] = []

    def axis(hint: str, extent: SymExpr) -> Axis:
        reduce_axes.append(Axis(f"{hint}_{len(reduce_axes)}", extent))
        return reduce_axes[-1]

    def read(k: int, at: tuple[Expr, ...]) -> Expr:
        return Load(buffers[k], at)

    out = tuple(known.types[o] if o else TensorType("float32", ()) for o in node.outputs)
    axes = tuple(Axis(f"d{k}", d) for k, d in enumerate(out[output].shape))
    body = operator.te(Lowering(ctx, out, read, axis), output, tuple(Var(a.name) for a in axes))
    target = Buffer("o", out[output].dtype, out[output].shape)
    if isinstance(body, Reduction):
        compute = Compute(target, axes, body.body, body.axes, body.monoid)
    else:
        compute = Compute(target, axes, body)
    read_inputs = tuple(b for k, b in buffers.items() if k not in operator.static_inputs)
    return Program(read_inputs, (target,), (compute,), ())


def _static(type_: TensorType) -> tuple[int, ...] | None:
    sizes = tuple(d.as_int() for d in type_.shape)
    return tuple(s for s in sizes if s is not None) if None not in sizes else None

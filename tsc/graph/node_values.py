"""The value of one node by the meaning of its own te body, where its data inputs are known arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc.errors import InputError, InternalError, ModelError
from tsc.ir import Node, TensorType
from tsc.ops import definition
from tsc.ops.base import InferContext, Lowering
from tsc.ops.derive import compute_of
from tsc.sym import SymExpr, product
from tsc.te.compute import Axis, Program
from tsc.te.evaluate import evaluate
from tsc.te.expr import Buffer, Expr, Load, Size, Var, walk


@dataclass(slots=True)
class Budget:
    """How many elements may still be computed while compiling; what would go beyond is left to the run."""

    left: int

    def spend(self, work: int) -> bool:
        """Take `work` from it, if there is as much."""
        enough = work <= self.left
        self.left -= work if enough else 0
        return enough


def known_outputs(node: Node, ctx: InferContext, types: Sequence[TensorType], most_bytes: int,
                  budget: Budget) -> dict[str, NDArray[Any]] | None:
    """The outputs of a node whose data inputs are all constants and whose outputs, of `types`, are static and take at most
    `most_bytes` and the `budget`; else None, also for a node that generates data from nothing.

    Raises ModelError when a constant index is out of bounds.
    """
    operator = definition(node)
    data = [ctx.constants[k] for k, i in enumerate(node.inputs) if i and k not in operator.static_inputs]
    told = (c for k, c in enumerate(ctx.contents) if c is not None and k in operator.static_inputs)
    if operator.te is None or not data or any(d is None for d in data):
        return None
    if any(v.as_int() is None for c in told for v in c.ravel()):
        return None
    outputs = [(k, o, _static(types[k])) for k, o in enumerate(node.outputs) if o]
    sizes = [prod(s) * np.dtype(types[k].dtype).itemsize for k, _, s in outputs if s is not None]
    if len(sizes) != len(outputs) or sum(sizes) > most_bytes:
        return None
    if operator.is_view and data[0] is not None:
        return {o: data[0].reshape(s or ()) for _, o, s in outputs}
    inputs = {f"i{k}": c for k, c in enumerate(ctx.constants) if c is not None}
    programs = {(k, o): node_program(node, k, ctx, types) for k, o, _ in outputs}
    work = [_static_count(program) for program in programs.values()]
    if None in work or not budget.spend(sum(w for w in work if w is not None)):
        return None
    try:
        return {o: evaluate(program, inputs, {})["o"].astype(types[k].dtype, copy=False)
                for (k, o), program in programs.items()}
    except InputError as error:
        raise ModelError(f"node '{node.name}' ({node.op}) cannot be computed from its constant inputs: {error}") from error


def node_program(node: Node, output: int, ctx: InferContext, out: Sequence[TensorType]) -> Program:
    """One output of one node as a Program: inputs are `i0, i1, ..` (static ones left out), the target is `o`."""
    operator = definition(node)
    if operator.te is None:
        raise InternalError(f"node '{node.name}' ({node.op}) has no te body; it should have been decomposed")
    buffers = {k: Buffer(f"i{k}", t.dtype, t.shape) for k, t in enumerate(ctx.types) if t is not None}
    reduce_axes: list[Axis] = []

    def axis(hint: str, extent: SymExpr) -> Axis:
        reduce_axes.append(Axis(f"{hint}_{len(reduce_axes)}", extent))
        return reduce_axes[-1]

    def read(k: int, at: tuple[Expr, ...]) -> Expr:
        return Load(buffers[k], at)

    axes = tuple(Axis(f"d{k}", d) for k, d in enumerate(out[output].shape))
    target = Buffer("o", out[output].dtype, out[output].shape)
    lowering = Lowering(ctx, tuple(out), read, axis, lambda at: Load(target, at))
    compute = compute_of(target, axes, operator.te(lowering, output, tuple(Var(a.name) for a in axes)))
    read_inputs = tuple(b for k, b in buffers.items() if k not in operator.static_inputs)
    return Program(read_inputs, (target,), (compute,), ())


def _static_count(program: Program) -> int | None:
    """How many points its Computes have, those that are reduced among them; None where that, or what they hold, depends on a
    Dim."""
    if any(isinstance(part, Size) and part.value.dims() for c in program.computes for part in walk(c.body)):
        return None
    counts = [product(a.extent for a in (*c.axes, *c.reduce_axes)).as_int() for c in program.computes]
    return None if None in counts else sum(c for c in counts if c is not None)


def _static(type_: TensorType) -> tuple[int, ...] | None:
    sizes = tuple(d.as_int() for d in type_.shape)
    return tuple(s for s in sizes if s is not None) if None not in sizes else None

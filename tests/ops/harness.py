"""Lower one node, after decomposition, to a te.Program of one Compute a primitive node and output, with no inlining."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc.ir import Contents, Node, TensorType
from tsc.ops import find
from tsc.ops.base import Builder, InferContext, Lowering, OpDef, symbolic
from tsc.ops.define import applied, is_custom
from tsc.ops.derive import compute_of
from tsc.sym import ShapeEnv, SymExpr
from tsc.te.compute import Axis, Compute, Program, SizeParam
from tsc.te.dsl.assemble import assemble, renamed
from tsc.te.evaluate import evaluate
from tsc.te.expr import Buffer, Expr, Load, Var

Array = NDArray[Any]


@dataclass
class Lowered:
    """What is known of each value while nodes are lowered one by one."""

    env: ShapeEnv
    opset: int
    types: dict[str, TensorType] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    contents: dict[str, Contents] = field(default_factory=dict)
    computes: list[Compute] = field(default_factory=list)
    parts: list[tuple[OpDef, Compute]] = field(default_factory=list)  # every Compute with the operator that it is of
    counts: dict[str, str] = field(default_factory=dict)  # the values that tell Dims, by Dim
    count: itertools.count[int] = field(default_factory=itertools.count)

    def context(self, node: Node) -> InferContext:
        return InferContext(node, self.opset, *([table.get(i) for i in node.inputs]
                                                for table in (self.types, self.constants, self.contents)), self.env)

    def constant(self, array: Array) -> str:
        name = f"c{next(self.count)}"
        self.learn(name, array)
        return name

    def learn(self, name: str, array: Array) -> None:
        """Make `name` a constant."""
        array = np.asarray(array)
        self.types[name] = TensorType(array.dtype.name, tuple(SymExpr.of(n) for n in array.shape))
        self.constants[name] = array
        if array.dtype.kind in "iub" and array.size <= 1024:
            self.contents[name] = symbolic(array.astype(np.int64).astype(object))

    def add(self, node: Node) -> None:
        """Infer a node, then lower it or the nodes it decomposes to."""
        op = find(node.op, node.domain)
        assert op is not None, node.op
        ctx = self.context(node)
        if op.types is None:
            self._decompose(node, op, ctx)
            return
        types = op.types(ctx)
        assert len(types) == len(node.outputs), node.op
        self.types.update(zip(node.outputs, types))
        if op.contents is not None:
            self.contents.update({n: c for n, c in zip(node.outputs, op.contents(ctx)) if c is not None})
        if is_custom(node):
            self._define(node, ctx)
            return
        if op.te is None:
            self._decompose(node, op, ctx)
            return
        for number, (name, made) in enumerate(zip(node.outputs, types)):
            self.computes.append(self._compute(op, ctx, types, number, name, made))
            self.parts.append((op, self.computes[-1]))

    def _decompose(self, node: Node, op: OpDef, ctx: InferContext) -> None:
        assert op.decompose is not None

        def several(kind: str, inputs: Sequence[str], count: int, **attrs: Any) -> tuple[str, ...]:
            names = tuple(f"v{next(self.count)}" for _ in range(count))
            self.add(Node(kind, tuple(inputs), names, attrs, names[0]))
            return names

        made = op.decompose(Builder(ctx, several, self.constant, lambda value, number: self.counts.__setitem__(
            self.env.counts[node.outputs[0], number], value)))
        for name, value in zip(node.outputs, made, strict=True):
            expected = self.types.get(name)
            self.add(Node("Identity", (value,), (name,), {}, name))
            assert expected in (None, self.types[name]), f"{node.op} decomposes to {self.types[name]}, declared {expected}"

    def _define(self, node: Node, ctx: InferContext) -> None:
        """The Computes that a node brings, over the names of its values."""
        given, outputs = applied(ctx)
        made = assemble(outputs, self.env)
        names = dict(zip([t.name for t in (*given, *outputs)], [*node.inputs, *node.outputs]))
        names = {d.compute.name: f"v{next(self.count)}" for d in made.definitions} | names
        self.computes += [renamed(d, names).compute for d in made.definitions]

    def _compute(self, op: OpDef, ctx: InferContext, types: tuple[TensorType, ...], number: int, name: str,
                 made: TensorType) -> Compute:
        def read(i: int, index: tuple[Expr, ...]) -> Expr:
            assert i not in op.static_inputs, f"{op.name} reads its static input {i}"
            value = ctx.node.inputs[i]
            assert len(index) == self.types[value].rank, f"{op.name} reads input {i} with {len(index)} indices"
            return Load(Buffer(value, self.types[value].dtype, self.types[value].shape), index)

        def axis(hint: str, extent: SymExpr) -> Axis:
            return Axis(f"{hint}{next(self.count)}", extent)

        axes = tuple(axis("i", d) for d in made.shape)
        assert op.te is not None
        target = Buffer(name, made.dtype, made.shape)
        lowering = Lowering(ctx, types, read, axis, lambda at: Load(target, at))
        compute = compute_of(target, axes, op.te(lowering, number, tuple(Var(a.name) for a in axes)))
        assert compute.body.dtype == made.dtype, f"{op.name} computes {compute.body.dtype}, declared {made.dtype}"
        return compute


def run_node(node: Node, inputs: Mapping[str, Array], opset: int, static: tuple[int, ...] = (),
             sizes: Mapping[str, tuple[str, ...]] | None = None) -> dict[str, Array]:
    """Lower and evaluate one node. Inputs numbered in `static` are constants; `sizes` names symbolic dims by input."""
    lowered, bound = lower_node(node, inputs, opset, static, sizes)
    known = {**lowered.constants, **{n: inputs[n] for n in node.inputs if n}}
    buffers = tuple(Buffer(n, lowered.types[n].dtype, lowered.types[n].shape) for n in known)
    for name, value in lowered.counts.items():
        ready = tuple(lowered.computes[:1 + [c.name for c in lowered.computes].index(value)])
        counting = Program(buffers, (ready[-1].target,), ready, tuple(SizeParam(n) for n in bound))
        bound[name] = int(evaluate(counting, known, bound)[value].item())
    _define(lowered.env, bound)
    assert all(guard.holds(bound) for guard in lowered.env.guards), [str(g) for g in lowered.env.guards]
    outputs = tuple(c.target for c in lowered.computes if c.name in node.outputs)
    program = Program(buffers, outputs, tuple(lowered.computes), tuple(SizeParam(n) for n in bound))
    return {n: v for n, v in evaluate(program, known, bound).items() if n in node.outputs}


def lower_node(node: Node, inputs: Mapping[str, Array], opset: int, static: tuple[int, ...] = (),
               sizes: Mapping[str, tuple[str, ...]] | None = None) -> tuple[Lowered, dict[str, int]]:
    """One node lowered, as `run_node` says, and the value of each symbolic size."""
    env = ShapeEnv()
    lowered = Lowered(env, opset)
    bound: dict[str, int] = {}
    for i, name in enumerate(node.inputs):
        if not name:
            continue
        if i in static:
            lowered.learn(name, inputs[name])
            continue
        shape = []
        names = (sizes or {}).get(name, ())
        for k, extent in enumerate(inputs[name].shape):
            symbol = names[k] if k < len(names) else ""
            if symbol:
                bound[symbol] = extent
            shape.append(env.declare(symbol) if symbol else SymExpr.of(extent))
        lowered.types[name] = TensorType(inputs[name].dtype.name, tuple(shape))
    lowered.add(node)
    _define(env, bound)
    return lowered, bound


def _define(env: ShapeEnv, bound: dict[str, int]) -> None:
    """Add the Dims that a run computes from those that are bound."""
    for name, value in env.definitions().items():
        if value.dims() <= bound.keys():
            bound[name] = value.evaluate(bound)

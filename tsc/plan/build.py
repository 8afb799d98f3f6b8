"""Graph + kernel calls -> Plan: where every value lives, what is launched in which order, and what is checked before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc.errors import InternalError, ShapeError
from tsc.ir import Graph
from tsc.plan.counted import count_binds, in_order, late_names, most
from tsc.plan.pack import lay_out, packed_name
from tsc.plan.place import order, place
from tsc.runtime.places import binds_of
from tsc.runtime.plan import Bind, Copy, Eval, Launch, Plan, Region, Storage, TensorSpec, Variant, expressions_of, static_names
from tsc.sym import ZERO, ShapeEnv, SymExpr, product, sym_max
from tsc.te.expr import Buffer


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One call of a kernel, before memory is planned. All expressions are over the model's Dims.

    `values` are graph values in the kernel's buffer order, `outputs` those of them that it writes. `buffers` are the kernel's
    own: the extents in which it sees each value's memory (a view of it, row-major) and the layout in which it reads a constant.
    `nodes` are the names of all that it computes.
    """

    symbol: str
    values: tuple[str, ...]
    outputs: tuple[str, ...]
    buffers: tuple[Buffer, ...]
    sizes: tuple[SymExpr, ...]
    variants: tuple[Variant, ...]
    node: str
    messages: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()

    def arguments(self, env: ShapeEnv) -> Iterator[tuple[str, Buffer]]:
        """Each value with the kernel's buffer for it, its extents canonical."""
        for value, buffer in zip(self.values, self.buffers, strict=True):
            yield value, replace(buffer, shape=tuple(map(env.canon, buffer.shape)))


def build_plan(graph: Graph, env: ShapeEnv, calls: Sequence[KernelCall], root: Callable[[str], str] = lambda v: v) -> Plan:
    """The Plan that runs `calls` in order.

    `root` maps a value that is a mere view (a reshape of contiguous memory) to the value whose memory it shares. A kernel
    writes a graph output in place; outputs that share memory with another output, an input or a constant are copied. Raises
    InternalError when a call reads what nobody wrote, ShapeError when an expression has a Dim that no input binds.
    """
    definitions = env.definitions()
    values = _Values(graph, env, calls, root, late_names(env, graph.counts, definitions))
    inputs = tuple(_input(graph, env, name) for name in graph.inputs)
    evals = (Eval(name, value) for name, value in definitions.items())
    nobodys = env.counted.keys() - graph.counts.keys()  # of nodes that no output needs
    guards = (guard for guard in env.remaining_guards() if not (guard.left.dims() | guard.right.dims()) & nobodys)
    steps: Region = (*binds_of(inputs, env.ranges, definitions.keys()), *evals, *guards, *values.launches(), *values.copies())
    if graph.counts:
        counts = {name: values.storage(value) for name, value in graph.counts.items()}
        steps = tuple(in_order((*steps, *count_binds(env, counts)), values.written.__getitem__))
    storages, arenas = place(values.storages, steps, env)
    plan = Plan(
        inputs=inputs,
        outputs=tuple(_spec(graph, env, name) for name in values.results),
        storages=storages,
        constants=tuple(values.constants),
        arenas=arenas,
        body=order(steps, storages, values.written.__getitem__))
    _check_bound(plan)
    return plan


def packed_constants(graph: Graph, env: ShapeEnv, calls: Sequence[KernelCall], plan: Plan,
                     root: Callable[[str], str] = lambda v: v) -> dict[str, NDArray[Any]]:
    """The arrays behind `plan.constants`, in that order, each in the layout its kernels read. Raises InternalError where an
    array is not what a kernel reads."""
    outputs = {root(v) for v in graph.outputs} & graph.constants.keys()
    made = {packed_name(source): graph.constants[source] for source in outputs}  # those passed through
    seen: set[tuple[str, Buffer]] = set()
    for value, buffer in (argument for call in calls for argument in call.arguments(env)):
        source = root(value)
        key = (source, replace(buffer, name=source))
        if source in graph.constants and key not in seen:
            seen.add(key)
            made[packed_name(source, buffer)] = lay_out(source, graph.constants[source], buffer)
    return {name: made[name] for name in plan.constants}


class _Values:
    """Which storage each value has. `written` tells those that a Launch writes; `results` are the outputs that a caller gets;
    names that are bound `late` are at most those expressions."""

    def __init__(self, graph: Graph, env: ShapeEnv, calls: Sequence[KernelCall], root: Callable[[str], str],
                 late: Mapping[str, SymExpr]) -> None:
        self.graph, self.env, self.calls, self.root, self.late = graph, env, calls, root, late
        self.results = graph.outputs[:len(graph.outputs) - len(graph.counts)]
        self.storages: list[Storage] = []
        self.constants: list[str] = []
        self.written: dict[Launch, set[int]] = {}
        self._index: dict[str, int] = {}
        self._inputs = {name: i for i, name in enumerate(graph.inputs)}
        written = {root(v) for call in calls for v in call.outputs}
        self._outputs: dict[str, int] = {}  # the root of an output that a kernel writes -> the first such output
        for i, name in enumerate(self.results):
            if root(name) in written:
                self._outputs.setdefault(root(name), i)

    def launches(self) -> Iterator[Launch]:
        """A Launch for each call."""
        for call in self.calls:
            args = tuple(self.storage(*argument, argument[0] in call.outputs) for argument in call.arguments(self.env))
            variants = tuple(variant.over(self.env.canon) for variant in call.variants)
            launch = Launch(call.symbol, args, tuple(map(self.env.canon, call.sizes)), variants, call.node, call.messages,
                            call.nodes, temporaries=tuple(map(self._temporary, zip_longest(
                                *(variant.temporaries for variant in variants), fillvalue=ZERO))))
            self.written[launch] = {index for index, value in zip(launch.args, call.values) if value in call.outputs}
            self.written[launch].update(launch.temporaries)
            yield launch

    def storage(self, value: str, buffer: Buffer | None = None, writes: bool = False) -> int:
        """The index in `storages` of the memory of `value`, of a constant as `buffer` has it; who asks first `writes`."""
        source = self.root(value)
        name = packed_name(source, buffer)
        if name not in self._index:
            if buffer is not None and buffer.panel is not None and source not in self.graph.constants:
                raise InternalError(f"value '{value}' is read in panels and is no constant")
            self._index[name] = len(self.storages)
            self.storages.append(self._make(value, source, name, writes))
        return self._index[name]

    def copies(self) -> Iterable[Copy]:
        """One Copy for each output whose memory is not its own."""
        for i, name in enumerate(self.results):
            if self._outputs.get(self.root(name)) == i:
                self.storage(name)
                continue
            source = self.storage(name)
            self.storages.append(Storage("output", i))
            yield Copy(source, len(self.storages) - 1, self._bytes(name))

    def _temporary(self, sizes: Sequence[SymExpr]) -> int:
        """A storage that holds any of so many bytes."""
        self.storages.append(Storage("arena", 0, ZERO, most(sym_max(*sizes), self.late, self.env)))
        return len(self.storages) - 1

    def _make(self, value: str, source: str, name: str, writes: bool) -> Storage:
        if source in self._outputs:
            return Storage("output", self._outputs[source])
        if source in self._inputs:
            return Storage("input", self._inputs[source])
        if source in self.graph.constants:
            self.constants.append(name)
            return Storage("constant", len(self.constants) - 1)
        if not writes:
            raise InternalError(f"value '{value}' is read before any kernel writes it")
        return Storage("arena", 0, ZERO, most(self._bytes(source), self.late, self.env))

    def _bytes(self, value: str) -> SymExpr:
        known = self.graph.types[value]
        return self.env.canon(product(known.shape) * np.dtype(known.dtype).itemsize)


def _input(graph: Graph, env: ShapeEnv, name: str) -> TensorSpec:
    """An input, with its contents where there are sizes among them."""
    contents = graph.contents.get(name)
    return replace(_spec(graph, env, name), contents=() if contents is None else tuple(map(env.canon, contents.ravel())))


def _spec(graph: Graph, env: ShapeEnv, name: str) -> TensorSpec:
    known = graph.types[name]
    return TensorSpec(name, graph.outside.get(name, known.dtype), tuple(map(env.canon, known.shape)))


def _dims(exprs: Iterable[SymExpr]) -> frozenset[str]:
    return frozenset(name for expr in exprs for name in expr.dims())


def _check_bound(plan: Plan) -> None:
    static = static_names(plan).keys()
    dims = static | {step.name for step in plan.body if isinstance(step, Bind | Eval)}
    for launch in plan.launches:
        loose = _dims(expressions_of(launch)) - dims
        if loose:
            raise ShapeError(f"node '{launch.node}' has sizes that no input's shape tells: {', '.join(sorted(loose))}; give an "
                             "input each of these dims")
    loose = (_dims([plan.arena_bytes]) - static) | (_dims(s for spec in plan.outputs for s in spec.shape) - dims)
    if loose:
        raise ShapeError(f"an output's shape has sizes that no input's shape tells: {', '.join(sorted(loose))}; give an input "
                         "each of these dims")

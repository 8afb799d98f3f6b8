"""Graph + kernel calls -> Plan: where every value lives, what is launched in which order, and what is checked before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc.errors import InternalError, ShapeError
from tsc.ir import STEPS, Graph, Node
from tsc.ops.control import Trips, trips_of
from tsc.plan.counted import Late, count_binds, in_order, late_names, most
from tsc.plan.pack import lay_out, packed_name
from tsc.plan.place import order, place
from tsc.runtime.places import binds_of
from tsc.runtime.plan import (
    Bind,
    Carried,
    Copy,
    Element,
    Eval,
    If,
    Launch,
    Loop,
    Plan,
    Region,
    Step,
    Storage,
    TensorSpec,
    Variant,
    expressions_of,
    static_names,
    steps_of,
)
from tsc.sym import ZERO, ShapeEnv, SymExpr, dim, product, sym_max
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


@dataclass(frozen=True, slots=True)
class Part:
    """A graph with the calls that compute it, in order."""

    graph: Graph
    env: ShapeEnv
    calls: Sequence[KernelCall | RegionCall]
    root: Callable[[str], str] = lambda value: value


@dataclass(frozen=True, slots=True)
class RegionCall:
    """What a `node` does whose graphs are regions of the plan: a Part for each of them."""

    node: Node
    parts: tuple[Part, ...]


def build_plan(part: Part) -> Plan:
    """The Plan that runs the calls of a model's graph in order.

    The part's `root` maps a value that is a mere view (a reshape of contiguous memory) to the value whose memory it shares. A
    kernel writes a graph output in place; outputs that share memory with another output, an input or a constant are copied.
    Raises InternalError when a call reads what nobody wrote, ShapeError when an expression has a Dim that no input binds.
    """
    graph, env = part.graph, part.env
    definitions = env.definitions()
    memory = Memory({id(inner): prefix for prefix, inner in _parts(part)})
    values = _Values(part, late_names(env, {name: env.counted[name] for name in graph.counts}, definitions), memory)
    inputs = tuple(_input(graph, env, name) for name in graph.inputs)
    evals = (Eval(name, value) for name, value in definitions.items())
    nobodys = env.counted.keys() - graph.counts.keys()  # of nodes that no output needs
    guards = (guard for guard in env.remaining_guards() if not (guard.left.dims() | guard.right.dims()) & nobodys)
    steps = values.counting((*binds_of(inputs, env.ranges, definitions.keys()), *evals, *guards, *values.steps(),
                             *values.copies()))
    storages, arenas = place(memory.storages, steps, env)
    plan = Plan(
        inputs=inputs,
        outputs=tuple(_spec(graph, env, name) for name in values.results),
        storages=storages,
        constants=tuple(memory.constants),
        arenas=arenas,
        body=order(steps, storages, memory.written.__getitem__))
    _check_bound(plan)
    return plan


def packed_constants(part: Part, plan: Plan) -> dict[str, NDArray[Any]]:
    """The arrays behind `plan.constants`, in that order, each in the layout its kernels read. Raises InternalError where an
    array is not what a kernel reads."""
    made: dict[str, NDArray[Any]] = {}
    for prefix, inner in _parts(part):
        constants = inner.graph.constants
        for source in {inner.root(v) for v in (*inner.graph.outputs, *_passed(inner))} & constants.keys():
            made[prefix + packed_name(source)] = constants[source]  # those passed through
        seen: set[tuple[str, Buffer]] = set()
        kernels = (call for call in inner.calls if isinstance(call, KernelCall))
        for value, buffer in (argument for call in kernels for argument in call.arguments(inner.env)):
            source = inner.root(value)
            key = (source, replace(buffer, name=source))
            if source in constants and key not in seen:
                seen.add(key)
                array = constants[source]
                if dims := inner.graph.orders.get(source):
                    array = np.ascontiguousarray(np.transpose(array, dims))
                made[prefix + packed_name(source, buffer)] = lay_out(source, array, buffer)
    return {name: made[name] for name in plan.constants}


def _passed(part: Part) -> Iterator[str]:
    """What a part hands to regions within it."""
    for call in part.calls:
        if isinstance(call, RegionCall):
            yield from call.node.inputs


def _parts(part: Part) -> Iterator[tuple[str, Part]]:
    """A part and all within it, each with what its constants' names begin with."""
    number, pending = 0, [part]
    while pending:
        one = pending.pop()
        yield f"region {number}/" if number else "", one
        number += 1
        pending += [inner for call in reversed(one.calls) if isinstance(call, RegionCall) for inner in reversed(call.parts)]


@dataclass(slots=True)
class Memory:
    """The storages and constants of a plan in the making. `written` tells which storages each Launch writes, `prefixes` what
    names of constants begin with, by the part."""

    prefixes: Mapping[int, str]
    storages: list[Storage] = field(default_factory=list)
    constants: list[str] = field(default_factory=list)
    written: dict[Launch, set[int]] = field(default_factory=dict)

    def add(self, storage: Storage) -> int:
        """The number of a new storage."""
        self.storages.append(storage)
        return len(self.storages) - 1


class _Values:
    """Which storage each value of a part has. `results` are the outputs that are kept; names that are bound `late` are at most
    those expressions. Of a region `given` are the storages of its inputs, and `targets` those for its results (None: of its
    own)."""

    def __init__(self, part: Part, late: Late, memory: Memory, given: Mapping[str, int] | None = None,
                 targets: Sequence[int | None] | None = None, around: _Values | None = None) -> None:
        self._around = around
        self.part, self.graph, self.env, self.root, self.late, self.memory = (
            part, part.graph, part.env, part.root, late, memory)
        self.results = self.graph.outputs[:len(self.graph.outputs) - len(self.graph.counts)]
        self._given, self._targets = given, targets
        self._index: dict[str, int] = {}
        self._inputs = {name: i for i, name in enumerate(self.graph.inputs)}
        written = {self.root(v) for call in part.calls if isinstance(call, KernelCall) for v in call.outputs}
        self._outputs: dict[str, int] = {}  # the root of an output that a kernel writes -> the first such output
        for i, name in enumerate(self.results):
            if self.root(name) in written and (targets is None or targets[i] is not None):
                self._outputs.setdefault(self.root(name), i)

    def canon(self, size: SymExpr) -> SymExpr:
        """A size by the Dims that are bound: what is around a region may know two to be one that the region does not."""
        own = self.env.canon(size)
        return own if self._around is None else self._around.canon(own)

    def steps(self) -> Iterator[Step]:
        """The steps of each call."""
        for call in self.part.calls:
            if isinstance(call, KernelCall):
                yield self._launch(call)
            elif (trips := trips_of(call.node)) is not None:
                yield from self._loop(call.node, trips, call.parts[0])
            else:
                yield self._branches(call)

    def counting(self, steps: Sequence[Step]) -> Region:
        """Steps with those that read what the graph counts, in order."""
        if not self.graph.counts:
            return tuple(steps)
        counts = {name: self.storage(value) for name, value in self.graph.counts.items()}
        return tuple(in_order((*steps, *count_binds(self.env, counts)), self.memory.written.__getitem__))

    def storage(self, value: str, buffer: Buffer | None = None, writes: bool = False) -> int:
        """The number of the storage that is the memory of `value`, of a constant as `buffer` has it; who asks first
        `writes`."""
        source = self.root(value)
        name = packed_name(source, buffer)
        if name not in self._index:
            if buffer is not None and buffer.panel is not None and source not in self.graph.constants:
                raise InternalError(f"value '{value}' is read in panels and is no constant")
            self._index[name] = self._make(value, source, name, writes)
        return self._index[name]

    def copies(self) -> Iterator[Copy]:
        """One Copy for each output whose memory is not its own."""
        for i, name in enumerate(self.results):
            if self._outputs.get(self.root(name)) == i:
                self.storage(name)
            elif self._targets is None or self._targets[i] is not None:
                source = self.storage(name)
                yield Copy(source, self._target(i), self.bytes(name))

    def bytes(self, value: str) -> SymExpr:
        """How many bytes a value has."""
        known = self.graph.types[value]
        return self.canon(product(known.shape) * np.dtype(known.dtype).itemsize)

    def _launch(self, call: KernelCall) -> Launch:
        args = tuple(self.storage(*argument, argument[0] in call.outputs) for argument in call.arguments(self.env))
        variants = tuple(variant.over(self.canon) for variant in call.variants)
        launch = Launch(call.symbol, args, tuple(map(self.canon, call.sizes)), variants, call.node, call.messages,
                        call.nodes, temporaries=tuple(self._arena(sym_max(*sizes)) for sizes in zip_longest(
                            *(variant.temporaries for variant in variants), fillvalue=ZERO)))
        written = {index for index, value in zip(launch.args, call.values) if value in call.outputs}
        self.memory.written[launch] = written | {*launch.temporaries}
        return launch

    def _make(self, value: str, source: str, name: str, writes: bool) -> int:
        if source in self._outputs:
            return self._target(self._outputs[source])
        if source in self._inputs:
            return self.memory.add(Storage("input", self._inputs[source])) if self._given is None else self._given[source]
        if source in self.graph.constants:
            self.memory.constants.append(self.memory.prefixes[id(self.part)] + name)
            return self.memory.add(Storage("constant", len(self.memory.constants) - 1))
        if not writes:
            raise InternalError(f"value '{value}' is read before any kernel writes it")
        return self._arena(self.bytes(source))

    def _target(self, result: int) -> int:
        """The storage for a result."""
        if self._targets is None:
            return self.memory.add(Storage("output", result))
        found = self._targets[result]
        assert found is not None
        return found

    def _arena(self, size: SymExpr) -> int:
        """A new storage of so many bytes, or of the most that they can be."""
        return self.memory.add(Storage("arena", 0, ZERO, most(size, self.late, self.env)))

    # -- regions -------------------------------------------------------------------------------------------------------

    def _branches(self, call: RegionCall) -> If:
        """Both graphs write what the node makes into the same storages."""
        condition, *read = (self.storage(value) for value in call.node.inputs)
        targets = [self.storage(output, writes=True) for output in call.node.outputs]
        then, otherwise = (self._inner(part, read, targets, {}).region() for part in call.parts)
        return If(Element(condition, "bool"), then, otherwise)

    def _loop(self, node: Node, trips: Trips, part: Part) -> Iterator[Step]:
        """The states lie in storages of their own, which hold the last ones after it; slices are put where they belong."""
        carried: list[Carried] = []
        for start, output in zip(node.inputs[:trips.states], node.outputs):
            current, following = (self._arena(self.bytes(output)) for _ in range(2))
            yield Copy(self.storage(start), current, self.bytes(start))
            carried.append(Carried(current, current, following))
            self._index[packed_name(output)] = current
        read = [*(c.current for c in carried), *(self.storage(value) for value in node.inputs[trips.states:])]
        filled = [self.storage(output, writes=True) for output in node.outputs[trips.states:]]
        targets = [*(c.next for c in carried), *(None for _ in filled)]
        inner = self._inner(part, read, targets, {trips.index: sym_max(self.canon(trips.count) - 1, 0)})
        steps = inner.region()
        for slices, target, reverse in zip(inner.results[trips.states:], filled, trips.reverse):
            size = inner.bytes(slices)
            place = trips.count - 1 - dim(trips.index) if reverse else dim(trips.index)
            steps += (Copy(inner.storage(slices), target, size, at=inner.env.canon(place * size)),)
        ends = None if trips.condition is None else Element(carried[trips.condition].current, "bool")
        yield Loop(trips.index, self.canon(trips.count), steps, tuple(carried), ends, tuple(filled))

    def _inner(self, part: Part, read: Sequence[int], targets: Sequence[int | None], mosts: Mapping[str, SymExpr]) -> _Values:
        """The values of a region that reads and writes these storages."""
        counted = {name: part.env.counted[name] for name in part.graph.counts}
        definitions = {name: self.canon(value) for name, value in _own_definitions(part.env).items()}
        late = late_names(part.env, {**mosts, **counted}, definitions, self.late, everything=True)
        return _Values(part, late, self.memory, dict(zip(part.graph.inputs, read)), targets, self)

    def region(self) -> Region:
        """The steps of a region, with what is computed and held of sizes in it alone."""
        assert self._around is not None
        around = self._around.canon
        evals = (Eval(name, around(value)) for name, value in _own_definitions(self.env).items())
        guards = (replace(g, left=around(g.left), right=around(g.right)) for g in self.env.remaining_guards())
        held = (g for g in guards if g.left != g.right)
        return self.counting((*evals, *held, *self.steps(), *self.copies()))


def _own_definitions(env: ShapeEnv) -> dict[str, SymExpr]:
    """The Dims that a region computes."""
    known = frozenset[str]() if env.outside is None else env.outside.defined
    return {name: value for name, value in env.definitions().items() if name not in known}


def _input(graph: Graph, env: ShapeEnv, name: str) -> TensorSpec:
    """An input, with its contents where there are sizes among them."""
    contents, steps = graph.contents.get(name), 1
    if name in graph.fractions:
        contents, steps = graph.fractions[name], STEPS
    found = () if contents is None else tuple(map(env.canon, contents.ravel()))
    return replace(_spec(graph, env, name), contents=found, steps=steps)


def _spec(graph: Graph, env: ShapeEnv, name: str) -> TensorSpec:
    known = graph.types[name]
    return TensorSpec(name, graph.outside.get(name, known.dtype), tuple(map(env.canon, known.shape)))


def _dims(exprs: Iterable[SymExpr]) -> frozenset[str]:
    return frozenset(name for expr in exprs for name in expr.dims())


def _check_bound(plan: Plan) -> None:
    static, steps = static_names(plan).keys(), [*steps_of(plan.body)]
    dims = static | {step.name for step in steps if isinstance(step, Bind | Eval)} | {
        step.index for step in steps if isinstance(step, Loop)}
    for launch in plan.launches:
        loose = _dims(expressions_of(launch)) - dims
        if loose:
            raise ShapeError(f"node '{launch.node}' has sizes that no input's shape tells: {', '.join(sorted(loose))}; give an "
                             "input each of these dims")
    loose = (_dims([plan.arena_bytes]) - static) | (_dims(s for spec in plan.outputs for s in spec.shape) - dims)
    if loose:
        raise ShapeError(f"an output's shape has sizes that no input's shape tells: {', '.join(sorted(loose))}; give an input "
                         "each of these dims")

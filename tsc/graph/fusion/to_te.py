"""FusionGroup -> te.Program: each node's te body pulled at an index, with what is worth storing made a Compute of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from tsc.graph.dataflow import Item, item_of, value_type
from tsc.graph.fusion.group import FusionGroup, leaves
from tsc.graph.pull import Puller
from tsc.graph.views import is_view, resolve
from tsc.ir import Graph, Node, unused_name
from tsc.ops.base import Body, PatternKind, Reduction
from tsc.ops.derive import compute_of
from tsc.sym import ShapeEnv, SymExpr, product
from tsc.te.compute import Compute, Program
from tsc.te.expr import Buffer, Load, Var, loads
from tsc.te.passes.transform import lower

#: A value used more than once inside a reduction's kernel is stored when recomputing it takes more operations than this.
RECOMPUTE_LIMIT = 10

Producers = Mapping[str, Node]
#: Value -> the values of the group whose bodies load it, once per load.
Readers = Mapping[str, list[str]]


@dataclass(frozen=True, slots=True)
class LoweredGroup:
    """A group as a canonical Program.

    `values` maps the names of the Program's inputs and outputs to graph values; a Buffer may have another shape than its value,
    then it is the same memory row-major. `sizes` gives each size parameter as an expression of model Dims.
    """

    program: Program
    values: dict[str, str]
    sizes: dict[str, SymExpr]
    kind: PatternKind


def lower_group(group: FusionGroup, graph: Graph, env: ShapeEnv) -> LoweredGroup:
    """The canonical Program of a group.

    A contraction group is `[acc, outputs...]`: the contraction is a local Compute, and each output an epilogue of it alone. A
    reduction group stores its reductions, row statistics made of them, and what is costly and used twice; all else is inlined.
    A chain is its links one after the other, what they hand on being local. Raises InternalError when a node has no te body.
    """
    parts = _Parts(graph, env, graph.producers(), {item.value for item in _items(group, graph, env)})
    named = {value for node in group.nodes for value in (*node.inputs, *node.outputs)}
    parts.taken = named | {resolve(value, parts.producers) for value in named}
    for link in leaves(group):
        parts.add(link)
    loose = Program((), tuple(c.target for c in parts.computes if c.name in group.outputs), tuple(parts.computes), ())
    found = lower(loose, env, parts.accumulators)
    return LoweredGroup(found.program, found.buffers, found.sizes, group.kind)


@dataclass(slots=True)
class _Parts:
    """A kernel's Computes in the making; `made` are the values that the links before hand on."""

    graph: Graph
    env: ShapeEnv
    producers: Producers
    computed: set[str]
    extents: dict[str, SymExpr] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    made: dict[str, str] = field(default_factory=dict)
    computes: list[Compute] = field(default_factory=list)
    accumulators: list[str] = field(default_factory=list)

    def add(self, link: FusionGroup) -> None:
        """The Computes of one link."""
        items = {item.value: item for item in _items(link, self.graph, self.env)}
        stored = stored_values(link, items, self.producers)
        contraction = next((v for v in stored if items[v].kind is PatternKind.CONTRACTION), None)
        targets = {v: v for v in stored} if contraction is None else {
            contraction: unused_name(f"{contraction}.acc", self.taken)}
        puller = Puller(self.graph, self.env, self.producers, self.computed, {**self.made, **targets}, self.extents,
                        self.graph.orders)
        for value in (v for v in items if v in stored):
            self.computes.append(_compute(puller, value, targets.get(value, value)))
            if value == contraction:
                self.accumulators.append(targets[value])
                if value in link.outputs:
                    self.computes.append(_copy(puller, self.computes[-1], value))
        self.made |= {v: v for v in link.outputs}


def _items(group: FusionGroup, graph: Graph, env: ShapeEnv) -> Iterator[Item]:
    for position, node in enumerate(group.nodes):
        if not is_view(node):
            yield from (item_of(graph, env, node, k, position) for k, value in enumerate(node.outputs) if value)


def _compute(puller: Puller, value: str, name: str) -> Compute:
    made_type, order = value_type(puller.graph, puller.env, value), puller.order(value)
    axes = tuple(puller.new_axis("i", extent) for extent in made_type.shape)
    target = Buffer(name, made_type.dtype, tuple(made_type.shape[d] for d in order))
    made = puller.written(value, tuple(Var(a.name) for a in axes))
    return compute_of(target, tuple(axes[d] for d in order), _fastest_last(made) if value in puller.orders else made)


def _fastest_last(body: Body) -> Body:
    """A sum whose innermost axis is the one along which the elements of its first operand that has such are consecutive."""
    if not isinstance(body, Reduction):
        return body
    names = [axis.name for axis in body.axes]
    last = [load.index[-1] for load in loads(body.body) if load.index]
    found = next((e.name for e in last if isinstance(e, Var) and e.name in names), names[-1])
    return replace(body, axes=tuple(sorted(body.axes, key=lambda axis: axis.name == found)))


def _copy(puller: Puller, source: Compute, value: str) -> Compute:
    """The epilogue that stores a contraction's value as it is."""
    axes = tuple(puller.new_axis("i", a.extent) for a in source.axes)
    at = tuple(Var(a.name) for a in axes)
    return Compute(Buffer(value, source.target.dtype, source.target.shape), axes, Load(source.target, at))


# -- what is stored --------------------------------------------------------------------------------------------

def stored_values(group: FusionGroup, items: dict[str, Item], producers: Producers) -> set[str]:
    """The values of a group that get a Compute: reductions, outputs and, in a reduction's kernel, what is used more than once
    and costly, row statistics that whole rows read, and what ties the parts of the kernel together. All others are inlined."""
    needed = {v for v, item in items.items() if v in group.outputs or item.kind in _ANCHORS}
    if group.kind is not PatternKind.REDUCE:
        return needed
    readers = _readers(items, producers)
    needed |= _statistics(items, readers, producers)
    storable = _storable(items, readers, needed)
    everything = _weights(items, needed, producers)
    stored, copies = set(needed), dict[str, int]()
    for value in reversed(items):  # the last value of a costly chain, which makes the earlier ones single-use
        copies[value] = sum(1 if r in stored else copies[r] for r in readers.get(value, ()))
        if copies[value] > 1 and value in storable and _is_costly(items[value], everything[value]):
            stored.add(value)
    weights: dict[str, int] = {}
    for value, item in items.items():  # what is cheap to make from other stored values need not be stored
        weights[value] = item.weight + sum(weights[s] for s in _sources(item, items, producers) if s not in stored)
        if value not in needed and not _is_costly(item, weights[value]):
            stored.discard(value)
    candidates = [v for v in items if v in storable and v not in stored]
    return stored | _ties(candidates, list(items), stored, readers)


def _statistics(items: dict[str, Item], readers: Readers, producers: Producers) -> set[str]:
    """Values made from reductions that larger values read: one a row, so computed once a row."""
    after: set[str] = set()
    for value, item in items.items():
        if item.kind in _ANCHORS or any(s in after for s in _sources(item, items, producers)):
            after.add(value)
    return {v for v in after if not items[v].is_map and any(
        items[r].kind not in _ANCHORS and _count(items[r]) != _count(items[v]) for r in readers.get(v, ()))}


def _storable(items: dict[str, Item], readers: Readers, stored: set[str]) -> set[str]:
    """Values of as many elements as a reduction's operand or result, all of whose readers read them at their own rows."""
    reductions = [item for item in items.values() if item.operand]
    counts = {product(item.operand) for item in reductions} | {_count(item) for item in reductions}
    by_rows: dict[str, bool] = {}
    for value in reversed(items):
        found = readers.get(value, ())
        by_rows[value] = all(items[r].kind in _ROW_KINDS and (r in stored or by_rows[r]) for r in found)
    return {v for v, item in items.items() if by_rows[v] and not item.is_map and _count(item) in counts}


def _is_costly(item: Item, weight: int) -> bool:
    return item.expensive or weight > RECOMPUTE_LIMIT


def _weights(items: dict[str, Item], stored: set[str], producers: Producers) -> dict[str, int]:
    """The operations it takes to recompute each value from stored ones."""
    result: dict[str, int] = {}
    for value, item in items.items():
        result[value] = item.weight + sum(result[s] for s in _sources(item, items, producers) if s not in stored)
    return result


def _ties(candidates: list[str], order: list[str], stored: set[str], readers: Readers) -> set[str]:
    """Of `candidates`, inlined values whose storing connects Computes that would otherwise share inputs only, so that rows can
    be matched."""
    reach: dict[str, set[str]] = {}  # the Computes whose bodies a value is written out in
    for value in reversed(order):
        reach[value] = {x for r in readers.get(value, ()) for x in ({r} if r in stored else reach[r])}
    part = {v: v for v in stored}

    def find(value: str) -> str:
        while part[value] != value:
            value = part[value]
        return value

    for value in stored:
        for reader in reach[value]:
            part[find(reader)] = find(value)
    ties: set[str] = set()
    for value in candidates:
        parts = {find(r) for r in reach[value]}
        if len(parts) > 1:
            ties.add(value)
            first = parts.pop()
            part |= {p: first for p in parts}
    return ties


_ROW_KINDS = (PatternKind.ELEMENTWISE, PatternKind.REDUCE, PatternKind.BROADCAST)
_ANCHORS = (PatternKind.CONTRACTION, PatternKind.REDUCE)


def _count(item: Item) -> SymExpr:
    return product(item.type.shape)


def _sources(item: Item, items: dict[str, Item], producers: Producers) -> list[str]:
    return [base for r in item.reads if (base := resolve(r, producers)) in items]


def _readers(items: dict[str, Item], producers: Producers) -> Readers:
    result: dict[str, list[str]] = {}
    for value, item in items.items():
        for source in _sources(item, items, producers):
            result.setdefault(source, []).append(value)
    return result

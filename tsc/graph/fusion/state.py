"""The state of fusion: kernel values, which index maps are inlined everywhere, who reads whom, and the groups made so far."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import numpy as np

from tsc.graph.dataflow import Element, Item, items_of, scalar_constant, value_type
from tsc.graph.fusion.group import Decision
from tsc.graph.pull import Puller
from tsc.graph.views import resolve
from tsc.ir import Graph, Node
from tsc.ops.base import PatternKind, Reduction
from tsc.sym import ShapeEnv, SymExpr, product
from tsc.te.expr import Expr, Load, Var, loads, map_loads, walk
from tsc.te.index import by_integer
from tsc.te.linear import linear, simplify
from tsc.te.passes.transform import flattened


@dataclass(slots=True)
class Draft:
    """A group in the making: its anchor value, its member values, what they read (one another too), and what was decided about
    it. A chain has the two groups that it joins as `links`."""

    anchor: str
    kind: PatternKind
    members: set[str]
    reads: set[str]
    decisions: list[Decision] = field(default_factory=list)
    links: tuple[Draft, ...] = ()


@dataclass(slots=True)
class Fusion:
    """Kernel values are the live values that nodes compute, less views and `free` values (index maps inlined wherever read).

    `kept` are values that must exist in memory as they are: graph outputs and the roots of views that are. `waits` has the
    values that must be there before others are begun, which do not read them: their counts are sizes of those.
    """

    graph: Graph
    env: ShapeEnv
    producers: dict[str, Node]
    items: dict[str, Item]
    kept: set[str]
    free: set[str] = field(default_factory=set)
    sources: dict[str, tuple[str, ...]] = field(default_factory=dict)
    readers: dict[str, list[str]] = field(default_factory=dict)
    drafts: list[Draft] = field(default_factory=list)
    owner: dict[str, Draft] = field(default_factory=dict)
    waits: dict[str, tuple[str, ...]] = field(default_factory=dict)

    # -- reading -----------------------------------------------------------------------------------------------

    def base(self, value: str) -> str:
        """The value whose memory `value` is."""
        return resolve(value, self.producers)

    def shape(self, value: str) -> tuple[SymExpr, ...]:
        """The canonical shape of any value."""
        return value_type(self.graph, self.env, value).shape

    def count(self, value: str) -> SymExpr:
        """How many elements a value has."""
        return self.env.canon(product(self.shape(value)))

    def trace(self, value: str) -> tuple[str, list[str]]:
        """The kernel value (or input) that reading `value` ends at, and the free values on the way; generated values end at
        themselves."""
        passed: list[str] = []
        base = self.base(value)
        while base in self.free and self.items[base].reads:
            passed.append(base)
            base = self.base(self.items[base].reads[0])
        return base, passed

    def name(self, value: str) -> str:
        """How decisions call a value: its ONNX node."""
        node = self.producers.get(value)
        return value if node is None else node.name or f"{node.op} '{value}'"

    def outputs(self, members: Collection[str]) -> list[str]:
        """The members that are needed outside, in graph order."""
        return [v for v in self.ordered(members) if v in self.kept or any(r not in members for r in self.readers.get(v, ()))]

    def kernel_reads(self, value: str) -> list[str]:
        """The kernel values that a value's body reads, once per load, through views and free values."""
        result = []
        for read in self.items[value].reads:
            base = self.base(read)
            if base in self.free:
                result += self.kernel_reads(base)
            elif base in self.items:
                result.append(base)
        return result

    def ordered(self, values: Iterable[str]) -> list[str]:
        """Values in graph order."""
        return sorted(values, key=lambda v: (self.items[v].position, self.items[v].output))

    # -- legality ----------------------------------------------------------------------------------------------

    def makes_cycle(self, members: Collection[str]) -> bool:
        """Whether a group of `members` would depend on itself through other groups."""
        seen: set[str] = set()
        counts = [s for v in members for s in self.waits.get(v, ())]
        if any(count in members for count in counts):
            return True
        pending = counts + [s for v in members for s in self.sources[v] if s not in members]
        while pending:
            value = pending.pop()
            if value in members:
                return True
            if value in seen:
                continue
            draft = self.owner.get(value)
            if draft is None:
                seen.add(value)
                pending.extend((*self.sources[value], *self.waits.get(value, ())))
            else:
                seen |= draft.members
                pending.extend(draft.reads - draft.members)
                pending.extend(count for member in draft.members for count in self.waits.get(member, ()))
        return False

    # -- changing ----------------------------------------------------------------------------------------------

    def start(self, anchor: str, kind: PatternKind) -> Draft:
        """A new group of one value."""
        draft = Draft(anchor, kind, {anchor}, {*self.sources[anchor]})
        self.drafts.append(draft)
        self.owner[anchor] = draft
        return draft

    def join(self, draft: Draft, value: str, reason: str) -> None:
        """Add a value to a group, with the reason."""
        draft.members.add(value)
        draft.reads.update(self.sources[value])
        self.owner[value] = draft
        draft.decisions.append(Decision(self.name(value), self.name(draft.anchor), True, reason))

    def leave(self, draft: Draft, value: str, reason: str) -> None:
        """Take a value out of a group again, with the reason."""
        draft.members.discard(value)
        draft.reads = {s for m in draft.members for s in self.sources[m]}
        del self.owner[value]
        draft.decisions = [d for d in draft.decisions if d.node != self.name(value)]
        self.refuse(draft, value, reason)

    def chain(self, first: Draft, second: Draft, reason: str) -> Draft:
        """One group in place of two, the first of which hands values on to the second; with the reason. That the one refused
        what is in the other is no longer so."""
        members = first.members | second.members
        names = {self.name(v) for v in members}
        decisions = [d for d in (*first.decisions, *second.decisions) if d.fused or d.node not in names]
        decisions.append(Decision(self.name(second.anchor), self.name(first.anchor), True, reason))
        joined = Draft(first.anchor, first.kind, members, first.reads | second.reads, decisions, (first, second))
        self.drafts = [joined if d is first else d for d in self.drafts if d is not second]
        self.owner |= dict.fromkeys(joined.members, joined)
        return joined

    def refuse(self, draft: Draft, value: str, reason: str) -> None:
        """Record why a value is not in a group."""
        decision = Decision(self.name(value), self.name(draft.anchor), False, reason)
        if decision not in draft.decisions:
            draft.decisions.append(decision)


def analyse(graph: Graph, env: ShapeEnv) -> Fusion:
    """The graph ready for the fusion passes: free index maps decided, dependences between kernel values known."""
    producers = graph.producers()
    items = items_of(graph, env)
    kept = {resolve(o, producers) for o in graph.outputs}
    fusion = Fusion(graph, env, producers, items, kept)
    _decide_free(fusion)
    for value in items:
        if value not in fusion.free:
            found = dict.fromkeys(fusion.kernel_reads(value))
            fusion.sources[value] = tuple(found)
            for source in found:
                fusion.readers.setdefault(source, []).append(value)
    told = _counts_by_name(fusion)
    for value in fusion.sources if told else ():
        counts = {count for name in _dims_in(fusion, value) for count in told.get(name, ())}
        if counts:
            fusion.waits[value] = tuple(sorted(counts))
    return fusion


# -- sizes that the data tell ----------------------------------------------------------------------------------

def _counts_by_name(fusion: Fusion) -> dict[str, frozenset[str]]:
    """The kernel values that a run has to have before it knows a Dim, by its name, where there are any."""
    found = {name: frozenset([fusion.trace(value)[0]]) for name, value in fusion.graph.counts.items()}
    for name, value in fusion.env.definitions().items():
        found[name] = frozenset[str]().union(*(found.get(own, frozenset()) for own in value.dims()))
    return found if fusion.graph.counts else {}


def _dims_in(fusion: Fusion, value: str) -> set[str]:
    """The Dims in a kernel value's shape and body."""
    found: set[str] = set()
    for read in (value, *fusion.items[value].reads):
        found |= {name for size in fusion.shape(read) for name in size.dims()}
        found |= {name for size in fusion.graph.contents.get(read, np.empty(0, object)).ravel() for name in size.dims()}
        base = fusion.base(read)
        if base != value and base in fusion.free:
            found |= _dims_in(fusion, base)
    return found


# -- free index maps -------------------------------------------------------------------------------------------

def _decide_free(fusion: Fusion) -> None:
    """A map (or a cheap generated value) is free when every kernel that reads it can take its index into its own accesses.

    Consumers are asked last to first, so that a chain of maps is judged as composed.
    """
    reading: dict[str, list[str]] = {}
    for value, item in fusion.items.items():
        for read in dict.fromkeys(item.reads):
            reading.setdefault(fusion.base(read), []).append(value)
    for value in reversed(fusion.items):
        item = fusion.items[value]
        if not (item.is_map or item.is_generated) or value in fusion.kept or value not in reading:
            continue
        fusion.free.add(value)
        if not all(_accepts(fusion, reader) for reader in _final_readers(fusion, value, reading)):
            fusion.free.discard(value)


def _final_readers(fusion: Fusion, value: str, reading: dict[str, list[str]]) -> dict[str, None]:
    result: dict[str, None] = {}
    for reader in reading.get(value, ()):
        result |= _final_readers(fusion, reader, reading) if reader in fusion.free else {reader: None}
    return result


def _accepts(fusion: Fusion, reader: str) -> bool:
    """Whether the reader's accesses stay within what its pattern schedules well, with all free values inlined."""
    item = fusion.items[reader]
    if item.kind is PatternKind.OPAQUE:
        return False
    element = pulled(fusion, reader, fusion.free | {reader}, {})
    found = list(loads(element.body))
    if item.kind is PatternKind.CONTRACTION:
        if len(found) != len(item.reads) or not found:
            return False  # `x - x` reads nothing
        own = {a.name for a in element.reduction.axes} if element.reduction is not None else set()
        batch = frozenset[str].intersection(*(_axes(load) for load in found)) - own
        return all(_is_affine_within(i, batch) for load in found for i in load.index)
    return all(by_integer(e) for load in found for i in load.index for e in walk(i))


def _axes(load: Load) -> frozenset[str]:
    return frozenset(e.name for i in load.index for e in walk(i) if isinstance(e, Var))


def _is_affine_within(place: Expr, batch: Collection[str]) -> bool:
    """Whether an index of a contraction's operand is affine within a batch, the dims of the result that all operands have:
    heads in groups read the same keys at `head // size`."""
    return linear(place).is_affine() or all(
        by_integer(e) and (not isinstance(e, Var) or e.name in batch) for e in walk(place))


def pulled_loads(fusion: Fusion, value: str, computed: Collection[str], targets: dict[str, str]) -> list[Load]:
    """The loads of `value`'s body with all of `computed` inlined down to `targets` and inputs, their indices simplified."""
    return list(loads(pulled(fusion, value, computed, targets).body))


def pulled(fusion: Fusion, value: str, computed: Collection[str], targets: dict[str, str]) -> Element:
    """The Element of `value` with all of `computed` inlined down to `targets` and inputs."""
    puller = Puller(fusion.graph, fusion.env, fusion.producers, computed, targets)
    axes = tuple(puller.new_axis("d", extent) for extent in fusion.shape(value))
    made = puller.written(value, tuple(Var(a.name) for a in axes))
    ranges = puller.ranges()
    body = simplify(made if isinstance(made, Expr) else made.body, ranges)
    body = map_loads(lambda load: load if load.buffer.name in targets else flattened(load, ranges), body)
    return Element(body, made if isinstance(made, Reduction) else None, dict(ranges.extents))


def path_nodes(fusion: Fusion, members: Collection[str]) -> list[Node]:
    """The nodes of a group in graph order: its members', and the views and free values that its reads pass through."""
    nodes: dict[str, Node] = {v: fusion.items[v].node for v in members}
    pending = [r for v in members for r in fusion.items[v].reads]
    while pending:
        value = pending.pop()
        base = fusion.base(value)
        if base not in members and base not in fusion.free:
            continue
        while value != base:
            nodes[value] = fusion.producers[value]
            value = fusion.producers[value].inputs[0]
        if base in fusion.free and base not in nodes:
            nodes[base] = fusion.items[base].node
            pending += fusion.items[base].reads
    position = {id(node): k for k, node in enumerate(fusion.graph.nodes)}
    return sorted({id(n): n for n in nodes.values()}.values(), key=lambda n: position[id(n)])


def group_inputs(fusion: Fusion, members: Collection[str]) -> list[str]:
    """The stored values that a group reads from outside (constants of one element are literals), in order of first read."""
    result: dict[str, None] = {}

    def visit(value: str) -> None:
        for read in fusion.items[value].reads:
            base = fusion.base(read)
            if base in fusion.free:
                visit(base)
            elif base not in members and not scalar_constant(fusion.graph, base):
                result.setdefault(base)

    for member in fusion.ordered(members):
        visit(member)
    return list(result)

"""Fusion: a prioritised pipeline around anchors. Section 4.2 of the paper: contractions first, then reductions, then the rest.

Each pass is a list of rules that return None or the reason for a refusal; every reason is kept in the group's decisions.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence

from tsc.graph.dataflow import Item, value_type
from tsc.graph.fusion.chain import chain_level
from tsc.graph.fusion.group import FusionGroup
from tsc.graph.fusion.reduce import reduce_level
from tsc.graph.fusion.state import Draft, Fusion, analyse, group_inputs, path_nodes, pulled, pulled_loads
from tsc.ir import Graph
from tsc.ops.base import PatternKind
from tsc.ops.control import runs_graphs
from tsc.ops.shapes import HALVES
from tsc.sym import ONE, ShapeEnv
from tsc.target import DeviceSpec
from tsc.te.expr import Var, item_bytes, loads, variables

Level = Callable[[Fusion, DeviceSpec], None]

#: A kernel writes at most this many tensors: each one more keeps registers and cache lines busy.
MAX_OUTPUTS = 2
#: What is inlined may take at most this many operations a point once values used twice are written out twice.
BODY_LIMIT = 200
#: A value smaller than what reads it is recomputed in place only if that takes no more operations than this.
CHEAP = 24
#: What makes an operand of fewer bytes may take so many operations an element: each block of rows does it again.
UNPACKING = 64


def fuse(graph: Graph, env: ShapeEnv, spec: DeviceSpec, levels: Sequence[Level] | None = None) -> tuple[FusionGroup, ...]:
    """Every live value of a graph of primitives in exactly one group, in executable order. `levels` default to LEVELS. What is
    proposed for a device may still be refused where it is scheduled, and is split then.

    Views belong to no group's outputs: they are their root's memory (`graph/views.py`). Index maps that all readers can take
    into their own accesses appear in each reader's group and are never stored.
    """
    fusion = analyse(graph, env)
    for level in LEVELS if levels is None else levels:
        level(fusion, spec)
    return _in_order(fusion)


# -- contraction level -----------------------------------------------------------------------------------------

def contraction_level(fusion: Fusion, spec: DeviceSpec) -> None:
    """Each contraction anchors a group that grows forward over its epilogue, and back over what its windows read and, where
    copies are vectors, over what makes its columns of fewer bytes."""
    for value, item in fusion.items.items():
        if item.kind is PatternKind.CONTRACTION:
            draft = fusion.start(value, PatternKind.CONTRACTION)
            _grow_epilogue(fusion, draft)
            _trim_epilogue(fusion, draft)
            _grow_prologue(fusion, draft)
            if spec.gpu is None:
                _grow_unpacked(fusion, draft)
                _grow_put_together(fusion, draft)


def _grow_epilogue(fusion: Fusion, draft: Draft) -> None:
    """In graph order, so that a value is asked after everything it reads has been."""
    weights = {draft.anchor: 1}
    asked: set[str] = set()
    while True:
        candidates = {r for m in draft.members for r in fusion.readers.get(m, ())} - draft.members - asked
        if not candidates:
            return
        value = fusion.ordered(candidates)[0]
        asked.add(value)
        weights[value] = fusion.items[value].weight + sum(weights.get(s, 0) for s in _member_reads(fusion, draft, value))
        reason = _epilogue_refusal(fusion, draft, value, weights[value])
        if reason is None:
            fusion.join(draft, value, "epilogue: element by element over the contraction's result")
        else:
            fusion.refuse(draft, value, reason)


def _member_reads(fusion: Fusion, draft: Draft, value: str) -> list[str]:
    return [base for r in fusion.items[value].reads if (base := fusion.trace(r)[0]) in draft.members]


def _epilogue_refusal(fusion: Fusion, draft: Draft, value: str, weight: int) -> str | None:
    item = fusion.items[value]
    if value in fusion.owner:
        return f"it is in the kernel of {fusion.name(fusion.owner[value].anchor)} already"
    if item.kind in (PatternKind.CONTRACTION, PatternKind.REDUCE):
        return f"a {item.kind.value} anchors a kernel of its own"
    if item.kind is not PatternKind.ELEMENTWISE and not item.is_permutation:
        return "it moves data in a way that no epilogue can store"
    if fusion.count(value) != fusion.count(draft.anchor):
        return "its shape differs from the contraction's"
    for read in item.reads:
        base, passed = fusion.trace(read)
        if base not in draft.members:
            continue
        if not all(fusion.items[p].is_permutation for p in passed):
            return f"it reads only a part of {fusion.name(base)}, or repeats it"
        if item.kind is PatternKind.ELEMENTWISE and fusion.shape(read) != item.type.shape:
            return f"it broadcasts {fusion.name(base)}"
        if _changes_width(fusion.items[base].type.dtype, item.type.dtype):
            return "it changes the width of floats: casts stay out of a contraction's kernel (section 4.2)"
    if weight > BODY_LIMIT:
        return f"the epilogue would take over {BODY_LIMIT} operations a point"
    if fusion.makes_cycle(draft.members | {value}):
        return "it needs a value that is made from this kernel's result by another kernel"
    found = pulled_loads(fusion, value, fusion.free | draft.members | {value}, {draft.anchor: draft.anchor})
    if len({load.index for load in found if load.buffer.name == draft.anchor}) != 1:
        return "it combines different points of the contraction's result"
    return None


def _changes_width(source: str, target: str) -> bool:
    """Halves do not count: only factors of other products are stored so (`rewriting/narrow.py`)."""
    floats = ("float", "bfloat")
    return source != target and source.startswith(floats) and target.startswith(floats) and target not in HALVES


def _trim_epilogue(fusion: Fusion, draft: Draft) -> None:
    """Give back last members while there are too many outputs, and such as only a reduction reads while the value they are
    made from is stored anyway: the reduction's kernel makes them for less."""
    while True:
        outputs = fusion.outputs(draft.members)
        sinks = [v for v in reversed(outputs) if v != draft.anchor
                 and not any(r in draft.members for r in fusion.readers.get(v, ()))]
        for value in sinks if len(outputs) > 1 else ():
            feeds_reduction = value not in fusion.kept and all(
                fusion.items[r].kind is PatternKind.REDUCE for r in fusion.readers[value])
            if feeds_reduction:
                fusion.leave(draft, value, "only a reduction reads it: left to the reduce level")
                break
            if len(outputs) > MAX_OUTPUTS:
                fusion.leave(draft, value, f"the kernel would write more than {MAX_OUTPUTS} tensors")
                break
        else:
            return


def _grow_prologue(fusion: Fusion, draft: Draft) -> None:
    """Last to first: what is composed into the copy of an operand may be made from something that is, too. All of it is
    computed again for every window: what takes more than CHEAP together is left where fewest bytes are read."""
    asked: set[str] = set()
    made: list[str] = []
    while candidates := {s for m in (draft.anchor, *made) for s in fusion.sources[m]} - draft.members - asked - {*made}:
        value = fusion.ordered(candidates)[-1]
        asked.add(value)
        reason = _prologue_refusal(fusion, draft, {draft.anchor, *made}, value)
        if reason is None:
            made.append(value)
        elif value not in fusion.owner:
            fusion.refuse(draft, value, reason)
    kept = _cheap_part(fusion, draft.anchor, made)
    for value in made[:kept]:
        fusion.join(draft, value, "prologue: computed where the contraction's operand is copied")
    for value in made[kept:]:
        fusion.refuse(draft, value, "with what is made of it, it is too costly to compute again for every window")


def _cheap_part(fusion: Fusion, anchor: str, made: Sequence[str]) -> int:
    """How many of the values that an operand is `made` of, last to first, are composed into its copy: all where they are cheap
    together, else those after which the copy reads fewest bytes an element, as long as they are."""
    copies, weight, best, fewest = {anchor: 1}, 0, 0, -1
    for n in range(len(made) + 1):
        if n:
            value = made[n - 1]
            copies[value] = _written_out(fusion, value, (anchor, *made[:n - 1]), copies)
            weight += fusion.items[value].weight * copies[value]
        known = {anchor, *made[:n]}
        left = {fusion.trace(r)[0] for m in known for r in fusion.items[m].reads} - known
        read = sum(item_bytes(value_type(fusion.graph, fusion.env, v).dtype) for v in left - fusion.graph.constants.keys())
        if weight <= CHEAP and (fewest < 0 or read <= fewest):
            best, fewest = n, read
    return len(made) if weight <= CHEAP else best


def _prologue_refusal(fusion: Fusion, draft: Draft, inner: set[str], value: str) -> str | None:
    item = fusion.items[value]
    if value in fusion.owner or item.kind in (PatternKind.CONTRACTION, PatternKind.REDUCE, PatternKind.OPAQUE):
        return f"a {item.kind.value} anchors a kernel of its own"
    outside = [r for r in fusion.readers[value] if r not in inner]
    if value in fusion.kept or outside:
        other = fusion.name(outside[0]) if outside else "the model's caller"
        return f"{other} reads it too"
    if item.expensive or item.weight > CHEAP:
        return "it is too costly to compute again for every window that it is part of"
    windows, channels = _in_windows(fusion, draft.anchor, inner, value)
    if not windows:
        return "it is not read by windows: without a copy of the operand it would be computed for every column"
    if fusion.items[draft.anchor].type.dtype == "int32" and not item.is_map and (channels or _puts_together(item)):
        return "whole numbers are brought to few bits, or to words, once, not for every window"
    if fusion.makes_cycle(draft.members | inner | {value}):
        return "it needs a value that is made from this kernel's result by another kernel"
    return None


def _in_windows(fusion: Fusion, anchor: str, inner: set[str], value: str) -> tuple[bool, bool]:
    """Whether the contraction reads `value` at sums of its own axes and its reduce axes: that operand is copied in any case;
    and whether it sums up along an axis of that operand besides."""
    element = pulled(fusion, anchor, fusion.free | inner, {value: value})
    axes = element.reduction.axes if element.reduction is not None else ()
    reduced = {a.name for a in axes if a.extent != ONE}
    places = [variables(i) for load in loads(element.body) if load.buffer.name == value for i in load.index]
    windows = any(names & reduced and names - {a.name for a in axes} for names in places)
    return windows, any(names and names <= reduced for names in places)


def _grow_unpacked(fusion: Fusion, draft: Draft) -> None:
    """What makes a column operand of half its bytes or less, as weights of few bits are: all of it or nothing, since a part of
    it in memory is as large as the operand."""
    for value in fusion.ordered(fusion.sources[draft.anchor]):
        inner = _made_for(fusion, draft.anchor, value)
        if not inner or fusion.makes_cycle(draft.members | inner) or not _in_columns(fusion, draft.anchor, value):
            continue
        read = {fusion.trace(r)[0] for member in inner for r in fusion.items[member].reads} - inner
        sizes = [_bytes(fusion, v) for v in (value, *sorted(read))]
        if None in sizes or 2 * sum(size or 0 for size in sizes[1:]) > (sizes[0] or 0):
            continue
        for member in fusion.ordered(inner):
            fusion.join(draft, member, "prologue: computed where the contraction's operand is copied, of fewer bytes")


def _grow_put_together(fusion: Fusion, draft: Draft) -> None:
    """Elements of a column operand that are made of several others of no more bytes, as words are: where it is copied for more
    than one row of the other operand, that is done in passing."""
    for value in fusion.ordered(fusion.sources[draft.anchor]):
        item = fusion.items[value]
        if not _puts_together(item) or not _is_made_within(fusion, value, {draft.anchor}):
            continue
        read = sum(item_bytes(value_type(fusion.graph, fusion.env, r).dtype) for r in item.reads)
        if read <= item_bytes(item.type.dtype) and _is_copied_once(fusion, draft.anchor, value) and not fusion.makes_cycle(
                {*draft.members, value}):
            fusion.join(draft, value, "prologue: put together where the contraction's operand is copied")


def _puts_together(item: Item) -> bool:
    """Whether an element is made of several of one other value."""
    return item.kind is PatternKind.INJECTIVE and len({*item.reads}) == 1 < len(item.reads)


def _is_copied_once(fusion: Fusion, anchor: str, value: str) -> bool:
    """Whether a contraction reads each element of `value` in one column of its own last axis, for all of another axis."""
    element = pulled(fusion, anchor, fusion.free, {value: value})
    wide = {name for name, extent in element.extents.items() if extent != ONE}
    found = {tuple(frozenset(variables(i) & wide) for i in load.index) for load in loads(element.body)
             if load.buffer.name == value}
    own = list(element.extents)[:len(fusion.shape(anchor))]
    if len(found) != 1:
        return False
    places = found.pop()
    used = frozenset[str]().union(*places)
    return all(len(names) <= 1 for names in places) and places[-1:] == (frozenset(own[-1:]),) and any(
        name in wide and name not in used for name in own)


def _made_for(fusion: Fusion, anchor: str, value: str) -> set[str]:
    """A value and what else is cheaply computed element by element for it alone; nothing where it is not. Last to first, as
    `_grow_backward` goes, which says what `copies` are."""
    inner, copies, asked, candidates = set[str](), {value: 1}, set[str](), {value}
    while candidates:
        found = fusion.ordered(candidates)[-1]
        asked.add(found)
        if _is_made_within(fusion, found, inner | {anchor}):
            copies.setdefault(found, _written_out(fusion, found, inner, copies))
            inner.add(found)
        candidates = {s for m in inner for s in fusion.sources[m]} - asked
    return inner if sum(fusion.items[m].weight * copies[m] for m in inner) <= UNPACKING else set()


def _is_made_within(fusion: Fusion, value: str, readers: set[str]) -> bool:
    """Whether a value is computed element by element, for such readers alone."""
    item = fusion.items[value]
    return not (value in fusion.owner or value in fusion.kept or item.expensive or {*fusion.readers[value]} - readers
                or item.kind in (PatternKind.CONTRACTION, PatternKind.REDUCE, PatternKind.OPAQUE))


def _in_columns(fusion: Fusion, anchor: str, value: str) -> bool:
    """Whether the contraction reads `value` in one way, along its own last axis."""
    element = pulled(fusion, anchor, fusion.free, {value: value})
    found = {load.index for load in loads(element.body) if load.buffer.name == value}
    rank = len(fusion.shape(anchor))
    if len(found) != 1 or not rank or () in found:
        return False
    *others, column = found.pop()
    name = list(element.extents)[rank - 1]
    return column == Var(name) and not any(name in variables(place) for place in others)


def _bytes(fusion: Fusion, value: str) -> int | None:
    count = fusion.count(value).as_int()
    return None if count is None else count * item_bytes(value_type(fusion.graph, fusion.env, value).dtype)


# -- the rest --------------------------------------------------------------------------------------------------

def injective_level(fusion: Fusion, spec: DeviceSpec) -> None:
    """What no anchor has taken: each value needed by another kernel anchors a group of all that only it reads."""
    for value in reversed(fusion.ordered(v for v in fusion.items if v not in fusion.free)):
        if value not in fusion.owner:
            kind = fusion.items[value].kind
            draft = fusion.start(value, kind if kind is PatternKind.OPAQUE else PatternKind.INJECTIVE)
            if kind is not PatternKind.OPAQUE:
                _grow_backward(fusion, draft)
            elif runs_graphs(fusion.items[value].node):
                for other in fusion.items[value].node.outputs:
                    if other in fusion.items and other != value:
                        fusion.join(draft, other, "one node makes both")


def _grow_backward(fusion: Fusion, draft: Draft) -> None:
    """Last to first, so that all members that read a value are known when it is asked; `copies` counts how often the kernel
    then writes its body out."""
    copies = {draft.anchor: 1}
    asked: set[str] = set()
    while True:
        candidates = {s for m in draft.members for s in fusion.sources[m]} - draft.members - asked
        if not candidates:
            return
        value = fusion.ordered(candidates)[-1]
        asked.add(value)
        copies[value] = _written_out(fusion, value, draft.members, copies)
        reason = _inline_refusal(fusion, draft, value, copies)
        if reason is None:
            fusion.join(draft, value, "inlined: nothing else reads it")
        else:
            fusion.refuse(draft, value, reason)


def _written_out(fusion: Fusion, value: str, readers: Iterable[str], copies: Mapping[str, int]) -> int:
    """How often a value's body is written out in a kernel where those of its readers are so often."""
    return sum(fusion.kernel_reads(m).count(value) * copies[m] for m in readers)


def _inline_refusal(fusion: Fusion, draft: Draft, value: str, copies: dict[str, int]) -> str | None:
    item = fusion.items[value]
    if value in fusion.owner:
        return f"it is in the kernel of {fusion.name(fusion.owner[value].anchor)} already"
    if item.kind is PatternKind.OPAQUE:
        return "it is opaque"
    if value in fusion.kept:
        return "it is an output of the model"
    outside = [r for r in fusion.readers[value] if r not in draft.members]
    if outside:
        return f"{fusion.name(outside[0])} reads it too"
    if fusion.count(value) != fusion.count(draft.anchor) and (item.expensive or item.weight > CHEAP):
        return "it is smaller than what reads it and too costly to compute again and again"
    if sum(fusion.items[m].weight * copies[m] for m in (*draft.members, value)) > BODY_LIMIT:
        return f"the kernel would take over {BODY_LIMIT} operations a point"
    return None


#: In the order of section 4.2; groups that keep each other's rows are joined last.
LEVELS: tuple[Level, ...] = (contraction_level, reduce_level, injective_level, chain_level)


# -- groups ----------------------------------------------------------------------------------------------------

def _in_order(fusion: Fusion) -> tuple[FusionGroup, ...]:
    """The groups in executable order: by dependence, then by where their first value stands in the graph."""
    number = {id(draft): k for k, draft in enumerate(fusion.drafts)}
    waits = {k: {number[id(fusion.owner[s])] for v in draft.members for s in fusion.sources[v]} - {k}
             for k, draft in enumerate(fusion.drafts)}
    first = {k: min(fusion.items[v].position for v in draft.members) for k, draft in enumerate(fusion.drafts)}
    followers: dict[int, list[int]] = {}
    for k, needed in waits.items():
        for other in needed:
            followers.setdefault(other, []).append(k)
    ready = [(first[k], k) for k, needed in waits.items() if not needed]
    heapq.heapify(ready)
    groups: list[FusionGroup] = []
    while ready:
        _, k = heapq.heappop(ready)
        groups.append(_finished(fusion, fusion.drafts[k], len(groups)))
        for follower in followers.get(k, ()):
            waits[follower].discard(k)
            if not waits[follower]:
                heapq.heappush(ready, (first[follower], follower))
    return tuple(groups)


def _finished(fusion: Fusion, draft: Draft, number: int, link: bool = False) -> FusionGroup:
    """The group of a draft; a link's decisions are its chain's."""
    anchor = fusion.items[draft.anchor].node
    return FusionGroup(
        f"{number}.{fusion.name(draft.anchor)}", draft.kind, tuple(path_nodes(fusion, draft.members)), anchor,
        tuple(group_inputs(fusion, draft.members)), tuple(fusion.outputs(draft.members)),
        () if link else tuple(draft.decisions), tuple(_finished(fusion, d, number, True) for d in draft.links))

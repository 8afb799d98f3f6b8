"""The reduce level of fusion: reductions over the same rows are stitched into one kernel with what stands between and around.

Softmax and layer norm, decomposed into primitives, become one kernel each again; nothing here knows their names.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tsc.graph.fusion.state import Draft, Fusion
from tsc.ops.base import PatternKind
from tsc.sym import ONE, SymExpr, product
from tsc.target import DeviceSpec

Shape = tuple[SymExpr, ...]

#: A stitched kernel writes at most this many tensors, and this many row statistics, which are one element a row.
MAX_OUTPUTS, MAX_STATISTICS = 2, 4
#: A stitched kernel computes at most this many values: a dozen norms. To schedule twice as many takes more than isl may do.
MAX_MEMBERS = 96
#: A producer smaller than a full row is recomputed for each row only if that takes no more operations than this.
CHEAP = 24
#: What is not read row by row cannot be stored by rows: inlined, it may take at most this many operations.
SHIFTED_LIMIT = 64

_ROW_BY_ROW = (PatternKind.ELEMENTWISE, PatternKind.REDUCE)


@dataclass(frozen=True, slots=True)
class Rows:
    """What a group's reductions share: the shape reduced and which of its dims are."""

    full: Shape
    reduced: tuple[int, ...]

    @property
    def kept(self) -> Shape:
        """The shape of a row statistic, reduced dims kept as 1."""
        return tuple(ONE if k in self.reduced else d for k, d in enumerate(self.full))

    def is_statistic(self, shape: Shape) -> bool:
        """Whether a tensor of this shape has one element a row."""
        return _without_ones(shape) == _without_ones(self.kept)

    def broadcasts(self, shape: Shape) -> bool:
        """Whether a statistic of this shape lines up with its rows when broadcast to the full shape."""
        return (ONE,) * (len(self.full) - len(shape)) + shape == self.kept


def reduce_level(fusion: Fusion, spec: DeviceSpec) -> None:
    """Each reduction that no group has yet anchors one, which grows both ways until nothing more fits."""
    alike: dict[Rows, list[str]] = {}
    for value, item in fusion.items.items():
        if item.kind is PatternKind.REDUCE:
            alike.setdefault(Rows(item.operand, item.reduced), []).append(value)
    for rows, reductions in alike.items():
        for value in reductions:
            if value not in fusion.owner:
                draft = fusion.start(value, PatternKind.REDUCE)
                if rows.reduced and rows.is_statistic(fusion.shape(value)):  # a running sum has no rows to share
                    _grow(fusion, draft, rows, reductions)
                    _trim(fusion, draft, rows)


def _grow(fusion: Fusion, draft: Draft, rows: Rows, reductions: list[str]) -> None:
    """Forward in graph order, then the other `reductions` of what is reduced here, then backward, again and again: what was
    refused may fit once its readers have joined."""
    grown, shifted = True, dict[str, int]()
    while grown:
        refusals: dict[str, str] = {}
        grown = _grow_once(fusion, draft, rows, reductions, shifted, refusals)
    for value, reason in refusals.items():
        fusion.refuse(draft, value, reason)


def _grow_once(fusion: Fusion, draft: Draft, rows: Rows, reductions: list[str], shifted: dict[str, int],
               refusals: dict[str, str]) -> bool:
    """One more member, if any fits. `shifted` are the members that are not read row by row, which can only be inlined, with
    the number of times that the kernel writes their bodies out."""
    forward = {r for m in draft.members for r in fusion.readers.get(m, ())} - draft.members
    for value in [*fusion.ordered(forward), *_siblings(fusion, draft, reductions, forward)]:
        reason = _consumer_refusal(fusion, draft, rows, value)
        if reason is None:
            fusion.join(draft, value, "same rows as the reduction")
            return True
        refusals[value] = reason
    backward = {s for m in draft.members for s in fusion.sources[m]} - draft.members
    for value in reversed(fusion.ordered(backward)):
        copies = _shifted_copies(fusion, draft, rows, value, shifted)
        reason = _producer_refusal(fusion, draft, rows, value, copies)
        if reason is None:
            if copies:
                shifted[value] = copies
            fusion.join(draft, value, "computed row by row where the reduction reads it")
            return True
        refusals[value] = reason
    return False


def _siblings(fusion: Fusion, draft: Draft, reductions: list[str], others: set[str]) -> list[str]:
    """Reductions of the same rows that read what a reduction of the group reads, and none of its members."""
    read = {r for m in draft.members & set(reductions) for r in fusion.items[m].reads}
    return [v for v in reductions if v not in fusion.owner and v not in others and not read.isdisjoint(fusion.items[v].reads)]


def _consumer_refusal(fusion: Fusion, draft: Draft, rows: Rows, value: str) -> str | None:
    item = fusion.items[value]
    if (taken := _taken(fusion, draft, value)) is not None:
        return taken
    if item.kind is PatternKind.REDUCE:
        if (item.operand, item.reduced) != (rows.full, rows.reduced):
            return "it reduces other rows"
    elif item.kind is not PatternKind.ELEMENTWISE:
        return f"a {item.kind.value} node does not keep the rows"
    elif item.type.shape != rows.full and not rows.is_statistic(item.type.shape):
        return "its shape is neither the rows' nor a row statistic's"
    for read in item.reads:
        base, passed = fusion.trace(read)
        if base in draft.members:
            if any(fusion.items[p].kind is not PatternKind.BROADCAST for p in passed):
                return f"it reads {fusion.name(base)} in another order"
            shape = fusion.shape(read)
            if shape not in (rows.full, item.type.shape) and not rows.broadcasts(shape):
                return f"it broadcasts {fusion.name(base)} in another way than along rows"
    if fusion.makes_cycle(draft.members | {value}):
        return "it needs a value that is made from this kernel's result by another kernel"
    return None


def _shifted_copies(fusion: Fusion, draft: Draft, rows: Rows, value: str, shifted: dict[str, int]) -> int:
    """How often a value is written out because it is no row, or members read it otherwise than row by row; 0 if neither."""
    total, small = 0, not _has_rows(fusion, rows, value)
    for member in draft.members:
        count = fusion.kernel_reads(member).count(value)
        moved = small or fusion.items[member].kind not in _ROW_BY_ROW or any(
            base == value and passed for r in fusion.items[member].reads for base, passed in [fusion.trace(r)])
        if count and (moved or member in shifted):
            total += count * shifted.get(member, 1)
    return total


def _producer_refusal(fusion: Fusion, draft: Draft, rows: Rows, value: str, shifted_copies: int) -> str | None:
    item = fusion.items[value]
    if (taken := _taken(fusion, draft, value)) is not None:
        return taken
    alike = item.kind is PatternKind.REDUCE and Rows(item.operand, item.reduced) == rows
    if item.kind in (PatternKind.CONTRACTION, PatternKind.REDUCE, PatternKind.OPAQUE) and not alike:
        return f"a {item.kind.value} anchors a kernel of its own"
    outside = [r for r in fusion.readers[value] if r not in draft.members]
    if item.weight * shifted_copies > SHIFTED_LIMIT or (item.expensive and shifted_copies > 1):
        return "it is not read row by row and too costly to compute again and again"
    if alike and shifted_copies:
        return "it is a reduction that is not read row by row"
    if alike:
        return "it needs this kernel's result itself" if fusion.makes_cycle(draft.members | {value}) else None
    if not outside and value not in fusion.kept:
        if _has_rows(fusion, rows, value):
            return None
        if item.expensive or item.weight > CHEAP:
            return "it is smaller than the rows that read it and too costly to compute again for each"
        return None
    other = "the model's caller" if not outside else fusion.name(outside[0])
    if item.type.shape != rows.full:
        return f"{other} reads it too, and it has not the shape of the rows"
    members = draft.members | {value}
    if any(base == value and (passed or fusion.shape(r) != rows.full)
           for m in draft.members for r in fusion.items[m].reads for base, passed in [fusion.trace(r)]):
        return f"{other} reads it too, and it is read in another order here"
    if _too_many(fusion, members, rows):
        return f"{other} reads it too, and the kernel would write more than {MAX_OUTPUTS} tensors"
    if fusion.makes_cycle(members):
        return f"{other} reads it too, and this kernel needs what is made from it there"
    return None


def _has_rows(fusion: Fusion, rows: Rows, value: str) -> bool:
    return fusion.count(value) == fusion.env.canon(product(rows.full)) or rows.is_statistic(fusion.shape(value))


def _too_many(fusion: Fusion, members: Collection[str], rows: Rows) -> bool:
    """Whether a kernel of `members` would write more than it may."""
    outputs = fusion.outputs(members)
    statistics = sum(rows.is_statistic(fusion.shape(v)) for v in outputs)
    return statistics > MAX_STATISTICS or len(outputs) - statistics > MAX_OUTPUTS


def _trim(fusion: Fusion, draft: Draft, rows: Rows) -> None:
    """Give back last members while there are too many outputs."""
    while _too_many(fusion, draft.members, rows):
        last = next(v for v in reversed(fusion.outputs(draft.members))
                    if not any(r in draft.members for r in fusion.readers.get(v, ())))
        fusion.leave(draft, last, f"the kernel would write more than {MAX_OUTPUTS} tensors")


def _taken(fusion: Fusion, draft: Draft, value: str) -> str | None:
    """Why no kernel, or not this one, has room for a value of whatever kind."""
    if value in fusion.owner:
        return f"it is in the kernel of {fusion.name(fusion.owner[value].anchor)} already"
    if len(draft.members) >= MAX_MEMBERS:
        return f"the kernel computes {MAX_MEMBERS} values already"
    return None


def _without_ones(shape: Shape) -> Shape:
    return tuple(d for d in shape if d != ONE)

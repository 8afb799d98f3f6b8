"""The chain level of fusion: groups that hand rows on to each other become one kernel.

A contraction makes rows of a *strip* (its columns); a reduction over the strip, or a second contraction that sums over it,
needs nothing but the same rows. A kernel then takes a tile of rows through all of them, and the strip never leaves the chip:
attention (scores, softmax, values), a projection with its norm, a small network's layers. Found by dataflow; nothing here knows
their names. What is worth it is decided by `refusal`, from footprint and traffic as Welder does (section 3 of that paper).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from tsc.graph.fusion.state import Draft, Fusion, pulled
from tsc.ops.base import PatternKind
from tsc.ops.shapes import HALVES
from tsc.sym import ZERO, SymExpr, product
from tsc.target import DeviceSpec
from tsc.te.expr import Call, Cast, Expr, Load, Var, loads, walk

#: Contractions in one chain.
MOST_CONTRACTIONS = 2
#: A chain's kernel writes at most this many tensors.
MAX_OUTPUTS = 2


@dataclass(frozen=True, slots=True)
class Sides:
    """The two factors of a contraction, and for each the result's dims that it alone varies with; the reduce axes by name, how
    many products are summed up, and whether there are dims that both factors vary with."""

    factors: tuple[Expr, Expr]
    own: tuple[frozenset[int], frozenset[int]]
    reduced: frozenset[str]
    depth: SymExpr
    batched: bool


@dataclass(frozen=True, slots=True)
class Chain:
    """The contractions of a chain, each with the factor that carries the rows (-1: either may), and the strips handed on."""

    links: tuple[tuple[str, int], ...]
    handed: tuple[str, ...] = ()

    @property
    def contraction(self) -> str:
        """The last contraction."""
        return self.links[-1][0]

    def with_row(self, row: int) -> Chain:
        """The same with the last contraction's factor decided."""
        return replace(self, links=(*self.links[:-1], (self.contraction, row)))


def chain_level(fusion: Fusion, spec: DeviceSpec) -> None:
    """Every contraction's group, in graph order, takes the groups that follow it for as long as they keep its rows."""
    heads = [d for d in fusion.drafts if d.kind is PatternKind.CONTRACTION]
    for head in sorted(heads, key=lambda d: fusion.items[d.anchor].position):
        if fusion.owner[head.anchor] is head:
            draft, chain = head, Chain(((head.anchor, -1),))
            while (step := _next(fusion, draft, chain, spec)) is not None:
                draft, chain = step


def _next(fusion: Fusion, draft: Draft, chain: Chain, spec: DeviceSpec) -> tuple[Draft, Chain] | None:
    """The chain with one more group, if any fits; why the others do not is recorded."""
    for follower in _followers(fusion, draft):
        found = _linked(fusion, draft, chain, follower)
        if isinstance(found, str):
            fusion.refuse(draft, follower.anchor, found)
            continue
        reason = refusal(fusion, draft, found, follower, spec)
        if reason is not None:
            fusion.refuse(draft, follower.anchor, reason)
            continue
        return fusion.chain(draft, follower, "the same rows: what is handed on stays on the chip"), found
    return None


def _followers(fusion: Fusion, draft: Draft) -> list[Draft]:
    """The groups that read what a group makes and could carry its rows on, in graph order."""
    found = {id(d): d for v in fusion.outputs(draft.members) for r in fusion.readers.get(v, ())
             if (d := fusion.owner[r]) is not draft and not d.links and d.kind in (PatternKind.CONTRACTION, PatternKind.REDUCE)}
    return sorted(found.values(), key=lambda d: fusion.items[d.anchor].position)


# -- rows ------------------------------------------------------------------------------------------------------

def _linked(fusion: Fusion, draft: Draft, chain: Chain, follower: Draft) -> Chain | str:
    """What the chain ends in with `follower` behind it, or the reason why this does not keep its rows."""
    if follower.kind is PatternKind.REDUCE:
        return _reduced(fusion, draft, chain, follower)
    return _contracted(fusion, draft, chain, follower)


def _reduced(fusion: Fusion, draft: Draft, chain: Chain, follower: Draft) -> Chain | str:
    """A reduction over the strip: its reduced dims are the dims of the contraction that one factor alone has."""
    item = fusion.items[follower.anchor]
    strip = tuple(range(len(item.operand)))[len(item.operand) - len(item.reduced):]
    if not item.reduced or item.reduced != strip:
        return "the reduced dims are not the last ones"
    crossing = _read_otherwise(fusion, draft, follower.members, item.operand[:-len(strip)], len(strip))
    if crossing is not None:
        return crossing
    strips = [v for v in _handed(fusion, draft, follower.members) if fusion.shape(v)[-1:] == item.operand[-1:]]
    if not strips:
        return "it reads row statistics alone"
    for value in strips:
        row = _row_factor(fusion, draft, chain, value, len(strip))
        if isinstance(row, str):
            return row
        chain = chain.with_row(row)
    return replace(chain, handed=(*chain.handed, strips[-1]))


def _contracted(fusion: Fusion, draft: Draft, chain: Chain, follower: Draft) -> Chain | str:
    """A contraction over the strip: one factor is a value of the chain, summed over its last dim at rows of the result."""
    if len(chain.links) == MOST_CONTRACTIONS:
        return f"the chain has {MOST_CONTRACTIONS} contractions already"
    sides = sides_of(fusion, follower.anchor, draft.members)
    if sides is None:
        return "it is no product of two factors"
    made = [{load.buffer.name for load in loads(f)} & draft.members for f in sides.factors]
    if bool(made[0]) == bool(made[1]):
        return "both factors are made from the chain's rows" if made[0] else "no factor is a value of the chain"
    row = 0 if made[0] else 1
    operand = sides.factors[row]
    while isinstance(operand, Cast) and operand.value.dtype in HALVES:
        operand = operand.value  # stored so for the product alone
    if (not isinstance(operand, Load) or not all(isinstance(i, Var) for i in operand.index)
            or len(set(operand.index)) < len(operand.index)):
        return "its operand is not a value of the chain as it stands"
    last, columns = operand.index[-1], fusion.shape(operand.buffer.name)[-1]  # a view may have other rows, not other columns
    if not isinstance(last, Var) or {last.name} != sides.reduced or operand.buffer.shape[-1] != columns:
        return "it does not sum over the chain's strip"
    before = _row_factor(fusion, draft, chain, operand.buffer.name, 1)
    if isinstance(before, str):
        return before
    rest = follower.members - {follower.anchor}
    crossing = _read_otherwise(fusion, draft, rest, fusion.shape(follower.anchor)[:-1], 1)
    if crossing is not None:
        return crossing
    return Chain((*chain.with_row(before).links, (follower.anchor, row)), (*chain.handed, operand.buffer.name))


def _handed(fusion: Fusion, draft: Draft, members: Collection[str]) -> list[str]:
    """The values of a group that `members` read, in graph order."""
    return fusion.ordered({base for m in members for r in fusion.items[m].reads
                           if (base := fusion.trace(r)[0]) in draft.members})


def _read_otherwise(fusion: Fusion, draft: Draft, members: Collection[str], rows: tuple[object, ...], strip: int) -> str | None:
    """Why `members` do not read the group's values at their own rows; None if they do. A read passes through no index map, and
    a view of it keeps the strip."""
    for member in fusion.ordered(members):
        for read in fusion.items[member].reads:
            base, passed = fusion.trace(read)
            if base not in draft.members:
                continue
            if any(fusion.items[p].kind is not PatternKind.BROADCAST for p in passed):
                return f"{fusion.name(member)} reads {fusion.name(base)} in another order"
            shape = fusion.shape(read)
            own = fusion.shape(member) if fusion.items[member].kind is not PatternKind.REDUCE else fusion.items[member].operand
            if shape[:len(shape) - strip] != rows and shape != own:
                return f"{fusion.name(member)} reads {fusion.name(base)} at other rows"
            if base != read and fusion.shape(base)[-strip:] != shape[-strip:]:
                return f"{fusion.name(member)} reads {fusion.name(base)} in rows of another length"
    return None


def _row_factor(fusion: Fusion, draft: Draft, chain: Chain, value: str, strip: int) -> int | str:
    """Which factor of the chain's last contraction carries the rows of `value`, whose last `strip` dims are all the columns
    that the other factor alone has; or why there is none."""
    columns = _columns(fusion, draft, chain, value, strip)
    if columns is None:
        return f"{fusion.name(value)} is not made from the contraction's result point by point"
    sides = sides_of(fusion, chain.contraction)
    found = [k for k in (0, 1) if sides is not None and sides.own[1 - k] == columns and chain.links[-1][1] in (-1, k)]
    return found[0] if found else "it does not take all of the contraction's columns together"


def _columns(fusion: Fusion, draft: Draft, chain: Chain, value: str, strip: int) -> frozenset[int] | None:
    """The dims of the chain's last contraction that the last `strip` dims of `value` are; None where they do not correspond."""
    rank = len(fusion.shape(value))
    if value == chain.contraction:
        return frozenset(range(rank - strip, rank))
    stops = {v: v for v in draft.members if fusion.items[v].kind in (PatternKind.REDUCE, PatternKind.CONTRACTION)}
    if value in stops:
        return None
    body = pulled(fusion, value, fusion.free | draft.members, stops).body
    at = {load.index for load in loads(body) if load.buffer.name == chain.contraction}
    if len(at) != 1:
        return None
    last = {Var(f"d{k}") for k in range(rank - strip, rank)}
    index, = at
    if any(i not in last and last & set(walk(i)) for i in index):
        return None
    return frozenset(k for k, i in enumerate(index) if i in last)


def sides_of(fusion: Fusion, contraction: str, stored: Collection[str] = ()) -> Sides | None:
    """The factors of a contraction, index maps inlined; views of `stored` values stay loads. None where it is no product."""
    element = pulled(fusion, contraction, fusion.free | {contraction}, {v: v for v in stored})
    match element.body:
        case Call(fn="mul", args=(a, b)) if element.reduction is not None:
            dims = {f"d{k}": k for k in range(len(fusion.shape(contraction)))}
            left, right = (frozenset(dims[e.name] for e in walk(f) if isinstance(e, Var) and e.name in dims) for f in (a, b))
            axes = element.reduction.axes
            return Sides((a, b), (left - right, right - left), frozenset(x.name for x in axes), product(x.extent for x in axes),
                         bool(left & right))
    return None


# -- footprint and traffic -------------------------------------------------------------------------------------

def refusal(fusion: Fusion, draft: Draft, chain: Chain, follower: Draft, spec: DeviceSpec) -> str | None:
    """Why `follower` is better off in a kernel of its own, though its rows are the chain's; None if it is not. `chain` is what
    the two would be.

    Chaining saves writing what is handed on and reading it back. Where all rows share the other operands (weights), it costs
    parallelism, since only rows remain to share among cores, and each tile of rows reads the operands again: these must stay on
    the chip or be less than what is saved. Where each batch of rows has its own (attention's), it costs nothing.
    """
    members = draft.members | follower.members
    if len(fusion.outputs(members)) > MAX_OUTPUTS:
        return f"the kernel would write more than {MAX_OUTPUTS} tensors"
    if fusion.makes_cycle(members):
        return "it needs a value that is made from this kernel's result by another kernel"
    width, rows, room = fusion.env.canon(fusion.shape(chain.handed[-1])[-1]), spec.chain_rows, spec.on_chip_bytes
    if (columns := width.as_int()) is not None and 4 * rows * columns > room:
        return f"a tile of {rows} rows of {columns} elements does not stay on the chip"
    if follower.kind is PatternKind.REDUCE:
        return _few_rows(fusion, chain, width)
    saved = [v for v in dict.fromkeys(chain.handed) if v not in fusion.outputs(members)]
    if chain.handed[-1] not in saved:
        return "what it would be handed must be stored anyway"
    again = sum((_shared_operand(fusion, *link) for link in chain.links), ZERO)
    moved = width * (2 * rows * len(saved))
    if not fusion.env.prove_le(again, moved) and not fusion.env.prove_le(4 * (again + width * rows), room):
        return f"{again} elements, read again for each {rows} rows, do not stay on the chip; only {moved} need not be moved"
    return None


def _few_rows(fusion: Fusion, chain: Chain, width: SymExpr) -> str | None:
    """Rows that share an operand may be few: a deep contraction had better be shared among cores by columns too."""
    sides = sides_of(fusion, chain.contraction)
    depth, columns = None if sides is None else sides.depth.as_int(), width.as_int()
    if sides is None or sides.batched or depth is None or columns is None or depth <= columns:
        return None
    return f"it sums over {depth} for rows of {columns}: too much work to be shared among rows alone, which may be few"


def _shared_operand(fusion: Fusion, contraction: str, row: int) -> SymExpr:
    """How many elements of a contraction's other operand all rows use; none where each batch of rows has its own."""
    sides, shape = sides_of(fusion, contraction), fusion.shape(contraction)
    return ZERO if sides is None or sides.batched else product(shape[k] for k in sides.own[1 - row]) * sides.depth

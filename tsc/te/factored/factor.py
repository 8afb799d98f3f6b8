"""factor_reductions, te -> te: a reduction over a long axis becomes reductions of its chunks and a fold of their results.

    a[r] = max over c<C: x[r, c]   ->   a_part[k, r] = max over j<n: x[r, k*n + j]   and   a[r] = max over k: a_part[k, r]

A reduction made with the result of another one (a sum of exp(x - maximum), a sum of squares of deviations from the mean) can
be cut too where the pair is a declared TupleMonoid: recognised by its algebra, it is folded as that declares. What comes out is
an ordinary Program, which the scheduler proves as any other. The order of summation changes, so that this belongs to
`reduction="fast"`. Rfactor: Suriana, Adams, Kamil 2017; online softmax: Milakov, Gimelshein 2018.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from itertools import count

from tsc.sym import ZERO, SymExpr, ceildiv
from tsc.te.compute import SUM, Axis, Compute, Monoid, Program
from tsc.te.expr import (
    INDEX,
    Buffer,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Size,
    Var,
    add,
    call,
    index,
    loads,
    map_children,
    mul,
    select,
    substitute,
    walk,
)
from tsc.te.factored.chunks import chunk_locals, guarded, unused, without_unread
from tsc.te.factored.monoids import Component, TupleMonoid, declared, replaced, unify
from tsc.te.passes.hoist import Scaled, apply_scales, split_scales


class NotFactored(Exception):
    """Why a reduction cannot be cut into chunks; names the reduction."""


def factor(program: Program, names: str | Collection[str], chunk: int) -> Program:
    """`program` with the reductions `names` cut into chunks of `chunk` elements along their first reduce axis.

    The results of the chunks of `a` are a new Compute `a_part`. Raises NotFactored where a name is no reduction, where extents
    differ, or where one is made with another's result in a way that is no declared TupleMonoid.
    """
    wanted = [names] if isinstance(names, str) else list(names)
    reductions = {c.name: c for c in program.computes if c.monoid is not None and c.carried is None}
    for name in wanted:
        if name not in reductions:
            raise NotFactored(f"{name} is no reduction of the program, whose reductions are {', '.join(reductions)}")
    if chunk < 1:
        raise NotFactored(f"a chunk of {chunk} elements, expected at least 1")
    matches: dict[str, Match] = {}
    for name in (n for n in reductions if n in wanted):
        found = matched(program, reductions[name], matches)
        matches[found.compute.name] = found
    return chunk_locals(without_unread(_Writer(program, matches, chunk).program()))


# -- recognising -----------------------------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class Match:
    """A reduction to be cut. One of a pair comes with the reduction `of` whose result it is made with, the cell `at` of that
    which it reads, the TupleMonoid with this component, and what the component's Vars stand for. `after` is what was pulled
    out of the sum: a Compute that reads its result."""

    compute: Compute
    of: Compute | None = None
    at: tuple[Expr, ...] = ()
    monoid: TupleMonoid | None = None
    component: Component | None = None
    filled: dict[str, Expr] = field(default_factory=dict)
    after: Compute | None = None

    @property
    def extent(self) -> SymExpr:
        """The length of the axis that is cut."""
        return self.compute.reduce_axes[0].extent


def matched(program: Program, compute: Compute, done: dict[str, Match]) -> Match:
    """A reduction as one to be cut, those `done` before being cut too. Raises NotFactored."""
    body = expanded(program, compute.body, done)
    used = [x for x in loads(body) if x.buffer.name in done]
    if not used:
        return Match(compute)
    plain = replace(compute, body=body)
    found = paired(plain, used, done)
    if found is None:
        pulled = _pulled_out(program, plain, done)
        if pulled is not None:
            inner, after = pulled
            found = paired(inner, [x for x in loads(inner.body) if x.buffer.name in done], done)
            found = None if found is None else replace(found, after=after)
    if found is None:
        others = ", ".join(dict.fromkeys(x.buffer.name for x in used))
        raise NotFactored(f"{compute.name} is made with the result of {others}, and together they are no declared TupleMonoid")
    return found


def expanded(program: Program, expr: Expr, done: Collection[str]) -> Expr:
    """`expr` with those values written out that are made, element by element, of results of `done`."""
    bodies = {c.name: c for c in program.computes if c.monoid is None and c.carried is None}

    def visit(e: Expr) -> Expr:
        inner = map_children(visit, e)
        if not isinstance(inner, Load) or inner.buffer.name not in bodies:
            return inner
        made = bodies[inner.buffer.name]
        written = visit(substitute(made.body, {a.name: i for a, i in zip(made.axes, inner.index)}))
        return written if any(x.buffer.name in done for x in loads(written)) else inner

    return visit(expr)


def paired(compute: Compute, used: list[Load], done: dict[str, Match]) -> Match | None:
    """`compute` as a later component of a TupleMonoid whose first is the one reduction that it reads."""
    if len(set(used)) != 1 or done[used[0].buffer.name].of is not None:
        return None
    load, first = used[0], done[used[0].buffer.name].compute
    if len(first.reduce_axes) != len(compute.reduce_axes) or first.reduce_axes[0].extent != compute.reduce_axes[0].extent:
        return None
    reduced = {a.name for a in compute.reduce_axes}
    names = {a.name: i for a, i in zip(first.axes, load.index)}
    names |= {a.name: Var(b.name) for a, b in zip(first.reduce_axes, compute.reduce_axes)}
    element = substitute(first.body, names)
    for monoid in declared(first.target.dtype):
        top, *later = (c for c in monoid.components if not c.counts)
        if top.monoid != first.monoid:
            continue
        for component in later:
            known = {"x": element, f"whole.{top.name}": load}
            for form in component.forms or (component.element,):
                for filled in unify(form, compute.body, known) if component.monoid == compute.monoid else ():
                    if _sound(filled, load, reduced, first.reduce_axes[0].extent):
                        return Match(compute, first, load.index, monoid, component, filled)
    return None


def _sound(filled: dict[str, Expr], load: Load, reduced: set[str], extent: SymExpr) -> bool:
    """Whether what the Vars stand for may stand there: nothing else is made with the first result, no `none` that varies along
    the row, and the right count."""
    free = [e for n, e in filled.items() if not n.startswith("whole.")]
    if any(x.buffer == load.buffer for e in free for x in loads(e)) or _varies(load, reduced):
        return False
    if "none" in filled and _varies(filled["none"], reduced):
        return False
    return "whole.count" not in filled or _is_count(filled["whole.count"], extent)


def _is_count(expr: Expr, extent: SymExpr) -> bool:
    match expr:
        case Const(value=value):
            return extent.as_int() == value
        case Cast(value=Size(value=value)):
            return value == extent
    return False


def _varies(expr: Expr, names: Collection[str]) -> bool:
    return any(isinstance(e, Var) and e.name in names for e in walk(expr))


# -- what leaves a sum -----------------------------------------------------------------------------------------

def _pulled_out(program: Program, compute: Compute, done: dict[str, Match]) -> tuple[Compute, Compute] | None:
    """A sum without the scales that are the same along the row, and a Compute that applies them; None if there are none, or
    where the row may be empty. Shares e / sum of e that turn NaN into 0, which they are in whole rows at once, leave with a
    test of that sum."""
    sizes = {s.name: s.lo for s in program.sizes}
    if compute.monoid != SUM or any(sizes[d] < 1 for a in compute.reduce_axes for d in a.extent.dims()):
        return None
    bare = without_guards(compute.body)
    found = split_scales(bare, {a.name for a in compute.reduce_axes})
    if not found.scales:
        return None
    after = applied_after(program, compute, found, bare != compute.body, done)
    return None if after is None else (replace(compute, target=after[0], body=found.core), after[1])


def applied_after(program: Program, compute: Compute, found: Scaled, guarded: bool, done: dict[str, Match]
                  ) -> tuple[Buffer, Compute] | None:
    """A buffer for a sum without its scales, and the Compute that applies them to it. Where terms were `guarded`, NaN being 0,
    a row has that in all places at once: where its total is; None where there is no such total."""
    target = replace(compute.target, name=unused(program, f"{compute.name}_sum"))
    axes = tuple(Axis(unused(program, f"{a.name}_after"), a.extent) for a in compute.axes)
    renamed: dict[str, Expr] = {a.name: Var(b.name) for a, b in zip(compute.axes, axes)}
    result = apply_scales(Load(target, tuple(renamed.values())), found.scales, renamed)
    if guarded:
        totals = {load for _, scale in found.scales for load in loads(scale)}
        if len(totals) != 1 or not is_total(next(iter(totals)), found.core, done):
            return None
        zero = Const(0.0, result.dtype)
        result = select(call("gt", substitute(totals.pop(), renamed), zero), result, zero)
    return target, Compute(compute.target, axes, result)


def without_guards(expr: Expr) -> Expr:
    """`expr` with `0 where e is NaN, else e` as e, in factors of products."""
    match expr:
        case Call(fn="select", args=(Call(fn="isnan", args=(a,)), Const(value=0), b)) if a == b:
            return a
        case Call(fn="mul", args=(a, b)):
            return mul(without_guards(a), without_guards(b))
    return expr


def is_total(load: Load, term: Expr, done: dict[str, Match]) -> bool:
    """Whether `load` reads the sum of a factor of `term`, as a cut reduction."""
    if load.buffer.name not in done or done[load.buffer.name].component is None:
        return False
    total = done[load.buffer.name].compute
    body = substitute(total.body, dict(zip((a.name for a in total.axes), load.index)))
    inner = {a.name for a in total.reduce_axes}
    factors = term.args if isinstance(term, Call) and term.fn == "mul" else (term,)
    return any(_is_renamed(body, e, inner) for e in factors)


def _is_renamed(a: Expr, b: Expr, names: Collection[str]) -> bool:
    """Whether `a` is `b` but for the names of the Vars `names` of it."""
    renaming: dict[str, Expr] = {x.name: y for x, y in zip(_vars(a), _vars(b)) if x.name in names}
    return substitute(a, renaming) == b


def _vars(expr: Expr) -> list[Var]:
    return [e for e in walk(expr) if isinstance(e, Var)]


# -- writing ---------------------------------------------------------------------------------------------------

class _Writer:
    """The factored Program, Compute by Compute."""

    def __init__(self, program: Program, matches: dict[str, Match], chunk: int) -> None:
        self.source, self.matches, self.chunk = program, matches, chunk
        self.numbers = count()
        self.computes: list[Compute] = []
        self.terms: dict[str, Buffer] = {}

    def program(self) -> Program:
        """All Computes in order, each reduction that is cut replaced by its parts and their fold."""
        replaced_by = {m.compute.name if m.after is None else m.after.name: m for m in self.matches.values()}
        for compute in self.source.computes:
            match = replaced_by.get(compute.name)
            if match is None:
                self.computes.append(compute)
                continue
            self.write(match)
            if match.after is not None:
                self.computes.append(match.after)
        return replace(self.source, computes=tuple(self.computes))

    def write(self, match: Match) -> None:
        """The chunks' results and their fold."""
        compute, monoid = match.compute, _monoid(match.compute)
        size = self.size(match)
        chunks = ceildiv(match.extent, size)
        part = replace(compute.target, name=unused(self.source, f"{compute.name}_part"),
                       shape=(chunks, *compute.target.shape))
        if match.of is not None and self.stores_terms(match):
            self.write_terms(match.of, match)
        names, axes, (k, j, *rest) = self.axes(compute, chunks, size)
        place = add(mul(Var(k.name), index(size)), Var(j.name))
        names[compute.reduce_axes[0].name] = place
        body = self.element(match, names, k, (j, *rest))
        body = self.guarded(match, place, body, monoid)
        self.computes.append(Compute(part, (k, *axes), body, (j, *rest), monoid))
        over = Axis(self.fresh("k"), chunks)
        rows = tuple(Var(a.name) for a in compute.axes)
        fold = self.fold(match, Load(part, (Var(over.name), *rows)), over)
        self.computes.append(Compute(compute.target, compute.axes, fold, (over,), monoid))

    def element(self, match: Match, names: dict[str, Expr], k: Axis, inner: tuple[Axis, ...]) -> Expr:
        """What an element contributes to its chunk: the component's element, made with the chunk's first result."""
        if match.of is None or match.component is None or match.monoid is None:
            return substitute(match.compute.body, names)
        filled = {n: substitute(e, names) for n, e in match.filled.items()}
        at = tuple(substitute(i, names) for i in match.at)
        filled |= self.whole(match, k, Load(self.part_of(match.of), (Var(k.name), *at)))
        filled.setdefault("w", Const(1.0, match.compute.target.dtype))
        body = substitute(match.component.element, filled)
        terms = self.terms.get(match.of.name)
        if terms is not None and match.component.shared is not None:
            place = (Var(k.name), *at, *(Var(a.name) for a in inner))
            body = replaced(body, substitute(match.component.shared, filled), Load(terms, place))
        return _without_ones(body)

    def fold(self, match: Match, part: Load, over: Axis) -> Expr:
        """What a chunk's results contribute to the whole's."""
        if match.of is None or match.component is None or match.monoid is None:
            return part
        top = next(c for c in match.monoid.components if not c.counts)
        k = Var(over.name)
        filled = {n: e for n, e in match.filled.items() if n == "none"}
        filled |= {f"part.{match.component.name}": part, f"part.{top.name}": Load(self.part_of(match.of), (k, *match.at)),
                   f"whole.{top.name}": Load(match.of.target, match.at)}
        for c in match.monoid.components:
            if c.counts:
                filled |= {f"part.{c.name}": self.count(match, k, c.dtype),
                           f"whole.{c.name}": Cast(index(match.extent), c.dtype)}
        return substitute(match.component.fold, filled)

    def whole(self, match: Match, k: Axis, top: Load) -> dict[str, Expr]:
        """The earlier components' results for a chunk taken as a whole."""
        components = () if match.monoid is None else match.monoid.components
        first = next(c for c in components if not c.counts)
        return {f"whole.{first.name}": top} | {
            f"whole.{c.name}": self.count(match, Var(k.name), c.dtype) for c in components if c.counts}

    def count(self, match: Match, k: Expr, dtype: str) -> Expr:
        """How many elements chunk `k` has."""
        size = self.size(match)
        left = call("sub", index(match.extent), mul(k, index(size)))
        return Cast(index(size) if match.extent % size == ZERO else call("min", index(size), left), dtype)

    def stores_terms(self, match: Match) -> bool:
        """Whether a part of the element is stored: where others use it too, or axes that it does not vary along do."""
        if match.component is None or match.component.shared is None or match.of is None:
            return False
        users = [m for m in self.matches.values() if m.of is match.of and m.component == match.component]
        return len(users) > 1 or len(match.compute.axes) > len(match.of.axes)

    def write_terms(self, first: Compute, match: Match) -> None:
        """The shared part of the elements of one TupleMonoid, chunk by chunk; 0 behind the end."""
        if first.name in self.terms or match.component is None or match.component.shared is None:
            return
        size = self.size(match)
        chunks = ceildiv(match.extent, size)
        names, axes, (k, j, *rest) = self.axes(first, chunks, size)
        place = add(mul(Var(k.name), index(size)), Var(j.name))
        names[first.reduce_axes[0].name] = place
        rows = tuple(Var(a.name) for a in axes)
        filled = {"x": substitute(first.body, names)} | self.whole(match, k, Load(self.part_of(first), (Var(k.name), *rows)))
        shape = (chunks, *first.target.shape, *(a.extent for a in (j, *rest)))
        terms = Buffer(unused(self.source, f"{first.name}_terms"), first.target.dtype, shape)
        body = self.guarded(match, place, substitute(match.component.shared, filled), SUM)
        self.computes.append(Compute(terms, (k, *axes, j, *rest), body))
        self.terms[first.name] = terms

    def guarded(self, match: Match, place: Expr, body: Expr, monoid: Monoid) -> Expr:
        """`body` where the chunk has an element, the identity behind its end; in a sum of products each factor is guarded for
        itself, so that it stays one."""
        if match.extent % self.size(match) == ZERO:
            return body
        whole = {b.name for b in self.terms.values()} if monoid == SUM else ()
        return guarded(body, monoid, call("lt", place, index(match.extent)), whole)

    def size(self, match: Match) -> int:
        """How long a chunk is: no longer than the axis where that is known."""
        known = match.extent.as_int()
        return self.chunk if known is None else max(1, min(self.chunk, known))

    def axes(self, compute: Compute, chunks: SymExpr, size: int) -> tuple[dict[str, Expr], tuple[Axis, ...], list[Axis]]:
        """Axes for a Compute over chunks: what the old ones become, the rows', then chunk, element and the rest."""
        rows = tuple(Axis(self.fresh(a.name), a.extent) for a in compute.axes)
        rest = [Axis(self.fresh(a.name), a.extent) for a in compute.reduce_axes[1:]]
        names: dict[str, Expr] = {a.name: Var(b.name) for a, b in zip(compute.axes, rows)}
        names |= {a.name: Var(b.name) for a, b in zip(compute.reduce_axes[1:], rest)}
        return names, rows, [Axis(self.fresh("k"), chunks), Axis(self.fresh("j"), SymExpr.of(size)), *rest]

    def part_of(self, compute: Compute) -> Buffer:
        """The chunks' results of a reduction written before."""
        return next(c.target for c in self.computes if c.name == unused(self.source, f"{compute.name}_part"))

    def fresh(self, name: str) -> str:
        """A name that no axis has."""
        return unused(self.source, f"{name}_f{next(self.numbers)}")


def _monoid(compute: Compute) -> Monoid:
    if compute.monoid is None:
        raise NotFactored(f"{compute.name} reduces nothing")
    return compute.monoid


def _without_ones(expr: Expr) -> Expr:
    inner = map_children(_without_ones, expr)
    match inner:
        case Call(fn="mul", args=(Const(value=1), other)) if other.dtype != INDEX:
            return other
    return inner

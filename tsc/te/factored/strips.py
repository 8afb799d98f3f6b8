"""Two products one after the other, and reductions of the rows between them, with the long axis between them in chunks.

    s[r, x] = sum over d: q[r, d] * k[x, d]   m[r] = max over x: f(s[r, x])   o[r, e] = sum over x: g(s[r, x], m[r]) * v[x, e]

What `s` is made of is little, what it is is much: it is made anew, chunk by chunk, in each *phase*, which is all that needs the
same results of whole rows before (`m` belongs to the first phase, `o` to the second), so that no more than a chunk of it is
kept at a time. Reductions of rows are made in parts, by those lanes that hold the elements of a chunk as accumulators of its
product, which are folded behind the phase. A declared monoid is associative and commutative: that is all it takes.

Attention without scores in memory (Rabe and Staats 2021; Dao et al. 2022), with one more product in place of their rescaling:
no value but the order of summation is another than in the Program that is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count

from tsc.sym import ZERO, SymExpr, ceildiv
from tsc.te.compute import SUM, Axis, Compute, Monoid, Program
from tsc.te.expr import Buffer, Cast, Const, Expr, Load, Var, add, call, index, loads, map_loads, mul, select, substitute
from tsc.te.expr import walk as walk_expr
from tsc.te.factored.chunks import unused, without_unread
from tsc.te.factored.factor import Match, NotFactored, applied_after, expanded, matched, paired, without_guards
from tsc.te.factored.monoids import replaced
from tsc.te.passes.hoist import split_scales
from tsc.te.passes.products import as_stored, is_contraction, product_of

#: An element of a chunk is held by lane (x mod 8) div 2 of four: the columns of accumulators of a product (PTX ISA 9.7.14.5).
LANES, PAIR = 4, 2


def in_strips(program: Program, width: int) -> Program:
    """`program`, all of whose Computes are reductions over one axis or outputs made of their results, with the axis between its
    two products in chunks of `width`, a multiple of 8. Raises NotFactored where it is nothing of the kind."""
    return _Writer(program, _found(program), width).program()


def scaled_late(program: Program) -> Program:
    """`program`, where it sums over shares exp(x - maximum) / sum of a row, as scales, perhaps with NaN as 0 and then rounded,
    with these applied to the sum: a phase less, since a scale is made of other sums."""
    sums = [c for c in program.computes if is_contraction(c)]
    if len(sums) != 2:
        return program
    matches: dict[str, Match] = {}
    targets = {c.name for c in program.computes}
    for compute in program.computes:
        if compute.monoid is not None and compute not in sums and any(x.buffer.name in targets for x in loads(compute.body)):
            with suppress(NotFactored):
                found = matched(program, compute, matches)
                matches[found.compute.name] = found
    late = _late(program, sums[1], matches)
    if late is None:
        return program
    return without_unread(replace(program, computes=tuple(
        new for c in program.computes for new in (late if c is sums[1] else (c,)))))


def _late(program: Program, compute: Compute, matches: dict[str, Match]) -> tuple[Compute, Compute] | None:
    """A sum over terms without their scales, and what applies these to it; None where there are none, or where terms are not
    known to be at most 1: a sum of others might overflow where that of shares does not, be it in fewer bits."""
    reduced = {a.name for a in compute.reduce_axes}
    body = expanded(program, compute.body, matches)
    row = next((f for f in product_of(body) or () if any(x.buffer.name in matches for x in loads(f))), None)
    lows = {s.name: s.lo for s in program.sizes}
    if row is None or any(lows[d] < 1 for a in compute.reduce_axes for d in a.extent.dims()):
        return None
    share = _without_casts(row)
    bare = without_guards(share)
    found = split_scales(bare, reduced)
    used = [x for x in loads(found.core) if x.buffer.name in matches]
    if not found.scales or paired(replace(compute, body=found.core), used, matches) is None:
        return None
    after = applied_after(program, compute, found, bare != share, matches)
    if after is None:
        return None
    return replace(compute, target=after[0], body=replaced(body, row, replaced(row, share, found.core))), after[1]


# -- recognising -----------------------------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class _Strips:
    """The product that makes rows of scores, its axis that is cut (by its place), the one that sums over it, and the phases of
    all reductions between them, itself the last."""

    scores: Compute
    along: int
    values: Compute
    phases: tuple[tuple[Compute, ...], ...]

    def rows(self) -> tuple[Axis, ...]:
        """The axes of the scores but for the one that is cut."""
        return tuple(a for k, a in enumerate(self.scores.axes) if k != self.along)


def _found(program: Program) -> _Strips:
    reductions = [c for c in program.computes if c.monoid is not None]
    products = [c for c in reductions if is_contraction(c)]
    if len(products) != 2 or any(c.carried is not None for c in program.computes):
        raise NotFactored(f"there are {len(products)} sums of products, not two one after the other")
    scores, values = products
    if any(len(c.reduce_axes) != 1 for c in reductions):
        raise NotFactored("something is reduced over several axes")
    if len(reductions) == 2:
        raise NotFactored(f"nothing is reduced between {scores.name} and {values.name}, which may be shared out by columns")
    places = {load.index for load in loads(values.body) if load.buffer.name == scores.name}
    over = Var(values.reduce_axes[0].name)
    along = next((k for place in places for k, i in enumerate(place) if i == over), None)
    if along is None:
        raise NotFactored(f"{values.name} does not sum over what {scores.name} makes")
    found = _Strips(scores, along, values, ())
    levels: dict[str, int] = {}
    for compute in reductions:
        if compute is not scores:
            _expect_rows(found, compute)
            levels[compute.name] = 1 + max((levels.get(x.buffer.name, 0) for x in loads(compute.body)), default=0)
    for compute in program.computes:
        if compute.monoid is None and any(x.buffer.name == scores.name for x in loads(compute.body)):
            raise NotFactored(f"{compute.name} keeps what {scores.name} makes")
    if levels[values.name] < max(levels.values()):
        raise NotFactored(f"{values.name} is made before other reductions of its rows")
    phases = tuple(tuple(c for c in reductions if levels.get(c.name) == n) for n in range(1, levels[values.name] + 1))
    return replace(found, phases=phases)


def _expect_rows(found: _Strips, compute: Compute) -> None:
    """Raise NotFactored unless a reduction reads whole rows of scores, each at a cell of its own axes."""
    places = {load.index for load in loads(compute.body) if load.buffer.name == found.scores.name}
    over = Var(compute.reduce_axes[0].name)
    place = next(iter(places)) if len(places) == 1 else ()
    rows = [i for k, i in enumerate(place) if k != found.along]
    own = {Var(a.name) for a in compute.axes}
    if not place or place[found.along] != over or len(set(rows)) < len(rows) or not own >= set(rows) or (
            compute.reduce_axes[0].extent != found.scores.axes[found.along].extent):
        raise NotFactored(f"{compute.name} does not reduce whole rows of {found.scores.name}")
    if compute is not found.values and len(own) > len(rows):
        raise NotFactored(f"{compute.name} has more axes than the rows of {found.scores.name}")


# -- writing ---------------------------------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class _Chunk:
    """Where a Compute of a phase stands: the axes of its rows, and the Vars of chunk and element."""

    rows: tuple[Axis, ...]
    chunk: Axis
    element: Expr

    def at(self) -> tuple[Expr, ...]:
        """An element of a chunk of rows."""
        return (*(Var(a.name) for a in self.rows), Var(self.chunk.name), self.element)


class _Writer:
    """The Program in chunks, Compute by Compute."""

    def __init__(self, program: Program, found: _Strips, width: int) -> None:
        self.source, self.found, self.width = program, found, width
        self.extent = found.scores.axes[found.along].extent
        self.chunks = ceildiv(self.extent, width)
        self.numbers = count()

    def program(self) -> Program:
        """The phases one after the other, then what is made of their results."""
        computes = [c for number, phase in enumerate(self.found.phases, 1) for c in self.phase(phase, number)]
        return replace(self.source, computes=(*computes, *(c for c in self.source.computes if c.monoid is None)))

    def phase(self, phase: tuple[Compute, ...], number: int) -> Iterator[Compute]:
        """The scores, what the second product multiplies, the parts of the rows' reductions with their folds, the product."""
        scores = self.scores(number)
        yield scores
        products = [c for c in phase if c is self.found.values]
        shared: tuple[Expr, Buffer] | None = None
        for compute in products:
            factor = self.canonical(_row_factor(compute, self.found), compute)
            core = _without_casts(factor)
            at = self.chunk()
            body = self.guarded(self.placed(core, at, scores.target), at, Const(SUM.identity(core.dtype), core.dtype))
            terms = self.strip(f"{compute.name}_terms", core.dtype)
            yield Compute(terms, self.strip_axes(at), body)
            shared = core, terms
        for compute in phase:
            if compute not in products and compute.monoid is not None:
                yield from self.reduced(compute, compute.monoid, scores.target, shared)
        for compute in products:
            if shared is not None:
                yield from self.product(compute, *shared)

    def scores(self, number: int) -> Compute:
        """The first product again, behind its end 0."""
        scores, at = self.found.scores, self.chunk()
        depth = tuple(Axis(self.fresh(a.name), a.extent) for a in scores.reduce_axes)
        names = {a.name: Var(b.name) for a, b in zip(scores.reduce_axes, depth)}
        body = self.product_body(substitute(self.placed(scores.body, at), names), at)
        return Compute(self.strip(f"{scores.name}_{number}", scores.target.dtype), self.strip_axes(at), body, depth, SUM)

    def reduced(self, compute: Compute, monoid: Monoid, scores: Buffer, shared: tuple[Expr, Buffer] | None
                ) -> Iterator[Compute]:
        """The parts of a reduction of rows by lanes, handed to all lanes, and their fold."""
        groups = Axis(self.fresh("group"), SymExpr.of(self.width // (LANES * PAIR)))
        pair, lane = Axis(self.fresh("pair"), SymExpr.of(PAIR)), Axis(self.fresh("lane"), SymExpr.of(LANES))
        element = add(add(mul(Var(groups.name), index(LANES * PAIR)), mul(Var(lane.name), index(PAIR))), Var(pair.name))
        at = self.chunk(element)
        body = self.canonical(compute.body, compute)
        stored = None if shared is None else Load(shared[1], ())
        body = body if shared is None or stored is None else replaced(body, shared[0], stored)
        placed = self.placed(body, at, scores, None if shared is None else shared[1])
        if monoid != SUM or body != stored:  # which is 0 behind the end
            placed = self.guarded(placed, at, Const(monoid.identity(placed.dtype), placed.dtype))
        shape = (*(a.extent for a in at.rows), lane.extent)
        part, lanes = (Buffer(unused(self.source, f"{compute.name}_{name}"), compute.target.dtype, shape)
                       for name in ("part", "lanes"))
        yield Compute(part, (*at.rows, lane), placed, (at.chunk, groups, pair), monoid)
        axes = tuple(Axis(self.fresh(a.name), a.extent) for a in (*at.rows, lane))
        yield Compute(lanes, axes, Load(part, tuple(Var(a.name) for a in axes)))
        over = Axis(self.fresh("lane"), lane.extent)
        rows = [i for k, i in enumerate(self.own_place(compute)) if k != self.found.along]
        yield replace(compute, body=Load(lanes, (*rows, Var(over.name))), reduce_axes=(over,))

    def product(self, compute: Compute, core: Expr, terms: Buffer) -> Iterator[Compute]:
        """What the second product multiplies, stored as it does, and its sum over all chunks."""
        factor = self.canonical(_row_factor(compute, self.found), compute)
        at = self.chunk()
        stored = replaced(as_stored(factor), core, Load(terms, at.at()))
        strip = self.strip(f"{compute.name}_strip", stored.dtype)
        yield Compute(strip, self.strip_axes(at), stored)
        chunk, element = Axis(self.fresh("chunk"), self.chunks), Axis(self.fresh("element"), SymExpr.of(self.width))
        rows = [i for k, i in enumerate(self.own_place(compute)) if k != self.found.along]
        whole = replaced(factor, as_stored(factor), Load(strip, (*rows, Var(chunk.name), Var(element.name))))
        mine = _Chunk((), chunk, Var(element.name))
        body = replaced(compute.body, _row_factor(compute, self.found), whole)
        body = substitute(body, {compute.reduce_axes[0].name: self.place(mine)})
        yield replace(compute, body=self.product_body(body, mine), reduce_axes=(chunk, element))

    # -- parts -------------------------------------------------------------------------------------------------

    def chunk(self, element: Expr | None = None) -> _Chunk:
        """A place with axes of its own."""
        rows = tuple(Axis(self.fresh(a.name), a.extent) for a in self.found.rows())
        return _Chunk(rows, Axis(self.fresh("chunk"), self.chunks), Var(self.fresh("element")) if element is None else element)

    def strip_axes(self, at: _Chunk) -> tuple[Axis, ...]:
        """The axes of what is stored element by element."""
        assert isinstance(at.element, Var)
        return (*at.rows, at.chunk, Axis(at.element.name, SymExpr.of(self.width)))

    def strip(self, name: str, dtype: str) -> Buffer:
        """A buffer of all chunks of all rows."""
        shape = (*(a.extent for a in self.found.rows()), self.chunks, SymExpr.of(self.width))
        return Buffer(unused(self.source, name), dtype, shape)

    def place(self, at: _Chunk) -> Expr:
        """The element's index along the whole axis."""
        return add(mul(Var(at.chunk.name), index(self.width)), at.element)

    def own_place(self, compute: Compute) -> tuple[Expr, ...]:
        """Where a reduction reads the scores."""
        return next(x.index for x in loads(compute.body) if x.buffer.name == self.found.scores.name)

    def canonical(self, expr: Expr, compute: Compute) -> Expr:
        """An expression of a reduction in the names of the scores' axes; what it reads of these stands without an index."""
        names: dict[str, Expr] = {
            i.name: Var(a.name) for i, a in zip(self.own_place(compute), self.found.scores.axes) if isinstance(i, Var)}
        scores = self.found.scores.target
        return substitute(map_loads(lambda x: Load(scores, ()) if x.buffer == scores else x, expr), names)

    def placed(self, expr: Expr, at: _Chunk, scores: Buffer | None = None, terms: Buffer | None = None) -> Expr:
        """A `canonical` expression at a place, the scores read from those of its phase."""
        names: dict[str, Expr] = {a.name: Var(b.name) for a, b in zip(self.found.rows(), at.rows)}
        names[self.found.scores.axes[self.found.along].name] = self.place(at)

        def visit(load: Load) -> Expr:
            if scores is not None and load.buffer == self.found.scores.target:
                return Load(scores, at.at())
            return Load(load.buffer, at.at()) if load.buffer == terms else load

        return map_loads(visit, substitute(expr, names))

    def inside(self, at: _Chunk) -> Expr:
        """That the axis has this element."""
        return call("lt", self.place(at), index(self.extent))

    def guarded(self, body: Expr, at: _Chunk, otherwise: Const) -> Expr:
        """`body` where the axis has the element."""
        return body if self.extent % self.width == ZERO else select(self.inside(at), body, otherwise)

    def product_body(self, body: Expr, at: _Chunk) -> Expr:
        """A product whose factors are 0 behind the end of the axis, those that vary along it and are no strips."""
        factors = product_of(body)
        if factors is None or self.extent % self.width == ZERO:
            return body
        for factor in factors:
            if any(x == self.place(at) for x in walk_expr(factor)):
                body = replaced(body, factor, self.zero_behind(factor, at))
        return body

    def zero_behind(self, factor: Expr, at: _Chunk) -> Expr:
        """A factor that is 0 behind the end of the axis, below its casts."""
        if isinstance(factor, Cast):
            return replace(factor, value=self.zero_behind(factor.value, at))
        return select(self.inside(at), factor, Const(SUM.identity(factor.dtype), factor.dtype))

    def fresh(self, name: str) -> str:
        """A name that no axis has."""
        return unused(self.source, f"{name}_s{next(self.numbers)}")


def _row_factor(compute: Compute, found: _Strips) -> Expr:
    """The factor of the second product that is made of scores."""
    factors = product_of(compute.body) or ()
    made = [f for f in factors if any(x.buffer.name == found.scores.name for x in loads(f))]
    if len(made) != 1:
        raise NotFactored(f"both factors of {compute.name} are made of what {found.scores.name} makes")
    return made[0]


def _without_casts(expr: Expr) -> Expr:
    while isinstance(expr, Cast):
        expr = expr.value
    return expr

"""Translation validation of a GPU's loops: what the threads execute in the end, compared with the loops that the tree gave.

The tree's loops are steps: nests of warps and threads one after the other (`to_loops`). What is printed is one nest, in which
each thread goes through all steps, on registers of its own, copies ahead in stages, matrix instructions. For all sizes, within
any block: over its warps and threads every instance is executed once; whatever it stores or reads is the cell that it was,
registers being told apart by whose they are; a copy is in the stage where it is read and is not written over before; and the
threads, were they to run in step, would keep the order of all dependences. That threads which touch one element are held to
that order, by barriers and waits, is `loop_ir.verify_sync`'s to prove; what they compute from what they read is for `validate`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import prod

from tsc.errors import InternalError
from tsc.loop_ir.gpu.registers import without_registers
from tsc.loop_ir.nodes import Allocate, Block, For, Func, Stmt, Store
from tsc.loop_ir.nodes import children as statements_in
from tsc.poly import PatternMismatch, isl
from tsc.poly.gpu.teams import number_of
from tsc.poly.proof.loop_order import Edges, not_before
from tsc.poly.proof.occurrences import Occurrence, Scope, Unreadable, occurrences
from tsc.poly.proof.reads import CELL
from tsc.poly.proof.refine import OPERATIONS, Place, inside_blocks
from tsc.poly.proof.region import Known, Region
from tsc.poly.scop import Scop
from tsc.sym import SymExpr
from tsc.sym.expr import coefficient_of
from tsc.te.expr import INDEX, Buffer, Call, Const, Expr, Load, Size, Var, call, children, format_expr, index, loads, walk
from tsc.te.expr import map_children as map_operands
from tsc.te.index import to_sym


def check_lowered_gpu(before: Func, after: Func, scop: Scop, edges: Edges, operations: int | None = None) -> tuple[str, ...]:
    """Raise InternalError unless the threads of `after` execute what the steps of `before` do, in an order that `edges` allow.

    `before` is what the schedule tree of `scop` gave, `after` the Func that is printed. Returns what could not be read for all
    sizes, with the reason, as that isl would take more `operations` (None: OPERATIONS); nothing is said of that.
    """
    if before.body == Block(()):
        return ()
    after = without_registers(after)
    scope = Scope(tuple(s.name for s in before.sizes))
    notes: list[str] = []
    try:
        with isl.budget(operations or OPERATIONS):
            start = Place(scope, Known(scop.known, scope.names.meanings, scope.names.products))
            old, new, place = inside_blocks(before, after, start)
            _Teams(before.name, place, scop, edges, _held(before, after), notes).check(old, new)
    except (PatternMismatch, Unreadable) as why:
        notes.append(f"the threads' loops are not read back for all sizes: {why}")
    return tuple(dict.fromkeys(notes))


# -- where cells are -------------------------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class _Held:
    """A buffer of the tree and what the passes have made of it: without its first `owners` coordinates, which say whose it is
    (a warp, then a lane), or with a stage in front of all others."""

    buffer: Buffer
    owners: int = 0
    staged: bool = False


def _held(before: Func, after: Func) -> dict[str, _Held]:
    """The buffers of `before` in `after`. Raises InternalError for one that is neither whole, nor a thread's, nor in stages, or
    that lives less long: in a loop that was not around it."""
    held = {b.name: _Held(b) for b in before.buffers}
    allocated = {s.buffer.name: (s, loops) for s, loops in _allocated(before.body, frozenset())}
    if before.buffers != after.buffers:
        raise InternalError(f"{after.name} has other arguments than its schedule")
    for stmt, loops in _allocated(after.body, frozenset()):
        own = stmt.buffer
        old, outer = allocated.get(own.name, (None, frozenset()))
        if old is not None and own.name not in held and (own.dtype, stmt.scope) == (old.buffer.dtype, old.scope) and (
                loops <= outer):
            owners = len(old.buffer.shape) - len(own.shape)
            if own.shape == old.buffer.shape[max(owners, 0):] and (
                    owners == 0 or (owners > 1 and stmt.scope == "register")):
                held[own.name] = _Held(old.buffer, owners)
                continue
            if own.shape[1:] == old.buffer.shape and stmt.scope == "shared":
                held[own.name] = _Held(old.buffer, staged=True)
                continue
        wanted = "nothing of this name" if old is None else old.buffer
        raise InternalError(f"{after.name} allocates {own} where its schedule has {wanted}")
    return held


def _allocated(stmt: Stmt, loops: frozenset[str]) -> Iterator[tuple[Allocate, frozenset[str]]]:
    """Each Allocate with the variables of the loops around it in which one thread runs through its life again."""
    if isinstance(stmt, Allocate):
        yield stmt, loops
    if isinstance(stmt, For) and stmt.kind not in ("block", "warp", "thread"):
        loops = loops | {stmt.var}
    for child in statements_in(stmt):
        yield from _allocated(child, loops)


def _digits(number: Expr, extents: Sequence[SymExpr]) -> tuple[Expr, ...]:
    """The row-major digits of a number."""
    sizes = [e.as_int() or 1 for e in extents]
    digits = [call("floordiv", number, index(prod(sizes[i + 1:]))) for i in range(len(sizes))]
    return tuple(d if i == 0 else call("mod", d, index(sizes[i])) for i, d in enumerate(digits))


@dataclass(frozen=True, slots=True)
class _Read:
    """A load in a scope where the conditions hold under which it is made."""

    load: Load
    scope: Scope


# -- the comparison --------------------------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class _Teams:
    """What is within the blocks of `kernel`, `place` being there."""

    kernel: str
    place: Place
    scop: Scop
    edges: Edges
    held: Mapping[str, _Held]
    notes: list[str]

    def check(self, old: Stmt, new: Stmt) -> None:
        """Raise InternalError where `new` does something else. Raises Unreadable."""
        first, found = occurrences(old, self.place.scope), occurrences(new, self.place.scope)
        second = [replace(x, store=self._whole(x)) for x in found]
        first, second = ([replace(x, store=replace(x.store, index=_plain(x.store.index))) for x in y] for y in (first, second))
        names = frozenset(self.held)
        for x in (*first, *second):
            if x.store.instance is None:
                raise self._wrong(f"a store to {x.store.buffer.name} executes no instance")
        region = Region(self.kernel, self.place.known, first, second, new, frozenset(), self.scop, names, {n: n for n in names})
        region.check(self.edges)
        for x in second:
            self._check_reads(x, [y for y in first if _name(y) == _name(x)])
        for copied in dict.fromkeys(_name(y) for y in first if _name(y) not in self.scop.statements):
            self._check_flow(copied, first, found)

    def _wrong(self, text: str) -> InternalError:
        return InternalError(f"the passes over the threads of {self.kernel} went wrong: {text}")

    def _empty(self, points: isl.Set) -> bool:
        return bool(points.is_empty()) or self.place.known.excludes(points)

    def _whole(self, x: Occurrence) -> Store:
        """A store of one thread, in the terms of the whole block: registers with their owners, copies without their stages."""
        warp, lane = (number_of([t for t in x.team if t.kind == kind]) for kind in ("warp", "thread"))

        def place(load: Load) -> Load:
            held = self.held.get(load.buffer.name)
            if held is None:
                raise self._wrong(f"{load.buffer.name} is allocated nowhere")
            if held.staged:
                return Load(held.buffer, load.index[1:])
            owner = (*_digits(warp, held.buffer.shape[:held.owners - 1]), lane) if held.owners else ()
            return Load(held.buffer, (*owner, *load.index))

        def visit(expr: Expr) -> Expr:
            inner = map_operands(visit, expr)
            return place(inner) if isinstance(inner, Load) else inner

        target = place(Load(x.store.buffer, tuple(map(visit, x.store.index))))
        return replace(x.store, buffer=target.buffer, index=target.index, value=visit(x.store.value))

    # -- what is read ------------------------------------------------------------------------------------------

    def _check_reads(self, x: Occurrence, old: Sequence[Occurrence]) -> None:
        """Each instance reads the cells that it read before, under the same conditions."""
        executed = x.instances().range()
        now = [_Cells.of(x, r) for r in _reads(x.store.value, x.scope)]
        before = [_Cells.of(y, r).among(executed) for y in old for r in _reads(y.store.value, y.scope)]
        for some, others in ((now, before), (before, now)):
            for one in some:
                if self._empty(one.when) or any(self._same(one, other) for other in others):
                    continue
                if any(self._opaque(other) for other in (*some, *others) if other.buffer == one.buffer):
                    self.notes.append(f"where {_name(x)} reads {one.buffer} is not read back: it has no formula")
                    continue
                raise self._wrong(f"{_name(x)} reads other cells of {one.buffer} than it did")

    def _opaque(self, read: _Cells) -> bool:
        """Whether a number without a formula is a part of a cell's index: two that are equal may have two names."""
        names = self.place.scope.names
        return any(isl.depends_on(read.cells.wrap(), n) for n in names.by_text.values() if n not in names.meanings)

    def _same(self, a: _Cells, b: _Cells) -> bool:
        """Whether the same instances read, and the same cells: those that one reads and those that the other does are equal
        for each of them, which isl finds out sooner than whether two relations are."""
        if a.buffer != b.buffer or a.cells.dim(isl.OUT) != b.cells.dim(isl.OUT) or not (
                self._empty(a.when.subtract(b.when)) and self._empty(b.when.subtract(a.when))):
            return False
        return self._equal(a.cells.reverse().apply_range(b.cells))

    def _equal(self, pairs: isl.Map) -> bool:
        """Whether two tuples are equal wherever they are related."""
        return self._empty(pairs.subtract(isl.Map.identity(pairs.get_space())).domain())

    # -- what comes from copies --------------------------------------------------------------------------------

    def _check_flow(self, copied: str, old: Sequence[Occurrence], new: Sequence[Occurrence]) -> None:
        """Whoever reads a copy finds it in the stage where it was made, and nothing else is copied there in between.

        A tile's copies are taken together: those made in the iteration of the tree's loops in which they are read."""
        name = next(y.store.buffer.name for y in old if _name(y) == copied)
        writers = [(c, self._stage(c, Load(c.store.buffer, c.store.index))) for c in new if _name(c) == copied]
        for reader in dict.fromkeys(_name(y) for y in old if any(x.buffer.name == name for x in loads(y.store.value))):
            made = _made_for([y for y in old if _name(y) == reader], [y for y in old if _name(y) == copied])
            for u in [x for x in new if _name(x) == reader]:
                for load in dict.fromkeys(x for x in loads(u.store.value) if x.buffer.name == name):
                    self._check_made(u, self._stage(u, load), made, writers)

    def _stage(self, x: Occurrence, place: Load) -> isl.Map:
        """The instance executed -> the stage that it reads or stores to, none where a buffer has no stages."""
        held = self.held[place.buffer.name]
        if not held.staged:
            return x.pairs(CELL, ()).range().unwrap()
        found, stages = x.pairs(CELL, place.index[:1]).range().unwrap(), place.buffer.shape[0]
        if not self._empty(found.range().subtract(isl.Set(f"{{ {CELL}[i] : 0 <= i < {stages} }}"))):
            raise self._wrong(f"{_name(x)} reaches a stage of {place.buffer.name} that there is not")
        return found

    def _check_made(self, u: Occurrence, read: isl.Map, made: isl.Map, writers: Sequence[tuple[Occurrence, isl.Map]]) -> None:
        made = made.intersect_domain(read.domain())
        for c, written in writers:
            if not self._equal(read.reverse().apply_range(made).apply_range(written)):
                raise self._wrong(f"{_name(u)} reads copies that are in another stage")
            if not self._empty(made.intersect(not_before(c, u).reverse()).domain()):
                raise self._wrong(f"{_name(u)} reads copies before they are made")
        for c, written in writers:  # what is written where it reads, not after it, ...
            others = read.apply_range(written.reverse()).intersect(not_before(u, c)).subtract(made)
            for own, _ in writers:  # ... nor before what it reads was
                if not self._empty(others.intersect(made.apply_range(not_before(c, own).reverse())).domain()):
                    raise self._wrong(f"{_name(u)} reads copies that were written over")


@dataclass(frozen=True, slots=True)
class _Cells:
    """What a load of `buffer` reads: the instances `when` it does, and the instances -> the cell."""

    buffer: str
    when: isl.Set
    cells: isl.Map

    @staticmethod
    def of(x: Occurrence, read: _Read) -> _Cells:
        """What an occurrence reads. Raises Unreadable."""
        there = replace(x, scope=read.scope)
        return _Cells(read.load.buffer.name, there.instances().range(), there.pairs(CELL, read.load.index).range().unwrap())

    def among(self, instances: isl.Set) -> _Cells:
        """What some of the instances read."""
        return replace(self, when=self.when.intersect(instances))


def _made_for(readers: Sequence[Occurrence], copies: Sequence[Occurrence]) -> isl.Map:
    """The instances that read -> the copies made for them: those of the same iteration of the loops around both, before them.
    Raises Unreadable where the copies are not made in a step before."""
    found: list[isl.Map] = []
    for u in readers:
        for c in copies:
            pairs = list(zip(c.time, u.time))
            end = next(i for i, (a, b) in enumerate(pairs) if a != b)
            if not _first(*pairs[end]):
                raise Unreadable(f"{_name(c)} is not made in a step before {_name(u)}")
            around = [Var(v) for v, _ in pairs[:end] if isinstance(v, str)]
            run, made = (x.pairs(CELL, around).range().unwrap() for x in (u, c))
            found.append(run.apply_range(made.reverse()))
    return reduce(lambda a, b: a.union(b), found)


def _name(x: Occurrence) -> str:
    return "" if x.store.instance is None else x.store.instance.statement


def _first(a: int | str, b: int | str) -> bool:
    return isinstance(a, int) and isinstance(b, int) and a < b


def _reads(expr: Expr, scope: Scope) -> Iterator[_Read]:
    """The loads of a value, with the conditions under which they are read. A part of an index that is no formula counts as a
    number of its own: loads in it are compared as loads."""
    match expr:
        case Call(fn="select", args=(condition, yes, no)):
            yield from _reads(condition, scope)
            for branch, negate in ((yes, False), (no, True)):
                try:
                    inner = scope.where(scope.condition(condition, negate))
                except Unreadable:  # a condition on values: either side may be read
                    inner = scope
                yield from _reads(branch, inner)
            return
        case Load():
            names: list[str] = []
            place = tuple(_named(i, names) for i in _plain(expr.index))
            inner = scope
            for name in names:
                inner = inner.parameter(name)
            yield _Read(replace(expr, index=place), inner)
    for child in children(expr):
        yield from _reads(child, scope)


def _named(expr: Expr, names: list[str]) -> Expr:
    """An index with a name in `names` for each part that comes from data."""
    match expr:
        case Var() | Const() | Size():
            return expr
        case Call(dtype=dtype) if dtype == INDEX:
            return map_operands(lambda e: _named(e, names), expr)
    names.append(f"loaded{len(names)}_")
    return Var(names[-1])


def _plain(place: Sequence[Expr]) -> tuple[Expr, ...]:
    """A cell by more coordinates, none of which is an exclusive or: one that has a swizzle in it, c + f * (a xor b), becomes
    c, f, a and b. Where these are equal, so are the cells. Raises Unreadable for a coordinate of another form."""
    return tuple(part for coordinate in place for part in _without_xor(coordinate))


def _without_xor(coordinate: Expr) -> tuple[Expr, ...]:
    found = list(dict.fromkeys(e for e in walk(coordinate) if isinstance(e, Call) and e.fn == "bitxor"))
    if not found:
        return (coordinate,)
    leaves: dict[str, Expr] = {}
    value = to_sym(coordinate, leaves)
    name = next((n for n, e in leaves.items() if e == found[0]), "")
    factor = coefficient_of(value, name)
    if len(found) > 1 or factor is None or (by := factor.as_int()) is None:
        raise Unreadable(f"{format_expr(coordinate)} has no formula")

    def rest(expr: Expr) -> Expr:
        return index(0) if expr == found[0] else map_operands(rest, expr)

    return (rest(coordinate), index(by), *found[0].args)

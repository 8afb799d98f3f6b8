"""Promotion: buffers that live within one tile become local, and an operand is copied into a panel for the vector axis.

Sizes and offsets come from footprints: the cells that the instances under a tree node access, as a relation from the values of
the schedule rows above it. What has to be inserted into the tree is an *instance* that carries its coordinates in its tuple:
`alloc_acc[lo0, lo1, ...]` says where storage begins its life and what its first cell is; `copy_w[k, n, ...]` fills a panel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from tsc.errors import InternalError
from tsc.loop_ir.marks import alloc_of, copy_of
from tsc.poly import PatternMismatch, isl
from tsc.poly.affine import index_text
from tsc.poly.deps import Dependences
from tsc.poly.legality import Order, Place
from tsc.poly.promotion.layout import Layout, certify
from tsc.poly.promotion.rounded import guard_of
from tsc.poly.scop import Scop, Statement
from tsc.poly.to_expr import parameter_expr
from tsc.poly.tree import node_below
from tsc.sym import SymExpr, product
from tsc.te.expr import Buffer, Const, Expr, Load, Var, as_size, map_children, select
from tsc.te.passes.widen import LONG

#: Constant-size locals up to this many bytes live on the stack, larger ones in scratch memory.
STACK_BYTES = 16384
#: The loops over copy instances: marks and functions, outermost first.
CopyRows: TypeAlias = Callable[[isl.Map], Sequence[tuple[str, isl.PwAff]]]


@dataclass(frozen=True, slots=True)
class Local:
    """A buffer given storage of its own below one tree node: element `index` of `buffer` is element `index[d] - low[d] for d in
    dims` of a box, where `low` are the first arguments of the instance `statement`; a dimension -1 is indexed by 0. The box is
    `storage` itself, or is stored there as `layout` says."""

    buffer: Buffer
    storage: Buffer
    dims: tuple[int, ...]
    scope: str
    statement: str
    layout: Layout | None = None

    @property
    def box(self) -> tuple[SymExpr, ...]:
        """The extents of the box, one for each of `dims`."""
        return self.storage.shape if self.layout is None else self.layout.box

    @property
    def extents(self) -> tuple[str, ...]:
        """How many cells of each of the buffer's dims the box has, as text."""
        return tuple(str(self.box[self.dims.index(d)]) if d in self.dims else "1" for d in range(len(self.buffer.shape)))


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a statement stores, as expressions of the names of its tuple's dimensions."""

    names: tuple[str, ...]
    buffer: Buffer
    index: tuple[Expr, ...]
    value: Expr


def assignments_of(scop: Scop) -> dict[str, Assignment]:
    """What each statement of the Scop stores."""
    return {s.name: Assignment(tuple(a.name for a in s.axes), s.compute.target, s.cell, s.body)
            for s in scop.statements.values()}


@dataclass(frozen=True, slots=True)
class Promoted:
    """A schedule with its local buffers and what its statements store, those that promotion added among them.

    `guards[statement]` is a condition under which alone a statement runs, in the names of its axes: the tree may have more
    instances (a rounded domain).
    """

    schedule: isl.Schedule
    locals: tuple[Local, ...]
    assignments: Mapping[str, Assignment]
    guards: Mapping[str, Expr] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Site:
    """A tree node before which buffers may get storage, and what is asked of it for each of them: the instances that reach it
    with the values of the rows above (`prefix`), those values (`live`), and the dependences inside single runs of it. `boxes`
    remembers footprints with their boxes and alloc instances: most locals of a kernel have the footprint of another."""

    domain: isl.UnionSet
    prefix: isl.UnionMap
    live: isl.Set
    inside: isl.UnionMap
    boxes: list[tuple[isl.Map, list[SymExpr], isl.Map]] = field(default_factory=list)


def site(node: isl.ScheduleNode, order: Order) -> Site:
    """The site before `node`, in a tree that makes `order` of all dependences."""
    prefix, domain = node.get_prefix_schedule_relation(), node.get_domain()
    return Site(domain, prefix, isl.as_set(domain.apply(prefix)), order.within(isl.path(node)))


def localise(place: Site, scop: Scop, deps: Dependences, buffer: Buffer, order: Sequence[int] | None = None,
             shape: Sequence[int] | None = None) -> tuple[isl.Map, Local]:
    """Storage of its own for `buffer` in each run of a node: the alloc instances to be grafted before it, and the Local.

    `order` lists the dimensions kept, -1 for one of extent 1, and `shape` rounds the storage up to constants. Raises
    PatternMismatch when a dependence through the buffer leaves the run, or when the footprint is no box at an affine place.
    """
    if not deps.through[buffer.name].is_subset(place.inside):
        raise PatternMismatch(f"values of {buffer.name} are used outside the tile that computes them")
    # what is read was written before, in the same run: the writes are the whole footprint
    accesses = scop.reaching(buffer.name, scop.writes)
    footprint = isl.as_map(accesses.intersect_domain(place.domain).apply_domain(place.prefix))
    extents, instances = _allocated(footprint, place, scop)
    statement = alloc_of(buffer.name)
    dims = tuple(order if order is not None else (i for i, e in enumerate(extents) if e != SymExpr.of(1)))
    sizes = tuple(SymExpr.of(s) for s in shape) if shape is not None else tuple(extents[d] for d in dims)
    if not dims:
        dims, sizes = (-1,), (SymExpr.of(1),)
    storage = Buffer(buffer.name, buffer.dtype, sizes)
    scope = "register" if shape is not None or product(sizes) == SymExpr.of(1) else scope_of(storage)
    return instances.set_tuple_name(isl.OUT, statement), Local(buffer, storage, dims, scope, statement)


@dataclass(frozen=True, slots=True)
class Home:
    """Where a local may live: in each run of what is below the bands under `marks`, on the way to `statement`. Its storage
    keeps the dimensions `order` (None: those of an extent above 1), -1 for one of extent 1, rounded up to `shape`."""

    marks: frozenset[str]
    statement: str = ""
    order: tuple[int, ...] | None = None
    shape: tuple[int, ...] | None = None


def with_locals(schedule: isl.Schedule, order: Order, scop: Scop, deps: Dependences, own: Mapping[str, Sequence[Home]],
                others: Sequence[Home]) -> Promoted:
    """A schedule, which makes `order` of all dependences, with storage for each local: at the first of its homes, its `own` or
    those of all `others`, that holds all its uses. Raises PatternMismatch where none does."""
    sites: dict[tuple[frozenset[str], str], Site] = {}
    placed: list[tuple[Home, isl.Map, Local]] = []
    for name, buffer in scop.locals().items():
        refusals: list[str] = []
        for home in own.get(name, others):
            place = (home.marks, home.statement)
            sites[place] = sites.get(place) or site(node_below(schedule, *place), order)
            try:
                placed.append((home, *localise(sites[place], scop, deps, buffer, home.order, home.shape)))
                break
            except PatternMismatch as refusal:
                refusals.append(str(refusal))
        else:
            raise PatternMismatch("; ".join(refusals))
    for home, instances, _ in placed:
        schedule = graft(node_below(schedule, home.marks, home.statement), instances, []).get_schedule()
    return Promoted(schedule, tuple(local for _, _, local in placed), assignments_of(scop))


def _allocated(footprint: isl.Map, place: Site, scop: Scop) -> tuple[list[SymExpr], isl.Map]:
    """The extents of a footprint's box, and the instances that say where it begins. Raises PatternMismatch."""
    cells = footprint.reset_tuple_id(isl.OUT)
    for known, extents, instances in place.boxes:
        if cells.plain_is_equal(known):
            return extents, instances
    lows, extents = box(footprint, place.live, scop)
    place.boxes.append((cells, extents, isl.with_prefix(place.live, lows, "alloc")))
    return extents, place.boxes[-1][2]


@dataclass(frozen=True, slots=True)
class Operand:
    """What a statement computes with (`read`, in its axes), seen as element `index` of an array: `value` says what each of its
    elements is, in coordinates called `cells`, whatever that takes, so that a prologue (a cast, a pad, im2col) is composed into
    the copy. `dims` are the coordinates that vary within a tile, in the order in which the copy is stored."""

    array: Buffer
    cells: tuple[str, ...]
    value: Expr
    dims: tuple[int, ...]
    index: tuple[Expr, ...]
    read: Expr

    @staticmethod
    def over_axes(name: str, read: Expr, statement: Statement, cells: Sequence[str], dims: tuple[int, ...]) -> Operand:
        """The array over those of the statement's axes that the operand depends on."""
        extent = {a.name: a.extent for a in statement.axes}
        array = Buffer(name, read.dtype, tuple(extent[c] for c in cells))
        return Operand(array, tuple(cells), read, dims, tuple(Var(c) for c in cells), read)


def promote_operand(promoted: Promoted, node: isl.ScheduleNode, scop: Scop, exact: isl.Set, operand: Operand,
                    layout: Layout, scope: str, fill: Const, rows: CopyRows) -> Promoted:
    """`promoted` with `operand`, as the statement whose own instances are `exact` uses it, read from a copy made before `node`.

    `scop` has the domains of the tree (rounded ones, perhaps): the footprint of its instances is copied, cells that no instance
    of `exact` reads are filled. `rows` says in which loops. Raises PatternMismatch where the footprint is not the box of
    `layout` at an affine place.
    """
    reader, array = scop.statements[str(exact.get_tuple_name())], operand.array
    footprint = footprint_of(node, scop, reader, operand)
    lows, extents = box(footprint, footprint.domain(), scop)
    if tuple(extents[d] for d in operand.dims) != layout.box or any(
            e != SymExpr.of(1) for d, e in enumerate(extents) if d not in operand.dims):
        raise PatternMismatch(f"what a tile reads of {array.name} is no box of {[str(e) for e in layout.box]}")
    local = Local(array, replace(array, shape=layout.storage), operand.dims, scope, alloc_of(array.name), layout)

    read = read_by(reader, operand, scop)
    wanted, cells = read.intersect_domain(exact).range(), read.intersect_domain(reader.domain).range()
    guard = guard_of(wanted, cells, operand.cells)
    value = operand.value if guard is None else select(guard, operand.value, fill)
    return with_copy(promoted, node, reader, operand, local, lows, footprint, value, rows)


def with_copy(promoted: Promoted, node: isl.ScheduleNode, reader: Statement, operand: Operand, local: Local,
              lows: Sequence[isl.PwAff], footprint: isl.Map, value: Expr, rows: CopyRows) -> Promoted:
    """`promoted` with `local`, whose lives begin before `node` at the elements `lows`, filled by a copy of `footprint` (prefix
    values -> elements, each of them `value`) and read by `reader` in the place of its operand."""
    live, name = footprint.domain(), copy_of(local.buffer.name)
    copies = footprint.flat_range_product(live.identity()).set_tuple_name(isl.OUT, name)
    node = graft(node, isl.with_prefix(live.coalesce(), lows, local.statement), [])
    node = graft(node, copies, rows(copies))
    assignments = dict(promoted.assignments)
    assignments[name] = Assignment(operand.cells, local.buffer, tuple(Var(c) for c in operand.cells), value)
    old = assignments[reader.name]
    read = replaced(old.value, operand.read, Load(local.buffer, operand.index))
    assignments[reader.name] = replace(old, value=read)
    return replace(promoted, schedule=node.get_schedule(), locals=(*promoted.locals, local), assignments=assignments)


def footprint_of(node: isl.ScheduleNode, scop: Scop, reader: Statement, operand: Operand,
                 together: isl.Map | None = None) -> isl.Map:
    """The values of the rows above `node` -> the elements of an operand that a statement reads below it, its instances alone or
    all those computed `together` with them."""
    relation = node.get_prefix_schedule_relation().intersect_domain(isl.UnionSet.from_set(reader.domain))
    instances = isl.as_map(relation).reverse()
    return (instances if together is None else instances.apply_range(together)).apply_range(read_by(reader, operand, scop))


def read_by(reader: Statement, operand: Operand, scop: Scop) -> isl.Map:
    """The instances of a statement -> the element of an operand that they read. Raises PatternMismatch where not affine."""
    axes = [a.name for a in reader.axes]
    texts = [index_text(i, {a: a for a in axes}) for i in operand.index]
    if None in texts:
        raise PatternMismatch(f"the element of {operand.array.name} that {reader.name} reads is not affine")
    return isl.Map(f"{scop.params} -> {{ {reader.name}[{', '.join(axes)}] -> [{', '.join(str(t) for t in texts)}] }}")


def replaced(expr: Expr, old: Expr, new: Expr) -> Expr:
    """`expr` with `new` for every `old`."""
    return new if expr == old else map_children(lambda c: replaced(c, old, new), expr)


def check_promoted(promoted: Promoted, scop: Scop, deps: Dependences, order: Order) -> None:
    """Raise InternalError unless in this very tree, which makes `order` of all dependences, each local has storage and is used
    only within one life and inside it, no two cells of a life in one place, and nothing that outlives the kernel is kept there
    alone."""
    added = introduced(promoted.schedule, scop)
    for name in scop.locals().keys() - {x.buffer.name for x in promoted.locals}:
        raise InternalError(f"the local {name} has no storage")
    for local in promoted.locals:
        if local.layout is not None:
            certify(local.layout, scop.params, scop.context)
            if local.storage.shape != local.layout.storage:
                raise InternalError(f"the storage {local.storage} is not that of its layout {local.layout.name}")
        if local.buffer in scop.program.outputs:
            raise InternalError(f"{local.buffer.name} outlives the kernel, and is stored in a local")
        if local.buffer.name not in scop.locals():
            continue
        if local.statement not in added:
            raise InternalError(f"the schedule tree does not say where {local.buffer.name} has storage")
        place, lives = added[local.statement].place, added[local.statement].relation
        if not deps.through[local.buffer.name].is_subset(order.within(added[local.statement].path)):
            raise InternalError(f"values of {local.buffer.name} are used outside the tile that computes them")
        writes = scop.reaching(local.buffer.name, scop.writes)
        if not writes.domain().is_subset(place.domain):
            raise InternalError(f"{local.buffer.name} is written where it has no storage")
        cells = isl.as_map(writes.apply_domain(isl.prefix_relation(writes.domain(), place.rows)))
        if not isl.within(cells, lives, local.extents, scop.params):
            raise InternalError(f"{local.buffer.name} leaves its storage {local.storage}")


@dataclass(frozen=True, slots=True)
class Introduced:
    """Instances that an extension adds: the place and path of its node, the relation to them from the values of the rows above,
    and the statements that the extensions around this one introduced (the earlier ones of the same place among them)."""

    statement: str
    place: Place
    path: isl.Path
    relation: isl.Map
    above: frozenset[str]


def introduced(schedule: isl.Schedule, scop: Scop) -> dict[str, Introduced]:
    """All instances that extensions of a tree add, by the name of their statement."""
    return _introduced(schedule.get_root(), Place(None, scop.domain), (), frozenset())


def _introduced(node: isl.ScheduleNode, place: Place, path: isl.Path, above: frozenset[str]) -> dict[str, Introduced]:
    found: dict[str, Introduced] = {}
    if node.get_type() == isl.NodeType.extension:
        relations = {str(r.get_tuple_name(isl.OUT)): r for r in isl.maps_of(node.extension_get_extension())}
        for names in _in_order(node.child(0), set(relations)):
            found |= {name: Introduced(name, place, path, relations[name], above) for name in names}
            above = above | names
    inner = place.below(node)
    for i in range(node.n_children()):
        found |= _introduced(node.child(i), inner, (*path, i), above)
    return found


def _in_order(node: isl.ScheduleNode, names: set[str]) -> list[set[str]]:
    """`names` as the sequence `node` runs them."""
    if node.get_type() != isl.NodeType.sequence:
        return [names]
    return [isl.tuple_names(node.child(i).filter_get_filter()) & names for i in range(node.n_children())]


def scope_of(storage: Buffer) -> str:
    """Stack for what is small and constant, scratch for the rest."""
    count = product(storage.shape).as_int()
    return "stack" if count is not None and count * np.dtype(storage.dtype).itemsize <= STACK_BYTES else "scratch"


def graft(node: isl.ScheduleNode, instances: isl.Map, rows: Sequence[tuple[str, isl.PwAff]]) -> isl.ScheduleNode:
    """Run `instances` (prefix values -> added instances) before `node`, in loops over `rows` with their marks.

    Returns `node`.
    """
    tree = isl.extension(isl.UnionMap.from_map(instances))
    marks = [m for m, _ in rows]
    if marks:
        schedule = isl.rows(isl.UnionSet.from_set(instances.range()), [[f] for _, f in rows])
        below = tree.child(0).insert_partial_schedule(schedule)
        tree = isl.mark_each(below, marks)
        tree = tree.ancestor(tree.get_tree_depth())
    return node.graft_before(tree)


def box(footprint: isl.Map, live: isl.Set, scop: Scop) -> tuple[list[isl.PwAff], list[SymExpr]]:
    """The least cell for each live prefix, and the greatest extents over all of them."""
    lows, extents = [], []
    for i in range(footprint.dim(isl.OUT)):
        low = footprint.dim_min(i)
        extent = footprint.dim_max(i).sub(low)
        total = low.coalesce().gist(footprint.domain()).coalesce()
        if not isl.single_piece(total):
            raise PatternMismatch(f"the footprint of {footprint.get_tuple_name(isl.OUT)} starts at no affine cell: {low}")
        lows.append(total.intersect_domain(live))
        size = greatest(extent, scop)
        if size is None:
            raise PatternMismatch(f"the footprint of {footprint.get_tuple_name(isl.OUT)} has no affine extent")
        extents.append(size + 1)
    return lows, extents


def greatest(extent: isl.PwAff, scop: Scop) -> SymExpr | None:
    """The greatest value of an extent: a number, but for a large one that it has only at a size's end, and a size else."""
    most = isl.maximum(extent)
    if most is not None and most < LONG:
        return SymExpr.of(most)
    varying = as_size(parameter_expr(isl.maximum_over(extent, scop.context)))
    return varying if varying is not None or most is None else SymExpr.of(most)


def zero(dtype: str) -> Const:
    """What cells hold that nobody needs."""
    return Const(False if dtype == "bool" else 0.0 if dtype.startswith(("float", "bfloat")) else 0, dtype)

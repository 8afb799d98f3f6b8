"""Patterns: which ScheduleMatrix a Program gets; a refusal carries its reason. Their order stands in `match.py`.

What a pattern knows about a statement comes from access relations: the rows of a statement that reads the anchor's result are
the coordinates of the cell that it reads, whatever the operator. Section 5.2 of the paper (mapping types).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tsc.poly import PatternMismatch, isl
from tsc.poly.linear import difference
from tsc.poly.matrix import Row, ScheduleMatrix, function
from tsc.poly.scop import Scop, Statement
from tsc.te.compute import Compute
from tsc.te.expr import Call, Cast, Expr, Load, Var, add, index, loads, substitute, walk


@dataclass(frozen=True, slots=True)
class Contraction:
    """A sum of products. Rows: batch axes, then `n` (the vector axis), then `m` (None: no such axis), then the reduce axes.
    `n_factor` varies with n and not with m, `m_factor` the other way round."""

    matrix: ScheduleMatrix
    anchor: Compute
    batch: tuple[str, ...]
    n: str
    m: str | None
    n_factor: Expr
    m_factor: Expr

    @property
    def parallel(self) -> int:
        """How many rows are parallel; the rest are reduce rows."""
        return len(self.matrix.names) - len(self.anchor.reduce_axes)


@dataclass(frozen=True, slots=True)
class Stage:
    """Statements that share a loop nest inside a row tile; `rows` are their own rows, solved."""

    statements: tuple[str, ...]
    matrix: ScheduleMatrix


@dataclass(frozen=True, slots=True)
class Staged:
    """Row-parallel stages one after the other: chained reductions with equal rows, or injective statements alone.

    `matrix` holds the row functions; `across` says that the last row is the unit-stride axis of what is reduced, so that its
    loop belongs inside the reduction's.
    """

    matrix: ScheduleMatrix
    anchor: Compute
    stages: tuple[Stage, ...]
    reducing: bool
    across: bool


# -- contraction -----------------------------------------------------------------------------------------------

def match_contraction(scop: Scop) -> Contraction:
    """One sum of products with its epilogues. Raises PatternMismatch with the reason."""
    anchor = only_reduction(scop, "contraction")
    factors = product_of(anchor.body)
    if anchor.monoid is None or anchor.monoid.fn != "add" or factors is None:
        raise PatternMismatch(f"contraction: {anchor.name} is no sum of products")
    cells = cells_behind(scop, anchor, "contraction")
    n, m, n_factor, m_factor = _choose_axes(scop, anchor, cells, factors)
    batch = tuple(a.name for a in anchor.axes if a.name not in (n, m))
    order = [*batch, n, *([m] if m else [])]
    return Contraction(anchor_matrix(scop, anchor, cells, order), anchor, batch, n, m, n_factor, m_factor)


def only_reduction(scop: Scop, pattern: str) -> Compute:
    """The one Compute that reduces. Raises PatternMismatch where there are more or none."""
    reducing = [c for c in scop.program.computes if c.monoid is not None]
    if len(reducing) != 1:
        raise PatternMismatch(f"{pattern}: there are {len(reducing)} reductions, not one")
    return reducing[0]


def cells_behind(scop: Scop, anchor: Compute, pattern: str) -> dict[str, isl.Map]:
    """For each Compute, its cells -> the anchor's. Raises PatternMismatch unless all others come after it, cell by cell."""
    cells = row_relations(scop, anchor)
    for compute in scop.program.computes:
        if compute.name not in cells:
            raise PatternMismatch(
                f"{pattern}: the cell of {anchor.name} that {compute.name} belongs to is not affine or not unique",
                compute.name if compute.name in scop.locals() else "")
        if compute is not anchor and feeds(scop, compute, anchor):
            raise PatternMismatch(f"{pattern}: {compute.name} is computed before {anchor.name}")
    return cells


def anchor_matrix(scop: Scop, anchor: Compute, cells: Mapping[str, isl.Map], order: Sequence[str]) -> ScheduleMatrix:
    """The rows of all statements: the anchor's axes in `order`, then its reduce axes, which only its update knows."""
    axes = [a.name for a in anchor.axes]
    reduce = [a.name for a in anchor.reduce_axes]
    entries: dict[str, tuple[Row, ...]] = {}
    for statement in scop.statements.values():
        coordinates = row_functions(scop, statement, cells[statement.compute.name])
        rows: list[Row] = [coordinates[axes.index(a)] for a in order]
        rows += [function(scop, statement.name, r) if statement.role == "update" else None for r in reduce]
        entries[statement.name] = tuple(rows)
    return ScheduleMatrix((*order, *reduce), entries)


def product_of(body: Expr) -> tuple[Expr, Expr] | None:
    """The two factors of a product that both load, looking through casts; None for anything else."""
    while isinstance(body, Cast):
        body = body.value
    if isinstance(body, Call) and body.fn == "mul" and all(any(loads(a)) for a in body.args):
        return body.args[0], body.args[1]
    return None


def variables(expr: Expr) -> set[str]:
    """Names of the Vars that occur."""
    return {e.name for e in walk(expr) if isinstance(e, Var)}


def unit_stride(factor: Expr, axis: str) -> bool:
    """Whether `factor` is one load (through casts) that reads consecutive elements along `axis`."""
    while isinstance(factor, Cast):
        factor = factor.value
    if not isinstance(factor, Load) or not factor.index:
        return False
    last = factor.index[-1]
    step = difference(substitute(last, {axis: add(Var(axis), index(1))}), last)
    return step == index(1) and all(axis not in variables(i) for i in factor.index[:-1])


def single_axes(compute: Compute, factors: tuple[Expr, Expr]) -> list[str]:
    """The axes of a product that belong to one of its factors alone; axes of extent 1 do not count."""
    left, right = variables(factors[0]), variables(factors[1])
    return [a.name for a in compute.axes if (a.name in left) != (a.name in right) and a.extent.as_int() != 1]


def is_contraction(compute: Compute) -> bool:
    """Whether it is a sum of products in which each factor has an axis that the other has not."""
    factors = product_of(compute.body)
    if factors is None or compute.monoid is None or compute.monoid.fn != "add":
        return False
    single = set(single_axes(compute, factors))
    return bool(single & variables(factors[0])) and bool(single & variables(factors[1]))


def _choose_axes(scop: Scop, anchor: Compute, cells: dict[str, isl.Map],
                 factors: tuple[Expr, Expr]) -> tuple[str, str | None, Expr, Expr]:
    """The vector axis n and its partner m, with the factors that vary with them."""
    left = variables(factors[0])
    sizes = {a.name: a.extent.as_int() for a in anchor.axes}
    single = single_axes(anchor, factors)
    if not single:
        raise PatternMismatch(f"contraction: no axis of {anchor.name} belongs to one factor alone")
    stored = [a for a in store_axes(scop, anchor, cells) if a in single]
    n = stored[0] if stored else single[-1]
    n_factor, m_factor = factors if n in left else factors[::-1]
    partners = [a for a in single if a in variables(m_factor)]
    if not partners:
        if not unit_stride(n_factor, n):
            raise PatternMismatch(f"contraction: {anchor.name} has no second axis and its operand is not consecutive along {n}")
        return n, None, n_factor, m_factor
    best = max(partners, key=lambda a: (sizes[a] is None, sizes[a] or 0, partners.index(a)))
    return n, best, n_factor, m_factor


def store_axes(scop: Scop, anchor: Compute, cells: dict[str, isl.Map]) -> list[str]:
    """The anchor's axes that the last output's dimensions vary, the last dimension's first."""
    last = next(c for c in reversed(scop.program.computes) if c.target in scop.program.outputs)
    statement = scop.of(last)[-1]
    functions = row_functions(scop, statement, cells[last.name])
    order = []
    for i in reversed(range(len(last.axes))):
        if last.axes[i].extent.as_int() == 1:
            continue
        for axis, row in zip(anchor.axes, functions):
            if row.involves_dims(isl.IN, i, 1) and axis.name not in order:
                order.append(axis.name)
    return order


def feeds(scop: Scop, compute: Compute, anchor: Compute) -> bool:
    """Whether the anchor reads, directly or not, what `compute` makes."""
    readers = {a.statement for a in scop.reads if a.buffer.name == compute.name}
    names = {scop.statements[r].compute.name for r in readers}
    return anchor.name in names or any(
        feeds(scop, c, anchor) for c in scop.program.computes if c.name in names and c is not compute)


# -- rows from access relations --------------------------------------------------------------------------------

def row_relations(scop: Scop, anchor: Compute, axes: Collection[int] | None = None) -> dict[str, isl.Map]:
    """For each Compute connected to `anchor`: its cells -> the anchor's cells (of these the coordinates `axes`, where given),
    through the exact accesses between them.

    An edge counts only where it determines one anchor cell for every cell; a Compute without such an edge is left out.
    """
    written = {w.statement: w.relation for w in scop.writes}
    cells = {c.name: written[scop.of(c)[0].name].range() for c in scop.program.computes}
    # a read under a condition says where its cell would be at every instance: the check of the schedule comes later
    edges = [(scop.statements[a.statement].compute.name, a.buffer.name,
              isl.extended(a.relation, scop.statements[a.statement].domain).apply_domain(written[a.statement]))
             for a in scop.reads if a.exact and a.buffer.name in cells]
    own = cells[anchor.name].identity()
    for i in reversed(range(len(anchor.axes))):
        if axes is not None and i not in axes:
            own = own.project_out(isl.OUT, i, 1)
    found: dict[str, isl.Map] = {anchor.name: own}
    grown = True
    while grown:
        grown = False
        for reader, target, relation in edges:
            for known, new, step in ((target, reader, relation), (reader, target, relation.reverse())):
                if known in found and new not in found:
                    composed = step.apply_range(found[known])
                    if composed.is_single_valued() and cells[new].intersect_params(scop.populated).is_subset(composed.domain()):
                        found[new] = composed
                        grown = True
    return found


def row_functions(scop: Scop, statement: Statement, relation: isl.Map) -> list[isl.PwAff]:
    """The coordinates of the anchor cell as functions of a statement's instances."""
    written = next(w.relation for w in scop.writes if w.statement == statement.name)
    known = statement.domain.intersect_params(scop.populated)
    functions = [f.gist(known).coalesce() for f in isl.components(written.apply_range(relation))]
    for f in functions:
        if not isl.single_piece(f):
            raise PatternMismatch(f"a row of {statement.name} is not one affine expression: {f}")
    return functions


def completing_axes(scop: Scop, statement: Statement, rows: list[isl.PwAff]) -> list[str]:
    """The statement's axes needed, besides `rows`, to tell its instances apart."""
    needed: list[str] = []
    told = isl.values_of(statement.domain, rows) if rows else None
    for axis in statement.axes:
        if told is not None and told.is_injective():
            break
        value = isl.values_of(statement.domain, [function(scop, statement.name, axis.name)])
        if told is not None and told.apply_range(told.reverse()).is_subset(value.apply_range(value.reverse())):
            continue  # equal rows have an equal value
        told = value if told is None else told.flat_range_product(value)
        needed.append(axis.name)
    return needed


# -- reductions and injective statements -----------------------------------------------------------------------

def match_reduction(scop: Scop) -> Staged:
    """Reductions with equal rows, stitched with what stands between them. Raises PatternMismatch with the reason."""
    anchors = [c for c in scop.program.computes if c.monoid is not None]
    if not anchors:
        raise PatternMismatch("reduction: nothing is reduced")
    products = [c.name for c in scop.program.computes if is_contraction(c)]
    if products and sum(c.monoid is not None for c in scop.program.computes) > 1:
        raise PatternMismatch(f"reduction: {products[0]} is a contraction, which wants register tiles")
    by_rank = {len(a.axes): a for a in reversed(anchors)}
    refusals: list[PatternMismatch] = []
    for rank in sorted(by_rank):  # a reduction whose parts are reduced first has fewer axes than they
        try:
            return _staged(scop, by_rank[rank], True)
        except PatternMismatch as refusal:
            refusals.append(refusal)
    raise refusals[0]


def match_injective(scop: Scop) -> Staged:
    """Statements without a reduction. Raises PatternMismatch with the reason."""
    if any(c.monoid is not None for c in scop.program.computes):
        raise PatternMismatch("injective: there is a reduction")
    anchor = next(c for c in reversed(scop.program.computes) if c.target in scop.program.outputs)
    return _staged(scop, anchor, False)


def _staged(scop: Scop, anchor: Compute, reducing: bool) -> Staged:
    names = tuple(a.name for a in anchor.axes)
    cells = row_relations(scop, anchor)
    for part in _parts(scop, reducing):  # nothing connects it to the anchor: any rows are legal, its own anchor's first axes
        if part.name not in cells and len(part.axes) >= len(names):
            cells |= row_relations(scop, part)
    entries: dict[str, tuple[Row, ...]] = {}
    for statement in scop.statements.values():
        relation = cells.get(statement.compute.name)
        if relation is not None:
            entries[statement.name] = tuple(row_functions(scop, statement, relation)[:len(names)])
        else:
            pattern = "reduction" if reducing else "injective"
            blamed = "" if statement.role != "store" or statement.compute.name not in scop.locals() else statement.compute.name
            raise PatternMismatch(f"{pattern}: the row of {anchor.name} that {statement.compute.name} belongs to is not affine "
                                  "or not unique", blamed)
    stages = tuple(row_stage(scop, group, entries) for group in _groups(scop, entries))
    return Staged(ScheduleMatrix(names, entries), anchor, stages, reducing, reducing and _across(scop, entries))


def _parts(scop: Scop, reducing: bool) -> list[Compute]:
    """One Compute of each part of the Program that reads nothing of another part: its first reduction, or else its last
    Compute."""
    computes = {c.name: c for c in scop.program.computes}
    part = {name: name for name in computes}
    for access in scop.reads:
        if access.buffer.name in part:
            old, new = part[access.buffer.name], part[scop.statements[access.statement].compute.name]
            part = {name: new if p == old else p for name, p in part.items()}
    members = [[c for c in computes.values() if part[c.name] == p] for p in dict.fromkeys(part.values())]
    return [next((c for c in found if c.monoid is not None and reducing), found[-1]) for found in members]


def _groups(scop: Scop, entries: dict[str, tuple[Row, ...]]) -> Iterator[list[Statement]]:
    """A reduction with its init, and the row statements that follow it, form one group; any other statement is its own."""
    group: list[Statement] = []
    for statement in scop.statements.values():
        rows = [r for r in entries[statement.name] if r is not None]
        follows = group and group[-1].role != "init" and not (
            statement.role == "store" and group[0].role == "init" and not completing_axes(scop, statement, rows))
        if follows or (group and statement.role == "init"):
            yield group
            group = []
        group.append(statement)
    yield group


def row_stage(scop: Scop, group: list[Statement], entries: Mapping[str, tuple[Row, ...]]) -> Stage:
    """Statements that share a loop nest inside a row tile, each with the axes that its rows leave open."""
    own = {s.name: completing_axes(scop, s, [r for r in entries[s.name] if r is not None]) for s in group}
    names = max(own.values(), key=len)
    rows: dict[str, tuple[Row, ...]] = {}
    for s in group:  # an init has the rows of its update, but for those reduced over
        functions = [function(scop, s.name, n) for n in own[s.name]]
        rows[s.name] = (*functions, *(None,) * (len(names) - len(functions)))
    return Stage(tuple(s.name for s in group), ScheduleMatrix(tuple(names), rows))


def _across(scop: Scop, entries: Mapping[str, tuple[Row, ...]]) -> bool:
    """Whether every input that the first reduction of inputs reads consecutively is read so along its axis that is the last
    row."""
    inputs = set(scop.program.inputs)
    for statement in scop.statements.values():
        found = [load for load in loads(statement.compute.body) if load.index and load.buffer in inputs]
        rows = entries[statement.name]
        if statement.role == "update" and found and rows and rows[-1] is not None:
            row = isl.function_text(rows[-1])
            return all(unit_stride(load, row) for load in found)
    return False

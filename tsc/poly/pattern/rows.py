"""Rows from access relations: which cell of an anchor each statement's instances belong to.

The rows of a statement that reads the anchor's result are the coordinates of the cell that it reads, whatever the operator.
Section 5.2 of the paper (mapping types).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tsc.poly import PatternMismatch, isl
from tsc.poly.matrix import Row, ScheduleMatrix, function
from tsc.poly.scop import Scop, Statement
from tsc.te.compute import Compute


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


def row_relations(scop: Scop, anchor: Compute, axes: Collection[int] | None = None) -> dict[str, isl.Map]:
    """For each Compute connected to `anchor`: its cells -> the anchor's cells (of these the coordinates `axes`, where given),
    through the exact accesses between them.

    An edge counts only where it determines one anchor cell for every cell; a Compute without such an edge is left out.
    """
    written = {w.statement: w.relation for w in scop.writes}
    cells = {c.name: written[scop.of(c)[0].name].range() for c in scop.program.computes}
    # a read under a condition says where its cell would be at every instance: the check of the schedule comes later
    edges = [(scop.statements[a.statement].compute.name, a.buffer.name,
              (a.relation if a.anywhere is None else a.anywhere).apply_domain(written[a.statement]))
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


def unrelated(scop: Scop) -> list[Compute]:
    """The Computes that read none of the others, and that none of them reads."""
    computes = {c.name: c for c in scop.program.computes}
    reads = {(scop.statements[a.statement].compute.name, a.buffer.name) for a in scop.reads}
    related = {name for pair in reads if pair[0] != pair[1] and computes.keys() >= set(pair) for name in pair}
    return [c for name, c in computes.items() if name not in related]


def leading(scop: Scop, compute: Compute, count: int) -> isl.Map:
    """The cells of a Compute -> their first `count` coordinates."""
    written = next(w.relation for w in scop.writes if w.statement == scop.of(compute)[0].name)
    return written.range().identity().project_out(isl.OUT, count, len(compute.axes) - count)


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


def shared_axes(scop: Scop, anchor: Compute) -> tuple[int, ...]:
    """The positions of the anchor's axes of which every cell of every Compute determines the values, all together: where `c` is
    read as `c[i, s] * c[s, j]`, the result's cell determines one row or one column of it, not both."""
    everything = {c.name for c in scop.program.computes}
    found: tuple[int, ...] = ()
    for i in range(len(anchor.axes)):
        if row_relations(scop, anchor, (*found, i)).keys() == everything:
            found = (*found, i)
    return found

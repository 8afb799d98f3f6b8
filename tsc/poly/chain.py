"""Chained contractions: several sums of products and row statements over shared rows, in one kernel.

Attention, a projection with its norm, a small MLP: every link keeps the rows (batch axes and one row axis), so that a tile of
rows goes through all stages while what one stage leaves for the next stays in a strip of the tile's rows. Nothing here knows an
operator: the rows are those axes of the first contraction whose value every statement determines through access relations.
Welder, section 3 (tiles aligned across operators); BladeDISC, section 4.2 (stitching).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tsc.errors import InternalError
from tsc.poly import PatternMismatch, isl
from tsc.poly.matrix import Row, ScheduleMatrix, function
from tsc.poly.pattern import (
    Contraction,
    Stage,
    is_contraction,
    product_of,
    row_functions,
    row_relations,
    row_stage,
    single_axes,
    unit_stride,
    variables,
)
from tsc.poly.scop import Scop, Statement
from tsc.te.compute import Compute
from tsc.te.expr import Expr

Entries = Mapping[str, tuple[Row, ...]]


@dataclass(frozen=True, slots=True)
class Chained:
    """Stages over shared rows: contractions with their epilogues, and row statements. `matrix` holds the row functions; `m` is
    the position of the row that register tiles go along (None: there is none)."""

    matrix: ScheduleMatrix
    anchor: Compute
    stages: tuple[Contraction | Stage, ...]
    m: int | None

    @property
    def contractions(self) -> tuple[Contraction, ...]:
        """The stages that are contractions, in order."""
        return tuple(s for s in self.stages if isinstance(s, Contraction))


def match_chained(scop: Scop) -> Chained:
    """Contractions and reductions over shared rows. Raises PatternMismatch with the reason."""
    products = [c for c in scop.program.computes if is_contraction(c)]
    if not products:
        raise PatternMismatch("chain: there is no contraction")
    if sum(c.monoid is not None for c in scop.program.computes) < 2:
        raise PatternMismatch("chain: there is one reduction only")
    anchor = products[0]
    rows = _shared_axes(scop, anchor)
    if not rows:
        raise PatternMismatch(f"chain: no axis of {anchor.name} is a row of all the statements")
    cells = row_relations(scop, anchor, rows)
    names = tuple(anchor.axes[i].name for i in rows)
    entries = {s.name: tuple(row_functions(scop, s, cells[s.compute.name])) for s in scop.statements.values()}
    columns = {c.name: _column(scop, c, entries) for c in products}
    m = _row_axis(scop, products, columns, names, entries)
    stages = tuple(
        row_stage(scop, group, entries) if group[0].compute not in products else
        _contraction(scop, group, columns[group[0].compute.name], names, m, entries) for group in _groups(scop, products))
    return Chained(ScheduleMatrix(names, entries), anchor, stages, m)


# -- rows ------------------------------------------------------------------------------------------------------

def _shared_axes(scop: Scop, anchor: Compute) -> tuple[int, ...]:
    """The positions of the anchor's axes of which every cell of every Compute determines the values, all together: where `c` is
    read as `c[i, s] * c[s, j]`, the result's cell determines one row or one column of it, not both."""
    everything = {c.name for c in scop.program.computes}
    found: tuple[int, ...] = ()
    for i in range(len(anchor.axes)):
        if row_relations(scop, anchor, (*found, i)).keys() == everything:
            found = (*found, i)
    return found


def _column(scop: Scop, compute: Compute, entries: Entries) -> str:
    """The vector axis of a contraction: the one axis that is no row, and belongs to one factor alone."""
    init = scop.of(compute)[0]
    rows = [r for r in entries[init.name] if r is not None]
    own = [a.name for i, a in enumerate(init.axes)
           if a.extent.as_int() != 1 and not any(r.involves_dims(isl.IN, i, 1) for r in rows)]
    if len(own) != 1 or own[0] not in single_axes(compute, _product(compute)):
        raise PatternMismatch(f"chain: besides its rows {compute.name} has the axes {', '.join(own) or 'none'}, where one that "
                              "belongs to one factor alone is needed")
    return own[0]


def _row_axis(scop: Scop, products: list[Compute], columns: Mapping[str, str], names: tuple[str, ...],
              entries: Entries) -> int | None:
    """The last row along which every contraction can tile; None where the column operands can be read as they stand."""
    for position in reversed(range(len(names))):
        if all(_own_row(scop, c, columns[c.name], position, entries) for c in products):
            return position
    if all(unit_stride(_factors(c, columns[c.name])[0], columns[c.name]) for c in products):
        return None
    raise PatternMismatch("chain: no row is tiled by all contractions alike")


def _own_row(scop: Scop, compute: Compute, column: str, position: int, entries: Entries) -> str:
    """The axis of a contraction that is row `position`; "" where none is, or its column operand varies with it."""
    row = entries[scop.of(compute)[0].name][position]
    n_factor, m_factor = _factors(compute, column)
    text = "" if row is None else isl.function_text(row)
    plain = text in {a.name for a in compute.axes}
    return text if plain and text in variables(m_factor) and text not in variables(n_factor) else ""


def _product(compute: Compute) -> tuple[Expr, Expr]:
    factors = product_of(compute.body)
    if factors is None:
        raise InternalError(f"{compute.name} is no sum of products")
    return factors


def _factors(compute: Compute, column: str) -> tuple[Expr, Expr]:
    """The factor that varies with the column, and the other one."""
    left, right = _product(compute)
    return (left, right) if column in variables(left) else (right, left)


# -- stages ----------------------------------------------------------------------------------------------------

def _groups(scop: Scop, products: list[Compute]) -> Iterator[list[Statement]]:
    """A contraction with the stores that follow it and make their values from its cells; a reduction with its init; any other
    statement alone."""
    group: list[Statement] = []
    for statement in scop.statements.values():
        joins = bool(group) and (statement.role == "update" or (
            statement.role == "store" and group[0].compute in products and _is_epilogue(scop, statement, group)))
        if group and not joins:
            yield group
            group = []
        group.append(statement)
    yield group


def _is_epilogue(scop: Scop, statement: Statement, group: list[Statement]) -> bool:
    made = {s.compute.name for s in group}
    reads = {a.buffer.name for a in scop.reads if a.statement == statement.name}
    return bool(made & reads) and statement.compute.name in row_relations(scop, group[0].compute)


def _contraction(scop: Scop, group: list[Statement], column: str, names: tuple[str, ...], m: int | None,
                 entries: Entries) -> Contraction:
    """The stage of one contraction: the shared rows but for `m`, then its column, then `m`, then its reduce axes."""
    compute = group[0].compute
    n_factor, m_factor = _factors(compute, column)
    own_m = None if m is None else _own_row(scop, compute, column, m, entries)
    position = [a.name for a in compute.axes].index(column)
    cells = row_relations(scop, compute)
    outer = [i for i in range(len(names)) if i != m]
    reduce = [a.name for a in compute.reduce_axes]
    matrix: dict[str, tuple[Row, ...]] = {}
    for statement in group:
        rows = [entries[statement.name][i] for i in outer]
        rows.append(row_functions(scop, statement, cells[statement.compute.name])[position])
        rows += [] if m is None else [entries[statement.name][m]]
        rows += [function(scop, statement.name, r) if statement.role == "update" else None for r in reduce]
        matrix[statement.name] = tuple(rows)
    named = (*(names[i] for i in outer), column, *([own_m] if own_m else []), *reduce)
    batch = tuple(a.name for a in compute.axes if a.name not in (column, own_m))
    return Contraction(ScheduleMatrix(named, matrix), compute, batch, column, own_m, n_factor, m_factor)

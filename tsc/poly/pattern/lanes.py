"""Row kernels on a GPU: a warp a row, its lanes over columns; softmax, norms, and whatever else is row-parallel.

Reductions come cut into lanes (`te.reduce_axes.in_lanes`): each lane reduces its turns, lane 0 folds the lanes' parts. What one
lane leaves for another lives in shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from tsc.loop_ir.marks import INNER, OUTER, REDUCE, THREAD, WARP
from tsc.poly import PatternMismatch, isl
from tsc.poly.deps import Dependences
from tsc.poly.legality import order_of
from tsc.poly.matrix import ScheduleMatrix, function
from tsc.poly.normalise import inlined
from tsc.poly.pattern.base import Build, Tree
from tsc.poly.pattern.rows import completing_axes, leading, row_functions, row_relations, unrelated
from tsc.poly.pattern.teams import LANES, OnTeams, Rows, below, guards_of, team_tree
from tsc.poly.promotion.promote import Home, with_locals
from tsc.poly.promotion.rounded import round_domains
from tsc.poly.scop import Scop, Statement
from tsc.poly.tile import Knob, Space, TileConfig, powers
from tsc.poly.tree import BLOCK_POINT
from tsc.target import DeviceSpec
from tsc.te.compute import Program
from tsc.te.passes.reduce_axes import in_lanes, one_reduce_axis

#: Rows of a block, without tuning.
ROWS = 4


def row_program(program: Program) -> Program:
    """`program` as `match_lanes` wants it: reductions in lanes; locals of no constant width are computed by their readers.

    Raises PatternMismatch for a reduction over several axes of symbolic extents.
    """
    program = one_reduce_axis(program)
    for compute in program.computes:
        if len(compute.reduce_axes) > 1:
            raise PatternMismatch(f"lanes: {compute.name} is reduced over several axes of symbolic extents")
    outputs = {b.name for b in program.outputs}
    rows = min((len(c.axes) for c in program.computes if c.monoid is not None), default=None)
    for compute in program.computes:
        wide = rows is None or any(a.extent.as_int() is None for a in compute.axes[rows:])
        if compute.monoid is None and (wide or compute.name in outputs):
            program = inlined(program, compute.name, compute.name in outputs)
    return in_lanes(program, LANES)


@dataclass(frozen=True, slots=True)
class Lanes(OnTeams):
    """Rows that all statements share, those of the reduction with the fewest axes; `matrix` holds their functions."""

    matrix: ScheduleMatrix

    def solved(self, scop: Scop, deps: Dependences) -> tuple[Self, tuple[str, ...]]:
        """There is no `?`: the rows in words."""
        return self, (f"rows\n{self.matrix}",)

    def default_config(self, spec: DeviceSpec) -> TileConfig:
        """A few rows a block, a warp each."""
        return TileConfig(block_tile=(ROWS, 1, 1))

    def space(self, spec: DeviceSpec) -> Space:
        """Up to all warps that a block can have."""
        return Space(self.default_config(spec), (Knob("block_tile", (0,), powers(32)),))

    def tree(self, config: TileConfig, build: Build) -> Tree:
        """Blocks of `config.warps` rows, a warp a row; what is local to a row stands in shared memory."""
        scop, warps = build.scop, config.warps
        rows = {s: [self.matrix.solved(s, i) for i in range(len(self.matrix.names))] for s in scop.statements}
        own = {s.name: completing_axes(scop, s, rows[s.name]) for s in scop.statements.values()}
        rounded = _rounded(scop, rows, own, warps)
        columns = [[f[i] for f in rows.values()] for i in range(len(self.matrix.names) - 1)]
        columns.append([below(f[-1], warps) for f in rows.values()])
        schedule = team_tree(rounded, columns, {
            s.name: _statement_rows(scop, s, rows[s.name][-1], own[s.name], warps) for s in scop.statements.values()})
        result = with_locals(schedule, order_of(schedule, build.deps.full), rounded, build.deps, {}, (Home(BLOCK_POINT),))
        for local in result.locals:
            if any(e.as_int() is None for e in local.storage.shape):
                raise PatternMismatch(f"lanes: {local.buffer.name} has no constant width")
        held = tuple(replace(x, scope="shared") for x in result.locals)
        guards = guards_of(scop, rounded, scop.statements.values())
        return Tree.of(replace(result, locals=held, guards=guards), scop, rounded)


def match_lanes(scop: Scop) -> Lanes:
    """Any statements of a `row_program` over shared rows. Raises PatternMismatch where their rows do not agree, or where trips
    follow each other."""
    carried = next((c.name for c in scop.program.computes if c.carried is not None), None)
    if carried is not None:
        raise PatternMismatch(f"lanes: {carried} is carried from trip to trip, which lanes would take side by side")
    rows = _row_functions(scop)
    names = tuple(f"row{i}" for i in range(len(next(iter(rows.values())))))
    return Lanes(ScheduleMatrix(names, {s: tuple(f) for s, f in rows.items()}))


def _row_functions(scop: Scop) -> dict[str, list[isl.PwAff]]:
    """The row that each statement's instances belong to: the cell of the reduction with the fewest axes; where nothing is
    reduced, every statement is on its own, and its last axis is its columns."""
    computes = scop.program.computes
    reducing = [c for c in computes if c.monoid is not None]
    anchor = min(reducing or computes, key=lambda c: len(c.axes))
    count = len(anchor.axes) if reducing else len(anchor.axes) - 1
    if count < 1:
        raise PatternMismatch(f"lanes: {anchor.name} has no rows")
    if not reducing:
        return {s.name: [function(scop, s.name, a.name) for a in s.axes[:count]] for s in scop.statements.values()}
    cells = row_relations(scop, anchor)
    # an output that its readers compute anew is on its own: its row is any, so the one that it has in the anchor's shape
    shape, alone = [a.extent for a in anchor.axes], unrelated(scop)
    cells |= {c.name: leading(scop, c, count) for c in alone if [a.extent for a in c.axes[:count]] == shape}
    missing = [c.name for c in computes if c.name not in cells]
    if missing:
        raise PatternMismatch(f"lanes: the row of {anchor.name} that {missing[0]} belongs to is not affine or not unique")
    return {s.name: row_functions(scop, s, cells[s.compute.name]) for s in scop.statements.values()}


def _rounded(scop: Scop, rows: dict[str, list[isl.PwAff]], own: dict[str, list[str]], warps: int) -> Scop:
    """Rows up to whole blocks, columns up to whole turns of the lanes."""
    tilings = {}
    for statement in scop.statements.values():
        functions = [(f, 1) for f in rows[statement.name][:-1]] + [(rows[statement.name][-1], warps)]
        lanes = _lane_axis(statement, own[statement.name])
        functions += [(function(scop, statement.name, a), LANES if a == lanes else 1) for a in own[statement.name]]
        tilings[statement.name] = functions
    return round_domains(scop, tilings)


def _lane_axis(statement: Statement, own: list[str]) -> str | None:
    """The axis that lanes share: the last that is not reduced."""
    reduced = {a.name for a in statement.compute.reduce_axes}
    return next((a for a in reversed(own) if a not in reduced), None)


def _statement_rows(scop: Scop, statement: Statement, row: isl.PwAff, own: list[str], warps: int) -> Rows:
    """A warp a row; lanes over the last column axis, or lane 0 alone; then the rest in turn."""
    lanes = _lane_axis(statement, own)
    rows: Rows = [(WARP, isl.modulo(row, warps))]
    if lanes is None:
        rows.append((THREAD, function(scop, statement.name, "0")))
    else:
        column = function(scop, statement.name, lanes)
        rows += [(THREAD, isl.modulo(column, LANES)), (INNER, below(column, LANES))]
    reduced = {a.name for a in statement.compute.reduce_axes}
    return rows + [(REDUCE if a in reduced else OUTER, function(scop, statement.name, a)) for a in own if a != lanes]

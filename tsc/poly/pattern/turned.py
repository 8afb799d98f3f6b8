"""Tiles that are turned on the way: what is read along one axis and stored along another passes through shared memory.

A block copies a tile along the axis on which its input lies, and stores it along that on which its output does, so that lanes
touch neighbours both times (Ruetsch and Micikevicius 2009, "Optimizing matrix transpose in CUDA").
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from tsc.loop_ir.marks import BLOCK, INNER, OUTER, THREAD, WARP
from tsc.poly import PatternMismatch, isl
from tsc.poly.deps import Dependences
from tsc.poly.matrix import ScheduleMatrix, function
from tsc.poly.pattern.base import Build, Tree
from tsc.poly.pattern.teams import LANES, OnTeams, Rows, below, between, copy_rows, guards_of, sole_statement, team_tree
from tsc.poly.promotion.layout import diagonal
from tsc.poly.promotion.promote import Operand, Promoted, assignments_of, promote_operand, zero
from tsc.poly.promotion.rounded import round_domains
from tsc.poly.scop import Scop, Statement
from tsc.poly.tile import Knob, Space, TileConfig, powers
from tsc.poly.tree import node_below
from tsc.target import DeviceSpec
from tsc.te.expr import Call, Cast, CheckedIndex, Expr, Load, variables, walk
from tsc.te.passes.products import stride

#: Without tuning: rows and columns of a tile, and the rows of a warp. Below FEWEST a tile would be empty for the most part.
TILE, WARP_ROWS, FEWEST = 64, 8, LANES // 2


@dataclass(frozen=True, slots=True)
class Turned(OnTeams):
    """One statement whose last axis is its columns; `matrix` has its axes. Some `reads` follow each other along `rows`."""

    matrix: ScheduleMatrix
    rows: str
    reads: tuple[Load, ...]

    def solved(self, scop: Scop, deps: Dependences) -> tuple[Self, tuple[str, ...]]:
        """There is no `?`: the rows in words."""
        return self, (f"rows\n{self.matrix}",)

    def default_config(self, spec: DeviceSpec) -> TileConfig:
        """Square tiles."""
        return TileConfig(block_tile=(TILE, TILE), warp_tile=(WARP_ROWS, TILE))

    def space(self, spec: DeviceSpec) -> Space:
        """Tiles of other heights, and more or fewer warps."""
        return Space(self.default_config(spec), (Knob("block_tile", (0,), (32, 64)), Knob("warp_tile", (0,), powers(16, 4))))

    def tree(self, config: TileConfig, build: Build) -> Tree:
        """Blocks of tiles: each is copied row by row of the input, then stored row by row of the output."""
        scop, ((name, functions),) = build.scop, self.matrix.entries.items()
        (high, wide), warp_high = config.block_tile, config.warp_tile[0]
        statement, at = scop.statements[name], [self.matrix.solved(name, i) for i in range(len(functions))]
        row, column = function(scop, name, self.rows), at[-1]
        others = [f for f, other in zip(at[:-1], self.matrix.names) if other != self.rows]
        rounded = round_domains(scop, {name: [*((f, 1) for f in others), (row, high), (column, wide)]})
        loops: Rows = [(WARP, between(row, high, warp_high)), (THREAD, isl.modulo(column, LANES)),
                       (OUTER, isl.modulo(row, warp_high)), (INNER, between(column, wide, LANES))]
        columns = [[f] for f in (*others, below(row, high), below(column, wide))]
        guards = guards_of(scop, rounded, (statement,))
        result = Promoted(team_tree(rounded, columns, {name: loops}), (), assignments_of(rounded), guards)
        for number, load in enumerate(self.reads):
            result = _turned(result, rounded, statement, load, self.rows, number, config)
        return Tree.of(result, scop, rounded)


def match_turned(scop: Scop) -> Turned:
    """A statement that reduces nothing and reads inputs along another axis than its last. Raises PatternMismatch."""
    statement = sole_statement(scop, "turned")
    compute = statement.compute
    extents = {a.name: a.extent.as_int() for a in statement.axes}
    last = statement.axes[-1].name if statement.axes else ""
    for axis in statement.axes[:-1]:
        reads = tuple(load for load in dict.fromkeys(_always_read(compute.body)) if _lies_across(load, axis.name, last))
        if reads and all(extent is None or extent >= FEWEST for extent in (extents[axis.name], extents[last])):
            matrix = ScheduleMatrix(tuple(extents), {statement.name: tuple(
                function(scop, statement.name, name) for name in extents)})
            return Turned(matrix, axis.name, reads)
    raise PatternMismatch(f"turned: {compute.name} reads nothing along an axis that is not its last")


def _always_read(body: Expr) -> Iterator[Load]:
    """What is read whatever holds: a tile is copied whole."""
    if isinstance(body, Load):
        yield body
    elif isinstance(body, Call):
        for part in body.args[:1] if body.fn == "select" else body.args:
            yield from _always_read(part)
    elif isinstance(body, Cast):
        yield from _always_read(body.value)


def _lies_across(load: Load, rows: str, last: str) -> bool:
    """Whether what is read follows each other along `rows`, and moves on along `last` in another dim."""
    affine = not any(isinstance(part, Load | CheckedIndex) for i in load.index for part in walk(i))
    return affine and stride(load, rows) == 1 and any(last in variables(i) for i in load.index[:-1])


def _turned(promoted: Promoted, rounded: Scop, statement: Statement, load: Load, rows: str, number: int, config: TileConfig
            ) -> Promoted:
    """`load` from a tile in shared memory that lies as the input does, copied as far as it is needed."""
    (high, wide), last = config.block_tile, statement.axes[-1].name
    used = {name for i in load.index for name in variables(i)}
    cells = tuple(a.name for a in statement.axes if a.name in used)
    dims = (cells.index(last), cells.index(rows))
    operand = Operand.over_axes(f"{statement.compute.name}_tile{number}", load, statement, cells, dims)
    node = node_below(promoted.schedule, {BLOCK}, statement.name)
    return promote_operand(promoted, node, rounded, statement.domain, operand, diagonal(wide, high), "shared",
                           zero(load.dtype), lambda copies: copy_rows(copies, dims, (wide, high), config.warps, 1))

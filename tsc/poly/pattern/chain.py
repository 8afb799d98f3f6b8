"""Chained contractions: several sums of products and row statements over shared rows, in one kernel.

Attention, a projection with its norm, a small MLP: every link keeps the rows (batch axes and one row axis), so that a tile of
rows goes through all stages while what one stage leaves for the next stays in a strip of the tile's rows. Nothing here knows an
operator: the rows are those axes of the first contraction whose value every statement determines through access relations.
Welder, section 3 (tiles aligned across operators); BladeDISC, section 4.2 (stitching).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import lcm
from typing import Self

from tsc.errors import InternalError
from tsc.loop_ir.marks import ROW
from tsc.poly import PatternMismatch, isl
from tsc.poly.deps import Dependences
from tsc.poly.legality import with_flags
from tsc.poly.matrix import Row, ScheduleMatrix, axis_of, function
from tsc.poly.pattern.base import ELEMENTS, Build, Pattern, Tree, instances
from tsc.poly.pattern.contraction import PREFETCH, Contraction, registers, tallest
from tsc.poly.pattern.nest import accumulators, register_tile
from tsc.poly.pattern.rows import row_functions, row_relations, shared_axes
from tsc.poly.pattern.stages import Stage, row_stage, solved_stages
from tsc.poly.promotion.panel import promote_panel
from tsc.poly.promotion.promote import Home, with_locals
from tsc.poly.scop import Scop, Statement
from tsc.poly.tile import Knob, Limit, Space, TileConfig, powers
from tsc.poly.tree import BLOCK_POINT, in_blocks, own_instances, statement_rows
from tsc.runtime.cost import Work
from tsc.sym import ZERO, SymExpr
from tsc.target import DeviceSpec
from tsc.te.compute import Compute, Program
from tsc.te.expr import Expr, variables
from tsc.te.passes.layout import ColumnOperand
from tsc.te.passes.products import is_contraction, product_of, single_axes, unit_stride

#: Rows that one block of a chain takes at most, and the columns taken for a symbolic extent when its strips are counted.
CHAIN_ROWS, ASSUMED_COLUMNS = 128, 512

Entries = Mapping[str, tuple[Row, ...]]


@dataclass(frozen=True, slots=True)
class Chained(Pattern):
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

    def solved(self, scop: Scop, deps: Dependences) -> tuple[Self, tuple[str, ...]]:
        """With every `?` replaced, and the matrices in words. Raises PatternMismatch."""
        stages, log = solved_stages(self.stages, scop, deps)
        return replace(self, stages=stages), (f"rows\n{self.matrix}", *log)

    def default_config(self, spec: DeviceSpec) -> TileConfig:
        """Row tiles whose strips (what contractions leave for other stages) fill half of the cache that a block should fit."""
        tiles = tuple(c.register_tile(spec) for c in self.contractions)
        rows = [1] * len(self.matrix.names)
        if self.m is not None:
            strips = sum(4 * (c.extents[1] or ASSUMED_COLUMNS) for c in self.contractions[:-1]) or 4 * ASSUMED_COLUMNS
            together = lcm(*(mr for mr, _ in tiles))
            most = min(CHAIN_ROWS, spec.l2_bytes // 2 // strips)
            rows[self.m] = max(1, most // together) * together
        ahead = spec.ahead if any(stage.in_panels for stage in self.contractions) else 0
        return TileConfig(row_tile=tuple(rows), stage_tiles=tiles, prefetch=ahead)

    def space(self, spec: DeviceSpec) -> Space:
        """Rows of a block, and a register tile a contraction."""
        knobs = [] if self.m is None else [Knob("row_tile", (self.m,), powers(4 * CHAIN_ROWS))]
        for k, stage in enumerate(self.contractions):
            knobs += stage.register_knobs(spec, "stage_tiles", (k,))
        knobs += [PREFETCH] if any(stage.in_panels for stage in self.contractions) else []
        limit = Limit("registers", spec.registers, lambda config: max(registers(tile, spec) for tile in config.stage_tiles))
        default = self.default_config(spec)
        return Space(default, tuple(knobs), (limit,), self._in_register_tiles, tuple(self._seeds(default, spec)))

    def _seeds(self, default: TileConfig, spec: DeviceSpec) -> Iterator[TileConfig]:
        """Without prefetching; of each width register tiles that fill the registers, and half as high; one contraction alone
        with narrower ones, as high as they can be and as the default's are; and the most rows a block."""
        if default.prefetch:
            yield replace(default, prefetch=0)
        knobs = [stage.register_knobs(spec, "stage_tiles") for stage in self.contractions]
        for wide in sorted({size for _, columns in knobs for size in columns.sizes}, reverse=True):
            for share in (1, 2):
                tiles = []
                for rows, columns in knobs:
                    own = max((size for size in columns.sizes if size <= wide), default=min(columns.sizes))
                    tiles.append((-(-max(1, tallest(rows, own, spec)) // share), own))
                yield self._in_register_tiles(replace(default, stage_tiles=tuple(tiles)))
        for place, (rows, columns) in enumerate(knobs if len(knobs) > 1 else ()):
            high, most = default.stage_tiles[place]
            for wide in (size for size in reversed(columns.sizes) if size < most):
                for tile in ((max(1, tallest(rows, wide, spec)), wide), (high, wide)):
                    others = default.stage_tiles[:place], default.stage_tiles[place + 1:]
                    yield self._in_register_tiles(replace(default, stage_tiles=(*others[0], tile, *others[1])))
        if self.m is not None:
            blocks = [4 * CHAIN_ROWS if k == self.m else size for k, size in enumerate(default.row_tile)]
            yield self._in_register_tiles(replace(default, row_tile=tuple(blocks)))

    def _in_register_tiles(self, config: TileConfig) -> TileConfig:
        """With blocks whose rows are whole register tiles of each contraction."""
        rows, together = list(config.row_tile), lcm(*(high for high, _ in config.stage_tiles))
        if self.m is not None:
            rows[self.m] = -(-rows[self.m] // together) * together
        return replace(config, row_tile=tuple(rows))

    def column_operands(self, spec: DeviceSpec) -> Iterable[ColumnOperand]:
        """The factor of each contraction that varies with its column."""
        return (operand for stage in self.contractions for operand in stage.column_operands(spec))

    def reading(self, program: Program) -> Self:
        """The same of a Program that differs in the layouts of inputs alone."""
        return replace(self, stages=tuple(s.reading(program) if isinstance(s, Contraction) else s for s in self.stages))

    def work(self, config: TileConfig, scop: Scop) -> tuple[Work, ...]:
        """The register tiles of all contractions, and the instances of row statements."""
        rows = 1 if self.m is None else config.row_tile[self.m]
        found: dict[str, SymExpr] = {}
        for stage, tile in zip(self.contractions, config.stage_tiles, strict=True):
            for work in (*stage.tile_work(tile), *stage.panel_work(rows, tile[1])):
                found[work.kind] = found.get(work.kind, ZERO) + work.count
        others = [scop.statements[s] for stage in self.stages if isinstance(stage, Stage) for s in stage.statements]
        return (*(Work(kind, count) for kind, count in found.items()), Work(ELEMENTS, instances(others)))

    def tree(self, config: TileConfig, build: Build) -> Tree:
        """Row tiles over the stages; strips live as long as one, accumulators as long as their register tile."""
        scop = build.scop
        node = build.initial("chain", _initial(scop, self, build.deps.relaxed), self.matrix.names)
        node = build.tiled("chain", isl.tile(node, config.row_tile))
        schedule, order = build.separated("chain", _separated(node, scop, self, config))
        tiles = tuple(zip(self.contractions, config.stage_tiles))
        homes = {stage.anchor.name: (accumulators(stage, tile, scop.of(stage.anchor)[0].name),) for stage, tile in tiles}
        made = with_locals(schedule, order, scop, build.deps, homes, (Home(BLOCK_POINT),))
        for stage, tile in tiles:
            made = promote_panel(made, scop, stage, stage.n_factor, tile[1])
        return Tree.of(made, scop)


def match_chained(scop: Scop) -> Chained:
    """Contractions and reductions over shared rows. Raises PatternMismatch with the reason."""
    products = [c for c in scop.program.computes if is_contraction(c)]
    if not products:
        raise PatternMismatch("chain: there is no contraction")
    if sum(c.monoid is not None for c in scop.program.computes) < 2:
        raise PatternMismatch("chain: there is one reduction only")
    anchor = products[0]
    rows = shared_axes(scop, anchor)
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
    axis = None if row is None else axis_of(scop, scop.of(compute)[0].name, row)
    return axis if axis is not None and axis in variables(m_factor) and axis not in variables(n_factor) else ""


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


# -- the tree --------------------------------------------------------------------------------------------------

def _initial(scop: Scop, found: Chained, deps: isl.UnionMap) -> isl.ScheduleNode:
    """A band of the shared rows over a sequence of stages, each a band of its own rows over its statements, everything sunk.

    Returns the row band.
    """
    node = isl.Schedule.from_domain(scop.domain).get_root().child(0)
    node = node.insert_partial_schedule(found.matrix.band(scop, range(len(found.matrix.names)), list(scop.statements)))
    node = with_flags(node, deps).child(0)
    top = node.get_tree_depth()
    node = node.insert_sequence(isl.filters([own_instances(scop, _statements(s)) for s in found.stages]))
    for i, stage in enumerate(found.stages):
        branch, statements = node.child(i).child(0), _statements(stage)
        if len(statements) > 1:
            branch = branch.insert_sequence(isl.filters([own_instances(scop, [s]) for s in statements]))
        rows = range(_outer(found) if isinstance(stage, Contraction) else 0, len(stage.matrix.names))
        if rows:
            branch = with_flags(branch.insert_partial_schedule(stage.matrix.band(scop, rows, statements)), deps)
        node = branch.ancestor(branch.get_tree_depth() - top)
    return node.ancestor(node.get_tree_depth() - 1)


def _separated(node: isl.ScheduleNode, scop: Scop, found: Chained, config: TileConfig) -> isl.ScheduleNode:
    """Below the row tiles: each contraction with register tiles of its own, and each run of row stages row by row.

    Returns the first node below the block bands.
    """
    count = len(found.matrix.names)
    point = [i for i in range(count) if config.row_tile[i] > 1]
    node, values = in_blocks(node, count)
    below = node.get_tree_depth()
    node = node.cut()
    runs = _runs(found)
    if len(runs) > 1:
        node = node.insert_sequence(isl.filters(
            [own_instances(scop, [s for stage in run for s in _statements(stage)]) for run in runs]))
    tiles = iter(config.stage_tiles)
    for i, run in enumerate(runs):
        branch = node.child(i).child(0) if len(runs) > 1 else node
        first = run[0]
        if isinstance(first, Contraction):
            done = _register_tiles(branch, scop, found, first, next(tiles))
        else:
            done = _row_loops(branch, scop, [s for s in run if isinstance(s, Stage)], isl.select_rows(values, point))
        node = done.ancestor(done.get_tree_depth() - node.get_tree_depth())
    return node.ancestor(node.get_tree_depth() - below)


def _register_tiles(branch: isl.ScheduleNode, scop: Scop, found: Chained, stage: Contraction,
                    tile: tuple[int, int]) -> isl.ScheduleNode:
    rows, outer = len(stage.matrix.names), _outer(found)
    sizes = [1] * outer + [tile[1]] + [tile[0]] * (stage.m is not None) + [1] * (rows - stage.parallel)
    statements = list(_statements(stage))
    branch = branch.insert_partial_schedule(stage.matrix.band(scop, range(rows), statements))
    return register_tile(isl.tile(branch, sizes).band_split(stage.parallel), scop, stage, statements, outer)


def _row_loops(branch: isl.ScheduleNode, scop: Scop, stages: list[Stage], values: isl.MultiUnionPwAff) -> isl.ScheduleNode:
    top = branch.get_tree_depth()
    matrices = {s: stage.matrix for stage in stages for s in stage.statements}
    if values.dim(isl.SET):
        rows = values.intersect_domain(own_instances(scop, list(matrices)))
        branch = isl.mark_each(branch.insert_partial_schedule(rows), [ROW] * values.dim(isl.SET))
    branch = statement_rows(branch, scop, matrices)
    return branch.ancestor(branch.get_tree_depth() - top)


def _runs(found: Chained) -> list[list[Contraction | Stage]]:
    """The stages, neighbouring row stages together."""
    runs: list[list[Contraction | Stage]] = []
    for stage in found.stages:
        if runs and isinstance(stage, Stage) and isinstance(runs[-1][0], Stage):
            runs[-1].append(stage)
        else:
            runs.append([stage])
    return runs


def _statements(stage: Contraction | Stage) -> tuple[str, ...]:
    return stage.statements if isinstance(stage, Stage) else tuple(stage.matrix.entries)


def _outer(found: Chained) -> int:
    """How many of the shared rows are loops around a contraction's own."""
    return len(found.matrix.names) - (found.m is not None)

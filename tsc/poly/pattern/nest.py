"""One reduction in register tiles with its epilogues: what contractions and stencils share.

Everything is sunk into the anchor's loops, tiled, and separated again. Section 5.3 of the paper, figures 7 and 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from tsc.loop_ir.marks import BLOCK, EPILOGUE, INIT, INSTR_M, INSTR_N, TILE_COLUMN, TILE_ROW, K
from tsc.poly import isl
from tsc.poly.deps import Dependences
from tsc.poly.legality import with_flags
from tsc.poly.matrix import ScheduleMatrix, axis_of, function, solve
from tsc.poly.pattern.base import ROW_STEPS, STEPS, TILES, Build, Pattern
from tsc.poly.pattern.rows import completing_axes
from tsc.poly.promotion.promote import Home, Promoted, with_locals
from tsc.poly.scop import Scop
from tsc.poly.tile import TileConfig, rounded
from tsc.poly.tree import INSTR_POINT, joined, own_instances, separated, up_to
from tsc.runtime.cost import Work
from tsc.sym import SymExpr, ceildiv, product
from tsc.te.compute import Compute, Program


@dataclass(frozen=True, slots=True)
class Nest(Pattern):
    """Rows of one reduction: batch axes, then `n` (the vector axis), then `m` (None: no such axis), then the reduce axes."""

    matrix: ScheduleMatrix
    anchor: Compute
    batch: tuple[str, ...]
    n: str
    m: str | None

    @property
    def parallel(self) -> int:
        """How many rows are parallel; the rest are reduce rows."""
        return len(self.matrix.names) - len(self.anchor.reduce_axes)

    @property
    def extents(self) -> tuple[int | None, int | None]:
        """The constant extents of m and n, None where they are symbolic; 1 where there is no m."""
        sizes = {a.name: a.extent.as_int() for a in self.anchor.axes}
        return 1 if self.m is None else sizes[self.m], sizes[self.n]

    def work(self, config: TileConfig, scop: Scop) -> tuple[Work, ...]:
        """Register tiles and their steps."""
        return self.tile_work(config.instr_tile)

    def tile_work(self, tile: Sequence[int]) -> tuple[Work, ...]:
        """What the reduction takes in register tiles of so many rows and columns."""
        extents = {axis.name: axis.extent for axis in self.anchor.axes}
        rows = SymExpr.of(1) if self.m is None else extents[self.m]
        strips = product(extents[name] for name in self.batch) * ceildiv(extents[self.n], tile[1])
        tiles, deep = strips * ceildiv(rows, tile[0]), product(axis.extent for axis in self.anchor.reduce_axes)
        return Work(TILES, tiles), Work(STEPS, tiles * deep), Work(ROW_STEPS, strips * rows * deep)

    def solved(self, scop: Scop, deps: Dependences) -> tuple[Self, tuple[str, ...]]:
        """With every `?` replaced, and the matrices in words. Raises PatternMismatch."""
        matrix = solve(self.matrix, scop, deps.relaxed)
        return replace(self, matrix=matrix), (f"matrix\n{self.matrix}", f"matrix, solved\n{matrix}")

    def reading(self, program: Program) -> Self:
        """The same of a Program that differs in the layouts of inputs alone."""
        return replace(self, anchor=next(c for c in program.computes if c.name == self.anchor.name))


def nest_tree(found: Nest, config: TileConfig, build: Build, kind: str) -> Promoted:
    """The schedule of a solved nest, operands read where they stand. Raises PatternMismatch when a local is not local to its
    tile."""
    scop = build.scop
    node = build.initial(kind, initial_nest(scop, found, build.deps.relaxed), found.matrix.names[:found.parallel])
    node = build.tiled(kind, _tiled(node, found, config))
    schedule, order = build.separated(kind, _separated(node, scop, found))
    statement = scop.of(found.anchor)[0].name
    homes = {found.anchor.name: (accumulators(found, config.instr_tile, statement),)}
    return with_locals(schedule, order, scop, build.deps, homes, (Home(INSTR_POINT, statement),))


def in_register_tiles(config: TileConfig) -> TileConfig:
    """With blocks of whole register tiles."""
    return replace(config, block_tile=rounded(config.block_tile, config.instr_tile))


def accumulators(found: Nest, tile: tuple[int, ...], statement: str) -> Home:
    """Where the register tile of a nest lives, on the way to `statement`: what a run accumulates, rounded up to `tile`."""
    axes = [a.name for a in found.anchor.axes]
    return Home(INSTR_POINT, statement, (axes.index(found.m) if found.m else -1, axes.index(found.n)), tile)


def initial_nest(scop: Scop, found: Nest, deps: isl.UnionMap) -> isl.ScheduleNode:
    """One band of all rows over a sequence of all statements; everything is sunk into the anchor's loops. Returns the band."""
    statements = list(scop.statements)
    node = isl.Schedule.from_domain(scop.domain).get_root().child(0)
    node = node.insert_partial_schedule(found.matrix.band(scop, range(len(found.matrix.names)), statements))
    return with_flags(node, deps).child(0).insert_sequence(isl.filters([own_instances(scop, [s]) for s in statements])).parent()


def _tiled(node: isl.ScheduleNode, found: Nest, config: TileConfig) -> isl.ScheduleNode:
    """Tile the band by the register tile, split the parallel rows from the reduce rows, tile those again by the block tile,
    and put the blocks' rows in their order.

    Returns the block band, above: instr band, reduce band, point band, sequence.
    """
    rows = len(found.matrix.names)
    instr, block = config.instr_tile, config.block_tile
    inner = [1] * len(found.batch) + [instr[1]] + [instr[0]] * (found.m is not None)
    outer = [1] * len(found.batch) + [block[1]] + [block[0]] * (found.m is not None)
    node = isl.tile(node, inner + [1] * (rows - found.parallel)).band_split(found.parallel)
    node = isl.tile(node, outer)
    if not config.raster:
        return node
    blocks = node.band_get_partial_schedule()
    order = [*range(len(found.batch)), *reversed(range(len(found.batch), found.parallel))]
    return node.delete().insert_partial_schedule(isl.select_rows(blocks, order))


def _separated(node: isl.ScheduleNode, scop: Scop, found: Nest) -> isl.ScheduleNode:
    """Figure 8b to 8c: init | main | epilogues below the instr band, each without the rows that are degenerate there.

    Loop order inside a block: instr_n, instr_m, then the reduce rows, then rows and columns of the register tile.
    Returns the first node below the block bands.
    """
    node = isl.mark_each(isl.atomic(node), [BLOCK] * found.parallel, coincident=True)
    return register_tile(node, scop, found, list(scop.statements), len(found.batch))


def register_tile(node: isl.ScheduleNode, scop: Scop, found: Nest, statements: Sequence[str],
                  first: int) -> isl.ScheduleNode:
    """The loops of one contraction below its tile band, whose rows are those of `found` (reduce rows apart): of these the rows
    before `first` are loops further out. Returns the node that now stands where the tile band stood."""
    instr = node.band_get_partial_schedule()
    top = node.get_tree_depth()
    names = [INSTR_N, INSTR_M] if found.m else [INSTR_N]
    node = node.delete().insert_partial_schedule(isl.select_rows(instr, range(first, found.parallel)))
    node = isl.mark_each(node, names)
    reduce, tile_rows = node.band_get_partial_schedule(), node.child(0).band_get_partial_schedule()
    point = [first + 1, first] if found.m else [first]
    node = node.cut()
    statements = separated(scop, found.matrix, statements, first)
    if len(statements) > 1:
        node = node.insert_sequence(isl.filters([own_instances(scop, [s]) for s in statements]))
    for i, name in enumerate(statements):
        branch = node.child(i).child(0) if len(statements) > 1 else node
        statement = scop.statements[name]
        marks = [INIT] * len(point) if statement.role == "init" else [TILE_ROW, TILE_COLUMN][-len(point):]
        if statement.role == "store":
            rows, marks = _epilogue_rows(scop, found, name, tile_rows, point)
        else:
            rows = isl.select_rows(tile_rows, point)
        if found.m is None:  # a register tile of one row is a tile all the same
            rows = joined(isl.rows(scop.domain, [[function(scop, name, "0")]]), rows)
            marks = marks[:1] + marks if statement.role != "update" else [TILE_ROW, *marks]
        if statement.role == "update":
            rows = joined(reduce, rows)
            marks = [K] * reduce.dim(isl.SET) + marks
        branch = branch.insert_partial_schedule(rows.intersect_domain(own_instances(scop, [name])))
        node = up_to(isl.mark_each(branch, marks), node)
    return node.ancestor(node.get_tree_depth() - top)


def _epilogue_rows(scop: Scop, found: Nest, name: str, tile_rows: isl.MultiUnionPwAff,
                   point: list[int]) -> tuple[isl.MultiUnionPwAff, list[str]]:
    """The point rows; for one that is no plain axis (a column split into heads), the axes that it is made of, so that the
    innermost loop runs along the store's own last dimension."""
    statement = scop.statements[name]
    parts: list[isl.MultiUnionPwAff] = []
    functions = [found.matrix.solved(name, i) for i in range(found.parallel)]
    taken: set[str] = set()
    for position in point:
        used = [a.name for i, a in enumerate(statement.axes) if functions[position].involves_dims(isl.IN, i, 1)]
        if not used or axis_of(scop, name, functions[position]) is not None:
            parts.append(isl.select_rows(tile_rows, [position]))
        else:
            parts += [isl.rows(scop.domain, [[function(scop, name, a)]]) for a in used if a not in taken]
        taken |= set(used)
    extra = completing_axes(scop, statement, functions)
    parts += [isl.rows(scop.domain, [[function(scop, name, a)]]) for a in extra if a not in taken]
    rows = parts[0]
    for part in parts[1:]:
        rows = joined(rows, part)
    return rows, [EPILOGUE] * len(parts)

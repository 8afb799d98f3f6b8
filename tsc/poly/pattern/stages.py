"""Stages: row-parallel statements one after the other, reductions with equal rows stitched together, or none at all.

Two patterns with one tree: `match_reduction` and `match_injective`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import ClassVar, Self, TypeVar

from tsc.loop_ir.marks import INNER, PLACE, ROW
from tsc.poly import PatternMismatch, isl
from tsc.poly.deps import Dependences
from tsc.poly.legality import with_flags
from tsc.poly.matrix import Row, ScheduleMatrix, axis_of, function, solve
from tsc.poly.pattern.base import Build, Pattern, Tree
from tsc.poly.pattern.nest import Nest
from tsc.poly.pattern.rows import completing_axes, row_functions, row_relations
from tsc.poly.promotion.promote import Home, with_locals
from tsc.poly.scop import Scop, Statement
from tsc.poly.tile import Knob, Space, TileConfig, powers
from tsc.poly.tree import BLOCK_POINT, ROW_POINT, Marked, in_blocks, own_instances, statement_rows
from tsc.target import DeviceSpec
from tsc.te.compute import Compute
from tsc.te.expr import loads, variables
from tsc.te.passes.products import is_contraction, unit_stride
from tsc.te.passes.spots import Spot, sought

#: Elements that one block of an injective kernel should cover, and the extent taken for a symbolic axis to get there.
BLOCK_ELEMENTS, ASSUMED_EXTENT = 8192, 128
#: Elements of a block to any of which something may go, and how many of them lie behind one place.
PLACES, PLACE_WIDTH = 32768, 64


@dataclass(frozen=True, slots=True)
class Stage:
    """Statements that share a loop nest inside a row tile; `rows` are their own rows, solved."""

    statements: tuple[str, ...]
    matrix: ScheduleMatrix


AnyStage = TypeVar("AnyStage", bound=Stage | Nest)


@dataclass(frozen=True, slots=True)
class Staged(Pattern):
    """Row-parallel stages one after the other: chained reductions with equal rows, or injective statements alone.

    `matrix` holds the row functions. The loops of rows from number `within` on belong inside a reduction's: the unit-stride
    axis of what is reduced is the last of them, or, where places are `sought`, what is reduced goes to one along the first.
    """

    tiles_products: ClassVar[bool] = False
    matrix: ScheduleMatrix
    anchor: Compute
    stages: tuple[Stage, ...]
    reducing: bool
    within: int
    sought: bool = False

    def solved(self, scop: Scop, deps: Dependences) -> tuple[Self, tuple[str, ...]]:
        """With every `?` replaced, and the matrices in words. Raises PatternMismatch."""
        stages, log = solved_stages(self.stages, scop, deps)
        return replace(self, stages=stages), (f"rows\n{self.matrix}", *log)

    def default_config(self, spec: DeviceSpec) -> TileConfig:
        """A few rows a tile where something is reduced; else as many elements as a block should have."""
        return TileConfig(row_tile=_row_tile(self, spec))

    def space(self, spec: DeviceSpec) -> Space:
        """Any rows of a block, its last ones up to all elements that one should have; of places several, since a single one is
        summed up in another order."""
        knobs = [*row_knobs(len(self.matrix.names))]
        if self.sought:
            knobs[self.within] = replace(knobs[self.within], sizes=knobs[self.within].sizes[1:])
        return Space(self.default_config(spec), tuple(knobs))

    def tree(self, config: TileConfig, build: Build) -> Tree:
        """Row tiles over the stages; a local lives as long as a row where it can, else as long as a tile."""
        scop = build.scop
        node = build.initial("stages", _initial(scop, self, build.deps.relaxed), self.matrix.names)
        node = build.tiled("stages", isl.tile(node, config.row_tile) if self.matrix.names else node)
        schedule, order = build.separated("stages", _separated(node, scop, self, config))
        homes = (Home(ROW_POINT), Home(BLOCK_POINT))
        return Tree.of(with_locals(schedule, order, scop, build.deps, {}, homes), scop)


def row_knobs(rows: int) -> tuple[Knob, ...]:
    """How many of each row a block takes."""
    return tuple(Knob("row_tile", (k,), powers(BLOCK_ELEMENTS if k == rows - 1 else ASSUMED_EXTENT)) for k in range(rows))


def solved_stages(stages: Sequence[AnyStage], scop: Scop, deps: Dependences) -> tuple[tuple[AnyStage, ...], tuple[str, ...]]:
    """The stages, each with every `?` of its matrix replaced, and the matrices in words. Raises PatternMismatch."""
    found: list[AnyStage] = []
    log: list[str] = []
    for stage in stages:
        own = isl.restrict(scop.domain, stage.matrix.entries)
        matrix = solve(stage.matrix, scop, deps.relaxed.intersect_domain(own).intersect_range(own))
        if stage.matrix.names:
            log.append(f"stage\n{stage.matrix}" + (f"solved\n{matrix}" if str(matrix) != str(stage.matrix) else ""))
        found.append(replace(stage, matrix=matrix))
    return tuple(found), tuple(log)


# -- matching --------------------------------------------------------------------------------------------------

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
    matrix = ScheduleMatrix(names, entries)
    place, _ = next(filter(None, map(partial(_sought, scop), entries.items())), (None, None))
    if place is not None:
        return Staged(matrix, anchor, stages, reducing, place, sought=True)
    return Staged(matrix, anchor, stages, reducing, len(names) - (not reducing or _across(scop, entries)))


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


def _sought(scop: Scop, rows: tuple[str, Sequence[Row]]) -> tuple[int, Spot] | None:
    """The row of an update along which it goes to one place, and where; None where there is no such row."""
    name, functions = rows
    statement = scop.statements[name]
    for axis in reversed(statement.compute.axes) if statement.role == "update" else ():
        spot = sought(statement.compute, axis.name)
        if spot is not None:
            for number, row in enumerate(functions):
                if row is not None and axis_of(scop, name, row) == axis.name:
                    return number, spot
    return None


def _across(scop: Scop, entries: Mapping[str, tuple[Row, ...]]) -> bool:
    """Whether every input that the first reduction of inputs reads consecutively is read so along its axis that is the last
    row."""
    inputs = set(scop.program.inputs)
    for statement in scop.statements.values():
        found = [load for load in loads(statement.compute.body) if load.index and load.buffer in inputs]
        rows = entries[statement.name]
        if statement.role == "update" and found and rows and rows[-1] is not None:
            axis = axis_of(scop, statement.name, rows[-1])
            return axis is not None and all(unit_stride(load, axis) for load in found)
    return False


# -- sizes and the tree ----------------------------------------------------------------------------------------

def _row_tile(found: Staged, spec: DeviceSpec) -> tuple[int, ...]:
    extents = [a.extent.as_int() for a in found.anchor.axes]
    if found.reducing:
        if found.sought:
            return _place_tile(extents, found.within)
        if found.within < len(extents):
            return (1,) * (len(extents) - 1) + (max(16, spec.vector_bytes),)
        wide = [i for i, e in enumerate(extents) if e != 1]
        return tuple(4 if wide and i == wide[-1] else 1 for i in range(len(extents)))
    budget, tiles = BLOCK_ELEMENTS, []
    for position, extent in enumerate(reversed(extents)):
        size = min(extent or (budget if len(extents) == 1 else 1024 if position == 0 else ASSUMED_EXTENT), budget)
        tiles.append(max(1, size))
        budget //= max(1, min(size, extent or ASSUMED_EXTENT))
    return tuple(reversed(tiles))


def _place_tile(extents: list[int | None], row: int) -> tuple[int, ...]:
    """As many places as a block has room for, two at least, of all of which each update is asked once, and some of what lies
    behind one."""
    behind: list[int] = []
    for extent in reversed(extents[row + 1:]):
        most = PLACE_WIDTH // prod(behind)
        behind.append(min(extent or most, most))
    places = PLACES // prod(behind)
    return (*(1,) * row, max(2, min(extents[row] or places, places)), *reversed(behind))


def _initial(scop: Scop, found: Staged, deps: isl.UnionMap) -> isl.ScheduleNode:
    """A band of the shared rows over a sequence of stages, each a band of its own rows over its statements.

    Returns the first node below the domain: the row band, or the sequence where there are no rows.
    """
    statements = list(scop.statements)
    node = isl.Schedule.from_domain(scop.domain).get_root().child(0)
    if found.matrix.names:
        node = node.insert_partial_schedule(found.matrix.band(scop, range(len(found.matrix.names)), statements))
        node = with_flags(node, deps).child(0)
    top = node.get_tree_depth()
    if len(found.stages) > 1:
        node = node.insert_sequence(isl.filters([own_instances(scop, s.statements) for s in found.stages]))
    for i, stage in enumerate(found.stages):
        branch = node.child(i).child(0) if len(found.stages) > 1 else node
        if len(stage.statements) > 1:
            branch = branch.insert_sequence(isl.filters([own_instances(scop, [s]) for s in stage.statements]))
        if stage.matrix.names:
            branch = branch.insert_partial_schedule(
                stage.matrix.band(scop, range(len(stage.matrix.names)), stage.statements))
            branch = with_flags(branch, deps)
        node = branch.ancestor(branch.get_tree_depth() - top)
    return node.ancestor(node.get_tree_depth() - 1)


def _separated(node: isl.ScheduleNode, scop: Scop, found: Staged, config: TileConfig) -> isl.ScheduleNode:
    """Pull what was sunk out of each stage's loops, and give every statement its own rows inside the tile.

    The point rows are shared by all stages but for those where loops along them should be innermost.
    Returns the first node below the block band.
    """
    count = len(found.matrix.names)
    point = [i for i in range(count) if config.row_tile[i] > 1]
    shared = [i for i in point if i < found.within]
    inner = [i for i in point if i >= found.within]
    values = None
    if count:
        node, values = in_blocks(node, count)
    below = node.get_tree_depth()
    node = node.cut()
    if shared and values is not None:
        node = isl.atomic(node.insert_partial_schedule(isl.select_rows(values, shared)))
        node = isl.mark_each(node, [ROW] * len(shared))
    matrices = {s: stage.matrix for stage in found.stages for s in stage.statements}

    def own(statement: str) -> list[Marked]:
        order = _inner_order(scop, found, statement, inner)
        return [] if values is None else [(isl.select_rows(values, [i]), mark) for i, mark in order]

    node = statement_rows(node, scop, matrices, own)
    return node.ancestor(node.get_tree_depth() - below)


def _inner_order(scop: Scop, found: Staged, statement: str, rows: Sequence[int]) -> list[tuple[int, str]]:
    """The rows inside of a statement's own, and their marks. Those of an update that goes to one place are asked for it before
    what lies behind that, unless that has places of its own."""
    entries = found.matrix.entries[statement]
    known = _sought(scop, (statement, entries))
    if known is None or known[0] != found.within:
        return [(i, INNER) for i in rows]
    others = [i for i in rows if i != found.within]
    axes = {axis_of(scop, statement, row) for i in others if (row := entries[i]) is not None}
    place = [(i, PLACE) for i in rows if i == found.within]
    asked = [(i, INNER) for i in others]
    return [*asked, *place] if axes & variables(known[1].goes) else [*place, *asked]

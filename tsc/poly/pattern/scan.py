"""The scan pattern: recurrences carried along one axis, trip after trip, over rows that no trip mixes.

A tile of rows goes through all trips; what stands before and behind a recurrence runs row by row as stages do. Rows are those
axes of the first recurrence, but for the one that it is carried along, whose value every statement determines through access
relations. TVM's scan; Blelloch 1990 for the name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from tsc.loop_ir.marks import BLOCK, INNER, ROW, TRIP
from tsc.poly import PatternMismatch, isl
from tsc.poly.deps import Dependences
from tsc.poly.legality import with_flags
from tsc.poly.matrix import Row, ScheduleMatrix, function
from tsc.poly.pattern.base import Build, Pattern, Tree
from tsc.poly.pattern.rows import row_functions, row_relations, shared_axes
from tsc.poly.pattern.stages import Stage, row_knobs, row_stage, solved_stages
from tsc.poly.promotion.promote import Home, with_locals
from tsc.poly.scop import Scop
from tsc.poly.tile import Space, TileConfig
from tsc.poly.tree import BLOCK_POINT, ROW_POINT, in_blocks, own_instances, statement_rows, up_to
from tsc.target import DeviceSpec
from tsc.te.compute import Compute, runs

#: Rows of a block: where they are consecutive in memory, and elsewhere.
CONSECUTIVE_ROWS, OTHER_ROWS = 64, 4
#: Where a local may live that only one trip uses.
TRIP_POINT = frozenset({BLOCK, ROW, TRIP})


@dataclass(frozen=True, slots=True)
class Part:
    """Stages that make each `trip` together, or one stage where there is none."""

    stages: tuple[Stage, ...]
    trip: ScheduleMatrix | None

    @property
    def statements(self) -> tuple[str, ...]:
        """All statements, in order."""
        return tuple(s for stage in self.stages for s in stage.statements)


@dataclass(frozen=True, slots=True)
class Scan(Pattern):
    """Recurrences and stages one after the other, over shared rows. `matrix` holds the row functions; `consecutive` says that
    the last row is the unit-stride axis of what is carried, so that its loop belongs inside the trips."""

    tiles_products: ClassVar[bool] = False
    matrix: ScheduleMatrix
    anchor: Compute
    parts: tuple[Part, ...]
    consecutive: bool

    def solved(self, scop: Scop, deps: Dependences) -> tuple[Self, tuple[str, ...]]:
        """With every `?` replaced, and the matrices in words. Raises PatternMismatch."""
        parts, log = [], [f"rows\n{self.matrix}"]
        for part in self.parts:
            stages, words = solved_stages(part.stages, scop, _within_trips(part, scop, deps))
            parts.append(replace(part, stages=stages))
            log += [*([] if part.trip is None else [f"trips\n{part.trip}"]), *words]
        return replace(self, parts=tuple(parts)), tuple(log)

    def default_config(self, spec: DeviceSpec) -> TileConfig:
        """A few rows a tile, or whole vectors of them."""
        rows = len(self.matrix.names)
        last = CONSECUTIVE_ROWS if self.consecutive else OTHER_ROWS
        return TileConfig(row_tile=(1,) * (rows - 1) + (last,) * bool(rows))

    def space(self, spec: DeviceSpec) -> Space:
        """Any rows of a block."""
        return Space(self.default_config(spec), row_knobs(len(self.matrix.names)))

    def tree(self, config: TileConfig, build: Build) -> Tree:
        """Row tiles over the parts; a local lives as long as a trip where it can, else as long as a row or a tile."""
        scop, count = build.scop, len(self.matrix.names)
        root = isl.Schedule.from_domain(scop.domain).get_root().child(0)
        node = build.initial("scan", _initial(root, scop, self, build.deps.relaxed), self.matrix.names)
        node = build.tiled("scan", isl.tile(node, config.row_tile) if count else node)
        schedule, order = build.separated("scan", _separated(node, scop, self, config))
        homes = {}
        for part in self.parts:
            for name in {scop.statements[s].compute.name for s in part.statements} if part.trip is not None else ():
                homes[name] = (Home(TRIP_POINT, scop.of(_compute(scop, name))[0].name), Home(ROW_POINT), Home(BLOCK_POINT))
        return Tree.of(with_locals(schedule, order, scop, build.deps, homes, (Home(ROW_POINT), Home(BLOCK_POINT))), scop)


def match_scan(scop: Scop) -> Scan:
    """Recurrences, and row statements before and behind them. Raises PatternMismatch with the reason."""
    carried = [c for c in scop.program.computes if c.carried is not None]
    if not carried:
        raise PatternMismatch("scan: no recurrence was found")
    anchor = carried[0]
    along = anchor.carried.axis if anchor.carried else ""
    shared = tuple(i for i in shared_axes(scop, anchor) if anchor.axes[i].name != along)
    mixed = _mixed(scop, row_relations(scop, anchor, shared))
    rows = tuple(i for position, i in enumerate(shared) if position not in mixed)
    cells = row_relations(scop, anchor, rows)
    names = tuple(anchor.axes[i].name for i in rows)
    entries: dict[str, tuple[Row, ...]] = {
        s.name: tuple(row_functions(scop, s, cells[s.compute.name])) if rows else () for s in scop.statements.values()}
    parts = tuple(_part(scop, group, entries) for group in runs(scop.program.computes))
    return Scan(ScheduleMatrix(names, entries), anchor, parts, bool(rows) and rows[-1] == len(anchor.axes) - 1)


def _within_trips(part: Part, scop: Scop, deps: Dependences) -> Dependences:
    """The dependences but for those of a recurrence from one trip to another, which the order of trips keeps."""
    if part.trip is None:
        return deps
    trips = isl.row_map(part.trip.band(scop, [0], part.statements), 0)
    return replace(deps, relaxed=deps.relaxed.intersect(trips.apply_range(trips.reverse())))


def _mixed(scop: Scop, cells: Mapping[str, isl.Map]) -> set[int]:
    """The rows of which some cell reads another than its own: what a trip makes of all of them."""
    written = {w.statement: w.relation for w in scop.writes}
    found: set[int] = set()
    for access in scop.reads:
        reader = scop.statements[access.statement].compute.name
        if access.buffer.name in cells and reader in cells:
            pairs = access.relation.apply_domain(written[access.statement])
            pairs = pairs.apply_domain(cells[reader]).apply_range(cells[access.buffer.name])
            found |= {i for i in range(pairs.dim(isl.OUT)) if not pairs.is_subset(pairs.equate(isl.IN, i, isl.OUT, i))}
    return found


def _part(scop: Scop, group: tuple[Compute, ...], entries: Mapping[str, tuple[Row, ...]]) -> Part:
    """The stages of a recurrence, or of one other Compute."""
    trips: dict[str, tuple[Row, ...]] = {}
    for compute in group:
        if compute.carried is not None:
            sign = "-" if compute.carried.reverse else ""
            trips |= {s.name: (function(scop, s.name, f"{sign}{compute.carried.axis}"),) for s in scop.of(compute)}
    known = {name: (*rows, *trips.get(name, ())) for name, rows in entries.items()}
    stages = tuple(row_stage(scop, list(scop.of(compute)), known) for compute in group)
    return Part(stages, ScheduleMatrix(("trip",), trips) if trips else None)


def _compute(scop: Scop, name: str) -> Compute:
    return next(c for c in scop.program.computes if c.name == name)


# -- the tree --------------------------------------------------------------------------------------------------

def _initial(node: isl.ScheduleNode, scop: Scop, found: Scan, deps: isl.UnionMap) -> isl.ScheduleNode:
    """A band of the shared rows over a sequence of parts: trips over a sequence of stages, each a band of its own rows.

    Returns the first node below the domain: the row band, or what is below it where there are no rows.
    """
    top = node.get_tree_depth()
    if found.matrix.names:
        node = node.insert_partial_schedule(found.matrix.band(scop, range(len(found.matrix.names)), list(scop.statements)))
        node = with_flags(node, deps).child(0)
    node = _sequence(node, scop, [p.statements for p in found.parts])
    for i, part in enumerate(found.parts):
        branch = _branch(node, i, len(found.parts))
        if part.trip is not None:
            branch = with_flags(branch.insert_partial_schedule(part.trip.band(scop, [0], part.statements)), deps).child(0)
        branch = _sequence(branch, scop, [s.statements for s in part.stages])
        for k, stage in enumerate(part.stages):
            own = _sequence(_branch(branch, k, len(part.stages)), scop, [[s] for s in stage.statements])
            if stage.matrix.names:
                band = stage.matrix.band(scop, range(len(stage.matrix.names)), stage.statements)
                own = with_flags(own.insert_partial_schedule(band), deps)
            branch = up_to(own, branch)
        node = up_to(branch, node)
    return node.ancestor(node.get_tree_depth() - top)


def _separated(node: isl.ScheduleNode, scop: Scop, found: Scan, config: TileConfig) -> isl.ScheduleNode:
    """Blocks of rows, rows one by one but for consecutive ones, the parts, trips, and each statement with its own rows.

    Returns the first node below the block band.
    """
    count = len(found.matrix.names)
    point = [i for i in range(count) if config.row_tile[i] > 1]
    inner = [i for i in point if found.consecutive and i == count - 1]
    values = None
    if count:
        node, values = in_blocks(node, count)
    below = node.get_tree_depth()
    node = node.cut()
    outer = [i for i in point if i not in inner]
    if outer and values is not None:
        node = isl.mark_each(isl.atomic(node.insert_partial_schedule(isl.select_rows(values, outer))), [ROW] * len(outer))
    last = [(isl.select_rows(values, inner), INNER)] if inner and values is not None else []
    node = _sequence(node, scop, [p.statements for p in found.parts])
    for i, part in enumerate(found.parts):
        branch = _branch(node, i, len(found.parts))
        if part.trip is not None:
            branch = branch.insert_partial_schedule(part.trip.band(scop, [0], part.statements))
            branch = isl.mark_each(branch, [TRIP])
        matrices = {s: stage.matrix for stage in part.stages for s in stage.statements}
        node = up_to(statement_rows(branch, scop, matrices, lambda _: last), node)
    return node.ancestor(node.get_tree_depth() - below)


def _sequence(node: isl.ScheduleNode, scop: Scop, parts: list[tuple[str, ...]] | list[list[str]]) -> isl.ScheduleNode:
    return node.insert_sequence(isl.filters([own_instances(scop, p) for p in parts])) if len(parts) > 1 else node


def _branch(node: isl.ScheduleNode, number: int, count: int) -> isl.ScheduleNode:
    return node.child(number).child(0) if count > 1 else node

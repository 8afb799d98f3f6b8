"""Schedule trees of chained contractions: a band of row tiles over the stages, each stage with loops of its own inside a tile.

Each step is a function from tree to tree; the caller checks every result.
"""

from __future__ import annotations

from tsc.poly import isl
from tsc.poly.chain import Chained
from tsc.poly.legality import BLOCK, with_flags
from tsc.poly.pattern import Contraction, Stage
from tsc.poly.scop import Scop
from tsc.poly.tile import TileConfig
from tsc.poly.tree import own_instances, register_tile, statement_rows


def initial_chained(scop: Scop, found: Chained, deps: isl.UnionMap) -> isl.ScheduleNode:
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


def tile_chained(node: isl.ScheduleNode, config: TileConfig) -> isl.ScheduleNode:
    """Tile the row band. Returns the tile band."""
    return isl.tile(node, config.row_tile)


def separate_chained(node: isl.ScheduleNode, scop: Scop, found: Chained, config: TileConfig) -> isl.ScheduleNode:
    """Below the row tiles: each contraction with register tiles of its own, and each run of row stages row by row.

    Returns the first node below the block bands.
    """
    count = len(found.matrix.names)
    node = isl.mark_each(isl.atomic(node), [BLOCK] * count, coincident=True)
    point = [i for i in range(count) if config.row_tile[i] > 1]
    values = node.band_get_partial_schedule()
    node = node.delete()
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
        branch = isl.mark_each(branch.insert_partial_schedule(rows), ["row"] * values.dim(isl.SET))
    branch = statement_rows(branch, scop, matrices, None)
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

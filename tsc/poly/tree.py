"""Schedule trees from solved matrices: the initial band, its tiling, and the separation of what was sunk into it.

Each step is a function from tree to tree; the caller checks every result. Section 5.3 of the paper, figures 7 and 8.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import reduce

from tsc.poly import PatternMismatch, isl
from tsc.poly.legality import BLOCK, with_flags
from tsc.poly.matrix import ScheduleMatrix, function
from tsc.poly.pattern import Contraction, Staged, completing_axes
from tsc.poly.scop import Scop
from tsc.poly.tile import TileConfig

#: Where a local of the stages may live: below the shared rows, else below the blocks.
ROW_POINT, BLOCK_POINT = frozenset({BLOCK, "row"}), frozenset({BLOCK})
#: Where the accumulators of a contraction live: below the loops over its register tiles.
INSTR_POINT = frozenset({"instr_n", "instr_m"})

# -- contraction -----------------------------------------------------------------------------------------------

def initial_contraction(scop: Scop, found: Contraction, deps: isl.UnionMap) -> isl.ScheduleNode:
    """One band of all rows over a sequence of all statements; everything is sunk into the anchor's loops. Returns the band."""
    statements = list(scop.statements)
    node = isl.Schedule.from_domain(scop.domain).get_root().child(0)
    node = node.insert_partial_schedule(found.matrix.band(scop, range(len(found.matrix.names)), statements))
    return with_flags(node, deps).child(0).insert_sequence(isl.filters([own_instances(scop, [s]) for s in statements])).parent()


def tile_contraction(node: isl.ScheduleNode, found: Contraction, config: TileConfig) -> isl.ScheduleNode:
    """Tile the band by the register tile, split the parallel rows from the reduce rows, tile those again by the block tile.

    Returns the block band, above: instr band, reduce band, point band, sequence.
    """
    rows = len(found.matrix.names)
    instr, block = config.instr_tile, config.block_tile
    inner = [1] * len(found.batch) + [instr[1]] + [instr[0]] * (found.m is not None)
    outer = [1] * len(found.batch) + [block[1]] + [block[0]] * (found.m is not None)
    node = isl.tile(node, inner + [1] * (rows - found.parallel)).band_split(found.parallel)
    return isl.tile(node, outer)


def separate_contraction(node: isl.ScheduleNode, scop: Scop, found: Contraction) -> isl.ScheduleNode:
    """Figure 8b to 8c: init | main | epilogues below the instr band, each without the rows that are degenerate there.

    Loop order inside a block: instr_n, instr_m, then the reduce rows, then rows and columns of the register tile.
    Returns the first node below the block bands.
    """
    node = isl.mark_each(isl.atomic(node), [BLOCK] * found.parallel, coincident=True)
    return register_tile(node, scop, found, list(scop.statements), len(found.batch))


def register_tile(node: isl.ScheduleNode, scop: Scop, found: Contraction, statements: Sequence[str],
                  first: int) -> isl.ScheduleNode:
    """The loops of one contraction below its tile band, whose rows are those of `found` (reduce rows apart): of these the rows
    before `first` are loops further out. Returns the node that now stands where the tile band stood."""
    instr = node.band_get_partial_schedule()
    top = node.get_tree_depth()
    names = ["instr_n", "instr_m"] if found.m else ["instr_n"]
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
        marks = ["init"] * len(point) if statement.role == "init" else ["i", "j"][-len(point):]
        if statement.role == "store":
            rows, marks = _epilogue_rows(scop, found, name, tile_rows, point)
        else:
            rows = isl.select_rows(tile_rows, point)
        if found.m is None:  # a register tile of one row is a tile all the same
            rows = _join(isl.rows(scop.domain, [[function(scop, name, "0")]]), rows)
            marks = marks[:1] + marks if statement.role != "update" else ["i", *marks]
        if statement.role == "update":
            rows = _join(reduce, rows)
            marks = ["k"] * reduce.dim(isl.SET) + marks
        branch = branch.insert_partial_schedule(rows.intersect_domain(own_instances(scop, [name])))
        node = _up_to(isl.mark_each(branch, marks), node)
    return node.ancestor(node.get_tree_depth() - top)


def _epilogue_rows(scop: Scop, found: Contraction, name: str, tile_rows: isl.MultiUnionPwAff,
                   point: list[int]) -> tuple[isl.MultiUnionPwAff, list[str]]:
    """The point rows; for one that is no plain axis (a column split into heads), the axes that it is made of, so that the
    innermost loop runs along the store's own last dimension."""
    statement = scop.statements[name]
    parts: list[isl.MultiUnionPwAff] = []
    functions = [found.matrix.solved(name, i) for i in range(found.parallel)]
    taken: set[str] = set()
    for position in point:
        used = [a.name for i, a in enumerate(statement.axes) if functions[position].involves_dims(isl.IN, i, 1)]
        if used == [isl.function_text(functions[position])] or not used:
            parts.append(isl.select_rows(tile_rows, [position]))
        else:
            parts += [isl.rows(scop.domain, [[function(scop, name, a)]]) for a in used if a not in taken]
        taken |= set(used)
    extra = completing_axes(scop, statement, functions)
    parts += [isl.rows(scop.domain, [[function(scop, name, a)]]) for a in extra if a not in taken]
    rows = parts[0]
    for part in parts[1:]:
        rows = _join(rows, part)
    return rows, ["epilogue"] * len(parts)


# -- stages ----------------------------------------------------------------------------------------------------

def initial_staged(scop: Scop, found: Staged, deps: isl.UnionMap) -> isl.ScheduleNode:
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


def tile_staged(node: isl.ScheduleNode, found: Staged, config: TileConfig) -> isl.ScheduleNode:
    """Tile the row band. Returns the tile band."""
    return isl.tile(node, config.row_tile) if found.matrix.names else node


def separate_staged(node: isl.ScheduleNode, scop: Scop, found: Staged, config: TileConfig) -> isl.ScheduleNode:
    """Pull what was sunk out of each stage's loops, and give every statement its own rows inside the tile.

    The point rows are shared by all stages but for the last one where loops along it should be innermost.
    Returns the first node below the block band.
    """
    count = len(found.matrix.names)
    point = [i for i in range(count) if config.row_tile[i] > 1]
    shared = point[:-1] if found.across or not found.reducing else point
    inner = [i for i in point if i not in shared]
    values = None
    if count:
        node = isl.mark_each(isl.atomic(node), [BLOCK] * count, coincident=True)
        values = node.band_get_partial_schedule()
        node = node.delete()
    below = node.get_tree_depth()
    node = node.cut()
    if shared and values is not None:
        node = isl.atomic(node.insert_partial_schedule(isl.select_rows(values, shared)))
        node = isl.mark_each(node, ["row"] * len(shared))
    matrices = {s: stage.matrix for stage in found.stages for s in stage.statements}
    node = statement_rows(node, scop, matrices, isl.select_rows(values, inner) if inner and values is not None else None)
    return node.ancestor(node.get_tree_depth() - below)


def statement_rows(node: isl.ScheduleNode, scop: Scop, matrices: Mapping[str, ScheduleMatrix],
                   inner: isl.MultiUnionPwAff | None) -> isl.ScheduleNode:
    """A sequence of statements, each below the rows of its matrix and then `inner`. Returns the node where `node` stood."""
    statements = [s for matrix, own in _by_matrix(matrices) for s in separated(scop, matrix, own)]
    if len(statements) > 1:
        node = node.insert_sequence(isl.filters([own_instances(scop, [s]) for s in statements]))
    for i, name in enumerate(statements):
        branch = node.child(i).child(0) if len(statements) > 1 else node
        rows, marks = _stage_rows(scop, name, matrices[name])
        parts = rows if inner is None else [*rows, inner]
        marks = marks + ["inner"] * (0 if inner is None else inner.dim(isl.SET))
        if "reduce" not in marks and marks:
            marks = ["outer"] * (len(marks) - 1) + ["inner"]
        if parts:
            band = parts[0]
            for part in parts[1:]:
                band = _join(band, part)
            branch = branch.insert_partial_schedule(band.intersect_domain(own_instances(scop, [name])))
            node = _up_to(isl.mark_each(branch, marks), node)
    return node


def _by_matrix(matrices: Mapping[str, ScheduleMatrix]) -> list[tuple[ScheduleMatrix, list[str]]]:
    """Neighbouring statements of one matrix together."""
    runs: list[tuple[ScheduleMatrix, list[str]]] = []
    for name, matrix in matrices.items():
        if not runs or runs[-1][0] is not matrix:
            runs.append((matrix, []))
        runs[-1][1].append(name)
    return runs


def _stage_rows(scop: Scop, name: str, matrix: ScheduleMatrix) -> tuple[list[isl.MultiUnionPwAff], list[str]]:
    statement = scop.statements[name]
    own = completing_rows(scop, name, matrix)
    parallel = len(statement.compute.axes)
    reduced = [f.involves_dims(isl.IN, parallel, len(statement.axes) - parallel) for f in own]
    other = "outer" if any(reduced) else "inner"
    return [isl.rows(scop.domain, [[f]]) for f in own], ["reduce" if r else other for r in reduced]


def completing_rows(scop: Scop, name: str, matrix: ScheduleMatrix) -> list[isl.PwAff]:
    """The rows of a stage that vary with the statement's instances; a solved `?` does not."""
    dims = len(scop.statements[name].axes)
    rows = [matrix.solved(name, i) for i in range(len(matrix.names))]
    return [r for r in rows if r.involves_dims(isl.IN, 0, dims)]


# -- shared ----------------------------------------------------------------------------------------------------

def separated(scop: Scop, matrix: ScheduleMatrix, statements: Sequence[str], first_row: int = 0) -> list[str]:
    """The order in which separation puts statements of one matrix: what its solved `?` sink into the first iteration of the
    loops comes before them, what they sink into the last behind them. The rows before `first_row` are loops around all of them,
    which say nothing of their order. Raises PatternMismatch for what is between or beyond."""
    moving, sunk = _rows_by_kind(scop, matrix, statements)
    taken = {i: _values(scop, matrix, names, i) for i, names in moving.items() if any(i in rows for rows in sunk.values())}
    before: list[str] = []
    behind: list[str] = []
    for name, rows in sunk.items():
        own = [(_values(scop, matrix, [name], i), taken[i]) for i in rows if i in taken and i >= first_row]
        first = all(value.is_equal(others.lexmin()) for value, others in own)
        last = all(value.is_equal(others.lexmax()) for value, others in own)
        if not (first or last):
            raise PatternMismatch(f"{name} would run in the midst of the loops over {', '.join(matrix.names[i] for i in rows)}")
        if own and first != last:
            (before if first else behind).append(name)
    return [*before, *(s for s in statements if s not in (*before, *behind)), *behind]


def _rows_by_kind(scop: Scop, matrix: ScheduleMatrix,
                  statements: Sequence[str]) -> tuple[dict[int, list[str]], dict[str, list[int]]]:
    """By row the statements that vary with it; by statement the rows that it does not vary with."""
    moving: dict[int, list[str]] = {}
    sunk: dict[str, list[int]] = {}
    for name in statements:
        for i in range(len(matrix.names)):
            if matrix.solved(name, i).involves_dims(isl.IN, 0, len(scop.statements[name].axes)):
                moving.setdefault(i, []).append(name)
            else:
                sunk.setdefault(name, []).append(i)
    return moving, sunk


def _values(scop: Scop, matrix: ScheduleMatrix, statements: Sequence[str], row: int) -> isl.Set:
    """The values that a row takes for some statements."""
    found = [isl.values(matrix.solved(s, row), scop.statements[s].domain).intersect_params(scop.populated) for s in statements]
    return reduce(lambda a, b: a.union(b), found)


def own_instances(scop: Scop, statements: Sequence[str]) -> isl.UnionSet:
    """The instances of some statements."""
    return isl.restrict(scop.domain, statements)


def _join(first: isl.MultiUnionPwAff, second: isl.MultiUnionPwAff) -> isl.MultiUnionPwAff:
    return first.flat_range_product(second)


def _up_to(node: isl.ScheduleNode, ancestor: isl.ScheduleNode) -> isl.ScheduleNode:
    return node.ancestor(node.get_tree_depth() - ancestor.get_tree_depth())


def node_below(schedule: isl.Schedule, marks: Collection[str], statement: str = "") -> isl.ScheduleNode:
    """The node below the bands that stand under `marks`, past what was grafted before it: those that the tree starts with, or,
    given a statement, the last ones on the way to it."""
    node = found = schedule.get_root().child(0)
    while node.n_children():
        kind, here = node.get_type(), node.get_tree_depth() == found.get_tree_depth()
        marked = kind == isl.NodeType.mark and isl.mark_name(node) in marks
        if marked:
            node = node.child(0).child(0)
        elif kind == isl.NodeType.extension and (here or statement):
            node = node.child(0).child(node.child(0).n_children() - 1).child(0)
        elif not statement:
            break
        elif kind == isl.NodeType.sequence:
            node = next(child for child in map(node.child, range(node.n_children()))
                        if statement in isl.tuple_names(child.filter_get_filter())).child(0)
        else:
            node = node.child(0)
        if marked or (here and kind == isl.NodeType.extension):
            found = node
    return found

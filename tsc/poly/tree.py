"""Parts of schedule trees that patterns share: sequences of statements with rows of their own, and points in a tree.

Each step is a function from tree to tree; whoever builds a tree checks every result.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import reduce
from typing import TypeAlias

from tsc.loop_ir.marks import BLOCK, INNER, INSTR_M, INSTR_N, OUTER, REDUCE, ROW
from tsc.poly import PatternMismatch, isl
from tsc.poly.matrix import ScheduleMatrix
from tsc.poly.scop import Scop

#: Where a local of the stages may live: below the shared rows, else below the blocks.
ROW_POINT, BLOCK_POINT = frozenset({BLOCK, ROW}), frozenset({BLOCK})
#: Where the accumulators of a contraction live: below the loops over its register tiles.
INSTR_POINT = frozenset({INSTR_N, INSTR_M})
#: A row of statements, and the mark of its loop.
Marked: TypeAlias = tuple[isl.MultiUnionPwAff, str]


def in_blocks(node: isl.ScheduleNode, rows: int) -> tuple[isl.ScheduleNode, isl.MultiUnionPwAff]:
    """The band of `rows` tiles at `node` as loops over blocks, and the band of rows below it taken out of the tree. Returns the
    first node below the blocks, and the rows."""
    node = isl.mark_each(isl.atomic(node), [BLOCK] * rows, coincident=True)
    values = node.band_get_partial_schedule()
    return node.delete(), values


def statement_rows(node: isl.ScheduleNode, scop: Scop, matrices: Mapping[str, ScheduleMatrix],
                   inner: Callable[[str], Sequence[Marked]] = lambda statement: ()) -> isl.ScheduleNode:
    """A sequence of statements, each below the rows of its matrix and then those that `inner` has for it. Returns the node
    where `node` stood."""
    statements = [s for matrix, own in _by_matrix(matrices) for s in separated(scop, matrix, own)]
    if len(statements) > 1:
        node = node.insert_sequence(isl.filters([own_instances(scop, [s]) for s in statements]))
    for i, name in enumerate(statements):
        branch = node.child(i).child(0) if len(statements) > 1 else node
        rows, marks = _stage_rows(scop, name, matrices[name])
        own = inner(name)
        parts, marks = [*rows, *(row for row, _ in own)], [*marks, *(mark for _, mark in own)]
        if REDUCE not in marks and marks:
            marks = [OUTER] * (len(marks) - 1) + [INNER]
        if parts:
            band = parts[0]
            for part in parts[1:]:
                band = joined(band, part)
            branch = branch.insert_partial_schedule(band.intersect_domain(own_instances(scop, [name])))
            node = up_to(isl.mark_each(branch, marks), node)
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
    other = OUTER if any(reduced) else INNER
    return [isl.rows(scop.domain, [[f]]) for f in own], [REDUCE if r else other for r in reduced]


def completing_rows(scop: Scop, name: str, matrix: ScheduleMatrix) -> list[isl.PwAff]:
    """The rows of a stage that vary with the statement's instances; a solved `?` does not."""
    dims = len(scop.statements[name].axes)
    rows = [matrix.solved(name, i) for i in range(len(matrix.names))]
    return [r for r in rows if r.involves_dims(isl.IN, 0, dims)]


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


def joined(first: isl.MultiUnionPwAff, second: isl.MultiUnionPwAff) -> isl.MultiUnionPwAff:
    """The rows of both, those of the first outermost."""
    return first.flat_range_product(second)


def up_to(node: isl.ScheduleNode, ancestor: isl.ScheduleNode) -> isl.ScheduleNode:
    """The ancestor of `node` that stands as deep as `ancestor`."""
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

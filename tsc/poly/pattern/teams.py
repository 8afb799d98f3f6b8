"""What patterns of a GPU share: a tree whose statements run in warps and lanes of their own, over domains of whole tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from tsc.loop_ir.marks import BLOCK, COPY, KEPT, PARALLEL, THREAD, WARP
from tsc.loop_ir.nodes import Func
from tsc.loop_ir.simplify import simplify
from tsc.poly import PatternMismatch, isl
from tsc.poly.gpu.teams import check_teams, constant_trips, join_teams
from tsc.poly.pattern.base import Pattern, Tree
from tsc.poly.promotion.rounded import guard_of
from tsc.poly.scop import Scop, Statement
from tsc.poly.tree import own_instances, up_to
from tsc.te.expr import Expr

LANES = 32

Rows = list[tuple[str, isl.PwAff]]


class OnTeams(Pattern):
    """A pattern whose blocks are warps of 32 lanes: their loops are nests of `warp` and `thread` loops, one after the other,
    until they are joined into one nest a block."""

    __slots__ = ()
    kept = KEPT | {COPY} | PARALLEL

    def loops(self, func: Func) -> Func:
        """Loops of warps and threads have constant trip counts; places in layouts do not divide what is aligned."""
        return simplify(replace(func, body=constant_trips(func.body)), keep_marked=True)

    def joined(self, func: Func, tree: Tree) -> Func:
        """One nest of warps and threads a block. Raises InternalError where threads are not independent between barriers."""
        check_teams(func, tree.promoted, tree.executed)
        return join_teams(func, tree.promoted)


def team_tree(scop: Scop, columns: list[list[isl.PwAff]], rows: Mapping[str, Rows]) -> isl.Schedule:
    """Block loops over the rows `columns` (one function a statement) around a sequence of all statements, each in its own
    loops `rows`, outermost first."""
    node = isl.Schedule.from_domain(scop.domain).get_root().child(0)
    node = node.insert_partial_schedule(isl.rows(scop.domain, columns))
    node = isl.mark_each(isl.atomic(node), [BLOCK] * len(columns), coincident=True)
    made = in_sequence(node, scop, [[name] for name in rows], lambda at, names: in_loops(at, scop, names[0], rows[names[0]]))
    return made.get_schedule()


def in_sequence(node: isl.ScheduleNode, scop: Scop, groups: Sequence[Sequence[str]],
                each: Callable[[isl.ScheduleNode, Sequence[str]], isl.ScheduleNode]) -> isl.ScheduleNode:
    """A sequence of groups of statements at a node, and below each what `each` makes of it. Returns the sequence."""
    node = node.insert_sequence(isl.filters([own_instances(scop, group) for group in groups]))
    for i, group in enumerate(groups):
        node = up_to(each(node.child(i).child(0), group), node)
    return node


def in_loops(node: isl.ScheduleNode, scop: Scop, name: str, rows: Rows) -> isl.ScheduleNode:
    """A statement in its own loops, outermost first. Returns a node below `node`."""
    band = isl.rows(own_instances(scop, [name]), [[f] for _, f in rows])
    return isl.mark_each(node.insert_partial_schedule(band), [m for m, _ in rows])


def guards_of(scop: Scop, rounded: Scop, statements: Iterable[Statement]) -> dict[str, Expr]:
    """The guards of those of the statements that rounding gave instances to."""
    guards = {s.name: guard_of(s.domain, rounded.statements[s.name].domain, [a.name for a in s.axes]) for s in statements}
    return {name: guard for name, guard in guards.items() if guard is not None}


def sole_statement(scop: Scop, pattern: str) -> Statement:
    """The statement of a Program that has one, reduces nothing and carries nothing. Raises PatternMismatch, for a pattern."""
    if len(scop.program.computes) != 1 or scop.program.computes[0].monoid is not None:
        raise PatternMismatch(f"{pattern}: there is more to do than one statement that reduces nothing")
    if scop.program.computes[0].carried is not None:
        raise PatternMismatch(f"{pattern}: {scop.program.computes[0].name} is carried from trip to trip")
    (statement,) = scop.statements.values()
    return statement


def below(value: isl.PwAff, size: int) -> isl.PwAff:
    """The greatest multiple of `size` that is not more."""
    return value.sub(isl.modulo(value, size))


def between(value: isl.PwAff, outer: int, inner: int) -> isl.PwAff:
    """The multiples of `inner` within a tile of `outer`."""
    return isl.modulo(value, outer).sub(isl.modulo(value, inner))


def copy_rows(copies: isl.Map, dims: tuple[int, int], shape: tuple[int, int], warps: int, most: int) -> Rows:
    """Loops over a copied tile: steps, warps, lanes, and the vector of up to `most` elements that a lane copies at once, along
    the tile's rows. Raises PatternMismatch where so many warps cannot copy the tile in whole steps."""
    row, column = (isl.instance_coordinate(copies, d) for d in dims)
    across, down, vector = copy_shape(shape, warps, most)
    together = down * warps  # rows that all threads copy at once
    return [(COPY, between(row, shape[0], together)), (COPY, between(column, shape[1], across * vector)),
            (WARP, between(row, together, down)), (THREAD, isl.modulo(row, down)),
            (THREAD, between(column, across * vector, vector)), (COPY, isl.modulo(column, vector))]


def copy_shape(shape: tuple[int, int], warps: int, most: int) -> tuple[int, int, int]:
    """Lanes along a row, rows of a warp, and elements of a lane, so that warps of 32 lanes cover a tile in whole steps.

    The longest vector wins, up to `most` elements. Raises PatternMismatch where no shape fits.
    """
    rows, columns = shape
    vector = most
    while vector:
        across = LANES
        while across:
            down = LANES // across
            if columns % (across * vector) == 0 and rows % (down * warps) == 0:
                return across, down, vector
            across //= 2
        vector //= 2
    raise PatternMismatch(f"a tile of {rows} x {columns} cannot be copied by {warps} warps in whole steps")

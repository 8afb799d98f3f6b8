"""What patterns of a GPU share: a tree whose statements run in warps and lanes of their own, over domains of whole tiles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tsc.loop_ir.marks import BLOCK, COPY, KEPT, PARALLEL
from tsc.loop_ir.nodes import Func
from tsc.loop_ir.simplify import simplify
from tsc.poly import isl
from tsc.poly.gpu.teams import check_teams, constant_trips, join_teams
from tsc.poly.pattern.base import Pattern, Tree
from tsc.poly.promotion.rounded import guard_of
from tsc.poly.scop import Scop, Statement
from tsc.poly.tree import own_instances
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
    node = node.insert_sequence(isl.filters([own_instances(scop, [name]) for name in rows]))
    top = node.get_tree_depth()
    for i, (name, own) in enumerate(rows.items()):
        band = isl.rows(own_instances(scop, [name]), [[f] for _, f in own])
        branch = isl.mark_each(node.child(i).child(0).insert_partial_schedule(band), [m for m, _ in own])
        node = branch.ancestor(branch.get_tree_depth() - top)
    return node.get_schedule()


def guards_of(scop: Scop, rounded: Scop, statements: Iterable[Statement]) -> dict[str, Expr]:
    """The guards of those of the statements that rounding gave instances to."""
    guards = {s.name: guard_of(s.domain, rounded.statements[s.name].domain, [a.name for a in s.axes]) for s in statements}
    return {name: guard for name, guard in guards.items() if guard is not None}

"""Elements one after the other on a GPU: what has no rows and columns, a block of warps for so many of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from tsc.loop_ir.marks import INNER, THREAD, WARP
from tsc.poly import PatternMismatch, isl
from tsc.poly.deps import Dependences
from tsc.poly.matrix import ScheduleMatrix, function
from tsc.poly.pattern.base import Build, Tree
from tsc.poly.pattern.teams import LANES, OnTeams, Rows, below, between, guards_of, sole_statement, team_tree
from tsc.poly.promotion.promote import Promoted, assignments_of
from tsc.poly.promotion.rounded import round_domains
from tsc.poly.scop import Scop
from tsc.poly.tile import Knob, Space, TileConfig, powers
from tsc.target import DeviceSpec

#: Elements of a block and of a warp, without tuning.
BLOCK_ELEMENTS, WARP_ELEMENTS = 1024, 128


@dataclass(frozen=True, slots=True)
class Flat(OnTeams):
    """One statement of one axis, which `matrix` has."""

    matrix: ScheduleMatrix

    def solved(self, scop: Scop, deps: Dependences) -> tuple[Self, tuple[str, ...]]:
        """There is no `?`: the axis in words."""
        return self, (f"elements\n{self.matrix}",)

    def default_config(self, spec: DeviceSpec) -> TileConfig:
        """A few elements a thread."""
        return TileConfig(block_tile=(BLOCK_ELEMENTS, 1), warp_tile=(WARP_ELEMENTS, 1))

    def space(self, spec: DeviceSpec) -> Space:
        """More or fewer elements a thread."""
        return Space(self.default_config(spec), (Knob("warp_tile", (0,), powers(512, LANES)),))

    def tree(self, config: TileConfig, build: Build) -> Tree:
        """Blocks of warps, each of which goes through its elements lane by lane."""
        scop, ((name, _),) = build.scop, self.matrix.entries.items()
        size, own, place = config.block_tile[0], config.warp_tile[0], self.matrix.solved(name, 0)
        rounded = round_domains(scop, {name: [(place, size)]})
        loops: Rows = [(WARP, between(place, size, own)), (THREAD, isl.modulo(place, LANES)),
                       (INNER, between(place, own, LANES))]
        schedule = team_tree(rounded, [[below(place, size)]], {name: loops})
        guards = guards_of(scop, rounded, scop.statements.values())
        return Tree.of(Promoted(schedule, (), assignments_of(rounded), guards), scop, rounded)


def match_flat(scop: Scop) -> Flat:
    """A statement of one axis that reduces nothing. Raises PatternMismatch."""
    statement = sole_statement(scop, "flat")
    if len(statement.axes) != 1:
        raise PatternMismatch(f"flat: {statement.compute.name} has not one axis")
    axis = statement.axes[0].name
    return Flat(ScheduleMatrix((axis,), {statement.name: (function(scop, statement.name, axis),)}))

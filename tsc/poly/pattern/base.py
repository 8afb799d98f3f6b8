"""Pattern: what a Program is taken for, and all that a schedule needs to know of it.

A pattern is one module of this folder: its match, its sizes, its tree and what it promotes. Nobody else asks which one it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from tsc.loop_ir.marks import KEPT
from tsc.loop_ir.nodes import Func
from tsc.poly import PatternMismatch, isl
from tsc.poly.deps import Dependences
from tsc.poly.legality import Order, Seen, check_tree, coincident
from tsc.poly.matrix import ScheduleMatrix
from tsc.poly.promotion.promote import Promoted
from tsc.poly.scop import Scop, Statement
from tsc.poly.tile import Space, TileConfig
from tsc.runtime.cost import Work
from tsc.sym import ZERO, SymExpr, product
from tsc.target import DeviceSpec
from tsc.te.compute import Program
from tsc.te.passes.layout import ColumnOperand

#: Kinds of work: instances of statements, register tiles, their steps along what is reduced, the same for each of their rows,
#: and the steps for which a block copies a panel of an operand.
ELEMENTS, TILES, STEPS, ROW_STEPS, PANEL_STEPS = "elements", "tiles", "steps", "row steps", "panel steps"


class Pattern(ABC):
    """The rows of all statements of a Program, `?` among them until they are `solved`, and what becomes of them."""

    __slots__ = ()
    matrix: ScheduleMatrix
    #: Whether a sum of products runs in register tiles.
    tiles_products: ClassVar[bool] = True
    #: Marks of loops that are kept where they run once.
    kept: ClassVar[frozenset[str]] = KEPT

    @property
    def name(self) -> str:
        """What it is called in logs."""
        return type(self).__name__.lower()

    @abstractmethod
    def solved(self, scop: Scop, deps: Dependences) -> tuple[Self, tuple[str, ...]]:
        """With every `?` replaced, and the matrices in words. Raises PatternMismatch."""

    @abstractmethod
    def default_config(self, spec: DeviceSpec) -> TileConfig:
        """The sizes for a device, without tuning."""

    @abstractmethod
    def space(self, spec: DeviceSpec) -> Space:
        """The sizes that are worth trying on a device."""

    @abstractmethod
    def tree(self, config: TileConfig, build: Build) -> Tree:
        """The schedule, once solved, with its local buffers. Raises PatternMismatch when one is not local to its tile."""

    def work(self, config: TileConfig, scop: Scop) -> tuple[Work, ...]:
        """What all blocks together do at any sizes: by default every statement's instances."""
        return (Work(ELEMENTS, instances(scop.statements.values())),)

    def column_operands(self, spec: DeviceSpec) -> Iterable[ColumnOperand]:
        """What a device reads so many columns of at once, whatever the config. A constant among them is laid out so."""
        return ()

    def reading(self, program: Program) -> Self:
        """The same of a Program that differs in the layouts of inputs alone."""
        return self

    def check(self, promoted: Promoted, config: TileConfig, scop: Scop) -> None:
        """Raise InternalError where a final schedule breaks what this pattern promises beyond what holds for all."""
        return

    def loops(self, func: Func) -> Func:
        """The loops that a tree gave, in the form in which they are read back and compared with it."""
        return func

    def joined(self, func: Func, tree: Tree) -> Func:
        """Loops that were read back, as they are given on. Raises InternalError where their threads are not independent."""
        return func


def instances(statements: Iterable[Statement]) -> SymExpr:
    """How many instances statements have, were all of their axes independent."""
    return sum((product(axis.extent for axis in statement.axes) for statement in statements), ZERO)


@dataclass(frozen=True, slots=True)
class Tree:
    """A schedule with its local buffers; the Scop whose domains it has (`rounded` up to whole tiles, perhaps), and the one
    whose instances are executed: of statements with a guard these are the Program's own."""

    promoted: Promoted
    rounded: Scop
    executed: Scop

    @staticmethod
    def of(promoted: Promoted, scop: Scop, rounded: Scop | None = None) -> Tree:
        """The Tree of a schedule of `scop`."""
        if rounded is None:
            return Tree(promoted, scop, scop)
        own = {n: scop.statements[n] if n in promoted.guards else s for n, s in rounded.statements.items()}
        return Tree(promoted, rounded, replace(rounded, statements=own))


@dataclass(frozen=True, slots=True)
class Build:
    """What a tree is made from, and the steps that it is made in, each checked when it is done. `seen` is told each."""

    scop: Scop
    deps: Dependences
    seen: Seen | None = None

    def initial(self, kind: str, band: isl.ScheduleNode, parallel: Sequence[str]) -> isl.ScheduleNode:
        """The band of all rows. Raises PatternMismatch where a dependence crosses one of its first, taken for parallel."""
        for name, free in zip(parallel, coincident(band, self.deps.full) if parallel else ()):
            if not free:
                raise PatternMismatch(f"values are used across different {name}, so that its blocks would not be independent")
        check_tree(band.get_schedule(), self.scop, self.deps, f"initial {kind}", sunk=True, seen=self.seen)
        return band

    def tiled(self, kind: str, band: isl.ScheduleNode) -> isl.ScheduleNode:
        """The tile band."""
        check_tree(band.get_schedule(), self.scop, self.deps, f"tile {kind}", sunk=True, seen=self.seen)
        return band

    def separated(self, kind: str, node: isl.ScheduleNode) -> tuple[isl.Schedule, Order]:
        """The whole tree, and what it makes of all dependences."""
        schedule = node.get_schedule()
        return schedule, check_tree(schedule, self.scop, self.deps, f"separate {kind}", seen=self.seen)

"""The choices within values, as statements: sizes are chosen so that both sides are executed, as Stores are.

A side that no sizes tried execute is not compared, whatever it computes. So each choice that indices and sizes decide, and no
data, stands beside its Store as an If with a mark on each side; so do those of the Program, which the loops may lack, as loops
of their own. Marks stand, too, where one part of a condition alone decides, and on either side of a minimum or maximum. That is
walked through where sizes are chosen, nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import reduce

from tsc.loop_ir.map_blocks import BLOCK
from tsc.loop_ir.nodes import Block, For, Func, If, Stmt, Store, block, expressions, map_children
from tsc.te.compute import Compute, Program
from tsc.te.expr import INDEX, Call, CheckedIndex, Expr, Load, Var, call, children, index, operands, walk
from tsc.validate.algebra import Array
from tsc.validate.frames import Frame

#: Of the choices in one Store, and of those in a Func, so many are looked at: sizes may have to be solved for.
MOST_IN_STORE, MOST = 8, 64
#: The `id` of the Store (0 for the Program) and of the choice, and what came out of its condition.
Side = tuple[int, int, bool]


@dataclass(frozen=True, slots=True)
class Sides:
    """`func` with choices beside their Stores, and those of its Program behind; `marks` are the Stores, by `id`, that stand for
    a side. There are more marks, of parts of conditions, which no comparison tells of."""

    func: Func
    marks: dict[Side, int]

    @staticmethod
    def of(func: Func, program: Program) -> Sides:
        """With marks on both sides of choices that no data decide."""
        made, bound = _Marking(), {BLOCK, *(s.name for s in program.sizes)}
        body = made.beside(func.body)
        apart = [c for c in program.computes if bound.isdisjoint(a.name for a in (*c.axes, *c.reduce_axes))]
        return Sides(replace(func, body=block(body, *(nest for c in apart for nest in made.nest(c)))), made.marks)

    def executed(self, stores: set[int], sides: set[Side]) -> set[int]:
        """`stores`, and the marks of those `sides`, by `id`."""
        return stores | {self.marks[side] for side in sides & self.marks.keys()}


@dataclass(slots=True)
class _Marking:
    marks: dict[Side, int] = field(default_factory=dict)

    def beside(self, stmt: Stmt) -> Stmt:
        """A statement with the choices of each Store beside it."""
        if not isinstance(stmt, Store):
            return map_children(self.beside, stmt)
        most = min(len(self.marks) + 2 * MOST_IN_STORE, 2 * MOST)
        return block(stmt, *(one for e in expressions(stmt) for one in self._choices(e, stmt, id(stmt), most)))

    def nest(self, compute: Compute) -> Iterator[Stmt]:
        """The choices of a Compute within loops over all its axes, if it has any."""
        store = Store(compute.target, tuple(Var(a.name) for a in compute.axes), compute.body)
        if found := list(self._choices(compute.body, store, 0, len(self.marks) + 2 * MOST_IN_STORE)):
            axes = (*compute.axes, *compute.reduce_axes)
            yield reduce(lambda body, a: For(a.name, index(0), index(a.extent), body), reversed(axes), block(*found))

    def _choices(self, expr: Expr, store: Store, name: int, most: int) -> Iterator[Stmt]:
        """The choices in an expression, until there are `most` marks; one that stands there twice counts where it is first."""
        match expr:
            case Call(fn="select", args=(condition, *sides)) if decided_by_index(condition):
                names = [(name, id(expr), holds) for holds in (True, False)]
                if len(self.marks) < most and names[0] not in self.marks:
                    own = [replace(store), replace(store)]
                    self.marks |= {side: id(mark) for side, mark in zip(names, own)}
                    yield from self._choices(condition, store, name, most)
                    yield from _decisive(condition, store)
                    yield If(condition, *(block(mark, *self._choices(side, store, name, most))
                                          for mark, side in zip(own, sides)))
                return
            case Call(fn="min" | "max", args=(a, b), dtype=dtype) if dtype == INDEX and decided_by_index(expr):
                yield If(call("lt", a, b), replace(store))
                yield If(call("lt", b, a), replace(store))
        for child in children(expr):
            yield from self._choices(child, store, name, most)


def _decisive(condition: Expr, store: Store) -> Iterator[Stmt]:
    """A mark for each part of a condition, where what comes out is another than if it were the other parts' alone."""
    if isinstance(condition, Call) and condition.fn in ("and", "or"):
        parts = list(operands(condition, condition.fn))
        for place, part in enumerate(parts):
            others = reduce(lambda a, b: call(condition.fn, a, b), parts[:place] + parts[place + 1:])
            mark = replace(store)
            yield If(others, If(part, Block(()), mark)) if condition.fn == "and" else If(others, Block(()), If(part, mark))


def decided_by_index(condition: Expr) -> bool:
    """Whether no data are in a condition."""
    return not any(isinstance(e, Load | CheckedIndex) for e in walk(condition))


def sides_taken(name: int, choice: Call, holds: Array, frame: Frame) -> Iterator[Side]:
    """The sides of a choice in a Store of that name that some of the instances take; none where data decide."""
    if frame.count and decided_by_index(choice.args[0]):
        yield from ((name, id(choice), side) for side, some in ((True, holds.any()), (False, not holds.all())) if some)

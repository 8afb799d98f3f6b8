"""The choices within the values of Stores, as statements: sizes are chosen so that both sides are executed, as Stores are.

A side that no sizes tried execute is not compared, whatever it computes. So each choice that indices and sizes decide, and no
data, stands beside its Store as an If with a mark on each side. That is walked through where sizes are chosen, nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from tsc.loop_ir.nodes import Func, If, Stmt, Store, block, expressions, map_children
from tsc.te.expr import Call, CheckedIndex, Expr, Load, children, walk

#: Of the choices in one Store, and of those in a Func, so many are looked at: sizes may have to be solved for.
MOST_IN_STORE, MOST = 8, 64
#: The `id` of the Store and of the choice, and what came out of its condition.
Side = tuple[int, int, bool]


@dataclass(frozen=True, slots=True)
class Sides:
    """`func` with choices beside their Stores; `marks` are the Stores, by `id`, that stand for a side."""

    func: Func
    marks: dict[Side, int]

    @staticmethod
    def of(func: Func) -> Sides:
        """With marks on both sides of choices that no data decide."""
        made = _Marking()
        return Sides(replace(func, body=made.beside(func.body)), made.marks)

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
        return block(stmt, *(one for e in expressions(stmt) for one in self._choices(e, stmt, most)))

    def _choices(self, expr: Expr, store: Store, most: int) -> Iterator[Stmt]:
        """The choices in an expression, until there are `most` marks; one that stands there twice counts where it is first."""
        match expr:
            case Call(fn="select", args=(condition, *sides)) if decided_by_index(condition):
                names = [(id(store), id(expr), holds) for holds in (True, False)]
                if len(self.marks) < most and names[0] not in self.marks:
                    own = [replace(store), replace(store)]
                    self.marks |= {name: id(mark) for name, mark in zip(names, own)}
                    yield from self._choices(condition, store, most)
                    yield If(condition, *(block(mark, *self._choices(side, store, most)) for mark, side in zip(own, sides)))
            case _:
                for child in children(expr):
                    yield from self._choices(child, store, most)


def decided_by_index(condition: Expr) -> bool:
    """Whether no data are in a condition."""
    return not any(isinstance(e, Load | CheckedIndex) for e in walk(condition))

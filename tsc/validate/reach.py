"""Which Stores of a Func are executed, and which loops more than once, at which sizes, found without walking through loops: of
each, only the first and last iterations are looked at, which is where guards change, or one alone where nothing inside depends
on which it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from tsc.loop_ir.map_blocks import BLOCK_BEGIN, BLOCK_END
from tsc.loop_ir.nodes import Allocate, Block, For, Func, If, Intrin, Let, Stmt, Store, until_bound
from tsc.te.expr import Call, Const, Expr, Load, Size, variables
from tsc.validate.algebra import Algebra, Array, Value, mixed
from tsc.validate.frames import CASE, Fault, Frame, Ints, Reader, Sizes, Undecided, spread

#: Iterations of all Cases that are looked at in one loop nest, about.
_MOST = 8_000


def reached(func: Func, sizes: Sizes, deciding: dict[int, frozenset[str]] | None = None) -> dict[int, Array]:
    """For each Store, by its `id`, the Cases that execute it, and for each loop those in which it runs more than once (some
    more where data decide; perhaps some less). `deciding` serves all calls for one Func."""
    walk = _Walk(sizes, Reader(_NoData(), sizes, Algebra()), {} if deciding is None else deciding)
    root = Frame(sizes.count, known={CASE: np.arange(sizes.count), BLOCK_BEGIN: 0, BLOCK_END: sizes.of(func.blocks)})
    with np.errstate(all="ignore"):
        walk.visit(func.body, root)
    return walk.found


class _NoData:
    """Memory whose contents are not known."""

    def chose(self, choice: Call, holds: Array, frame: Frame) -> None:
        """Nothing to do."""

    def load(self, load: Load, frame: Frame) -> Value:
        raise Undecided(f"it depends on {load.buffer.name}")


@dataclass(slots=True)
class _Walk:
    sizes: Sizes
    reader: Reader
    deciding: dict[int, frozenset[str]]
    found: dict[int, Array] = field(default_factory=dict)

    def visit(self, stmt: Stmt, frame: Frame) -> None:
        """Note the Stores in `stmt`. What cannot be known counts as both true and false."""
        match stmt:
            case Store():
                cases = self.found.setdefault(id(stmt), np.zeros(self.sizes.count, bool))
                cases[frame.get(CASE)] = True
            case For(var=var, body=body):
                inner = self._iterations(stmt, frame) if var in self._decides(body) else self._once(stmt, frame)
                if inner.count:
                    self.visit(body, inner)
            case If(condition=condition, then=then, otherwise=otherwise):
                for side, inner in zip((then, otherwise), self._sides(condition, frame)):
                    if side is not None and inner.count:
                        self.visit(side, inner)
            case Let(var=var, value=value, body=body):
                known = self._ints(value, frame) if var in self._decides(body) else None
                self.visit(body, frame if known is None else frame.bound(**{var: known}))
            case Block(body=parts):
                for part in parts:
                    self.visit(part, frame)
            case Allocate(body=body) | Intrin(meaning=body):
                self.visit(body, frame)

    def _decides(self, stmt: Stmt) -> frozenset[str]:
        """The variables that bounds and guards in `stmt` depend on: what is executed."""
        known = self.deciding.get(id(stmt))
        if known is None:
            names = set[str]()
            for part in until_bound(stmt):
                exprs: tuple[Expr, ...] = ()
                match part:
                    case For(lo=lo, hi=hi, body=body):
                        names |= self._decides(body)
                        exprs = (lo, hi)
                    case If(condition=one):
                        exprs = (one,)
                    case Let(var=var, value=one, body=body):
                        names |= self._decides(body)
                        exprs = (one,) if var in self._decides(body) else ()
                names.update(*(variables(e) for e in exprs if not isinstance(e, (Const, Size))))
            known = self.deciding[id(stmt)] = frozenset(names)
        return known

    def _ints(self, expr: Expr, frame: Frame) -> Ints | None:
        try:
            return self.reader.ints(expr, frame)
        except (Undecided, Fault, KeyError):
            return None

    def _sides(self, condition: Expr, frame: Frame) -> Iterator[Frame]:
        try:
            test = spread(self.reader.condition(condition, frame), frame.count)
        except (Undecided, Fault, KeyError):
            yield from (frame, frame)
            return
        for kept in (test, ~test):
            yield frame if kept.all() else frame.where(kept)

    def _once(self, loop: For, frame: Frame) -> Frame:
        """What executes a loop's body, whatever the iteration."""
        low, high = self._ints(loop.lo, frame), self._ints(loop.hi, frame)
        if low is None or high is None:
            return frame
        self._note_runs(loop, np.asarray(low + loop.step < high), frame)
        some = np.asarray(low < high)
        return frame if np.all(some) else frame.where(spread(some, frame.count))

    def _note_runs(self, loop: For, again: Array, frame: Frame) -> None:
        """Note where a loop runs more than once."""
        cases = self.found.setdefault(id(loop), np.zeros(self.sizes.count, bool))
        cases[spread(frame.get(CASE), frame.count)[spread(again, frame.count)]] = True

    def _iterations(self, loop: For, frame: Frame) -> Frame:
        """The first and last iterations of a loop; where there are too many of them, one or the other."""
        low, high = self._ints(loop.lo, frame), self._ints(loop.hi, frame)
        if low is None or high is None:
            return frame.bound()
        trips = spread(np.maximum(-((np.asarray(low) - high) // loop.step), 0), frame.count)
        last = trips - 1
        self._note_runs(loop, last >= 1, frame)
        if frame.count * 4 <= _MOST:
            wanted = [last >= 0, last >= 1, last >= 2, last >= 3]
            numbers = [np.zeros_like(last), last, np.ones_like(last), last - 1]
        elif frame.count * 2 <= _MOST:
            wanted, numbers = [last >= 0, last >= 1], [np.zeros_like(last), last]
        else:
            wanted, numbers = [last >= 0], [np.where(mixed(np.arange(frame.count, dtype=np.uint64)) & np.uint64(1), last, 0)]
        places = np.concatenate([np.flatnonzero(kept) for kept in wanted])
        number = np.concatenate([n[kept] for n, kept in zip(numbers, wanted)])
        begin = low[places] if isinstance(low, np.ndarray) else low
        return Frame(len(places), frame, places, {loop.var: begin + number * loop.step})

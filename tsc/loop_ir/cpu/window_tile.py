"""window_tile: a register tile that reduces by any monoid over any expression that has vectors.

Where a tile is no matrix product (`tensorize`), its accumulators live in vector registers all the same: operands are read for
whole vectors, lanes past the end of the row masked, and a short constant window is unrolled, which shares what its elements do
alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tsc.loop_ir.cpu.vector_rules import Refused, check_load, check_value, looks_at_data, varies
from tsc.loop_ir.facts import inside
from tsc.loop_ir.nodes import Allocate, Block, For, Instance, Stmt, Store, block
from tsc.sym import SymExpr
from tsc.sym.expr import coefficient_of
from tsc.sym.facts import Facts
from tsc.target import DeviceSpec
from tsc.te.expr import Buffer, Call, Const, Expr, Load, Var, add, call, index, item_bytes, loads, select, substitute
from tsc.te.index import to_sym

#: The most vector operations that are written out one after the other, and the most accumulators for which they are: with
#: more, compilers keep operands of several steps in registers and spill the accumulators.
UNROLLED, FEW = 96, 8
#: The most elements that are read one by one in what is written out: compilers take long over them (gcc 14 s over 8000), and
#: no machine gains by it.
ELEMENTS = 128


@dataclass(frozen=True, slots=True)
class WindowTile:
    """`acc[row, column] = fn(acc[row, column], value)` over `loops`, `width` columns of it; `masked`: only these exist.
    `started` and `instance` are what the initialisation and the update execute; the device `has_masks` for its vectors or not.
    """

    acc: Buffer
    loops: tuple[For, ...]
    row: str
    column: str
    width: Expr
    init: Expr
    started: Instance | None
    fn: str
    value: Expr
    instance: Instance | None
    masked: bool = True
    has_masks: bool = False

    def unmasked(self, columns: int, facts: Facts) -> WindowTile:
        """The tile that computes all `columns`, if everything that they read is there; nobody stores what is too many."""
        inner = inside(facts, self._along(columns))
        moving = [(load, i, extent) for load in loads(self.value) for i, extent in zip(load.index, load.buffer.shape)
                  if varies(i, self.column)]
        there = all(load.buffer.panel is None and not any(map(looks_at_data, load.index)) and inner.lt(to_sym(i, {}), extent)
                    for load, i, extent in moving)
        return replace(self, masked=False) if there else self

    def _along(self, columns: int) -> For:
        return For(self.column, index(0), index(columns), Block(()))

    def refusal(self, columns: int, lanes: int, facts: Facts, spec: DeviceSpec) -> str | None:
        """Why the tile cannot be kept in vector registers of so many lanes, or None; `facts` hold inside `loops`."""
        if self.masked and not self.has_masks:
            return "the vectors of the device have no masks"
        if (self.fn, self.acc.dtype) not in spec.vector_calls:
            return f"{self.fn} on {self.acc.dtype} has no vector form"
        try:
            operand, loop = self._operand(Var(self.column)), self._along(columns)
            check_value(operand, loop, lanes, inside(facts, loop), spec, self.has_masks)
        except Refused as refused:
            return str(refused)
        return None

    def micro_kernel(self, rows: int, columns: int, lanes: int, spilled: Buffer) -> Stmt:
        """The tile for `rows` rows and the first `columns` columns; its result is left in `spilled`."""
        name = self.acc.name
        acc = replace(self.acc, name=f"{name}_{rows}x{columns}", shape=(SymExpr.of(rows), SymExpr.of(columns)))
        row, column, lane = (f"{name}_{part}" for part in ("row", "column", "lane"))
        place = (Var(row), add(Var(column), Var(lane)))

        def whole(body: Stmt) -> Stmt:
            inner = For(lane, index(0), index(lanes), body, kind="vector")
            return For(row, index(0), index(rows), For(column, index(0), index(columns), inner, lanes, "unroll"), kind="unroll")

        moved = {self.row: place[0], self.column: place[1]}
        operand = substitute(self._operand(place[1]), moved)
        value = Call(self.fn, (Load(acc, place), operand), acc.dtype)
        update: Stmt = whole(Store(acc, place, value, self.instance and self.instance.at(moved)))
        update = reduce_loops(self.loops, update, rows * columns // lanes, self._elements(lanes))
        start = whole(Store(acc, place, self.init, self.started and self.started.at(moved)))
        finish = whole(Store(spilled, place, Load(acc, place)))
        return Allocate(acc, "register", block(start, update, finish))

    def _elements(self, lanes: int) -> int:
        """How many elements a vector of the operand reads one by one."""
        return sum(lanes for load in loads(self.value) if check_load(load, self.column) in ("spaced", "twice", "strided")
                   and not self._is_every_second(load))

    def _is_every_second(self, load: Load) -> bool:
        """Whether masked vectors of every second element are read, as wide ones of four bytes each can be."""
        if item_bytes(load.buffer.dtype) != 4 or not self.has_masks:
            return False
        return coefficient_of(to_sym(load.index[-1], {}), self.column) == SymExpr.of(2)

    def _operand(self, column: Expr) -> Expr:
        """The operand in the columns that are stored, the initial value in the others where those cannot be computed."""
        return self.value if not self.masked else select(call("lt", column, self.width), self.value, self.init)


def reduce_loops(loops: tuple[For, ...], body: Stmt, accumulators: int, elements: int = 0) -> Stmt:
    """`body`, one operation for each of so many vectors, in the reduce loops; short constant ones are unrolled. Each operation
    reads so many `elements` one by one."""
    operations = accumulators
    for loop in reversed(loops):
        trips = _trips(loop)
        operations *= trips or UNROLLED
        unrolled = trips and operations <= UNROLLED and accumulators <= FEW and operations * elements <= ELEMENTS
        body = replace(loop, body=body, kind="unroll" if unrolled else "serial")
    return body


def _trips(loop: For) -> int | None:
    """How often a loop with literal bounds runs."""
    if isinstance(loop.lo, Const) and isinstance(loop.hi, Const) and loop.step == 1:
        return max(1, int(loop.hi.value) - int(loop.lo.value))
    return None

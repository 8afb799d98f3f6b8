"""tensorize_gpu: a warp's tile becomes matrix instructions, 16 x 8 x k each, those of one step of k together as one intrinsic.

In the loops of one lane the instruction is not to be seen: each lane sums up the four numbers of C that it holds. What makes a
warp's lanes one instruction is where their operands lie. With g = lane // 4 and t = lane % 4 (PTX ISA 9.7.14.5), a lane's rows
are g and g + 8 and its columns 2t and 2t + 1: what it multiplies depends on the lane through g on the left and through t on the
right only. That is looked at for every lane, warp and iteration; nothing is concluded from how the indices are written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tsc.loop_ir.gpu.mma import COLUMNS, HALF, LANES, PAIR, ROWS, Mma
from tsc.loop_ir.gpu.warp_group import read_group_product
from tsc.loop_ir.marks import TILE_COLUMN, TILE_ROW, K
from tsc.loop_ir.nodes import Allocate, For, Func, Intrin, Let, Stmt, Store, map_children, nest
from tsc.loop_ir.simplify import substitute_stmt
from tsc.te.expr import Call, Const, Expr, Load, Var, add, call, index, mul, substitute
from tsc.te.index import evaluated


def tensorize_gpu(func: Func, instructions: tuple[Mma, ...]) -> tuple[Func, tuple[str, ...]]:
    """`func` with the contraction tiles of its warps on the first of `instructions` that fits each, and for each tile left as
    it was the reason. `MMA_TF32` rounds its operands: whoever passes it allows that."""
    reasons: list[str] = []

    def visit(stmt: Stmt, around: _Around) -> Stmt:
        if isinstance(stmt, For) and stmt.mark == K and around.lane:
            made = _tensorized(stmt, around, instructions)
            if not isinstance(made, str):
                return made
            reasons.append(f"{stmt.var}: {made}")
            return stmt
        inner = around.inside(stmt)
        return map_children(lambda s: visit(s, inner), stmt)

    return replace(func, body=visit(func.body, _Around())), tuple(reasons)


# -- what is around a tile -------------------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class _Around:
    """The lane's variable where 32 lanes make a warp, the values of the warps' variables, the values of Lets, and which buffers
    are shared or in registers."""

    lane: str = ""
    warps: Mapping[str, range] = field(default_factory=dict)
    lets: dict[str, Expr] = field(default_factory=dict)
    scopes: Mapping[str, str] = field(default_factory=dict)

    def inside(self, stmt: Stmt) -> _Around:
        match stmt:
            case For(kind="warp", lo=Const(value=lo), hi=Const(value=hi), step=step):
                return replace(self, warps={**self.warps, stmt.var: range(int(lo), int(hi), step)})
            case For(kind="thread") if not self.lane:
                loops, _ = nest(stmt)
                whole = len(loops) == 1 and (stmt.lo, stmt.hi, stmt.step) == (index(0), index(LANES), 1)
                return replace(self, lane=stmt.var if whole else "")
            case Let(var=var, value=value):
                return replace(self, lets={**self.lets, var: substitute(value, self.lets)})
            case For(var=var) if var in self.lets:
                return replace(self, lets={n: v for n, v in self.lets.items() if n != var})
            case Allocate(buffer=buffer, scope=scope):
                return replace(self, scopes={**self.scopes, buffer.name: scope})
        return self


# -- matching --------------------------------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class _Lane:
    """The loops of one lane over its part of a tile: k, rows by 8, columns by 8, pairs; and what it does in the innermost."""

    loops: tuple[For, For, For, For]
    store: Store
    left: Expr
    right: Expr


def _tensorized(loop: For, around: _Around, instructions: tuple[Mma, ...]) -> Stmt | str:
    reason = "there is no matrix instruction"
    for mma in instructions:
        lane = _match(loop, around, mma)
        if isinstance(lane, str):
            reason = lane
            continue
        registers = _registers(lane, around)
        if isinstance(registers, str):
            return registers
        if not _fits(lane, around, lane.left, lane.right):
            return "its lanes' operands are not those of a matrix instruction"
        if mma.warps == 1:
            return _built(lane, mma, registers)
        meaning = _steps(lane, mma, registers)
        product = read_group_product(meaning, around.lane, around.warps)
        if not isinstance(product, str):
            return Intrin(mma.name, meaning, "block")
        reason = product
    return reason


def _match(loop: For, around: _Around, mma: Mma) -> _Lane | str:
    loops: list[For] = []
    body: Stmt = loop
    while isinstance(body, For):
        if not (isinstance(body.lo, Const) and isinstance(body.hi, Const)):
            return f"the bounds of {body.var} are not constant"
        loops.append(body)
        body = body.body
    if not isinstance(body, Store) or [x.mark for x in loops] != [K, TILE_ROW, TILE_COLUMN, TILE_COLUMN]:
        return "it is not one statement in loops over k, rows, columns and pairs"
    k, rows, columns, pairs = loops
    steps, high, wide, two = (len(_values(x)) for x in loops)
    if k.step != 1 or steps % mma.depth:
        return f"{steps} steps along k are no multiple of {mma.depth}"
    if rows.step != HALF or high % 2 or (wide > 1 and columns.step != COLUMNS) or (two, pairs.step) != (PAIR, 1):
        return "a lane's elements are not pairs of columns in two rows, 8 apart"
    match body.value:
        case Call(fn="add", args=(Load(buffer=acc, index=place), Call(fn="mul", args=(a, b)))) \
                if acc == body.buffer and place == body.index and acc.dtype == "float32":
            left, right = mma.operand(a), mma.operand(b)
        case _:
            return "it is not acc = add(acc, mul(.., ..)) in float32"
    if left is None or right is None:
        return f"its factors are not {mma.dtype}"
    if around.scopes.get(body.buffer.name) != "register":
        return f"{body.buffer.name} is not in registers"
    for operand in (left, right):
        if not isinstance(operand, Load) or around.scopes.get(operand.buffer.name) != "shared":
            return "its operands are not in shared memory"
    bound = _expanded(body, around)
    left, right = (substitute(x, around.lets) for x in (left, right))
    lane = _Lane((k, rows, columns, pairs), bound, left, right)
    if _fits(lane, around, left, right):
        return lane
    return replace(lane, left=right, right=left)


def _expanded(store: Store, around: _Around) -> Store:
    made = substitute_stmt(store, around.lets)
    assert isinstance(made, Store)
    return made


def _values(loop: For) -> range:
    assert isinstance(loop.lo, Const) and isinstance(loop.hi, Const)
    return range(int(loop.lo.value), int(loop.hi.value), loop.step)


# -- where operands and accumulators lie -----------------------------------------------------------------------

def _grid(lane: _Lane, around: _Around) -> dict[str, NDArray[np.int64]]:
    """Every valuation: axes lane // 4, lane % 4, k, rows, columns, pairs, then the warps."""
    number = np.arange(LANES, dtype=np.int64).reshape(LANES // 4, 4)
    ranges = {x.var: _values(x) for x in lane.loops} | dict(around.warps)
    total = 2 + len(ranges)
    grid = {around.lane: number.reshape(LANES // 4, 4, *(1,) * len(ranges))}
    for axis, (name, values) in enumerate(ranges.items(), 2):
        grid[name] = np.array(values, np.int64).reshape(*(1,) * axis, len(values), *(1,) * (total - axis - 1))
    return grid


def _varies(expr: Expr, grid: Mapping[str, NDArray[np.int64]], axes: tuple[int, ...]) -> bool:
    """Whether an index changes along the axes; what cannot be evaluated is said to."""
    value = evaluated(expr, grid)
    if value is None:
        return any(isinstance(n, Var) and n.name in grid for n in _parts(expr))
    first = tuple(slice(0, 1) if axis in axes else slice(None) for axis in range(value.ndim))
    return bool(value.ndim) and not np.array_equal(np.broadcast_to(value[first], value.shape), value)


def _parts(expr: Expr) -> list[Expr]:
    return [expr, *(p for a in (expr.args if isinstance(expr, Call) else ()) for p in _parts(a))]


def _fits(lane: _Lane, around: _Around, left: Expr, right: Expr) -> bool:
    """Whether `left` is the same for all lanes of a row, at all columns, and `right` for all lanes of a column, at all rows."""
    grid = _grid(lane, around)
    return isinstance(left, Load) and isinstance(right, Load) and not any(_varies(i, grid, (1, 4, 5)) for i in left.index) \
        and not any(_varies(i, grid, (0, 3)) for i in right.index)


def _registers(lane: _Lane, around: _Around) -> Expr | str:
    """The register of an element as an affine function of rows, halves, columns and pairs: the same in all lanes."""
    if len(lane.store.index) != 1:
        return f"{lane.store.buffer} is no list of registers"
    grid = _grid(lane, around)
    value = evaluated(lane.store.index[0], grid)
    if value is None:
        return "a lane's registers are not constant"
    axes = len(around.warps)
    full = np.broadcast_to(value, [max(g.shape[d] for g in grid.values()) for d in range(6 + axes)])
    one: tuple[int | slice, ...] = (0, 0, 0, slice(None), slice(None), slice(None), *(0,) * axes)
    table = full[one]
    if not (full == table.reshape(1, 1, 1, *table.shape, *(1,) * axes)).all():
        return "lanes hold their elements in different registers"
    table = table.reshape(table.shape[0] // 2, 2, *table.shape[1:])
    factors = [int(np.take(table, 1, axis).flat[0] - table.flat[0]) if table.shape[axis] > 1 else 0 for axis in range(4)]
    affine = table.flat[0] + sum(f * i for f, i in zip(factors, np.indices(table.shape)))
    if not (affine == table).all():
        return "the registers of a tile are not affine"
    _, rows, columns, pairs = lane.loops
    steps: list[Expr] = [call("floordiv", call("sub", Var(rows.var), rows.lo), index(ROWS)), Var(_half(rows)),
                         call("floordiv", call("sub", Var(columns.var), columns.lo), index(COLUMNS)), Var(pairs.var)]
    place: Expr = index(int(table.flat[0]))
    for factor, step in zip(factors, steps):
        if factor:
            place = add(place, mul(index(factor), step))
    return place


# -- building --------------------------------------------------------------------------------------------------

def _half(rows: For) -> str:
    return f"{rows.var}_half"


def _built(lane: _Lane, mma: Mma, registers: Expr) -> Stmt:
    """Steps of the instruction's depth along k, each an Intrin of the whole warp over its tiles of 16 x 8."""
    steps = _steps(lane, mma, registers)
    return replace(steps, body=Intrin(mma.name, steps.body, "warp"))


def _steps(lane: _Lane, mma: Mma, registers: Expr) -> For:
    """Those steps, and what a lane does in each."""
    k, rows, columns, pairs = lane.loops
    step, half = f"{k.var}_step", _half(rows)
    mapping: dict[str, Expr] = {k.var: add(Var(k.var), Var(step)), rows.var: add(Var(rows.var), mul(index(HALF), Var(half)))}
    moved = substitute_stmt(lane.store, mapping)
    assert isinstance(moved, Store)
    left, right = (mma.factor(substitute(x, mapping)) for x in (lane.left, lane.right))
    place = (registers,)
    value = call("add", Load(moved.buffer, place), call("mul", left, right))
    pair: Stmt = For(pairs.var, pairs.lo, pairs.hi, replace(moved, index=place, value=value))
    one = For(step, index(0), index(mma.depth), For(half, index(0), index(2), pair), mark=mma.name)
    return replace(k, step=mma.depth, body=replace(rows, step=ROWS, body=replace(columns, body=one)))

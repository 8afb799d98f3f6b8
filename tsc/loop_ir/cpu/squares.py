"""turn_copies: a copy that makes rows of columns takes squares of elements, which are transposed in vector registers.

Such a copy reads neighbours along one loop and writes neighbours along another: element by element each is a load and a store
of its own. The operand's panel of a product with a transposed matrix is one, as every attention has it, and so is a Transpose
of the last axis.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations

from tsc.loop_ir.cpu.vector_rules import Refused, check_load, lane_range, varies
from tsc.loop_ir.facts import trips
from tsc.loop_ir.marks import COPY, SQUARE_DTYPES, SQUARES
from tsc.loop_ir.nodes import For, Func, Intrin, Stmt, Store, map_children, nest
from tsc.sym import SymExpr
from tsc.sym.expr import sym_min
from tsc.target import DeviceSpec
from tsc.te.expr import Call, Const, Expr, Load, Var, add, call, index, variables


@dataclass(frozen=True, slots=True)
class Square:
    """`store` moves an element for each iteration of two loops: neighbours are read along `across` and written along `along`,
    there zeros from iteration `end` on where there is one."""

    along: For
    across: For
    store: Store
    load: Load
    end: SymExpr | None


def turn_copies(func: Func, spec: DeviceSpec) -> Func:
    """`func` with squares in place of elements where a device has an intrinsic for them."""
    lanes = next((lanes for lanes, name in SQUARES.items() if name in spec.intrinsics), 0)

    def visit(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Intrin):
            return stmt
        made = _in_squares(stmt, lanes) if isinstance(stmt, For) else None
        return map_children(visit, stmt) if made is None else made

    return replace(func, body=visit(func.body)) if lanes else func


def read_square(meaning: Stmt) -> Square | None:
    """The square that a statement means; None where it means none."""
    match meaning:
        case For(body=For(body=Store(value=value) as store) as inner) as outer if (
                outer.step == inner.step == 1 and outer.var not in variables(inner.lo) | variables(inner.hi)):
            for along, across in ((outer, inner), (inner, outer)):
                read = _read_until(value, along, across)
                if read is not None and _moves(store, read[0], along.var, across.var):
                    return Square(along, across, store, *read)
    return None


def _read_until(value: Expr, along: For, across: For) -> tuple[Load, SymExpr | None] | None:
    """What is loaded, and the iteration from which on it is zero instead; None where a value is not that."""
    match value:
        case Load():
            return value, None
        case Call(fn="select", args=(condition, Load() as load, Const(value=0))):
            kept = lane_range(condition, along.var)
            if kept is not None and not kept.lows and not kept.others and not varies(condition, across.var):
                return load, sym_min(*kept.highs)
    return None


def _in_squares(loop: For, lanes: int) -> Stmt | None:
    """A nest over squares of so many rows and columns, within what other loops it has; None where it is no such copy, or too
    small."""
    loops, store = nest(loop)
    if loop.kind != "serial" or not isinstance(store, Store) or store.buffer.dtype not in SQUARE_DTYPES:
        return None
    names = {x.var for x in loops}
    if any(x.step != 1 or not names.isdisjoint(variables(x.lo) | variables(x.hi)) for x in loops):
        return None
    for outer, inner in combinations(loops, 2):
        if read_square(replace(outer, body=replace(inner, body=store))) is not None:
            if any(2 * count < lanes for count in (trips(outer).as_int(), trips(inner).as_int()) if count is not None):
                return None
            square = Intrin(SQUARES[lanes], _part(outer, lanes, _part(inner, lanes, store)))
            made: Stmt = _tiled(outer, lanes, _tiled(inner, lanes, square))
            for other in reversed([x for x in loops if x not in (outer, inner)]):
                made = replace(other, body=made)
            return made
    return None


def _tiled(loop: For, lanes: int, body: Stmt) -> For:
    return replace(loop, var=_tile(loop), body=body, step=lanes)


def _part(loop: For, lanes: int, body: Stmt) -> For:
    """The iterations of a loop that one square takes."""
    begin, count = Var(_tile(loop)), trips(loop).as_int()
    end = add(begin, index(lanes))
    whole = count is not None and count % lanes == 0
    return replace(loop, lo=begin, hi=end if whole else call("min", end, loop.hi), body=body, mark=COPY)


def _tile(loop: For) -> str:
    return f"{loop.var}_t"


def _moves(store: Store, load: Load, along: str, across: str) -> bool:
    """Whether neighbours are written along one loop and read along the other; each place is affine in both then."""
    if store.buffer.name == load.buffer.name or any(b.panel or b.beside for b in (store.buffer, load.buffer)):
        return False
    target = Load(store.buffer, store.index)
    try:
        if check_load(target, along) != "contiguous" or check_load(load, across) != "contiguous":
            return False
        return {check_load(target, across), check_load(load, along)} <= {"spaced", "strided"}
    except Refused:
        return False

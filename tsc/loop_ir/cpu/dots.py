"""pair_tile and quad_tile: two or four k steps at a time of a register tile that sums up products of small whole numbers.

Where both factors fit into 16 bits, those of two steps fit into the 32 bits of an accumulator, and CPUs have an instruction for
the sum of both products (`vpmaddwd`, Intel SDM volume 2); bytes come in fours, with a sign on one side and without on the other
(`vpdpbusd`, AVX-512 VNNI). Both wrap around as int32 does, so that no bit differs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tsc.loop_ir.marks import PAIR_TILE, QUAD_TILE
from tsc.loop_ir.nodes import For, Intrin, Stmt, block
from tsc.loop_ir.simplify import substitute_stmt
from tsc.sym.facts import Facts
from tsc.te.expr import Const, Expr, Var, add, call, index
from tsc.te.index import to_sym
from tsc.te.passes.narrow import are_apart, fits_int16

#: The intrinsics by how many steps they take.
DOTS: Mapping[int, str] = {2: PAIR_TILE, 4: QUAD_TILE}


def steps_at_once(left: Expr, right: Expr, dtype: str, intrinsics: Collection[str]) -> frozenset[int]:
    """How many steps of a sum of products in `dtype` a device may take at once: nothing says more than one."""
    fitting = {2: fits_int16(left) and fits_int16(right), 4: are_apart(left, right)}
    return frozenset(count for count, name in DOTS.items() if dtype == "int32" and name in intrinsics and fitting[count])


def taken_together(loop: For, step: Intrin, count: int, facts: Facts) -> Stmt:
    """The steps of a k loop, each the intrinsic `fma_tile`, so many at a time, and then what is left over; `facts` hold where
    the loop stands."""
    each = f"{loop.var}_step"
    every = substitute_stmt(step.meaning, {loop.var: add(Var(loop.var), Var(each))})
    whole = Intrin(DOTS[count], For(each, index(0), index(count), every, kind="unroll"))
    rest = call("mod", call("sub", loop.hi, loop.lo), index(count))
    if facts.divisor(to_sym(loop.hi, {}) - to_sym(loop.lo, {})) % count == 0:
        return For(loop.var, loop.lo, loop.hi, whole, count, mark=loop.mark)
    end = call("sub", loop.hi, rest)
    return block(For(loop.var, loop.lo, end, whole, count, mark=loop.mark), For(loop.var, end, loop.hi, step, mark=loop.mark))


def read_dot_tile(meaning: Stmt) -> tuple[str, int, Stmt] | None:
    """Of a statement of such a form the variable that tells the steps apart, how many there are, and what one means."""
    match meaning:
        case For(var=each, hi=Const(value=int(count)), kind="unroll", body=body) if count in DOTS:
            return each, count, body
    return None

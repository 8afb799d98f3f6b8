"""pair_tile, quad_tile and bfloat_tile: several k steps at a time of a register tile that sums up products of few bits.

Where both factors fit into 16 bits, those of two steps fit into the 32 bits of an accumulator, and CPUs have an instruction for
the sum of both products (`vpmaddwd`, Intel SDM volume 2); bytes come in fours, with a sign on one side and without on the other
(`vpdpbusd`, AVX-512 VNNI). Both wrap around as int32 does, so that no bit differs. Two steps of bfloat16 are summed up in
float32 (`vdpbf16ps`, AVX-512 BF16), the second one first, and are rounded in between as two steps are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tsc.loop_ir.facts import trips
from tsc.loop_ir.marks import BFLOAT_TILE, PAIR_TILE, QUAD_TILE
from tsc.loop_ir.nodes import For, Intrin, Stmt, block
from tsc.loop_ir.simplify import substitute_stmt
from tsc.sym.facts import Facts
from tsc.te.expr import Const, Expr, Var, add, call, index
from tsc.te.intrinsics import WORDS
from tsc.te.passes.narrow import are_apart, are_bfloats, fits_int16

#: How many steps each of them takes.
DOTS: Mapping[str, int] = {PAIR_TILE: 2, QUAD_TILE: 4, BFLOAT_TILE: 2}
#: Those that sum up whole numbers.
WHOLE = (PAIR_TILE, QUAD_TILE)
#: By what multiplies words those that take all parts of a word, which are steps of the sum that lie side by side.
OF_WORDS: Mapping[str, str] = {WORDS[DOTS[name]][1]: name for name in WHOLE}


def dots_of(left: Expr, right: Expr, dtype: str, intrinsics: Collection[str]) -> frozenset[str]:
    """Those of a device's intrinsics that take several steps of a sum of products in `dtype`: pair_tile whatever columns look
    like in memory, the others where steps lie side by side."""
    fitting = {PAIR_TILE: dtype == "int32" and fits_int16(left) and fits_int16(right),
               QUAD_TILE: dtype == "int32" and are_apart(left, right),
               BFLOAT_TILE: dtype == "float32" and are_bfloats(left, right)}
    return frozenset(name for name in DOTS if name in intrinsics and fitting[name])


def taken_together(loop: For, step: Intrin, dot: str, facts: Facts) -> Stmt:
    """The steps of a k loop, each the intrinsic `fma_tile`, as many at a time as `dot` takes, and then what is left over;
    `facts` hold where the loop stands."""
    each, count = f"{loop.var}_step", DOTS[dot]
    every = substitute_stmt(step.meaning, {loop.var: add(Var(loop.var), Var(each))})
    whole = Intrin(dot, For(each, index(0), index(count), every, kind="unroll"))
    rest = call("mod", call("sub", loop.hi, loop.lo), index(count))
    if facts.divisor(trips(loop)) % count == 0:
        return For(loop.var, loop.lo, loop.hi, whole, count, mark=loop.mark)
    end = call("sub", loop.hi, rest)
    return block(For(loop.var, loop.lo, end, whole, count, mark=loop.mark), For(loop.var, end, loop.hi, step, mark=loop.mark))


def read_dot_tile(meaning: Stmt) -> tuple[str, int, Stmt] | None:
    """Of a statement of such a form the variable that tells the steps apart, how many there are, and what one means."""
    match meaning:
        case For(var=each, hi=Const(value=int(count)), kind="unroll", body=body) if count in DOTS.values():
            return each, count, body
    return None

"""pair_tile: two k steps at a time of a register tile that sums up products of small whole numbers.

Where both factors fit into 16 bits, those of two steps fit into the 32 bits of an accumulator, and CPUs have an instruction for
the sum of both products (`vpmaddwd`, Intel SDM volume 2; it wraps around as int32 does, so that no bit differs).
"""

from __future__ import annotations

from tsc.loop_ir.marks import PAIR_TILE
from tsc.loop_ir.nodes import For, Intrin, Stmt, block
from tsc.loop_ir.simplify import substitute_stmt
from tsc.sym.facts import Facts
from tsc.te.expr import Const, Var, add, call, index
from tsc.te.index import to_sym


def in_pairs(loop: For, step: Intrin, facts: Facts) -> Stmt:
    """The steps of a k loop, each the intrinsic `fma_tile`, two at a time; `facts` hold where the loop stands."""
    pair = f"{loop.var}_pair"
    both = substitute_stmt(step.meaning, {loop.var: add(Var(loop.var), Var(pair))})
    two = Intrin(PAIR_TILE, For(pair, index(0), index(2), both, kind="unroll"))
    odd = call("mod", call("sub", loop.hi, loop.lo), index(2))
    if facts.divisor(to_sym(loop.hi, {}) - to_sym(loop.lo, {})) % 2 == 0:
        return For(loop.var, loop.lo, loop.hi, two, 2, mark=loop.mark)
    end = call("sub", loop.hi, odd)
    return block(For(loop.var, loop.lo, end, two, 2, mark=loop.mark), For(loop.var, end, loop.hi, step, mark=loop.mark))


def read_pair_tile(meaning: Stmt) -> tuple[str, Stmt] | None:
    """Of a statement of `pair_tile`'s form the variable that tells the steps apart, and what a step means."""
    match meaning:
        case For(var=pair, hi=Const(value=2), kind="unroll", body=body):
            return pair, body
    return None

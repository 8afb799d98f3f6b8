"""map_blocks: the outer nest of `block` loops becomes one loop over block numbers, decoded by division."""

from __future__ import annotations

from dataclasses import replace

from tsc.errors import InternalError
from tsc.loop_ir.nodes import For, Func, Let, Stmt, walk
from tsc.sym import SymExpr, ceildiv, product
from tsc.te.expr import Expr, Var, add, call, index, mul
from tsc.te.index import to_sym

BLOCK_BEGIN, BLOCK_END, BLOCK = "block_begin", "block_end", "block"


def map_blocks(func: Func) -> Func:
    """`func` with `blocks` set and one outer block loop; blocks are numbered row-major, the outermost loop slowest.
    Raises InternalError where a block loop's bounds depend on more than sizes."""
    loops: list[For] = []
    body: Stmt = func.body
    while isinstance(body, For) and body.kind == "block":
        loops.append(body)
        body = body.body
    if any(isinstance(s, For) and s.kind == "block" for s in walk(body)):
        raise InternalError(f"kernel {func.name}: its block loops are not one perfect outermost nest")
    counts = [_trips(func, loop) for loop in loops]
    number: Expr = Var(BLOCK)
    decoded = body
    for position in reversed(range(len(loops))):
        loop, inner = loops[position], product(counts[position + 1:])
        if counts[position].as_int() == 1:
            value = loop.lo
        else:
            place = call("floordiv", number, index(inner))
            if position:
                place = call("mod", place, index(counts[position]))
            value = add(mul(place, index(loop.step)), loop.lo)
        decoded = Let(loop.var, value, decoded)
    whole = For(BLOCK, Var(BLOCK_BEGIN), Var(BLOCK_END), decoded, kind="block")
    return replace(func, body=whole, blocks=product(counts))


def _trips(func: Func, loop: For) -> SymExpr:
    leaves: dict[str, Expr] = {}
    extent = to_sym(loop.hi, leaves) - to_sym(loop.lo, leaves)
    strange = (extent.dims() - {s.name for s in func.sizes}) | leaves.keys()
    if strange:
        raise InternalError(f"kernel {func.name}: the bounds of block loop {loop.var} depend on {', '.join(sorted(strange))}")
    return ceildiv(extent, loop.step)

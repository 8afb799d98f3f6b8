"""widen_copies: neighbours that a thread copies asynchronously one by one become one copy of 8 or 16 bytes.

The loop over them stays, as one of kind "vector": what it means is not changed, and a printer makes one instruction of it. It
holds that both addresses are multiples of the copy's bytes, since buffers begin at multiples of 16 (`BASE_ALIGNMENT`).
"""

from __future__ import annotations

from dataclasses import replace

from tsc.loop_ir.facts import inside
from tsc.loop_ir.nodes import For, Func, Let, Stmt, Store, map_children
from tsc.sym import SymExpr, dim, product
from tsc.sym.facts import Facts
from tsc.te.compute import facts_of
from tsc.te.expr import Buffer, Call, Const, Expr, Load, item_bytes, variables
from tsc.te.index import to_sym

#: What the address of every buffer of a GPU's kernel is a multiple of, and so the most bytes of one access.
BASE_ALIGNMENT = 16
_BYTES = (8, 16)
#: Comparisons of l and r as f >= 0: the sign of l in f, and by what f is smaller than l - r.
_AT_LEAST = {"ge": (1, 0), "gt": (1, 1), "le": (-1, 0), "lt": (-1, 1)}


def widen_copies(func: Func) -> Func:
    """`func` with the loops of its asynchronous copies of kind "vector" where each is one access."""
    return replace(func, body=_widened(func.body, facts_of(func.sizes)))


def copied(value: Expr) -> tuple[tuple[Expr, ...], Load] | None:
    """The conditions of an asynchronous copy, outermost first, and what is copied where they hold; None where that is zero."""
    conditions = []
    while isinstance(value, Call) and value.fn == "select":
        conditions.append(value.args[0])
        value = value.args[1]
    return (tuple(conditions), value) if isinstance(value, Load) else None


def _widened(stmt: Stmt, facts: Facts) -> Stmt:
    if isinstance(stmt, For | Let):
        within = inside(facts, stmt)
        if isinstance(stmt, For) and _is_wide(stmt, within):
            return replace(stmt, kind="vector")
        return replace(stmt, body=_widened(stmt.body, within))
    return map_children(lambda s: _widened(s, facts), stmt)


def _is_wide(loop: For, facts: Facts) -> bool:
    match loop:
        case For(lo=Const(value=0), hi=Const(value=count), step=1, kind="serial" | "unroll",
                 body=Store(asynchronous=True) as store) if is_access(int(count), store.buffer.dtype):
            if (found := copied(store.value)) is None:
                return False
            conditions, load = found
            return all(is_same(condition, loop, facts) for condition in conditions) and all(
                begins_whole(buffer, at, loop.var, int(count), facts)
                for buffer, at in ((store.buffer, store.index), (load.buffer, load.index)))
    return False


def is_access(count: int, dtype: str) -> bool:
    """Whether so many elements are as wide as an access of several may be."""
    return count * item_bytes(dtype) in _BYTES


def begins_whole(buffer: Buffer, at: tuple[Expr, ...], var: str, count: int, facts: Facts) -> bool:
    """Whether the elements that an access is at, as `var` counts, follow each other from a multiple of `count`."""
    if buffer.panel is not None:
        return False
    leaves: dict[str, Expr] = {}
    offset = SymExpr.of(0)
    for number, one in enumerate(at):
        offset = offset + to_sym(one, leaves) * product(buffer.stored[number + 1:])
    first = facts.reduce(offset) - dim(var)
    depends = var in first.dims() or any(var in variables(leaf) for leaf in leaves.values())
    return not depends and facts.divisor(first) % count == 0


def is_same(condition: Expr, loop: For, facts: Facts) -> bool:
    """Whether a condition is the same for all neighbours that a `loop` counts from 0 on: it does not depend on which, or says
    that they lie before an end, at a multiple of their number, and they begin at one."""
    if loop.var not in variables(condition):
        return True
    match condition, loop.hi:
        case Call(fn="and", args=args), _:
            return all(is_same(a, loop, facts) for a in args)
        case Call(fn=fn, args=(left, right)), Const(value=size) if fn in _AT_LEAST:
            sign, strict = _AT_LEAST[fn]
            leaves: dict[str, Expr] = {}
            least, one = (to_sym(left, leaves) - to_sym(right, leaves)) * sign - strict, dim(loop.var)
            return not leaves and any(loop.var not in rest.dims() and facts.divisor(rest) % int(size) == 0
                                      for rest in (least - one, least + one + 1))
    return False

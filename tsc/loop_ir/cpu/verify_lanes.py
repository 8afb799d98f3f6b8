"""verify_lanes: the iterations of a vector loop are independent: lane by lane or all at once, they mean the same."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tsc.errors import InternalError
from tsc.loop_ir.nodes import For, Func, Let, Store, expressions, walk
from tsc.sym import ZERO
from tsc.sym.expr import coefficient_of
from tsc.te.expr import Const, Expr, Var, format_expr, loads, substitute
from tsc.te.index import to_sym


def verify_lanes(func: Func) -> None:
    """Raise InternalError where a lane of a vector loop may touch an element that another lane stores. That the lanes of one
    Store are at different elements is not asked for here: it is tried (`validate/memory.py`)."""
    for loop in walk(func.body):
        if isinstance(loop, For) and loop.kind == "vector" and isinstance(loop.hi, Const):
            complaint = next(_shared(loop, int(loop.hi.value)), None)
            if complaint is not None:
                raise InternalError(f"kernel {func.name}: {complaint}")


def _shared(loop: For, count: int) -> Iterator[str]:
    body = list(walk(loop.body))
    stores = [s for s in body if isinstance(s, Store)]
    touched = [(s.buffer, s.index) for s in stores]
    touched += [(x.buffer, x.index) for s in body for e in expressions(s) for x in loads(e)]
    inner = {loop.var, *(s.var for s in body if isinstance(s, For | Let))}
    for store in stores:
        for buffer, place in touched:
            if buffer.name == store.buffer.name and place != store.index and not _apart(
                    store.index, place, loop.var, inner, count):
                text = ", ".join(map(format_expr, place))
                yield f"a lane of vector loop {loop.var} stores to {store.buffer} what another one may touch at [{text}]"


def _apart(stored: tuple[Expr, ...], touched: tuple[Expr, ...], lane: str, inner: set[str], count: int) -> bool:
    """Whether any two different lanes are surely at different elements."""
    one, other = np.meshgrid(np.arange(count), np.arange(count), indexing="ij")
    apart = one == other
    for a, b in zip(stored, touched, strict=True):
        distance = to_sym(a, {}) - to_sym(substitute(b, {name: Var(f"{name}'") for name in inner}), {})
        parts = [coefficient_of(distance, name) for name in (lane, f"{lane}'")]
        parts.append(distance.substitute({lane: ZERO, f"{lane}'": ZERO}))
        numbers = [n for part in parts if part is not None and (n := part.as_int()) is not None]
        if len(numbers) == len(parts):  # else it is not linear, or as far as something else says
            first, second, rest = numbers
            apart |= first * one + second * other + rest != 0
    return bool(apart.all())

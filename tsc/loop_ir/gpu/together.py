"""store_together: neighbours that a thread stores one after the other become one store of 4 to 16 bytes.

A warp whose lanes store every other word touches each sector of memory twice, and each time in part. The loop over the
neighbours stays, as one of kind "vector": what it means is not changed. What they are made of is read likewise, before, where
that lies together in global memory; `without_fragments` puts these reads back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count

from tsc.loop_ir.facts import inside
from tsc.loop_ir.gpu.fragments import Fragment
from tsc.loop_ir.gpu.widen import begins_whole, is_access, is_same
from tsc.loop_ir.nodes import Allocate, For, Func, If, Let, Stmt, Store, map_children, walk
from tsc.loop_ir.simplify import simplify_expr
from tsc.sym.facts import Facts
from tsc.te.compute import facts_of
from tsc.te.expr import Call, CheckedIndex, Const, Expr, Load, children, item_bytes, loads, map_loads, substitute
from tsc.te.expr import walk as walk_expr

#: Bytes of a store of several.
_BYTES = (4, 8, 16)


def store_together(func: Func) -> Func:
    """`func` with the stores of neighbours as loops of kind "vector", and with fragments of what these read."""
    local = {s.buffer.name: s.scope for s in walk(func.body) if isinstance(s, Allocate)}
    return replace(func, body=_Together(local, count()).visited(func.body, facts_of(func.sizes)))


@dataclass(frozen=True, slots=True)
class _Together:
    """Buffers that are local, by their scope, and the numbers of fragments."""

    local: Mapping[str, str]
    numbers: Iterator[int]

    def visited(self, stmt: Stmt, facts: Facts) -> Stmt:
        """The statement with its stores of neighbours together."""
        if isinstance(stmt, For | Let):
            within = inside(facts, stmt)
            made = self._stored(stmt, within) if isinstance(stmt, For) else None
            return made or replace(stmt, body=self.visited(stmt.body, within))
        return map_children(lambda s: self.visited(s, facts), stmt)

    def _stored(self, loop: For, facts: Facts) -> Stmt | None:
        """A loop over neighbours as one store; None where it is none."""
        match loop:
            case For(lo=Const(value=0), hi=Const(value=size), step=1, kind="serial", body=If(
                    condition=condition, then=Store() as store, otherwise=None)) if is_same(condition, loop, facts):
                made = self._together(loop, store, int(size), facts)
                return made and If(simplify_expr(substitute(condition, {loop.var: loop.lo}), facts), made)
            case For(lo=Const(value=0), hi=Const(value=size), step=1, kind="serial", body=Store() as store):
                return self._together(loop, store, int(size), facts)
        return None

    def _together(self, loop: For, store: Store, size: int, facts: Facts) -> Stmt | None:
        """`store` for all of a `loop` over `size` neighbours."""
        if size < 2 or size * item_bytes(store.buffer.dtype) not in _BYTES or store.asynchronous or (
                self.local.get(store.buffer.name) not in (None, "shared")) or (
                any(x.buffer == store.buffer and x.index != store.index for x in loads(store.value))) or (
                not begins_whole(store.buffer, store.index, loop.var, size, facts)):
            return None
        fragments = {load: Fragment.of(load, (loop,), next(self.numbers)) for load in dict.fromkeys(_always_read(store.value))
                     if self._is_row(load, loop, size, facts) and load.buffer != store.buffer}
        value = map_loads(lambda load: fragments[load].read() if load in fragments else load, store.value)
        made: Stmt = replace(loop, body=replace(store, value=value), kind="vector")
        for fragment in reversed(fragments.values()):
            made = fragment.within(made)
        return made

    def _is_row(self, load: Load, loop: For, size: int, facts: Facts) -> bool:
        """Whether a load reads neighbours of global memory which are one access."""
        return load.buffer.name not in self.local and is_access(size, load.dtype) and not any(
            isinstance(e, CheckedIndex) for i in load.index for e in walk_expr(i)) and (
            begins_whole(load.buffer, load.index, loop.var, size, facts))


def _always_read(value: Expr) -> Iterator[Load]:
    """What a value reads whatever its conditions say."""
    if isinstance(value, Load):
        yield value
    elif isinstance(value, Call) and value.fn == "select":
        yield from _always_read(value.args[0])
    else:
        for part in children(value):
            yield from _always_read(part)

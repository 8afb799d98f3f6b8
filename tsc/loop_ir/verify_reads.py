"""verify_reads: a vector of iterations reads no memory that its scalar iterations would not, unless that is proved to be there.

The loops that the polyhedral stage makes are read back and stay within all extents (`poly/proof/guards.py`). What vectors add
to that is found here in the final Func: both sides of a choice are computed, and register tiles compute columns that nobody
stores.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tsc.errors import InternalError
from tsc.loop_ir.bounds import Prover, no_prover, within
from tsc.loop_ir.cpu.vector_rules import Read, executed, varies
from tsc.loop_ir.nodes import Stmt, Store, expressions
from tsc.loop_ir.places import Place, places
from tsc.te.expr import Load, format_expr


def verify_reads(name: str, placed: Iterable[tuple[Stmt, Place]], prover: Prover = no_prover) -> None:
    """Raise InternalError unless every load of a vector loop that is executed more often than in scalar iterations, under fewer
    conditions or in more columns, is proved to stay within its buffer, by facts or else by `prover`. `name` is the kernel's."""
    complaint = next(_complaints(placed, prover), None)
    if complaint is not None:
        raise InternalError(f"kernel {name}: {complaint}")


def unproved(stmt: Stmt, place: Place) -> str | None:
    """The first such load that is not proved, in words; None where all are. `stmt` stands at `place`."""
    return next(_complaints(places(stmt, place), no_prover), None)


def _complaints(placed: Iterable[tuple[Stmt, Place]], prover: Prover) -> Iterator[str]:
    for stmt, place in placed:
        if place.lane and isinstance(stmt, Store):
            yield from _of_store(stmt, place, prover)


def _of_store(store: Store, place: Place, prover: Prover) -> Iterator[str]:
    reads = [r for e in expressions(store) for r in executed(e, place.lane)]
    certain = {r.what for r in reads if not (r.lost or r.known)}
    for read in reads:
        known, what = (*place.known, *read.known), read.what
        if read.lost and what not in certain and not (
                isinstance(what, Load) and within(what, place.facts, known, prover=prover)):
            yield _complaint(read, store, "although a condition that guards it does not hold")
        if isinstance(what, Load) and _into_tile(store, place):
            moving = [d for d, i in enumerate(what.index) if varies(i, place.lane)]
            if not within(what, place.facts, known, moving, prover):
                yield _complaint(read, store, "for columns that may not be there")


def _into_tile(store: Store, place: Place) -> bool:
    return any(s.buffer.name == store.buffer.name and s.scope == "register" and len(s.buffer.shape) > 1 for s in place.storage)


def _complaint(read: Read, store: Store, when: str) -> str:
    return (f"a vector stored to {store.buffer.name} reads {format_expr(read.what)} {when}, "
            "and it is not proved to lie within its buffer")

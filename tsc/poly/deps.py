"""Dependences of a Scop: memory-based (read after write, write after write, write after read), in its context.

A reduction's dependence of an update on itself is dropped only where the update is by a declared monoid (associative and
commutative), and every drop is listed. What is dropped stays available: blocks that run in parallel must be independent
of the unrelaxed dependences too. Section 5.2 of the paper.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tsc.poly import isl
from tsc.poly.scop import Access, Scop


@dataclass(frozen=True, slots=True)
class Dependences:
    """`full`: every dependence, source -> sink; `relaxed`: without those that declared monoids allow to drop; `log` names
    what was dropped."""

    full: isl.UnionMap
    relaxed: isl.UnionMap
    log: tuple[str, ...]


def dependences(scop: Scop) -> Dependences:
    """The dependences of `scop`, from its access relations and its original order."""
    written = {a.buffer.name for a in scop.writes}
    reads = _union(scop, (a for a in scop.reads if a.buffer.name in written))
    writes = _union(scop, scop.writes)
    full = _flow(scop, reads, writes).union(_flow(scop, writes, writes)).union(_flow(scop, writes, reads))
    full = full.intersect_params(scop.context).coalesce()
    relaxed, log = full, []
    for statement in scop.statements.values():
        monoid = statement.compute.monoid
        if statement.role != "update" or monoid is None:
            continue
        own = isl.UnionSet.from_set(statement.domain)
        dropped = full.intersect_domain(own).intersect_range(own)
        if not dropped.is_empty():
            relaxed = relaxed.subtract(dropped)
            log.append(f"dropped {statement.name} -> {statement.name}: '{monoid.fn}' is declared associative and commutative")
    return Dependences(full, relaxed, tuple(log))


def through(scop: Scop, deps: isl.UnionMap, buffer: str) -> isl.UnionMap:
    """The dependences of `deps` between accesses to one cell of `buffer`."""
    touches = _union(scop, (a for a in scop.reads + scop.writes if a.buffer.name == buffer))
    return deps.intersect(touches.apply_range(touches.reverse()))


def _union(scop: Scop, accesses: Iterable[Access]) -> isl.UnionMap:
    return isl.union_of_maps(scop.params, (a.relation for a in accesses))


def _flow(scop: Scop, sink: isl.UnionMap, source: isl.UnionMap) -> isl.UnionMap:
    return isl.may_dependences(sink, source, scop.order)

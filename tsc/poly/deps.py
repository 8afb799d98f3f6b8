"""Dependences of a Scop: memory-based (read after write, write after write, write after read), in its context.

A reduction's dependence of an update on itself is dropped only where the update is by a declared monoid (associative and
commutative), and every drop is listed. What is dropped stays available: blocks that run in parallel must be independent
of the unrelaxed dependences too. Section 5.2 of the paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tsc.poly import isl
from tsc.poly.scop import Scop


@dataclass(frozen=True, slots=True)
class Dependences:
    """`full`: every dependence, source -> sink; `relaxed`: without those that declared monoids allow to drop; `log` names
    what was dropped; `through[buffer]`: those of `full` between accesses to one cell of a buffer that is written."""

    full: isl.UnionMap
    relaxed: isl.UnionMap
    log: tuple[str, ...]
    through: Mapping[str, isl.UnionMap]


def dependences(scop: Scop) -> Dependences:
    """The dependences of `scop`, from its access relations and its original order."""
    through = {name: _through(scop, name).intersect_params(scop.context).coalesce()
               for name in dict.fromkeys(a.buffer.name for a in scop.writes)}
    full = isl.UnionMap(scop.params + " -> { }")
    for found in through.values():
        full = full.union(found)
    full = full.coalesce()
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
    return Dependences(full, relaxed, tuple(log), through)


def _through(scop: Scop, buffer: str) -> isl.UnionMap:
    """Pairs of accesses to one cell of `buffer`, one of them a write, the first earlier in the original order: statements run
    one after the other, each over its instances in lexicographic order."""
    writes, reads = scop.reaching(buffer, scop.writes), scop.reaching(buffer, scop.reads)
    touching = writes.apply_range(writes.union(reads).reverse()).union(reads.apply_range(writes.reverse()))
    number = {name: i for i, name in enumerate(scop.statements)}
    earlier: list[isl.Map] = []
    for pairs in isl.maps_of(touching):
        first, second = (number[str(pairs.get_tuple_name(side))] for side in (isl.IN, isl.OUT))
        if first <= second:
            earlier.append(pairs if first < second else pairs.intersect(isl.lex_lt(pairs)))
    return isl.union_of_maps(scop.params, earlier)

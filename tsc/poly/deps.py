"""Dependences of a Scop: memory-based (read after write, write after write, write after read), in its context.

A reduction's dependence of an update on itself is dropped only where the update is by a declared monoid (associative and
commutative), and every drop is listed. What is dropped stays available: blocks that run in parallel must be independent
of the unrelaxed dependences too. Section 5.2 of the paper.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tsc.poly import isl
from tsc.poly.scop import Scop, Statement
from tsc.te.expr import Buffer


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


def too_early(scop: Scop) -> Iterator[tuple[Statement, Buffer]]:
    """Reads in recurrences of what is made in no earlier trip, nor before in the same one: a statement, and what it reads."""
    number = {name: i for i, name in enumerate(scop.statements)}
    for access in scop.reads:
        reader = scop.statements[access.statement]
        for write in scop.writes:
            if write.buffer != access.buffer or (write.buffer == reader.compute.target and reader.role == "update"):
                continue
            before, together = _trips(scop, write.statement, access.statement)
            if before is None or together is None:
                continue
            pairs = write.relation.apply_range(access.relation.reverse()).intersect_params(scop.context)
            allowed = before.union(together) if number[write.statement] < number[access.statement] else before
            if not pairs.is_subset(allowed):
                yield reader, access.buffer
                break


def _through(scop: Scop, buffer: str) -> isl.UnionMap:
    """Pairs of accesses to one cell of `buffer`, one of them a write, the first earlier in the original order: statements run
    one after the other, each over its instances in lexicographic order; those of a recurrence so in each of its trips."""
    writes, reads = scop.reaching(buffer, scop.writes), scop.reaching(buffer, scop.reads)
    touching = writes.apply_range(writes.union(reads).reverse()).union(reads.apply_range(writes.reverse()))
    number = {name: i for i, name in enumerate(scop.statements)}
    earlier: list[isl.Map] = []
    for pairs in isl.maps_of(touching):
        first, second = (str(pairs.get_tuple_name(side)) for side in (isl.IN, isl.OUT))
        before, together = _trips(scop, first, second)
        if before is not None:
            earlier.append(pairs.intersect(before))
        if number[first] <= number[second]:
            same = pairs if together is None else pairs.intersect(together)
            earlier.append(same if first != second else same.intersect(isl.lex_lt(pairs)))
    return isl.union_of_maps(scop.params, earlier)


def _trips(scop: Scop, first: str, second: str) -> tuple[isl.Map | None, isl.Map | None]:
    """Instances of two statements of one recurrence of which the first are in an earlier trip, and those in one trip; None of
    others."""
    carried = [scop.statements[name].compute.carried for name in (first, second)]
    if carried[0] is None or carried[1] is None or carried[0].name != carried[1].name:
        return None, None
    tuples, trips = [], []
    for letter, name, own in zip("ab", (first, second), carried):
        axes = [a.name for a in scop.statements[name].axes]
        tuples.append(f"{name}[{', '.join(f'{letter}{k}' for k in range(len(axes)))}]")
        trips.append(f"{letter}{axes.index(own.axis if own else '')}")
    order = ">" if carried[0].reverse else "<"
    before, together = (isl.Map(f"{scop.params} -> {{ {tuples[0]} -> {tuples[1]} : {trips[0]} {sign} {trips[1]} }}")
                        for sign in (order, "="))
    return before, together

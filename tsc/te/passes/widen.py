"""The ends of a Program's sizes as far as they decide how code is made, so that models that differ in others share kernels.

Ends below `share.LEAST` do: an axis of at most 12 rows has one register tile. So do those below LONG of what is reduced over:
rows are held in locals of that extent. A longer row has the memory that it needs, and not what its end would. Least sizes do,
too: they tell how often a row of an image ends within a vector.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tsc.sym import SymExpr
from tsc.te.compute import Fact, Program
from tsc.te.expr import loads
from tsc.te.passes.share import LEAST

#: From how many elements on a row that is reduced over has a local of its own length, and no longer one of the longest's.
LONG = 1024


def widened(program: Program) -> Program:
    """`program` without the ends of sizes that decide nothing. That its accesses stay within extents has to be proved anew."""
    reduced = frozenset[str]().union(*(axis.extent.dims() for compute in program.computes for axis in compute.reduce_axes))
    falling = frozenset[str]().union(*_falling(program))
    sizes = tuple(replace(s, hi=None) if s.name not in falling and (s.hi or 0) >= (LONG if s.name in reduced else LEAST) else s
                  for s in program.sizes)
    if sizes == program.sizes:
        return program
    names = {size.name for size in sizes}
    return replace(program, sizes=sizes, facts=tuple(fact for fact in program.facts if not _is_end(fact, names)))


def _is_end(fact: Fact, sizes: Collection[str]) -> bool:
    """Whether a fact is such an end of an integer that is no size."""
    end, of = fact.right.as_int(), fact.left.as_dim()
    return fact.relation == "<=" and end is not None and end >= LEAST and of is not None and of.name not in sizes


def _falling(program: Program) -> list[frozenset[str]]:
    """The sizes that an extent falls with: without an end of theirs it would be negative."""
    shapes = [load.buffer.shape for compute in program.computes for load in loads(compute.body)]
    shapes += [tuple(axis.extent for axis in compute.axes) for compute in program.computes]
    terms = dict.fromkeys((monomial, c) for shape in shapes for extent in shape for monomial, c in extent.terms)
    return [SymExpr(((monomial, 1),)).dims() for monomial, c in terms if c < 0]

"""Rounded domains: statements extended to whole tiles, so that loops have constant trip counts, and the guards that undo it.

A statement with a guard runs its own instances alone. One without runs the surplus instances too; `dataflow` proves that they
do no harm: what they write nobody reads, or they combine fills, which changes nothing. A context in which sizes are divisible
leaves no surplus, hence no guard.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tsc.poly import isl
from tsc.poly.affine import size_text
from tsc.poly.scop import Access, Scop, Statement
from tsc.poly.to_expr import condition_expr
from tsc.te.expr import Expr

Tiling = Sequence[tuple[isl.PwAff, int]]  # functions of a statement's instances with the sizes that they are rounded up to


def round_domains(scop: Scop, tilings: Mapping[str, Tiling]) -> Scop:
    """`scop` with the domain of each statement extended to all instances of the tiles that it has any instance in."""
    statements = {name: _rounded(s, tilings[name], scop) for name, s in scop.statements.items()}
    domain = isl.union_of_sets(scop.params, (s.domain for s in statements.values()))
    return replace(scop, statements=statements, domain=domain,
                   writes=tuple(_write(statements[w.statement], w, scop) for w in scop.writes))


def guard_of(exact: isl.Set, rounded: isl.Set, names: Sequence[str]) -> Expr | None:
    """The condition, in the coordinates `names`, that leaves of `rounded` what is in `exact`; None where that is all of it."""
    needed = exact.gist(rounded).coalesce()
    if rounded.is_subset(needed):
        return None
    return condition_expr(needed, names)


def _rounded(statement: Statement, tiling: Tiling, scop: Scop) -> Statement:
    """The axes that a tiled function consists of stay within their extents, but for the first of each."""
    open_axes = set()
    relation: isl.Map | None = None
    for function, size in tiling:
        involved = [a.name for i, a in enumerate(statement.axes) if function.involves_dims(isl.IN, i, 1)]
        if size > 1:
            open_axes |= set(involved[:1])
        tile = isl.Map.from_pw_aff(isl.tile_number(function, size))
        relation = tile if relation is None else relation.flat_range_product(tile)
    names = [a.name for a in statement.axes]
    bounds = [f"0 <= {n}" for n in names]
    bounds += [f"{a.name} < {size_text(a.extent)}" for a in statement.axes if a.name not in open_axes]
    box = isl.Set(f"{scop.params} -> {{ {statement.name}[{', '.join(names)}] : {' and '.join(bounds) or '1 = 1'} }}")
    if relation is None:
        return statement
    whole = statement.domain.apply(relation).apply(relation.reverse()).intersect(box).intersect_params(scop.context)
    return replace(statement, domain=whole.coalesce())


def _write(statement: Statement, write: Access, scop: Scop) -> Access:
    dims = ", ".join(a.name for a in statement.axes)
    cell = ", ".join(a.name for a in statement.compute.axes)
    relation = isl.Map(f"{scop.params} -> {{ {statement.name}[{dims}] -> {write.buffer.name}[{cell}] }}")
    return replace(write, relation=relation.intersect_domain(statement.domain))

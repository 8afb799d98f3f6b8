"""verify_storage: what a pass keeps in storage of its own stays within it, at all sizes.

The storage of the polyhedral stage's loops is proved where those are read back (`poly/proof/{guards,refine}.py`). Register
tiles, lanes and folds come later: their extents are constants, and what moves in them are the loops around.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tsc.errors import InternalError
from tsc.loop_ir.bounds import Prover, no_prover, within
from tsc.loop_ir.cpu.vector_rules import executed
from tsc.loop_ir.nodes import Allocate, Func, Stmt, Store, expressions, walk
from tsc.loop_ir.places import Place
from tsc.te.expr import Expr, Load, format_expr


def verify_storage(before: Func, placed: Iterable[tuple[Stmt, Place]], prover: Prover = no_prover) -> None:
    """Raise InternalError unless all that the statements store to and load from storage which `before` has not, or in
    another shape, is proved to lie within it, by facts or else by `prover`."""
    given = frozenset(s.buffer for s in walk(before.body) if isinstance(s, Allocate))
    for stmt, place in placed:
        own = frozenset(s.buffer for s in place.storage if s.buffer not in given)
        for access, known in _accesses(stmt, place) if own else ():
            if access.buffer in own and not within(access, place.facts, known, prover=prover):
                text = f"it is not proved that {format_expr(access)} lies within {access.buffer}"
                raise InternalError(f"kernel {before.name}: {text}")


def _accesses(stmt: Stmt, place: Place) -> Iterator[tuple[Load, tuple[Expr, ...]]]:
    """What `stmt` stores to and loads, each with the conditions that hold where it is touched."""
    if isinstance(stmt, Store):
        yield Load(stmt.buffer, stmt.index), place.known
    for read in (r for expr in expressions(stmt) for r in executed(expr, place.lane)):
        if isinstance(read.what, Load):
            yield read.what, (*place.known, *read.known)

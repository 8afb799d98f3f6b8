"""load_fragments: what a thread reads of shared memory for several products is read once, some neighbours by one access.

In the loops over k of a contraction each lane multiplies its rows of one operand with its columns of the other. Where places
along k follow each other in shared memory, as many steps of k as one access has are done at once, and their numbers are read
before them; where places along another loop do, they are read before each step. What is read stands in registers (a fragment).
`without_fragments` puts the reads back where they were, so that what is proved of loops need not know of fragments.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count

from tsc.errors import InternalError
from tsc.loop_ir.facts import inside
from tsc.loop_ir.gpu.threads import trips
from tsc.loop_ir.gpu.widen import begins_whole, is_access
from tsc.loop_ir.marks import COPY, K
from tsc.loop_ir.nodes import Allocate, Block, For, Func, Let, LoopKind, Stmt, Store, block, map_children, map_exprs, nest, walk
from tsc.loop_ir.simplify import simplify_expr, simplify_stmt, substitute_stmt
from tsc.sym import SymExpr
from tsc.sym.facts import Facts
from tsc.te.compute import facts_of
from tsc.te.expr import Buffer, Call, Expr, Load, Var, add, call, index, loads, map_loads, mul, substitute, variables
from tsc.te.expr import walk as walk_expr

#: The most numbers of one access.
_MOST = 8


def load_fragments(func: Func) -> Func:
    """`func` with fragments in the loops over k whose operands have neighbours."""
    shared = frozenset(s.buffer.name for s in walk(func.body) if isinstance(s, Allocate) and s.scope == "shared")
    return replace(func, body=_Loader(shared, count()).visited(func.body, facts_of(func.sizes)))


def without_fragments(func: Func) -> Func:
    """`func` with the reads of fragments where they are used. Raises InternalError where these might read something else."""
    if not any(isinstance(s, Allocate) and _fill_of(s) is not None for s in walk(func.body)):  # nor on any CPU
        return func
    return replace(func, body=_put_back(func.body, facts_of(func.sizes)))


# -- made ------------------------------------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class Fragment:
    """Numbers that are read together: `held` has a dim for each of `loops`, the last those of one access; `load` is one of
    them."""

    held: Buffer
    loops: tuple[For, ...]
    load: Load

    @staticmethod
    def of(load: Load, loops: tuple[For, ...], number: int) -> Fragment:
        """A fragment of its own, for the number that `load` reads within `loops`."""
        shape = tuple(SymExpr.of(trips(loop) or 1) for loop in loops)
        return Fragment(Buffer(f"{load.buffer.name}_part{number}", load.dtype, shape), loops, load)

    def within(self, body: Stmt) -> Stmt:
        """`body` with the fragment there, filled."""
        names = [f"{self.held.name}_{d}" for d in range(len(self.loops))]
        now = {loop.var: add(loop.lo, mul(index(loop.step), Var(name))) for loop, name in zip(self.loops, names)}
        fill: Stmt = Store(self.held, tuple(map(Var, names)), substitute(self.load, now))
        for loop, name in reversed([*zip(self.loops, names)]):
            kind: LoopKind = "vector" if loop is self.loops[-1] else "serial"
            fill = For(name, index(0), index(trips(loop) or 1), fill, kind=kind, mark=COPY)
        return Allocate(self.held, "register", block(fill, body))

    def read(self) -> Load:
        """What the load reads, of the fragment."""
        return Load(self.held, tuple(call("floordiv", call("sub", Var(x.var), x.lo), index(x.step)) for x in self.loops))


@dataclass(frozen=True, slots=True)
class _Loader:
    """Makes fragments of what is read of `shared` buffers, and numbers them."""

    shared: frozenset[str]
    numbers: Iterator[int]

    def visited(self, stmt: Stmt, facts: Facts) -> Stmt:
        """The statement with fragments in its loops over k."""
        if isinstance(stmt, For | Let):
            made = self._stepped(stmt, facts) if isinstance(stmt, For) and stmt.mark == K else None
            return made or replace(stmt, body=self.visited(stmt.body, inside(facts, stmt)))
        return map_children(lambda s: self.visited(s, facts), stmt)

    def _stepped(self, k: For, facts: Facts) -> Stmt | None:
        """The loop over k in steps of as many as one access has; None where its operands have no neighbours."""
        if not isinstance(k.body, For):
            return None
        loops, store = nest(k.body)
        steps = trips(k)
        if steps is None or k.kind != "serial" or k.step != 1 or not all(x.kind == "serial" and trips(x) for x in loops) or (
                not isinstance(store, Store)) or any(isinstance(e, Call) and e.fn == "select" for e in walk_expr(store.value)):
            return None
        read = [load for load in dict.fromkeys(loads(store.value)) if load.buffer.name in self.shared]
        for size in (n for n in range(_MOST, 0, -1) if steps % n == 0):
            several = replace(k, var=f"{k.var}_first", lo=index(0), hi=index(steps // size))
            one = replace(k, var=f"{k.var}_next", lo=index(0), hi=index(size))
            at = {k.var: add(k.lo, add(mul(index(size), Var(several.var)), Var(one.var)))}
            within = inside(inside(facts, several), one)
            for loop in loops:
                within = inside(within, loop)
            now = {load: simplify_expr(substitute(load, at), within) for load in read}
            before = self._along(now, (one,), loops, within)
            if before or size == 1:
                each = self._along({x: y for x, y in now.items() if x not in before}, loops, loops, within)
                return self._nested(several, one, loops, store, at, before, each) if before or each else None
        return None

    def _along(self, read: dict[Load, Expr], along: tuple[For, ...], loops: tuple[For, ...], facts: Facts
               ) -> dict[Load, Fragment]:
        """The fragments of those loads that have neighbours along one of some loops, the innermost that will do."""
        found: dict[Load, Fragment] = {}
        for load, now in read.items():
            for loop in reversed(along):
                size = trips(loop) or 0
                if isinstance(now, Load) and loop.step == 1 and loop.lo == index(0) and is_access(size, now.dtype) and (
                        begins_whole(now.buffer, now.index, loop.var, size, facts)):
                    used = {name for i in now.index for name in variables(i)}
                    others = tuple(x for x in loops if x is not loop and x.var in used)
                    found[load] = Fragment.of(now, (*others, loop), next(self.numbers))
                    break
        return found

    @staticmethod
    def _nested(several: For, one: For, loops: tuple[For, ...], store: Store, at: dict[str, Expr],
                before: dict[Load, Fragment], each: dict[Load, Fragment]) -> Stmt:
        """The loops over k, `several` steps and `one`, in which what was at k is `at`, with the fragments of each."""
        found = {load: fragment.read() for load, fragment in (*before.items(), *each.items())}
        value = map_loads(lambda load: found.get(load, load), store.value)
        stmt = substitute_stmt(replace(store, value=value), at)
        for loop in reversed(loops):
            stmt = replace(loop, body=stmt)
        for fragment in reversed(each.values()):
            stmt = fragment.within(stmt)
        stmt = replace(one, body=stmt)
        for fragment in reversed(before.values()):
            stmt = fragment.within(stmt)
        return replace(several, body=stmt)


# -- put back --------------------------------------------------------------------------------------------------

def _put_back(stmt: Stmt, facts: Facts) -> Stmt:
    if isinstance(stmt, Allocate) and (fill := _fill_of(stmt)) is not None:
        names, source, rest = fill
        _expect_kept(stmt.buffer, source.buffer, rest)

        def read(load: Load) -> Expr:
            return substitute(source, dict(zip(names, load.index))) if load.buffer.name == stmt.buffer.name else load

        put = map_exprs(lambda e: map_loads(read, e), rest)
        return _put_back(simplify_stmt(put, facts, keep_marked=True), facts)
    if isinstance(stmt, For | Let):
        return replace(stmt, body=_put_back(stmt.body, inside(facts, stmt)))
    return map_children(lambda s: _put_back(s, facts), stmt)


def _fill_of(stmt: Allocate) -> tuple[list[str], Load, Stmt] | None:
    """The names of the loops that fill the whole of a buffer first of all, what they read, and what comes then."""
    match stmt:
        case Allocate(scope="register", body=Block(body=(For(mark=mark) as first, *rest))) if mark == COPY:
            loops: list[For] = []
            inner: Stmt = first
            while isinstance(inner, For):
                loops.append(inner)
                inner = inner.body
            names = [x.var for x in loops]
            if isinstance(inner, Store) and inner.buffer == stmt.buffer and isinstance(inner.value, Load) and (
                    loops[-1].kind == "vector" and inner.index == tuple(map(Var, names))):
                whole = all((x.lo, x.step, trips(x)) == (index(0), 1, extent.as_int())
                            for x, extent in zip(loops, inner.buffer.shape))
                return (names, inner.value, block(*rest)) if whole else None
    return None


def _expect_kept(held: Buffer, source: Buffer, rest: Stmt) -> None:
    """Raise InternalError unless `rest` stores in neither, and waits for nobody else who might."""
    for stmt in walk(rest):
        if not isinstance(stmt, Store | For | Allocate | Block) or (
                isinstance(stmt, Store) and (stmt.asynchronous or stmt.buffer.name in (held.name, source.name))):
            raise InternalError(f"{held.name} may be read after {source.name} has changed")

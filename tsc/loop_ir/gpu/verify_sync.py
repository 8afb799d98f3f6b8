"""verify_synchronised: every race is prevented by a barrier, and every asynchronous copy waited for. Proved for all sizes.

The kernel's control, as far as all threads go through it alike, is run over abstract states: which accesses no barrier has
closed off yet, and which groups of copies are under way. A loop that waits or meets is run iteration by iteration until states
repeat: its number counts modulo the buffers' stages, and its remaining iterations are a small number or `MANY`, so that
prologue, guards and the last iterations are seen together. What stands under conditions that differ between threads, or in a
loop marked `copy` (which writes every element once), is one step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tsc.errors import InternalError
from tsc.loop_ir.gpu.hazards import Access, Hazard, Path, apart, barrier_between, injective
from tsc.loop_ir.gpu.threads import team_sizes, trips
from tsc.loop_ir.marks import COPY
from tsc.loop_ir.nodes import (
    Allocate,
    Barrier,
    Block,
    Commit,
    For,
    Func,
    If,
    Let,
    Stmt,
    Store,
    Wait,
    children,
    expressions,
    nest,
    walk,
)
from tsc.sym import SymExpr, ceildiv, dim
from tsc.sym.facts import Facts
from tsc.te.compute import facts_of
from tsc.te.expr import INDEX, Call, Const, Expr, Load, Var, index, loads
from tsc.te.expr import walk as walk_expr
from tsc.te.index import to_sym

#: More iterations than any guard looks ahead.
MANY = -1
_MOST_GROUPS = 32
#: States in the order in which they were found, so that the first hazard is always the same.
_States = tuple["_State", ...]


@dataclass(frozen=True, slots=True)
class _State:
    """`since`: accesses since the last block barrier, True where a warp barrier followed. `filled`: what has been written.
    `counts`: what trip counts were assumed to be."""

    since: frozenset[tuple[Access, bool]] = frozenset()
    open: frozenset[Access] = frozenset()
    groups: tuple[frozenset[Access], ...] = ()
    filled: frozenset[Access] = frozenset()
    counts: frozenset[tuple[SymExpr, int]] = frozenset()


@dataclass(frozen=True, slots=True)
class _Iteration:
    """`var` is `low + number * step`, `number` modulo the period unless `exact`; `left` iterations of `count` remain, this one
    included."""

    number: int
    left: int
    count: SymExpr
    low: SymExpr
    step: int
    exact: bool


@dataclass(frozen=True, slots=True)
class _Scope:
    """What is known where a statement stands: Lets, and loops by names of their own, with `ranges`; the variables that tell
    warps and lanes apart (None outside of them), of those who come there; those that count them from 0; those that differ
    between threads; and those of loops without a range."""

    values: Mapping[str, SymExpr] = field(default_factory=dict)
    iterations: Mapping[str, _Iteration] = field(default_factory=dict)
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    warps: frozenset[str] | None = None
    lanes: frozenset[str] | None = None
    from_zero: frozenset[str] = frozenset()
    differing: frozenset[str] = frozenset()
    moving: frozenset[str] = frozenset()
    loops: tuple[str, ...] = ()

    def value(self, expr: Expr) -> SymExpr:
        return to_sym(expr, {}).substitute(self.values)


def verify_synchronised(func: Func, barriers: bool = True) -> None:
    """Raise Hazard (an InternalError) where a barrier or a wait is missing or too weak, InternalError where a copy is never
    waited for or a block's memory is read before it is written. Without `barriers`, races are not looked for."""
    if team_sizes(func.body) is None:
        return
    common = _common(func)
    local = frozenset(s.buffer.name for s in walk(func.body) if isinstance(s, Allocate))
    checker = _Checker(func.name, common, local, _period(func.body, common), frozenset(_counts(func.body, {})), barriers,
                       facts_of(func.sizes))
    checker.check_end(checker.run(func.body, (_State(),), _Scope(), ()))


def _common(func: Func) -> frozenset[str]:
    """Buffers through which threads speak to each other: a block's own, and arguments that are both read and written."""
    local = {s.buffer.name: s.scope for s in walk(func.body) if isinstance(s, Allocate)}
    read = {x.buffer.name for s in walk(func.body) for e in expressions(s) for x in loads(e)}
    written = {s.buffer.name for s in walk(func.body) if isinstance(s, Store)}
    return frozenset({n for n, scope in local.items() if scope in ("shared", "scratch")} | ((read & written) - local.keys()))


def _period(stmt: Stmt, common: frozenset[str], meeting: frozenset[str] = frozenset()) -> int:
    """What the constant moduli divide by which indices of common buffers depend on the iterations in which threads meet;
    `meeting` are the variables that tell these apart."""
    places = [x.index for e in expressions(stmt) for x in loads(e) if x.buffer.name in common]
    places += [stmt.index] if isinstance(stmt, Store) and stmt.buffer.name in common else []
    found = [to_sym(n.args[1], {}).as_int() or 1 for place in places for e in place for n in walk_expr(e)
             if isinstance(n, Call) and n.fn == "mod" and _mentions(n, meeting)]
    if isinstance(stmt, For | Let):
        told = _mentions(stmt.value, meeting) if isinstance(stmt, Let) else \
            stmt.kind in ("serial", "unroll") and synchronises(stmt)
        meeting = meeting | {stmt.var} if told else meeting - {stmt.var}
    return math.lcm(1, *found, *(_period(child, common, meeting) for child in children(stmt)))


def _mentions(expr: Expr, names: frozenset[str]) -> bool:
    return any(isinstance(n, Var) and n.name in names for n in walk_expr(expr))


def _counts(stmt: Stmt, values: Mapping[str, SymExpr]) -> Iterator[SymExpr]:
    """Trip counts of the loops in which threads meet."""
    if isinstance(stmt, Let):
        values = {**values, stmt.var: to_sym(stmt.value, {}).substitute(values)}
    if isinstance(stmt, For) and synchronises(stmt):
        yield ceildiv((to_sym(stmt.hi, {}) - to_sym(stmt.lo, {})).substitute(values), stmt.step)
    for child in children(stmt):
        yield from _counts(child, values)


def synchronises(stmt: Stmt) -> bool:
    """Whether threads meet, commit or wait within `stmt`."""
    return any(isinstance(s, (Barrier, Commit, Wait)) for s in walk(stmt))


@dataclass(frozen=True, slots=True)
class _Checker:
    name: str
    common: frozenset[str]
    local: frozenset[str]
    period: int
    counts: frozenset[SymExpr]
    barriers: bool
    facts: Facts
    known: dict[tuple[Path, frozenset[tuple[str, int]]], list[Access]] = field(default_factory=dict)

    # -- control -----------------------------------------------------------------------------------------------

    def run(self, stmt: Stmt, states: _States, scope: _Scope, path: Path) -> _States:
        match stmt:
            case For(kind="block"):
                return self._block(stmt, states, scope, path)
            case For(kind="warp" | "thread"):
                return self._parallel(stmt, states, scope, path)
            case For(var=var) if self._alike((stmt.lo, stmt.hi), scope) and stmt.mark != COPY:
                if synchronises(stmt):
                    return self._loop(stmt, states, replace(scope, loops=(*scope.loops, var)), path)
                if not self._at(stmt, scope, path):
                    return states
                inner = _with_loop(stmt, scope)
                return self.run(stmt.body, self.run(stmt.body, states, inner, (*path, 0)), inner, (*path, 0))
            case If(condition=condition, then=then, otherwise=otherwise) if self._alike((condition,), scope):
                return self._if(condition, then, otherwise, states, scope, path)
            case Let(var=var, value=value, body=body):
                states = self._step(self._own_reads(stmt, scope, path, path), states)
                inner = replace(scope, values={**scope.values, var: scope.value(value)})
                if not self._alike((value,), scope):
                    inner = replace(inner, differing=scope.differing | {var})
                return self.run(body, states, inner, (*path, 0))
            case Block(body=body):
                for position, part in enumerate(body):
                    states = self.run(part, states, scope, (*path, position))
                return states
            case Allocate(body=body):
                return self.run(body, states, scope, (*path, 0))
            case Barrier(team="block"):
                return _unique(replace(s, since=frozenset()) for s in states)
            case Barrier():
                return _unique(replace(s, since=frozenset((a, True) for a, _ in s.since)) for s in states)
            case Commit():
                return _unique(self._commit(s) for s in states)
            case Wait(pending=pending):
                return _unique(_waited(s, pending, path) for s in states)
        accesses = self._at(stmt, scope, path)
        self._check_within(accesses)
        return self._step(accesses, states)

    def _block(self, loop: For, states: _States, scope: _Scope, path: Path) -> _States:
        if isinstance(loop.body, For) and loop.body.kind == "block":
            return self.run(loop.body, states, scope, (*path, 0))
        self.check_end(self.run(loop.body, (_State(),), scope, (*path, 0)))
        return states

    def check_end(self, states: _States) -> None:
        """Raise InternalError where a block ends while a copy is under way."""
        for state in states:
            for copy in (*state.open, *(a for group in state.groups for a in group)):
                raise InternalError(f"kernel {self.name}: the asynchronous copy that is {copy} is never waited for")

    def _parallel(self, loop: For, states: _States, scope: _Scope, path: Path) -> _States:
        loops, body = nest(loop)
        return self.run(body, states, _with_team(loops, scope), path + (0,) * len(loops))

    def _loop(self, loop: For, states: _States, scope: _Scope, path: Path) -> _States:
        """Iteration by iteration, until nothing new comes."""
        low, high = scope.value(loop.lo), scope.value(loop.hi)
        count = ceildiv(high - low, loop.step)
        exact = (count.as_int() or MANY) in range(2 * self._most + 1)
        exits: list[_State] = []
        todo = [(0, left, s) for split in states for left, s in self._counted(count, split)]
        seen = set(todo)
        while todo:
            number, left, state = todo.pop()
            if left == 0:
                exits.append(replace(state, counts=frozenset(c for c in state.counts if c[0] != count)))
                continue
            now = _Iteration(number, left, count, low, loop.step, exact)
            here = replace(scope, iterations={**scope.iterations, loop.var: now})
            for after in self.run(loop.body, (state,), here, (*path, 0)):
                after = replace(after, counts=frozenset(c for c in after.counts if loop.var not in c[0].dims()))
                for rest in ((MANY, self._most) if left == MANY else (left - 1,)):
                    following = (number + 1 if exact else (number + 1) % self.period, rest, after)
                    if following not in seen:
                        seen.add(following)
                        todo.append(following)
        return _unique(exits)

    @property
    def _most(self) -> int:
        """The largest number of iterations that is told from MANY."""
        return self.period + 1

    def _counted(self, count: SymExpr, state: _State) -> Iterator[tuple[int, _State]]:
        """The trip counts that `count` may be, with the state that assumes each."""
        known = count.as_int()
        if known is not None:
            yield (max(known, 0) if known <= 2 * self._most else MANY), state
            return
        assumed = dict(state.counts).get(count)
        for value in self._possible(count) if assumed is None else (assumed,):
            yield value, replace(state, counts=state.counts | {(count, value)})

    def _possible(self, count: SymExpr) -> tuple[int, ...]:
        """The trip counts that sizes allow."""
        least = next((n for n in range(self._most + 1, 0, -1) if self.facts.nonneg(count - n)), 0)
        return (MANY, *range(least, self._most + 1))

    def _if(self, condition: Expr, then: Stmt, otherwise: Stmt | None, states: _States, scope: _Scope, path: Path) -> _States:
        after: list[_State] = []
        for state in states:
            for holds, assuming in self._decided(condition, state, scope):
                if holds is not False:
                    after += self.run(then, (assuming,), scope, (*path, 0))
                if holds is not True:
                    after += (assuming,) if otherwise is None else self.run(otherwise, (assuming,), scope, (*path, 1))
        return _unique(after)

    # -- conditions on iterations ------------------------------------------------------------------------------

    def _decided(self, condition: Expr, state: _State, scope: _Scope) -> Iterator[tuple[bool | None, _State]]:
        """Whether a comparison holds (None: it may), with the states that assume so."""
        margin = _margin(condition, scope)
        if margin is None:
            yield None, state
            return
        for var, iteration in scope.iterations.items():
            ahead = dim(_left(var)) if iteration.left == MANY else SymExpr.of(iteration.left)
            if iteration.step == 1 and var in margin.dims():
                margin = margin.substitute({var: iteration.low + iteration.count - ahead})
        constant = dict(margin.terms).get((), 0)
        rest = margin - constant
        if rest.as_int() == 0:
            yield constant > 0, state
        elif any(rest == dim(_left(v)) for v in scope.iterations):
            yield (True if self._most + 1 + constant > 0 else None), state
        elif rest not in self.counts:
            yield None, state
        else:
            for value, assuming in self._counted(rest, state):
                least = self._most + 1 if value == MANY else value
                yield (None if value == MANY and least + constant <= 0 else least + constant > 0), assuming

    def _alike(self, exprs: tuple[Expr, ...], scope: _Scope) -> bool:
        return not any(_mentions(e, scope.differing) or any(isinstance(n, Load) for n in walk_expr(e)) for e in exprs)

    # -- steps -------------------------------------------------------------------------------------------------

    def _commit(self, state: _State) -> _State:
        groups = (*state.groups, state.open)
        while groups and not groups[0]:
            groups = groups[1:]
        if len(groups) > _MOST_GROUPS:
            raise InternalError(f"kernel {self.name}: more and more groups of copies are never waited for")
        return replace(state, open=frozenset(), groups=groups)

    def _step(self, accesses: list[Access], states: _States) -> _States:
        """All accesses of one step."""
        if not accesses:
            return states
        after: list[_State] = []
        for state in states:
            since, opened, filled = state.since, state.open, state.filled
            for access in accesses:
                for flying in sorted((*state.open, *(a for group in state.groups for a in group)), key=_order):
                    if not apart(flying, access):
                        raise Hazard(self.name, flying, access, None)
                for earlier, met in sorted(state.since, key=_order) if self.barriers else ():
                    team = barrier_between(earlier, access)
                    if team == "block" or (team == "warp" and not met):
                        raise Hazard(self.name, earlier, access, team)
                if not access.write and access.buffer in self.local and all(apart(access, written) for written in filled):
                    raise InternalError(f"kernel {self.name}: {access} comes before any write to it")
                if access.copies:
                    opened |= {access}
                else:
                    since |= {(access, False)}
                    filled |= {access} if access.write else set()
            after.append(replace(state, since=since, open=opened, filled=filled))
        return _unique(after)

    def _check_within(self, accesses: list[Access]) -> None:
        """The parts of a step need no order; what one Store reads and writes is the programmer's."""
        for number, later in enumerate(accesses):
            for earlier in accesses[:number]:
                if self.barriers and earlier.path != later.path and barrier_between(earlier, later) is not None:
                    raise InternalError(f"kernel {self.name}: between {earlier} and {later} threads must meet, but not all of "
                                        "them come there")

    def _at(self, stmt: Stmt, scope: _Scope, path: Path) -> list[Access]:
        """The accesses of a step, worked out once for each number of an iteration."""
        key = path, frozenset((v, x.number) for v, x in scope.iterations.items())
        if key not in self.known:
            self.known[key] = self._accesses(stmt, scope, path, path)
        return self.known[key]

    def _accesses(self, stmt: Stmt, scope: _Scope, path: Path, step: Path) -> list[Access]:
        """In order: what `stmt` reads and writes of common buffers."""
        found = self._own_reads(stmt, scope, path, step)
        if isinstance(stmt, Store) and stmt.buffer.name in self.common:
            whole = self._access(stmt.buffer.name, stmt.index, scope, path, step)
            found.append(replace(whole, write=True, copies=stmt.asynchronous))
        if isinstance(stmt, Let):
            scope = replace(scope, values={**scope.values, stmt.var: scope.value(stmt.value)})
        if isinstance(stmt, For) and stmt.kind in ("warp", "thread"):
            loops, body = nest(stmt)
            return self._accesses(body, _with_team(loops, scope), path + (0,) * len(loops), step)
        if isinstance(stmt, For):
            scope = _with_loop(stmt, scope)
        for position, child in enumerate(children(stmt)):
            there = _of_first(stmt.condition, scope) if isinstance(stmt, If) and position == 0 else scope
            found += self._accesses(child, there, (*path, position), step)
        return found

    def _own_reads(self, stmt: Stmt, scope: _Scope, path: Path, step: Path) -> list[Access]:
        return [self._access(x.buffer.name, x.index, scope, path, step) for e in expressions(stmt)
                for x in loads(e) if x.buffer.name in self.common]

    def _access(self, buffer: str, index: tuple[Expr, ...], scope: _Scope, path: Path, step: Path) -> Access:
        """A read by all threads that come here."""
        cells = [self._cell(i, scope) for i in index]
        return Access(buffer, False, False, tuple(_place(c, scope) for c in cells), _own(cells, scope), scope.warps, path, step,
                      scope.loops)

    def _cell(self, expr: Expr, scope: _Scope) -> SymExpr | None:
        """An index at the present iterations; None where the number of one counts beyond the period."""
        sym = scope.value(expr)
        now = {v: x.low + x.number * x.step for v, x in scope.iterations.items()}
        here = sym.substitute(now)
        for var, iteration in scope.iterations.items():
            if not iteration.exact and sym.substitute({**now, var: now[var] + self.period * iteration.step}) != here:
                return None
        return here


def _unique(states: Iterable[_State]) -> _States:
    return tuple(dict.fromkeys(states))


def _order(access: Access | tuple[Access, bool]) -> tuple[Path, Path, str]:
    whole = access if isinstance(access, Access) else access[0]
    return whole.step, whole.path, str(whole.place)


def _place(cell: SymExpr | None, scope: _Scope) -> int | str | None:
    if cell is None:
        return None
    only = cell.as_dim()
    told = (scope.warps or frozenset()) | (scope.lanes or frozenset())
    return only.name if only is not None and only.name in told else cell.as_int()


def _own(cells: Sequence[SymExpr | None], scope: _Scope) -> tuple[SymExpr, ...] | None:
    """The index where it tells which thread it is of."""
    known = tuple(c for c in cells if c is not None)
    if len(known) != len(cells) or scope.lanes is None:
        return None
    if any(n in scope.moving or n.startswith("%") for c in known for n in c.dims()):
        return None
    return known if (scope.warps or frozenset()) | scope.lanes <= injective(known, scope.ranges) else None


def _with_loop(loop: For, scope: _Scope) -> _Scope:
    """Inside a loop in which threads do not meet."""
    count, name = trips(loop), f"loop {len(scope.loops)} from {loop.lo} to {loop.hi} by {loop.step}"
    inner = replace(scope, loops=(*scope.loops, loop.var))
    if count is None:
        return replace(inner, moving=scope.moving | {loop.var})
    return replace(inner, values={**scope.values, loop.var: dim(name)}, ranges={**scope.ranges, name: (count, loop.step)})


def _with_team(loops: tuple[For, ...], scope: _Scope) -> _Scope:
    """Inside a nest of warps or threads. Their variables go by their place in the nest: in another nest of the same shape the
    same place is the same warp or thread."""
    shape = tuple(trips(x) for x in loops)
    names = {x.var: f"{x.kind} {n} of {shape} from {x.lo} by {x.step}" for n, x in enumerate(loops)}
    telling = frozenset(names[x.var] for x in loops if trips(x) != 1)
    from_zero = scope.from_zero | {names[x.var] for x in loops if x.lo == index(0)}
    inner = replace(scope, values={**scope.values, **{v: dim(n) for v, n in names.items()}}, from_zero=from_zero,
                    ranges={**scope.ranges, **{names[x.var]: (trips(x) or 1, x.step) for x in loops}},
                    differing=scope.differing | names.keys(), loops=(*scope.loops, *names))
    return replace(inner, warps=telling) if loops[0].kind == "warp" else replace(inner, lanes=telling)


def _of_first(condition: Expr, scope: _Scope) -> _Scope:
    """Where a condition holds: below 1 is the first warp or lane alone, which nothing need tell from others."""
    match condition:
        case Call(fn="lt", args=(Var() as var, Const(value=1))):
            name = scope.value(var).as_dim()
            if name is not None and name.name in scope.from_zero:
                return replace(scope, warps=None if scope.warps is None else scope.warps - {name.name},
                               lanes=None if scope.lanes is None else scope.lanes - {name.name})
    return scope


def _waited(state: _State, pending: int, path: Path) -> _State:
    """What arrives is written here: others may read it after a barrier from here on."""
    cut = max(0, len(state.groups) - pending)
    arrived = frozenset((replace(a, step=path, copies=False), False) for group in state.groups[:cut] for a in group)
    return replace(state, since=state.since | arrived, groups=state.groups[cut:],
                   filled=state.filled.union(*state.groups[:cut]))


def _left(var: str) -> str:
    return f"iterations left of {var}"


def _margin(condition: Expr, scope: _Scope) -> SymExpr | None:
    """What is positive where a comparison of index expressions holds."""
    if not (isinstance(condition, Call) and condition.fn in ("lt", "le", "gt", "ge") and condition.args[0].dtype == INDEX):
        return None
    a, b = (scope.value(x) for x in condition.args)
    if condition.fn in ("gt", "ge"):
        a, b = b, a
    return b - a + (1 if condition.fn in ("le", "ge") else 0)


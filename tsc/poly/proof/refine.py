"""Translation validation of the loop passes: what the final loops execute, compared with the loops that the tree gave.

Both are walked together. Where loops and guards are the same, what is within them is compared with the variables outside as
parameters; where a pass has made something else of a statement, the two are compared as a whole, for all sizes: every instance
is executed once, stores to the cell that it stored to before, and runs in an order that satisfies the dependences. A pass may
add three things: lanes beyond the end that write where no instance reads, accumulators of its own that are folded once, and a
buffer that is a copy of another, cell by cell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import gcd

from tsc.errors import InternalError
from tsc.loop_ir.map_blocks import BLOCK
from tsc.loop_ir.nodes import Allocate, Block, For, Func, If, Let, Stmt, Store, block, nest, walk
from tsc.loop_ir.simplify import substitute_stmt
from tsc.poly import PatternMismatch, isl
from tsc.poly.affine import bound_texts
from tsc.poly.proof.loop_order import Edges
from tsc.poly.proof.occurrences import Occurrence, Scope, Unreadable, occurrences
from tsc.poly.proof.region import Known, Region
from tsc.poly.scop import Scop
from tsc.sym import ZERO, SymExpr, ceildiv, dim, product
from tsc.sym.expr import Apply
from tsc.sym.facts import Facts
from tsc.sym.identities import alternatives
from tsc.te.compute import facts_of
from tsc.te.expr import Expr, Var, add, call
from tsc.te.index import to_expr, to_sym

#: isl operations that reading back one kernel may take, about ten times what attention takes.
OPERATIONS = 5_000_000


def check_lowered(before: Func, after: Func, scop: Scop, edges: Edges) -> tuple[str, ...]:
    """Raise InternalError unless `after` executes the instances of `before`, each once, in an order that `edges` allow.

    `before` is what the schedule tree gave, `after` the Func that is printed. Returns what could not be read for all sizes,
    with the reason; nothing is said of that.
    """
    if before.body == Block(()):
        return ()
    locals_ = {s.buffer.name: s.buffer for s in walk(before.body) if isinstance(s, Allocate)}
    for stmt in walk(after.body):  # accesses are within the extents of these: of no other storage is that proved
        if isinstance(stmt, Allocate) and locals_.get(stmt.buffer.name, stmt.buffer) != stmt.buffer:
            raise InternalError(f"{after.name} allocates {stmt.buffer} where its schedule has {locals_[stmt.buffer.name]}")
    tree = frozenset(locals_) | {b.name for b in before.buffers}
    both = _Both(before, scop, edges, tree, aliases={name: name for name in tree})
    scope = Scope(tuple(s.name for s in before.sizes), multiples={s.name: s.divisor for s in before.sizes},
                  sizes=facts_of(before.sizes))
    try:
        with isl.budget(OPERATIONS):
            known = Known(scop.known, scope.names.meanings, scope.names.products)
            both.walk(*inside_blocks(before, after, Place(scope, known)), frozenset())
    except PatternMismatch as why:
        both.notes.append(f"not all loops are read back for all sizes: {why}")
    return tuple(dict.fromkeys(both.notes))


@dataclass(frozen=True, slots=True)
class Place:
    """A place that both loops have: the scope, in which all variables are parameters, and what is known of them there."""

    scope: Scope
    known: Known

    def inside(self, loop: For) -> Place:
        """The place within a loop."""
        first = to_sym(loop.lo, {}).as_int()
        multiple = loop.step if first is not None and first % loop.step == 0 else 1
        inner = replace(self, scope=self.scope.parameter(loop.var, multiple).knowing(loop))
        return inner.where(" and ".join(bound_texts(loop, inner.scope.text)))

    def let(self, stmt: Let) -> Place:
        """The place within a Let."""
        return replace(self, scope=self.scope.define(stmt.var, stmt.value).knowing(stmt))

    def where(self, condition: str) -> Place:
        """The place with a condition that holds there."""
        return replace(self, known=self.known.where(self.scope.holding(condition)))

    def excludes(self, condition: str) -> bool:
        """Whether a condition cannot hold."""
        return self.known.excludes(self.scope.holding(condition))


@dataclass(frozen=True, slots=True)
class _Both:
    """`tree`: the buffers of `before`; `aliases[buffer]`: which of them a buffer of `after` stands for, cell by cell."""

    before: Func
    scop: Scop
    edges: Edges
    tree: frozenset[str]
    notes: list[str] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    seen: dict[tuple[int, int], tuple[Stmt, Scope, list[Occurrence]]] = field(default_factory=dict)

    def walk(self, old: Stmt, new: Stmt, place: Place, private: frozenset[str]) -> None:
        """Compare two statements at one place; `private` are the buffers that live nowhere but there."""
        while isinstance(old, Allocate):
            old = old.body
        while isinstance(new, (Allocate, Let)):
            if isinstance(new, Let):
                place = place.let(new)
            else:
                private = private | ({new.buffer.name} - self.tree)
                self._forget([new])
            new = new.body
        match old, new:
            case For(), For() if self._same_loop(old, new, place):
                self.walk(old.body, new.body, place.inside(old), private)
            case For(), For() if (moved := self._moved(old, new, place)) is not None:
                self.walk(moved.body, new.body, place.inside(moved), private)
            case For(), For() if (run := _run_of(old, new, place, facts_of(self.before.sizes))) is not None:
                self.walk(run[0], new.body, run[1], private)
            case If(condition=condition), If(condition=again) if condition == again:
                for a, b, side in self._sides(new, old.then, old.otherwise or Block(()), place):
                    self.walk(a, b, side, private)
            case _, If():
                for a, b, side in self._sides(new, old, old, place):
                    self.walk(a, b, side, private)
            case Store(), Store() if old == new:
                return
            case _:
                runs = list(_aligned(_parts(old), _parts(new)))
                own = any(isinstance(s, Store) and s.instance is not None and s.buffer.name in private for s in walk(new))
                if own or len(runs) == 1:  # what a buffer of a pass's own holds is judged as a whole
                    self._changed(old, new, place, private)
                    return
                for first, second in runs:
                    self.walk(block(*first), block(*second), place, private)

    def _same_loop(self, old: For, new: For, place: Place) -> bool:
        if old.var != new.var or old.step != new.step or new.kind not in ("serial", old.kind):
            return False
        sides = [(old.lo, new.lo), (old.hi, new.hi)]
        return all(to_sym(a, {}) == to_sym(b, {}) for a, b in sides) or all(
            place.excludes(f"{place.scope.text(a)} != {place.scope.text(b)}") for a, b in sides)

    def _moved(self, old: For, new: For, place: Place) -> For | None:
        """`old` with a variable that begins where that of `new` does, where they are the same loop then."""
        ahead = to_sym(old.lo, {}) - to_sym(new.lo, {})
        if ahead == ZERO or old.step != 1 or not ahead.dims() <= set(place.scope.parameters):
            return None
        offset = call("sub", old.lo, new.lo)
        loop = replace(old, lo=new.lo, hi=call("sub", old.hi, offset),
                       body=substitute_stmt(old.body, {old.var: add(Var(old.var), offset)}))
        return loop if self._same_loop(loop, new, place) else None

    def _sides(self, choice: If, then: Stmt, otherwise: Stmt, place: Place) -> Iterator[tuple[Stmt, Stmt, Place]]:
        """Both sides of an If with what they should do and where. A condition without a formula is one that may hold or not."""
        for old, new, negate in ((then, choice.then, False), (otherwise, choice.otherwise or Block(()), True)):
            yield old, new, place.where(place.scope.condition(choice.condition, negate))

    def _changed(self, old: Stmt, new: Stmt, place: Place, private: frozenset[str]) -> None:
        """Compare what a pass has made of a statement with the statement, as a whole."""
        own = [s for s in walk(new) if isinstance(s, Allocate)]
        private = private | ({s.buffer.name for s in own} - self.tree)
        self._forget(own)
        try:
            region = Region(self.before.name, place.known, self._read(old, place.scope), occurrences(new, place.scope), new,
                            private, self.scop, self.tree, self.aliases)
            region.check_reads(region.check(self.edges))
        except Unreadable as why:
            names = ", ".join(sorted(statements_of(old) | statements_of(new)))
            self.notes.append(f"the loops of {names} are not read back for all sizes: {why}")

    def _read(self, stmt: Stmt, scope: Scope) -> list[Occurrence]:
        """The Stores of one of the tree's statements, which is compared with what became of it in each branch of a choice."""
        key = id(stmt), id(scope)
        if key not in self.seen:
            self.seen[key] = stmt, scope, occurrences(stmt, scope)  # both live as long as their ids count
        return self.seen[key][-1]

    def _forget(self, begun: Iterable[Allocate]) -> None:
        """A buffer whose life begins stands for nothing, whatever one of its name did before."""
        for stmt in begun:
            if stmt.buffer.name not in self.tree:
                self.aliases.pop(stmt.buffer.name, None)


def inside_blocks(before: Func, after: Func, place: Place) -> tuple[Stmt, Stmt, Place]:
    """What is within the block loops: in `after` they are one loop over block numbers, decoded by Lets."""
    old = before.body
    loops, old = nest(old) if isinstance(old, For) and old.kind == "block" else ((), old)
    if not isinstance(after.body, For) or after.body.kind != "block":
        raise InternalError(f"the blocks of {after.name} are no loop")
    new: Stmt = after.body.body
    counts = [ceildiv(to_sym(x.hi, {}) - to_sym(x.lo, {}), x.step) for x in loops]
    if product(counts) != after.blocks:
        raise InternalError(f"{after.name} says that it has {after.blocks} blocks instead of {product(counts)}")
    for position, loop in enumerate(loops):
        number = dim(BLOCK) // product(counts[position + 1:])
        number = number % counts[position] if position else number
        wanted = to_sym(loop.lo, {}) + (0 if counts[position].as_int() == 1 else number * loop.step)
        if not isinstance(new, Let) or new.var != loop.var or to_sym(new.value, {}) != wanted:
            raise InternalError(f"the blocks of {after.name} do not give {loop.var} the value {wanted}")
        place, new = place.inside(loop), new.body
    return old, new, place


def _run_of(old: For, new: For, place: Place, facts: Facts) -> tuple[For, Place] | None:
    """`old` within one iteration of `new`, and that place, where `new` counts the quotients of `old.var + offset` by something
    positive: over all of them each iteration of `old` occurs once, and in order. None where `new` is no such loop."""
    leaves: dict[str, Expr] = {}
    lo, hi, last = to_sym(old.lo, leaves), to_sym(old.hi, leaves), to_sym(new.hi, leaves) - 1
    for monomial, coefficient in last.terms:
        match monomial:
            case (Apply(fn="//", args=(rest, by)) as quotient,) if (
                    coefficient == 1 and old.step == new.step == 1 and not leaves):
                dividend = rest + (last - SymExpr((((quotient,), 1),))) * by
                dividend += _beyond(dividend, by, hi, new, place.scope.facts())
                offset = dividend - hi + 1
                if to_sym(new.lo, leaves) != (lo + offset) // by or old.var in offset.dims() | by.dims():
                    continue
                if by.dims() <= set(place.scope.parameters) and place.excludes(f"{place.scope.size(by)} < 1"):
                    first, width = to_expr(dim(new.var) * by - offset, {}, facts), to_expr(by, {}, facts)
                    inner, start, least = place.inside(new), dim(new.var) * by, to_sym(new.lo, leaves)
                    known = [dividend - start, start + by - 1 - lo - offset]  # what isl cannot say: the run has an iteration,
                    if not any(isinstance(a, Apply) for a in least.atoms()):
                        known.append(start - least * by)                      # and none begins before the first
                    inner = inner.where(" and ".join(map(inner.scope.at_least, known)))
                    return replace(old, lo=call("max", old.lo, first), hi=call("min", old.hi, add(first, width))), inner
    return None


def _beyond(dividend: SymExpr, by: SymExpr, hi: SymExpr, new: For, facts: Facts) -> int:
    """How far beyond `dividend` the loops within begin their runs: as far as the rest of a division by a number allows, what
    is divided may have been rounded down."""
    starts = {low for loop in walk(new.body) if isinstance(loop, For) for low in alternatives(to_sym(loop.lo, {}), "max")}
    rests = range(gcd(facts.divisor(dividend), by.as_int() or 1))
    beyond = [(dim(new.var) * by - start - dividend + hi - 1).as_int() for start in starts]
    return max((more for more in beyond if more is not None and more in rests), default=0)


def statements_of(stmt: Stmt) -> frozenset[str]:
    """The names of the statements whose instances are executed."""
    return frozenset(s.instance.statement for s in walk(stmt) if isinstance(s, Store) and s.instance is not None)


def _parts(stmt: Stmt) -> list[Stmt]:
    return list(stmt.body) if isinstance(stmt, Block) else [stmt]


def _aligned(old: Sequence[Stmt], new: Sequence[Stmt]) -> Iterator[tuple[list[Stmt], list[Stmt]]]:
    """Two sequences cut into the shortest runs that execute the same statements. What executes none goes with what is behind
    it, at the end with what is before."""
    ours, theirs = list(map(statements_of, old)), list(map(statements_of, new))
    runs: list[tuple[list[Stmt], list[Stmt]]] = []
    begin = at = 0
    for i in range(len(old)):
        wanted, later = _united(ours[begin:i + 1]), _united(ours[i + 1:i + 2])
        end = next((k for k in range(at, len(new) + 1) if _united(theirs[at:k]) == wanted), None)
        if wanted and end is not None:
            while end < len(new) and theirs[end] and theirs[end] <= wanted - later:
                end += 1  # a loop cut in two
            runs.append((list(old[begin:i + 1]), list(new[at:end])))
            begin, at = i + 1, end
    if not runs:
        runs.append(([], []))
    runs[-1][0].extend(old[begin:])
    runs[-1][1].extend(new[at:])
    yield from runs


def _united(names: Sequence[frozenset[str]]) -> frozenset[str]:
    return frozenset[str]().union(*names)

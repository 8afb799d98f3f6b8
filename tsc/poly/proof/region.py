"""A statement of the tree's loops and what the passes have made of it, compared for all sizes.

Both are read with the variables outside as parameters. Every instance must be executed once and store to the cell that it
stored to before; see `refine` for the three things that a pass may add.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

from tsc.errors import InternalError
from tsc.loop_ir.cpu.folds import check_folds
from tsc.loop_ir.nodes import Stmt
from tsc.poly import isl
from tsc.poly.proof.loop_order import Edges, check_order
from tsc.poly.proof.occurrences import Occurrence, exclusive, stands_after
from tsc.poly.proof.reads import CELL, difference, own_cell
from tsc.poly.scop import Scop
from tsc.te.expr import Load, loads

#: What names mean is resolved early as long as it leaves no more pieces than this.
_PIECES = 4
#: A product is compared with so many multiples of a factor, and all products again with what that says of others.
_MULTIPLES, _ROUNDS = 64, 3
#: As many cases of what is not executed are looked at as they are.
_CASES = 40


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of the parameters: `context`, and what those with `meanings` stand for. The meanings of those that are
    `resolved` are in the context; others are looked at where needed. `never` are parameters that were excluded by the context
    and these meanings; `products` are names of products, with their factors."""

    context: isl.Set
    meanings: dict[str, isl.Set]
    products: dict[str, tuple[str, str]] = field(default_factory=dict)
    resolved: frozenset[str] = frozenset()
    never: list[tuple[isl.Set, dict[str, isl.Set]]] = field(default_factory=list)

    def where(self, condition: isl.Set) -> Known:
        """With a condition on the parameters. Many questions are asked below one place: what names in it mean is resolved
        there, as long as that leaves few cases."""
        known = replace(self, context=self.context.intersect(condition).coalesce(), never=list(self.never))
        while (name := known._open(known.context)) is not None:
            context = known.context.intersect(known.meanings[name]).coalesce()
            if context.n_basic_set() > _PIECES:
                break
            known = replace(known, context=context, resolved=known.resolved | {name})
        return known

    def ordered(self, executed: Sequence[isl.Set]) -> Known:
        """With what can be proved of the ends of loops that execute these instances. Where loops are one loop cut, an end of
        each is the begin of another, and a cut may leave no iterations: that no end lies before its begin tells that they are
        disjoint, without a look at what each end means."""
        known, tried = self.context, list[isl.Set]()
        for condition in (c for points in executed for c in _nearly(points.params())):
            if not any(condition.plain_is_equal(c) for c in tried) and self.excludes(condition.complement()):
                known = known.intersect(condition)
            tried.append(condition)
        return replace(self, context=known, never=list(self.never))

    def excludes(self, points: isl.Set) -> bool:
        """Whether there are no such points."""
        if points.is_empty():
            return True
        points = points.params()
        for never, by in self.never:
            if points.plain_is_equal(never) and all(self.meanings.get(name) is meaning for name, meaning in by.items()):
                return True
        known, left, by = self, points.intersect(self.context), {}
        while not left.is_empty():
            name = known._open(left)
            if name is None:
                return bool(known._tightened(left).is_empty())
            by[name] = self.meanings[name]
            known, left = known._without(name), left.intersect(by[name])
        self.never.append((points, by))
        return True

    def _tightened(self, points: isl.Set) -> isl.Set:
        """Points without those at which a product is no multiple of a factor: where `x * by < n * by`, x is at most n - 1, and
        the product at most that times `by`. No meaning says that, since isl would need it for every n."""
        tried = [(name, x, by) for name, (a, b) in self.products.items() for x, by in ((a, b), (b, a))]
        for _ in range(_ROUNDS):
            for name, x, by in tried:
                if all(isl.depends_on(points, n) for n in (name, x, by)):
                    points = _at_most(_at_most(points, name, x, by, 1), name, x, by, -1)
            if not tried or points.is_empty():
                break
        return points

    def _open(self, points: isl.Set) -> str | None:
        """The last name that points depend on whose meaning is not looked at yet: what others are made of comes later."""
        return next((n for n in reversed(self.meanings) if n not in self.resolved and isl.depends_on(points, n)), None)

    def _without(self, name: str) -> Known:
        return replace(self, resolved=self.resolved | {name})


def _at_most(points: isl.Set, name: str, x: str, by: str, sign: int) -> isl.Set:
    """Points where `name == x * by`, `by` being positive: with what the greatest x there is (the least for a `sign` of -1) says
    of the product."""
    def where(text: str) -> isl.Set:
        return points.intersect(isl.condition(f"[{name}, {x}, {by}]", text))

    if not where(f"{by} <= 0").is_empty():
        return points
    least = isl.least(isl.Set(f"[{x}] -> {{ [v] : v = {-sign} * {x} }}").intersect_params(points))
    most = _MULTIPLES if least is None else -least
    if least is None and not where(f"{sign} * {name} > {most} * {by}").is_empty():
        return points
    for _ in range(_MULTIPLES):
        if not where(f"{sign} * {name} >= {most} * {by} and {sign} * {x} <= {most}").is_empty():
            break
        most -= 1
    return where(f"{sign} * {x} <= {most} and {sign} * {name} <= {most} * {by}")


@dataclass(frozen=True, slots=True)
class _Run:
    """An Occurrence of statement `name`: the instances `executed`, and those -> the cells stored to."""

    name: str
    at: Occurrence
    cells: isl.Map
    executed: isl.Set

    @property
    def buffer(self) -> str:
        return self.at.store.buffer.name


@dataclass(frozen=True, slots=True)
class Region:
    """`old` and `new` are what should do the same at what is `known` of sizes and variables; `stmt` is where `new` was read.
    `private` are buffers that live nowhere else, `tree` those of the tree's loops; `aliases[b]` is which of these b stands for.
    """

    kernel: str
    known: Known
    old: Sequence[Occurrence]
    new: Sequence[Occurrence]
    stmt: Stmt
    private: frozenset[str]
    scop: Scop
    tree: frozenset[str]
    aliases: dict[str, str]

    def check(self, edges: Edges) -> list[_Run]:
        """Raise InternalError where `new` executes or stores something else. Gives what `check_reads` goes on with. Raises
        Unreadable."""
        new = [_run(x) for x in self.new if x.store.instance is not None]
        old = [_run(x) for x in self.old]
        before: dict[str, isl.Map] = {}
        wanted: dict[str, isl.Set] = {}
        for x in old:
            before[x.name] = before[x.name].union(x.cells) if x.name in before else x.cells
            wanted[x.name] = wanted[x.name].union(x.executed) if x.name in wanted else x.executed
        for name in dict.fromkeys(x.name for x in (*old, *new)):
            self._check_executed([x for x in new if x.name == name], wanted.get(name), name)
        real = self._check_surplus(new, wanted)
        elsewhere = {x.name for x in real if not self._in_place(x, before[x.name])}
        added = [x for x in self.new if x.store.instance is None]
        if elsewhere or any(not isinstance(x.store.value, Load) for x in added):  # lanes may be left to which nothing is added
            folded_into = {x.store.buffer.name for x in added}  # what is updated in its place alone is no fold's business
            reduced = elsewhere | {x.name for x in real
                                   if self.scop.statements[x.name].role == "update" and x.buffer in folded_into}
            folded = {name: self.scop.statements[name].compute for name in reduced}
            if astray := {x.store.buffer.name for x in added} & self.tree - {c.target.name for c in folded.values()}:
                raise self._wrong(f"a store to {', '.join(sorted(astray))} executes no instance")
            check_folds(self.stmt, folded)
        else:
            for x in real:
                self._alias(x.buffer, next(y.buffer for y in old if y.name == x.name))
            self._check_copies(added, real)
        check_order(self.new, edges, self.kernel, self._empty)
        return real

    def check_reads(self, real: Sequence[_Run]) -> None:
        """Raise InternalError where something else is read, a buffer of a pass's own standing for what it holds, or another
        constant stored. Raises Unreadable."""
        for x in real:
            own = own_cell(x.at)
            for load in loads(x.at.store.value):
                if load.buffer.name not in self.aliases and load != own:
                    raise self._wrong(f"{x.name} reads {load.buffer.name}, which stands for nothing")
            for y in self.old:
                if y.store.instance is not None and y.store.instance.statement == x.name:
                    found = difference(x.at, y, self.aliases, x.cells.domain(), self._empty)
                    if found is not None:
                        raise self._wrong(f"{x.name} {found}")

    def _empty(self, points: isl.Set) -> bool:
        return self.known.excludes(points)

    def _wrong(self, text: str) -> InternalError:
        return InternalError(f"the passes over the loops of {self.kernel} went wrong: {text}")

    # -- instances and their cells -----------------------------------------------------------------------------

    def _check_executed(self, found: Sequence[_Run], wanted: isl.Set | None, name: str) -> None:
        """Every instance is executed, none twice."""
        known = self.known
        if wanted is not None:
            missing = wanted
            if found:  # all of them at once: one after the other cuts what is left into more pieces
                missing = missing.subtract(reduce(lambda a, b: a.union(b), (x.executed for x in found)))
            if missing.n_basic_set() > _CASES:
                known = known.ordered([x.executed for x in found])
                whole = reduce(lambda a, b: a.union(b), (x.executed.intersect_params(known.context) for x in found))
                missing = wanted.intersect_params(known.context).subtract(whole.coalesce())
            if not known.excludes(missing):
                raise self._wrong(f"statement {name} is not executed at {missing}")
        for i, x in enumerate(found):
            if self._repeats(x.at) or any(
                    not exclusive(x.at, y.at) and not known.excludes(x.executed.intersect(y.executed)) for y in found[:i]):
                raise self._wrong(f"statement {name} is executed twice")

    def _repeats(self, x: Occurrence) -> bool:
        """Whether two points execute one instance; hardly ever does it take what is known of the parameters to exclude that."""
        if x.once_each():
            return False
        points = x.instances()
        pairs = points.apply_range(points.reverse())
        return not self._empty(pairs.subtract(points.domain().identity()).domain())

    def _check_surplus(self, found: Sequence[_Run], wanted: Mapping[str, isl.Set]) -> list[_Run]:
        """Instances beyond a domain write to cells of a private buffer that no instance uses. Gives what is within."""
        beyond = [x.executed.subtract(wanted[x.name]) if x.name in wanted else x.executed for x in found]
        within = [x if surplus.is_empty() else replace(x, cells=x.cells.intersect_domain(wanted[x.name]))
                  for x, surplus in zip(found, beyond) if x.name in wanted]
        real = [(y.buffer, y.cells.range()) for y in within]
        for x, surplus in zip(found, beyond):
            if surplus.is_empty():
                continue
            cells = x.cells.intersect_domain(surplus).range()
            used = [cells.intersect(own) for buffer, own in real if buffer == x.buffer]
            harmless = x.buffer in self.private and all(c.is_empty() for c in used)
            if not harmless and not self._empty(surplus) and not (x.buffer in self.private and all(map(self._empty, used))):
                raise self._wrong(f"{x.name} is executed outside its domain, at {surplus}")
        return within

    def _in_place(self, x: _Run, before: isl.Map) -> bool:
        """Whether instances store to the cells that they stored to before, not to accumulators of a pass's own."""
        if x.cells.dim(isl.OUT) == before.dim(isl.OUT) and self._empty(x.cells.subtract(before).domain()):
            return True
        if x.buffer in self.tree:
            raise self._wrong(f"statement {x.name} stores to another cell of {x.buffer}")
        return False

    def _alias(self, name: str, old: str) -> None:
        if self.aliases.setdefault(name, old) != old:
            raise self._wrong(f"{name} holds values of {self.aliases[name]} and of {old}")

    # -- what a pass adds --------------------------------------------------------------------------------------

    def _check_copies(self, added: Sequence[Occurrence], real: Sequence[_Run]) -> None:
        """Stores without an instance copy a buffer whole, cell by cell, once it holds its values; each such buffer is used."""
        used = {load.buffer.name for x in real if own_cell(x.at) is None for load in loads(x.at.store.value)}
        for x in added:
            source, target = x.store.value, x.store.buffer.name
            if not isinstance(source, Load) or source.buffer.name not in self.private or target in self.tree:
                raise self._wrong(f"a store to {target} executes no instance")
            writers = [y for y in real if y.buffer == source.buffer.name]
            pairs = x.relation(f"[{x.tuple_text(CELL, source.index)} -> {x.tuple_text(CELL, x.store.index)}]").range().unwrap()
            same = x.store.index == source.index or pairs.is_subset(pairs.domain().identity())
            if not writers or not same or not all(
                    stands_after(x, y.at) and self._empty(y.cells.range().subtract(pairs.domain())) for y in writers):
                raise self._wrong(f"{target} is no copy of all of {source.buffer.name}")
            self._alias(target, self.aliases[source.buffer.name])
            used.add(source.buffer.name)
        lost = {x.buffer for x in real} - used - self.tree
        if lost:
            raise self._wrong(f"what is stored to {', '.join(sorted(lost))} is not used")


def _nearly(points: isl.Set) -> Iterator[isl.Set]:
    """The inequalities of a set of parameters, each as the set where it holds or fails by one: `a <= b` for `a < b`."""
    names = [str(points.get_dim_name(isl.PARAM, i)) for i in range(points.dim(isl.PARAM))]
    for piece in isl.halfspaces(points, names):
        for factors, constant in piece:
            total = " + ".join(f"{factor} * {name}" for factor, name in zip(factors, names))
            yield isl.condition(f"[{', '.join(names)}]", f"{total or 0} + {constant + 1} >= 0")


def _run(x: Occurrence) -> _Run:
    name = "" if x.store.instance is None else x.store.instance.statement
    return _Run(name, x, *x.run(CELL, x.store.index))

"""Which instances are interpreted where there are too many: those that make the elements that are compared.

The Program's meaning was asked for some elements, and noted along each dim of each buffer what it asked for in turn. A Store
that names such an instance is left out where nobody asked for that; one that copies an input, where nobody asked for what it
copies. This only saves work: what is left out wrongly is missing where it is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tsc.loop_ir.gpu.threads import team_sizes
from tsc.loop_ir.nodes import For, Func, If, Instance, Let, Stmt, Store, children, until_bound
from tsc.te.compute import Program
from tsc.te.expr import INDEX, Call, Const, Expr, Load, Size, Var, loads, variables, walk
from tsc.validate.algebra import Array
from tsc.validate.cases import statements
from tsc.validate.frames import CASE, INDEX_CALLS, Frame, Ints, Reader, int_call, numbered, spread
from tsc.validate.program import Wanted

#: Fewer iterations are not worth a look.
_FEW = 64
#: With more iterations than the first, runs of them are looked at together: so many, then fewer.
_LONG, _RUNS = 4_096, (256, 16)
#: The first iteration of such a run, and what is behind the last one.
_FIRST, _END = "@first", "@end"


@dataclass(frozen=True, slots=True)
class Only:
    """The one coordinate that a guard lets through."""

    number: int

    def wanted(self, low: Ints, high: Ints, cases: Array) -> tuple[Array, Array]:
        """Whether all from `low` to `high` may be told, which is always, and whether it is among them."""
        return np.ones(len(cases), bool), np.asarray((low <= self.number) & (high >= self.number))


@dataclass(frozen=True, slots=True)
class _Natural:
    """A number that is not negative where what is copied is the input's, and not what stands in for it."""

    def wanted(self, low: Ints, high: Ints, cases: Array) -> tuple[Array, Array]:
        """Whether all from `low` to `high` is not negative; no element is left out for it."""
        return np.asarray(low >= 0), np.ones(len(cases), bool)


@dataclass(frozen=True, slots=True, eq=False)
class _Test:
    """`expr` is a coordinate that is wanted where `marks` say so, over all that the loops and Lets in `path` give, which are
    within the place where this is asked, outermost first; `names` are the variables that it depends on, through those too. What
    `copies` an input is needed as well where it reads outside of it or something else is stored, whatever its other
    coordinates. `exact` is the test within all of `path`. There is one test of a kind (`Pruning.made`)."""

    expr: Expr
    marks: Marks | Only | _Natural
    names: frozenset[str]
    copies: bool = False
    path: tuple[For | Let, ...] = ()
    root: _Test | None = None

    @property
    def exact(self) -> _Test:
        return self.root or self

    def answer(self, frame: Frame, reader: Reader) -> tuple[Array, Array]:
        """Whether all that a coordinate may be is within the extents, and whether something of it is wanted."""
        if not self.path:
            value = reader.ints(self.expr, frame)
            return self.marks.wanted(value, value, frame.get(CASE))
        bounds = _Spans(frame, reader, self.path).of(self.expr)
        if bounds is None:
            return np.zeros((), bool), np.zeros((), bool)  # not known: perhaps outside
        return self.marks.wanted(*bounds, frame.get(CASE))


@dataclass(frozen=True, slots=True, eq=False)
class Marks:
    """The coordinates that are wanted along one dim, in each Case: its first is at `starts`, and `counts[i]` are the marks
    before i."""

    extents: Array
    marks: Array
    counts: Array
    starts: Array

    def wanted(self, low: Ints, high: Ints, cases: Array) -> tuple[Array, Array]:
        """Whether all from `low` to `high` is within the extents, and whether something there is wanted."""
        extents, starts = self.extents[cases], self.starts[cases]
        if low is high:
            inside = np.asarray((low >= 0) & (low < extents))
            return inside, self.marks[np.where(inside, starts + low, 0)]
        inside = np.asarray((low >= 0) & (high < extents) & (low <= high))
        first, last = (np.where(inside, starts + bound, 0) for bound in (low, high))  # nothing is inside of what is empty
        return inside, np.asarray(self.counts[last + 1] > self.counts[first])

    @staticmethod
    def of(extents: Array, marks: Array) -> Marks | None:
        """From a mark for each coordinate of each Case; None where all are wanted."""
        return None if marks.all() else Marks(extents, marks, np.append(0, np.cumsum(marks)), np.cumsum(extents) - extents)


@dataclass(frozen=True, slots=True)
class Samples:
    """The values that a reduce axis takes, in order, in each Case, and its extents."""

    values: tuple[Array, ...]
    extents: Array

    def marks(self) -> Marks | None:
        """The same as Marks."""
        marks = np.zeros(int(self.extents.sum()), bool)
        for values, start in zip(self.values, np.cumsum(self.extents) - self.extents):
            marks[start + values] = True
        return Marks.of(self.extents, marks)


@dataclass(frozen=True, slots=True)
class Tested:
    """The tests of a Store, or of several alike. Where some `compute` (are instances of Computes), what surrounds them is
    needed for their sake alone."""

    tests: tuple[_Test, ...]
    computes: bool

    def together(self) -> Iterator[frozenset[str]]:
        """The variables that are asked about together."""
        yield from (t.names for t in self.tests if not t.copies)
        yield frozenset[str]().union(*(t.names for t in self.tests if t.copies))

    def question(self, var: str | None) -> tuple[_Test, ...]:
        """The tests in which a variable has a part (None: all)."""
        deciding = tuple(t for t in self.tests if var is None or var in t.names)
        if any(t.copies for t in deciding):
            return tuple(t for t in self.tests if t in deciding or t.copies)
        return deciding


def questions(tests: Sequence[Tested], var: str | None) -> tuple[tuple[_Test, ...], ...]:
    """What is to be asked of several Stores as far as a variable decides it: some of them is needed where one answer is yes."""
    return tuple(dict.fromkeys(one.question(var) for one in tests))


@dataclass(slots=True)
class Pruning:
    """What may be left out. `wanted` is by Compute, or input, of the scheduled `program`, `samples` by reduce axis; without a
    program, nothing is."""

    program: Program | None = None
    wanted: Mapping[str, Wanted] = field(default_factory=dict)
    samples: Mapping[str, Samples] = field(default_factory=dict)
    initialised: Mapping[tuple[str, tuple[Expr, ...]], Instance] = field(default_factory=dict)
    readers: dict[str, tuple[Marks | None, ...]] = field(default_factory=dict)
    found: dict[int, tuple[Tested, ...]] = field(default_factory=dict)
    statements: dict[str, tuple[Marks | None, ...] | None] = field(default_factory=dict)
    marks: dict[str, tuple[Marks | None, ...]] = field(default_factory=dict)
    made: dict[object, _Test] = field(default_factory=dict)
    guards: dict[int, tuple[tuple[Expr, Only], ...]] = field(default_factory=dict)  # by Store
    teams: bool = False

    @staticmethod
    def of(func: Func, program: Program, wanted: Mapping[str, Wanted], samples: Mapping[str, Samples]) -> Pruning:
        """What may be left out of `func`."""
        initialised = {(s.buffer.name, s.index): s.instance for s in statements(func)
                       if isinstance(s, Store) and s.instance is not None and s.instance.statement.endswith("_init")}
        made = Pruning(program, wanted, samples, initialised, teams=team_sizes(func.body) is not None)
        made.note_readers(func)
        made.note_guards(func.body, ())
        return made

    def note_guards(self, stmt: Stmt, around: tuple[tuple[Expr, Only], ...]) -> None:
        """Find what has to be equal to a number for a Store to be executed."""
        if isinstance(stmt, Store) and around:
            self.guards[id(stmt)] = around
        for child in children(stmt):
            inside = isinstance(stmt, If) and child is stmt.then
            self.note_guards(child, (*around, *_equal_to(stmt.condition)) if inside and isinstance(stmt, If) else around)

    def note_readers(self, func: Func) -> None:
        """Find the dims of local buffers that are read at coordinates of statements alone: what is stored there is needed where
        those are."""
        local = {b.name for b in func.buffers}
        for store in statements(func):
            if not isinstance(store, Store):
                continue
            known = None if store.instance is None else self._statement(store.instance.statement)
            at = {} if known is None or store.instance is None else dict(zip(store.instance.index, known))
            for load in loads(store.value):
                if load.buffer.name not in local and load.buffer != store.buffer:
                    found = tuple(at.get(i) for i in load.index)
                    before = self.readers.setdefault(load.buffer.name, found)
                    self.readers[load.buffer.name] = tuple(a if a is b else None for a, b in zip(before, found))

    def kept(self, tests: Sequence[Tested], var: str | None, frame: Frame,
             reader: Reader) -> tuple[Array | None, frozenset[object]]:
        """The instances that are needed as far as a variable decides it (None: as all do), None for all of them; and keys of
        tests that all these pass. `tests` are those of the Stores in what they execute."""
        if self.program is None or (var is not None and frame.count < _FEW):
            return None, frozenset()
        kept, certain = _needed(tests, var, frame, reader)
        return None if kept is None or kept.all() else kept, certain

    def iterations(self, loop: For, tests: Sequence[Tested], frame: Frame, low: Ints, trips: Array,
                   reader: Reader) -> tuple[Array, Array]:
        """Which iterations of a loop are looked at: for each the instance of `frame`, and its number. Of a long loop runs of
        iterations are left out where none of a run is needed."""
        places = np.arange(frame.count)
        long = self.program is not None and int(trips.sum()) > _LONG
        runs = self.around([For(loop.var, Var(_FIRST), Var(_END), loop.body, loop.step, loop.kind)], tests) if long else ()
        if not runs:
            number = numbered(trips)
            return np.repeat(places, trips), number
        begin, end = np.zeros_like(trips), trips
        for width in _RUNS:
            counts = -(-(end - begin) // width)
            number = numbered(counts)
            places, begin, end = np.repeat(places, counts), np.repeat(begin, counts) + number * width, np.repeat(end, counts)
            end = np.minimum(end, begin + width)
            base = low[places] if isinstance(low, np.ndarray) else low
            values = {_FIRST: base + begin * loop.step, _END: base + (end - 1) * loop.step + 1}
            kept, _ = _needed(runs, _FIRST, Frame(len(places), frame, places, values), reader)
            if kept is None:
                break
            places, begin, end = places[kept], begin[kept], end[kept]
        counts = end - begin
        number = numbered(counts)
        return np.repeat(places, counts), np.repeat(begin, counts) + number

    def below(self, stmt: Stmt) -> tuple[Tested, ...]:
        """The Stores in `stmt` with their tests, seen from around it; none where nothing is left out."""
        if self.program is None:
            return ()
        found = self.found.get(id(stmt))
        if found is None:
            if isinstance(stmt, Store):
                found = self._tests(stmt)
            else:
                inner = [stmt.body] if isinstance(stmt, (For, Let)) else [stmt]
                found = tuple(dict.fromkeys(t for part in inner for own in until_bound(part)
                                            if isinstance(own, (For, Let, Store)) for t in self.below(own)))
                if not self.teams and any(t.computes for t in found):
                    found = tuple(t for t in found if t.computes)
                found = self.around([stmt] if isinstance(stmt, (For, Let)) else (), found)
            self.found[id(stmt)] = found
        return found

    def around(self, stmts: Sequence[For | Let], tests: Sequence[Tested]) -> tuple[Tested, ...]:
        """Tests seen from around some loops and Lets, each within the one before."""
        for stmt in reversed(stmts) if tests else ():
            tests = tuple(dict.fromkeys(Tested(tuple(self._above(t, stmt) if stmt.var in t.names else t for t in one.tests),
                                               one.computes) for one in tests))
        return tuple(tests)

    def _above(self, test: _Test, stmt: For | Let) -> _Test:
        exprs = (stmt.lo, stmt.hi) if isinstance(stmt, For) else (stmt.value,)
        key = test, stmt.var, *exprs
        if key not in self.made:
            names = test.names.union(*map(variables, exprs))
            self.made[key] = replace(test, names=names, path=(stmt, *test.path), root=test.exact)
        return self.made[key]

    def _each(self, index: Iterable[Expr], marks: Iterable[Marks | Only | _Natural | None],
              copies: bool = False) -> tuple[_Test, ...]:
        """The tests of some coordinates."""
        some = [(e, m) for e, m in zip(index, marks) if m is not None]
        return tuple(self.made.setdefault((e, m, copies), _Test(e, m, variables(e), copies)) for e, m in some)

    def _tests(self, store: Store) -> tuple[Tested, ...]:
        """What a Store's instance, or else what it copies and who reads it, has to be; without tests, where that does not
        say, it is needed always: around a copy it may be what stands in for elements outside."""
        instance = store.instance or self._moved(store)
        known = None if instance is None else self._statement(instance.statement)
        if instance is not None and known is not None:
            guards = self.guards.get(id(store), ())
            tests = self._each((*instance.index, *(e for e, _ in guards)), (*known, *(only for _, only in guards)))
            return (Tested(tests, True),)
        inputs = () if self.program is None else {b.name for b in self.program.inputs}
        copied = [x for x in loads(store.value) if x.buffer.name in inputs and x.buffer.name in self.wanted
                  and not any(any(loads(i)) for i in x.index)]
        tests = self._each(store.index, self.readers.get(store.buffer.name, ()))
        for load in copied:
            tests += self._each(load.index, self._marks(load.buffer.name), copies=True)
        if any(t.copies for t in tests):
            decided = tuple(_naturals(store.value))
            tests += self._each(decided, [_Natural()] * len(decided), copies=True)
        return (Tested(tests, False),)

    def _moved(self, store: Store) -> Instance | None:
        """Where a Store copies an element of a local buffer, the instance that initialised it: the same variables say which."""
        match store.value:
            case Load(buffer=buffer, index=place):
                return self.initialised.get((buffer.name, place))
        return None

    def _statement(self, name: str) -> tuple[Marks | None, ...] | None:
        """The marks of each coordinate of a statement's instances; None for one that is no Compute's."""
        if name not in self.statements:
            computed, _, role = name.rpartition("_")
            compute = None if self.program is None else next((c for c in self.program.computes if c.name == computed), None)
            marks: tuple[Marks | None, ...] | None = None
            if compute is not None and computed in self.wanted:
                marks = self._marks(computed)
                if role == "update":
                    marks += tuple(self.samples[a.name].marks() for a in compute.reduce_axes)
            self.statements[name] = marks
        return self.statements[name]

    def _marks(self, name: str) -> tuple[Marks | None, ...]:
        """The marks of each coordinate of a buffer."""
        if name not in self.marks:
            wanted = self.wanted[name]
            self.marks[name] = tuple(Marks.of(extents, marks) for extents, marks in zip(wanted.extents, wanted.marks))
        return self.marks[name]


def _needed(tests: Sequence[Tested], var: str | None, frame: Frame,
            reader: Reader) -> tuple[Array | None, frozenset[object]]:
    """The instances that any of the tests needs as far as `var` decides, None for all of them; and the tests that all these
    pass."""
    kept: Array | None = None
    certain = frozenset[object]()
    known: dict[_Test, tuple[Array, Array]] = {}
    for question in questions(tests, var):
        own = _answer(question, frame, reader, known)
        if own is None:
            return None, frozenset()
        passed = frozenset(t for t in question if not t.path and not t.copies)
        kept, certain = (own, passed) if kept is None else (kept | own, certain & passed)
    return None if kept is None else spread(kept, frame.count), certain


def _answer(question: Sequence[_Test], frame: Frame, reader: Reader, known: dict[_Test, tuple[Array, Array]]) -> Array | None:
    """The instances that pass some tests, None for all of them. `known` are the answers of tests at these instances."""
    needed, copied, outside = None, None, np.zeros((), bool)
    for test in question:
        if not test.copies and test.exact in frame.certain:
            continue
        if test not in known:
            known[test] = test.answer(frame, reader)
        inside, wanted = known[test]
        if test.copies:
            copied, outside = wanted if copied is None else copied & wanted, outside | ~inside
        else:
            needed = wanted | ~inside if needed is None else needed & (wanted | ~inside)
    if copied is not None:
        needed = copied | outside if needed is None else needed & (copied | outside)
    return needed


@dataclass(slots=True)
class _Spans:
    """Between what an index lies over all iterations of the loops in `path`, at each instance of a Frame."""

    frame: Frame
    reader: Reader
    path: tuple[For | Let, ...]
    known: dict[str, tuple[Ints, Ints] | None] = field(default_factory=dict)

    def of(self, expr: Expr) -> tuple[Ints, Ints] | None:
        """The least and the greatest value, or less and more; None where that is not known."""
        match expr:
            case Var(name=name):
                return self._variable(name)
            case Const() | Size():
                value = self.reader.ints(expr, self.frame)
                return value, value
            case Call(fn=fn, args=args):
                parts = [self.of(a) for a in args]
                known = [p for p in parts if p is not None]
                return _span(fn, known) if len(known) == len(parts) else None
        return None

    def _variable(self, name: str) -> tuple[Ints, Ints] | None:
        if name not in self.known:
            around = next((p for p in self.path if p.var == name), None)
            if around is None:
                value = self.frame.get(name)
                self.known[name] = value, value
            elif isinstance(around, Let):
                self.known[name] = self.of(around.value)
            else:
                low, high = self.of(around.lo), self.of(around.hi)
                self.known[name] = None if low is None or high is None else (low[0], high[1] - 1)
        return self.known[name]


def _span(fn: str, parts: list[tuple[Ints, Ints]]) -> tuple[Ints, Ints] | None:
    """Between what an operation's result lies."""
    if fn in INDEX_CALLS and all(low is high for low, high in parts):
        made = int_call(fn, *(low for low, _ in parts))
        return made, made
    match fn, parts:
        case "add", [(a, b), (c, d)]:
            return a + c, b + d
        case "sub", [(a, b), (c, d)]:
            return a - d, b - c
        case "neg", [(a, b)]:
            return -b, -a
        case "mul", [(a, b), (c, d)]:
            if c is d and isinstance(c, int):
                return (a * c, b * c) if c >= 0 else (b * c, a * c)
            ends = (a * c, a * d, b * c, b * d)
            return int_call("min", *ends), int_call("max", *ends)
        case "floordiv", [(a, b), (c, d)] if c is d and np.asarray(c > 0).all():
            return a // c, b // c
        case "mod", [(a, b), (c, d)] if c is d and np.asarray(c > 0).all():
            whole = np.asarray(a // c == b // c)
            return np.where(whole, a % c, 0), np.where(whole, b % c, c - 1)
        case "min" | "max", _:
            return int_call(fn, *(a for a, _ in parts)), int_call(fn, *(b for _, b in parts))
    return None


def _naturals(value: Expr) -> Iterator[Expr]:
    """What is not negative where every `select` in a value takes its first operand, as far as indices alone decide that; else
    something negative."""
    for select in walk(value):
        if isinstance(select, Call) and select.fn == "select" and not any(loads(select.args[0])):
            yield from _holds(select.args[0])


def _holds(condition: Expr) -> Iterator[Expr]:
    """What is not negative only where a condition on indices holds."""
    match condition:
        case Call(fn="and", args=args):
            for arg in args:
                yield from _holds(arg)
        case Call(fn="ge" | "gt" | "le" | "lt" as fn, args=(a, b)) if a.dtype == b.dtype == INDEX:
            more, less = (a, b) if fn in ("ge", "gt") else (b, a)
            found = Call("sub", (more, less), INDEX)
            yield found if fn in ("ge", "le") else Call("sub", (found, Const(1, INDEX)), INDEX)
        case _:
            yield Const(-1, INDEX)


def _equal_to(condition: Expr) -> Iterator[tuple[Expr, Only]]:
    """What is equal to which number wherever a condition holds."""
    match condition:
        case Call(fn="and", args=args):
            for arg in args:
                yield from _equal_to(arg)
        case Call(fn="eq", args=(one, Const(value=number))) if one.dtype == INDEX and not any(loads(one)):
            yield one, Only(int(number))

"""The meaning of a te.Program, asked for where it is needed: some elements of a target, hence some of what they are made from.

Long reductions are sampled: `samples` are the values that a reduce axis takes, the same for all elements of a Case.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from tsc.sym import ZERO, SymExpr, dim
from tsc.te.compute import Axis, Carried, Compute, Monoid, Program
from tsc.te.expr import Buffer, Call, Const, Expr, Load, loads, map_children
from tsc.validate.algebra import PRIME, Algebra, Array, Value, hashed, integers, joined, key_of, mixed, residue
from tsc.validate.frames import CASE, Frame, Ints, Reader, Sizes, TooMany, Undecided, numbered, spread
from tsc.validate.sides import Side, sides_taken

#: The most elements of a reduction that are evaluated at once.
_SLAB = 1 << 18
#: The most trips of a recurrence that are made, one after the other.
_TRIPS = 1_024
#: So many coordinates of a dim, all Cases together, are marked at most.
_MARKS = 1 << 28


class Impossible(Exception):
    """The Program itself reads outside its inputs in some Cases: its facts allow more sizes than occur."""

    def __init__(self, cases: frozenset[int]) -> None:
        super().__init__(cases)
        self.cases = cases


def keys_of(count: int, seed: int) -> Array:
    """A random number for each Case."""
    return mixed(np.arange(1, count + 1, dtype=np.uint64) * np.uint64(2 * seed + 1))


@dataclass(frozen=True, slots=True)
class Inputs:
    """The elements of inputs: random numbers made from a buffer's name, the Case, and the place, which along axes as long as
    the size `alike` makes no difference. Integers are often near those in `deciding`."""

    sizes: Sizes
    keys: Array
    alike: str = ""
    deciding: tuple[int, ...] = ()

    def element(self, buffer: Buffer, flat: Array, frame: Frame) -> Value:
        """The elements at `flat`, counted row-major in the plain shape."""
        cases = np.asarray(frame.get(CASE))
        if self.alike:
            flat = without(buffer, self.alike, np.asarray(flat), self.sizes, frame)
        random = hashed(key_of(buffer.name), np.asarray(flat), self.keys[cases])
        if np.dtype(buffer.dtype).kind == "f":
            return Value(random, True)
        return Value(integers(random, buffer.dtype, self.deciding))


def without(buffer: Buffer, size: str, flat: Array, sizes: Sizes, frame: Frame) -> Array:
    """Places in a buffer, counted as if its axes of that size were not there."""
    total: Array = np.zeros((), np.int64)
    weight: Ints = 1
    for extent in reversed(buffer.shape):
        count = np.maximum(sizes.at(extent, frame), 1)
        if extent != dim(size):
            total, weight = total + flat % count * weight, weight * count
        flat = flat // count
    return total


@dataclass(slots=True)
class Wanted:
    """Which coordinates of a buffer were asked for, along each dim and in each Case."""

    extents: tuple[Array, ...]
    marks: tuple[Array, ...]
    starts: tuple[Array, ...]

    @staticmethod
    def none(shape: Iterable[SymExpr], sizes: Sizes) -> Wanted:
        """Nothing yet. Raises Undecided where a dim is too long for marks of its coordinates."""
        extents = tuple(np.broadcast_to(np.asarray(sizes.of(e)), (sizes.count,)) for e in shape)
        starts = tuple(np.cumsum(e) - e for e in extents)
        if any(int(e.sum()) > _MARKS for e in extents):
            raise Undecided("a buffer is too long")
        return Wanted(extents, tuple(np.zeros(int(e.sum()), bool) for e in extents), starts)

    def add(self, places: Iterable[Ints], cases: Array) -> None:
        """Note what is asked for."""
        for place, mark, start in zip(places, self.marks, self.starts):
            mark[start[cases] + place] = True


@dataclass(slots=True)
class _Table:
    """The elements of a target that are known, sorted by place."""

    places: Array
    values: Value


@dataclass(slots=True)
class Meaning:
    """A Program's values at the Cases in `sizes`."""

    program: Program
    sizes: Sizes
    inputs: Inputs
    algebra: Algebra
    samples: Mapping[str, tuple[Array, ...]]
    wanted: dict[str, Wanted] = field(default_factory=dict)
    tables: dict[str, _Table] = field(default_factory=dict)
    computes: dict[str, Compute] = field(default_factory=dict)
    #: The sides that were taken of choices that indices decide.
    sides: set[Side] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.computes = {c.name: c for c in self.program.computes}

    def elements(self, name: str, index: list[Array], cases: Array) -> Value:
        """Elements of a target."""
        frame = Frame(len(cases), known={CASE: cases})
        return self._ask(self.computes[name].target, list(index), frame)

    def load(self, load: Load, frame: Frame) -> Value:
        """What a Load gives, as the Reader asks for it."""
        reader = Reader(self, self.sizes, self.algebra)
        return self._ask(load.buffer, [reader.ints(i, frame) for i in load.index], frame)

    def chose(self, choice: Call, holds: Array, frame: Frame) -> None:
        """Note what came out, and the inputs on the side that is not taken: a copy of what a Load gives stores something else
        in their place."""
        _, yes, no = choice.args
        self.sides.update(sides_taken(0, choice, holds, frame))
        for side, passed in ((yes, ~holds), (no, holds)):
            if passed.any():
                self._pass(side, frame if passed.all() else frame.where(passed))

    def _pass(self, side: Expr, frame: Frame) -> None:
        reader = Reader(self, self.sizes, self.algebra)
        for load in loads(side):
            if load.buffer.name in self.computes or any(any(loads(i)) for i in load.index):
                continue
            index = [spread(reader.ints(i, frame), frame.count) for i in load.index]
            inside = np.ones(frame.count, bool)
            for place, extent in zip(index, load.buffer.shape):
                inside &= (place >= 0) & (place < self.sizes.at(extent, frame))
            self._wanted(load.buffer).add([i[inside] for i in index], np.asarray(frame.get(CASE))[inside])

    def _wanted(self, buffer: Buffer) -> Wanted:
        if buffer.name not in self.wanted:
            self.wanted[buffer.name] = Wanted.none(buffer.shape, self.sizes)
        return self.wanted[buffer.name]

    def _ask(self, buffer: Buffer, index: list[Ints], frame: Frame) -> Value:
        shape = [self.sizes.at(e, frame) for e in buffer.shape]
        flat: Ints = 0
        for place, extent in zip(index, shape, strict=True):
            outside = np.asarray(place < 0) | np.asarray(place >= extent)
            if frame.count and outside.any():
                raise Impossible(frozenset(np.broadcast_to(frame.get(CASE), (frame.count,))[
                    np.broadcast_to(outside, (frame.count,))].tolist()))
            flat = flat * extent + place
        cases = np.asarray(frame.get(CASE))
        wanted = self._wanted(buffer)
        if frame.count:
            wanted.add(index, cases)
        compute = self.computes.get(buffer.name)
        if compute is None:
            return self.inputs.element(buffer, flat, frame)
        return self._known(compute, shape, np.broadcast_to(flat, (frame.count,)), cases)

    def _known(self, compute: Compute, shape: list[Ints], flat: Array, cases: Array) -> Value:
        """Elements of a target, those that are not known yet being evaluated first."""
        total = self.sizes.of(_count(compute.target))
        counts = np.broadcast_to(np.asarray(total, np.int64), (self.sizes.count,))
        starts = np.cumsum(counts) - counts
        asked, inverse = np.unique(starts[cases] + flat, return_inverse=True)
        table = self.tables.get(compute.name)
        if table is None:
            missing = asked
        else:
            at = np.minimum(np.searchsorted(table.places, asked), max(len(table.places) - 1, 0))
            missing = asked[table.places[at] != asked] if len(table.places) else asked
        if compute.carried is not None and table is None and not len(missing):  # its body would ask for as little of itself
            return _nothing(compute.target.dtype)
        if len(missing) or table is None:
            case = np.searchsorted(starts, missing, side="right") - 1
            case = np.maximum(case, 0)
            if compute.carried is not None:
                self._earlier_trips(compute, compute.carried, missing - starts[case], case, starts)
            fresh = self._evaluate(compute, missing - starts[case], case)
            table = self.tables.get(compute.name)
            table = _Table(missing, fresh) if table is None else _merged(table, missing, fresh)
            self.tables[compute.name] = table
        return table.values.take(np.asarray(np.searchsorted(table.places, asked))[inverse])

    def _earlier_trips(self, compute: Compute, carried: Carried, flat: Array, cases: Array, starts: Array) -> None:
        """Evaluate the same places in the trips before, from the last in which all of them are known: one trip after the other,
        where to ask for them would ask for those before that."""
        frame = Frame(len(flat), known={CASE: cases})
        inner: Ints = 1
        for axis in reversed(compute.axes):
            extent = np.broadcast_to(np.maximum(self.sizes.at(axis.extent, frame), 1), (len(flat),))
            if axis.name == carried.axis:
                break
            inner = inner * extent
        trip = flat // inner % extent
        done = extent - 1 - trip if carried.reverse else trip
        if (most := int(done.max(initial=0))) > _TRIPS:
            raise TooMany(f"a recurrence makes {most} trips, one after the other")
        pending: list[tuple[Array, Array]] = []
        table = self.tables.get(compute.name)
        for back in range(1, most + 1):
            there = done >= back
            places = np.unique((flat + (back if carried.reverse else -back) * inner + starts[cases])[there])
            unknown = places if table is None else places[~np.isin(places, table.places, assume_unique=True)]
            if not len(unknown):
                break
            pending.append((unknown, np.maximum(np.searchsorted(starts, unknown, side="right") - 1, 0)))
        if pending:  # what they read of other targets, which may be recurrences too, for all trips at once
            own = frozenset(c.name for c in self.program.computes if c.carried is not None and c.carried.name == carried.name)
            places, case = (np.concatenate(parts) for parts in zip(*pending))
            self._evaluate(replace(compute, body=_apart(compute.body, own)), places - starts[case], case)
        for places, case in reversed(pending):
            table = self.tables.get(compute.name)
            left = np.ones(len(places), bool) if table is None else ~np.isin(places, table.places, assume_unique=True)
            places, case = places[left], case[left]
            if len(places):
                fresh = self._evaluate(compute, places - starts[case], case)
                table = self.tables.get(compute.name)
                self.tables[compute.name] = _Table(places, fresh) if table is None else _merged(table, places, fresh)

    def _evaluate(self, compute: Compute, flat: Array, cases: Array) -> Value:
        frame = Frame(len(flat), known={CASE: cases})
        for axis in reversed(compute.axes):
            extent = self.sizes.at(axis.extent, frame)
            frame.known[axis.name] = flat % np.maximum(extent, 1)
            flat = flat // np.maximum(extent, 1)
        if compute.monoid is None:
            return self._body(compute, frame)
        dtype = compute.target.dtype
        if any(axis.extent == ZERO for axis in compute.reduce_axes):  # a constant, as loops have it
            return self._body(replace(compute, body=Const(compute.monoid.identity(dtype), dtype)), frame)
        kind = np.dtype(dtype)
        identity = Value(np.asarray(compute.monoid.identity(dtype), kind))
        total = Value(residue(identity), True) if kind.kind == "f" else identity
        total = Value(np.broadcast_to(total.data, (frame.count,)).copy(), total.is_data)
        if not frame.count:
            return total
        # elements of one place in the samples at a time, over as many places as fit
        trips = [np.array([len(s) for s in self.samples[a.name]]) for a in compute.reduce_axes]
        every: Array = np.asarray(np.prod(np.stack(trips), axis=0))
        counts = every[cases]
        ends: Array = np.cumsum(counts)
        begin = 0
        while begin < frame.count:
            done = ends[begin - 1] if begin else 0
            end = max(begin + 1, int(np.searchsorted(ends, done + _SLAB, side="right")))
            self._reduce(compute, frame, begin, end, counts, trips, total)
            begin = end
        return total

    def _reduce(self, compute: Compute, frame: Frame, begin: int, end: int, counts: Array, trips: list[Array],
                total: Value) -> None:
        """Fold the samples of elements `begin` to `end` into `total`."""
        own = counts[begin:end]
        if not own.any() or compute.monoid is None:
            return
        owner = np.repeat(np.arange(begin, end), own)
        number = numbered(own)
        inner = Frame(len(owner), frame, owner)
        cases = inner.get(CASE)
        for axis, trip in zip(reversed(compute.reduce_axes), reversed(trips)):
            values, starts = _joined(self.samples[axis.name])
            inner.known[axis.name] = values[starts[cases] + number % trip[cases]]
            number = number // trip[cases]
        body = self._body(compute, inner)
        starts = np.cumsum(own) - own
        filled = own > 0
        data = np.broadcast_to(body.data, (len(owner),))
        total.data[begin:end][filled] = _folded(compute.monoid.fn, data, starts[filled], total.is_data, self.algebra)

    def _body(self, compute: Compute, frame: Frame) -> Value:
        made = Reader(self, self.sizes, self.algebra).value(compute.body, frame)
        return made.each(lambda array: np.broadcast_to(array, (frame.count,)))


def _apart(expr: Expr, own: frozenset[str]) -> Expr:
    """`expr` with a constant for all that the targets `own` give or decide: it reads nothing that `expr` may not read."""
    decided = expr if isinstance(expr, Load) else expr.args[0] if isinstance(expr, Call) and expr.fn == "select" else None
    if decided is not None and any(load.buffer.name in own for load in loads(decided)):
        return Const(0, expr.dtype)
    return map_children(lambda part: _apart(part, own), expr)


def _folded(fn: str, data: Array, starts: Array, is_data: bool, algebra: Algebra) -> Array:
    """Runs of elements that begin at `starts`, each folded by a monoid."""
    if is_data and fn == "add":
        return np.asarray(np.add.reduceat(data, starts) % np.uint64(PRIME))
    if not is_data and fn in ("add", "mul"):
        return np.asarray((np.add if fn == "add" else np.multiply).reduceat(data, starts, dtype=data.dtype))
    if not is_data:
        return np.asarray({"max": np.maximum, "min": np.minimum, "and": np.logical_and, "or": np.logical_or}[fn].reduceat(
            data, starts))
    ends = np.append(starts[1:], len(data))
    while (ends - starts > 1).any():  # in halves
        sizes = ends - starts
        half = (sizes + 1) // 2
        first = np.cumsum(half) - half
        owner = np.repeat(np.arange(len(half)), half)
        number = np.arange(len(owner)) - first[owner]
        left = starts[owner] + number
        right = left + half[owner]
        two = right < ends[owner]
        made = data[left]
        made[two] = algebra.call(fn, "float32", Value(data[left[two]], True), Value(data[right[two]], True)).data
        data, starts, ends = made, first, first + half
    return data[starts]


def _joined(samples: tuple[Array, ...]) -> tuple[Array, Array]:
    lengths = np.array([len(s) for s in samples])
    return np.concatenate(samples), np.cumsum(lengths) - lengths


def _nothing(dtype: str) -> Value:
    """No elements of a dtype."""
    empty = Value(np.empty(0, dtype))
    return Value(residue(empty), True) if empty.data.dtype.kind == "f" else empty


def _merged(table: _Table, places: Array, values: Value) -> _Table:
    every = np.concatenate([table.places, places])
    order = np.argsort(every, kind="stable")
    return _Table(every[order], joined(table.values, len(table.places), values, len(places)).take(order))


def _count(buffer: Buffer) -> SymExpr:
    total = SymExpr.of(1)
    for extent in buffer.shape:
        total = total * extent
    return total


def reduce_axes(program: Program) -> tuple[tuple[Axis, Monoid], ...]:
    """All reduce axes of a Program, with what they reduce by."""
    return tuple((a, c.monoid) for c in program.computes for a in c.reduce_axes if c.monoid is not None)

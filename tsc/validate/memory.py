"""Who wrote what a Load reads: all writes to a buffer in order, found by place and time.

A write is a place and a time. A Load at a time gives the newest write before it; where there is none, poison. Updates by a
monoid (`b[i] = b[i] + e`) are folded into what was there all at once, without walking through time.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from tsc.loop_ir.nodes import Store
from tsc.te.expr import Buffer, Call, Expr, Load, loads
from tsc.validate.algebra import PRIME, Algebra, Array, Exact, Value
from tsc.validate.frames import Fault, Frame, Undecided, spread

#: Variables of a Frame: when an instance stores, and when it reads (the lanes of a vector all read before any of them stores).
TIME, SEEN, BLOCK = "@time", "@seen", "@block"
_MONOIDS = frozenset({"add", "mul", "max", "min", "and", "or"})


@dataclass(slots=True, eq=False)
class Storage:
    """A buffer of the loops: an argument, or one allocation. `base` is the variable that says where a Frame's own begins.
    `span` is more than any time; `keys` and what follows are set when all writes are known. Where a place and a time do not fit
    into a number, `names` are the places and `moments` the times that occur, each counted. Numbers behind residues are held as
    well, but of sums: where values `accumulate`, on the way or in the end, none are known."""

    buffer: Buffer
    base: str
    outside: bool
    span: int = 1
    writers: list[Leaf] = field(default_factory=list)
    keys: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    data: Array = field(default_factory=lambda: np.zeros(0, np.uint64))
    poison: Array = field(default_factory=lambda: np.zeros(0, bool))
    done: Array = field(default_factory=lambda: np.zeros(0, bool))
    exact: Exact | None = None
    accumulate: bool = False
    blocks: Array | None = None
    names: Array | None = None
    moments: Array | None = None
    width: int = 1

    @property
    def holds_data(self) -> bool:
        """Whether its elements are residues."""
        return np.dtype(self.buffer.dtype).kind == "f"

    def settle(self) -> None:
        """Put all writes in order; their values are still to be had."""
        cells = np.concatenate([leaf.cells for leaf in self.writers])
        times = np.concatenate([leaf.times(TIME) for leaf in self.writers])
        self.width = self.span
        if len(cells) and (int(cells.max()) + 1) * self.span >= 2**62:
            self.names, self.moments = _distinct(cells), _distinct(times)
            self.width = len(self.moments) + 1
        keys = self._numbers(cells) * self.width + self._since(times)
        order = np.argsort(keys, kind="stable")
        self.keys = keys[order]
        if (self.keys[1:] == self.keys[:-1]).any():
            raise Fault(f"two stores to {self.buffer.name} happen at once")
        slots = np.empty(len(order), np.int64)
        slots[order] = np.arange(len(order))
        begin = 0
        for leaf in self.writers:
            leaf.slots = slots[begin:begin + leaf.frame.count]
            begin += leaf.frame.count
        kind = np.dtype(np.uint64) if self.holds_data else np.dtype(self.buffer.dtype)
        self.data, self.poison = np.zeros(len(order), kind), np.zeros(len(order), bool)
        self.done = np.zeros(len(order), bool)
        self._check_apart(np.concatenate([leaf.times(SEEN) for leaf in self.writers])[order], cells[order])
        if self.outside:
            self.blocks = np.concatenate([leaf.times(BLOCK) for leaf in self.writers])[order]
            if ((self.blocks[1:] != self.blocks[:-1]) & (cells[order][1:] == cells[order][:-1])).any():
                raise Fault(f"two blocks write one element of {self.buffer.name}")

    def _check_apart(self, seen: Array, cells: Array) -> None:
        """Of the lanes of a vector each writes an element of its own."""
        if ((seen[1:] == seen[:-1]) & (cells[1:] == cells[:-1])).any():
            raise Fault(f"two lanes of a vector write one element of {self.buffer.name}")

    def find(self, cells: Array, seen: Array) -> Array:
        """The newest write to each cell before a time, -1 where there is none."""
        if not len(self.keys):
            return np.full(len(cells), -1)
        numbers = self._numbers(cells)
        at = np.searchsorted(self.keys, numbers * self.width + self._since(seen)) - 1
        found = (at >= 0) & (self.keys[at] // self.width == numbers)
        return np.where(found if self.names is None else found & (self.names[numbers] == cells), at, -1)

    def _numbers(self, cells: Array) -> Array:
        """The places of cells among those that are written at all, where places themselves are too large."""
        return cells if self.names is None else np.minimum(np.searchsorted(self.names, cells), len(self.names) - 1)

    def _since(self, times: Array) -> Array:
        """Times as numbers in the same order: how many of those at which something is written are earlier, where needed."""
        return times if self.moments is None else np.searchsorted(self.moments, times)

    def read(self, cells: Array, seen: Array, blocks: Array | None = None) -> Value:
        """The values at some cells. Raises Fault where a block reads what another one wrote."""
        at = self.find(cells, seen)
        missing = at < 0
        if self.blocks is not None and blocks is not None and len(self.blocks) and (
                ~missing & (self.blocks[at] != blocks)).any():
            raise Fault(f"a block reads what another one writes to {self.buffer.name}")
        if not len(self.keys):
            return Value(np.zeros(len(cells), self.data.dtype), self.holds_data, missing)
        if not self.done.all() and not self.done[at[~missing]].all():
            raise Undecided(f"{self.buffer.name} is read before it is known")
        poison = missing | self.poison[at]
        exact = None if self.exact is None else self.exact.each(lambda array: array[at])
        if exact is not None and missing.any():
            exact = replace(exact, known=exact.known & ~missing)
        return Value(self.data[at], self.holds_data, poison if poison.any() else None, exact)

    def put(self, slots: Array, value: Value) -> None:
        """Values of some writes; of an update, what it adds."""
        self.data[slots] = value.data
        if value.poison is not None:
            self.poison[slots] = value.poison
        if value.exact is not None and not self.accumulate:
            if self.exact is None:
                self.exact = Exact(np.zeros(len(self.data), np.dtype(self.buffer.dtype)), np.zeros(len(self.data), bool))
            self.exact.data[slots], self.exact.known[slots] = value.exact.data, value.exact.known
        self.done[slots] = True

    def fold(self, algebra: Algebra) -> None:
        """Turn what updates add into what is there after them."""
        updates = [leaf for leaf in self.writers if leaf.operand is not None]
        if not updates or not len(self.keys):
            return
        is_update = np.zeros(len(self.keys), bool)
        for leaf in updates:
            is_update[leaf.slots] = True
        cells = self.keys // self.width
        first = np.append(True, cells[1:] != cells[:-1])
        self.poison |= first & is_update  # nobody initialised it
        starts = np.flatnonzero(first | ~is_update)
        lengths = np.diff(np.append(starts, len(self.keys)))
        owner = np.repeat(starts, lengths)
        counts = np.cumsum(self.poison)
        self.poison = counts - counts[owner] + self.poison[owner] > 0
        fns = {leaf.fn for leaf in updates}
        if fns == {"add"} and not algebra.ordered:
            kind = self.data.dtype
            sums = np.cumsum(self.data, dtype=np.uint64 if kind.kind == "u" else np.int64)
            own = sums - (sums[owner] - self.data[owner].astype(sums.dtype))
            self.data = np.asarray(own % np.uint64(PRIME) if self.holds_data else own.astype(kind))
            return
        self._fold_in_order(np.arange(len(self.keys)) - owner, updates, algebra)

    def _fold_in_order(self, ranks: Array, updates: list[Leaf], algebra: Algebra) -> None:
        names = sorted({leaf.fn for leaf in updates})
        which = np.zeros(len(ranks), np.int64)
        for leaf in updates:
            which[leaf.slots] = names.index(leaf.fn)
        order = np.argsort(ranks, kind="stable")
        ends = np.cumsum(np.bincount(ranks))
        for begin, end in pairwise(ends):
            every = order[begin:end]
            for number, name in enumerate(names):
                some = every if len(names) == 1 else every[which[every] == number]
                before, added = (Value(self.data[k], self.holds_data) for k in (some - 1, some))
                self.data[some] = algebra.call(name, self.buffer.dtype, before, added).data


@dataclass(slots=True, eq=False)
class Leaf:
    """The instances of one Store. An update by a monoid has an `operand`, and `fn` is the monoid's."""

    store: Store
    frame: Frame
    storage: Storage
    scope: dict[str, Storage]
    fn: str = ""
    operand: Expr | None = None
    cells: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    slots: Array = field(default_factory=lambda: np.zeros(0, np.int64))

    def times(self, name: str) -> Array:
        """One of the variables that all instances have."""
        return spread(np.asarray(self.frame.get(name), np.int64), self.frame.count)

    @property
    def value(self) -> Expr:
        """What has to be evaluated: the value stored, or the operand of an update."""
        return self.store.value if self.operand is None else self.operand


def update_of(store: Store) -> tuple[str, Expr] | None:
    """The monoid and the operand of `b[i] = b[i] op e`, None for any other Store."""
    match store.value:
        case Call(fn=fn, args=(a, b)) if fn in _MONOIDS:
            for own, operand in ((a, b), (b, a)):
                if own == Load(store.buffer, store.index) and all(x.buffer.name != store.buffer.name for x in loads(operand)):
                    return fn, operand
    return None


def _distinct(numbers: Array) -> Array:
    """Those that occur, in order. (`np.unique` hashes: ten times as long for many numbers that lie close together.)"""
    found: Array = np.sort(numbers)
    return np.asarray(found[np.append(True, found[1:] != found[:-1])])

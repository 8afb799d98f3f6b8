"""The meaning of a Func, for all Cases and iterations at once.

The loops are unrolled into Frames, one for each Store (`Loops`), in which an instance knows when it is executed. Then buffers
are filled one after the other, each when all that its stores read is known (`evaluated`); the loops themselves are never walked
through.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod
from typing import TypeAlias

import numpy as np

from tsc.loop_ir.map_blocks import BLOCK_BEGIN, BLOCK_END
from tsc.loop_ir.nodes import Allocate, Block, For, Func, If, Intrin, Let, Stmt, Store, walk
from tsc.plan.pack import packed
from tsc.sym import product
from tsc.te import layout
from tsc.te.expr import Buffer, Call, Expr, Load, children, format_expr, loads
from tsc.validate.algebra import Algebra, Array, Value
from tsc.validate.frames import CASE, Fault, Frame, Ints, Reader, Sizes, TooMany, Undecided, spread
from tsc.validate.memory import BLOCK, SEEN, TIME, Leaf, Storage, update_of
from tsc.validate.nest import iterations, nest_of
from tsc.validate.program import Inputs
from tsc.validate.sampled import Pruning
from tsc.validate.sides import Side, decided_by_index, sides_taken

_LATEST = 2**62
#: So many instances of a statement are looked at: a few hundred bytes each.
MOST_INSTANCES = 1 << 22
#: With so many instances, a nest is asked anew which of them need it.
_MANY = 512


@dataclass(slots=True)
class _Hand:
    """A part of a time: `weight` for each unit of a variable, or as it is. It is known when all that is inside was seen."""

    variable: str = ""
    weight: int = 0


@dataclass(frozen=True, slots=True)
class _Clock:
    """When an instance of a statement is executed: the sum of its hands. The lanes of a vector and the threads of a block do
    each statement together, all reading before any of them stores: `lanes` are the variables that number them, and how many."""

    hands: tuple[_Hand, ...] = ()
    lanes: tuple[tuple[str, int], ...] = ()

    def with_hand(self, hand: _Hand) -> _Clock:
        """With one more hand."""
        return replace(self, hands=(*self.hands, hand))

    def time(self, frame: Frame) -> Ints:
        """The time of each instance, not counting the lane."""
        total: Ints = sum(hand.weight for hand in self.hands if not hand.variable)
        for hand in self.hands:
            if hand.variable:
                total = total + frame.get(hand.variable) * hand.weight
        return total

    def lane(self, frame: Frame) -> Ints:
        """The number of each instance's lane."""
        total: Ints = 0
        for variable, count in self.lanes:
            total = total * count + frame.get(variable)
        return total

    def together(self) -> int:
        """How many lanes there are."""
        return prod(count for _, count in self.lanes)


@dataclass(slots=True)
class Loops:
    """The instances of a Func's stores. Use `evaluated`."""

    func: Func
    sizes: Sizes
    inputs: Inputs
    algebra: Algebra
    pruning: Pruning
    storages: list[Storage] = field(default_factory=list)
    leaves: list[Leaf] = field(default_factory=list)
    clocks: list[_Clock] = field(default_factory=list)
    #: In which Cases each condition, by `id`, that data decide did not hold somewhere, and in which it did.
    outcomes: dict[int, Array] = field(default_factory=dict)
    #: The sides that were taken of choices within Stores that indices decide.
    sides: set[Side] = field(default_factory=set)

    def unroll(self) -> dict[str, Storage]:
        """Find all instances; gives the storage of the Func's own buffers."""
        cases = np.arange(self.sizes.count)
        blocks = self.sizes.of(self.func.blocks)
        root = Frame(self.sizes.count, known={CASE: cases, BLOCK: 0, BLOCK_BEGIN: 0, BLOCK_END: blocks})
        scope: dict[str, Storage] = {}
        for buffer in self.func.buffers:
            counts = spread(self.sizes.of(product(buffer.shape)), self.sizes.count)
            root.known[f"@base {buffer.name}"] = np.cumsum(counts) - counts
            scope[buffer.name] = Storage(buffer, f"@base {buffer.name}", True)
        span = self._visit(self.func.body, root, _Clock(), scope)
        if span >= _LATEST:
            raise TooMany("its loops take too long at each of the sizes tried")
        self.storages += scope.values()
        folded = {stmt.buffer.name for stmt in walk(self.func.body) if isinstance(stmt, Store) and update_of(stmt)}
        for storage in self.storages:  # also where nothing is folded at these sizes: nobody knows what nothing is then, either
            storage.span, storage.accumulate = span + 1, storage.buffer.name in folded
        for leaf, clock in zip(self.leaves, self.clocks):
            seen = clock.time(leaf.frame)
            leaf.frame.known |= {SEEN: seen, TIME: seen + clock.lane(leaf.frame)}
        return scope

    # -- statements --------------------------------------------------------------------------------------------

    def _visit(self, stmt: Stmt, frame: Frame, clock: _Clock, scope: dict[str, Storage]) -> int:
        """Find the instances of all Stores in `stmt`; gives how long it takes."""
        if not frame.count:
            return 0
        if frame.count > MOST_INSTANCES:
            raise TooMany(f"more than {MOST_INSTANCES} instances would have to be looked at")
        match stmt:
            case Store():
                return self._store(stmt, frame, clock, scope)
            case For():
                return self._loop(stmt, frame, clock, scope)
            case If(condition=condition, then=then, otherwise=otherwise):
                test = self._reader(scope).condition(condition, frame)
                sides = ((then, test), (otherwise, ~test))
                return max(self._visit(side, frame.where(spread(kept, frame.count)), clock, scope)
                           for side, kept in sides if side is not None)
            case Let(var=var, value=value, body=body):
                return self._visit(body, frame.bound(**{var: self._reader(scope).ints(value, frame)}), clock, scope)
            case Block(body=parts):
                total = 0
                for part in parts:
                    total += self._visit(part, frame, clock.with_hand(_Hand(weight=total)), scope)
                return total
            case Allocate():
                return self._allocate(stmt, frame, clock, scope)
            case Intrin(meaning=meaning):
                return self._visit(meaning, frame, clock, scope)
        return 0  # what orders threads: they run one after the other here

    def _loop(self, loop: For, frame: Frame, clock: _Clock, scope: dict[str, Storage]) -> int:
        if frame.count >= _MANY:  # what a nest around this one was needed for may be something else
            kept, _ = self.pruning.kept(self.pruning.below(loop), None, frame, self._reader(scope))
            frame = frame if kept is None else frame.where(kept)
        loops, body = nest_of(loop)
        found = iterations(loops, body, frame, self._reader(scope), self.pruning)
        if not found.frame.count:
            return 0
        hands = []
        for one, number, most in zip(loops, found.numbers, found.most):
            if one.kind in ("vector", "warp", "thread"):
                clock = replace(clock, lanes=(*clock.lanes, (number, most)))
            else:
                hands.append((_Hand(number), most))
            if one.kind == "block":
                found.frame.known[BLOCK] = found.frame.get(BLOCK) * most + found.frame.get(number)
        time = self._visit(body, found.frame, replace(clock, hands=(*clock.hands, *(hand for hand, _ in hands))), scope)
        for hand, most in reversed(hands):
            hand.weight, time = time, time * most
        return time

    def _allocate(self, stmt: Allocate, frame: Frame, clock: _Clock, scope: dict[str, Storage]) -> int:
        base = f"@base {stmt.buffer.name} {len(self.storages)}"
        counts = np.maximum(spread(self.sizes.at(product(stmt.buffer.shape), frame), frame.count), 0)  # below: nothing is kept
        storage = Storage(stmt.buffer, base, False)
        self.storages.append(storage)
        inner = frame.bound(**{base: np.cumsum(counts) - counts})
        return self._visit(stmt.body, inner, clock, {**scope, stmt.buffer.name: storage})

    def _store(self, store: Store, frame: Frame, clock: _Clock, scope: dict[str, Storage]) -> int:
        kept, _ = self.pruning.kept(self.pruning.below(store), None, frame, self._reader(scope))
        frame = frame.bound() if kept is None else frame.where(kept)
        if frame.count:
            leaf = Leaf(store, frame, scope[store.buffer.name], scope, *(update_of(store) or ("", None)))
            leaf.storage.writers.append(leaf)
            self.leaves.append(leaf)
            self.clocks.append(clock)
        return clock.together()

    # -- memory ------------------------------------------------------------------------------------------------

    def _reader(self, scope: dict[str, Storage], store: Store | None = None) -> Reader:
        return Reader(_Scoped(self, scope, store), self.sizes, self.algebra)

    def cells(self, buffer: Buffer, index: Iterable[Ints], frame: Frame, what: str) -> tuple[Ints, Array | None]:
        """Where an access goes in the layout that it names, and which instances read padding behind the last panel."""
        shape = [self.sizes.at(e, frame) for e in buffer.shape]
        places, padded = list(index), None
        for dim, (place, extent) in enumerate(zip(places, shape, strict=True)):
            limit = extent
            if buffer.panel is not None and buffer.panel[0] == dim:
                width = buffer.panel[1]
                limit = -(-extent // width) * width
                padded = np.asarray(place >= extent)
            if np.asarray(place < 0).any() or np.asarray(place >= limit).any():
                wrong = np.broadcast_to((place < 0) | np.asarray(place >= limit), (frame.count,))
                at = tuple(int(np.broadcast_to(p, (frame.count,))[wrong][0]) for p in places)
                raise Fault(f"{what} accesses {buffer} at {at}, outside its extents")
        if buffer.panel is not None:
            return _panelled(places, shape, buffer.panel, buffer.beside), padded
        flat: Ints = 0
        for place, extent in zip(places, shape):
            flat = flat * extent + place
        return flat, None


@dataclass(frozen=True, slots=True)
class _Scoped:
    """What Loads mean where some storages are visible, in what `store` evaluates, if any."""

    loops: Loops
    scope: dict[str, Storage]
    store: Store | None = None

    def chose(self, choice: Call, holds: Array, frame: Frame) -> None:
        """Note what came out, where data decide in which Cases."""
        condition = choice.args[0]
        self.loops.sides.update(sides_taken(id(self.store), choice, holds, frame))
        if frame.count and not decided_by_index(condition):
            seen = self.loops.outcomes.setdefault(id(condition), np.zeros((2, self.loops.sizes.count), bool))
            seen[spread(holds, frame.count).astype(np.int64), frame.get(CASE)] = True

    def load(self, load: Load, frame: Frame) -> Value:
        loops, storage = self.loops, self.scope[load.buffer.name]
        reader = Reader(self, loops.sizes, loops.algebra)
        index = [reader.ints(i, frame) for i in load.index]
        cells, padded = loops.cells(load.buffer, index, frame, "a load")
        if storage.outside and load.buffer.name not in loops.func.outputs:
            if storage.buffer.panel is None and load.buffer.panel is None:
                return loops.inputs.element(storage.buffer, cells, frame)
            plain = _unpacked(storage.buffer, spread(cells, frame.count), frame, loops.sizes)
            found = loops.inputs.element(storage.buffer, np.maximum(plain, 0), frame)
            missing = plain < 0 if padded is None else (plain < 0) | padded
            return Value(found.data, found.is_data, np.asarray(missing)) if missing.any() else found
        try:
            seen = frame.get(SEEN)
        except KeyError:
            raise Undecided(f"what is executed depends on {load.buffer.name}, which the kernel computes") from None
        base = frame.get(storage.base)
        return storage.read(spread(base + cells, frame.count), spread(seen, frame.count),
                            spread(frame.get(BLOCK), frame.count) if storage.outside else None)


def _panelled(places: list[Ints], shape: list[Ints], panel: tuple[int, int], beside: layout.Beside | None) -> Ints:
    """Where an element is stored: the panel, then the other dims in order, then the place in the panel, and which of those
    that are side by side."""
    axis, width = panel
    along, count = beside or (-1, 1)
    flat: Ints = places[axis] // width
    for dim, (place, extent) in enumerate(zip(places, shape)):
        if dim != axis:
            flat = flat * (extent // count) + place // count if dim == along else flat * extent + place
    flat = flat * width + places[axis] % width
    return flat if beside is None else flat * count + places[along] % count


def _unpacked(buffer: Buffer, cells: Array, frame: Frame, sizes: Sizes) -> Array:
    """Which element of the plain constant the plan's own packing puts at each place, -1 for padding."""
    if buffer.panel is None:
        return cells
    cases = np.broadcast_to(frame.get(CASE), cells.shape)
    shapes = [np.broadcast_to(np.asarray(sizes.of(e)), (sizes.count,)) for e in buffer.shape]
    plain = np.empty(len(cells), np.int64)
    every = np.stack(shapes, axis=1)
    for shape in np.unique(every, axis=0):
        own = (every == shape).all(axis=1)[cases]
        if own.any():
            plain[own] = _unpacked_shape(tuple(int(n) for n in shape), (*buffer.panel, buffer.beside), cells[own])
    return plain


def _unpacked_shape(shape: tuple[int, ...], panel: Panel, cells: Array) -> Array:
    axis, width, beside = panel
    along, count = beside or (-1, 1)
    block = prod(n for dim, n in enumerate(shape) if dim != axis) * width
    numbers = cells // block
    if (numbers >= -(-shape[axis] // width)).any():
        raise Fault(f"a load reads behind the last panel of a constant of shape {shape}")
    panels, inverse = np.unique(numbers, return_inverse=True)
    if block * len(panels) <= _MOST_KEPT:
        made = _packed_places(shape, panel, tuple(int(p) for p in panels))
        return np.asarray(made[inverse * block + cells % block])
    others, rest = [dim for dim in range(len(shape)) if dim != axis], cells % block
    which, rest = rest % count, rest // count  # of those side by side; what follows is said of panels without
    found = np.unravel_index(rest // width, [shape[dim] // count if dim == along else shape[dim] for dim in others])
    places = [at * count + which if dim == along else at for dim, at in zip(others, found)]
    read = [np.unique(at, return_inverse=True) for at in places]
    made = _pack_places(shape, (axis, width, None), panels, [places for places, _ in read])
    at = np.ravel_multi_index((inverse, *(at for _, at in read)), (len(panels), *(len(places) for places, _ in read)))
    return np.asarray(made[at * width + rest % width])


#: The axis of panels, their width, and what is side by side in them.
Panel: TypeAlias = tuple[int, int, layout.Beside | None]
#: Elements of packed panels that are kept for the next load: a few of a large constant would be gigabytes.
_MOST_KEPT = 1 << 20


@lru_cache(maxsize=32)
def _packed_places(shape: tuple[int, ...], panel: Panel, panels: tuple[int, ...]) -> Array:
    """Some panels as a whole."""
    return _pack_places(shape, panel, np.array(panels), [np.arange(n) for dim, n in enumerate(shape) if dim != panel[0]])


def _pack_places(shape: tuple[int, ...], panel: Panel, panels: Array, others: Sequence[Array]) -> Array:
    """The plain places of the elements of some panels at some places of the `others` dims, as the plan's packing stores them;
    -1 is padding."""
    axis, width, _ = panel
    along = list(others)
    along.insert(axis, np.concatenate([np.arange(p * width, min((p + 1) * width, shape[axis])) for p in panels]))
    places = np.zeros((), np.int32 if prod(shape) < 2**31 else np.int64)
    for extent, taken in zip(shape, along):
        places = places[..., None] * extent + taken.astype(places.dtype)
    return packed(places + 1, layout.panels(places.ndim, *panel)).ravel() - 1


# -- values ----------------------------------------------------------------------------------------------------

def evaluated(loops: Loops) -> dict[str, Storage]:
    """Every buffer of the Func with all that was ever written to it. Raises Fault or Undecided."""
    arguments = loops.unroll()
    for leaf in loops.leaves:
        index = [loops._reader(leaf.scope, leaf.store).ints(i, leaf.frame) for i in leaf.store.index]
        cells, _ = loops.cells(leaf.store.buffer, index, leaf.frame, "a store")
        base = leaf.frame.get(leaf.storage.base)
        leaf.cells = spread(np.asarray(base + cells, np.int64), leaf.frame.count)
    pending = [s for s in loops.storages if s.writers]
    for storage in pending:
        storage.settle()
    reads = {s: {leaf.scope[x.buffer.name] for leaf in s.writers for x in loads(leaf.value)} & set(pending) for s in pending}
    while pending:
        ready = next((s for s in pending if not reads[s] & set(pending)), None)
        if ready is not None:
            for leaf in ready.writers:
                ready.put(leaf.slots, loops._reader(leaf.scope, leaf.store).value(leaf.value, leaf.frame))
            ready.fold(loops.algebra)
            pending.remove(ready)
            continue
        closures = {s: _closure(s, reads, pending) for s in pending}
        group = min(closures.values(), key=len)
        _evaluate_together(group, loops)
        pending = [s for s in pending if s not in group]
    return arguments


def _closure(storage: Storage, reads: dict[Storage, set[Storage]], pending: list[Storage]) -> set[Storage]:
    found, todo = {storage}, [storage]
    while todo:
        new = (reads[todo.pop()] & set(pending)) - found
        found |= new
        todo += new
    return found


def _taken(expr: Expr, frame: Frame, numbers: Array, reader: Reader, scope: dict[str, Storage],
           group: set[Storage]) -> Iterator[tuple[Load, Frame, Array]]:
    """The loads of `group` in an expression, each with the instances that take it, as far as conditions on what is known tell,
    and their numbers."""
    match expr:
        case Load(buffer=buffer) if scope[buffer.name] in group:
            yield expr, frame, numbers
        case Call(fn="select", args=(condition, yes, no)) if not any(scope[x.buffer.name] in group for x in loads(condition)):
            holds = spread(reader.value(condition, frame).data, frame.count)
            for side, kept in ((yes, holds), (no, ~holds)):
                if kept.any():
                    yield from _taken(side, frame.where(kept), numbers[kept], reader, scope, group)
            return
    for child in children(expr):
        yield from _taken(child, frame, numbers, reader, scope, group)


def _slots_read(leaf: Leaf, group: set[Storage], loops: Loops) -> list[tuple[Storage, Array]]:
    """What each load of `group` reads at each instance of a store, by the number of its slot; -1 where it takes none."""
    reader = Reader(_Scoped(loops, leaf.scope), loops.sizes, loops.algebra)
    found = []
    for load, frame, numbers in _taken(leaf.store.value, leaf.frame, np.arange(leaf.frame.count), reader, leaf.scope, group):
        storage = leaf.scope[load.buffer.name]
        try:
            cells, _ = loops.cells(load.buffer, [reader.ints(i, frame) for i in load.index], frame, "a load")
        except Fault:  # under a condition that is not known yet, or else it is found when it is read
            continue
        at = np.full(leaf.frame.count, -1)
        at[numbers] = storage.find(spread(frame.get(storage.base) + cells, frame.count), spread(frame.get(SEEN), frame.count))
        found.append((storage, at))
    return found


def _evaluate_together(group: set[Storage], loops: Loops) -> None:
    """Storages whose values depend on each other: each instance when all that it reads is known, round by round."""
    for storage in group:
        storage.accumulate = True
    left = {leaf: np.arange(leaf.frame.count) for s in group for leaf in s.writers}
    slots = {leaf: _slots_read(leaf, group, loops) for leaf in left}
    while left:
        progress = False
        for leaf, places in list(left.items()):
            known = np.ones(len(places), bool)
            for storage, at in slots[leaf]:
                known &= (at[places] < 0) | storage.done[at[places]]
            if not known.any():
                continue
            progress = True
            reader = loops._reader(leaf.scope, leaf.store)
            chosen = places[known]
            leaf.storage.put(leaf.slots[chosen], reader.value(leaf.store.value, Frame(len(chosen), leaf.frame, chosen)))
            left[leaf] = places[~known]
            if known.all():
                del left[leaf]
        if not progress:
            names = sorted({leaf.store.buffer.name for leaf in left})
            raise Undecided(f"{', '.join(names)} depend on themselves: {format_expr(next(iter(left)).store.value)}")

"""One run of a Plan: its segments launched, its branches decided, its loops made, sizes read where they were computed."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tsc.errors import InputError, ShapeError
from tsc.runtime.bind import Binder, Binding, Bound, broken, evaluated
from tsc.runtime.context import Context, Program
from tsc.runtime.memory import Array, allocate_at
from tsc.runtime.plan import Bind, Element, Eval
from tsc.runtime.segments import Branch, Code, Repeat, Segment
from tsc.sym import Guard

#: So many bound Segments are kept for a shape, or four of each: a loop that carries values has two of each.
MAX_PARTS = 64
#: All loops of a run together make no more trips: one that never ends does.
MAX_TRIPS = 1 << 24

#: Runs launches: the address of their table, how many, on how many threads, scratch at which addresses. Returns the status.
Execute = Callable[[int, int, int, int], int]


def perform(binder: Binder, program: Program, context: Context, binding: Binding, bases: NDArray[np.int64],
            results: list[Array | None], execute: Execute) -> None:
    """Run every step of a plan, the launches by `execute`, where `bases` tell where what is; makes those of the results that
    are None. Raises InputError for wrong data, ShapeError for sizes that they must not make, LaunchError where memory is short,
    PackageError where the plan leaves what is its own."""
    if binding.whole is None:
        Run(binder, program, context, binding, bases, results, execute).region(binder.code)
    elif binder.segments:
        launch(program, context, binder.segments[0], binding.whole, bases, execute)


def launch(program: Program, context: Context, segment: Segment, bound: Bound, bases: NDArray[np.int64],
           execute: Execute) -> None:
    """Run a Segment."""
    rows = bound.rows.launches
    status = execute(context.point(segment.number, bound, bases), len(rows), context.threads, context.scratch)
    if status:
        step, code = segment.launches[rows[status >> 32]], status & 0xFFFFFFFF
        known = step.messages[code - 1] if code <= len(step.messages) else f"status {code}"
        raise InputError(f"{known} (in the kernel of node '{step.node}')")
    base = program.base
    for source, source_offset, target, target_offset, size in bound.copies:
        begin = int(bases[base[source]]) + int(program.fixed[source]) + source_offset
        ctypes.memmove(int(bases[base[target]]) + target_offset, begin, size)


class Run:
    """A run of a plan that is not straight: the names that are bound, which storages have changed places, the results."""

    def __init__(self, binder: Binder, program: Program, context: Context, binding: Binding, bases: NDArray[np.int64],
                 results: list[Array | None], execute: Execute) -> None:
        self._binder, self._program, self._context, self._binding = binder, program, context, binding
        self._bases, self._results, self._execute = bases, results, execute
        self._names = dict(binding.names)
        self._places = list(range(len(binder.plan.storages)))
        self._parity: tuple[bool, ...] = ()  # of the trips that are under way
        self._trips = 0

    def region(self, code: Code) -> None:
        """Run the steps of a region."""
        names = self._names
        for node in code:
            match node:
                case Segment():
                    launch(self._program, self._context, node, self._part(node), self._bases, self._execute)
                case Bind(source=Element() as source):
                    names[node.name] = self._read(node, source)
                case Eval(name=name, value=value):
                    names[name] = evaluated(value, names, f"'{name}'")
                case Guard():
                    self._check(node)
                case Branch(condition=condition, then=then, otherwise=otherwise):
                    chosen = names[condition] if isinstance(condition, str) else self._element(condition)
                    self.region(then if chosen else otherwise)
                case Repeat():
                    self._repeat(node)

    # -- segments ----------------------------------------------------------------------------------------------------

    def _part(self, segment: Segment) -> Bound:
        names, parts = self._names, self._binding.parts
        for output in segment.outputs:
            if self._results[output] is None:
                shape, dtype = self._binder.shape(output, names), self._binder.dtypes[output]
                self._results[output], self._bases[self._program.outputs + output] = allocate_at(shape, dtype, "an output")
        key = (segment.number, self._parity, *[names[name] for name in segment.names])
        bound = parts.get(key)
        if bound is None:
            bound = self._binder.part(segment, self._binding, names, self._places)
            if len(parts) >= max(MAX_PARTS, 4 * len(self._binder.segments)):
                parts.clear()
            parts[key] = bound
        return bound

    def _base(self, storage: int) -> int:
        return int(self._bases[self._program.base[storage]]) + int(self._program.fixed[storage])

    # -- values ------------------------------------------------------------------------------------------------------

    def _element(self, element: Element) -> int:
        """The value of an Element, 0 or 1 of a bool."""
        place, width = self._places[element.storage], np.dtype(element.dtype).itemsize
        storage, layout = self._binder.plan.storages[place], self._binding.layout
        index, size = evaluated(element.index, self._names, "an element's number"), layout.bytes[place]
        if storage.kind == "output":
            result = self._results[storage.index]
            size = 0 if result is None else result.nbytes
        if not 0 <= index * width <= size - width:
            raise self._binder.outside(f"looks at element {index} of {size} bytes of {element.dtype}", layout.at)
        raw = ctypes.string_at(self._base(place) + layout.offsets[place] + index * width, width)
        value = int.from_bytes(raw, sys.byteorder, signed=element.dtype.startswith("int"))
        return int(value != 0) if element.dtype == "bool" else value

    def _read(self, bind: Bind, source: Element) -> int:
        value, known = self._element(source), bind.range
        if value < known.lo or (known.hi is not None and value > known.hi) or value % known.divisor:
            raise ShapeError(f"'{bind.name}' is {value}, outside {known} ({bind.reason}); give other data or compile wider")
        most = None if bind.bound is None else evaluated(bind.bound, self._names, f"the bound of '{bind.name}'")
        if most is not None and value > most:
            raise ShapeError(f"'{bind.name}' is {value}, above {bind.bound} = {most} ({bind.reason}); give other data")
        return value

    def _check(self, guard: Guard) -> None:
        left, right = (evaluated(side, self._names, "a size") for side in (guard.left, guard.right))
        if left != right if guard.relation == "==" else left > right:
            names = sorted(guard.left.dims() | guard.right.dims())
            raise broken(guard, left, right, ", ".join(f"{name}={self._names[name]}" for name in names))

    # -- loops -------------------------------------------------------------------------------------------------------

    def _repeat(self, node: Repeat) -> None:
        loop, parity, odd = node.loop, self._parity, False
        trips = evaluated(loop.trips, self._names, "a number of trips")
        for carried in loop.carried:
            if carried.start != carried.current:
                self._move(carried.start, carried.current)
        trip = 0
        while trip < trips and (loop.condition is None or self._element(loop.condition)):
            self._trips += 1
            if self._trips > MAX_TRIPS:
                raise InputError(f"the loops of the model make more than {MAX_TRIPS} trips; give inputs for which they end")
            self._names[loop.index] = trip
            if loop.carried:
                self._parity = (*parity, odd)
            self.region(node.body)
            self._exchange(node)
            trip, odd = trip + 1, not odd
        self._parity = parity
        if odd:  # where `current` is planned lies what was there a trip ago
            self._exchange(node)
            for carried in loop.carried:
                self._move(carried.next, carried.current)

    def _exchange(self, node: Repeat) -> None:
        """Let the halves of what is carried change places."""
        places = self._places
        for c in node.loop.carried:
            places[c.current], places[c.next] = places[c.next], places[c.current]

    def _move(self, source: int, target: int) -> None:
        """Copy all of a storage to one of the same size."""
        source, target = self._places[source], self._places[target]
        layout = self._binding.layout
        ctypes.memmove(self._base(target) + layout.offsets[target], self._base(source) + layout.offsets[source],
                       layout.bytes[target])

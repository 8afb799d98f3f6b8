"""One run of a Plan: its segments launched, its branches decided, its loops made, sizes read where they were computed."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from tsc.errors import InputError, ShapeError
from tsc.runtime.arrays import AnyArray
from tsc.runtime.bind import Binder, Binding, Bound, broken, evaluated
from tsc.runtime.context import Context
from tsc.runtime.host_program import Ready
from tsc.runtime.image import Image
from tsc.runtime.plan import Bind, Element, Eval
from tsc.runtime.segments import Branch, Code, Repeat, Segment
from tsc.sym import Guard

#: So many bound Segments are kept for a shape, or four of each: a loop that carries values has two of each.
MAX_PARTS = 64
#: All loops of a run together make no more trips: one that never ends does.
MAX_TRIPS = 1 << 24


def perform(binder: Binder, context: Context, binding: Binding | Ready, results: list[AnyArray | None]) -> None:
    """Run every step of a plan in a context that has begun; makes those of the results that are None. Raises InputError for
    wrong data, ShapeError for sizes that they must not make, LaunchError where memory is short, PackageError where the plan
    leaves what is its own."""
    if isinstance(binding, Binding) and binding.whole is None:
        Run(binder, context, binding, results).region(binder.code)
    elif binder.segments and binding.whole is not None:
        launch(context, binder.segments[0], binding.whole)
    context.end()


def launch(context: Context, segment: Segment, bound: Bound | Image, begins: Sequence[int] | None = None) -> None:
    """Run a Segment, whose copies begin at these bytes of their targets (None: at their first)."""
    wrong = context.launch(segment, bound)
    if wrong is not None:
        step, code = segment.launches[wrong[0]], wrong[1]
        known = step.messages[code - 1] if code <= len(step.messages) else f"status {code}"
        raise InputError(f"{known} (in the kernel of node '{step.node}')")
    for k, (source, source_offset, target, target_offset, size) in enumerate(bound.copies):
        context.copy((target, target_offset + begins[k] if begins else target_offset), (source, source_offset), size)


class Run:
    """A run of a plan that is not straight: the names that are bound, which storages have changed places, the results."""

    def __init__(self, binder: Binder, context: Context, binding: Binding, results: list[AnyArray | None]) -> None:
        self._binder, self._context, self._binding, self._results = binder, context, binding, results
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
                    bound = self._part(node)
                    launch(self._context, node, bound, self._begins(node, bound) if node.moves else None)
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
                self._results[output] = self._context.make(output, shape, dtype)
        key = (segment.number, self._parity, *[names[name] for name in segment.names])
        bound = parts.get(key)
        if bound is None:
            bound = self._binder.part(segment, self._binding, names, self._places)
            if len(parts) >= max(MAX_PARTS, 4 * len(self._binder.segments)):
                parts.clear()
            parts[key] = bound
        return bound

    def _begins(self, segment: Segment, bound: Bound) -> list[int]:
        """Where in its target each copy begins."""
        found, layout = list[int](), self._binding.layout
        for copy, (_, _, target, _, size) in zip(segment.copies, bound.copies):
            at = evaluated(copy.at, self._names, "where a copy begins")
            room = layout.bytes[self._places[target]] - at
            if at < 0 or size > room:
                raise self._binder.outside(f"copies {size} bytes to {room}", layout.at)
            found.append(at)
        return found

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
        raw = self._context.read((place, layout.offsets[place] + index * width), width)
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
        self._context.copy((target, layout.offsets[target]), (source, layout.offsets[source]), layout.bytes[target])

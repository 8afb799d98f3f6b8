"""What a host program has to say of a straight Plan: every number of it as an operation on others, and what must hold of them.

They are made of what the Binder and its Bounds evaluate and check, expression by expression.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from tsc.runtime.bind import Binder
from tsc.runtime.bounds import Bounds
from tsc.runtime.cost import BLOCKS, Cost
from tsc.runtime.interface import hidden_limits
from tsc.runtime.memory import ALIGNMENT
from tsc.runtime.places import axes_of
from tsc.runtime.plan import HOST, Axis, Copy, Launch, Storage
from tsc.runtime.schema import LEAST_NUMBER, MAX_NUMBER
from tsc.runtime.tape import Assembly, Names
from tsc.sym import Range, SymExpr

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


class Tables:
    """Tables of slots of an `assembly`; each method adds what one part of a Plan has to say. `functions` is what a kernel's
    function is called by in `calls`. `checks` say what it is that must lie between two others, "" of what is no request's."""

    def __init__(self, binder: Binder, bounds: Bounds, functions: Mapping[str, int]) -> None:
        self._binder, self._bounds, self._functions = binder, bounds, functions
        self.assembly = Assembly()
        self.checks: dict[tuple[int, int, int], str] = {}  # each once
        self.launches: list[tuple[int, int, int, int]] = []
        self.variants: list[tuple[int, int]] = []
        self.calls: list[tuple[int, int, int, int, int, int, int]] = []
        self.sizes: list[int] = []
        self.arguments: list[int] = []
        self.costs: list[int] = []
        self.copies: list[tuple[int, int, int]] = []
        self._needs: dict[tuple[str, tuple[int, ...]], Needs] = {}
        self.rows = self.most_arguments = 0
        plan = binder.plan
        self._extents = {axis: self.assembly.given() for axis, _ in axes_of(plan.inputs)}
        self.given = len(self._extents)
        self._slots: dict[str, int] = {}
        self._names = Names(self.assembly, self._slots)
        self._dims()
        shapes = [[self._size(self._names.emit(size)) for size in spec.shape] for spec in plan.outputs]
        self.outputs = [slot for shape in shapes for slot in shape]
        self._arenas = {space: self._size(self._names.emit(size)) for space, size in plan.arenas.items()}
        self.arena = self._arenas.get(HOST, self.assembly.constant(0))
        self.storages = [self._storage(storage, shapes) for storage in plan.storages]
        for segment in binder.segments:
            for launch in segment.launches:
                self._launch(launch)
            for copy in segment.copies:
                self._copy(copy)

    def slot(self, size: SymExpr) -> int:
        """Where the value of an expression of the Plan is."""
        return self._names.emit(size)

    # -- conditions ----------------------------------------------------------------------------------------------------

    def _between(self, low: int, slot: int, high: int, what: str = "") -> int:
        self.checks.setdefault((self.assembly.constant(low), slot, self.assembly.constant(high)), what)
        return slot

    def _size(self, slot: int) -> int:
        """A slot that must hold what memory has."""
        return self._between(0, slot, MAX_NUMBER)

    def _equal(self, a: int, b: int, what: str = "") -> None:
        if a != b:
            self.checks.setdefault((b, a, b), what)

    def _at_most(self, a: int, b: int, what: str = "") -> None:
        if a != b:
            self.checks.setdefault((self.assembly.constant(_LEAST), a, b), what)

    def _in_range(self, slot: int, known: Range, what: str = "") -> None:
        self._between(known.lo, slot, _MOST if known.hi is None else known.hi, what)
        self._divided(slot, known.divisor, what and f"what is left of {what} divided by {known.divisor}")

    def _divided(self, slot: int, divisor: int, what: str = "") -> None:
        if divisor > 1:
            self._equal(self.assembly.apply("%", slot, self.assembly.constant(divisor)), self.assembly.constant(0), what)

    # -- the request ---------------------------------------------------------------------------------------------------

    def _dims(self) -> None:
        binder = self._binder
        for name, (axis, size) in binder.binders:
            slot = self._extents[axis] if size.as_dim() is not None else self._solved(name, axis, size)
            self._slots[name] = slot
            what = self._said(axis) if size.as_dim() is not None else f"the size of dim '{name}'"
            self._in_range(slot, binder.plan.ranges[name], what)
        for name, value in binder.evals.items():
            self._slots[name] = self._between(LEAST_NUMBER, self._names.emit(value), -LEAST_NUMBER)
        for axis, size in binder.others:
            self._equal(self._extents[axis], self._names.emit(size), self._said(axis))
        for guard in binder.guards:
            left, right = self._names.emit(guard.left), self._names.emit(guard.right)
            what = f"the model needs {guard} ({guard.reason}), but {guard.left}"
            (self._equal if guard.relation == "==" else self._at_most)(left, right, what)

    def _said(self, axis: Axis) -> str:
        """What an axis is called, or what it is of an input's contents."""
        spec = self._binder.plan.inputs[axis.input]
        rank = len(spec.shape)
        return f"the size of input '{spec.name}' at axis {axis.axis}" if axis.axis < rank else (
            f"what input '{spec.name}' holds at place {axis.axis - rank}")

    def _solved(self, name: str, axis: Any, size: Any) -> int:
        """The Dim that makes a size, which is linear in it, what the axis has."""
        apply, constant = self.assembly.apply, self.assembly.constant
        rest, one = (Names(self.assembly, {**self._slots, name: constant(k)}).emit(size) for k in (0, 1))
        minus = constant(-1)
        slope = self._between(LEAST_NUMBER, apply("+", one, apply("*", rest, minus)), -LEAST_NUMBER)
        self._between(LEAST_NUMBER, rest, -LEAST_NUMBER)
        left = apply("+", self._extents[axis], apply("*", rest, minus))
        self._equal(apply("%", left, slope), constant(0), f"what is left of {self._said(axis)} for any {name} in {size}")
        return apply("//", left, slope)

    # -- memory --------------------------------------------------------------------------------------------------------

    def _storage(self, storage: Storage, outputs: Sequence[Sequence[int]]) -> tuple[int, int]:
        """The slots of a storage's offset and of its bytes."""
        assembly, plan = self.assembly, self._binder.plan
        offset = self._size(self._names.emit(storage.offset))
        match storage.kind:
            case "input":
                spec = plan.inputs[storage.index]
                axes = [self._extents[Axis(storage.index, a)] for a in range(len(spec.shape))]
                size = assembly.product(axes, spec.numpy.itemsize)
            case "output":
                size = assembly.product(outputs[storage.index], self._binder.dtypes[storage.index].itemsize)
            case "constant":
                size = assembly.constant(self._bounds.constants[storage.index])
            case "arena":
                size = self._names.emit(storage.bytes)
                self._divided(offset, ALIGNMENT)
                self._at_most(assembly.apply("+", offset, size), self._arenas[storage.space])
        return offset, self._size(size)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _launch(self, launch: Launch) -> None:
        first, names = len(self.sizes), self._names
        own = [self._between(LEAST_NUMBER, names.emit(size), MAX_NUMBER) for size in launch.sizes]
        needs = self._needed(launch.kernel, tuple(own))
        self.sizes += own
        bytes_of = [self.storages[storage][1] for storage in launch.args]
        for index, have, needed in zip(launch.args, bytes_of, needs.buffers):
            exact = self._binder.plan.storages[index].kind == "output"
            (self._equal if exact else self._at_most)(needed, have)
        storages, begin = (*launch.args, *launch.temporaries), len(self.variants)
        for variant in launch.variants:
            for index, needed in zip(launch.temporaries, needs.temporaries[variant.calls[0].function]):
                self._at_most(needed, self.storages[index][1])
            start = len(self.calls)
            for call in variant.calls:
                blocks, scratch = (self._size(names.emit(size)) for size in (call.blocks, call.scratch))
                right, least = needs.calls[call.function]
                self._equal(blocks, right)
                self._at_most(least, scratch)
                blocks, scratch = (self.assembly.apply("*", size, needs.writes) for size in (blocks, scratch))
                at, cost = len(self.arguments), self._cost(call.cost, blocks) if launch.selects else 0
                self.arguments += [storages[number] for number in call.args]
                function = self._functions[call.function]
                self.calls.append((function, blocks, scratch, at, len(self.arguments), cost, 0))
            self.variants.append((start, len(self.calls)))
        self.launches.append((begin, len(self.variants), first, int(launch.selects)))
        self.rows += launch.most_calls
        self.most_arguments += launch.most_arguments

    def _needed(self, kernel: str, sizes: tuple[int, ...]) -> Needs:
        """What a kernel needs at these sizes, which it must be allowed to have."""
        known = self._needs.get((kernel, sizes))
        if known is None:
            known = self._needs[kernel, sizes] = self._demanded(kernel, sizes)
        return known

    def _demanded(self, kernel: str, sizes: Sequence[int]) -> Needs:
        interface, assembly = self._bounds.kernels[kernel], self.assembly
        slots = {name: slot for (name, _), slot in zip(interface.sizes, sizes, strict=True)}
        names = Names(assembly, slots)
        for (_, known), slot in zip(interface.sizes, sizes):
            self._in_range(slot, known)
        for fact in interface.facts:
            if fact.left.dims() | fact.right.dims() <= slots.keys():
                (self._equal if fact.relation == "==" else self._at_most)(names.emit(fact.left), names.emit(fact.right))
        for limits in hidden_limits(interface).values():
            for low in map(names.emit, limits.low):
                for high in map(names.emit, limits.high):
                    self._at_most(low, high)
        calls = {call.function: (names.emit(call.blocks), names.emit(call.scratch))
                 for variant in interface.variants for call in variant.calls}
        temporaries = {variant.calls[0].function: tuple(map(names.emit, variant.temporaries)) for variant in interface.variants}
        buffers = tuple(self._size(names.emit(buffer.bytes)) for buffer in interface.buffers)
        written = (size for buffer, size in zip(interface.buffers, buffers) if buffer.written)
        return Needs(calls, temporaries, buffers, assembly.apply("min", assembly.constant(1), self._largest(written)))

    def _largest(self, slots: Iterable[int]) -> int:
        found = self.assembly.constant(0)
        for slot in slots:
            found = self.assembly.apply("max", found, slot)
        return found

    def _cost(self, cost: Cost | None, blocks: int) -> int:
        """Where a cost begins among all of them."""
        begin = len(self.costs)
        if cost is not None:
            rates, counts = cost.rates, {BLOCKS: blocks, **{w.kind: self._names.emit(w.count) for w in cost.work}}
            terms = [(part, counts[kind], rate) for part, own in enumerate((rates.wave, rates.unit, rates.device))
                     for kind, rate in own if kind in counts]
            seen = {units: rates.seen_on(units) for units in sorted({own for own, _, _ in rates.seen})}
            self.costs += [rates.launch, rates.resident, len(terms), len(seen)]
            counted = [(units, len(own)) for units, own in seen.items()]
            self.costs += [number for row in (*terms, *counted, *chain(*seen.values())) for number in row]
        return begin

    def _copy(self, copy: Copy) -> None:
        size, source, target = self._size(self._names.emit(copy.bytes)), self.storages[copy.source], self.storages[copy.target]
        self._at_most(size, source[1])
        exact = self._binder.plan.storages[copy.target].kind == "output"
        (self._equal if exact else self._at_most)(size, target[1])
        self.copies.append((copy.source, copy.target, size))


@dataclass(frozen=True, slots=True)
class Needs:
    """Slots of the blocks and the scratch of each call of a kernel by its function, of the bytes of the temporaries of each
    variant by its first function, of those of each buffer, and of whether it writes anything: 1, or 0."""

    calls: Mapping[str, tuple[int, int]]
    temporaries: Mapping[str, tuple[int, ...]]
    buffers: tuple[int, ...]
    writes: int

"""Execution contexts: the memory that one run needs and no other run may touch, and how its launches run; kept in a bounded
pool. What is here runs the CPU's tables of launches; `over_driver.py` has what runs over any Driver."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tsc.runtime.arrays import AnyArray
from tsc.runtime.bind import Binder, Binding, Bound, Shapes
from tsc.runtime.bounds import Bounds
from tsc.runtime.drivers.cpu import CpuModule
from tsc.runtime.host_program import HostProgram, Ready
from tsc.runtime.image import Image, image_of
from tsc.runtime.memory import Array, Block, address, allocate_at, footprint
from tsc.runtime.segments import Segment

LAUNCH_BYTES = 32  # of a tsc_launch: fn, buffers, sizes, blocks

#: So many ways in which a Segment runs are kept: a loop that carries values has two of each.
MOST_IMAGES = 4
#: A storage, by its number, and a byte in it.
Spot = tuple[int, int]


class Context(Protocol):
    """What runs a request, where it has memory of its own. Used by one run at a time, `begin` to `end`."""

    #: Where a list is given, each launch runs alone and adds its seconds to the Plan's launch of that number.
    seconds: list[float] | None

    @property
    def held_bytes(self) -> int:
        """The memory that it keeps for later runs."""

    def reserve(self, arena: int, scratch: int) -> None:
        """Have at least so many bytes of arena, and of scratch a worker. Raises LaunchError, with less than before."""

    def begin(self, binding: Binding | Ready, feeds: Sequence[AnyArray], results: list[AnyArray | None],
              places: Sequence[int]) -> None:
        """Have the memory that a request needs, and what it is given; `places` are the addresses of the results. A device makes
        those results of known shapes that are None."""

    def make(self, output: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> AnyArray:
        """An output whose shape was not known when the run began. Raises LaunchError where memory is short."""

    def launch(self, segment: Segment, bound: Bound | Image) -> tuple[int, int] | None:
        """Run a Segment's launches. Returns which of them found the data wrong, and its status code; None where all is well."""

    def copy(self, target: Spot, source: Spot, size: int) -> None:
        """Copy from one storage into another."""

    def read(self, place: Spot, width: int) -> bytes:
        """What was computed there."""

    def end(self) -> None:
        """All that was asked for is done, and the results are filled."""

    def leave(self) -> None:
        """A run ended early: let go of what is the caller's."""


class Engine(Protocol):
    """A loaded module and its constants, where a Plan runs."""

    @property
    def table_bytes(self) -> int:
        """What a Context has beside its arena and scratch."""

    @property
    def is_gpu(self) -> bool:
        """Whether scratch is a block's and not a thread's."""

    def bind(self, shapes: Shapes) -> Ready | None:
        """What the device itself tells of a request; None where it leaves that to the Binder."""

    def context(self) -> Context:
        """A new Context."""


class TableEngine:
    """What launch tables are made of, whatever the shape: functions, and for each storage which base its address counts from.

    Bases are: absolute, the arena, then the inputs, then the outputs.
    """

    is_gpu = False

    def __init__(self, binder: Binder, bounds: Bounds, module: CpuModule, constants: Sequence[int], threads: int) -> None:
        plan, segments = binder.plan, binder.segments
        self.threads, self.module = threads, module  # whose code is there as long as this
        functions = module.symbols(set(plan.functions))
        first = {"constant": 0, "arena": 1, "input": 2, "output": 2 + len(plan.inputs)}
        self.outputs = first["output"]
        base = [first[s.kind] + (s.index if s.kind in ("input", "output") else 0) for s in plan.storages]
        fixed = [constants[s.index] if s.kind == "constant" else 0 for s in plan.storages]
        self.base, self.fixed = np.array(base, np.int64), np.array(fixed, np.int64)
        self.functions = [np.array([functions[call.function] for launch in segment.launches for call in launch.calls], np.int64)
                          for segment in segments]
        #: The most rows that the launch table of a Segment has, and the most arguments.
        self.rows = max((sum(launch.most_calls for launch in s.launches) for s in segments), default=0)
        self.arguments = max((sum(launch.most_arguments for launch in s.launches) for s in segments), default=0)
        self.bases = struct.Struct(f"{self.outputs + len(plan.outputs)}q")
        self.table_bytes = 8 * self.arguments + LAUNCH_BYTES * self.rows + self.bases.size
        self._host: HostProgram | None = None
        if binder.straight:
            with contextlib.suppress(OverflowError):
                self._host = HostProgram(binder, bounds, module, base, fixed, functions, threads)

    def bind(self, shapes: Shapes) -> Ready | None:
        """What the host program says of inputs of these shapes; None where there is none, or it gives up."""
        return None if self._host is None else self._host.bind(shapes)

    def image(self, segment: Segment, bound: Bound) -> Image:
        """A Segment as it runs here."""
        return image_of(bound, self.functions[segment.number], self.base, self.fixed)

    def context(self) -> TableContext:
        """A new Context."""
        return TableContext(self)


class TableContext:
    """An arena, scratch for each worker, and room for a launch table whose addresses point into them. Memory grows and is
    kept."""

    def __init__(self, engine: TableEngine) -> None:
        self.seconds: list[float] | None = None
        self._engine, self._threads = engine, engine.threads
        self._make_room(engine.rows, engine.arguments)
        self._images: list[dict[int, tuple[Bound, Image]]] = [{} for _ in engine.functions]  # by the Bound, which they keep
        self._ready: Binding | Ready | None = None
        self._arena, self._scratch = Block("the arena"), Block("scratch memory")
        self._per_worker: NDArray[np.int64] = np.zeros(engine.threads, np.int64)
        self._scratch_bytes = 0
        self._scratch_address = address(self._per_worker)
        self._bases: list[int] = []

    def _make_room(self, rows: int, arguments: int) -> None:
        """Have room for a table of so many launches: several requests at once have more than a Plan."""
        self._table, self._pointers = np.empty((rows, LAUNCH_BYTES), np.uint8), np.empty(arguments, np.int64)
        self._room = address(self._table), address(self._pointers)

    def reserve(self, arena: int, scratch: int) -> None:
        """As a Context does."""
        self._ready = None  # until all of it is there: a run of an older shape has to take again what is given back here
        self._arena.grow(arena)
        self._reserve_scratch(scratch)

    def _reserve_scratch(self, scratch: int) -> None:
        """Have at least so many bytes of scratch a worker; nothing is in it between two launches."""
        if scratch > self._scratch_bytes:
            self._scratch_bytes = 0
            self._scratch.grow(scratch * self._threads)
            self._per_worker[:] = self._scratch.address + scratch * np.arange(self._threads)
            self._scratch_bytes = scratch

    @property
    def held_bytes(self) -> int:
        """What `reserve` took so far."""
        return footprint(self._arena.size) + footprint(self._scratch.size)

    def begin(self, binding: Binding | Ready, feeds: Sequence[Any], results: list[AnyArray | None],
              places: Sequence[int]) -> None:
        """As a Context does; all arrays are NumPy's."""
        if self._ready is not binding:
            self.reserve(binding.arena_bytes, binding.scratch_bytes)
            self._ready = binding
        self._bases = [0, self._arena.address, *map(address, feeds), *places]

    def make(self, output: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """As a Context does."""
        result, self._bases[self._engine.outputs + output] = allocate_at(shape, dtype, "an output")
        return result

    def launch(self, segment: Segment, bound: Bound | Image) -> tuple[int, int] | None:
        """As a Context does."""
        image = bound if isinstance(bound, Image) else self._image(segment, bound)
        if self.seconds is not None:
            self._one_by_one(segment, image, self.seconds)
            return None
        status = self._call(image, 0, image.rows)
        return (status >> 32, status & 0xFFFFFFFF) if status else None

    def _image(self, segment: Segment, bound: Bound) -> Image:
        if bound.scratch_bytes > self._scratch_bytes:
            self._reserve_scratch(bound.scratch_bytes)
        own = self._images[segment.number]
        known = own.get(id(bound))
        if known is None:
            if len(own) >= MOST_IMAGES:
                own.clear()
            known = own[id(bound)] = bound, self._engine.image(segment, bound)
        return known[1]

    def _call(self, image: Image, begin: int, end: int) -> int:
        """Run the rows from `begin` to `end`. Returns 0, or the number of the launch that found the data wrong << 32 | its
        code."""
        if image.rows > len(self._table) or image.arguments > len(self._pointers):
            self._make_room(image.rows, image.arguments)
        bases = self._engine.bases.pack(*self._bases)
        call = self._engine.module.call
        return int(call(image.place, bases, *self._room, begin, end, self._threads, self._scratch_address))

    def _one_by_one(self, segment: Segment, image: Image, seconds: list[float]) -> None:
        for row, launch in enumerate(image.launches):
            begin = time.perf_counter()
            self._call(image, row, row + 1)
            seconds[segment.first + launch] += time.perf_counter() - begin

    def copy(self, target: Spot, source: Spot, size: int) -> None:
        """As a Context does."""
        ctypes.memmove(self._address(target), self._address(source), size)

    def read(self, place: Spot, width: int) -> bytes:
        """As a Context does."""
        return ctypes.string_at(self._address(place), width)

    def end(self) -> None:
        """Nothing is left to do: the results are where kernels wrote."""

    def leave(self) -> None:
        """Nothing is kept but addresses."""

    def _address(self, place: Spot) -> int:
        storage, offset = place
        return self._bases[int(self._engine.base[storage])] + int(self._engine.fixed[storage]) + offset


class ContextPool:
    """At most `limit` Contexts; a run that finds none free waits for one."""

    def __init__(self, engine: Engine, limit: int) -> None:
        self._engine, self.limit = engine, limit
        self._idle: list[Context] = []
        self._made = self._waiting = 0
        self._given = threading.Condition()
        forget_locks_after_fork(self)

    def take(self) -> Context:
        """A Context that nobody else uses until it is given back."""
        try:
            return self._idle.pop()
        except IndexError:
            return self._awaited()

    def _awaited(self) -> Context:
        with self._given:
            self._waiting += 1
            try:
                while True:
                    with contextlib.suppress(IndexError):  # who gives one back looks at who waits only after that
                        return self._idle.pop()
                    if self._made < self.limit:
                        self._made += 1
                        break
                    self._given.wait()
            finally:
                self._waiting -= 1
        try:
            return self._engine.context()
        except BaseException:
            self._lost(1)
            raise

    def give(self, context: Context) -> None:
        """Hand a Context back."""
        self._idle.append(context)
        if self._waiting:
            with self._given:
                self._given.notify()

    def _lost(self, count: int) -> None:
        """Others may be made in place of so many."""
        with self._given:
            self._made -= count
            self._given.notify(count)

    def trim(self) -> int:
        """Let go of all Contexts that nobody uses now; returns the bytes they held."""
        total = 0
        with contextlib.suppress(IndexError):  # another thread may take the last one
            while True:
                total += self._idle.pop().held_bytes
                self._lost(1)
        return total

    def after_fork(self) -> None:
        """The threads that held Contexts are not in the child, and their Contexts are lost there."""
        self._given, self._waiting, self._made = threading.Condition(), 0, len(self._idle)


class HoldsLocks(Protocol):
    """What has locks that another thread may hold when the process forks."""

    def after_fork(self) -> None: ...


_holders: weakref.WeakSet[HoldsLocks] = weakref.WeakSet()


def forget_locks_after_fork(holder: HoldsLocks) -> None:
    """Call `holder.after_fork()` in every child that this process forks."""
    _holders.add(holder)


def _after_fork() -> None:
    for holder in list(_holders):
        holder.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

"""Execution contexts: the memory that one run needs and no other run may touch, and how its launches run; kept in a bounded
pool. What is here runs the CPU's tables of launches; `over_driver.py` has what runs over any Driver."""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tsc.runtime.bind import Binding, Bound
from tsc.runtime.drivers.cpu import CpuModule
from tsc.runtime.memory import Array, address, footprint, reserve
from tsc.runtime.plan import Plan
from tsc.runtime.segments import Segment

LAUNCH_BYTES = 32  # of a tsc_launch: fn, buffers, sizes, blocks

#: Runs launches: the address of their table, how many, on how many threads, scratch at which addresses. Returns the status.
Execute = Callable[[int, int, int, int], int]
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

    def begin(self, binding: Binding, feeds: Sequence[Array], results: Sequence[Array | None], places: Sequence[int]) -> None:
        """Have the memory that a request needs, and what it is given; `places` are the addresses of the results."""

    def made(self, output: int, result: Array, place: int) -> None:
        """An output whose shape was not known when the run began."""

    def launch(self, segment: Segment, bound: Bound) -> tuple[int, int] | None:
        """Run a Segment's launches. Returns which of them found the data wrong, and its status code; None where all is well."""

    def copy(self, target: Spot, source: Spot, size: int) -> None:
        """Copy from one storage into another."""

    def read(self, place: Spot, width: int) -> bytes:
        """What was computed there."""

    def end(self) -> None:
        """All that was asked for is done, and the results are filled."""


class Engine(Protocol):
    """A loaded module and its constants, where a Plan runs."""

    @property
    def table_bytes(self) -> int:
        """What a Context has beside its arena and scratch."""

    def context(self) -> Context:
        """A new Context."""


class TableEngine:
    """What launch tables are made of, whatever the shape: functions, and for each storage which base its address counts from.

    Bases are: absolute, the arena, then the inputs, then the outputs.
    """

    def __init__(self, plan: Plan, segments: Sequence[Segment], module: CpuModule, constants: Sequence[int],
                 threads: int) -> None:
        self.threads, self.module = threads, module  # whose code is there as long as this
        self.execute: Execute = module.run
        functions = module.symbols(set(plan.functions))
        base = {"constant": 0, "arena": 1, "input": 2, "output": 2 + len(plan.inputs)}
        self.segments = segments
        places = plan.storages
        self.base = np.array([base[s.kind] + (s.index if s.kind in ("input", "output") else 0) for s in places], np.int64)
        self.fixed = np.array([constants[s.index] if s.kind == "constant" else 0 for s in places], np.int64)
        self.outputs = 2 + len(plan.inputs)
        self.functions = [np.array([functions[call.function] for launch in segment.launches for call in launch.calls], np.int64)
                          for segment in segments]
        #: The most rows of the launch table that each Segment has, and the most arguments of these.
        self.rows = [sum(max(len(v.calls) for v in launch.variants) for launch in s.launches) for s in segments]
        self.arguments = [sum(max(sum(len(call.args) for call in v.calls) for v in launch.variants) for launch in s.launches)
                          for s in segments]
        self.table_bytes = 8 * sum(self.arguments) + LAUNCH_BYTES * sum(self.rows) + 8 * (
            2 + len(plan.inputs) + len(plan.outputs))

    def context(self) -> TableContext:
        """A new Context."""
        return TableContext(self)


class _Part:
    """The rows of one Segment in a Context's launch table, and the addresses of their arguments."""

    def __init__(self, engine: TableEngine, segment: Segment, table: NDArray[np.int64], first: int) -> None:
        number = segment.number
        self._engine, self._functions = engine, engine.functions[number]
        self._table = table[first:first + engine.rows[number]]
        self._all = np.zeros(engine.arguments[number], np.int64)
        self.pointers = self.bases = self.fixed = self._all
        self.bound: Bound | None = None
        self.address = address(self._table)

    def take(self, bound: Bound) -> None:
        """Have the rows of a Bound."""
        self.bound = None  # an interrupt may come between
        rows, count = bound.rows, len(bound.rows.storages)
        self.bases, self.fixed = self._engine.base[rows.storages], self._engine.fixed[rows.storages]
        self.pointers = self._all[:count]
        table = self._table[:len(rows.calls)]
        table[:, 0] = self._functions[rows.calls]
        table[:, 1] = rows.arguments * 8 + address(self._all)
        table[:, 2:] = bound.table
        self.bound = bound


class TableContext:
    """An arena, scratch for each worker, and a launch table whose addresses point into them. Memory grows and is kept."""

    def __init__(self, engine: TableEngine) -> None:
        self.seconds: list[float] | None = None
        self._engine, self._threads = engine, engine.threads
        self._table = np.empty((sum(engine.rows), 4), np.int64)  # tsc_launch: fn, buffers, sizes, blocks
        first = accumulate(engine.rows, initial=0)
        self._parts = [_Part(engine, segment, self._table, row) for segment, row in zip(engine.segments, first)]
        self._ready: Binding | None = None
        self._arena = reserve(0, "the arena")
        self._scratch = reserve(0, "scratch memory")
        self._per_worker: NDArray[np.int64] = np.zeros(engine.threads, np.int64)
        self._arena_address = 0
        self._scratch_bytes = 0
        self._scratch_address = address(self._per_worker)
        self._bases = np.zeros(0, np.int64)

    def reserve(self, arena: int, scratch: int) -> None:
        """As a Context does."""
        self._ready = None  # until all of it is there: a run of an older shape has to take again what is given back here
        if arena > self._arena.size:
            self._arena = reserve(0, "the arena")  # give the old one back first
            self._arena = reserve(arena, "the arena")
        self._reserve_scratch(scratch)
        self._arena_address = address(self._arena)

    def _reserve_scratch(self, scratch: int) -> None:
        """Have at least so many bytes of scratch a worker; nothing is in it between two launches."""
        if scratch > self._scratch_bytes:
            self._scratch_bytes = 0
            self._scratch = reserve(0, "scratch memory")
            self._scratch = reserve(scratch * self._threads, "scratch memory")
            self._per_worker[:] = address(self._scratch) + scratch * np.arange(self._threads)
            self._scratch_bytes = scratch

    @property
    def held_bytes(self) -> int:
        """What `reserve` took so far."""
        return footprint(self._arena.size) + footprint(self._scratch.size)

    def begin(self, binding: Binding, feeds: Sequence[Array], results: Sequence[Array | None], places: Sequence[int]) -> None:
        """As a Context does."""
        if self._ready is not binding:
            self.reserve(binding.arena_bytes, binding.scratch_bytes)
            self._ready = binding
        self._bases = np.array([0, self._arena_address, *map(address, feeds), *places], np.int64)

    def made(self, output: int, result: Array, place: int) -> None:
        """As a Context does."""
        self._bases[self._engine.outputs + output] = place

    def launch(self, segment: Segment, bound: Bound) -> tuple[int, int] | None:
        """As a Context does: points the Segment's rows of the table at the request's memory, and runs them."""
        part = self._parts[segment.number]
        if bound.scratch_bytes > self._scratch_bytes:
            self._reserve_scratch(bound.scratch_bytes)
        if part.bound is not bound:
            part.take(bound)
        np.add(self._bases[part.bases], bound.offsets, out=part.pointers)
        part.pointers += part.fixed
        rows = bound.rows.launches
        if self.seconds is not None:
            self._one_by_one(segment, part, rows, self.seconds)
            return None
        status = self._engine.execute(part.address, len(rows), self._threads, self._scratch_address)
        return (int(rows[status >> 32]), status & 0xFFFFFFFF) if status else None

    def _one_by_one(self, segment: Segment, part: _Part, rows: NDArray[np.int64], seconds: list[float]) -> None:
        for row, launch in enumerate(rows.tolist()):
            begin = time.perf_counter()
            self._engine.execute(part.address + LAUNCH_BYTES * row, 1, self._threads, self._scratch_address)
            seconds[segment.first + launch] += time.perf_counter() - begin

    def copy(self, target: Spot, source: Spot, size: int) -> None:
        """As a Context does."""
        ctypes.memmove(self._address(target), self._address(source), size)

    def read(self, place: Spot, width: int) -> bytes:
        """As a Context does."""
        return ctypes.string_at(self._address(place), width)

    def end(self) -> None:
        """Nothing is left to do: the results are where kernels wrote."""

    def _address(self, place: Spot) -> int:
        storage, offset = place
        return int(self._bases[self._engine.base[storage]]) + int(self._engine.fixed[storage]) + offset


class ContextPool:
    """At most `limit` Contexts; a run that finds none free waits for one."""

    def __init__(self, engine: Engine, limit: int) -> None:
        self._engine, self.limit = engine, limit
        self._idle: list[Context] = []
        self._permits = threading.Semaphore(limit)
        forget_locks_after_fork(self)

    def take(self) -> Context:
        """A Context that nobody else uses until it is given back."""
        self._permits.acquire()
        try:
            return self._idle.pop()
        except IndexError:
            return self._engine.context()

    def give(self, context: Context) -> None:
        """Hand a Context back."""
        self._idle.append(context)
        self._permits.release()

    def trim(self) -> int:
        """Let go of all Contexts that nobody uses now; returns the bytes they held."""
        total = 0
        while self._idle:
            try:
                total += self._idle.pop().held_bytes
            except IndexError:  # another thread took the last one
                break
        return total

    def after_fork(self) -> None:
        """The threads that held Contexts are not in the child, and their Contexts are lost there."""
        self._permits = threading.Semaphore(self.limit)


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

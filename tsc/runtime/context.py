"""Execution contexts: the memory that one run needs and no other run may touch, kept in a bounded pool."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tsc.errors import InternalError
from tsc.runtime.bind import Binding, Bound
from tsc.runtime.memory import address, footprint, reserve
from tsc.runtime.plan import Plan
from tsc.runtime.segments import Segment

LAUNCH_BYTES = 32  # of a tsc_launch: fn, buffers, sizes, blocks


class Program:
    """What launch tables are made of, whatever the shape: functions, and for each storage which base its address counts from.

    Bases are: absolute, the arena, then the inputs, then the outputs.
    """

    def __init__(self, plan: Plan, segments: Sequence[Segment], functions: dict[str, int], constants: Sequence[int]) -> None:
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
        #: What a Context has beside its arena and scratch.
        self.table_bytes = 8 * sum(self.arguments) + LAUNCH_BYTES * sum(self.rows) + 8 * (
            2 + len(plan.inputs) + len(plan.outputs))


class _Part:
    """The rows of one Segment in a Context's launch table, and the addresses of their arguments."""

    def __init__(self, program: Program, segment: Segment, table: NDArray[np.int64], first: int) -> None:
        number = segment.number
        self._program, self._functions = program, program.functions[number]
        self.first, self._launch = first, segment.first
        self._table = table[first:first + program.rows[number]]
        self._all = np.zeros(program.arguments[number], np.int64)
        self.pointers = self.bases = self.fixed = self._all
        self.bound: Bound | None = None
        self.address = address(self._table)

    def take(self, bound: Bound) -> None:
        """Have the rows of a Bound."""
        self.bound = None  # an interrupt may come between
        rows, count = bound.rows, len(bound.rows.storages)
        self.bases, self.fixed = self._program.base[rows.storages], self._program.fixed[rows.storages]
        self.pointers = self._all[:count]
        table = self._table[:len(rows.calls)]
        table[:, 0] = self._functions[rows.calls]
        table[:, 1] = rows.arguments * 8 + address(self._all)
        table[:, 2:] = bound.table
        self.bound = bound

    def launch_of(self, row: int) -> int:
        """Which of the Plan's launches a row belongs to."""
        if self.bound is None:
            raise InternalError("nothing is bound to this part of the launch table")
        return self._launch + int(self.bound.rows.launches[row])


class Context:
    """An arena, scratch for each worker, and a launch table whose addresses point into them. Memory grows and is kept."""

    def __init__(self, program: Program, threads: int) -> None:
        self.threads = threads
        self._table = np.empty((sum(program.rows), 4), np.int64)  # tsc_launch: fn, buffers, sizes, blocks
        first = accumulate(program.rows, initial=0)
        self._parts = [_Part(program, segment, self._table, row) for segment, row in zip(program.segments, first)]
        self._ready: Binding | None = None
        self._arena = reserve(0, "the arena")
        self._scratch = reserve(0, "scratch memory")
        self._per_worker: NDArray[np.int64] = np.zeros(threads, np.int64)
        self._arena_address = 0
        self._scratch_bytes = 0
        self.table = address(self._table)
        self.scratch = address(self._per_worker)

    def reserve(self, arena: int, scratch: int) -> None:
        """Have at least so many bytes of arena, and of scratch a worker. Raises LaunchError, with less than before."""
        self._ready = None  # until all of it is there: a run of an older shape has to take again what is given back here
        if arena > self._arena.size:
            self._arena = reserve(0, "the arena")  # give the old one back first
            self._arena = reserve(arena, "the arena")
        self.reserve_scratch(scratch)
        self._arena_address = address(self._arena)

    def reserve_scratch(self, scratch: int) -> None:
        """Have at least so many bytes of scratch a worker; nothing is in it between two launches."""
        if scratch > self._scratch_bytes:
            self._scratch_bytes = 0
            self._scratch = reserve(0, "scratch memory")
            self._scratch = reserve(scratch * self.threads, "scratch memory")
            self._per_worker[:] = address(self._scratch) + scratch * np.arange(self.threads)
            self._scratch_bytes = scratch

    @property
    def held_bytes(self) -> int:
        """What `reserve` took so far."""
        return footprint(self._arena.size) + footprint(self._scratch.size)

    def begin(self, binding: Binding, feeds: Sequence[int], results: Sequence[int]) -> NDArray[np.int64]:
        """Have the memory that a request needs. Returns the bases."""
        if self._ready is not binding:
            self.reserve(binding.arena_bytes, binding.scratch_bytes)
            self._ready = binding
        return np.array([0, self._arena_address, *feeds, *results], np.int64)

    def point(self, segment: int, bound: Bound, bases: NDArray[np.int64]) -> int:
        """Point a Segment's launches at the request's memory. Returns the address of their rows of the table."""
        part = self._parts[segment]
        if bound.scratch_bytes > self._scratch_bytes:
            self.reserve_scratch(bound.scratch_bytes)
        if part.bound is not bound:
            part.take(bound)
        np.add(bases[part.bases], bound.offsets, out=part.pointers)
        part.pointers += part.fixed
        return part.address

    def launch_at(self, row: int) -> int:
        """Which of the Plan's launches a row of the launch table that is in use belongs to."""
        part = next(part for part in reversed(self._parts) if part.first <= row)
        return part.launch_of(row - part.first)


class ContextPool:
    """At most `limit` Contexts; a run that finds none free waits for one."""

    def __init__(self, program: Program, threads: int, limit: int) -> None:
        self._program, self._threads, self.limit = program, threads, limit
        self._idle: list[Context] = []
        self._permits = threading.Semaphore(limit)
        forget_locks_after_fork(self)

    def take(self) -> Context:
        """A Context that nobody else uses until it is given back."""
        self._permits.acquire()
        try:
            return self._idle.pop()
        except IndexError:
            return Context(self._program, self._threads)

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

"""Execution contexts: the memory that one run needs and no other run may touch, kept in a bounded pool."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tsc.runtime.bind import Binding
from tsc.runtime.memory import address, footprint, reserve
from tsc.runtime.plan import Plan

LAUNCH_BYTES = 32  # of a tsc_launch: fn, buffers, sizes, blocks


class Program:
    """What a launch table is made of, whatever the shape: kernels, and for each argument which base its address counts from.

    Bases are: absolute, the arena, then the inputs, then the outputs.
    """

    def __init__(self, plan: Plan, kernels: dict[str, int], constants: Sequence[int]) -> None:
        launches, storages = plan.launches, plan.storages
        base = {"constant": 0, "arena": 1, "input": 2, "output": 2 + len(plan.inputs)}
        bases = [base[s.kind] + (s.index if s.kind in ("input", "output") else 0) for s in storages]
        fixed = [constants[s.index] if s.kind == "constant" else 0 for s in storages]
        arguments = [a for launch in launches for a in launch.args]
        starts = [0]
        for launch in launches:
            starts.append(starts[-1] + len(launch.args))
        self.bases = np.array([bases[a] for a in arguments], np.int64)
        self.fixed = np.array([fixed[a] for a in arguments], np.int64)
        self.starts = np.array(starts[:-1], np.int64)
        self.functions = np.array([kernels[launch.kernel] for launch in launches], np.int64)
        #: What a Context has beside its arena and scratch.
        self.table_bytes = 8 * len(arguments) + LAUNCH_BYTES * len(launches) + 8 * (2 + len(plan.inputs) + len(plan.outputs))
        self.copies = tuple(((bases[c.source], fixed[c.source]), bases[c.target]) for c in plan.copies)


class Context:
    """An arena, scratch for each worker, and a launch table whose addresses point into them. Memory grows and is kept."""

    def __init__(self, program: Program, threads: int) -> None:
        self._program = program
        self._threads = threads
        self._pointers = np.zeros(len(program.bases), np.int64)
        self._table = np.empty((len(program.functions), 4), np.int64)  # tsc_launch: fn, buffers, sizes, blocks
        self._table[:, 0] = program.functions
        self._table[:, 1] = program.starts * 8 + address(self._pointers)
        self._bound: Binding | None = None
        self._arena = reserve(0, "the arena")
        self._scratch = reserve(0, "scratch memory")
        self._per_worker: NDArray[np.int64] = np.zeros(threads, np.int64)
        self._addresses = np.zeros(2, np.int64)
        self._scratch_bytes = 0
        self.table = address(self._table)
        self.scratch = address(self._per_worker)

    def reserve(self, arena: int, scratch: int) -> None:
        """Have at least so many bytes of arena, and of scratch a worker. Raises LaunchError, with less than before."""
        self._bound = None  # until all of it is there: a run of an older shape has to take again what is given back here
        if arena > self._arena.size:
            self._arena = reserve(0, "the arena")  # give the old one back first
            self._arena = reserve(arena, "the arena")
        if scratch > self._scratch_bytes:
            self._scratch_bytes = 0
            self._scratch = reserve(0, "scratch memory")
            self._scratch = reserve(scratch * self._threads, "scratch memory")
            self._scratch_bytes = scratch
            self._per_worker[:] = address(self._scratch) + scratch * np.arange(self._threads)
        self._addresses[1] = address(self._arena)

    @property
    def held_bytes(self) -> int:
        """What `reserve` took so far."""
        return footprint(self._arena.size) + footprint(self._scratch.size)

    def bind(self, binding: Binding, feeds: Sequence[int], results: Sequence[int]) -> NDArray[np.int64]:
        """Point the table at the request's memory. Returns the bases."""
        if self._bound is not binding:
            self.reserve(binding.arena_bytes, binding.scratch_bytes)
            self._table[:, 2:] = binding.table
            self._bound = binding
        bases = np.array([0, self._addresses[1], *feeds, *results], np.int64)
        np.add(bases[self._program.bases], binding.offsets, out=self._pointers)
        self._pointers += self._program.fixed
        return bases


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

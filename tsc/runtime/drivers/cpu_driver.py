"""The CPU as one Driver among others. Slower than its tables of launches, which nothing has to be copied for: it shows that
Plans need no more of a device than the protocol has. A graph of launches is such a table, so that kernels can be timed."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tsc.errors import InternalError
from tsc.runtime.drivers.cpu import CpuModule
from tsc.runtime.drivers.host import HostDriver
from tsc.runtime.drivers.protocol import DeviceInfo, Function, GraphExec, Launch, Module, Stream
from tsc.runtime.memory import address, reserve


@dataclass(frozen=True, slots=True)
class _Table:
    """Launches of one module as its runtime takes them, with all that they point to; `words` are those of their status."""

    module: CpuModule
    rows: NDArray[np.int64]
    scratch: int
    words: tuple[int, ...]
    kept: tuple[NDArray[np.generic], ...]

    @staticmethod
    def of(launches: Sequence[Launch]) -> _Table:
        """The table of launches, one at least."""
        modules = {launch.function.owner.owner for launch in launches}
        if len(modules) != 1:
            raise InternalError(f"a graph has the kernels of {len(modules)} modules, expected one")
        rows, words, kept = [], [], list[NDArray[np.generic]]()
        for launch in launches:
            *values, word = launch.args.values
            buffers = np.array([value for value in values if isinstance(value, np.uint64)], np.uint64)
            sizes = np.array([value for value in values if isinstance(value, np.int64)], np.int64)
            rows.append((launch.function.value, address(buffers), address(sizes), launch.grid[0]))
            words.append(int(word) if isinstance(word, np.uint64) else 0)
            kept += buffers, sizes
        scratch = max(launch.shared for launch in launches)
        return _Table(modules.pop(), np.array(rows, np.int64), scratch, tuple(words), tuple(kept))


class _Scratch(threading.local):
    """Scratch memory of the workers of one thread's launches, kept for the next."""

    held = np.empty(0, np.uint8)

    def of(self, size: int) -> NDArray[np.uint8]:
        """At least so many bytes."""
        if self.held.nbytes < size:
            self.held = reserve(size, "scratch memory")
        return self.held


class CpuDriver(HostDriver):
    """Runs the kernels of CPU modules on `threads` threads, as `over_driver` calls them."""

    def __init__(self, threads: int) -> None:
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        super().__init__(DeviceInfo(0, "CPU", "cpu", threads, pages, pages, 0))
        self._threads = threads
        self._scratch = _Scratch()
        self._tables: dict[int, _Table] = {}

    def load(self, binary: bytes, name: str) -> Module:
        """A shared object. Raises as CpuModule does."""
        return Module(next(self._numbers), CpuModule(binary, name), name=name)

    def function(self, module: Module, name: str) -> Function:
        """The address of a kernel."""
        return Function(module.owner.symbols([name])[name], module, name=name)

    def run_kernel(self, launch: Launch) -> None:
        """Run all blocks, and keep the status word."""
        self._run(_Table.of([launch]))

    def launch_graph(self, graph: GraphExec, stream: Stream) -> None:
        """Run every step; launches alone by one call."""
        launches = [step.launch for step in self._graphs[graph.value]]
        if stream.value in self._captures or None in launches or not launches:
            super().launch_graph(graph, stream)
            return
        table = self._tables.get(graph.value)
        if table is None:
            table = self._tables[graph.value] = _Table.of([launch for launch in launches if launch is not None])
            graph.on_release(self._drop, graph.value)
        self._run(table)

    def set_kernel(self, graph: GraphExec, kernel: int, launch: Launch) -> None:
        """Replace one launch."""
        super().set_kernel(graph, kernel, launch)
        self._tables.pop(graph.value, None)

    def _drop(self, graph: int) -> None:
        self._tables.pop(graph, None)
        self._graphs.pop(graph, None)

    def _run(self, table: _Table) -> None:
        size = table.scratch
        workers = address(self._scratch.of(size * self._threads)) + size * np.arange(self._threads)
        status = table.module.run(address(table.rows), len(table.rows), self._threads, address(workers))
        if status and table.words[status >> 32]:
            ctypes.c_int32.from_address(table.words[status >> 32]).value = status & 0xFFFFFFFF

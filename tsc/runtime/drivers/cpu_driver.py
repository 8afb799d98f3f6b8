"""The CPU as one Driver among others. Slower than its tables of launches, which nothing has to be copied for: it shows that
Plans need no more of a device than the protocol has."""

from __future__ import annotations

import ctypes
import os

import numpy as np

from tsc.runtime.drivers.cpu import CpuModule
from tsc.runtime.drivers.host import HostDriver
from tsc.runtime.drivers.protocol import DeviceInfo, Function, Launch, Module
from tsc.runtime.memory import address, reserve


class CpuDriver(HostDriver):
    """Runs the kernels of CPU modules on `threads` threads, as `over_driver` calls them."""

    def __init__(self, threads: int) -> None:
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        super().__init__(DeviceInfo(0, "CPU", "cpu", threads, pages, pages, 0))
        self._threads = threads

    def load(self, binary: bytes, name: str) -> Module:
        """A shared object. Raises as CpuModule does."""
        return Module(next(self._numbers), CpuModule(binary, name), name=name)

    def function(self, module: Module, name: str) -> Function:
        """The address of a kernel."""
        return Function(module.owner.symbols([name])[name], module, name=name)

    def run_kernel(self, launch: Launch) -> None:
        """Run all blocks, and keep the status word."""
        *values, word = launch.args.values
        buffers = np.array([value for value in values if isinstance(value, np.uint64)], np.uint64)
        sizes = np.array([value for value in values if isinstance(value, np.int64)], np.int64)
        scratch = reserve(launch.shared * self._threads, "scratch memory")
        workers = address(scratch) + launch.shared * np.arange(self._threads)
        table = np.array([launch.function.value, address(buffers), address(sizes), launch.grid[0]], np.int64)
        status = launch.function.owner.owner.run(address(table), 1, self._threads, address(workers))
        if status and isinstance(word, np.uint64):
            ctypes.c_int32.from_address(int(word)).value = status & 0xFFFFFFFF

"""One block of a launch in the emulator, with its counters: what it does is known without a GPU.

The block is the first one, and all that it reads is zero: a block that stands elsewhere, or whose loops end by what they read,
may do more or less.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from tsc.errors import LaunchError
from tsc.runtime.drivers.emu import EmuOptions, EmuPlatform
from tsc.runtime.drivers.protocol import Argument, Arguments, Memory, Module
from tsc.runtime.drivers.protocol import Launch as Run
from tsc.runtime.launch_frame import WARP
from tsc.runtime.plan import Call
from tsc.sol.loops import Known, Matrix

_SECTOR = 32
_OPTIONS = EmuOptions(count=True, host_threads=1, timeout_ms=600_000)


@dataclass(frozen=True, slots=True)
class Counted:
    """What one block does: what is `known` of its instructions, its `products` on matrix units, wavefronts of shared memory (of
    128 bytes each), and bytes in whole sectors that it asks of L2, if L1 has none of them."""

    known: Known
    products: float
    wavefronts: float
    l2_bytes: float

    def at_most(self, known: Known) -> Counted:
        """The same where the machine code accesses no more than is `known`: of two equal loads the compiler leaves one."""
        own = self.known
        shared = _part(known.shared_loads + known.shared_stores, own.shared_loads + own.shared_stores)
        part = _part(known.global_loads + known.global_stores, own.global_loads + own.global_stores)
        return replace(self, wavefronts=self.wavefronts * shared, l2_bytes=self.l2_bytes * part)


@dataclass(frozen=True, slots=True)
class Buffers:
    """Bytes of a call's buffers in its order, its sizes, and its scratch memory for a block."""

    bytes: tuple[int, ...]
    sizes: tuple[int, ...]
    scratch: int


class Emulated:
    """The kernels of a module that was built for the emulator of an architecture."""

    def __init__(self, arch: str, binary: bytes) -> None:
        self._driver = EmuPlatform(arch, _OPTIONS).open_emulated()
        self._module: Module = self._driver.load(binary, "kernels")

    def first_block(self, call: Call, buffers: Buffers, matrix: Matrix) -> Counted:
        """What the first block of a call does, whose matrix instructions are such. Raises LaunchError where it fails."""
        memory = [self._zeros(size) for size in (*buffers.bytes, buffers.scratch, 4)]
        given: list[Argument] = [*memory[:-2], *map(np.int64, buffers.sizes), *memory[-2:]]
        one, threads = (1, 1, 1), (max(call.threads, WARP), 1, 1)
        function = self._driver.function(self._module, call.function)
        self._driver.run_kernel(Run(function, one, threads, Arguments(given), call.shared))
        report = self._driver.report
        for used in memory:
            self._driver.release(used)
        if report is None:
            raise LaunchError(f"kernel '{call.function}' left no report in the emulator")
        return _counted(report.counts, matrix)

    def _zeros(self, size: int) -> Memory:
        """Memory that holds zeros, of which the system gives what is touched."""
        try:
            array = np.zeros(max(size, 1) + 2 * 256, np.uint8)
        except MemoryError:
            raise LaunchError(f"the emulator has not {size} bytes of memory; use smaller sizes") from None
        return self._driver.adopt(-(-array.ctypes.data // 256) * 256, max(size, 1), array)


def _part(made: float, counted: float) -> float:
    return min(1.0, made / counted) if counted else 1.0


def _counted(counts: Mapping[str, int], matrix: Matrix) -> Counted:
    instructions = counts["mma_instructions"]
    known = Known(instructions * matrix.warps, *(counts[name] for name in (
        "shared_load_bytes", "shared_store_bytes", "global_load_bytes", "global_store_bytes")))
    wavefronts = counts["paired_wavefronts"] + instructions * matrix.shared_bytes / 128
    return Counted(known, instructions * matrix.products, wavefronts, counts["global_sectors"] * _SECTOR)



"""The tests' own way into an emulated module: emu/abi.h through ctypes, without the driver."""

from __future__ import annotations

import ctypes
import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tsc.codegen_cuda.build import CudaSource, build_emulated
from tsc.config import Options
from tsc.errors import LaunchError

MODES = {"fast": 0, "lazy": 1, "race": 2, "stress": 3}
STATUS = ("ok", "bad launch", "race", "out of bounds", "misaligned", "uninitialised", "deadlock", "diverged",
          "protocol", "timeout")
U32, U64 = ctypes.c_uint32, ctypes.c_uint64
WORK = ("blocks", "switches", "collectives", "mma_instructions")
BYTES = ("global_load_bytes", "global_store_bytes", "shared_load_bytes", "shared_store_bytes")
TRAFFIC = ("shared_requests", "shared_wavefronts", "bank_conflicts", "global_requests", "global_sectors", "ideal_sectors")


class Dim3(ctypes.Structure):
    _fields_ = [("x", U32), ("y", U32), ("z", U32)]


class Range(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("bytes", U64), ("writable", U32), ("reserved", U32)]


class LaunchOptions(ctypes.Structure):
    _fields_ = [("struct_size", U32), ("mode", U32), ("seed", U64), ("host_threads", U32), ("count", U32), ("timeout_ms", U32),
                ("range_count", U32), ("ranges", ctypes.POINTER(Range)), ("shared_limit", U32), ("reserved", U32)]


class AccessRecord(ctypes.Structure):
    _fields_ = [("line", U32), ("kind", U32), ("asynchronous", U32), ("block", Dim3), ("thread", Dim3)]


class LineRecord(ctypes.Structure):
    _fields_ = [("line", U32), ("reserved", U32), *[(name, U64) for name in TRAFFIC]]


class Report(ctypes.Structure):
    _fields_ = [("struct_size", U32), ("status", ctypes.c_int32), ("message", ctypes.c_char * 1024),
                ("kernel", ctypes.c_char * 128), ("access", AccessRecord * 2), ("address", U64), ("shared", U32),
                ("line_count", U32), *[(name, U64) for name in (*WORK, *BYTES, *TRAFFIC, "paired_wavefronts")],
                ("lines", LineRecord * 128)]

    @property
    def ended(self) -> str:
        """How the launch ended, in words."""
        return STATUS[self.status]

    @property
    def text(self) -> str:
        """What went wrong."""
        return self.message.decode()


class Module:
    """An emulated module: `launch` runs one kernel of it on NumPy arrays, in place."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))
        self.library.tsc_emu_kernel_name.restype = ctypes.c_char_p

    def kernels(self) -> set[str]:
        """The names of all kernels."""
        names: set[str] = set()
        while (name := self.library.tsc_emu_kernel_name(len(names))) is not None:
            names.add(name.decode())
        return names

    def launch(self, name: str, arguments: Sequence[object], *, grid: tuple[int, ...] = (1,), block: tuple[int, ...] = (32,),
               cluster: tuple[int, ...] = (1,), shared: int = 0, mode: str = "fast", seed: int = 1, count: bool = False,
               host_threads: int = 1, timeout_ms: int = 20_000, memory: Sequence[np.ndarray] = ()) -> Report:
        """Arrays are registered, read-only where NumPy says so, those in `memory` (behind tensor maps) too; other arguments
        must be ctypes values or structures, or Python ints (int32)."""
        values = []
        ranges = [Range(array.ctypes.data, array.nbytes, int(array.flags.writeable), 0) for array in memory]
        for argument in arguments:
            if isinstance(argument, np.ndarray):
                values.append(ctypes.c_void_p(argument.ctypes.data))
                ranges.append(Range(argument.ctypes.data, argument.nbytes, int(argument.flags.writeable), 0))
            else:
                is_ctypes = isinstance(argument, (ctypes._SimpleCData, ctypes.Structure))
                values.append(argument if is_ctypes else ctypes.c_int32(argument))
        pointers = (ctypes.c_void_p * len(values))(*[ctypes.addressof(value) for value in values])
        options = LaunchOptions(ctypes.sizeof(LaunchOptions), MODES[mode], seed, host_threads, int(count), timeout_ms,
                                len(ranges), (Range * len(ranges))(*ranges), 0, 0)
        report = Report(struct_size=ctypes.sizeof(Report))
        three = [Dim3(*(*size, 1, 1)[:3]) for size in (grid, block, cluster)]
        self.library.tsc_emu_launch(name.encode(), *three, U32(shared), pointers, ctypes.byref(options), ctypes.byref(report))
        return report


def aligned(values: np.ndarray, writable: bool = True) -> np.ndarray:
    """A copy that begins at a multiple of 256 bytes, as device memory does."""
    raw = np.empty(values.nbytes + 256, np.uint8)
    start = -raw.ctypes.data % 256
    out = raw[start:start + values.nbytes].view(values.dtype).reshape(values.shape)
    out[...] = values
    out.flags.writeable = writable
    return out


def emulated_bytes(name: str, asan: bool = False) -> bytes:
    """The shared object of primitives/<name>.cu in the emulator. Skips the test where there is no C++ compiler."""
    text = (Path(__file__).parent / "primitives" / f"{name}.cu").read_text(encoding="utf-8")
    try:
        return build_emulated(CudaSource(name, text), Options(), asan)
    except LaunchError as error:
        pytest.skip(str(error))


@functools.cache
def emulated(name: str) -> Module:
    """The same, loaded."""
    with tempfile.TemporaryDirectory(prefix="tsc-test-") as folder:
        path = Path(folder) / f"{name}.so"
        path.write_bytes(emulated_bytes(name))
        return Module(path)

"""The CUDA emulator as a driver: modules are shared objects with the ABI of codegen_cuda/emu/abi.h, memory is the host's."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from typing import Any, Literal

from tsc.config import default_threads
from tsc.errors import LaunchError, PackageError
from tsc.runtime.drivers.cpu import load_library
from tsc.runtime.drivers.host import HostDriver
from tsc.runtime.drivers.protocol import (
    ArchitectureError,
    DeviceInfo,
    Driver,
    Function,
    Launch,
    Module,
    NoDriverError,
    Size3,
    check_arguments,
)

_ABI_VERSION = 2
_MODES = {"fast": 0, "lazy": 1, "race": 2, "stress": 3}
_STATUSES = (
    "ok", "bad launch", "race", "out of bounds", "misaligned", "uninitialised", "deadlock", "diverged", "protocol", "timeout")
_ELF_CUDA = 190  # e_machine of a cubin
#: Bytes of shared memory a block has in each architecture that is emulated.
EMULATED = {
    "sm_80": 163 << 10, "sm_86": 99 << 10, "sm_89": 99 << 10, "sm_90a": 227 << 10, "sm_100a": 227 << 10, "sm_120a": 99 << 10}
_U32, _U64 = ctypes.c_uint32, ctypes.c_uint64
_COUNTS = (
    "blocks", "switches", "collectives", "mma_instructions", "global_load_bytes", "global_store_bytes", "shared_load_bytes",
    "shared_store_bytes", "shared_requests", "shared_wavefronts", "bank_conflicts", "global_requests", "global_sectors",
    "ideal_sectors", "paired_wavefronts")
_LINE_COUNTS = ("shared_requests", "shared_wavefronts", "bank_conflicts", "global_requests", "global_sectors", "ideal_sectors")


class _Dim3(ctypes.Structure):
    _fields_ = (("x", _U32), ("y", _U32), ("z", _U32))


class _Range(ctypes.Structure):
    _fields_ = (("base", _U64), ("bytes", _U64), ("writable", _U32), ("reserved", _U32))


class _Options(ctypes.Structure):
    _fields_ = (
        ("struct_size", _U32), ("mode", _U32), ("seed", _U64), ("host_threads", _U32), ("count", _U32), ("timeout_ms", _U32),
        ("range_count", _U32), ("ranges", ctypes.POINTER(_Range)), ("shared_limit", _U32), ("reserved", _U32))


class _Access(ctypes.Structure):
    _fields_ = (("line", _U32), ("kind", _U32), ("asynchronous", _U32), ("block", _Dim3), ("thread", _Dim3))


class _Line(ctypes.Structure):
    _fields_ = (("line", _U32), ("reserved", _U32), *((name, _U64) for name in _LINE_COUNTS))


class _Report(ctypes.Structure):
    _fields_ = (
        ("struct_size", _U32), ("status", ctypes.c_int32), ("message", ctypes.c_char * 1024), ("kernel", ctypes.c_char * 128),
        ("access", _Access * 2), ("address", _U64), ("shared", _U32), ("line_count", _U32), *((name, _U64) for name in _COUNTS),
        ("lines", _Line * 128))


class _Kernel(ctypes.Structure):
    _fields_ = (("struct_size", _U32), ("max_threads", _U32), ("argument_count", _U32), ("reserved", _U32),
                ("argument_bytes", _U32 * 64))


@dataclass(frozen=True, slots=True)
class EmuOptions:
    """How launches behave (abi.h says what the modes are): `seed` of stress mode, `count` to fill the counters, `host_threads`
    0 for all cores (race mode always runs on one)."""

    mode: Literal["fast", "lazy", "race", "stress"] = "fast"
    seed: int = 1
    host_threads: int = 0
    count: bool = False
    timeout_ms: int = 60_000


@dataclass(frozen=True, slots=True)
class Access:
    """One of the accesses that a failed launch is about; `asynchronous` is not 0 where the copy engine or the like did it."""

    line: int
    kind: Literal["read", "write", "atomic"]
    asynchronous: int
    block: Size3
    thread: Size3


@dataclass(frozen=True, slots=True)
class EmuReport:
    """How a launch ended. `counts` and `lines` (by source line) hold the counters of abi.h's tsc_emu_report and
    tsc_emu_line."""

    kernel: str
    status: str
    message: str
    accesses: tuple[Access, ...]
    address: int
    in_shared: bool
    counts: dict[str, int]
    lines: dict[int, dict[str, int]]


class EmulatedFault(LaunchError):
    """The emulator found a fault in a kernel; `report` says which and where."""

    def __init__(self, report: EmuReport) -> None:
        super().__init__(f"kernel '{report.kernel}' failed in the emulator ({report.status}): {report.message}")
        self.report = report


class EmuDriver(HostDriver):
    """The Driver protocol over the emulator. `options` may be set between launches; `report` is that of the last one."""

    def __init__(self, info: DeviceInfo, options: EmuOptions) -> None:
        super().__init__(info)
        self.options = options
        self.report: EmuReport | None = None

    def load(self, binary: bytes, name: str) -> Module:
        """Load a module that build_emulated made. Raises ArchitectureError for machine code of a real GPU. The module stays
        mapped until the process ends."""
        if binary[:4] == b"\x7fELF" and int.from_bytes(binary[18:20], "little") == _ELF_CUDA:
            raise ArchitectureError(f"module '{name}' is made for a GPU, not for the emulator; open a CUDA device for it")
        library = load_library(binary, name)
        try:
            version = library.tsc_emu_abi_version()
            library.tsc_emu_kernel_name.restype = ctypes.c_char_p
        except AttributeError as error:
            raise PackageError(f"module '{name}' is not one of the emulator's ({error}); build it again") from error
        if version != _ABI_VERSION:
            raise PackageError(f"module '{name}' has the emulator's ABI {version}, not {_ABI_VERSION}; build it again")
        return Module(library._handle, library, name=name)

    def function(self, module: Module, name: str) -> Function:
        """The kernel called `name`. Raises LaunchError naming those there are."""
        known = _Kernel(struct_size=ctypes.sizeof(_Kernel))
        if module.owner.tsc_emu_kernel_info(name.encode(), ctypes.byref(known)) != 0:
            names = ", ".join(kernel_names(module)) or "none"
            raise LaunchError(f"module '{module.name}' has no kernel '{name}'; it has {names}")
        return Function(0, module, name=name)

    def check(self, launch: Launch) -> None:
        """Also compares the arguments' sizes with the kernel's."""
        super().check(launch)
        known = _Kernel(struct_size=ctypes.sizeof(_Kernel))
        launch.function.owner.owner.tsc_emu_kernel_info(launch.function.name.encode(), ctypes.byref(known))
        wanted = tuple(known.argument_bytes[:known.argument_count])
        if known.argument_count <= len(known.argument_bytes):
            check_arguments(launch, wanted)

    def run_kernel(self, launch: Launch) -> None:
        """Emulate a launch. Raises EmulatedFault."""
        options, regions = self.options, self.regions()
        ranges = (_Range * len(regions))(*[_Range(r.address, r.size, r.writable, 0) for r in regions])
        asked = _Options(
            ctypes.sizeof(_Options), _MODES[options.mode], options.seed, options.host_threads or default_threads(),
            options.count, options.timeout_ms, len(regions), ranges, self.info.shared_per_block, 0)
        report = _Report(struct_size=ctypes.sizeof(_Report))
        status = launch.function.owner.owner.tsc_emu_launch(
            launch.function.name.encode(), _Dim3(*launch.grid), _Dim3(*launch.block), _Dim3(*launch.cluster),
            _U32(launch.shared), ctypes.c_void_p(launch.args.table), ctypes.byref(asked), ctypes.byref(report))
        self.report = _read(report)
        if status != 0:
            raise EmulatedFault(self.report)


class EmuPlatform:
    """One emulated device of an architecture ("sm_80")."""

    def __init__(self, arch: str = "sm_90a", options: EmuOptions | None = None) -> None:
        if arch not in EMULATED:
            raise LaunchError(f"architecture '{arch}' is not emulated; {', '.join(EMULATED)} are")
        self._arch, self._options = arch, options or EmuOptions()

    def devices(self) -> tuple[DeviceInfo, ...]:
        """The emulated device, with as many multiprocessors as this process has cores and the host's memory."""
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        cores = default_threads()
        return (DeviceInfo(0, f"emulated {self._arch}", self._arch, cores, memory, EMULATED[self._arch], 1 << 20),)

    def open(self, index: int = 0) -> Driver:
        """A new emulated device."""
        return self.open_emulated(index)

    def open_emulated(self, index: int = 0) -> EmuDriver:
        """The same, with the emulator's own `options` and `report` in sight."""
        if index != 0:
            raise NoDriverError(f"there is no emulated device {index}; there is one, number 0")
        return EmuDriver(self.devices()[0], self._options)


def kernel_names(module: Module) -> tuple[str, ...]:
    """The kernels of an emulated module."""
    names: list[str] = []
    while (name := module.owner.tsc_emu_kernel_name(len(names))) is not None:
        names.append(name.decode())
    return tuple(names)


def _read(report: _Report) -> EmuReport:
    status = report.status
    failed = 0 if status == 0 else 2 if _STATUSES[status] == "race" else 1
    lines = report.lines[:report.line_count]
    return EmuReport(
        report.kernel.decode(errors="replace"), _STATUSES[status], report.message.decode(errors="replace"),
        tuple(_access(entry) for entry in report.access[:failed]), report.address, bool(report.shared),
        {name: getattr(report, name) for name in _COUNTS},
        {line.line: {name: getattr(line, name) for name in _LINE_COUNTS} for line in lines})


def _access(entry: Any) -> Access:
    kinds: tuple[Literal["read", "write", "atomic"], ...] = ("read", "write", "atomic")
    return Access(entry.line, kinds[entry.kind], entry.asynchronous, (entry.block.x, entry.block.y, entry.block.z),
                  (entry.thread.x, entry.thread.y, entry.thread.z))

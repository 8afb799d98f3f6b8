"""The CPU driver: which module a machine can run, how its binary is loaded, and how a table of launches is run."""

from __future__ import annotations

import _ctypes
import contextlib
import ctypes
import itertools
import os
import tempfile
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tsc.errors import LaunchError, PackageError
from tsc.runtime.package import Module

CPUINFO = Path("/proc/cpuinfo")
_loaded = itertools.count()


def read_cpu_flags(path: Path = CPUINFO) -> frozenset[str]:
    """The instruction set flags the kernel reports; empty where it reports none."""
    try:
        text = path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return frozenset()
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def is_cpu(target: str) -> bool:
    """Whether a target is a CPU, by its name."""
    return target.startswith("cpu")


def choose_module(modules: Mapping[str, Module], flags: frozenset[str], where: str) -> str:
    """The name of the module that asks most of this machine and that it can run, of a CPU's where there is one. Raises
    PackageError naming what is missing."""
    missing = {name: sorted(set(module.cpu_flags) - flags) for name, module in modules.items()}
    usable = [name for name in modules if not missing[name]]
    if usable:
        return max(usable, key=lambda name: (is_cpu(name), len(modules[name].cpu_flags), name))
    reasons = "; ".join(f"'{name}' needs {', '.join(lacking)}" for name, lacking in sorted(missing.items()))
    raise PackageError(f"{where} has no binary for this machine ({reasons or 'it has none at all'}); compile it for this one")


class CpuModule:
    """A loaded binary. `run` takes the address of a table of `tsc_launch` (see cpu_runtime.c), `bind` and `call` are the host
    program's (cpu_host.c)."""

    def __init__(self, binary: bytes, name: str) -> None:
        library = load_library(binary, name)
        self._library = library
        try:
            function, stop, bind, call = library.tsc_run, library.tsc_stop, library.tsc_bind, library.tsc_call
        except AttributeError as error:
            raise PackageError(f"module '{name}' has no runtime ({error}); compile it again") from error
        function.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_void_p]
        bind.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p]
        call.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64,
                         ctypes.c_int32, ctypes.c_void_p]
        function.restype = call.restype = ctypes.c_int64
        self.name = name
        self.run, self.bind, self.call = function, bind, call
        self._finalizer = weakref.finalize(self, _unload, stop, library._handle, os.getpid())
        self._finalizer.atexit = False  # at exit a thread may still be inside

    def symbols(self, names: Iterable[str]) -> dict[str, int]:
        """The address of each kernel. Raises PackageError naming one that is not there."""
        found = {}
        for name in names:
            try:
                address = ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value
            except AttributeError:
                address = None
            if not address:
                raise PackageError(f"module '{self.name}' has no kernel '{name}'; compile it again")
            found[name] = address
        return found


def load_library(binary: bytes, name: str) -> ctypes.CDLL:
    """Load a shared object from memory: through an anonymous file, or where there are none through a private temporary one."""
    try:
        if hasattr(os, "memfd_create"):
            with contextlib.suppress(PermissionError):  # executable memory files may be forbidden: then a real file
                return _load_anonymous(binary)
        return _load_temporary(binary)
    except OSError as error:
        raise LaunchError(f"cannot load module '{name}' ({error}); it may be built for another machine") from error


def _load_anonymous(binary: bytes) -> ctypes.CDLL:
    descriptor = os.memfd_create("tsc_module")
    with os.fdopen(descriptor, "wb") as file:
        file.write(binary)
        file.flush()
        # The loader takes two libraries with the same path for one, and descriptors are used again: spell the path differently
        # each time, "/" or "/." by the bits of a counter.
        bits = f"{next(_loaded):032b}"
        return ctypes.CDLL("/proc/self/fd" + "".join("/." if bit == "1" else "/" for bit in bits) + f"/{descriptor}")


def _load_temporary(binary: bytes) -> ctypes.CDLL:
    with tempfile.TemporaryDirectory(prefix="tsc-") as folder:
        path = Path(folder) / "module.so"
        path.write_bytes(binary)
        return ctypes.CDLL(str(path))


def _unload(stop: Any, handle: int, process: int) -> None:
    """End the workers and unmap the binary; in a forked child the workers are not there and the code stays."""
    if os.getpid() == process and stop() == 0:
        _ctypes.dlclose(handle)

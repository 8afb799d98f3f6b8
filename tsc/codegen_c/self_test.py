"""trusted_flags: the flags with which a compiler has shown on this machine that what kernels are made of comes out right.

The kernels of `self_test.c` are compiled as generated ones are and run in a process of their own, once per compiler, flags and
CPU; what passed is kept in the build cache. Code for a CPU that this machine is not (cross-compiling) cannot be run here.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tsc.codegen_c.cache import CompiledCache, digest
from tsc.errors import LaunchError
from tsc.runtime.drivers.cpu import CPUINFO, read_cpu_flags
from tsc.runtime.files import machine_fault

SELF_TEST = Path(__file__).parent / "self_test.c"
_PART = SELF_TEST.with_name("self_test_dots.h")
#: Seconds that the kernels may take; they need milliseconds.
PATIENCE = 60.0
_CALL = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).tsc_self_test())"

_OTHER = "install another version, or name another compiler in TSC_CC"

_passed: set[str] = set()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A compiler as users call it with the flags it would get; `cpu_flags` are what a machine must have to run the code, and
    `identity` is everything else that the code depends on."""

    name: str
    flags: tuple[str, ...]
    cpu_flags: tuple[str, ...]
    identity: tuple[str, ...]


def trusted_flags(candidate: Candidate, safer: tuple[str, ...], cache: CompiledCache,
                  program: Callable[[tuple[str, ...]], bytes]) -> tuple[str, ...]:
    """The candidate's flags, or those and `safer` ones where only these pass, which is logged. `program` makes a shared
    object of the kernels. Raises LaunchError where neither gives right answers."""
    if not set(candidate.cpu_flags) <= read_cpu_flags():
        return candidate.flags
    wrong = _wrong(candidate, candidate.flags, cache, program)
    if not wrong:
        return candidate.flags
    flags = (*candidate.flags, *safer)
    if not _wrong(candidate, flags, cache, program):
        logging.getLogger("tsc").warning("the C compiler '%s' makes wrong code of %s; it is used with %s, which is slower",
                                         candidate.name, wrong, " ".join(safer))
        return flags
    raise LaunchError(f"the C compiler '{candidate.name}' makes wrong code: kernels of its self test ({wrong}) give other "
                      f"answers than C says; {_OTHER}")


def _wrong(candidate: Candidate, flags: tuple[str, ...], cache: CompiledCache,
           program: Callable[[tuple[str, ...]], bytes]) -> str:
    """What goes wrong with these flags, "" where nothing does."""
    key = digest("self test", SELF_TEST.read_bytes(), _PART.read_bytes(), *candidate.identity, *flags, *_cpu(CPUINFO))
    if key in _passed or cache.get(key) is not None:
        _passed.add(key)
        return ""
    wrong = _run(program(flags), candidate.name)
    if not wrong:
        _passed.add(key)
        cache.put(key, b"passed")
    return wrong


def _cpu(cpuinfo: Path) -> tuple[str, ...]:
    """What tells this CPU from others: its flags, and what the system says of the first one."""
    try:
        first = cpuinfo.read_text(encoding="ascii", errors="replace").split("\n\n")[0].splitlines()
    except OSError:
        first = []
    names = {"vendor_id", "cpu family", "model", "model name", "stepping", "CPU implementer", "CPU part"}
    return (*sorted(read_cpu_flags(cpuinfo)), *(line for line in first if line.partition(":")[0].strip() in names))


def _run(library: bytes, name: str) -> str:
    """The kernels that are wrong, or how the process that ran them ended. From memory: a folder may forbid to map code. Raises
    LaunchError for what is no shared object."""
    if not library.startswith(b"\x7fELF"):
        raise LaunchError(f"the C compiler '{name}' made no shared object of its self test; {_OTHER}")
    handle = os.memfd_create("tsc-self-test")
    try:
        with os.fdopen(os.dup(handle), "wb") as file:
            file.write(library)
        command = [sys.executable, "-I", "-S", "-c", _CALL, f"/proc/self/fd/{handle}"]
        done = subprocess.run(command, pass_fds=(handle,), capture_output=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return f"no end in {PATIENCE:.0f} s"
    except OSError as error:
        what = f"cannot run the self test of the C compiler '{name}'"
        raise machine_fault(error, what) or LaunchError(f"{what}: {error.strerror or error}") from error
    finally:
        os.close(handle)
    if done.returncode == 0:
        return ""
    said = done.stdout.decode(errors="replace") or done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    return said or f"ended with status {done.returncode}"

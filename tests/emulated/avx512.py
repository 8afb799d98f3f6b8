"""AVX-512 code on a machine that only has AVX2: `pretend()` makes this process, and those it starts, believe in an AVX-512 CPU.

The C compiler is called by way of a script that leaves `-mavx512...` out and, where that was asked for, puts avx512.h first. So
what runs is the target's own C: its vectors of 16 lanes, masks, tiles and panels. What is not seen is what compilers make of it
for AVX-512.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shlex
import shutil
import tempfile
from pathlib import Path

from tsc.codegen_c import specs
from tsc.codegen_c.build import find_compiler
from tsc.codegen_c.specs import BFLOAT_SPECS, CPU_SPECS
from tsc.runtime.drivers import cpu

HEADER = Path(__file__).parent / "avx512.h"
EMULATED = BFLOAT_SPECS["cpu-avx512-bf16"]
NEEDED = CPU_SPECS["cpu-avx2"]
#: Set for a process and its children once they pretend: the folder with what that takes.
VARIABLE = "TSC_TEST_EMULATED"

_SCRIPT = """#!/bin/sh
asked=
for one do
  shift
  case $one in -mavx512*) asked={header} ;; *) set -- "$@" "$one" ;; esac
done
exec {command} ${{asked:+-include "$asked"}} "$@"
"""


def needed() -> bool:
    """Whether this machine cannot run AVX-512 code, and can emulate it."""
    return set(NEEDED.cpu_flags) <= cpu.read_cpu_flags() and not set(EMULATED.cpu_flags) <= cpu.read_cpu_flags()


def active() -> bool:
    """Whether this process pretends."""
    return VARIABLE in os.environ


def pretend() -> None:
    """Make this process and those it forks take the machine for one with AVX-512; in others it is to be called again."""
    if not active():
        folder = Path(tempfile.mkdtemp(prefix="tsc-emulated-"))
        atexit.register(_remove, folder, os.getpid())
        flags = " ".join(sorted({*cpu.read_cpu_flags(), *EMULATED.cpu_flags}))
        (folder / "cpuinfo").write_text(f"model name : emulated AVX-512\nflags : {flags}\n", encoding="ascii")
        os.environ[VARIABLE] = str(folder)
        os.environ["TSC_CC"] = command(" ".join(find_compiler(os.environ.get("TSC_CC")).command))
    cpuinfo = Path(os.environ[VARIABLE]) / "cpuinfo"
    cpu.read_cpu_flags.__defaults__ = (cpuinfo,)
    specs.host_spec.__defaults__ = (cpuinfo, CPU_SPECS)


def _remove(folder: Path, owner: int) -> None:
    """At the end of the process that made it, not of those that it forked."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def command(compiler: str) -> str:
    """How to call a compiler (a command with its options) so that its AVX-512 code runs here. The name of the script says what
    is in it, for caches that go by names."""
    text = _SCRIPT.format(command=compiler, header=shlex.quote(str(HEADER)))
    digest = hashlib.sha256(text.encode() + HEADER.read_bytes()).hexdigest()[:16]
    kind = "zig" if "zig" in compiler else "cc"
    script = Path(os.environ[VARIABLE]) / f"{kind}-{digest}"
    if not script.exists():
        made = script.with_suffix(f".{os.getpid()}")
        made.write_text(text, encoding="utf-8")
        made.chmod(0o755)
        made.rename(script)
    return str(script)

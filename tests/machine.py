"""What this machine can run."""

from __future__ import annotations

from tsc.codegen_c.build import find_compiler
from tsc.codegen_c.specs import CPU_SPECS
from tsc.runtime.drivers.cpu import read_cpu_flags
from tsc.target import DeviceSpec


def runnable() -> list[DeviceSpec]:
    """The CPU targets whose code runs here, the best first."""
    flags = read_cpu_flags()
    return [spec for spec in CPU_SPECS.values() if set(spec.cpu_flags) <= flags]


def c_compiler() -> str:
    """The command that compiles C here: the compiler on PATH, else the one in a wheel. Raises LaunchError without either."""
    return " ".join(find_compiler(None).command)

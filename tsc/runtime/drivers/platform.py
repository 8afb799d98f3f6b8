"""Which platform a target name means. What a platform needs is imported when it is asked for, and not before."""

from __future__ import annotations

import importlib
from typing import cast

from tsc.errors import LaunchError
from tsc.runtime.drivers.emu import EmuOptions, EmuPlatform
from tsc.runtime.drivers.protocol import NoDriverError, Platform


def open_platform(name: str, options: EmuOptions | None = None) -> Platform:
    """"cuda" is the machine's GPUs, as is "sm_80", "emu" and "emu:sm_80" the emulator, for which `options` are. Raises
    NoDriverError where the binding of the driver is not installed, LaunchError naming the known platforms."""
    kind, _, arch = name.partition(":")
    if kind == "emu":
        return EmuPlatform(arch or "sm_90a", options)
    if name != "cuda" and not name.startswith("sm_"):
        raise LaunchError(f"unknown platform '{name}'; known are cuda, emu and emu:<architecture>")
    try:
        module = importlib.import_module("tsc.runtime.drivers.cuda")
    except ImportError as error:
        raise NoDriverError(f"no binding of the CUDA driver ({error}); `pip install tsc-compiler[cuda]`") from error
    return cast(Platform, module.CudaPlatform())

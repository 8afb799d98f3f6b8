"""The explicit table of targets: what a back end is, and which ones there are. A new target is one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

from tsc.codegen_c.build import Ahead, build_module, compiling_ahead
from tsc.codegen_c.emit import emit_c
from tsc.codegen_c.specs import CPU_SPECS, host_spec
from tsc.codegen_c.types import C_TYPES
from tsc.config import Options
from tsc.loop_ir.bounds import Prover
from tsc.loop_ir.lower import lower
from tsc.loop_ir.nodes import Func
from tsc.poly.pattern import OWN, Forms
from tsc.runtime.interface import KernelInterface
from tsc.target import DeviceSpec, parse_target
from tsc.trace import Recorder


@dataclass(frozen=True, slots=True)
class Target:
    """A back end for one device: how loop IR is lowered for it, printed, and built into one module."""

    spec: DeviceSpec
    forms: Forms  # in which its blocks compute: patterns, their trees and spaces
    lower: Callable[[Func, DeviceSpec, Recorder, Prover], Func]
    emit: Callable[[Func, DeviceSpec, int], str]
    build: Callable[[Mapping[str, str], DeviceSpec, Options, Mapping[str, KernelInterface], Ahead | None], bytes]
    ahead: Callable[[DeviceSpec, Options], AbstractContextManager[Ahead]]  # compiles while others are scheduled
    dtypes: frozenset[str]  # what it computes with


def find(name: str) -> Target:
    """The target called `name`; "cpu" is this machine's. Raises LaunchError naming the known ones."""
    spec = host_spec() if name == "cpu" else parse_target(name, CPU_SPECS)
    return Target(spec, OWN, lower, emit_c, build_module, compiling_ahead, frozenset(C_TYPES))

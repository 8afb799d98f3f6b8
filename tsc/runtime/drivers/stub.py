"""A driver without a device, for tests: it records every call, checks every launch, and fails when told to."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tsc.errors import LaunchError
from tsc.runtime.drivers.host import HostDriver
from tsc.runtime.drivers.protocol import DeviceInfo, Driver, Function, Launch, Module, NoDriverError, check_arguments

STUB_DEVICE = DeviceInfo(0, "stub", "sm_90", 132, 1 << 30, 227 << 10, 50 << 20)
_RECORDED = (
    "load", "function", "allocate", "adopt", "release", "trim", "create_stream", "create_event", "record", "wait",
    "synchronize", "upload", "download", "copy", "fill", "tensor_map", "launch", "begin_capture", "end_capture",
    "build_graph", "instantiate",
    "set_kernel", "launch_graph", "close")


class StubDriver(HostDriver):
    """The Driver protocol over host memory; kernels do nothing, or call `kernels[name](launch)`.

    `calls` lists (method, arguments) in order; `runs` the launches in the order in which they ran, those of graphs included.
    `fail_at[method]` is the number of the call (from 1) of that method that raises `error`. Where `layouts` has a kernel,
    launches whose arguments have other sizes are refused."""

    def __init__(self, info: DeviceInfo = STUB_DEVICE, kernels: Mapping[str, Callable[[Launch], None]] | None = None,
                 layouts: Mapping[str, Sequence[int]] | None = None) -> None:
        super().__init__(info)
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.runs: list[Launch] = []
        self.fail_at: dict[str, int] = {}
        self.error: Exception = LaunchError("the stub was told to fail")
        self._kernels = dict(kernels or {})
        self._layouts = dict(layouts or {})
        self._counts: Counter[str] = Counter()
        for name in _RECORDED:
            setattr(self, name, self._recorder(name, getattr(self, name)))

    def load(self, binary: bytes, name: str) -> Module:
        """Any bytes but none are a module."""
        if not binary:
            raise LaunchError(f"module '{name}' is empty")
        return Module(next(self._numbers), binary, name=name)

    def function(self, module: Module, name: str) -> Function:
        """Any name is a kernel; where the stub was given kernels, only theirs."""
        if self._kernels and name not in self._kernels:
            raise LaunchError(f"module '{module.name}' has no kernel '{name}'")
        return Function(next(self._numbers), module, name=name)

    def check(self, launch: Launch) -> None:
        """Also compares the arguments with the kernel's layout."""
        super().check(launch)
        wanted = self._layouts.get(launch.function.name)
        if wanted is not None:
            check_arguments(launch, tuple(wanted))

    def run_kernel(self, launch: Launch) -> None:
        """Call what stands for the kernel."""
        self.runs.append(launch)
        if launch.function.name in self._kernels:
            self._kernels[launch.function.name](launch)

    def _recorder(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*arguments: Any, **options: Any) -> Any:
            self.calls.append((name, (*arguments, *options.values())))
            self._counts[name] += 1
            if self.fail_at.get(name) == self._counts[name]:
                raise self.error
            return method(*arguments, **options)

        return call


class StubPlatform:
    """One stub device, or none."""

    def __init__(self, present: bool = True) -> None:
        self._present = present

    def devices(self) -> tuple[DeviceInfo, ...]:
        """The stub. Raises NoDriverError where it is absent."""
        if not self._present:
            raise NoDriverError("the stub has no device")
        return (STUB_DEVICE,)

    def open(self, index: int = 0) -> Driver:
        """A new stub."""
        if index != 0:
            raise NoDriverError(f"there is no device {index}; there is 1")
        self.devices()
        return StubDriver()

"""What the emulator and the stub share: a device whose memory is the host's and whose streams run everything at once, in
order."""

from __future__ import annotations

import ctypes
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc.errors import InternalError, LaunchError
from tsc.runtime.drivers.protocol import (
    DeviceInfo,
    Event,
    Function,
    Graph,
    GraphExec,
    Handle,
    Launch,
    LaunchTable,
    Memory,
    MemoryUse,
    Module,
    OutOfMemoryError,
    Stream,
    TensorMap,
    check_contiguous,
    check_launch,
    check_span,
    check_tensor_map,
)
from tsc.runtime.memory import address, allocate

_ALIGNMENT = 256
_GAP = 256  # around each allocation, so that a kernel that runs past one does not reach the next
_TENSOR_MAP_MAGIC = 0x50414D54


class _TensorMap(ctypes.Structure):
    """tsc_emu_tensor_map of codegen_cuda/emu/abi.h."""

    _fields_ = (
        ("magic", ctypes.c_uint32), ("dtype", ctypes.c_uint8), ("rank", ctypes.c_uint8), ("swizzle", ctypes.c_uint8),
        ("fill", ctypes.c_uint8), ("address", ctypes.c_uint64), ("dims", ctypes.c_uint64 * 5), ("strides", ctypes.c_uint64 * 4),
        ("box", ctypes.c_uint32 * 5), ("reserved", ctypes.c_uint32 * 5))


@dataclass(frozen=True, slots=True)
class Region:
    """Memory that kernels may touch."""

    address: int
    size: int
    writable: bool


@dataclass(frozen=True, slots=True)
class _Step:
    """One piece of work; `launch` where it is a kernel's."""

    run: Callable[[], None]
    launch: Launch | None = None


@dataclass(slots=True)
class _Capture:
    """Work that is being recorded, by which streams, and what spoiled it."""

    origin: int
    steps: list[_Step] = field(default_factory=list)
    streams: set[int] = field(default_factory=set)
    broken: str = ""


class HostDriver:
    """The Driver protocol over host memory. A subclass gives `load`, `function` and `run_kernel`."""

    def __init__(self, info: DeviceInfo) -> None:
        self._info = info
        self._lock = threading.RLock()
        self._numbers = itertools.count(1 << 20)
        self._regions: dict[int, Region] = {}
        self._used = 0
        self._captures: dict[int, _Capture] = {}  # stream -> what it is recorded into
        self._times: dict[int, float] = {}  # event -> when it came
        self._recorded: dict[int, _Capture] = {}  # event -> the capture it is in
        self._graphs: dict[int, list[_Step]] = {}
        self._default = Stream(0)

    @property
    def info(self) -> DeviceInfo:
        """The device."""
        return self._info

    @property
    def dlpack_device(self) -> tuple[int, int]:
        """The host's memory."""
        return (1, 0)

    @property
    def default_stream(self) -> Stream:
        """The stream of value 0."""
        return self._default

    def load(self, binary: bytes, name: str) -> Module:
        """Load a binary."""
        raise NotImplementedError

    def function(self, module: Module, name: str) -> Function:
        """A kernel of it."""
        raise NotImplementedError

    def run_kernel(self, launch: Launch) -> None:
        """Run a launch, which was checked, to its end."""
        raise NotImplementedError

    def check(self, launch: Launch) -> None:
        """Raise LaunchError where `launch` cannot run: asked before it is run or recorded."""
        check_launch(launch, self._info)

    def close(self) -> None:
        """Forget everything."""
        with self._lock:
            for table in (self._regions, self._captures, self._times, self._recorded, self._graphs):
                table.clear()
            self._used = 0

    # ---- memory

    def allocate(self, size: int, stream: Stream | None = None, last: Stream | None = None) -> Memory:
        """Host memory with nothing near it. Raises OutOfMemoryError where the device's total would be passed."""
        with self._lock:
            if size < 0 or self._used + size > self._info.total_memory:
                raise OutOfMemoryError(f"{self._info.name} has not {size} bytes of free memory ({self._used} of "
                                       f"{self._info.total_memory} are in use); use a smaller shape")
            raw = allocate(size + _ALIGNMENT + 2 * _GAP, "device memory")
            memory = Memory(-(-(address(raw) + _GAP) // _ALIGNMENT) * _ALIGNMENT, raw, size=size)
            self._used += size
            self._register(memory, Region(memory.value, size, True), size)
        return memory

    def adopt(self, address: int, size: int, owner: object, writable: bool = True) -> Memory:
        """Memory of the host that kernels may touch from now on."""
        with self._lock:
            memory = Memory(address, owner, size=size)
            self._register(memory, Region(address, size, writable), 0)
        return memory

    def regions(self) -> list[Region]:
        """All memory that kernels may touch."""
        with self._lock:
            return list(self._regions.values())

    def release(self, handle: Handle, stream: Stream | None = None) -> None:
        """Forget `handle`; at once, since streams hold nothing back."""
        if handle.finalizer is not None:
            handle.finalizer()
        handle.owner = None

    def memory_use(self) -> MemoryUse:
        """What is allocated; there is no pool."""
        return MemoryUse(self._info.total_memory - self._used, self._info.total_memory, self._used, self._used)

    def trim(self, keep: int = 0) -> None:
        """Nothing is kept."""

    def host_array(self, size: int) -> NDArray[np.uint8]:
        """Plain memory."""
        return allocate(size, "host memory")

    def _register(self, memory: Memory, region: Region, counted: int) -> None:
        number = next(self._numbers)
        self._regions[number] = region
        memory.on_release(self._forget, number, counted)

    def _forget(self, number: int, counted: int) -> None:
        with self._lock:
            if self._regions.pop(number, None) is not None:
                self._used -= counted

    # ---- streams and events

    def create_stream(self) -> Stream:
        """A new stream."""
        return Stream(next(self._numbers))

    def wrap_stream(self, value: int, owner: object = None) -> Stream:
        """Any number is a stream."""
        return Stream(value, owner)

    def create_event(self, timing: bool = False) -> Event:
        """A new event."""
        event = Event(next(self._numbers), timing=timing)
        self._times[event.value] = 0.0
        event.on_release(self._times.pop, event.value, None)
        return event

    def record(self, event: Event, stream: Stream) -> None:
        """The event comes at once, or joins the capture of `stream`."""
        capture = self._captures.get(stream.value)
        if capture is not None:
            self._recorded[event.value] = capture
        else:
            self._recorded.pop(event.value, None)
            self._times[event.value] = time.perf_counter()

    def wait(self, stream: Stream, event: Event) -> None:
        """Nothing to wait for; a stream that waits for a captured event is captured from then on."""
        capture = self._recorded.get(event.value)
        if capture is not None and capture.origin in self._captures:
            self._captures[stream.value] = capture
            capture.streams.add(stream.value)

    def done(self, event: Event) -> bool:
        """Always."""
        self._refuse_captured(event)
        return True

    def elapsed(self, start: Event, stop: Event) -> float:
        """Milliseconds of host time."""
        if not (start.timing and stop.timing):
            raise InternalError("elapsed times are between timing events only")
        self._refuse_captured(start)
        self._refuse_captured(stop)
        return (self._times[stop.value] - self._times[start.value]) * 1e3

    def synchronize(self, what: Stream | Event | None = None) -> None:
        """Nothing is under way; breaks a capture, as on a device."""
        match what:
            case Event():
                self._refuse_captured(what)
            case Stream() if what.value in self._captures:
                self._break(self._captures[what.value], "a stream that is being recorded cannot be waited for")

    def _refuse_captured(self, event: Event) -> None:
        capture = self._recorded.get(event.value)
        if capture is not None:
            self._break(capture, "an event that is being recorded cannot be waited for")

    def _break(self, capture: _Capture, reason: str) -> None:
        capture.broken = reason
        raise LaunchError(f"the capture is broken: {reason}")

    # ---- work

    def upload(self, target: Memory, source: NDArray[Any], stream: Stream, offset: int = 0) -> None:
        """Copy now, or when the graph runs."""
        check_contiguous(source)
        check_span(target, offset, source.nbytes)
        self._move(target.value + offset, address(source), source.nbytes, stream, (target, source))

    def download(self, target: NDArray[Any], source: Memory, stream: Stream, offset: int = 0) -> None:
        """Copy now, or when the graph runs."""
        check_contiguous(target)
        check_span(source, offset, target.nbytes)
        self._move(address(target), source.value + offset, target.nbytes, stream, (target, source))

    def copy(self, target: Memory, source: Memory, size: int, stream: Stream, offsets: tuple[int, int] = (0, 0)) -> None:
        """Copy now, or when the graph runs."""
        check_span(target, offsets[0], size)
        check_span(source, offsets[1], size)
        self._move(target.value + offsets[0], source.value + offsets[1], size, stream, (target, source))

    def fill(self, target: Memory, byte: int, stream: Stream) -> None:
        """Set every byte."""
        self._put(stream, _Step(lambda: _ignore(ctypes.memset(target.value, byte, target.size))))

    def tensor_map(self, what: TensorMap) -> bytes:
        """The emulator's tensor map."""
        dtype, swizzle = check_tensor_map(what)
        return bytes(_TensorMap(
            _TENSOR_MAP_MAGIC, dtype, len(what.shape), swizzle, 0, what.memory.value + what.offset,
            (ctypes.c_uint64 * 5)(*what.shape), (ctypes.c_uint64 * 4)(*what.strides), (ctypes.c_uint32 * 5)(*what.box)))

    def launch(self, launch: Launch, stream: Stream) -> None:
        """Run a kernel to its end, or record it."""
        self._put(stream, self._kernel(launch))

    def _move(self, target: int, source: int, size: int, stream: Stream, kept: tuple[object, ...]) -> None:
        def run(_: object = kept) -> None:
            ctypes.memmove(target, source, size)

        self._put(stream, _Step(run))

    def _kernel(self, launch: Launch) -> _Step:
        self.check(launch)
        fixed = replace(launch, args=launch.args.copy())  # a device, too, reads the arguments when it is asked to launch
        return _Step(lambda: self.run_kernel(fixed), fixed)

    def _put(self, stream: Stream, step: _Step) -> None:
        capture = self._captures.get(stream.value)
        if capture is not None:
            capture.steps.append(step)
        else:
            step.run()

    # ---- graphs

    def begin_capture(self, stream: Stream) -> None:
        """Record from now on. The default stream cannot be recorded, as on a device."""
        if stream.value == 0 or stream.value in self._captures:
            raise LaunchError("neither the default stream nor a stream in a capture can begin one; use create_stream")
        self._captures[stream.value] = _Capture(stream.value, streams={stream.value})

    def end_capture(self, stream: Stream) -> Graph:
        """Stop recording in all streams that joined."""
        capture = self._captures.get(stream.value)
        if capture is None or capture.origin != stream.value:
            raise LaunchError("this stream did not begin a capture")
        for value in capture.streams:
            self._captures.pop(value, None)
        if capture.broken:
            raise LaunchError(f"the capture was broken: {capture.broken}")
        return self._graph(capture.steps)

    def build_graph(self, launches: Sequence[Launch], after: Sequence[Sequence[int]] | None = None) -> Graph:
        """Launches run in the order given, which must be one that `after` allows."""
        for number, before in enumerate(after or ()):
            if any(not 0 <= other < number for other in before):
                raise InternalError(f"launch {number} of a graph can only run after those before it, not after {list(before)}")
        return self._graph([self._kernel(launch) for launch in launches])

    def instantiate(self, graph: Graph) -> GraphExec:
        """A copy of the graph's steps."""
        made = GraphExec(next(self._numbers), graph, kernels=graph.kernels)
        self._graphs[made.value] = list(self._graphs[graph.value])
        made.on_release(self._graphs.pop, made.value, None)
        return made

    def set_kernels(self, graph: GraphExec, table: LaunchTable, rows: Sequence[int]) -> None:
        """Replace launches, one by one."""
        for row in rows:
            self.set_kernel(graph, row, table.launch(row))

    def set_kernel(self, graph: GraphExec, kernel: int, launch: Launch) -> None:
        """Replace one launch."""
        position = graph.kernels[kernel]
        steps = self._graphs[graph.value]
        old = steps[position].launch
        if old is not None and old.cluster != launch.cluster:
            raise LaunchError(f"the cluster {old.cluster} of a graph's kernel cannot become {launch.cluster}; build another")
        steps[position] = self._kernel(launch)

    def launch_graph(self, graph: GraphExec, stream: Stream) -> None:
        """Run every step."""
        steps = tuple(self._graphs[graph.value])

        def run() -> None:
            for step in steps:
                step.run()

        self._put(stream, _Step(run))

    def _graph(self, steps: list[_Step]) -> Graph:
        kernels = tuple(position for position, step in enumerate(steps) if step.launch is not None)
        graph = Graph(next(self._numbers), kernels=kernels)
        self._graphs[graph.value] = steps
        graph.on_release(self._graphs.pop, graph.value, None)
        return graph


def _ignore(_: object) -> None:
    """For calls whose result says nothing."""

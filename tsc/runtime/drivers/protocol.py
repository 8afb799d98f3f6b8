"""What a driver offers: memory, streams, launches and graphs of one device, the same for a GPU, its emulator and a stub.

A `Platform` finds and opens devices, a `Driver` is one opened device. Everything a driver makes is a Handle, given back when
nothing refers to it any more, or earlier with `release`. Work on a stream runs in order, and may run after the call returns;
the memory it uses must live until then.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tsc.errors import InternalError, LaunchError

Size3: TypeAlias = tuple[int, int, int]
ONE: Size3 = (1, 1, 1)
#: Element types of tensor maps: NumPy's name -> (the driver's number, bytes).
TENSOR_MAP_TYPES = {
    "uint8": (0, 1), "int8": (0, 1), "uint16": (1, 2), "int16": (1, 2), "uint32": (2, 4), "int32": (3, 4), "uint64": (4, 8),
    "int64": (5, 8), "float16": (6, 2), "float32": (7, 4), "float64": (8, 8), "bfloat16": (9, 2)}
#: Swizzles of tensor maps: bytes -> the driver's number.
TENSOR_MAP_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}


class NoDriverError(LaunchError):
    """There is no device, no driver for it, or no binding to the driver."""


class DriverVersionError(LaunchError):
    """The driver is too old for the binaries that are to run on it."""


class ArchitectureError(LaunchError):
    """The binary is made for another device."""


class OutOfMemoryError(LaunchError):
    """The device has not as much free memory as was asked for."""


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """What a device says of itself. `arch` is its compute capability ("sm_90"), `shared_per_block` the most shared memory a
    block can have, `driver_version` the newest CUDA the driver knows (0, 0 where there is no real one)."""

    index: int
    name: str
    arch: str
    multiprocessors: int
    total_memory: int
    shared_per_block: int
    l2_bytes: int
    driver_version: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes of a device: free and in total; of the driver's pool: reserved from the device, and of those in use."""

    free: int
    total: int
    pool_reserved: int
    pool_used: int


@dataclass(eq=False, slots=True, weakref_slot=True)
class Handle:
    """Something a driver made. `value` is the driver's own handle (a CUstream, a device address, ...), `owner` what must stay
    alive as long as this is used."""

    value: int
    owner: Any = None
    finalizer: Any = field(default=None, init=False, repr=False)

    def on_release(self, action: Callable[..., object], *arguments: object) -> None:
        """What to do, once, when this is released or nothing refers to it any more; not when the process ends."""
        self.finalizer = weakref.finalize(self, action, *arguments)
        self.finalizer.atexit = False


@dataclass(eq=False, slots=True)
class Module(Handle):
    """A loaded binary."""

    name: str = ""


@dataclass(eq=False, slots=True)
class Function(Handle):
    """A kernel of a module; its `owner` is the Module."""

    name: str = ""


@dataclass(eq=False, slots=True)
class Memory(Handle):
    """`size` bytes of device memory at the address `value`."""

    size: int = 0


@dataclass(eq=False, slots=True)
class Stream(Handle):
    """A queue of work. The value 0 is CUDA's legacy default stream."""


@dataclass(eq=False, slots=True)
class Event(Handle):
    """A point in a stream."""

    timing: bool = False


@dataclass(eq=False, slots=True)
class Graph(Handle):
    """Work recorded once. `kernels` are its kernel nodes, in the order they were added or captured."""

    kernels: tuple[int, ...] = ()


@dataclass(eq=False, slots=True)
class GraphExec(Handle):
    """A Graph ready to be launched; its `owner` is the Graph."""

    kernels: tuple[int, ...] = ()


#: A kernel argument: a NumPy scalar is passed as it is, Memory as its address, bytes as a struct by value.
Argument: TypeAlias = "np.generic[Any] | bytes | Memory"


class Arguments:
    """Arguments as a launch wants them: `table` is the address of an array of the addresses of the values. They may be set
    again between launches, with values of the same sizes; Memory among them is kept alive."""

    def __init__(self, values: Sequence[Argument]) -> None:
        self.values: list[Argument] = list(values)
        contents = [_content(value) for value in values]
        self.sizes = tuple(len(content) for content in contents)
        offsets, total = [], 0
        for size in self.sizes:
            align = 64 if size >= 64 else 8  # tensor maps lie on multiples of 64
            total = -(-total // align) * align
            offsets.append(total)
            total += size
        self._raw = ctypes.create_string_buffer(total + 64)
        base = ctypes.addressof(self._raw) + 63 & ~63
        self._addresses = tuple(base + offset for offset in offsets)
        self._table = (ctypes.c_void_p * max(1, len(contents)))(*self._addresses)
        self.table = ctypes.addressof(self._table)
        for address, content in zip(self._addresses, contents):
            ctypes.memmove(address, content, len(content))

    def copy(self) -> Arguments:
        """The same values in memory of their own."""
        return Arguments(self.values)

    def __len__(self) -> int:
        return len(self.values)

    def set(self, index: int, value: Argument) -> None:
        """Replace one argument. Raises InternalError where its size changes."""
        content = _content(value)
        if len(content) != self.sizes[index]:
            raise InternalError(f"argument {index} has {self.sizes[index]} bytes and cannot become one of {len(content)}")
        ctypes.memmove(self._addresses[index], content, len(content))
        self.values[index] = value


def _content(value: Argument) -> bytes:
    match value:
        case Memory():
            return value.value.to_bytes(8, "little")
        case bytes():
            return value
        case np.generic():
            return value.tobytes()
    raise InternalError(f"a kernel argument is a NumPy scalar, bytes or Memory, not {type(value).__name__}")


@dataclass(frozen=True, slots=True)
class Launch:
    """One run of a kernel over grid blocks of block threads, in clusters of `cluster` blocks, with `shared` bytes of dynamic
    shared memory (more than 48 KB are asked for where needed). `in_turn`: its kernel waits itself for the launch before it, so
    that in a graph it may be put on the device while that one runs."""

    function: Function
    grid: Size3
    block: Size3
    args: Arguments
    shared: int = 0
    cluster: Size3 = ONE
    in_turn: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class LaunchTable:
    """Launches in rows: whose kernels, over how many `blocks` of how many `threads`, with how many bytes of `shared` memory.
    Arguments have 64 bits each: those of row i are `values[first[i]:first[i + 1]]`, addresses where they are not `are_sizes`.
    """

    functions: tuple[Function, ...]
    blocks: NDArray[np.int64]
    threads: NDArray[np.int64]
    shared: NDArray[np.int64]
    first: NDArray[np.int64]
    values: NDArray[np.uint64]
    are_sizes: NDArray[np.bool_]
    in_turn: bool = False

    def __len__(self) -> int:
        return len(self.functions)

    def launch(self, row: int) -> Launch:
        """One of them."""
        own = slice(self.first[row], self.first[row + 1])
        given = [value.view(np.int64) if is_size else value for value, is_size in zip(self.values[own], self.are_sizes[own])]
        return Launch(self.functions[row], (int(self.blocks[row]), 1, 1), (int(self.threads[row]), 1, 1), Arguments(given),
                      int(self.shared[row]), in_turn=self.in_turn)

    def changed(self, before: LaunchTable | None) -> Sequence[int]:
        """The rows that are not as they were `before`; all where these were others."""
        if before is None or self.functions != before.functions or not np.array_equal(self.first, before.first):
            return range(len(self))
        other = (self.blocks != before.blocks) | (self.threads != before.threads) | (self.shared != before.shared)
        other[np.searchsorted(self.first, (self.values != before.values).nonzero()[0], "right") - 1] = True
        rows: list[int] = other.nonzero()[0].tolist()
        return rows


@dataclass(frozen=True, slots=True)
class TensorMap:
    """What a bulk tensor copy needs to know of a tensor in global memory (CUtensorMap): all sequences innermost dimension
    first.

    `dtype` is NumPy's name or "bfloat16"; `strides` the bytes between elements of dimensions 1 and up (the innermost is dense);
    `box` the elements of one copy; `swizzle` 0, 32, 64 or 128 bytes; what lies outside the tensor reads as zero."""

    memory: Memory
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    offset: int = 0


class Driver(Protocol):
    """One opened device. Unless said otherwise methods raise LaunchError where the device refuses, and InternalError where they
    are misused. Methods may be called from any thread; one stream is used by one thread at a time."""

    @property
    def info(self) -> DeviceInfo:
        """The device."""

    @property
    def dlpack_device(self) -> tuple[int, int]:
        """Where its memory is, as DLPack says it: (2, number) a GPU's, (1, 0) the host's."""

    @property
    def default_stream(self) -> Stream:
        """The device's default stream, which other libraries use unless told otherwise."""

    def load(self, binary: bytes, name: str) -> Module:
        """Load a binary; `name` is what errors call it. Raises ArchitectureError where it is made for another device."""

    def function(self, module: Module, name: str) -> Function:
        """The kernel called `name`."""

    def allocate(self, size: int, stream: Stream | None = None, last: Stream | None = None) -> Memory:
        """At least `size` bytes, aligned to 256: from the driver's pool and usable from now on in `stream`, where one is given.
        Such memory is given back after the work that is then in `last`, or else in `stream`. Raises OutOfMemoryError."""

    def adopt(self, address: int, size: int, owner: object, writable: bool = True) -> Memory:
        """Memory that somebody else made and that `owner` keeps."""

    def release(self, handle: Handle, stream: Stream | None = None) -> None:
        """Give `handle` back now; memory after the work that is in `stream`, where one is given. Nothing may use it again."""

    def memory_use(self) -> MemoryUse:
        """How much memory there is."""

    def trim(self, keep: int = 0) -> None:
        """Give unused memory of the pool above `keep` bytes back to the device."""

    def host_array(self, size: int) -> NDArray[np.uint8]:
        """Memory of the host that the device copies to and from directly (page-locked)."""

    def create_stream(self) -> Stream:
        """A stream of its own, which does not wait for the default stream."""

    def wrap_stream(self, value: int, owner: object = None) -> Stream:
        """Somebody else's stream, by its handle."""

    def create_event(self, timing: bool = False) -> Event:
        """An event that is done until it is recorded; `timing` for `elapsed`."""

    def record(self, event: Event, stream: Stream) -> None:
        """Put `event` after the work that is in `stream`."""

    def wait(self, stream: Stream, event: Event) -> None:
        """Let `stream` go on only after `event`."""

    def done(self, event: Event) -> bool:
        """Whether the work before `event` is done."""

    def elapsed(self, start: Event, stop: Event) -> float:
        """Milliseconds between two timing events that are done."""

    def synchronize(self, what: Stream | Event | None = None) -> None:
        """Wait for a stream, for an event, or for all work of the device. Raises LaunchError where that work failed."""

    def upload(self, target: Memory, source: NDArray[Any], stream: Stream, offset: int = 0) -> None:
        """Copy a contiguous array into `target`, `offset` bytes in. The array may be changed when this returns, unless it is
        made by `host_array`: then when the stream has come past it."""

    def download(self, target: NDArray[Any], source: Memory, stream: Stream, offset: int = 0) -> None:
        """Copy from `source`, `offset` bytes in, into a contiguous array, which is filled when the stream has come past it."""

    def copy(self, target: Memory, source: Memory, size: int, stream: Stream, offsets: tuple[int, int] = (0, 0)) -> None:
        """Copy within the device; `offsets` are bytes into target and source."""

    def fill(self, target: Memory, byte: int, stream: Stream) -> None:
        """Set every byte."""

    def tensor_map(self, what: TensorMap) -> bytes:
        """The 128 bytes that a kernel takes by value to copy tiles of a tensor. Raises LaunchError where the hardware has no
        such copy (sizes, alignment, box)."""

    def launch(self, launch: Launch, stream: Stream) -> None:
        """Run a kernel."""

    def begin_capture(self, stream: Stream) -> None:
        """From now on record what is put in `stream` (and in streams that wait for its events) instead of running it."""

    def end_capture(self, stream: Stream) -> Graph:
        """Stop recording. Raises LaunchError where the capture was broken by something that cannot be recorded."""

    def build_graph(self, launches: Sequence[Launch], after: Sequence[Sequence[int]] | None = None) -> Graph:
        """A graph of launches: number i runs after those in `after[i]`, or one after the other where `after` is None."""

    def instantiate(self, graph: Graph) -> GraphExec:
        """Make a graph ready to be launched."""

    def set_kernel(self, graph: GraphExec, kernel: int, launch: Launch) -> None:
        """Replace kernel number `kernel`: function, grid, block, shared memory and arguments, for the launches to come. The
        cluster stays as it is."""

    def set_kernels(self, graph: GraphExec, table: LaunchTable, rows: Sequence[int]) -> None:
        """Replace kernels number `rows` by those rows of a table."""

    def launch_graph(self, graph: GraphExec, stream: Stream) -> None:
        """Run a graph."""

    def close(self) -> None:
        """Give the device back. Handles made by this driver may not be used again."""


class Platform(Protocol):
    """A kind of device."""

    def devices(self) -> tuple[DeviceInfo, ...]:
        """The devices there are. Raises NoDriverError where there is no driver, DriverVersionError where it is too old."""

    def open(self, index: int = 0) -> Driver:
        """Open a device. Raises NoDriverError where there is none of that number."""


def check_launch(launch: Launch, info: DeviceInfo) -> None:
    """Raise LaunchError where no device of this kind could run `launch`."""
    name = launch.function.name
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    limits = ((2**31 - 1, 65535, 65535), (1024, 1024, 64), (8, 8, 8))
    for what, sizes, most in zip(("grid", "block", "cluster"), (launch.grid, launch.block, launch.cluster), limits):
        if not all(0 < size <= top for size, top in zip(sizes, most)):
            raise LaunchError(f"kernel '{name}' cannot be launched with a {what} of {sizes}; it may be 1 to {most}")
    if threads > 1024:
        raise LaunchError(f"kernel '{name}' cannot be launched with {threads} threads a block; 1024 are the most")
    if any(g % c for g, c in zip(launch.grid, launch.cluster)):
        raise LaunchError(f"kernel '{name}' cannot be launched: {launch.grid} blocks are not clusters of {launch.cluster}")
    if launch.shared > info.shared_per_block:
        raise LaunchError(f"kernel '{name}' needs {launch.shared} bytes of shared memory a block, and {info.name} has "
                          f"{info.shared_per_block}")


def check_arguments(launch: Launch, sizes: tuple[int, ...]) -> None:
    """Raise LaunchError where the kernel's parameters have other sizes than the arguments."""
    if sizes != launch.args.sizes:
        raise LaunchError(f"kernel '{launch.function.name}' takes arguments of {sizes} bytes, not {launch.args.sizes}")


def check_tensor_map(what: TensorMap) -> tuple[int, int]:
    """The driver's numbers of the element type and of the swizzle. Raises LaunchError where the hardware has no such copy (CUDA
    driver API, cuTensorMapEncodeTiled)."""
    number, width = TENSOR_MAP_TYPES.get(what.dtype, (-1, 0))
    rank = len(what.shape)
    inner = what.box[0] * width if what.box else 0
    rules = (
        (number >= 0, f"there are no tensor maps of {what.dtype}"),
        (1 <= rank <= 5 and len(what.box) == rank and len(what.strides) == rank - 1, "1 to 5 dimensions, each with its box"),
        (all(0 < size <= 1 << 32 for size in what.shape), "dimensions of 1 to 2^32 elements"),
        ((what.memory.value + what.offset) % 16 == 0, "an address that is a multiple of 16"),
        (all(0 < stride < 1 << 40 and stride % 16 == 0 for stride in what.strides), "strides that are multiples of 16 bytes"),
        (all(0 < size <= 256 for size in what.box), "a box of 1 to 256 elements along each dimension"),
        (inner % 16 == 0, "a box whose innermost dimension is a multiple of 16 bytes"),
        (what.swizzle in TENSOR_MAP_SWIZZLES, "a swizzle of 0, 32, 64 or 128 bytes"),
        (what.swizzle == 0 or inner <= what.swizzle, "a box not wider than the swizzle"),
    )
    for holds, rule in rules:
        if not holds:
            raise LaunchError(f"a tensor map needs: {rule}; it was asked for {what}")
    return number, TENSOR_MAP_SWIZZLES[what.swizzle]


def check_span(memory: Memory, offset: int, size: int) -> None:
    """Raise InternalError where `size` bytes at `offset` are not inside `memory`."""
    if offset < 0 or size < 0 or offset + size > memory.size:
        raise InternalError(f"{size} bytes at {offset} do not lie in {memory.size} bytes of device memory")


def check_contiguous(array: NDArray[Any]) -> None:
    """Raise InternalError where an array cannot be copied as one piece."""
    if not array.flags.c_contiguous:
        raise InternalError("only contiguous arrays are copied to and from a device")

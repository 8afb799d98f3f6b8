"""Arrays in device memory, in and out of other libraries without copies: DLPack and CUDA's array interface.

Both sides keep to the consumer protocol: an exporter makes the consumer's stream wait for its own, an importer says which
stream will use the array (Python array API standard 2023.12, `__dlpack__`; CUDA array interface 3, "Synchronization").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tsc.errors import InputError
from tsc.runtime.dlpack import CPU, CUDA, Described, dense_strides, make_capsule, take_capsule
from tsc.runtime.drivers.protocol import Driver, Memory, Stream
from tsc.runtime.memory import Array, address, allocate_array, contiguous
from tsc.runtime.plan import numpy_dtype

#: Kernels of GPUs read and write memory that begins at multiples of this.
BASE_ALIGNMENT = 16

_LEGACY, _NO_WAIT = 1, -1  # how the protocols call the legacy default stream, and "do not wait"
_WIDTHS = {"bfloat16": 2, "bool": 1}


@dataclass(eq=False)
class DeviceArray:
    """A dense row-major array in device memory, ready for what comes in `stream` (None: for anything). `dtype` is NumPy's name
    or "bfloat16". `torch.from_dlpack` and its like use the memory where it is."""

    memory: Memory
    shape: tuple[int, ...]
    dtype: str
    driver: Driver
    stream: Stream | None
    writable: bool = True

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return math.prod(self.shape) * item_size(self.dtype)

    @property
    def aligned(self) -> bool:
        """Whether kernels can use it where it is."""
        return self.memory.value % BASE_ALIGNMENT == 0

    def numpy(self) -> Array:
        """A copy in the host's memory, made when all is done that this waits for. Raises LaunchError where memory is short, or
        that work failed."""
        result = allocate_array(self.shape, numpy_dtype(self.dtype), "an array")
        stream = self.driver.default_stream
        self.let_wait(stream)
        self.driver.download(result, self.memory, stream)
        self.driver.synchronize(stream)
        return result

    def __repr__(self) -> str:
        return f"<DeviceArray {self.dtype}{list(self.shape)} on {self.driver.info.name}>"

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.driver.dlpack_device

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None,
                   dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> object:
        if copy or (dl_device is not None and tuple(dl_device) != self.driver.dlpack_device):
            raise BufferError("a device array is exported in place, without a copy")
        versioned = max_version is not None and max_version[0] >= 1
        if not versioned and not self.writable:
            raise BufferError("a read-only array needs a consumer of DLPack 1.0")
        if self.driver.dlpack_device[0] == CUDA and stream != _NO_WAIT:
            self.let_wait(self.driver.wrap_stream(_LEGACY if stream is None else stream))
        place = (self.memory.value, self.driver.dlpack_device)
        return make_capsule(Described(*place, self.dtype, self.shape, None, self.writable), self, versioned)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.driver.dlpack_device[0] != CUDA or self.dtype == "bfloat16":
            raise AttributeError("__cuda_array_interface__")  # as an object that has none
        return {
            "shape": self.shape, "typestr": np.dtype(self.dtype).str, "data": (self.memory.value, not self.writable),
            "version": 3, "strides": None,
            "stream": None if self.stream is None else self.stream.value or _LEGACY}

    def let_wait(self, consumer: Stream) -> None:
        """Make a stream wait for what this array waits for."""
        if self.stream is not None and (consumer.value or _LEGACY) != (self.stream.value or _LEGACY):
            event = self.driver.create_event()
            self.driver.record(event, self.stream)
            self.driver.wait(consumer, event)


AnyArray: TypeAlias = Array | DeviceArray


def write(target: DeviceArray, values: AnyArray) -> None:
    """Copy the elements of an array of that shape and dtype, of the host's or the same device, and wait for that. Raises
    LaunchError where the device refuses, or what is waited for failed."""
    driver, stream = target.driver, target.driver.default_stream
    target.let_wait(stream)
    if isinstance(values, DeviceArray):
        values.let_wait(stream)
        driver.copy(target.memory, values.memory, target.nbytes, stream)
    else:
        driver.upload(target.memory, contiguous(values, "a copy of an array"), stream)
    driver.synchronize(stream)


def item_size(dtype: str) -> int:
    """Bytes of an element."""
    return _WIDTHS.get(dtype) or np.dtype(dtype).itemsize


def empty_array(shape: tuple[int, ...], dtype: str, driver: Driver, stream: Stream) -> DeviceArray:
    """A new array with no contents, for use in `stream`."""
    return DeviceArray(driver.allocate(math.prod(shape) * item_size(dtype), stream), shape, dtype, driver, stream)


def import_array(source: object, driver: Driver, stream: Stream, what: str) -> DeviceArray:
    """Somebody else's array, where it is: `source` speaks DLPack or CUDA's array interface, or is a NumPy array where the
    device's memory is the host's. Ready for what comes in `stream`. Raises InputError naming `what` where it lies elsewhere,
    is not dense, or is of a type that is not understood."""
    match source:
        case DeviceArray() if source.driver is driver:
            source.let_wait(stream)
            return DeviceArray(source.memory, source.shape, source.dtype, driver, stream, source.writable)
        case np.ndarray() if driver.dlpack_device[0] == CPU:
            described = _of_numpy(source)
        case _ if hasattr(source, "__dlpack__") and hasattr(source, "__dlpack_device__"):
            described = _of_dlpack(source, driver, stream, what)
        case _ if driver.dlpack_device[0] == CUDA and hasattr(source, "__cuda_array_interface__"):
            described = _of_cuda(source.__cuda_array_interface__, driver, stream, what)
        case _:
            raise InputError(f"{what} is a {type(source).__name__}; a DLPack array of {driver.info.name} is needed")
    if described.strides is not None and not _is_dense(described.shape, described.strides):
        raise InputError(f"{what} is not dense and row-major (shape {described.shape}, strides {described.strides}); "
                         "make it contiguous")
    size = math.prod(described.shape) * item_size(described.dtype)
    keep = source if isinstance(source, np.ndarray) else (described, source)
    memory = driver.adopt(described.address, size, keep, described.writable)
    return DeviceArray(memory, described.shape, described.dtype, driver, stream, described.writable)


def _of_numpy(source: np.ndarray[Any, Any]) -> Described:
    strides = tuple(step // source.itemsize for step in source.strides)
    return Described(address(source), (CPU, 0), source.dtype.name, source.shape, strides, source.flags.writeable)


def _of_dlpack(source: Any, driver: Driver, stream: Stream, what: str) -> Described:
    kind, number = _answer(source.__dlpack_device__, what)
    if (int(kind), int(number)) != driver.dlpack_device:
        raise InputError(f"{what} lies on DLPack's device {(int(kind), int(number))}; this is {driver.info.name}, "
                         f"{driver.dlpack_device}: copy it there first")
    user = (stream.value or _LEGACY) if driver.dlpack_device[0] == CUDA else None
    return take_capsule(_answer(lambda: _capsule(source, user), what), what)


def _capsule(source: Any, stream: int | None) -> object:
    try:
        return source.__dlpack__(stream=stream, max_version=(1, 1))
    except TypeError:  # an exporter from before DLPack 1.0
        return source.__dlpack__(stream=stream)


def _answer(ask: Callable[[], Any], what: str) -> Any:
    """What an exporter says. Raises InputError naming `what` where it refuses."""
    try:
        return ask()
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError) as error:
        first = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(f"{what} cannot be read where it is ({first}); give an array that DLPack can describe") from error


def _of_cuda(interface: Mapping[str, Any], driver: Driver, stream: Stream, what: str) -> Described:
    pointer, read_only = interface["data"]
    kind = np.dtype(interface["typestr"])
    producer = interface.get("stream")
    if producer is not None and producer != (stream.value or _LEGACY):
        event = driver.create_event()
        driver.record(event, driver.wrap_stream(producer))
        driver.wait(stream, event)
    steps = interface.get("strides")
    if steps is not None and any(step % kind.itemsize for step in steps):
        raise InputError(f"{what} has strides {steps}, which are not multiples of its elements; make it contiguous")
    strides = None if steps is None else tuple(step // kind.itemsize for step in steps)
    return Described(int(pointer), driver.dlpack_device, kind.name, tuple(interface["shape"]), strides, not read_only)


def _is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether elements follow each other; the strides of dimensions of size 1, and of empty arrays, do not matter."""
    return 0 in shape or all(size == 1 or step == dense for size, step, dense in zip(shape, strides, dense_strides(shape)))


def share_memory(one: AnyArray, other: AnyArray) -> bool:
    """Whether two arrays may have memory in common."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.may_share_memory(one, other)
    (begin, end), (first, last) = _bounds(one), _bounds(other)
    return max(begin, first) < min(end, last)


def _bounds(array: AnyArray) -> tuple[int, int]:
    """The addresses from which and before which its elements lie."""
    if isinstance(array, DeviceArray):
        return array.memory.value, array.memory.value + array.nbytes
    spans = [(size - 1) * step for size, step in zip(array.shape, array.strides)]
    begin = address(array)
    if not array.size:
        return begin, begin
    return begin + sum(min(0, span) for span in spans), begin + sum(max(0, span) for span in spans) + array.itemsize

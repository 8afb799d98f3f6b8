"""Host memory: aligned arrays, mapped blocks that are given back when let go, and where constants lie."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tsc.errors import InputError, LaunchError

ALIGNMENT = 64
PAGE = mmap.PAGESIZE
HUGE_PAGE = 2 << 20
#: What memory may be used for: to read and write, or not at all (PROT_NONE).
_USED, _UNUSED = mmap.PROT_READ | mmap.PROT_WRITE, 0

Array = NDArray[Any]

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_FAILED = ctypes.c_void_p(-1).value


_DATA = object.__basicsize__  # bytes of what begins every object; an array's data pointer comes next (NumPy's C API)
_pointer_at = ctypes.c_void_p.from_address


def address(array: Array) -> int:
    """Where the first element lies."""
    return _pointer_at(id(array) + _DATA).value or 0


def _asked(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


_probe = np.arange(8)
if [address(a) for a in (_probe, _probe[3:])] != [_asked(a) for a in (_probe, _probe[3:])]:
    address = _asked  # a NumPy, or a Python, that lays arrays out in another way: ten times slower


def round_up(value: int, unit: int = ALIGNMENT) -> int:
    """The least multiple of `unit` not below `value`."""
    return -(-value // unit) * unit


# -- arrays that are handed out --------------------------------------------------------------------------------------

def allocate(size: int, what: str) -> NDArray[np.uint8]:
    """`size` uninitialised bytes, 64-byte aligned, from the allocator that NumPy uses. Raises LaunchError naming `what`."""
    raw, start, _ = _allocate(size, what)
    return raw[start:start + size]


def allocate_array(shape: tuple[int, ...], dtype: np.dtype[Any], what: str) -> Array:
    """An uninitialised array whose data is 64-byte aligned. Raises LaunchError naming `what`."""
    return allocate_at(shape, dtype, what)[0]


def allocate_at(shape: tuple[int, ...], dtype: np.dtype[Any], what: str) -> tuple[Array, int]:
    """The same, with its address."""
    size = dtype.itemsize
    for extent in shape:
        size *= extent
    raw, start, place = _allocate(size, what)
    return np.ndarray(shape, dtype, raw, start), place


def _allocate(size: int, what: str) -> tuple[NDArray[np.uint8], int, int]:
    """Memory, the first aligned byte in it, and that one's address."""
    _check_room(size, what)
    try:
        raw = np.empty(size + ALIGNMENT, np.uint8)
    except (MemoryError, ValueError, OverflowError) as error:
        raise _no_room(size, what) from error
    place = address(raw)
    start = -place % ALIGNMENT
    return raw, start, place + start


def as_array(value: Any, what: str) -> Array:
    """`value` as a NumPy array: where it lies if it is one, speaks DLPack or has an array interface, else a copy. Raises
    InputError naming `what` where no array can be made of it."""
    if isinstance(value, np.ndarray):
        return value
    try:
        if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
            return np.from_dlpack(value)
        return np.asarray(value)
    except MemoryError as error:
        raise LaunchError(f"not enough memory for {what}; use a smaller shape") from error
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        first = (str(error) or type(error).__name__).splitlines()[0]
        kind = type(value).__name__
        raise InputError(f"{what} is a {kind} of which no array can be made ({first}); give a NumPy array") from error


def contiguous(array: Array, what: str) -> Array:
    """`array`, or a copy of it where its elements are not aligned and one after the other. Raises LaunchError naming `what`."""
    if array.flags.c_contiguous and array.flags.aligned:
        return array
    result = allocate_array(array.shape, array.dtype, what)
    result[...] = array
    return result


# -- blocks that are kept --------------------------------------------------------------------------------------------

class _Mapping:
    """`size` bytes of private memory at `start`, inside whole pages of their own."""

    def __init__(self, start: int, size: int) -> None:
        self.__array_interface__ = {"data": (start, False), "shape": (size,), "typestr": "|u1", "version": 3}
        weakref.finalize(self, _libc.munmap, start, round_up(size, PAGE)).atexit = False


def reserve(size: int, what: str) -> NDArray[np.uint8]:
    """`size` bytes, which read as zero, in whole pages that go back to the system when nobody refers to them any more:
    `footprint(size)` bytes in all. Large blocks begin on a 2 MB page and ask for such. Raises LaunchError naming `what`."""
    if size == 0:
        return np.empty(0, np.uint8)
    _check_room(size, what)
    length, unit = footprint(size), HUGE_PAGE if size >= 2 * HUGE_PAGE else PAGE
    start = _mapped(length, unit, _USED)
    if start is None:
        raise _no_room(size, what)
    if unit == HUGE_PAGE:
        _advise(start, length, "MADV_HUGEPAGE")
    return np.asarray(_Mapping(start, size))


class Block:
    """Memory for `what` that grows where it lies, as far as addresses after it are free: pages that have been used stay, so
    that one more shape costs what it has more than those before it. Takes `footprint(size)` bytes; as many whole 2 MB pages as
    fit in a large one are asked for. What is in it is lost when it grows."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.size = self.address = 0
        self._mapping: _Mapping | None = None
        self._addresses = 0

    def grow(self, size: int) -> None:
        """Have at least so many bytes. Raises LaunchError where there are no more; there may be fewer than before, then."""
        if size <= self.size:
            return
        _check_room(size, self._what)
        length = footprint(size)
        if length > self._addresses:
            self._move(length, size)
        before = footprint(self.size)
        if _libc.mprotect(self.address + before, length - before, _USED):
            raise _no_room(size, self._what)
        large = _whole_huge(length)
        if (begin := _whole_huge(before)) < large:
            _advise(self.address + begin, large - begin, "MADV_DONTNEED")  # small pages of what is large now
            _advise(self.address + begin, large - begin, "MADV_HUGEPAGE")
        self.size = size

    def _move(self, length: int, size: int) -> None:
        """Addresses for twice as much, or for so much where a limit leaves no more."""
        self._mapping, self.size, self.address, self._addresses = None, 0, 0, 0  # give the old ones back first
        for addresses in (2 * length, length):
            start = _mapped(addresses, HUGE_PAGE, _UNUSED)
            if start is not None:
                self._mapping, self.address, self._addresses = _Mapping(start, addresses), start, addresses
                return
        raise _no_room(size, self._what)


def _whole_huge(size: int) -> int:
    """The bytes at the begin of a block that ask for 2 MB pages."""
    return size // HUGE_PAGE * HUGE_PAGE if size >= 2 * HUGE_PAGE else 0


def _mapped(length: int, unit: int, access: int) -> int | None:
    """Whole pages that begin at a multiple of `unit`; None where there are none."""
    whole = length + unit - PAGE
    base = _libc.mmap(None, whole, access, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if base is None or base == _FAILED:
        return None
    start = round_up(base, unit)
    for begin, end in ((base, start), (start + length, base + whole)):  # what only served to find an aligned place
        if begin < end:
            _libc.munmap(begin, end - begin)
    return start


def _advise(start: int, length: int, how: str) -> None:
    if hasattr(mmap, how):
        _libc.madvise(start, length, getattr(mmap, how))


def footprint(size: int) -> int:
    """The bytes that `reserve` takes for `size`."""
    return round_up(size, PAGE)


def give_back() -> None:
    """Let the C library return the memory that it keeps for later."""
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)


def _check_room(size: int, what: str) -> None:
    """Raise LaunchError for more than the machine has: systems that promise memory freely would end the process later."""
    if size > _machine_bytes():
        raise _no_room(size, what)


@cache
def _machine_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * PAGE


def _no_room(size: int, what: str) -> LaunchError:
    return LaunchError(f"not enough memory: {what} needs {size} bytes; use a smaller shape")


# -- constants -------------------------------------------------------------------------------------------------------

def layout(constants: Mapping[str, Array]) -> tuple[dict[str, int], int]:
    """Byte offset of each constant, 64-byte aligned and in the given order, and the bytes of all."""
    offsets, total = {}, 0
    for name, array in constants.items():
        offsets[name] = total
        total += round_up(array.nbytes)
    return offsets, total


def view(block: NDArray[np.uint8], offset: int, dtype: DTypeLike, shape: tuple[int, ...]) -> Array:
    """The array that lies `offset` bytes into `block`. Raises ValueError when it does not fit."""
    kind = np.dtype(dtype)
    size = kind.itemsize
    for extent in shape:
        size *= extent
    if offset < 0 or size < 0 or offset + size > block.size:
        raise ValueError(f"{size} bytes at {offset} do not fit in {block.size}")
    return block[offset:offset + size].view(kind).reshape(shape)


def placed(constants: Mapping[str, Array]) -> dict[str, Array]:
    """`constants` as kernels may read them: contiguous and 64-byte aligned. If they are not, they are copied into one
    private block on 2 MB pages, which streams faster than small pages."""
    if all(a.flags.c_contiguous and address(a) % ALIGNMENT == 0 for a in constants.values()):
        return dict(constants)
    offsets, total = layout(constants)
    block = reserve(total, "the weights")
    result = {name: view(block, offsets[name], array.dtype, array.shape) for name, array in constants.items()}
    for name, array in constants.items():
        result[name][...] = array
    return result

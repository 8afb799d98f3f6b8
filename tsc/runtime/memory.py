"""Aligned host memory, and where constants lie in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tsc.errors import LaunchError

ALIGNMENT = 64
HUGE_PAGE = 2 << 20

Array = NDArray[Any]


def address(array: Array) -> int:
    """Where the first element lies."""
    return int(array.__array_interface__["data"][0])


def round_up(value: int, unit: int = ALIGNMENT) -> int:
    """The least multiple of `unit` not below `value`."""
    return -(-value // unit) * unit


def allocate(size: int, what: str) -> NDArray[np.uint8]:
    """`size` uninitialised bytes, 64-byte aligned; on 2 MB pages when large. Raises LaunchError naming `what`.

    NumPy asks the kernel for huge pages for what it allocates above 4 MB; the alignment makes all of it usable.
    """
    unit = HUGE_PAGE if size >= 2 * HUGE_PAGE else ALIGNMENT
    try:
        raw = np.empty(size + unit, np.uint8)
    except (MemoryError, ValueError, OverflowError) as error:
        raise LaunchError(f"not enough memory: {what} needs {size} bytes; use a smaller shape") from error
    start = -address(raw) % unit
    return raw[start:start + size]


def allocate_array(shape: tuple[int, ...], dtype: np.dtype[Any], what: str) -> Array:
    """An uninitialised array whose data is 64-byte aligned. Raises LaunchError naming `what`."""
    size = dtype.itemsize
    for extent in shape:
        size *= extent
    return allocate(size, what).view(dtype).reshape(shape)


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
    size = kind.itemsize * int(np.prod(shape, dtype=np.int64))
    if offset < 0 or offset + size > block.size:
        raise ValueError(f"{size} bytes at {offset} do not fit in {block.size}")
    return block[offset:offset + size].view(kind).reshape(shape)


def placed(constants: Mapping[str, Array]) -> dict[str, Array]:
    """`constants` as kernels may read them: contiguous and 64-byte aligned. If they are not, they are copied into one
    private block on 2 MB pages, which streams faster than small pages."""
    if all(a.flags.c_contiguous and address(a) % ALIGNMENT == 0 for a in constants.values()):
        return dict(constants)
    offsets, total = layout(constants)
    block = allocate(total, "the weights")
    result = {name: view(block, offsets[name], array.dtype, array.shape) for name, array in constants.items()}
    for name, array in constants.items():
        result[name][...] = array
    return result

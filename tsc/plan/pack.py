"""Packed constants: weights laid out once, at compile time, as kernels read them, and compared with what kernels read."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc.errors import InternalError
from tsc.te.expr import Buffer


def packed_name(value: str, buffer: Buffer | None = None) -> str:
    """The plan's name of constant `value` in the layout of `buffer` (None: plain), one for each: a file may have any names,
    and two views of one value panels of one width along one axis number."""
    if buffer is None or buffer.panel is None:
        return f"{value}@panel" if "@panel" in value else value
    return f"{value}@panel{buffer.panel[0]}x{buffer.panel[1]}of{'x'.join(map(str, buffer.shape))}"


def lay_out(value: str, array: NDArray[Any], buffer: Buffer) -> NDArray[Any]:
    """Constant `value` as `buffer` stores it; the array itself where that is plain. The extents of `buffer` must be numbers.

    Raises InternalError where the array is not what `buffer` holds.
    """
    shape = [extent.as_int() for extent in buffer.shape]
    if array.dtype.name != buffer.dtype or None in shape or array.size != prod(s or 0 for s in shape):
        raise InternalError(f"constant '{value}' is {array.dtype.name}{list(array.shape)}, its kernel reads {buffer}")
    if buffer.panel is None:
        return array
    plain = array.reshape([s or 0 for s in shape])
    packed = pack_panel(plain, buffer.panel)
    check_packed(value, packed, plain, buffer)
    return packed


def pack_panel(array: NDArray[Any], panel: tuple[int, int]) -> NDArray[Any]:
    """`array` in the layout that `te.expr.Buffer.panel` states: the axis split by the width, the quotient first, the
    remainder last, the last panel zero-padded. W[K, N] with panel (1, 64) becomes [ceil(N/64)][K][64]."""
    axis, width = panel
    columns = np.moveaxis(array, axis, -1)
    *rest, extent = columns.shape
    full, left = divmod(extent, width)
    result = np.empty((full + (left > 0), *rest, width), array.dtype)
    result[:full] = np.moveaxis(columns[..., :full * width].reshape(*rest, full, width), -2, 0)
    if left:
        result[full, ..., :left] = columns[..., full * width:]
        result[full, ..., left:] = 0
    return result


def check_packed(value: str, packed: NDArray[Any], plain: NDArray[Any], buffer: Buffer) -> None:
    """Raise InternalError unless `packed` has the extents that kernels address and, panel for panel, holds the elements of
    `plain` (in the shape of `buffer`) where `buffer` says, bit for bit, and zeros past the end."""
    assert buffer.panel is not None
    (axis, width), extents = buffer.panel, tuple(extent.as_int() for extent in buffer.stored)
    if packed.shape != extents or packed.dtype != plain.dtype or not packed.flags.c_contiguous:
        raise InternalError(f"constant '{value}' is packed as {packed.dtype.name}{list(packed.shape)} for {buffer}")
    bits = np.dtype(f"u{plain.itemsize}") if plain.itemsize in (1, 2, 4, 8) else plain.dtype
    columns, panels = np.moveaxis(plain, axis, -1), packed.view(bits)
    for number, part in enumerate(panels):
        expected = np.ascontiguousarray(columns[..., number * width:(number + 1) * width]).view(bits)
        count = expected.shape[-1]
        if not np.array_equal(part[..., :count], expected) or part[..., count:].any():
            raise InternalError(f"panel {number} of constant '{value}' does not hold what its kernel reads from {buffer}")

"""Packed constants: weights laid out once, at compile time, as kernels read them, and compared with what kernels read."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc.errors import InternalError
from tsc.sym import SymExpr
from tsc.te.expr import Buffer
from tsc.te.layout import Combinators, Merge, Permute, RoundUp, Split, extents_of


def packed_name(value: str, buffer: Buffer | None = None) -> str:
    """The plan's name of constant `value` in the layout of `buffer` (None: plain), one for each: a file may have any names,
    and two views of one value panels of one width along one axis number."""
    if buffer is None or not buffer.layout:
        return f"{value}@panel" if "@panel" in value else value
    axis, width = buffer.panel or (0, 0)
    return f"{value}@panel{axis}x{width}of{'x'.join(map(str, buffer.shape))}"


def lay_out(value: str, array: NDArray[Any], buffer: Buffer) -> NDArray[Any]:
    """Constant `value` as `buffer` stores it; the array itself where that is plain: only then may the extents of `buffer` be
    other than numbers (a run checks how much it reads).

    Raises InternalError where the array is not what `buffer` holds.
    """
    shape = [extent.as_int() for extent in buffer.shape]
    fits = not buffer.layout if None in shape else array.size == prod(s or 0 for s in shape)
    if array.dtype.name != buffer.dtype or not fits:
        raise InternalError(f"constant '{value}' is {array.dtype.name}{list(array.shape)}, its kernel reads {buffer}")
    if not buffer.layout:
        return array
    plain = array.reshape([s or 0 for s in shape])
    made = packed(plain, buffer.layout)
    check_packed(value, made, plain, buffer)
    return made


def packed(array: NDArray[Any], layout: Combinators) -> NDArray[Any]:
    """`array` in a layout of numbers, its padding 0."""
    for step in layout:
        shape = _extents(array.shape, step)
        match step:
            case Permute(order=order):
                array = array.transpose(order)
            case RoundUp() if shape != array.shape:
                padded = np.zeros(shape, array.dtype)
                padded[tuple(map(slice, array.shape))] = array
                array = padded
            case _:
                array = array.reshape(shape)
    return np.ascontiguousarray(array)


def check_packed(value: str, made: NDArray[Any], plain: NDArray[Any], buffer: Buffer) -> None:
    """Raise InternalError unless `made` has the extents that kernels address and holds the elements of `plain` (in the shape of
    `buffer`) where the inverse of its layout finds them, bit for bit, and zeros past the end."""
    extents = tuple(extent.as_int() for extent in buffer.stored)
    if made.shape != extents or made.dtype != plain.dtype or not made.flags.c_contiguous:
        raise InternalError(f"constant '{value}' is packed as {made.dtype.name}{list(made.shape)} for {buffer}")
    bits = np.dtype(f"u{plain.itemsize}") if plain.itemsize in (1, 2, 4, 8) else plain.dtype
    found, shapes = made.view(bits), [plain.shape]
    for step in buffer.layout:
        shapes.append(_extents(shapes[-1], step))
    for step, shape in zip(reversed(buffer.layout), reversed(shapes[:-1])):
        match step:
            case Permute(order=order):
                found = found.transpose(np.argsort(order))
            case RoundUp(dim=d):
                padding = found[(slice(None),) * d + (slice(shape[d], None),)]
                if padding.any():
                    raise InternalError(f"constant '{value}' has padding that is not 0, its kernel reads {buffer}")
                found = found[(slice(None),) * d + (slice(shape[d]),)]
            case _:
                found = found.reshape(shape)
    if not np.array_equal(found, np.ascontiguousarray(plain).view(bits)):
        raise InternalError(f"constant '{value}' does not hold what its kernel reads from {buffer}")


def _extents(shape: tuple[int, ...], step: Permute | Split | Merge | RoundUp) -> tuple[int, ...]:
    return tuple(extent.as_int() or 0 for extent in extents_of([SymExpr.of(n) for n in shape], step))

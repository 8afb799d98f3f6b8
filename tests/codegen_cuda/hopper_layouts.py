"""sm_90a's layouts as the PTX ISA states them, in NumPy: swizzles, boxes, wgmma's fragments and operands; and tensor maps."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence

import numpy as np

SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
#: The swizzle's code in a wgmma descriptor.
MODES = {0: 0, 128: 1, 64: 2, 32: 3}
DTYPES = {"uint8": 0, "uint16": 1, "uint32": 2, "int32": 3, "uint64": 4, "int64": 5, "float16": 6, "float32": 7, "float64": 8}


class TensorMap(ctypes.Structure):
    """tsc_emu_tensor_map of emu/abi.h."""

    _fields_ = [("magic", ctypes.c_uint32), *[(name, ctypes.c_uint8) for name in ("dtype", "rank", "swizzle", "fill")],
                ("address", ctypes.c_uint64), ("dims", ctypes.c_uint64 * 5), ("strides", ctypes.c_uint64 * 4),
                ("box", ctypes.c_uint32 * 5), ("reserved", ctypes.c_uint32 * 5)]


def tensor_map(array: np.ndarray, box: Sequence[int], swizzle: int = 0) -> TensorMap:
    """The map of a NumPy array whose last axis is dense; `box` in NumPy's order of axes."""
    out = TensorMap(magic=0x50414d54, dtype=DTYPES[array.dtype.name], rank=array.ndim, swizzle=SWIZZLES[swizzle],
                    address=array.ctypes.data)
    for axis in range(array.ndim):
        out.dims[axis] = array.shape[::-1][axis]
        out.box[axis] = list(box)[::-1][axis]
        if axis:
            out.strides[axis - 1] = array.strides[::-1][axis]
    return out


def swizzle_table(span: int, size: int) -> np.ndarray:
    """Where the bytes of a dense box go. The figures of the ISA (5.5.6): 16-byte units in lines of 128 bytes; unit u of line l
    goes to unit u xor (l mod 8) for 128 bytes, to u xor (l mod 4) for 64, to u xor (l mod 2) for 32."""
    out = np.arange(size)
    if span == 0:
        return out
    line, unit, byte = out // 128, out // 16 % 8, out % 16
    return line * 128 + (unit ^ (line % (span // 16))) * 16 + byte


def box_of(array: np.ndarray, start: Sequence[int], box: Sequence[int]) -> np.ndarray:
    """The elements of a box, zeros outside the array, by looking at each (NumPy's order of axes)."""
    out = np.zeros(tuple(box), array.dtype)
    for index in itertools.product(*(range(size) for size in box)):
        place = tuple(s + i for s, i in zip(start, index))
        if all(0 <= p < size for p, size in zip(place, array.shape)):
            out[index] = array[place]
    return out


def put_box(array: np.ndarray, start: Sequence[int], values: np.ndarray) -> np.ndarray:
    """`array` with a box stored in it; what lies outside is dropped."""
    out = array.copy()
    for index in itertools.product(*(range(size) for size in values.shape)):
        place = tuple(s + i for s, i in zip(start, index))
        if all(0 <= p < size for p, size in zip(place, array.shape)):
            out[place] = values[index]
    return out


def swizzle_bytes(dense: np.ndarray, span: int) -> np.ndarray:
    """The bytes of a dense array as they lie in shared memory."""
    flat = np.ascontiguousarray(dense).view(np.uint8).reshape(-1)
    size = -(-flat.size // 1024) * 1024
    out = np.zeros(size, np.uint8)
    out[swizzle_table(span, size)[:flat.size]] = flat
    return out


THREADS = np.arange(128)


def accumulators(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of register i of thread t of the warp group, [128, n / 2] each (ISA 9.7.15.5.1, the figure of D)."""
    warp, lane = THREADS // 32, THREADS % 32
    register = np.arange(n // 2)
    rows = (warp * 16 + lane // 4)[:, None] + register[None, :] // 2 % 2 * 8
    columns = (lane % 4 * 2)[:, None] + register[None, :] // 4 * 8 + register[None, :] % 2
    return rows, columns


def a_registers(a: np.ndarray) -> np.ndarray:
    """[64, 32] bytes of A -> [128, 4] words of the threads."""
    warp, lane = THREADS // 32, THREADS % 32
    words = np.ascontiguousarray(a).view(np.uint32)
    row, column = warp * 16 + lane // 4, lane % 4
    places = ((row, column), (row + 8, column), (row, column + 4), (row + 8, column + 4))
    return np.ascontiguousarray(np.stack([words[place] for place in places], -1))


def operand(values: np.ndarray, span: int, mn_major: bool, start: int = 0) -> tuple[np.ndarray, int]:
    """Lay out `values`, [extent, k] with k of 32 bytes, in shared memory as a wgmma operand; returns its bytes and its
    descriptor (for address `start`). Each layout is written as the ISA's canonical one: tiles of 8 rows of 16 bytes (no
    swizzle), or of 8 rows of `span` bytes."""
    extent, k = values.shape
    size = values.itemsize
    tiles: np.ndarray
    if not mn_major and span == 0:  # [k chunk][8-row tile][row][16 bytes]: leading steps along k, stride along rows
        tiles = values.reshape(extent // 8, 8, 2, k // 2).transpose(2, 0, 1, 3)
        leading, stride = extent * 16, 128
    elif not mn_major:  # [8-row tile][row][span bytes], the 32 bytes of k first
        wide = np.zeros((extent, span // size), values.dtype)
        wide[:, :k] = values
        tiles, leading, stride = wide[None], 16, 8 * span
    elif span == 0:  # [8-row tile][k / 8][k % 8][8 rows]
        tiles = values.reshape(extent // 8, 8, 2, 8).transpose(0, 2, 3, 1)
        leading, stride = 128, 256
    else:  # [panel of span bytes of rows][k / 8][k % 8][rows]
        panel = span // size
        wide = np.zeros((-(-extent // panel) * panel, k), values.dtype)
        wide[:extent] = values
        tiles = wide.reshape(-1, panel, k).transpose(0, 2, 1)
        leading, stride = k * span, 8 * span
    bits = start // 16 | leading // 16 << 16 | stride // 16 << 32 | MODES[span] << 62
    return swizzle_bytes(tiles, span), bits

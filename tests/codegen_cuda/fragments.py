"""The fragment layouts of the PTX ISA (9.7.14.5), stated in NumPy: which lane holds what."""

from __future__ import annotations

import numpy as np

LANES = np.arange(32)
G, T = LANES // 4, LANES % 4


def a_fragments(tile: np.ndarray) -> np.ndarray:
    """[16 mi, 32] bytes, rows of k -> [32 lanes, mi, 4] words: (g, byte 4t), (g + 8, 4t), (g, 16 + 4t), (g + 8, 16 + 4t)."""
    words = np.ascontiguousarray(tile).view(np.uint32).reshape(-1, 16, 8)
    quads = [words[:, G, T], words[:, G + 8, T], words[:, G, T + 4], words[:, G + 8, T + 4]]
    return np.ascontiguousarray(np.stack(quads, -1).transpose(1, 0, 2))


def b_fragments(tile: np.ndarray) -> np.ndarray:
    """[8 ni, 32] bytes, one row of k a column of B -> [32 lanes, ni, 2] words: (column g, byte 4t), (column g, 16 + 4t)."""
    words = np.ascontiguousarray(tile).view(np.uint32).reshape(-1, 8, 8)
    return np.ascontiguousarray(np.stack([words[:, G, T], words[:, G, T + 4]], -1).transpose(1, 0, 2))


def c_fragments(tile: np.ndarray) -> np.ndarray:
    """[16 mi, 8 ni] numbers -> [32 lanes, mi, ni, 4]: (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)."""
    mi, ni = tile.shape[0] // 16, tile.shape[1] // 8
    blocks = tile.reshape(mi, 16, ni, 8)
    quads = [blocks[:, row, :, column] for row, column in ((G, 2 * T), (G, 2 * T + 1), (G + 8, 2 * T), (G + 8, 2 * T + 1))]
    return np.ascontiguousarray(np.stack(quads, -1))


def c_tile(fragments: np.ndarray) -> np.ndarray:
    """The inverse of c_fragments."""
    _, mi, ni, _ = fragments.shape
    out = np.empty((mi, 16, ni, 8), fragments.dtype)
    for number, (row, column) in enumerate(((G, 2 * T), (G, 2 * T + 1), (G + 8, 2 * T), (G + 8, 2 * T + 1))):
        out[:, row, :, column] = fragments[..., number]
    return out.reshape(16 * mi, 8 * ni)


def matrix_registers(rows: np.ndarray, transposed: bool) -> np.ndarray:
    """ldmatrix: [matrices, 8, 16] bytes -> [32 lanes, matrices] words; plain: bytes 4t.. of row g; transposed, on 2-byte
    elements: (2t, g) and (2t + 1, g)."""
    if not transposed:
        return np.ascontiguousarray(np.ascontiguousarray(rows).view(np.uint32)[:, G, T].T)
    halves = np.ascontiguousarray(rows).view(np.uint16).astype(np.uint32)
    return np.ascontiguousarray((halves[:, 2 * T, G] | halves[:, 2 * T + 1, G] << 16).T)


def tf32(values: np.ndarray) -> np.ndarray:
    """Nearest binary32 with 13 zero low bits, ties away from zero: by comparing distances to both neighbours in float64. Of a
    NaN the low bits are cleared."""
    bits = values.astype(np.float32).view(np.uint32)
    low = (bits & np.uint32(0xffffe000)).view(np.float32)
    high = ((bits & np.uint32(0xffffe000)) + np.uint32(0x2000)).view(np.float32)
    exact, wide = values.astype(np.float64), high.astype(np.float64)
    wide = np.where(np.isinf(wide), np.copysign(2.0**128, exact), wide)
    up = np.abs(wide - exact) <= np.abs(exact - low.astype(np.float64))
    out = np.where(up, high, low)
    out = np.where(np.isinf(values), values, out)
    return np.where(np.isnan(bits.view(np.float32)), bits & np.uint32(0xffffe000), out.view(np.uint32)).view(np.float32)

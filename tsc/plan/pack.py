"""Packed constants: weights laid out once, at compile time, as kernels read them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def packed_name(value: str, panel: tuple[int, int] | None) -> str:
    """The plan's name of constant `value` in the given layout, another one for each of both: a file may have any names."""
    if panel is None:
        return f"{value}@panel" if "@panel" in value else value
    return f"{value}@panel{panel[0]}x{panel[1]}"


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

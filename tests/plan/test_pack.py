"""Panels: element for element what `te.expr.Buffer.panel` says."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tsc.plan.pack import pack_panel, packed_name


@pytest.mark.parametrize("shape", [(5, 1), (3, 63), (3, 64), (3, 65), (1, 130), (2, 3, 70), (7,), (0, 9), (4, 0)])
@pytest.mark.parametrize("width", [1, 16, 64])
def test_panels(shape: tuple[int, ...], width: int) -> None:
    array = np.arange(1, 1 + int(np.prod(shape)), dtype=np.float32).reshape(shape)
    for axis in range(len(shape)):
        packed = pack_panel(array, (axis, width))
        rest = shape[:axis] + shape[axis + 1:]
        assert packed.shape == (-(-shape[axis] // width), *rest, width) and packed.flags.c_contiguous
        for index in itertools.product(*map(range, shape)):
            other = index[:axis] + index[axis + 1:]
            assert packed[(index[axis] // width, *other, index[axis] % width)] == array[index]
        assert np.count_nonzero(packed) == array.size  # what is not an element is zero


def test_names() -> None:
    assert packed_name("w", None) == "w"
    assert len({packed_name("w", p) for p in (None, (0, 16), (1, 16), (1, 64))}) == 4

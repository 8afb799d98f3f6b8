"""Where a packed constant has its elements, as validation asks the plan's own packing."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from tsc.plan.pack import packed
from tsc.te.layout import panels
from tsc.validate import loops


def test_of_a_large_packed_weight_only_what_is_read_is_packed() -> None:
    """By packing all of a small one; a large one would be gigabytes."""
    for panel, shape in (((2, 4, None), (3, 2, 5, 7)), ((2, 4, (1, 2)), (3, 2, 5, 7)), ((3, 4, (1, 2)), (3, 2, 5, 7)),
                         ((3, 4, (1, 4)), (3, 8, 5, 7)), ((0, 4, (3, 4)), (3, 2, 5, 8))):
        whole = packed(np.arange(1, 1 + np.prod(shape)).reshape(shape), panels(4, *panel)).ravel() - 1
        cells = np.random.default_rng(0).permutation(len(whole))[:50]
        np.testing.assert_array_equal(loops._unpacked_shape(shape, panel, cells), whole[cells])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loops, "_MOST_KEPT", 0)
            np.testing.assert_array_equal(loops._unpacked_shape(shape, panel, cells), whole[cells])
    tracemalloc.start()
    found = loops._unpacked_shape((300, 2000, 2000), (0, 64, None), (np.arange(5) * 4_000_000 + 1_234_567) * 64 + 3)
    assert found.tolist() == [*((3 + 64 * n) * 4_000_000 + 1_234_567 for n in range(5))]
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()

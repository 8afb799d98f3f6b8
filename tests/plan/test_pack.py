"""Panels: element for element what `te.expr.Buffer.panel` says."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tsc.errors import InternalError
from tsc.plan.pack import check_packed, pack_panel, packed_name
from tsc.sym import SymExpr
from tsc.te.expr import Buffer


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


def buffer(shape: tuple[int, ...], panel: tuple[int, int] | None, dtype: str = "float32") -> Buffer:
    return Buffer("w", dtype, tuple(map(SymExpr.of, shape)), panel)


def test_names() -> None:
    assert packed_name("w", buffer((3, 4), None)) == packed_name("w") == "w"
    views = [buffer(shape, panel) for shape in ((3, 4), (1, 3, 4), (12,)) for panel in (None, (0, 16), (0, 64))]
    assert len({packed_name("w", b) for b in views}) == 7


@pytest.mark.defect(9)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "bool", "int64"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_packed_constant_with_one_element_changed_is_found(axis: int, dtype: str) -> None:
    rng = np.random.default_rng(axis)
    shape = (3, 5, 7)
    plain = rng.integers(0, 2, shape).astype(dtype)
    layout = buffer(shape, (axis, 4), dtype)
    packed = pack_panel(plain, (axis, 4))
    check_packed("w", packed, plain, layout)
    for place in np.ndindex(packed.shape):  # elements and padding alike
        broken = packed.copy()
        broken[place] = 1 - broken[place]
        with pytest.raises(InternalError, match="constant 'w'"):
            check_packed("w", broken, plain, layout)


@pytest.mark.defect(9)
def test_what_only_looks_equal_is_found() -> None:
    plain = np.array([[0.0, np.nan], [1.0, 2.0]], np.float32)
    layout = buffer((2, 2), (1, 2))
    packed = pack_panel(plain, (1, 2))
    check_packed("w", packed, plain, layout)
    for broken in (-packed, packed.swapaxes(0, 1), packed[:, ::-1], packed.astype(np.float64), pack_panel(plain, (0, 2)),
                   np.asfortranarray(pack_panel(np.ones((4, 4), np.float32), (1, 2)))):
        with pytest.raises(InternalError):
            check_packed("w", broken, plain, layout)

"""Packed constants: element for element what their layouts say."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

from tsc.errors import InternalError
from tsc.plan.pack import check_packed, packed, packed_name
from tsc.sym import SymExpr, dim
from tsc.te.expr import Buffer
from tsc.te.layout import Combinators, Merge, Permute, RoundUp, Split, from_json, panel_of, panels, stored, to_json


@pytest.mark.parametrize("shape", [(5, 1), (3, 63), (3, 64), (3, 65), (1, 130), (2, 3, 70), (7,), (0, 9), (4, 0)])
@pytest.mark.parametrize("width", [1, 16, 64])
def test_panels(shape: tuple[int, ...], width: int) -> None:
    array = np.arange(1, 1 + int(np.prod(shape)), dtype=np.float32).reshape(shape)
    for axis in range(len(shape)):
        made = packed(array, panels(len(shape), axis, width))
        rest = shape[:axis] + shape[axis + 1:]
        assert made.shape == (-(-shape[axis] // width), *rest, width) and made.flags.c_contiguous
        for index in itertools.product(*map(range, shape)):
            other = index[:axis] + index[axis + 1:]
            assert made[(index[axis] // width, *other, index[axis] % width)] == array[index]
        assert np.count_nonzero(made) == array.size  # what is not an element is zero


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize(("axis", "along"), [(0, 1), (1, 0), (1, 2), (2, 0), (2, 1)])
def test_panels_with_neighbours_side_by_side(axis: int, along: int, count: int) -> None:
    shape = [3, 3, 3]
    shape[axis], shape[along] = 7, 3 * count
    array = np.arange(1, 1 + int(np.prod(shape)), dtype=np.int8).reshape(shape)
    layout = panels(3, axis, 4, (along, count))
    assert panel_of(3, layout) == (axis, 4, (along, count))
    made = packed(array, layout)
    others = [dim for dim in range(3) if dim != axis]
    for index in np.ndindex(*shape):
        other = [index[dim] // count if dim == along else index[dim] for dim in others]
        assert made[(index[axis] // 4, *other, index[axis] % 4, index[along] % count)] == array[index]
    assert np.count_nonzero(made) == array.size
    held = replace(buffer(tuple(shape), None, "int8"), layout=layout)
    assert held.panel == (axis, 4) and held.beside == (along, count)
    check_packed("w", made, array, held)
    swapped = np.ascontiguousarray(made[..., ::-1])
    with pytest.raises(InternalError, match="constant 'w'"):
        check_packed("w", swapped, array, held)


def buffer(shape: tuple[int, ...], panel: tuple[int, int] | None, dtype: str = "float32") -> Buffer:
    layout = () if panel is None else panels(len(shape), *panel)
    return Buffer("w", dtype, tuple(map(SymExpr.of, shape)), layout)


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
    made = packed(plain, layout.layout)
    check_packed("w", made, plain, layout)
    for place in np.ndindex(made.shape):  # elements and padding alike
        broken = made.copy()
        broken[place] = 1 - broken[place]
        with pytest.raises(InternalError, match="constant 'w'"):
            check_packed("w", broken, plain, layout)


@pytest.mark.defect(9)
def test_what_only_looks_equal_is_found() -> None:
    plain = np.array([[0.0, np.nan], [1.0, 2.0]], np.float32)
    layout = buffer((2, 2), (1, 2))
    made = packed(plain, layout.layout)
    check_packed("w", made, plain, layout)
    for broken in (-made, made.swapaxes(0, 1), made[:, ::-1], made.astype(np.float64), packed(plain, panels(2, 0, 2)),
                   np.asfortranarray(packed(np.ones((4, 4), np.float32), panels(2, 1, 2)))):
        with pytest.raises(InternalError):
            check_packed("w", broken, plain, layout)


#: Layouts that no kernel reads yet.
LAYOUTS: dict[str, tuple[tuple[int, ...], Combinators]] = {
    "rows in fours": ((5, 7), (RoundUp(0, 4), Split(0, SymExpr.of(4)), Permute((1, 0, 2)))),
    "blocks of channels": ((2, 10, 3, 3), (RoundUp(1, 8), Split(1, SymExpr.of(8)), Permute((0, 1, 3, 4, 2)))),
    "a pitch": ((4, 13), (RoundUp(1, 16), Merge(0))),
    "twice": ((6, 9), (RoundUp(1, 4), Split(1, SymExpr.of(4)), RoundUp(0, 5), Permute((1, 0, 2)), Merge(1)))}


@pytest.mark.parametrize("name", LAYOUTS)
def test_any_layout_is_packed_and_checked(name: str) -> None:
    shape, layout = LAYOUTS[name]
    plain = np.arange(1, 1 + int(np.prod(shape)), dtype=np.float32).reshape(shape)
    held = Buffer("w", "float32", tuple(map(SymExpr.of, shape)), layout)
    made = packed(plain, layout)
    assert made.shape == tuple(e.as_int() for e in stored(held.shape, layout)) == tuple(e.as_int() for e in held.stored)
    assert sorted(made[made != 0]) == sorted(plain.ravel())
    check_packed("w", made, plain, held)
    for place in np.ndindex(made.shape):
        broken = made.copy()
        broken[place] += 1
        with pytest.raises(InternalError, match="constant 'w'"):
            check_packed("w", broken, plain, held)
    with pytest.raises(InternalError, match="no code reads the layout"):  # rather than to take it for plain
        _ = held.panel


def test_layouts_round_trip() -> None:
    for _, layout in LAYOUTS.values():
        assert from_json(json.loads(json.dumps(to_json(layout)))) == layout
    assert from_json([]) == () and panel_of(2, ()) is None and panel_of(3, panels(3, 1, 8)) == (1, 8, None)
    symbolic = (Split(0, dim("N")), Merge(1))
    assert from_json(to_json(symbolic)) == symbolic
    for wrong in ([["split", 1]], [["turn", 0]], [["merge", "0"]], [3], [["permute", 0, "1"]]):
        with pytest.raises(ValueError, match="no step of a layout"):
            from_json(wrong)

"""Layout maps: what the documents say of them, and that a map which is no bijection is not certified."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tsc.errors import InternalError
from tsc.plan.pack import pack_panel
from tsc.poly import isl
from tsc.poly.layout import Layout, a_fragment, accumulator_fragment, b_fragment, certify, panel, plain, swizzle
from tsc.sym import SymExpr, dim
from tsc.te.compute import Axis, Compute, Program
from tsc.te.evaluate import evaluate
from tsc.te.expr import Buffer, Call, Expr, Var, add, call, index, mul


def places(layout: Layout, sizes: Mapping[str, int] | None = None) -> list[Any]:
    """The coordinates of every element's place, by the te evaluator: arrays over the box."""
    axes = tuple(Axis(f"i{d}", e) for d, e in enumerate(layout.box))
    made = []
    for value in layout.index:
        target = Buffer("t", "int64", layout.box)
        program = Program((), (target,), (Compute(target, axes, value),), ())
        made.append(evaluate(program, {}, sizes or {})["t"])
    return made


def laid_out(layout: Layout, array: Any, sizes: Mapping[str, int] | None = None) -> Any:
    stored = np.full(tuple(e.evaluate(sizes or {}) for e in layout.storage), -1.0)
    stored[tuple(places(layout, sizes))] = array
    return stored


@pytest.mark.parametrize("layout", [
    plain((3, 5)), panel((4, 12), 1, 4), panel((8, 3), 0, 2), swizzle(16, 32, 2), swizzle(8, 64, 2), swizzle(32, 16, 2),
    swizzle(8, 16, 4), accumulator_fragment((64, 32), (32, 16)), a_fragment((32, 32), (16, 32)), b_fragment((16, 32), (8, 16))])
def test_layouts_are_certified(layout: Layout) -> None:
    certify(layout)


def test_panel_is_how_weights_are_packed() -> None:
    weights = np.arange(3.0 * 8).reshape(3, 8)
    np.testing.assert_array_equal(laid_out(panel((3, 8), 1, 4), weights), pack_panel(weights, (1, 4)))


def test_symbolic_boxes_are_certified_by_isl() -> None:
    columns = (dim("N") + 3) // 4 * 4
    positive = isl.Set("[K, N] -> { : K >= 1 and N >= 1 }")
    certify(panel((dim("K"), columns), 1, 4), "[K, N]", positive)
    with pytest.raises(InternalError, match="leaves its storage"):
        certify(panel((dim("K"), dim("N")), 1, 4), "[K, N]", positive)  # the last panel has no room
    with pytest.raises(InternalError, match="one place"):
        certify(replace(plain((dim("K"), 4)), index=(Var("i0"), index(0))), "[K, N]", positive)
    with pytest.raises(InternalError, match="empty"):
        certify(replace(plain((dim("K"), 4)), storage=(dim("K") + 1, SymExpr.of(4))), "[K, N]", positive)


@pytest.mark.parametrize(("columns", "item"), [(16, 2), (32, 2), (64, 2), (128, 2), (8, 4), (16, 4), (32, 4)])
def test_eight_rows_of_one_chunk_lie_in_eight_groups_of_banks(columns: int, item: int) -> None:
    row, column = places(swizzle(8, columns, item))
    offset = (row * columns + column) * item
    for chunk in range(0, columns, 16 // item):
        assert len(set(offset[:, chunk] // 16 % 8)) == 8
        assert (np.diff(offset[:, chunk:chunk + 16 // item], axis=1) == item).all()  # a chunk stays whole


def test_fragments_hold_what_the_instruction_says() -> None:
    """PTX ISA, matrix fragments for mma.m16n8k16 with 16-bit operands: the tables written out."""
    warp_row, warp_column, lane, number = places(accumulator_fragment((32, 16), (16, 8)))
    for at in np.ndindex(32, 16):
        r, c = at[0] % 16, at[1] % 8
        assert (warp_row[at], warp_column[at]) == (at[0] // 16, at[1] // 8)
        assert lane[at] == r % 8 * 4 + c // 2 and number[at] == r // 8 * 2 + c % 2
    _, _, lane, number = places(a_fragment((16, 16), (16, 16)))
    for r, c in np.ndindex(16, 16):
        assert lane[r, c] == r % 8 * 4 + c % 8 // 2 and number[r, c] == (c // 8 * 2 + r // 8) * 2 + c % 2
    _, _, lane, number = places(b_fragment((8, 16), (8, 16)))
    for n, k in np.ndindex(8, 16):
        assert lane[n, k] == n * 4 + k % 8 // 2 and number[n, k] == k // 8 * 2 + k % 2


# -- mutations -------------------------------------------------------------------------------------------------

def _with(layout: Layout, d: int, value: Expr) -> Layout:
    return replace(layout, index=tuple(value if i == d else old for i, old in enumerate(layout.index)))


_I, _J = Var("i0"), Var("i1")


@pytest.mark.parametrize(("broken", "message"), [
    (_with(plain((4, 8)), 1, call("floordiv", _J, index(2))), "one place"),
    (_with(plain((4, 8)), 0, call("mod", _I, index(2))), "one place"),
    (_with(plain((4, 8)), 1, add(_J, index(1))), "leaves its storage"),
    (_with(swizzle(8, 32, 2), 1, add(mul(Call("bitxor", (call("floordiv", _J, index(8)), _I), "int64"), index(8)),
                                     call("mod", _J, index(8)))), "leaves its storage"),  # the phase is not wrapped
    (_with(swizzle(8, 32, 2), 1, mul(call("floordiv", _J, index(8)), index(8))), "one place"),  # the chunk's inside is lost
    (_with(accumulator_fragment((16, 8), (16, 8)), 2, call("mod", _I, index(8))), "one place"),
    (replace(accumulator_fragment((16, 8), (16, 8)), storage=tuple(map(SymExpr.of, (1, 1, 32, 5)))), "empty"),
])
def test_a_map_that_is_no_bijection_is_refused(broken: Layout, message: str) -> None:
    with pytest.raises(InternalError, match=message):
        certify(broken)


def test_a_tile_without_whole_chunks_or_fragments_is_refused() -> None:
    for rows, columns in ((8, 8), (8, 24), (8, 12)):
        with pytest.raises(InternalError, match="cannot be swizzled"):
            swizzle(rows, columns, 2)
    with pytest.raises(InternalError, match="no whole fragments"):
        accumulator_fragment((32, 16), (16, 12))

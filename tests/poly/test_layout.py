"""Layout maps: what the documents say of them, and that a map which is no bijection is not certified."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.poly.programs import gemm
from tests.poly.support import SMALL
from tsc.errors import InternalError
from tsc.plan.pack import packed
from tsc.poly import isl
from tsc.poly.deps import dependences
from tsc.poly.pattern import match
from tsc.poly.pattern.base import Build
from tsc.poly.promotion.layout import (
    Layout,
    a_fragment,
    accumulator_fragment,
    b_fragment,
    certify,
    certify_stored,
    composed,
    diagonal,
    layout_of,
    panel,
    plain,
    swizzle,
    swizzled_panels,
)
from tsc.poly.schedule import check_final, schedule_program
from tsc.poly.scop import build_scop
from tsc.sym import SymExpr, dim, exact_quotient
from tsc.te.compute import Axis, Compute, Program
from tsc.te.evaluate import evaluate
from tsc.te.expr import Buffer, Call, Expr, Var, add, call, index, mul
from tsc.te.layout import Combinator, Merge, Permute, RoundUp, Split, panels


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
    swizzle(8, 16, 4), swizzle(32, 16, 4, 4), swizzled_panels(16, 256, 2),
    swizzled_panels(64, 64, 2), swizzled_panels(8, 16, 2), swizzled_panels(32, 64, 4), diagonal(64, 32), diagonal(8, 64),
    accumulator_fragment((64, 32), (32, 16)), a_fragment((32, 32), (16, 32)), b_fragment((16, 32), (8, 16))])
def test_layouts_are_certified(layout: Layout) -> None:
    certify(layout)


def test_panel_is_how_weights_are_packed() -> None:
    weights = np.arange(3.0 * 8).reshape(3, 8)
    np.testing.assert_array_equal(laid_out(panel((3, 8), 1, 4), weights), packed(weights, panels(2, 1, 4)))


def test_symbolic_boxes_are_certified_by_isl() -> None:
    columns = (dim("N") + 3) // 4 * 4
    positive = isl.Set("[K, N] -> { : K >= 1 and N >= 1 }")
    by_hand = replace(panel((dim("K"), columns), 1, 4), made=None)
    certify(by_hand, "[K, N]", positive)
    with pytest.raises(InternalError, match="leaves its storage"):  # the last panel has no room
        certify(replace(by_hand, box=(dim("K"), columns + 1)), "[K, N]", positive)
    with pytest.raises(InternalError, match="one place"):
        certify(replace(plain((dim("K"), 4)), index=(Var("i0"), index(0))), "[K, N]", positive)
    with pytest.raises(InternalError, match="empty"):
        certify(replace(plain((dim("K"), 4)), storage=(dim("K") + 1, SymExpr.of(4))), "[K, N]", positive)


# -- combinators -----------------------------------------------------------------------------------------------

@st.composite
def compositions(draw: st.DrawFn) -> Layout:
    """Two or three dimensions A * N, B, ..., and up to five combinators that apply to them."""
    extents = [dim("A") * dim("N"), dim("B"), SymExpr.of(6)][:draw(st.integers(2, 3))]
    layout = composed("random", extents)
    for _ in range(draw(st.integers(0, 5))):
        rank, made = len(layout.storage), layout.made or ()
        d = draw(st.integers(0, rank - 1))
        choices: list[Combinator] = [Permute(tuple(draw(st.permutations(range(rank))))), RoundUp(d, draw(st.integers(1, 5)))]
        choices += [Split(d, s) for s in (dim("A"), dim("N"), dim("B"), SymExpr.of(2), SymExpr.of(3))
                    if exact_quotient(layout.storage[d], s) is not None]
        choices += [Merge(d)] if d + 1 < rank else []
        layout = composed("random", extents, *made, draw(st.sampled_from(choices)))
    return layout


@pytest.mark.defect(23)
@settings(max_examples=60, deadline=None)
@given(compositions(), st.integers(1, 5), st.integers(1, 4), st.integers(1, 5))
def test_combinators_give_each_element_a_place_of_its_own(layout: Layout, a: int, b: int, n: int) -> None:
    """By counting, at sizes: what is certified for all sizes by its construction. What is left over is padding."""
    certify(layout)
    sizes = {"A": a, "B": b, "N": n}
    storage = tuple(e.evaluate(sizes) for e in layout.storage)
    cells = np.stack([p.ravel() for p in places(layout, sizes)], axis=1)
    assert (cells >= 0).all() and (cells < storage).all()
    assert len(np.unique(cells, axis=0)) == len(cells)
    padded = any(isinstance(step, RoundUp) for step in layout.made or ())
    assert len(cells) == np.prod(storage) or padded


@pytest.mark.defect(23)
@pytest.mark.parametrize("columns", [dim("N"), dim("N") * 4, SymExpr.of(13), SymExpr.of(16)])
def test_a_panel_is_padded_split_and_permuted(columns: SymExpr) -> None:
    weights = Buffer("w", "float32", (SymExpr.of(3), columns, SymExpr.of(2)), panels(3, 1, 4))
    certify_stored(weights)
    layout = layout_of(weights)
    for n in (1, 3, 4, 5, 13):
        sizes = {"N": n}
        array = np.arange(1.0, 1 + 6 * columns.evaluate(sizes)).reshape(3, -1, 2)
        found = laid_out(layout, array, sizes)
        np.testing.assert_array_equal(np.where(found == -1, 0, found), packed(array, weights.layout))


@pytest.mark.defect(23)
@pytest.mark.parametrize("broken", [
    lambda right: replace(right, index=tuple(right.index[k] for k in (1, 0, 2))),  # the panel and the row have changed places
    lambda right: replace(right, made=(*(right.made or ())[:-1], Permute((0, 2, 1)))),  # said to be permuted otherwise
    lambda right: replace(right, storage=(*right.storage[:-1], right.storage[-1] + 1)),  # a width off by one
    lambda right: replace(right, index=(*right.index[:-1], call("mod", Var("i1"), index(5)))),
    lambda right: replace(right, index=(call("floordiv", Var("i1"), index(3)), *right.index[1:])),
    lambda right: replace(right, storage=(dim("N") // 4, *right.storage[1:])),  # the last panel has no room
    lambda right: replace(right, made=tuple(s for s in right.made or () if not isinstance(s, RoundUp))),
])
def test_a_broken_panel_is_found(broken: Callable[[Layout], Layout]) -> None:
    right = panel((dim("K"), dim("N")), 1, 4)
    certify(right)
    with pytest.raises(InternalError):
        certify(broken(right), "[K, N]", isl.Set("[K, N] -> { : K >= 1 and N >= 1 }"))


@pytest.mark.defect(23)
def test_a_merge_with_swapped_parts_is_found() -> None:
    rows, columns = dim("H"), dim("W")
    right = composed("merged", (rows, columns), Merge(0))
    assert right.storage == (rows * columns,)
    certify(right)
    swapped = replace(right, index=(add(mul(Var("i1"), index(columns)), Var("i0")),))
    with pytest.raises(InternalError):
        certify(swapped)
    numbers = {"H": 3, "W": 3}
    assert swapped.index != right.index and places(swapped, numbers)[0].max() == 8  # right at squares alone
    for step in (Split(0, columns + 1), Permute((0, 0)), Merge(1), RoundUp(0, 0)):
        with pytest.raises(InternalError, match="does not apply"):
            composed("broken", (rows, columns), step)


@pytest.mark.defect(23)
def test_packed_weights_and_panels_are_certified_in_every_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """What certifies is reached, and what it finds stops the compilation."""
    seen: list[str] = []

    def noted(layout: Layout, *args: Any) -> None:
        seen.append(layout.name)

    monkeypatch.setattr("tsc.poly.promotion.layout.certify", noted)
    monkeypatch.setattr("tsc.poly.promotion.promote.certify", noted)
    schedule_program(gemm("M", "N", "K"), SMALL, None, None, "gemm", ["w"])
    assert any(name.startswith("panel(1, ") for name in seen)
    seen.clear()
    schedule_program(gemm("M", "N", "K", transposed=True), SMALL, None, None, "gemm")
    assert "plain" in seen

    def wrong(layout: Layout, *args: Any) -> None:
        raise InternalError("no bijection")

    monkeypatch.setattr("tsc.poly.promotion.layout.certify", wrong)
    monkeypatch.setattr("tsc.poly.promotion.promote.certify", wrong)
    for constants, transposed in ((["w"], False), ([], True)):
        with pytest.raises(InternalError, match="no bijection"):
            schedule_program(gemm("M", "N", "K", transposed=transposed), SMALL, None, None, "gemm", constants)


@pytest.mark.defect(23)
def test_a_panel_of_a_block_in_another_layout_is_found() -> None:
    program = gemm("M", "N", "K", transposed=True)
    scop = build_scop(program)
    deps = dependences(scop)
    found = match(scop)[0].solved(scop, deps)[0]
    promoted = found.tree(found.default_config(SMALL), Build(scop, deps)).promoted
    check_final(promoted, scop, deps)
    place = next(k for k, local in enumerate(promoted.locals) if local.buffer.name.endswith("_panel"))
    local = promoted.locals[place]
    assert local.layout is not None
    rows, width = local.layout.box
    for layout in (replace(local.layout, index=local.layout.index[::-1]), plain((rows, width + 1)), plain((rows, width - 1)),
                   composed("turned", (rows, width), Permute((1, 0)))):
        broken = (*promoted.locals[:place], replace(local, layout=layout), *promoted.locals[place + 1:])
        with pytest.raises(InternalError):
            check_final(replace(promoted, locals=broken), scop, deps)


@pytest.mark.parametrize(("columns", "item"), [(16, 2), (32, 2), (64, 2), (128, 2), (8, 4), (16, 4), (32, 4)])
def test_eight_rows_of_one_chunk_lie_in_eight_groups_of_banks(columns: int, item: int) -> None:
    row, column = places(swizzle(8, columns, item))
    offset = (row * columns + column) * item
    for chunk in range(0, columns, 16 // item):
        assert len(set(offset[:, chunk] // 16 % 8)) == 8
        assert (np.diff(offset[:, chunk:chunk + 16 // item], axis=1) == item).all()  # a chunk stays whole


def test_rows_of_one_column_lie_in_banks_of_their_own() -> None:
    for columns in (32, 64):
        row, column = places(diagonal(64, columns))
        banks = (row * columns + column) % 32
        assert all(len(set(banks[first:first + 32, c])) == 32 for first in (0, 32) for c in range(columns))


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

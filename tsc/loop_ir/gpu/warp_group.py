"""Products of a warp group: what four warps multiply together, straight from shared memory (wgmma, PTX ISA 9.7.15).

A lane's part of it looks like that of a warp's instruction, since each of the four warps holds 16 of the 64 rows, and both
operands are looked at as the group sees them: x being a row of A or a column of B, an operand has rows of `span` bytes (32, 64
or 128), eight of them in a pattern, its 16-byte units swizzled as device/wgmma.cuh says. Whether a tile lies so is asked of the
place of each of its elements; nothing is concluded from how the indices are written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tsc.loop_ir.gpu.mma import COLUMNS, GROUP, ROWS, MmaTile, read_mma_tile
from tsc.loop_ir.gpu.threads import trips
from tsc.loop_ir.marks import K
from tsc.loop_ir.nodes import For, Stmt
from tsc.sym import product
from tsc.te.expr import Const, Expr, Load, Var, add, call, index, item_bytes, mul, substitute, variables
from tsc.te.index import evaluated

#: The most columns of an instruction.
MOST_COLUMNS = 256
_SPANS, _LINE, _UNIT, _PATTERN = (128, 64, 32), 128, 16, 8
_Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class GroupOperand:
    """64 rows of A, or B, in shared memory: `first` is its first element. Rows of `span` bytes run along k, or along x where it
    is `mn_major`; from one pattern of eight of them to the next are `stride` bytes, from one panel, a span of x, `leading`;
    `steps` of k begin so many bytes behind the first."""

    first: Load
    span: int
    mn_major: bool
    leading: int
    stride: int
    steps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupProduct:
    """C += A B of 64 rows and so many `columns`, whose sums each lane has in all registers of `tile.acc`, in their order."""

    tile: MmaTile
    columns: int
    left: GroupOperand
    right: GroupOperand


def read_group_product(meaning: Stmt, lane: str, warps: Mapping[str, range]) -> GroupProduct | str:
    """The product that a statement is for the warp groups of a block, whose lanes and warps (in the order of their numbers)
    have such variables; why it is none."""
    if not (isinstance(meaning, For) and meaning.mark == K) or (tile := read_mma_tile(meaning.body)) is None:
        return "it is no loop over k of what a warp multiplies"
    rows, columns, k, steps = tile.rows, tile.columns, meaning, trips(meaning)
    if not (isinstance(tile.left, Load) and isinstance(tile.right, Load)) or rows is None or columns is None or not steps or (
            trips(rows) != 1):
        return "a warp has more than 16 rows"
    numbered = [name for name, values in warps.items() if len(values) > 1]
    if len(numbered) != 1 or len(warps[numbered[0]]) % GROUP:
        return "its warps are not four by four below each other"
    wide = COLUMNS * (trips(columns) or 0)
    if wide > MOST_COLUMNS or not _in_order(tile, wide):
        return "its sums are not those of one instruction"
    name, values = numbered[0], warps[numbered[0]]
    # axes: groups, warps, halves, lanes // 4 | tiles, lanes % 4, pairs | steps of k, k
    own: dict[str, _Places] = {other: np.array(only[0]) for other, only in warps.items() if other != name}
    own |= {name: np.array(values).reshape(-1, GROUP, *(1,) * 7), rows.var: _along(rows, 0, 9),
            tile.half: np.arange(2).reshape(2, *(1,) * 6), columns.var: _along(columns, 4, 9),
            tile.pair: np.arange(2).reshape(2, 1, 1), k.var: _along(k, 7, 9), tile.k: np.arange(tile.depth)}
    own[lane] = 4 * np.arange(8).reshape(8, *(1,) * 5) + np.arange(4).reshape(4, 1, 1, 1)
    first: dict[str, Expr] = {other: index(0) for other in (tile.half, tile.pair, tile.k, lane)}
    first |= {loop.var: loop.lo for loop in (rows, columns, k)}
    group = call("floordiv", call("sub", Var(name), index(values[0])), index(GROUP * values.step))
    begin = {name: add(index(values[0]), mul(index(GROUP * values.step), group))}
    (left, left_unit), (right, right_unit) = (_places(load, own) for load in (tile.left, tile.right))
    if left is None or right is None:
        return "where its operands lie is not known"
    if _vary(left, (4, 5, 6)) or _vary(right, (0, 1, 2, 3)):
        return "its operands are not those of a warp group"
    a = _laid(left[:, :, :, :, 0, 0, 0].reshape(len(left), GROUP * ROWS, steps, tile.depth), left_unit)
    b = _laid(right[0, 0, 0, 0].reshape(1, wide, steps, tile.depth), right_unit)
    if a is None or b is None:
        return "its operands do not lie as a warp group reads them"
    found = [GroupOperand(_at(load, at), *how) for load, at, how in (
        (tile.left, first | begin, a), (tile.right, first | {name: index(values[0])}, b))]
    return GroupProduct(tile, wide, *found)


def _in_order(tile: MmaTile, wide: int) -> bool:
    """Whether register 4 j + 2 half + pair has the sum of tile j, and there are no others."""
    assert tile.columns is not None and tile.rows is not None
    grid = {tile.columns.var: _along(tile.columns, 0, 3), tile.half: np.arange(2).reshape(2, 1), tile.pair: np.arange(2),
            tile.rows.var: _along(tile.rows, 0, 3)}
    found = evaluated(tile.registers[0], grid) if len(tile.registers) == 1 else None
    return found is not None and product(tile.acc.shape).as_int() == wide // 2 and np.array_equal(
        np.broadcast_to(found, (wide // 8, 2, 2)).ravel(), np.arange(wide // 2))


def _along(loop: For, axis: int, axes: int) -> _Places:
    """The values of a loop's variable along an axis."""
    assert isinstance(loop.lo, Const) and isinstance(loop.hi, Const)
    return np.arange(int(loop.lo.value), int(loop.hi.value), loop.step).reshape(-1, *(1,) * (axes - 1 - axis))


def _places(load: Load, grid: Mapping[str, _Places]) -> tuple[_Places | None, int]:
    """Where in its buffer the elements are, in bytes, for all of the grid (None: that is not known), but for multiples of so
    many bytes, which other variables than the grid's count (0: there are none)."""
    shape = np.broadcast_shapes(*(values.shape for values in grid.values()))
    found, unit, extents = np.zeros((), np.int64), 0, [extent.as_int() for extent in load.buffer.stored]
    for d, place in enumerate(load.index):
        inner = math.prod(extent or 0 for extent in extents[d + 1:]) * item_bytes(load.dtype)
        value = evaluated(place, grid)
        if value is not None:
            found = found + value * inner
        elif variables(place) & grid.keys() or None in extents[d + 1:]:
            return None, 0
        else:
            unit = math.gcd(unit, inner)
    return np.broadcast_to(found, shape), unit


def _vary(places: _Places, axes: tuple[int, ...]) -> bool:
    first = tuple(slice(0, 1) if axis in axes else slice(None) for axis in range(places.ndim))
    return not np.array_equal(np.broadcast_to(places[first], places.shape), places)


def _at(load: Load, place: Mapping[str, Expr]) -> Load:
    made = substitute(load, place)
    assert isinstance(made, Load)
    return made


def _laid(places: _Places, unit: int) -> tuple[int, bool, int, int, tuple[int, ...]] | None:
    """Of the places of an operand's elements, [groups, x, steps, k], which multiples of a `unit` may be added to, the span,
    whether it is mn-major, the leading bytes, the stride, and where steps begin; None where it does not lie so in each group,
    from a whole pattern on."""
    apart = places - places[:, :1, :1, :1]
    if (apart != apart[:1]).any():
        return None
    x, k = np.arange(apart.shape[1])[:, None, None], np.arange(apart.shape[3])
    for span in _SPANS:
        if unit % (_PATTERN * span) or (places[:, 0, 0, 0] % (_PATTERN * span)).any():
            continue
        line, chunk = apart[0] // _LINE, apart[0] // _UNIT % (_LINE // _UNIT)
        plain = line * _LINE + (chunk ^ line % (span // _UNIT)) * _UNIT + apart[0] % _UNIT
        steps, panel = plain[0, :, 0], span // 2
        for mn_major in (False, True):
            leading = int(plain[panel, 0, 0]) if mn_major and len(x) > panel else 0
            next_pattern = plain[0, 0, _PATTERN:] if mn_major else plain[_PATTERN:, 0, 0]
            stride = int(next_pattern[0]) if next_pattern.size else 0
            along, across = (x, k) if mn_major else (k, x)
            wanted = (along // panel * leading + along % panel * 2 if mn_major else along * 2) + (
                across // _PATTERN * stride + across % _PATTERN * span)
            if np.array_equal(plain, steps[:, None] + wanted):
                return span, mn_major, leading, stride, tuple(steps.tolist())
    return None

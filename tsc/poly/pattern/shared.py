"""Operands of products in shared memory: tiles that all threads of a block copy, laid out for the lanes that read them."""

from __future__ import annotations

from dataclasses import dataclass

from tsc.errors import InternalError
from tsc.loop_ir.gpu.mma import GROUP, ROWS
from tsc.loop_ir.gpu.widen import begins_whole
from tsc.loop_ir.marks import BLOCK
from tsc.poly import PatternMismatch, isl
from tsc.poly.pattern.teams import Rows, copy_rows
from tsc.poly.promotion.layout import Layout, plain, swizzle, swizzled_panels
from tsc.poly.promotion.promote import Operand, Promoted, promote_operand, zero
from tsc.poly.scop import Scop, Statement
from tsc.poly.tree import node_below
from tsc.te.compute import facts_of
from tsc.te.expr import Call, Const, Expr, Load, item_bytes, variables
from tsc.te.passes.products import stride, unit_stride

#: Lanes of a warp along the columns of a product, bytes that a lane copies at once, and the rows of a warp group's instruction.
ACROSS, VECTOR_BYTES, GROUP_ROWS = 4, 16, GROUP * ROWS


@dataclass(frozen=True, slots=True)
class Tile:
    """A factor of a product, `stored` so, as a tile: `size` of its own `axis` by `deep` of what is reduced, `k`, multiplied in
    steps of an instruction with so many (rows, columns, k). `read` is what is in memory of it."""

    value: Expr
    read: Expr
    axis: str
    size: int
    k: str
    deep: int
    instr: tuple[int, ...]


def share(promoted: Promoted, rounded: Scop, scop: Scop, update: Statement, tile: Tile, columns: bool, warps: int,
          marks: frozenset[str] = frozenset({BLOCK})) -> Promoted:
    """A tile read from shared memory by `update`, copied by all threads before what is below the bands under `marks`; swizzled
    where lanes read several of its rows at once. Its axis are the `columns` of the product, or its rows. Raises PatternMismatch
    for a factor that is the same along one of its axes."""
    value, read, axis, k = tile.value, tile.read, tile.axis, tile.k
    used = variables(value)
    if not {axis, k} <= used:
        same = ", ".join(sorted({axis, k} - used))
        raise PatternMismatch(f"a factor of {update.compute.name} is the same along {same}, and no tile of rows and columns")
    cells = tuple(a.name for a in update.axes if a.name in used)
    inner, outer, shape = (axis, k, (tile.deep, tile.size)) if unit_stride(read, axis) and not unit_stride(read, k) else (
        k, axis, (tile.size, tile.deep))
    dims = (cells.index(outer), cells.index(inner))
    operand = Operand.over_axes(f"{update.compute.name}_{axis}_tile", value, update, cells, dims)
    along = inner == axis and tile.instr[2] == 1  # a step of k reads along one row
    # lanes read rows of neighbours: every one in turn, but for columns that are neighbours of a row of C
    apart = tile.instr[1] // ACROSS if columns and tile.instr[2] == 1 else 1
    layout = plain(shape) if along else swizzled_panels(*shape, item_bytes(value.dtype)) if tile.instr[0] == GROUP_ROWS else (
        shared_layout(shape, value.dtype, apart))
    most = _copied_together(read, value.dtype, inner, scop)
    node = node_below(promoted.schedule, marks, update.name)

    def rows(copies: isl.Map) -> Rows:
        return copy_rows(copies, dims, shape, warps, most)

    return promote_operand(promoted, node, rounded, update.domain, operand, layout, "shared", zero(value.dtype), rows)


def always_read(value: Expr) -> Expr:
    """A factor without the conditions under which it is 0."""
    while isinstance(value, Call) and value.fn == "select" and isinstance(value.args[2], Const):
        value = value.args[1]
    return value


def shared_layout(shape: tuple[int, int], dtype: str, apart: int) -> Layout:
    """A tile with its rows' chunks in different banks, where they can be."""
    try:
        return swizzle(*shape, item_bytes(dtype), apart)
    except InternalError:  # rows too short, or no power of two
        return plain(shape)


def _copied_together(value: Expr, dtype: str, inner: str, scop: Scop) -> int:
    """How many neighbours a lane copies: those of one access, where that is sure to begin at a multiple of its bytes. Where it
    is not, lanes copy neighbours; but those whose places take divisions have them in common."""
    whole, facts = VECTOR_BYTES // item_bytes(dtype), facts_of(scop.program.sizes)
    if not isinstance(value, Load) or stride(value, inner) != 1:
        return max(1, whole)
    return next((size for size in (whole, whole // 2) if size > 1 and begins_whole(
        value.buffer, value.index, inner, size, facts)), 1)

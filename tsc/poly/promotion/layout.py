"""Layout maps of promoted buffers and packed weights: where each element of a box is stored. A value: a function from logical
to storage index.

isl schedules logical indices; a layout is applied to them when loops are made, outside isl, so that it may be no affine
function at all (a swizzle). What has to hold is certified: every element has a place of its own within the storage, and no
place is left over but what was padded. A layout composed of combinators is certified by construction, for all sizes: each of
them is a bijection, which is proved once where it is defined. Others are looked at. `panel` is what `te.expr.Buffer.panel` says
of packed weights; `swizzle` and the fragments are what ldmatrix and mma expect (PTX ISA 9.7.14.5;
tsc/codegen_cuda/device/mma.cuh).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tsc.errors import InternalError
from tsc.poly import isl
from tsc.poly.affine import box_text, index_text
from tsc.sym import SymExpr
from tsc.te.expr import INDEX, Buffer, Call, Expr, Var, add, call, format_expr, index, mul, substitute
from tsc.te.index import evaluated
from tsc.te.layout import Combinator, Combinators, Merge, Permute, Split, extents_of, panels, text

#: Boxes up to this many elements are certified by looking at every one.
EXHAUSTIVE = 1 << 18
#: Bytes that ldmatrix and asynchronous copies move at once, and that all banks of shared memory deliver at once.
CHUNK_BYTES, BANK_BYTES = 16, 128


@dataclass(frozen=True, slots=True)
class Layout:
    """`index[d]` is coordinate d of the place, in an array of shape `storage`, of the element at (i0, i1, ...) of `box`.

    The first `owners` coordinates say who holds the element (a warp, then a lane of it); the rest is storage of the owner's.
    `made`: the combinators that made it of the row-major layout of its box; None for a map of another kind.
    """

    name: str
    box: tuple[SymExpr, ...]
    storage: tuple[SymExpr, ...]
    index: tuple[Expr, ...]
    owners: int = 0
    made: Combinators | None = None

    def place(self, logical: Sequence[Expr]) -> tuple[Expr, ...]:
        """The storage index of a logical one."""
        mapping = {_axis(d).name: value for d, value in enumerate(logical)}
        return tuple(substitute(i, mapping) for i in self.index)


def plain(box: Sequence[SymExpr | int]) -> Layout:
    """Row-major."""
    shape = tuple(SymExpr.of(extent) for extent in box)
    return Layout("plain", shape, shape, tuple(_axis(d) for d in range(len(shape))), made=())


def composed(name: str, box: Sequence[SymExpr | int], *combinators: Combinator) -> Layout:
    """The row-major layout of a box, changed by combinators in turn. Raises InternalError where one does not apply."""
    layout = plain(box)
    storage, place = layout.storage, list(layout.index)
    for step in combinators:
        changed = extents_of(storage, step)
        match step:
            case Permute(order=order):
                place = [place[d] for d in order]
            case Split(dim=d, size=size):
                place[d:d + 1] = [call(fn, place[d], index(size)) for fn in ("floordiv", "mod")]
            case Merge(dim=d):
                place[d:d + 2] = [add(mul(place[d], index(storage[d + 1])), place[d + 1])]
        storage = changed
    return Layout(name, layout.box, storage, tuple(place), made=combinators)


def panel(box: Sequence[SymExpr | int], axis: int, width: int) -> Layout:
    """`axis`, padded to a multiple of `width` and split by it, the quotient first and the remainder last."""
    return composed(f"panel({axis}, {width})", box, *panels(len(box), axis, width))


@lru_cache(maxsize=1024)
def layout_of(buffer: Buffer) -> Layout:
    """Where memory has the elements of a Buffer."""
    return composed(text(len(buffer.shape), buffer.layout) or "plain", buffer.shape, *buffer.layout)


def certify_stored(buffer: Buffer) -> None:
    """Raise InternalError unless the layout of a Buffer is certified at all sizes, and has the extents that it says it has."""
    layout = layout_of(buffer)
    certify(layout)
    if layout.storage != buffer.stored:
        raise InternalError(f"{buffer} is stored as {[str(e) for e in buffer.stored]}, not as its layout {layout.name} says")


def swizzle(rows: int, columns: int, item_bytes: int, apart: int = 1) -> Layout:
    """[rows][columns] with the 16-byte chunks permuted in each row: of a chunk, rows that are so many `apart` lie in different
    banks, eight of them or as many as a row has chunks.

    Raises InternalError unless a row is a power of two of at least two chunks.
    """
    shape = (SymExpr.of(rows), SymExpr.of(columns))
    return Layout("swizzle", shape, shape, (_axis(0), _swizzled(columns, item_bytes, apart)))


def swizzled_panels(rows: int, columns: int, item_bytes: int) -> Layout:
    """[columns / p][rows][p], p elements being 128 bytes, or as many as all columns are, each panel swizzled: what a warp group
    multiplies straight from shared memory (device/wgmma.cuh).

    Raises InternalError unless columns are whole panels, of a power of two of at least two chunks.
    """
    width = min(columns, BANK_BYTES // item_bytes)
    if columns % width:
        raise InternalError(f"{columns} columns of {item_bytes} bytes are no whole panels")
    box, storage = (rows, columns), (columns // width, rows, width)
    place = (_div(_axis(1), width), _axis(0), _swizzled(width, item_bytes, panels=True)) if columns > width else (
        index(0), _axis(0), _swizzled(width, item_bytes))
    return Layout("swizzled panels", tuple(map(SymExpr.of, box)), tuple(map(SymExpr.of, storage)), place)


def _swizzled(columns: int, item_bytes: int, apart: int = 1, panels: bool = False) -> Expr:
    """Where a column lies in its row of so many columns, or in its row of that of several `panels` that it is in."""
    size = CHUNK_BYTES // item_bytes
    chunks = columns // size
    if chunks < 2 or chunks & (chunks - 1) or columns % size:
        raise InternalError(f"a row of {columns} elements of {item_bytes} bytes cannot be swizzled")
    row, column = _axis(0), _axis(1)
    span = min(chunks, BANK_BYTES // CHUNK_BYTES)
    phase = _mod(_div(row, max(apart, BANK_BYTES // CHUNK_BYTES // span)), span)
    chunk = _mod(_div(column, size), chunks) if panels else _div(column, size)
    return _sum((size, Call("bitxor", (chunk, phase), INDEX)), (1, _mod(column, size)))


def diagonal(rows: int, columns: int) -> Layout:
    """[rows][columns] with the elements permuted in each row: consecutive rows of a column lie in different banks.

    Raises InternalError unless a row is a power of two.
    """
    if columns & (columns - 1):
        raise InternalError(f"a row of {columns} elements has no diagonals")
    row, column, shape = _axis(0), _axis(1), (SymExpr.of(rows), SymExpr.of(columns))
    return Layout("diagonal", shape, shape, (row, Call("bitxor", (column, _mod(row, columns)), INDEX)))


def accumulator_fragment(block: tuple[int, int], warp: tuple[int, int], tile: tuple[int, int] = (16, 8)) -> Layout:
    """C of mma m16n8: a block tile cut into warp tiles, those into 16 x 8 tiles of 4 numbers a lane. Other tiles are alike.

    Storage [warp row][warp column][lane][number]; with g = lane / 4, t = lane % 4, a lane holds rows g and g + 8 at columns
    2t and 2t + 1 (every eighth row of a tile, at a quarter of its columns). Raises InternalError where the tiles do not divide
    each other.
    """
    return _fragment("accumulator", block, warp, tile, tile[1] // 4)


def row_fragment(rows: int, warp: int, lanes: int) -> Layout:
    """What lanes hold of their rows of such accumulators, [rows][lanes]: storage [warp][lane][number], each of 8 times `lanes`
    lanes having every eighth row of its warp."""
    i, j = _axis(0), _axis(1)
    storage = (rows // warp, 8 * lanes, warp // 8)
    return Layout("rows' fragment", (SymExpr.of(rows), SymExpr.of(lanes)), tuple(map(SymExpr.of, storage)),
                  (_div(i, warp), _sum((lanes, _mod(i, 8)), (1, j)), _digit(i, warp, 8)), owners=2)


def in_rows(layout: Layout, rows: int) -> Layout:
    """A layout of a matrix with so many rows of it together."""
    first, *others = layout.index
    storage = (layout.storage[0] // rows, SymExpr.of(rows), *layout.storage[1:])
    return Layout(f"{layout.name} in {rows} rows", layout.box, storage, (_div(first, rows), _mod(first, rows), *others))


def a_fragment(block: tuple[int, int], warp: tuple[int, int]) -> Layout:
    """A of mma m16n8k16 on 2-byte numbers, as `accumulator_fragment`: 16 x 16 tiles (rows, k) of 8 numbers a lane."""
    return _fragment("a", block, warp, (16, 16), 2)


def b_fragment(block: tuple[int, int], warp: tuple[int, int]) -> Layout:
    """B of mma m16n8k16 on 2-byte numbers, as `accumulator_fragment`: 8 x 16 tiles (columns, k) of 4 numbers a lane."""
    return _fragment("b", block, warp, (8, 16), 2)


def _fragment(name: str, block: tuple[int, int], warp: tuple[int, int], tile: tuple[int, int], together: int
              ) -> Layout:
    """All fragments consist of quadrants of 8 rows in which four lanes hold so many neighbours of one row each; a lane's
    numbers run over the tiles, in a tile over the quadrants (rows first), then over the neighbours."""
    if any(b % w or w % t for b, w, t in zip(block, warp, tile)):
        raise InternalError(f"a block of {block} in warps of {warp} has no whole fragments of {tile}")
    i, j = _axis(0), _axis(1)
    lane = _sum((4, _mod(i, 8)), (1, _digit(j, 4 * together, together)))
    across, quadrants = warp[1] // tile[1], tile[0] // 8
    numbers = tile[0] * tile[1] // 32
    number = _sum((numbers * across, _digit(i, warp[0], tile[0])), (numbers, _digit(j, warp[1], tile[1])),
                  (together * quadrants, _digit(j, tile[1], 4 * together)), (together, _digit(i, tile[0], 8)),
                  (1, _mod(j, together)))
    storage = (block[0] // warp[0], block[1] // warp[1], 32, warp[0] * warp[1] // 32)
    return Layout(f"{name} fragment", tuple(SymExpr.of(b) for b in block), tuple(SymExpr.of(s) for s in storage),
                  (_div(i, warp[0]), _div(j, warp[1]), lane, number), owners=3)


# -- certificate -----------------------------------------------------------------------------------------------

def certify(layout: Layout, params: str = "[]", context: isl.Set | None = None) -> None:
    """Raise InternalError unless `layout` is a bijection from its box onto its storage, but for what was padded.

    What its combinators make is one. Of others a constant box is looked at element by element; one with symbolic extents, over
    `params` in `context`, goes to isl and must be affine.
    """
    if layout.made is not None and layout == composed(layout.name, layout.box, *layout.made):
        return
    box, storage = ([e.as_int() for e in shape] for shape in (layout.box, layout.storage))
    sizes, places = [e for e in box if e is not None], [e for e in storage if e is not None]
    if len(sizes) == len(box) and len(places) == len(storage) and math.prod(sizes) <= EXHAUSTIVE:
        _certify_each(layout, sizes, places)
    else:
        _certify_affine(layout, params, context)
    if layout.made is not None:
        raise InternalError(f"the layout {layout.name} is not what {layout.made} make of its box")


def _certify_each(layout: Layout, box: Sequence[int], storage: Sequence[int]) -> None:
    grid = {_axis(d).name: values for d, values in enumerate(np.indices(tuple(box), dtype=np.int64))}
    found = [evaluated(i, grid) for i in layout.index]
    if any(values is None for values in found):
        raise InternalError(f"a layout cannot use {[format_expr(i) for i in layout.index]}")
    coordinates = [np.broadcast_to(values, tuple(box)).ravel() for values in found]
    linear = np.zeros(math.prod(box), np.int64)
    for coordinate, extent in zip(coordinates, storage, strict=True):
        if coordinate.size and not 0 <= coordinate.min() <= coordinate.max() < extent:
            raise InternalError(f"the layout {layout.name} leaves its storage {tuple(storage)}")
        linear = linear * extent + coordinate
    if len(np.unique(linear)) != linear.size:
        raise InternalError(f"the layout {layout.name} gives two elements one place")
    if linear.size != math.prod(storage):
        raise InternalError(f"the layout {layout.name} leaves places of its storage {tuple(storage)} empty")


def _certify_affine(layout: Layout, params: str, context: isl.Set | None) -> None:
    names = {_axis(d).name: _axis(d).name for d in range(len(layout.box))}
    texts = [index_text(i, names) for i in layout.index]
    if any(t is None for t in texts):
        raise InternalError(f"the layout {layout.name} of a symbolic box is not affine")
    cells = [f"s{d}" for d in range(len(layout.storage))]
    places = " and ".join(f"{c} = {t}" for c, t in zip(cells, texts)) or "1 = 1"
    inside = box_text(layout.box, list(names))
    relation = isl.Map(f"{params} -> {{ [{', '.join(names)}] -> [{', '.join(cells)}] : {inside} and {places} }}")
    storage = isl.Set(f"{params} -> {{ [{', '.join(cells)}] : {box_text(layout.storage, cells)} }}")
    if context is not None:
        relation, storage = relation.intersect_params(context), storage.intersect_params(context)
    if not relation.range().is_subset(storage):
        raise InternalError(f"the layout {layout.name} leaves its storage {[str(s) for s in layout.storage]}")
    if not relation.is_injective():
        raise InternalError(f"the layout {layout.name} gives two elements one place")
    if not storage.is_subset(relation.range()):
        raise InternalError(f"the layout {layout.name} leaves places of its storage {[str(s) for s in layout.storage]} empty")


def _axis(d: int) -> Var:
    return Var(f"i{d}")


def _div(value: Expr, by: int) -> Expr:
    return call("floordiv", value, index(by))


def _mod(value: Expr, by: int) -> Expr:
    return call("mod", value, index(by))


def _digit(value: Expr, outer: int, inner: int) -> Expr:
    """Which `inner` of an `outer`."""
    return index(0) if outer == inner else _div(_mod(value, outer), inner)


def _sum(*terms: tuple[int, Expr]) -> Expr:
    total = index(0)
    for factor, value in terms:
        total = add(total, mul(index(factor), value))
    return total

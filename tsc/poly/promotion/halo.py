"""The part of an image that a block's windows see, copied once with its border, so that windows read it without conditions.

Neighbouring windows overlap: what they share is read, checked against the image's edges and computed (a cast, an activation in
front) once an element instead of once a window. The copy is one more composed prologue (`promote`), with its proofs.

Outputs are computed in whole vectors. The lanes past the last output read the copy, too, and nobody stores them; the copy has
what they read all the same, so that no lane computes with what nobody wrote (which may be denormal, hence slow, or signalling).
"""

from __future__ import annotations

from dataclasses import replace

from tsc.loop_ir.marks import COPY, alloc_of
from tsc.poly import PatternMismatch, isl
from tsc.poly.affine import box_text, index_text, size_text
from tsc.poly.pattern.nest import Nest
from tsc.poly.promotion.layout import plain
from tsc.poly.promotion.promote import Local, Operand, Promoted, box, footprint_of, read_by, replaced, scope_of, with_copy, zero
from tsc.poly.promotion.rounded import guard_of
from tsc.poly.scop import Scop, conditional_loads
from tsc.poly.tree import BLOCK_POINT, node_below
from tsc.sym import SymExpr
from tsc.te.expr import Buffer, Const, Expr, Var, loads, select, variables
from tsc.te.linear import linear
from tsc.te.passes.products import product_of

#: How often an element has to be read by a block's windows for a copy to pay.
REUSE = 2


def promote_halo(promoted: Promoted, scop: Scop, found: Nest, together: isl.Map) -> Promoted:
    """`promoted` with the image of a stencil read from a copy, one a block, where its windows overlap enough and what they see,
    those of instances computed `together` with its own included, is a box of constant extents; else it is read where it
    stands."""
    operand = _image(found)
    if operand is None or _reuse(found, operand) < REUSE:
        return promoted
    update = scop.of(found.anchor)[-1]
    node = node_below(promoted.schedule, BLOCK_POINT)
    try:
        footprint = footprint_of(node, scop, update, operand, together)
        lows, extents = box(footprint, footprint.domain(), scop)
    except PatternMismatch:
        return promoted
    dims = tuple(d for d, e in enumerate(extents) if e != SymExpr.of(1))
    if not dims or any(extents[d].as_int() is None for d in dims):
        return promoted
    storage = replace(operand.array, shape=tuple(extents[d] for d in dims))
    local = Local(operand.array, storage, dims, scope_of(storage), alloc_of(storage.name), plain(storage.shape))

    def rows(copies: isl.Map) -> list[tuple[str, isl.PwAff]]:
        return [(COPY, isl.instance_coordinate(copies, d)) for d in range(len(operand.cells))]

    value = _defined(operand, footprint.range(), read_by(update, operand, scop).intersect_domain(update.domain).range(), scop)
    return with_copy(promoted, node, update, operand, local, lows, footprint, value, rows)


def in_vectors(scop: Scop, found: Nest, tile: int, lanes: int) -> isl.Map:
    """The instances of a stencil's update -> those computed together with them: the vectors of `lanes` outputs of a register
    `tile` along its last axis that have any output."""
    update = scop.of(found.anchor)[-1]
    axes = [a.name for a in update.axes]
    others = [f"{a}_lane" if a == found.n else a for a in axes]
    instance, other = (f"{update.name}[{', '.join(names)}]" for names in (axes, others))
    extent = size_text(next(a.extent for a in update.axes if a.name == found.n))
    first, lane = f"{tile}*floor({found.n}/{tile})", f"{found.n}_lane"
    together = f"{first} <= {lane} < {first} + {tile} and {lane} < {lanes}*floor(({extent} + {lanes - 1})/{lanes})"
    return isl.Map(f"{scop.params} -> {{ {instance} -> {other} : {together} }}")


def _defined(operand: Operand, cells: isl.Set, wanted: isl.Set, scop: Scop) -> Expr:
    """What is copied to each of `cells`: the operand's element, and zero in those that no instance wants where the operand
    would be read outside its extents there."""
    names = {c: c for c in operand.cells}
    for load, conditions, certain in conditional_loads(operand.value, names):
        texts = [index_text(i, names) for i in load.index]
        where = " and ".join([*conditions, box_text(load.buffer.shape, [str(t) for t in texts])]) or "1 = 1"
        under = " and ".join(conditions) or "1 = 1"
        reached, inside = (isl.Set(f"{scop.params} -> {{ [{', '.join(names)}] : {text} }}") for text in (under, where))
        if not certain or None in texts or not cells.intersect(reached).intersect_params(scop.known).is_subset(inside):
            guard = guard_of(wanted, cells, operand.cells)
            return operand.value if guard is None else select(guard, operand.value, zero(operand.value.dtype))
    return operand.value


def _image(found: Nest) -> Operand | None:
    """The factor that moves along the vector axis, as elements of the one tensor that it reads; None where it is not that."""
    factors = product_of(found.anchor.body) or (found.anchor.body,)
    moving = [f for f in factors if found.n in variables(f)]
    read = moving[0]
    images = list(dict.fromkeys(load for load in loads(read) if load.index))
    if len(moving) != 1 or len(images) != 1:
        return None
    image = images[0]
    cells = tuple(f"{found.anchor.name}_y{d}" for d in range(len(image.index)))
    value = read
    for place, cell in sorted(zip(image.index, cells), key=lambda pair: -len(str(pair[0]))):  # the longest first
        if not isinstance(place, Const):
            value = replaced(value, place, Var(cell))
    if variables(value) - set(cells):
        return None
    array = Buffer(f"{found.anchor.name}_halo", read.dtype, image.buffer.shape)
    return Operand(array, cells, value, (), image.index, read)


def _reuse(found: Nest, operand: Operand) -> float:
    """How many windows of a block read an element: of the axes that blocks extend over, the window's extent over its step."""
    extents = {a.name: a.extent.as_int() or 1 for a in found.anchor.reduce_axes}
    times = 1.0
    for place in operand.index:
        steps = [s for s in (_step(place, axis) for axis in (found.n, found.m) if axis) if s]
        for name, extent in extents.items() if steps else ():
            times *= extent / steps[0] if _step(place, name) else 1
    return times


def _step(place: Expr, axis: str) -> int | None:
    return linear(place).coefficient(axis).as_int()

"""The stencil pattern: one reduction over a small constant window whose operands are consecutive along the last stored axis.

Depthwise and grouped convolutions, pooling, and whatever else combines neighbours: nothing is reused along another axis as in a
contraction, so that a register tile is a run of outputs, the whole window is unrolled, and every operand is read where it
stands, the lanes outside of it masked.
"""

from __future__ import annotations

from dataclasses import dataclass

from tsc.poly import PatternMismatch
from tsc.poly.pattern import Contraction, anchor_matrix, cells_behind, only_reduction, product_of, store_axes, variables
from tsc.poly.scop import Scop
from tsc.te.compute import Axis, Compute
from tsc.te.expr import Expr, Load, loads
from tsc.te.linear import linear

#: The largest window.
WINDOW = 1024
#: The widest spacing of the elements that one vector of operands reads.
SPACING = 4


@dataclass(frozen=True, slots=True)
class Stencil(Contraction):
    """A reduction over a window. Rows as in a contraction: batch axes, the vector axis `n`, and `m`, which runs over rows of
    the image (None: no such axis); both factors are the whole reduced expression."""


def match_stencil(scop: Scop) -> Stencil:
    """One reduction over a window with its epilogues. Raises PatternMismatch with the reason."""
    anchor = only_reduction(scop, "stencil")
    size = _window_size(anchor)
    if size is None or size > WINDOW:
        raise PatternMismatch(f"stencil: {anchor.name} reduces over no constant window of up to {WINDOW} elements")
    cells = cells_behind(scop, anchor, "stencil")
    stored = store_axes(scop, anchor, cells)
    if not stored or not _is_window(anchor, stored[0]):
        raise PatternMismatch(f"stencil: {anchor.name} reads no window along the last axis stored")
    partner = _partner(anchor, stored[0])
    if partner is not None:
        raise PatternMismatch(f"stencil: {partner.name} shares an operand, a contraction's panel reuses it")
    n, m = stored[0], stored[1] if len(stored) > 1 else None
    batch = tuple(a.name for a in anchor.axes if a.name not in (n, m))
    order = [*batch, n, *([m] if m else [])]
    return Stencil(anchor_matrix(scop, anchor, cells, order), anchor, batch, n, m, anchor.body, anchor.body)


def _window_size(anchor: Compute) -> int | None:
    size = 1
    for axis in anchor.reduce_axes:
        extent = axis.extent.as_int()
        if extent is None:
            return None
        size *= extent
    return size


def _is_window(anchor: Compute, n: str) -> bool:
    """Whether every load that moves along `n` does so in its last dim by a few elements, and one also with a reduce axis."""
    reduced = {a.name for a in anchor.reduce_axes}
    combined = False
    for load in loads(anchor.body):
        if not load.index or not any(n in variables(i) for i in load.index):
            continue
        step = linear(load.index[-1]).coefficient(n).as_int()
        if any(n in variables(i) for i in load.index[:-1]) or step not in range(1, SPACING + 1) or _nested(load, n):
            return False
        combined |= any(variables(i) & reduced and variables(i) - reduced for i in load.index)
    return combined


def _nested(load: Load, n: str) -> bool:
    """Whether `n` also occurs in the last index below something that is not linear."""
    return any(n in variables(atom) for atom, _ in linear(load.index[-1]).terms if not _is_axis(atom, n))


def _is_axis(atom: Expr, name: str) -> bool:
    return variables(atom) == {name} and not any(loads(atom)) and linear(atom).coefficient(name).as_int() == 1


def _partner(anchor: Compute, n: str) -> Axis | None:
    """An axis that the factor without `n` has alone: outputs along it read the same operand."""
    factors = product_of(anchor.body)
    if factors is None:
        return None
    with_n, without = factors if n in variables(factors[0]) else factors[::-1]
    alone = variables(without) - variables(with_n)
    return next((a for a in anchor.axes if a.name in alone and a.extent.as_int() != 1), None)

"""The stencil pattern: one reduction over a small constant window whose operands are consecutive along the last stored axis.

Depthwise and grouped convolutions, pooling, and whatever else combines neighbours: nothing is reused along another axis as in a
contraction, so that a register tile is a run of outputs, the whole window is unrolled, and every operand is read where it
stands, the lanes outside of it masked.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tsc.poly import PatternMismatch, isl
from tsc.poly.pattern.base import Build, Tree
from tsc.poly.pattern.nest import Nest, in_register_tiles, nest_tree
from tsc.poly.pattern.rows import anchor_matrix, cells_behind, only_reduction, store_axes
from tsc.poly.promotion.halo import in_vectors, promote_halo
from tsc.poly.promotion.promote import Promoted
from tsc.poly.proof.dataflow import check_vectors
from tsc.poly.scop import Scop
from tsc.poly.tile import Knob, Space, TileConfig, powers
from tsc.target import DeviceSpec
from tsc.te.compute import Axis, Compute
from tsc.te.expr import loads, variables
from tsc.te.passes.products import product_of, stride

#: The largest window.
WINDOW = 1024
#: The widest spacing of the elements that one vector of operands reads.
SPACING = 4
#: Rows of a stencil's block, and vectors of one of its register tiles.
STENCIL_ROWS, STENCIL_TILE = 16, (2, 4)


@dataclass(frozen=True, slots=True)
class Stencil(Nest):
    """A reduction over a window: `m` runs over rows of the image."""

    def default_config(self, spec: DeviceSpec) -> TileConfig:
        """A register tile is a run of outputs in neighbouring rows, a block as wide and some rows high."""
        lanes = max(1, spec.vector_bytes // 4)
        m, n = self.extents
        rows, vectors = STENCIL_TILE
        nr = vectors * lanes if n is None else lanes * min(range(vectors, 0, -1), key=lambda v: -n % (v * lanes))
        mr = rows if m is None else min(rows, m)
        return TileConfig((mr, nr), (mr if m == 1 else STENCIL_ROWS // mr * mr, nr), lanes=lanes)

    def space(self, spec: DeviceSpec) -> Space:
        """Runs of whole vectors in neighbouring rows, and blocks of them."""
        default, lanes = self.default_config(spec), max(1, spec.vector_bytes // 4)
        rows, columns = range(1, 2 * STENCIL_TILE[0] + 1), powers(4 * default.instr_tile[1], lanes)
        return Space(default, (Knob("instr_tile", (0,), tuple(rows)), Knob("instr_tile", (1,), columns),
                               Knob("block_tile", (0,), powers(4 * STENCIL_ROWS)), Knob("block_tile", (1,), columns)),
                     whole=in_register_tiles)

    def tree(self, config: TileConfig, build: Build) -> Tree:
        """Register tiles over a copy of the image's part that a block's windows see."""
        made = nest_tree(self, config, build, "stencil")
        return Tree.of(promote_halo(made, build.scop, self, self.together(config, build.scop)), build.scop)

    def check(self, promoted: Promoted, config: TileConfig, scop: Scop) -> None:
        """Raise InternalError unless all lanes of a vector read what was copied."""
        check_vectors(promoted, scop, scop.of(self.anchor)[-1], self.together(config, scop))

    def together(self, config: TileConfig, scop: Scop) -> isl.Map:
        """The instances that vectors compute together."""
        return in_vectors(scop, self, config.instr_tile[1], config.lanes or config.instr_tile[1])


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
    return Stencil(anchor_matrix(scop, anchor, cells, order), anchor, batch, n, m)


def _window_size(anchor: Compute) -> int | None:
    extents = [axis.extent.as_int() for axis in anchor.reduce_axes]
    return None if None in extents else prod(e or 0 for e in extents)


def _is_window(anchor: Compute, n: str) -> bool:
    """Whether every load that moves along `n` does so in its last dim by a few elements, and one also with a reduce axis."""
    reduced = {a.name for a in anchor.reduce_axes}
    moving = [load for load in loads(anchor.body) if any(n in variables(i) for i in load.index)]
    combined = any(variables(i) & reduced and variables(i) - reduced for load in moving for i in load.index)
    return combined and all(stride(load, n) in range(1, SPACING + 1) for load in moving)


def _partner(anchor: Compute, n: str) -> Axis | None:
    """An axis that the factor without `n` has alone: outputs along it read the same operand."""
    factors = product_of(anchor.body)
    if factors is None:
        return None
    with_n, without = factors if n in variables(factors[0]) else factors[::-1]
    alone = variables(without) - variables(with_n)
    return next((a for a in anchor.axes if a.name in alone and a.extent.as_int() != 1), None)

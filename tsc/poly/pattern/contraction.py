"""The contraction pattern: one sum of products with its epilogues, in register tiles over whole vectors of columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Self

from tsc.loop_ir.cpu.dots import DOTS, OF_WORDS, dots_of
from tsc.poly import PatternMismatch, isl
from tsc.poly.pattern.base import PANEL_STEPS, Build, Tree
from tsc.poly.pattern.nest import Nest, in_register_tiles, nest_tree
from tsc.poly.pattern.rows import anchor_matrix, cells_behind, only_reduction, store_axes
from tsc.poly.promotion.panel import LANES, promote_panel
from tsc.poly.scop import Scop
from tsc.poly.tile import Knob, Limit, Space, TileConfig, powers
from tsc.runtime.cost import Work
from tsc.sym import SymExpr, ceildiv, product
from tsc.target import DeviceSpec
from tsc.te.compute import Compute, Program
from tsc.te.expr import Call, Expr, loads, variables
from tsc.te.passes.layout import ColumnOperand, with_layouts
from tsc.te.passes.products import lies_along, product_of, single_axes, unit_stride, without_casts

#: Bytes of a panel that are asked for ahead. Few rows gain what a core's own prefetching leaves.
PREFETCH = Knob("prefetch", (), (0, 512, 1024, 2048, 4096, 8192, 16384, 32768))
#: Blocks along rows keep a panel of columns in the cache, blocks along columns keep the rows.
RASTER = Knob("raster", (), (0, 1))
#: Rows of a contraction's block whose column operand is more than one load, or one of elements apart.
TALL_BLOCK = 512
#: Rows of a register tile along an image, whose widths are mostly 224 halved some times.
IMAGE_ROWS = (7, 14)
#: A constant size of so many fills a register tile, as a symbolic one need not.
SURE_ROWS = 6


@dataclass(frozen=True, slots=True)
class Contraction(Nest):
    """A sum of products: `n_factor` varies with n and not with m, `m_factor` the other way round."""

    n_factor: Expr
    m_factor: Expr

    def default_config(self, spec: DeviceSpec) -> TileConfig:
        """A register tile of the device's, and blocks some of them high."""
        m, n = self.extents
        mr, nr = self.register_tile(spec)
        # a panel is copied for each block: blocks are tall where it takes more than reading elements as they stand
        most = 128 if self.in_panels or unit_stride(self.n_factor, self.n) else TALL_BLOCK
        wide = most if m is None else min(most, -(-m // mr) * mr)
        columns = 2 * nr if (n is None or n > nr) and most < TALL_BLOCK else nr
        ahead = spec.ahead if self.in_panels else 0
        return TileConfig((mr, nr), (max(1, wide // mr) * mr, columns), prefetch=ahead)

    def space(self, spec: DeviceSpec) -> Space:
        """Register tiles that leave room for a row of the operand and an element of the other, and blocks of them."""
        default = self.default_config(spec)
        nr = default.instr_tile[1]
        blocks = Knob("block_tile", (0,), powers(TALL_BLOCK)), Knob("block_tile", (1,), powers(8 * nr, nr))
        limit = Limit("registers", spec.registers, lambda config: registers(config.instr_tile, spec))
        others = [*([PREFETCH] if self.in_panels else []), *([RASTER] if self.m is not None else [])]
        tiles = self.register_knobs(spec, "instr_tile")
        return Space(default, (*tiles, *blocks, *others), (limit,), in_register_tiles,
                     tuple(map(in_register_tiles, self._seeds(default, tiles, spec))))

    def _seeds(self, default: TileConfig, tiles: tuple[Knob, Knob], spec: DeviceSpec) -> Iterator[TileConfig]:
        """As Roller begins (Zhu et al. 2022, section 4): of each width the register tile that fills the registers, and one half
        as high, in blocks as high as half of the second cache holds rows of the operand; the other order of blocks; and none
        asked for ahead: of one row each load feeds one product, and asking is half of what there is to do."""
        if self.m is not None:
            yield replace(default, raster=1)
        if default.prefetch:
            yield replace(default, prefetch=0)
        depth = product(axis.extent for axis in self.anchor.reduce_axes).as_int()
        fitting = spec.l2_bytes // 2 // (4 * depth) if depth else default.block_tile[0]
        high = max(size for size in powers(TALL_BLOCK) if size <= max(1, fitting))
        for wide in reversed(tiles[1].sizes):
            high_tile = tallest(tiles[0], wide, spec)
            for rows in dict.fromkeys((high_tile, -(-high_tile // 2)) if high_tile else ()):
                yield replace(default, instr_tile=(rows, wide), block_tile=(high, max(wide, default.block_tile[1])))

    @property
    def along_images(self) -> bool:
        """Whether rows end where those of an image do: there are further axes that the column operand does not vary with."""
        shared = variables(self.m_factor) - variables(self.n_factor)
        return any(axis in shared for axis in self.batch)

    @property
    def in_panels(self) -> bool:
        """Whether the factor that varies with n is laid out for register tiles."""
        return any(load.buffer.panel is not None for load in loads(self.n_factor))

    def register_knobs(self, spec: DeviceSpec, field: str, place: tuple[int, ...] = ()) -> tuple[Knob, Knob]:
        """Rows and columns of a register tile at a place; of a packed operand whole parts of its panels."""
        lanes, (m, n) = max(1, spec.vector_bytes // 4), self.extents
        rows = tuple(size for size in range(1, spec.registers) if m is None or size <= m)
        widest = self.register_tile(spec)[1]
        wide = [size for size in powers(4 * spec.instr_tile[1], lanes) if n is None or size < n + lanes]
        columns = tuple(size for size in wide if not self.in_panels or widest % size == 0)
        return Knob(field, (*place, 0), rows), Knob(field, (*place, 1), columns or (widest,))

    def register_tile(self, spec: DeviceSpec) -> tuple[int, int]:
        """Rows and columns of a register tile; a packed operand says how many columns."""
        lanes = max(1, spec.vector_bytes // 4)
        mr, nr = spec.instr_tile
        body = without_casts(self.anchor.body)
        words = isinstance(body, Call) and OF_WORDS.get(body.fn) in spec.intrinsics
        if (words or self.dots(spec)) and registers((mr, nr), spec) >= spec.registers:
            mr -= 1  # what takes several steps takes none of them from memory
        m, n = self.extents
        panels = [load.buffer.panel for load in loads(self.n_factor) if load.buffer.panel is not None]
        if panels:
            nr = panels[0][1]
        elif n is not None and n < nr:
            nr = -(-n // lanes) * lanes
        narrow = min(nr, 2 * lanes)
        fitting = [rows for rows in IMAGE_ROWS if registers((rows, narrow), spec) <= spec.registers]
        if self.along_images and fitting:
            mr, nr = fitting[-1], narrow
        elif nr < spec.instr_tile[1]:  # narrow tiles: as many accumulators
            mr = min(mr * (spec.instr_tile[1] // nr), 2 * mr)
        return mr if m is None else min(mr, m), nr

    def work(self, config: TileConfig, scop: Scop) -> tuple[Work, ...]:
        """Register tiles and their steps, and those in which panels are copied."""
        return self.tile_work(config.instr_tile) + self.panel_work(config.block_tile[0], config.instr_tile[1])

    def panel_work(self, high: int, wide: int) -> tuple[Work, ...]:
        """What copying panels of so many columns takes for blocks of so many rows; an operand that is laid out needs none."""
        if self.in_panels:
            return ()
        extents = {axis.name: axis.extent for axis in (*self.anchor.axes, *self.anchor.reduce_axes)}
        blocks = SymExpr.of(1) if self.m is None else ceildiv(extents[self.m], high)
        others = product(extents[name] for name in (*self.batch, *(axis.name for axis in self.anchor.reduce_axes)))
        return (Work(PANEL_STEPS, others * blocks * ceildiv(extents[self.n], wide)),)

    def tree(self, config: TileConfig, build: Build) -> Tree:
        """Register tiles over a panel of the operand that varies with n."""
        made = nest_tree(self, config, build, "contraction")
        return Tree.of(promote_panel(made, build.scop, self, self.n_factor, config.instr_tile[1]), build.scop)

    def dots(self, spec: DeviceSpec) -> frozenset[str]:
        """Those of a device's intrinsics that take several steps of the sum."""
        return dots_of(self.m_factor, self.n_factor, self.anchor.target.dtype, spec.intrinsics)

    def column_operands(self, spec: DeviceSpec) -> Iterable[ColumnOperand]:
        """The factor that varies with n; with steps side by side where a register tile takes several (`loop_ir/cpu/dots.py`)
        and none is left over."""
        steps = self.anchor.reduce_axes[-1]
        most = max((DOTS[dot] for dot in self.dots(spec) if (steps.extent.as_int() or 1) % DOTS[dot] == 0), default=1)
        yield ColumnOperand(self.n_factor, self.n, self.register_tile(spec)[1], (steps.name, most) if most > 1 else None)

    def reading(self, program: Program) -> Self:
        """The same of a Program that differs in the layouts of inputs alone."""
        return replace(Nest.reading(self, program), n_factor=with_layouts(self.n_factor, program.inputs),
                       m_factor=with_layouts(self.m_factor, program.inputs))


def tallest(rows: Knob, wide: int, spec: DeviceSpec) -> int:
    """The most rows of a register tile so wide that fit the registers; 0 where none do."""
    return max((size for size in rows.sizes if registers((size, wide), spec) <= spec.registers), default=0)


def registers(tile: tuple[int, ...], spec: DeviceSpec) -> int:
    """Vector registers that the k loop of a register tile takes: accumulators, a row of one operand, and an element of the
    other where no instruction takes that from memory (AVX-512 broadcasts it)."""
    vectors = -(-tile[1] // max(1, spec.vector_bytes // 4))
    return tile[0] * vectors + vectors + (spec.vector_bytes < 64)


def match_contraction(scop: Scop) -> Contraction:
    """One sum of products with its epilogues. Raises PatternMismatch with the reason."""
    anchor = only_reduction(scop, "contraction")
    factors = product_of(anchor.body)
    if anchor.monoid is None or anchor.monoid.fn != "add" or factors is None:
        raise PatternMismatch(f"contraction: {anchor.name} is no sum of products")
    cells = cells_behind(scop, anchor, "contraction")
    n, m, n_factor, m_factor = _choose_axes(scop, anchor, cells, factors)
    batch = tuple(a.name for a in anchor.axes if a.name not in (n, m))
    order = [*batch, n, *([m] if m else [])]
    return Contraction(anchor_matrix(scop, anchor, cells, order), anchor, batch, n, m, n_factor, m_factor)


def _choose_axes(scop: Scop, anchor: Compute, cells: dict[str, isl.Map],
                 factors: tuple[Expr, Expr]) -> tuple[str, str | None, Expr, Expr]:
    """The vector axis n and its partner m, with the factors that vary with them."""
    left = variables(factors[0])
    sizes = {a.name: a.extent.as_int() for a in anchor.axes}
    single = single_axes(anchor, factors)
    if not single:
        raise PatternMismatch(f"contraction: no axis of {anchor.name} belongs to one factor alone")
    stored = [a for a in store_axes(scop, anchor, cells) if a in single]
    n = stored[0] if stored else single[-1]
    n_factor, m_factor = factors if n in left else factors[::-1]
    if (sizes[n] or LANES) < LANES:  # few columns, which vectors would not fill: those of the other factor, where it has more
        others = [a for a in single if a in variables(m_factor) and (sizes[a] or LANES) >= LANES]
        along = [a for a in others if all(lies_along(load, a) for load in loads(m_factor))]
        if along:
            n, n_factor, m_factor = along[-1], m_factor, n_factor
    partners = [a for a in single if a in variables(m_factor)]
    if not partners:
        if not unit_stride(n_factor, n):
            raise PatternMismatch(f"contraction: {anchor.name} has no second axis and its operand is not consecutive along {n}")
        return n, None, n_factor, m_factor
    best = max(partners, key=lambda a: (sizes[a] is None, sizes[a] or 0, partners.index(a)))
    if (sizes[partners[-1]] or 0) >= SURE_ROWS and variables(n_factor).isdisjoint(sizes.keys() - {n}):
        best = partners[-1]  # of weights, rows that are there whatever a batch has
    return n, best, n_factor, m_factor

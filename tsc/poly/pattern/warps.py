"""Schedule trees for GPUs: blocks, warps and lanes; operands in shared memory, accumulators in registers; rounded domains.

The tree is a sequence of nests of `warp` and `thread` loops below the block loops (fork and join): what one nest leaves in
shared memory another reads. All domains are rounded up to whole tiles, so that every trip count is a constant; what is stored
outside stands under a guard. Sections 5.3 and 5.4 of the paper; ppcg (Verdoolaege 2013) for the mapping.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tsc.loop_ir.gpu.mma import WGMMA_F16
from tsc.loop_ir.marks import BLOCK, EPILOGUE, INIT, K_TILE, THREAD, TILE_COLUMN, TILE_ROW, WARP, K
from tsc.poly import PatternMismatch, isl
from tsc.poly.legality import order_of
from tsc.poly.matrix import function
from tsc.poly.normalise import inlined
from tsc.poly.pattern.base import STEPS, Build, Tree
from tsc.poly.pattern.contraction import Contraction, match_contraction
from tsc.poly.pattern.shared import ACROSS, GROUP_ROWS, Tile, share
from tsc.poly.pattern.teams import LANES, OnTeams, Rows, below, between, guards_of, team_tree
from tsc.poly.promotion.layout import accumulator_fragment
from tsc.poly.promotion.promote import Home, with_locals
from tsc.poly.promotion.rounded import round_domains
from tsc.poly.scop import Scop, Statement
from tsc.poly.tile import Knob, Limit, Space, TileConfig, powers, rounded
from tsc.poly.tree import BLOCK_POINT
from tsc.runtime.cost import Work
from tsc.sym import ceildiv, product
from tsc.target import DeviceSpec
from tsc.te.compute import Program
from tsc.te.expr import item_bytes
from tsc.te.passes.layout import ColumnOperand
from tsc.te.passes.products import as_stored
from tsc.te.passes.reduce_axes import one_reduce_axis

#: Lanes are 8 rows of 4, each with as many neighbours of a row: two in mma m16n8, four of FFMA, which are one access.
QUADRANT = 8
#: Without tuning: what a warp's lanes compute at once, rows, columns and k of a block, rows and columns of a warp, and the
#: shared tiles in flight.
INSTR_TILE, BLOCK_TILE, WARP_TILE, STAGES = (QUADRANT, 4 * ACROSS, 1), (64, 64, 16), (32, 32), 2
#: The tile of a matrix instruction on tf32, and of a warp group's on halves (rows, columns, k).
MATRIX_TILE, GROUP_TILE = (16, 8, 8), (GROUP_ROWS, 8, 16)


@dataclass(frozen=True, slots=True)
class Warps(OnTeams, Contraction):
    """A sum of products with rows and columns, whose operands stand in shared memory and its accumulators in registers."""

    def default_config(self, spec: DeviceSpec) -> TileConfig:
        """One size for all, without tuning."""
        return TileConfig(MATRIX_TILE if spec.intrinsics else INSTR_TILE, BLOCK_TILE, warp_tile=WARP_TILE, stages=STAGES)

    def space(self, spec: DeviceSpec) -> Space:
        """Blocks in whole warps, k tiles and stages that fit shared memory."""
        blocks = (Knob("block_tile", (k,), powers(256, 16)) for k in range(2))
        wide = self.default_config(spec).instr_tile[1]
        warps = Knob("warp_tile", (0,), powers(64, 16)), Knob("warp_tile", (1,), powers(64, wide))
        factors = [as_stored(value) for value in (self.m_factor, self.n_factor)]
        knobs = [*blocks, Knob("block_tile", (2,), powers(64, 8)), *warps, Knob("stages", (), (1, 2, 3, 4))]
        if WGMMA_F16.name in spec.intrinsics and all(value.dtype == WGMMA_F16.dtype for value in factors):
            knobs.append(Knob("instr_tile", (0,), (MATRIX_TILE[0], GROUP_ROWS)))
        item = max(item_bytes(value.dtype) for value in factors)

        def shared(config: TileConfig) -> int:
            high, wide, deep = config.block_tile
            return config.stages * (high + wide) * deep * item

        def accumulated(config: TileConfig) -> int:
            return config.warp_tile[0] * config.warp_tile[1] // LANES

        limits = [Limit("registers of a thread", (spec.registers + 1) // 2, accumulated)]
        if spec.gpu is not None:
            limits += [Limit("bytes of shared memory", spec.gpu.shared_per_block, shared),
                       Limit("threads", spec.gpu.threads_per_block, lambda config: LANES * config.warps)]
        return Space(self.default_config(spec), tuple(knobs), tuple(limits), _in_warps)

    def work(self, config: TileConfig, scop: Scop) -> tuple[Work, ...]:
        """Whole blocks, in tiles of k."""
        high, wide, deep = config.block_tile
        extents = {axis.name: axis.extent for axis in self.anchor.axes}
        others = product(extents[name] for name in self.batch)
        blocks = others * ceildiv(extents[self.n], wide) * ceildiv(extents[self.m or ""], high)
        return (Work(STEPS, blocks * ceildiv(self.anchor.reduce_axes[0].extent, deep)),)

    def column_operands(self, spec: DeviceSpec) -> Iterable[ColumnOperand]:
        """None: operands are read from shared memory."""
        return ()

    def tree(self, config: TileConfig, build: Build) -> Tree:
        """Blocks of warps over tiles of k in shared memory, domains rounded up to whole tiles."""
        scop, (high, wide, deep) = build.scop, config.block_tile
        tiled = {name: _Functions.of(scop, self, s) for name, s in scop.statements.items()}
        rounded = round_domains(scop, {
            name: [*((f, 1) for f in own.batch), (own.n, wide), (own.m, high), *((k, deep) for k in own.k)]
            for name, own in tiled.items()})
        schedule = _tree(rounded, self, tiled, config)
        axes = [a.name for a in self.anchor.axes]
        rows, columns = min(config.instr_tile[0], MATRIX_TILE[0]), config.instr_tile[1]  # a warp's part of a group's
        fragment = accumulator_fragment((high, wide), config.warp_tile, (rows, columns))
        home = Home(BLOCK_POINT, "", (axes.index(self.m or ""), axes.index(self.n)), (high, wide))
        result = with_locals(schedule, order_of(schedule, build.deps.full), rounded, build.deps, {}, (home,))
        held = tuple(replace(x, storage=replace(x.storage, shape=fragment.storage), layout=fragment) for x in result.locals)
        guards = guards_of(scop, rounded, [s for s in scop.statements.values() if s.role == "store"])
        result = replace(result, locals=held, guards=guards)
        update, k = scop.of(self.anchor)[-1], self.anchor.reduce_axes[0].name
        for value, axis, size in ((self.m_factor, self.m or "", high), (self.n_factor, self.n, wide)):
            factor = as_stored(value)
            tile = Tile(factor, factor, axis, size, k, deep, config.instr_tile)
            result = share(result, rounded, scop, update, tile, axis == self.n, config.warps, frozenset({BLOCK, K_TILE}))
        return Tree.of(result, scop, rounded)


def _in_warps(config: TileConfig) -> TileConfig:
    """Blocks of whole warps; warp groups are below each other, each with all columns."""
    if config.instr_tile[0] != GROUP_ROWS:
        return replace(config, block_tile=rounded(config.block_tile, config.warp_tile))
    block = rounded(config.block_tile, GROUP_TILE)
    return replace(config, block_tile=block, warp_tile=(MATRIX_TILE[0], block[1]), instr_tile=GROUP_TILE)


def match_warps(scop: Scop) -> Warps:
    """A contraction with a second axis and one reduce axis; what has none is left to the rows. Raises PatternMismatch."""
    found = match_contraction(scop)
    if found.m is None or len(found.anchor.reduce_axes) != 1:
        raise PatternMismatch(f"warps: {found.anchor.name} has no second axis, or not one reduce axis")
    other = next((name for name in scop.locals() if name != found.anchor.name), None)
    if other is not None:
        raise PatternMismatch(f"warps: {other} is no accumulator and no output")
    return Warps(found.matrix, found.anchor, found.batch, found.n, found.m, found.n_factor, found.m_factor)


def composed(program: Program) -> Program:
    """`program` with what is not reduced computed where it is read (a producer is composed into the copy of an operand, a link
    of an epilogue into the next), and one reduce axis, so that im2col is one axis of an operand."""
    outputs = {b.name for b in program.outputs}
    for compute in program.computes:
        if compute.monoid is None:
            program = inlined(program, compute.name, compute.name in outputs)
    return one_reduce_axis(program)


# -- the tree --------------------------------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class _Functions:
    """The rows of one statement: batch, n, m, and k where it has one."""

    statement: Statement
    batch: tuple[isl.PwAff, ...]
    n: isl.PwAff
    m: isl.PwAff
    k: tuple[isl.PwAff, ...]

    @staticmethod
    def of(scop: Scop, found: Contraction, statement: Statement) -> _Functions:
        rows = [found.matrix.solved(statement.name, i) for i in range(found.parallel)]
        k = (function(scop, statement.name, found.anchor.reduce_axes[0].name),) if statement.role == "update" else ()
        return _Functions(statement, tuple(rows[:-2]), rows[-2], rows[-1], k)


def _tree(scop: Scop, found: Contraction, tiled: dict[str, _Functions], config: TileConfig) -> isl.Schedule:
    """block loops over: init | k tiles over their products | epilogues, each in warp and thread loops of its own."""
    high, wide, deep = config.block_tile
    columns = [[own.batch[i] for own in tiled.values()] for i in range(len(found.batch))]
    columns += [[below(own.n, wide) for own in tiled.values()],
                [below(own.m, high) for own in tiled.values()]]
    rows: dict[str, Rows] = {}
    for name, own in tiled.items():
        mark = {"init": INIT, "update": "", "store": EPILOGUE}[own.statement.role]
        rows[name] = [*_team_rows(own, config), *_register_rows(own, config, mark)]
        if own.k:
            split = len(rows[name]) - 3
            rows[name] = [(K_TILE, below(own.k[0], deep)), *rows[name][:split],
                          (K, isl.modulo(own.k[0], deep)), *rows[name][split:]]
    return team_tree(scop, columns, rows)


def _team_rows(own: _Functions, config: TileConfig) -> Rows:
    """Warps by rows and columns, then the lanes of one: whoever holds an element of the accumulator computes it."""
    (high, wide, _), (warp_high, warp_wide) = config.block_tile, config.warp_tile
    return [(WARP, between(own.m, high, warp_high)),
            (WARP, between(own.n, wide, warp_wide)),
            (THREAD, isl.modulo(own.m, QUADRANT)),
            (THREAD, between(own.n, config.instr_tile[1], config.instr_tile[1] // ACROSS))]


def _register_rows(own: _Functions, config: TileConfig, mark: str) -> Rows:
    """What one lane holds: quadrants by rows and columns, and the neighbours in each."""
    (warp_high, warp_wide), wide = config.warp_tile, config.instr_tile[1]
    return [(mark or TILE_ROW, between(own.m, warp_high, QUADRANT)),
            (mark or TILE_COLUMN, between(own.n, warp_wide, wide)),
            (mark or TILE_COLUMN, isl.modulo(own.n, wide // ACROSS))]

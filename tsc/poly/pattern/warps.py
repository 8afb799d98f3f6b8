"""Schedule trees for GPUs: blocks, warps and lanes; operands in shared memory, accumulators in registers; rounded domains.

The tree is a sequence of nests of `warp` and `thread` loops below the block loops (fork and join): what one nest leaves in
shared memory another reads. All domains are rounded up to whole tiles, so that every trip count is a constant; what is stored
outside stands under a guard. Sections 5.3 and 5.4 of the paper; ppcg (Verdoolaege 2013) for the mapping.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tsc.errors import InternalError
from tsc.loop_ir.gpu.widen import begins_whole
from tsc.loop_ir.marks import BLOCK, EPILOGUE, INIT, K_TILE, THREAD, TILE_COLUMN, TILE_ROW, WARP, K
from tsc.loop_ir.scratch import item_bytes
from tsc.poly import PatternMismatch, isl
from tsc.poly.legality import order_of
from tsc.poly.matrix import function
from tsc.poly.normalise import inlined
from tsc.poly.pattern.base import STEPS, Build, Tree
from tsc.poly.pattern.contraction import Contraction, match_contraction
from tsc.poly.pattern.teams import LANES, OnTeams, Rows, below, between, copy_rows, guards_of, team_tree
from tsc.poly.promotion.layout import Layout, accumulator_fragment, plain, swizzle
from tsc.poly.promotion.promote import Home, Operand, Promoted, promote_operand, with_locals, zero
from tsc.poly.promotion.rounded import round_domains
from tsc.poly.scop import Scop, Statement
from tsc.poly.tile import Knob, Limit, Space, TileConfig, powers, rounded
from tsc.poly.tree import BLOCK_POINT, node_below
from tsc.runtime.cost import Work
from tsc.sym import ceildiv, product
from tsc.target import DeviceSpec
from tsc.te.compute import Program, facts_of
from tsc.te.expr import Cast, Expr, Load, variables
from tsc.te.passes.products import stride, unit_stride
from tsc.te.passes.reduce_axes import one_reduce_axis

#: Lanes are 8 rows of 4, each with as many neighbours of a row: two in mma m16n8, four of FFMA, which are one access.
QUADRANT, ACROSS = 8, 4
VECTOR_BYTES = 16
#: Without tuning: what a warp's lanes compute at once, rows, columns and k of a block, rows and columns of a warp, and the
#: shared tiles in flight.
INSTR_TILE, BLOCK_TILE, WARP_TILE, STAGES = (QUADRANT, 4 * ACROSS, 1), (64, 64, 16), (32, 32), 2
#: The tile of a matrix instruction on tf32 (rows, columns, k).
MATRIX_TILE = (16, 8, 8)


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
        knobs = (*blocks, Knob("block_tile", (2,), powers(64, 8)), *warps, Knob("stages", (), (1, 2, 3, 4)))
        item = max(item_bytes(value.dtype) for value in (self.m_factor, self.n_factor))

        def shared(config: TileConfig) -> int:
            high, wide, deep = config.block_tile
            return config.stages * (high + wide) * deep * item

        def accumulated(config: TileConfig) -> int:
            return config.warp_tile[0] * config.warp_tile[1] // LANES

        limits = [Limit("registers of a thread", spec.registers // 2, accumulated)]
        if spec.gpu is not None:
            limits += [Limit("bytes of shared memory", spec.gpu.shared_per_block, shared),
                       Limit("threads", spec.gpu.threads_per_block, lambda config: LANES * config.warps)]
        return Space(self.default_config(spec), knobs, tuple(limits), _in_warps)

    def work(self, config: TileConfig, scop: Scop) -> tuple[Work, ...]:
        """Whole blocks, in tiles of k."""
        high, wide, deep = config.block_tile
        extents = {axis.name: axis.extent for axis in self.anchor.axes}
        others = product(extents[name] for name in self.batch)
        blocks = others * ceildiv(extents[self.n], wide) * ceildiv(extents[self.m or ""], high)
        return (Work(STEPS, blocks * ceildiv(self.anchor.reduce_axes[0].extent, deep)),)

    def column_operands(self, spec: DeviceSpec) -> Iterable[tuple[Expr, str, int]]:
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
        fragment = accumulator_fragment((high, wide), config.warp_tile, (config.instr_tile[0], config.instr_tile[1]))
        home = Home(BLOCK_POINT, "", (axes.index(self.m or ""), axes.index(self.n)), (high, wide))
        result = with_locals(schedule, order_of(schedule, build.deps.full), rounded, build.deps, {}, (home,))
        held = tuple(replace(x, storage=replace(x.storage, shape=fragment.storage), layout=fragment) for x in result.locals)
        guards = guards_of(scop, rounded, [s for s in scop.statements.values() if s.role == "store"])
        result = replace(result, locals=held, guards=guards)
        for value, axis, size in ((self.m_factor, self.m or "", high), (self.n_factor, self.n, wide)):
            result = _share(result, rounded, scop, self, value, axis, size, config)
        return Tree.of(result, scop, rounded)


def _in_warps(config: TileConfig) -> TileConfig:
    return replace(config, block_tile=rounded(config.block_tile, config.warp_tile))


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


# -- shared operands -------------------------------------------------------------------------------------------

def _share(promoted: Promoted, rounded: Scop, scop: Scop, found: Contraction, value: Expr, axis: str, size: int,
           config: TileConfig) -> Promoted:
    """`value` read from shared memory: a tile of it copied by all threads in every k step, swizzled where lanes read several of
    its rows at once."""
    while isinstance(value, Cast) and item_bytes(value.value.dtype) <= item_bytes(value.dtype):
        value = value.value  # what has no more bits is copied as it is, and converted where it is read
    update = scop.of(found.anchor)[-1]
    k, deep = found.anchor.reduce_axes[0].name, config.block_tile[2]
    used = variables(value)
    cells = tuple(a.name for a in update.axes if a.name in used)
    inner, outer, shape = (axis, k, (deep, size)) if unit_stride(value, axis) and not unit_stride(value, k) else (
        k, axis, (size, deep))
    dims = (cells.index(outer), cells.index(inner))
    operand = Operand.over_axes(f"{found.anchor.name}_{axis}_tile", value, update, cells, dims)
    along = inner == axis and config.instr_tile[2] == 1  # a step of k reads along one row
    # lanes read rows of neighbours: every one in turn, but for columns that are neighbours of a row of C
    apart = config.instr_tile[1] // ACROSS if axis == found.n and config.instr_tile[2] == 1 else 1
    layout = plain(shape) if along else _shared_layout(shape, value.dtype, apart)
    most = _copied_together(value, inner, scop)
    node = node_below(promoted.schedule, {BLOCK, K_TILE}, update.name)

    def rows(copies: isl.Map) -> Rows:
        return copy_rows(copies, dims, shape, config.warps, most)

    return promote_operand(promoted, node, rounded, update.domain, operand, layout, "shared", zero(value.dtype), rows)


def _copied_together(value: Expr, inner: str, scop: Scop) -> int:
    """How many neighbours a lane copies: those of one access, where that is sure to begin at a multiple of its bytes. Where it
    is not, lanes copy neighbours; but those whose places take divisions have them in common."""
    whole, facts = VECTOR_BYTES // item_bytes(value.dtype), facts_of(scop.program.sizes)
    if not isinstance(value, Load) or stride(value, inner) != 1:
        return max(1, whole)
    return next((size for size in (whole, whole // 2) if size > 1 and begins_whole(
        value.buffer, value.index, inner, size, facts)), 1)


def _shared_layout(shape: tuple[int, int], dtype: str, apart: int) -> Layout:
    try:
        return swizzle(*shape, item_bytes(dtype), apart)
    except InternalError:  # rows too short, or no power of two
        return plain(shape)

"""Schedule trees for GPUs: blocks, warps and lanes; operands in shared memory, accumulators in registers; rounded domains.

The tree is a sequence of nests of `warp` and `thread` loops below the block loops (fork and join): what one nest leaves in
shared memory another reads. All domains are rounded up to whole tiles, so that every trip count is a constant; what is stored
outside stands under a guard. Sections 5.3 and 5.4 of the paper; ppcg (Verdoolaege 2013) for the mapping.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tsc.errors import InternalError
from tsc.poly import PatternMismatch, isl
from tsc.poly.dataflow import check_dataflow
from tsc.poly.deps import Dependences
from tsc.poly.layout import Layout, accumulator_fragment, plain, swizzle
from tsc.poly.legality import BLOCK, check_blocks, check_tree, order_of
from tsc.poly.matrix import function
from tsc.poly.pattern.contraction import Contraction
from tsc.poly.promote import (
    Local,
    Operand,
    Promoted,
    assignments_of,
    check_promoted,
    graft,
    localise,
    promote_operand,
    site,
)
from tsc.poly.rounded import guard_of, round_domains
from tsc.poly.scop import Scop, Statement
from tsc.poly.tree import node_below, own_instances
from tsc.te.expr import Const, Expr
from tsc.te.products import unit_stride, variables

LANES = 32
#: A lane holds pairs of neighbours in 8 x 8 quadrants: 8 rows of 4 lanes (mma m16n8).
QUADRANT, PAIR = 8, 2
VECTOR_BYTES = 16

Rows = list[tuple[str, isl.PwAff]]


@dataclass(frozen=True, slots=True)
class GpuTileConfig:
    """Tile sizes of a contraction: `block_tile` (rows, columns, k), cut into `warp_tile` (rows, columns), a warp each;
    `instr_tile` is one matrix instruction's. `stages` of shared tiles are in flight."""

    block_tile: tuple[int, int, int]
    warp_tile: tuple[int, int]
    instr_tile: tuple[int, int, int] = (16, 8, 16)
    stages: int = 2

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return self.block_tile[0] // self.warp_tile[0] * (self.block_tile[1] // self.warp_tile[1])


@dataclass(frozen=True, slots=True)
class GpuSchedule:
    """A schedule, with the Scop whose domains its tree has (`rounded`) and the one whose instances are executed: of statements
    with a guard these are the program's own."""

    promoted: Promoted
    rounded: Scop
    executed: Scop


def gpu_contraction(scop: Scop, found: Contraction, deps: Dependences, config: GpuTileConfig) -> GpuSchedule:
    """The schedule of a solved contraction on a GPU, checked. Raises PatternMismatch where it does not fit."""
    if found.m is None or len(found.anchor.reduce_axes) != 1:
        raise PatternMismatch(f"gpu contraction: {found.anchor.name} has no second axis, or not one reduce axis")
    high, wide, deep = config.block_tile
    tiled = {name: _Functions.of(scop, found, s) for name, s in scop.statements.items()}
    rounded = round_domains(scop, {
        name: [*((f, 1) for f in own.batch), (own.n, wide), (own.m, high), *((k, deep) for k in own.k)]
        for name, own in tiled.items()})
    schedule = _tree(rounded, found, tiled, config)

    node = node_below(schedule, {BLOCK})
    place = site(node, order_of(schedule, deps.full))
    axes = [a.name for a in found.anchor.axes]
    promoted: list[tuple[isl.Map, Local]] = []
    fragment = accumulator_fragment((high, wide), config.warp_tile)
    for buffer in scop.locals().values():
        if buffer.name != found.anchor.name:
            raise PatternMismatch(f"gpu contraction: {buffer.name} is no accumulator and no output")
        instances, local = localise(place, rounded, deps, buffer, [axes.index(found.m), axes.index(found.n)], (high, wide))
        promoted.append((instances, replace(local, storage=replace(local.storage, shape=fragment.storage), layout=fragment)))
    for instances, _ in promoted:
        node = graft(node, instances, [])
    guards = guards_of(scop, rounded, [s for s in scop.statements.values() if s.role == "store"])
    result = Promoted(node.get_schedule(), tuple(x for _, x in promoted), assignments_of(scop), guards)
    for value, axis, size in ((found.m_factor, found.m, high), (found.n_factor, found.n, wide)):
        result = _share(result, rounded, scop, found, value, axis, size, config)
    return checked(result, rounded, scop, deps)


def guards_of(scop: Scop, rounded: Scop, statements: Iterable[Statement]) -> dict[str, Expr]:
    """The guards of those of the statements that rounding gave instances to."""
    guards = {s.name: guard_of(s.domain, rounded.statements[s.name].domain, [a.name for a in s.axes]) for s in statements}
    return {name: guard for name, guard in guards.items() if guard is not None}


def checked(promoted: Promoted, rounded: Scop, scop: Scop, deps: Dependences) -> GpuSchedule:
    """A schedule of `scop` over rounded domains, after all checks."""
    executed = replace(rounded, statements={
        n: scop.statements[n] if n in promoted.guards else s for n, s in rounded.statements.items()})
    schedule = GpuSchedule(promoted, rounded, executed)
    check_gpu(schedule, scop, deps)
    return schedule


def check_gpu(schedule: GpuSchedule, scop: Scop, deps: Dependences) -> None:
    """Raise InternalError unless the tree is legal and complete, blocks independent, locals local, and what rounding adds is
    guarded or harmless."""
    promoted, rounded = schedule.promoted, schedule.rounded
    order = check_tree(promoted.schedule, rounded, deps, "gpu", check_dataflow(promoted, scop, deps, rounded))
    check_blocks(promoted.schedule, deps, order)
    check_promoted(promoted, rounded, deps, order)


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


def _tree(scop: Scop, found: Contraction, tiled: dict[str, _Functions], config: GpuTileConfig) -> isl.Schedule:
    """block loops over: init | k tiles over their products | epilogues, each in warp and thread loops of its own."""
    high, wide, deep = config.block_tile
    columns = [[own.batch[i] for own in tiled.values()] for i in range(len(found.batch))]
    columns += [[_floor(scop, own.statement, own.n, wide) for own in tiled.values()],
                [_floor(scop, own.statement, own.m, high) for own in tiled.values()]]
    rows: dict[str, Rows] = {}
    for name, own in tiled.items():
        mark = {"init": "init", "update": "", "store": "epilogue"}[own.statement.role]
        rows[name] = [*_team_rows(scop, own, config), *_register_rows(scop, own, config, mark)]
        if own.k:
            split = len(rows[name]) - 3
            rows[name] = [("k_tile", _floor(scop, own.statement, own.k[0], deep)), *rows[name][:split],
                          ("k", _mod(scop, own.statement, own.k[0], deep)), *rows[name][split:]]
    return team_tree(scop, columns, rows)


def team_tree(scop: Scop, columns: list[list[isl.PwAff]], rows: Mapping[str, Rows]) -> isl.Schedule:
    """Block loops over the rows `columns` (one function a statement) around a sequence of all statements, each in its own
    loops `rows`, outermost first."""
    node = isl.Schedule.from_domain(scop.domain).get_root().child(0)
    node = node.insert_partial_schedule(isl.rows(scop.domain, columns))
    node = isl.mark_each(isl.atomic(node), [BLOCK] * len(columns), coincident=True)
    node = node.insert_sequence(isl.filters([own_instances(scop, [name]) for name in rows]))
    top = node.get_tree_depth()
    for i, (name, own) in enumerate(rows.items()):
        band = isl.rows(own_instances(scop, [name]), [[f] for _, f in own])
        branch = isl.mark_each(node.child(i).child(0).insert_partial_schedule(band), [m for m, _ in own])
        node = branch.ancestor(branch.get_tree_depth() - top)
    return node.get_schedule()


def _team_rows(scop: Scop, own: _Functions, config: GpuTileConfig) -> Rows:
    """Warps by rows and columns, then the lanes of one: whoever holds an element of the accumulator computes it."""
    (high, wide, _), (warp_high, warp_wide) = config.block_tile, config.warp_tile
    return [("warp", _between(scop, own.statement, own.m, high, warp_high)),
            ("warp", _between(scop, own.statement, own.n, wide, warp_wide)),
            ("thread", _mod(scop, own.statement, own.m, QUADRANT)),
            ("thread", _between(scop, own.statement, own.n, QUADRANT, PAIR))]


def _register_rows(scop: Scop, own: _Functions, config: GpuTileConfig, mark: str) -> Rows:
    """What one lane holds: quadrants by rows and columns, and the two neighbours in each."""
    warp_high, warp_wide = config.warp_tile
    return [(mark or "i", _between(scop, own.statement, own.m, warp_high, QUADRANT)),
            (mark or "j", _between(scop, own.statement, own.n, warp_wide, QUADRANT)),
            (mark or "j", _mod(scop, own.statement, own.n, PAIR))]


def _mod(scop: Scop, statement: Statement, value: isl.PwAff, size: int) -> isl.PwAff:
    return function(scop, statement.name, f"({isl.function_text(value)}) mod {size}")


def _floor(scop: Scop, statement: Statement, value: isl.PwAff, size: int) -> isl.PwAff:
    text = isl.function_text(value)
    return function(scop, statement.name, f"({text}) - (({text}) mod {size})")


def _between(scop: Scop, statement: Statement, value: isl.PwAff, outer: int, inner: int) -> isl.PwAff:
    """The multiples of `inner` within a tile of `outer`."""
    text = isl.function_text(value)
    return function(scop, statement.name, f"(({text}) mod {outer}) - (({text}) mod {inner})")


# -- shared operands -------------------------------------------------------------------------------------------

def _share(promoted: Promoted, rounded: Scop, scop: Scop, found: Contraction, value: Expr, axis: str, size: int,
           config: GpuTileConfig) -> Promoted:
    """`value` read from shared memory: a tile of it copied by all threads in every k step, swizzled where its rows allow it."""
    update = scop.of(found.anchor)[-1]
    k, deep = found.anchor.reduce_axes[0].name, config.block_tile[2]
    used = variables(value)
    cells = tuple(a.name for a in update.axes if a.name in used)
    inner, outer, shape = (axis, k, (deep, size)) if unit_stride(value, axis) and not unit_stride(value, k) else (
        k, axis, (size, deep))
    dims = (cells.index(outer), cells.index(inner))
    operand = Operand.over_axes(f"{found.anchor.name}_{axis}_tile", value, update, cells, dims)
    layout = _shared_layout(shape, value.dtype)
    node = node_below(promoted.schedule, {BLOCK, "k_tile"}, update.name)

    def rows(copies: isl.Map) -> Rows:
        return _copy_rows(copies, dims, shape, config.warps, value.dtype)

    zero = Const(0.0 if value.dtype.startswith(("float", "bfloat")) else 0, value.dtype)
    return promote_operand(promoted, node, rounded, update.domain, operand, layout, "shared", zero, rows)


def _item_bytes(dtype: str) -> int:
    return int("".join(c for c in dtype if c.isdigit())) // 8


def _shared_layout(shape: tuple[int, int], dtype: str) -> Layout:
    try:
        return swizzle(*shape, _item_bytes(dtype))
    except InternalError:  # rows too short, or no power of two
        return plain(shape)


def _copy_rows(copies: isl.Map, dims: tuple[int, int], shape: tuple[int, int], warps: int, dtype: str) -> Rows:
    """Loops over a copied tile: steps, warps, lanes, and the vector that a lane copies at once, along the tile's rows."""
    row, column = (isl.instance_coordinate(copies, d) for d in dims)
    across, down, vector = copy_shape(shape, warps, max(1, VECTOR_BYTES // _item_bytes(dtype)))
    together = down * warps  # rows that all threads copy at once

    def between(value: isl.PwAff, outer: int, inner: int) -> isl.PwAff:
        return isl.modulo(value, outer).sub(isl.modulo(value, inner))

    return [("copy", between(row, shape[0], together)), ("copy", between(column, shape[1], across * vector)),
            ("warp", between(row, together, down)), ("thread", isl.modulo(row, down)),
            ("thread", between(column, across * vector, vector)), ("copy", isl.modulo(column, vector))]


def copy_shape(shape: tuple[int, int], warps: int, most: int) -> tuple[int, int, int]:
    """Lanes along a row, rows of a warp, and elements of a lane, so that warps of 32 lanes cover a tile in whole steps.

    The longest vector wins, up to `most` elements. Raises PatternMismatch where no shape fits.
    """
    rows, columns = shape
    vector = most
    while vector:
        across = LANES
        while across:
            down = LANES // across
            if columns % (across * vector) == 0 and rows % (down * warps) == 0:
                return across, down, vector
            across //= 2
        vector //= 2
    raise PatternMismatch(f"a tile of {rows} x {columns} cannot be copied by {warps} warps in whole steps")

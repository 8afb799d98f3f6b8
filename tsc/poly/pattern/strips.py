"""Two products one after the other on a GPU, with reductions of rows between them: attention, whatever it masks and adds.

A block has some rows, which it takes through phases (`te/factored/strips.py`). In each it walks the long axis by chunks: a tile
of columns is copied and multiplied, each lane makes of its accumulators what the reductions of its rows want and, in the last
phase, what the second product multiplies, by way of shared memory. Warps have rows of their own and all columns of a chunk.
What is between the products is never in memory, and no array is as long as the axis that is walked.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Self

from tsc.loop_ir.marks import BLOCK, EPILOGUE, INIT, K_TILE, OUTER, REDUCE, THREAD, TILE_COLUMN, TILE_ROW, WARP, K
from tsc.poly import PatternMismatch, isl
from tsc.poly.deps import Dependences
from tsc.poly.legality import order_of
from tsc.poly.matrix import Row, ScheduleMatrix, axis_of, function
from tsc.poly.pattern.base import STEPS, Build, Tree
from tsc.poly.pattern.rows import row_functions, row_relations
from tsc.poly.pattern.shared import Tile, always_read, share, shared_layout
from tsc.poly.pattern.teams import LANES as WARP_LANES
from tsc.poly.pattern.teams import OnTeams, Rows, below, between, guards_of, in_loops, in_sequence
from tsc.poly.pattern.warps import MATRIX_TILE, QUADRANT, composed
from tsc.poly.promotion.layout import Layout, accumulator_fragment, in_rows, row_fragment
from tsc.poly.promotion.promote import Home, Local, Promoted, replaced, with_locals
from tsc.poly.promotion.rounded import round_domains
from tsc.poly.scop import Scop, Statement
from tsc.poly.tile import Knob, Limit, Space, TileConfig, powers
from tsc.poly.tree import BLOCK_POINT, own_instances, up_to
from tsc.runtime.cost import Work
from tsc.sym import SymExpr, ceildiv, product
from tsc.target import DeviceSpec
from tsc.te.compute import Compute, Program
from tsc.te.expr import Expr, Load, Var, item_bytes, loads, variables
from tsc.te.factored.factor import NotFactored
from tsc.te.factored.strips import LANES, PAIR, in_strips
from tsc.te.passes.products import as_stored, is_contraction, product_of

#: Elements of a chunk; without tuning, rows of a block and of a warp, and tiles in flight.
WIDTH, ROWS, WARP_ROWS, STAGES = 64, 64, 16, 2
#: The deepest first product, and the most columns of the second: a block has a tile of all of them.
MOST_DEPTH = 128
#: Terms of the first product are rounded up to the depth of any matrix instruction.
MATRIX_DEPTH = 16
#: Where what is used within a chunk lives.
CHUNK_POINT = frozenset({BLOCK, K_TILE})


def strip_program(program: Program) -> Program:
    """`program` as `match_strips` wants it. Raises PatternMismatch where it is no two products with rows between them."""
    try:
        return in_strips(composed(program), WIDTH)
    except NotFactored as refusal:
        raise PatternMismatch(f"strips: {refusal}") from refusal


@dataclass(frozen=True, slots=True)
class Phase:
    """The Computes of one walk along the axis: the first product, what is made of its results element by element, parts of
    reductions by lane, and the second product; then those behind it, what lanes hand to each other and its folds."""

    scores: Compute
    terms: tuple[Compute, ...]
    parts: tuple[Compute, ...]
    products: tuple[Compute, ...]
    behind: tuple[Compute, ...]


@dataclass(frozen=True, slots=True)
class Strips(OnTeams):
    """Phases over rows that all statements share, whose functions are in `matrix`; blocks are tiles of row number `m`. The
    second product sums over `strip`, its columns are `n`."""

    matrix: ScheduleMatrix
    phases: tuple[Phase, ...]
    values: Compute
    strip: str
    n: str
    m: int

    def solved(self, scop: Scop, deps: Dependences) -> tuple[Self, tuple[str, ...]]:
        """There is no `?`: the rows in words."""
        return self, (f"rows\n{self.matrix}",)

    def default_config(self, spec: DeviceSpec) -> TileConfig:
        """As many rows as let two blocks stand on a multiprocessor, twice as many where that is not to be had."""
        instr = MATRIX_TILE if spec.intrinsics else (*MATRIX_TILE[:2], 1)
        made = TileConfig(instr, row_tile=(ROWS,), warp_tile=(WARP_ROWS, WIDTH), stages=STAGES)
        tall = replace(made, row_tile=(2 * ROWS,))
        if spec.gpu is None or 2 * (self.shared_bytes(made) + spec.gpu.shared_reserved) <= spec.gpu.shared_per_sm:
            return made
        return tall if self.shared_bytes(tall) <= spec.gpu.shared_per_block else made

    def space(self, spec: DeviceSpec) -> Space:
        """More or fewer rows of a block, and of a warp, and tiles ahead."""
        limits = [] if spec.gpu is None else [
            Limit("bytes of shared memory", spec.gpu.shared_per_block, self.shared_bytes),
            Limit("threads", spec.gpu.threads_per_block, lambda config: WARP_LANES * config.row_tile[0] // config.warp_tile[0])]
        return Space(self.default_config(spec), (Knob("row_tile", (0,), powers(256, 32)), Knob(
            "warp_tile", (0,), powers(32, WARP_ROWS)), Knob("stages", (), (1, 2, 3))), tuple(limits))

    def shared_bytes(self, config: TileConfig) -> int:
        """What a block keeps in shared memory: tiles of all operands, strips, and what lanes hand to each other."""
        high, scores = config.row_tile[0], self.phases[0].scores
        deep = _whole(scores.reduce_axes[0].extent, MATRIX_DEPTH)
        wide = _whole(next(a.extent for a in self.values.axes if a.name == self.n), MATRIX_TILE[1])
        (rows, columns), (strip, others) = (map(_item, _factors(c, n)) for c, n in (
            (scores, {scores.axes[-1].name}), (self.values, {self.n})))
        ahead = config.stages * WIDTH * (len(self.phases) * deep * columns + wide * others)
        behind = sum(item_bytes(c.target.dtype) * (1 if c.monoid else LANES) for p in self.phases for c in p.behind)
        return high * (deep * rows + WIDTH * strip + behind) + ahead

    def work(self, config: TileConfig, scop: Scop) -> tuple[Work, ...]:
        """Chunks of blocks of rows, in all phases."""
        *rows, chunks, _ = (a.extent for a in self.phases[0].scores.axes)
        blocks = product(e for k, e in enumerate(rows) if k != self.m) * ceildiv(rows[self.m], config.row_tile[0])
        return (Work(STEPS, blocks * chunks * len(self.phases)),)

    def tree(self, config: TileConfig, build: Build) -> Tree:
        """Blocks of rows over phases, chunks of each over the products of its tiles and what is made of them."""
        scop, made = build.scop, _Tree(build.scop, self, config)
        schedule = made.schedule()
        order = order_of(schedule, build.deps.full)
        result = with_locals(schedule, order, made.rounded, build.deps, made.homes(), (Home(BLOCK_POINT),))
        layouts = made.layouts()
        held = tuple(replace(x, scope="shared") if x.buffer.name not in layouts else _laid_out(x, layouts[x.buffer.name])
                     for x in result.locals)
        return Tree.of(made.shared(replace(result, locals=held, guards=made.guards())), scop, made.rounded)


def match_strips(scop: Scop) -> Strips:
    """A `strip_program`. Raises PatternMismatch where its tiles do not fit a block, or where its rows do not agree."""
    computes = scop.program.computes
    values = next((c for c in computes if is_contraction(c) and len(c.reduce_axes) == 2), None)
    strip = None if values is None else next((x for x in loads(values.body) if x.buffer.name in scop.locals()), None)
    if values is None or strip is None:
        raise PatternMismatch("strips: there is no product of strips")
    rows = [i.name for i in strip.index[:-2] if isinstance(i, Var)]
    columns = [a for a in values.axes if a.name not in rows]
    phases = tuple(_phases(scop, values))
    depth = phases[0].scores.reduce_axes[0]
    for axis in (*columns, depth):
        if len(columns) != 1 or (axis.extent.as_int() or MOST_DEPTH + 1) > MOST_DEPTH:
            raise PatternMismatch(f"strips: {values.name} has {len(columns)} axes of columns, one of them or of its terms an "
                                  f"extent of {axis.extent}; a block has one tile, of at most {MOST_DEPTH}")
    places = sorted(k for k, a in enumerate(values.axes) if a.name in rows)
    names = tuple(values.axes[k].name for k in places)
    cells = row_relations(scop, values, places)
    missing = [c.name for c in computes if c.name not in cells]
    if missing:
        raise PatternMismatch(f"strips: the row of {values.name} that {missing[0]} belongs to is not affine or not unique")
    entries: dict[str, tuple[Row, ...]] = {
        s.name: tuple(row_functions(scop, s, cells[s.compute.name])) for s in scop.statements.values()}
    return Strips(ScheduleMatrix(names, entries), phases, values, strip.buffer.name, columns[0].name,
                  names.index(_tiled(phases[0].scores, values, rows)))


def _phases(scop: Scop, values: Compute) -> list[Phase]:
    """The Computes by the walks that they are of, each beginning with a product of its own."""
    computes = [c for c in scop.program.computes if c.target not in scop.program.outputs]
    starts = [k for k, c in enumerate(computes) if is_contraction(c) and c is not values]
    found = []
    for start, end in zip(starts, (*starts[1:], len(computes))):
        scores, *others = computes[start:end]
        terms = [c for c in others if c.monoid is None and c.axes[-1].extent == scores.axes[-1].extent]
        parts = [c for c in others if len(c.reduce_axes) == 3]
        products = [c for c in others if c is values]
        behind = [c for c in others if c not in (*terms, *parts, *products)]
        found.append(Phase(scores, tuple(terms), tuple(parts), tuple(products), tuple(behind)))
    return found


def _tiled(scores: Compute, values: Compute, rows: Sequence[str]) -> str:
    """The row that blocks are tiles of: one that neither product's other factor varies with. Raises PatternMismatch."""
    columns = {a.name for a in values.axes} - set(rows)
    first, second = _other_factor(scores, {scores.axes[-1].name}), _other_factor(values, columns)
    alone = [(a.extent.as_int(), k) for k, a in enumerate(scores.axes[:-2])
             if a.name not in variables(first) and rows[k] not in variables(second)]
    if not alone:
        raise PatternMismatch(f"strips: no rows of {values.name} share what they are multiplied with")
    return rows[max(alone, key=lambda x: (x[0] is None, x[0] or 0, x[1]))[1]]


def _other_factor(compute: Compute, columns: Collection[str]) -> Expr:
    """The factor of a product that varies with its columns."""
    return next(f for f in product_of(compute.body) or () if variables(f) & set(columns))


def _laid_out(local: Local, layout: Layout) -> Local:
    scope = "register" if layout.owners else "shared"
    return replace(local, storage=replace(local.storage, shape=layout.storage), layout=layout, scope=scope)


# -- the tree --------------------------------------------------------------------------------------------------

class _Tree:
    """A schedule with some sizes, and what is needed for it."""

    def __init__(self, scop: Scop, found: Strips, config: TileConfig) -> None:
        self.scop, self.found, self.config = scop, found, config
        self.high, self.warp_high = config.row_tile[0], config.warp_tile[0]
        self.deep = _whole(found.phases[0].scores.reduce_axes[0].extent, MATRIX_DEPTH)
        self.wide = _whole(next(a.extent for a in found.values.axes if a.name == found.n), config.instr_tile[1])
        self.output_cells = row_relations(scop, found.values)
        self.rounded = round_domains(scop, {s.name: self.tiling(s) for s in scop.statements.values()})

    # -- what a statement is -----------------------------------------------------------------------------------

    def rows(self, statement: Statement) -> list[isl.PwAff]:
        """Its rows, that which blocks are tiles of last."""
        rows = [self.found.matrix.solved(statement.name, i) for i in range(len(self.found.matrix.names))]
        return [*(f for k, f in enumerate(rows) if k != self.found.m), rows[self.found.m]]

    def axis(self, statement: Statement, name: str) -> isl.PwAff:
        return function(self.scop, statement.name, name)

    def column(self, statement: Statement) -> isl.PwAff:
        """Its column in a tile; that of an output is the one of the second product that it is made of."""
        compute = statement.compute
        if compute is self.found.values:
            return self.axis(statement, self.found.n)
        if compute.target in self.scop.program.outputs:
            place = [a.name for a in self.found.values.axes].index(self.found.n)
            return row_functions(self.scop, statement, self.output_cells[compute.name])[place]
        return self.axis(statement, compute.axes[-1].name)

    def tiling(self, statement: Statement) -> list[tuple[isl.PwAff, int]]:
        """The functions of an instance, with the sizes that its domain is rounded up to."""
        compute, rows = statement.compute, self.rows(statement)
        sizes = [(f, 1) for f in rows[:-1]] + [(rows[-1], self.high)]
        is_wide = compute is self.found.values or compute.target in self.scop.program.outputs
        sizes += [(self.column(statement), self.config.instr_tile[1])] if is_wide else [
            (self.axis(statement, a.name), 1) for a in compute.axes[len(rows):]]
        reduced = compute.reduce_axes if statement.role == "update" else ()
        deep = MATRIX_DEPTH if any(compute is p.scores for p in self.found.phases) else 1
        return sizes + [(self.axis(statement, a.name), deep) for a in reduced]

    # -- the tree ----------------------------------------------------------------------------------------------

    def schedule(self) -> isl.Schedule:
        """Block loops over the statements in order; those of a walk in a loop over chunks."""
        of, groups = self.scop.of, list[tuple[Statement, ...]]()
        for phase in self.found.phases:
            groups += [(of(c)[0],) for c in (*phase.parts, *phase.products)]
            walked = [s for c in (phase.scores, *phase.terms) for s in of(c)]
            groups.append((*walked, *(of(c)[-1] for c in (*phase.parts, *phase.products))))
            groups += [(s,) for c in phase.behind for s in of(c)]
        groups += [(s,) for s in self.scop.statements.values() if s.compute.target in self.scop.program.outputs]
        rows = [self.rows(s) for group in groups for s in group]
        columns = [[own[k] for own in rows] for k in range(len(rows[0]) - 1)] + [[below(own[-1], self.high) for own in rows]]
        node = isl.Schedule.from_domain(self.rounded.domain).get_root().child(0)
        node = node.insert_partial_schedule(isl.rows(self.rounded.domain, columns))
        node = isl.mark_each(isl.atomic(node), [BLOCK] * len(columns), coincident=True)
        return in_sequence(node, self.rounded, [[s.name for s in g] for g in groups], self.walked).get_schedule()

    def walked(self, node: isl.ScheduleNode, names: Sequence[str]) -> isl.ScheduleNode:
        """The statements `names` at a node: a loop over chunks around several, each in its own loops."""
        statements = [self.scop.statements[n] for n in names]
        if len(statements) == 1:
            return in_loops(node, self.rounded, names[0], self.loops(statements[0]))
        chunks = isl.rows(own_instances(self.rounded, names), [[self.axis(s, self.chunk(s)) for s in statements]])
        inner = isl.mark_each(node.insert_partial_schedule(chunks), [K_TILE])
        return up_to(in_sequence(inner, self.rounded, [[n] for n in names], self.walked), node)

    def chunk(self, statement: Statement) -> str:
        """The axis that counts chunks."""
        compute = statement.compute
        return compute.reduce_axes[0].name if len(compute.reduce_axes) > 1 else compute.axes[-2].name

    def loops(self, statement: Statement) -> Rows:
        """The warps and lanes of a statement, and what one lane does: whoever holds an element of a product has what is made of
        it, a lane of parts those elements that it holds."""
        compute, m, wide = statement.compute, self.rows(statement)[-1], self.config.instr_tile[1]
        warp, column, high = (WARP, between(m, self.high, self.warp_high)), self.column(statement), self.warp_high
        reduced = [a.name for a in compute.reduce_axes] if statement.role == "update" else []
        folds = [c for p in self.found.phases for c in p.behind if c.monoid is not None]
        if compute in folds:
            return [(WARP, between(m, self.high, WARP_LANES)), (THREAD, isl.modulo(m, WARP_LANES)),
                    *((REDUCE, self.axis(statement, a)) for a in reduced)]
        lanes = [c for p in self.found.phases for c in (*p.parts, *p.behind)]
        if compute in lanes:
            return [warp, (THREAD, isl.modulo(m, QUADRANT)), (THREAD, column),
                    (INIT if statement.role == "init" else OUTER, between(m, high, QUADRANT)),
                    *((REDUCE, self.axis(statement, a)) for a in reduced[1:])]
        mark = {"init": INIT, "update": "", "store": EPILOGUE}[statement.role]
        across = self.wide if compute is self.found.values or compute.target in self.scop.program.outputs else WIDTH
        return [warp, (THREAD, isl.modulo(m, QUADRANT)), (THREAD, between(column, wide, PAIR)),
                *((K, self.axis(statement, a)) for a in reduced[-1:]), (mark or TILE_ROW, between(m, high, QUADRANT)),
                (mark or TILE_COLUMN, between(column, across, wide)), (mark or TILE_COLUMN, isl.modulo(column, PAIR))]

    # -- what is kept ------------------------------------------------------------------------------------------

    def homes(self) -> dict[str, tuple[Home, ...]]:
        """Where each local lives: in a chunk, or as long as its block."""
        found: dict[str, tuple[Home, ...]] = {}
        for name in self.scop.locals():
            statement = next(s for s in self.scop.statements.values() if s.compute.name == name)
            compute, axes = statement.compute, [a.name for a in statement.compute.axes]
            m = axes.index(str(axis_of(self.scop, statement.name, self.rows(statement)[-1])))
            walked = any(compute in (p.scores, *p.terms) for p in self.found.phases)
            if compute is self.found.values:
                home = Home(BLOCK_POINT, "", (m, axes.index(self.found.n)), (self.high, self.wide))
            elif walked:
                home = Home(CHUNK_POINT, statement.name, (m, len(axes) - 1), (self.high, WIDTH))
            elif any(compute in p.behind and compute.monoid is not None for p in self.found.phases):
                home = Home(BLOCK_POINT, "", (m,), (self.high,))
            else:
                home = Home(BLOCK_POINT, "", (m, len(axes) - 1), (self.high, LANES))
            found[name] = (home,)
        return found

    def layouts(self) -> dict[str, Layout]:
        """Registers of who computes what stands there; of the strips, a warp's rows together, in different banks."""
        tile, high = (self.config.instr_tile[0], self.config.instr_tile[1]), self.warp_high
        elements = accumulator_fragment((self.high, WIDTH), (high, WIDTH), tile)
        found = {c.name: elements for p in self.found.phases for c in (p.scores, *p.terms)}
        found |= {c.name: row_fragment(self.high, high, LANES) for p in self.found.phases for c in p.parts}
        found[self.found.values.name] = accumulator_fragment((self.high, self.wide), (high, self.wide), tile)
        dtype = self.scop.locals()[self.found.strip].dtype
        found[self.found.strip] = in_rows(shared_layout((self.high, WIDTH), dtype, 1), high)
        return found

    def guards(self) -> dict[str, Expr]:
        """Of what is stored for good, and of what reads inputs beside the products: there are no such rows in these."""
        products = [self.found.values, *(p.scores for p in self.found.phases)]
        inputs = {b.name for b in self.scop.program.inputs}
        return guards_of(self.scop, self.rounded, [
            s for s in self.scop.statements.values() if s.compute.target in self.scop.program.outputs or (
                s.compute not in products and any(x.buffer.name in inputs for x in loads(s.body)))])

    # -- operands ----------------------------------------------------------------------------------------------

    def shared(self, result: Promoted) -> Promoted:
        """The rows' operand copied once a block, the others of both products chunk by chunk."""
        warps, instr = self.high // self.warp_high, self.config.instr_tile
        kept: Load | None = None
        for phase in self.found.phases:
            update, depth = self.scop.of(phase.scores)[-1], phase.scores.reduce_axes[0].name
            column = phase.scores.axes[-1].name
            own, other = _factors(phase.scores, {column})
            m = str(axis_of(self.scop, update.name, self.rows(update)[-1]))
            used = variables(own)
            cells = tuple(Var(a.name) for a in update.axes if a.name in used)
            if kept is None:
                tile = Tile(own, always_read(own), m, self.high, depth, self.deep, instr)
                result = share(result, self.rounded, self.scop, update, tile, False, warps)
                kept = Load(result.locals[-1].buffer, cells)
            else:
                old = result.assignments[update.name]
                new = replace(old, value=replaced(old.value, own, replace(kept, index=cells)))
                result = replace(result, assignments={**result.assignments, update.name: new})
            tile = Tile(other, always_read(other), column, WIDTH, depth, self.deep, instr)
            result = share(result, self.rounded, self.scop, update, tile, True, warps, CHUNK_POINT)
        update, element = self.scop.of(self.found.values)[-1], self.found.values.reduce_axes[-1].name
        _, other = _factors(self.found.values, {self.found.n})
        tile = Tile(other, always_read(other), self.found.n, self.wide, element, WIDTH, instr)
        return share(result, self.rounded, self.scop, update, tile, True, warps, CHUNK_POINT)


def _factors(compute: Compute, columns: Collection[str]) -> tuple[Expr, Expr]:
    """The factors of a product as they are stored, that of its columns last."""
    other = _other_factor(compute, columns)
    own = next(f for f in product_of(compute.body) or () if f is not other)
    return as_stored(own), as_stored(other)


def _item(value: Expr) -> int:
    return item_bytes(value.dtype)


def _whole(extent: SymExpr, size: int) -> int:
    """A number rounded up to a multiple of `size`."""
    return -(-(extent.as_int() or 0) // size) * size

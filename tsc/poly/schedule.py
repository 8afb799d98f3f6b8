"""From a te.Program to loop IR: the polyhedral part of the spine in one numbered function."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache

from tsc.errors import InputError, InternalError
from tsc.loop_ir.nodes import Block, Func
from tsc.ops.base import PatternKind
from tsc.poly import PatternMismatch, isl
from tsc.poly.chain import Chained
from tsc.poly.chain_tree import initial_chained, separate_chained, tile_chained
from tsc.poly.dataflow import check_dataflow, check_vectors
from tsc.poly.deps import Dependences, dependences
from tsc.poly.guards import check_loops
from tsc.poly.halo import in_vectors, promote_halo
from tsc.poly.layout import certify_stored
from tsc.poly.legality import Order, Seen, check_blocks, check_tree, coincident
from tsc.poly.loop_order import Edges, edges_of
from tsc.poly.match import Pattern, match
from tsc.poly.matrix import solve
from tsc.poly.normalise import inlined, separate_outputs, settled, without_empty
from tsc.poly.panel import promote_panel
from tsc.poly.pattern import Contraction, Stage, Staged
from tsc.poly.promote import Local, Promoted, Site, check_promoted, graft, localise, site
from tsc.poly.scop import Scop, build_scop
from tsc.poly.stencil import Stencil
from tsc.poly.steps import Steps
from tsc.poly.tile import TileConfig, default_config
from tsc.poly.to_loops import assignments_of, iterators_for, to_loops
from tsc.poly.tree import (
    BLOCK_POINT,
    INSTR_POINT,
    ROW_POINT,
    initial_contraction,
    initial_staged,
    node_below,
    separate_contraction,
    separate_staged,
    tile_contraction,
    tile_staged,
)
from tsc.target import DeviceSpec
from tsc.te.compute import Program
from tsc.te.layout import with_panel
from tsc.trace import Recorder

#: isl operations that one kernel may take, about ten times what a fused matmul takes.
OPERATIONS = 5_000_000


@dataclass(frozen=True, slots=True)
class ScheduledProgram:
    """A kernel as loop IR (before tensorize), its final schedule tree as text, what was decided, and the tile sizes used; its
    Scop (None where it computes nothing), and the dependences that loops made of `func` must keep, those of copies among them.
    `overridden` tells that the user wrote the tree.
    """

    func: Func
    tree: str
    log: tuple[str, ...]
    config: TileConfig
    scop: Scop | None = None
    edges: Edges = field(default_factory=dict)
    overridden: bool = False


def schedule_program(program: Program, kind_hint: PatternKind | None, spec: DeviceSpec, config: TileConfig | None,
                     recorder: Recorder | None, name: str, constants: Collection[str] = (),
                     steps: Steps | None = None) -> ScheduledProgram:
    """Schedule one kernel. Raises PatternMismatch when no pattern fits, InternalError when a check fails.

    Every tree is checked against the unmodified dependences after every step. `kind_hint` is for the log only. `constants` are
    the inputs that can be laid out at compile time: a contraction's column operand among them is read in panels. `steps` is
    told what was done, for whoever wants to see it.
    """
    with isl.budget(OPERATIONS):
        # 1. what is empty at all sizes goes away; a reduction accumulates into a local, whatever becomes of its result
        program = settled(separate_outputs(without_empty(program)))
        if not program.computes:
            return _nothing(program, name)
        # 2. statements, domains, access relations, and the pattern that they fit
        log: list[str] = []
        program, scop, found = _matched(program, log)
        # 3. tile sizes; a constant column operand is laid out for them
        chosen = config or default_config(found, spec)
        if kind_hint is not None:
            log.append(f"the anchor is {kind_hint.value}, the pattern {type(found).__name__.lower()}")
        packed = program
        for stage, width in _column_operands(found, chosen):
            packed = with_panel(packed, stage.n_factor, stage.n, width, constants)
        if packed != program:  # a layout changes no instance, access or dependence: only the Buffer that loads name
            scop = build_scop(packed)
            found, _ = match(scop)
            for buffer in packed.inputs:
                certify_stored(buffer)
        # 4. dependences, those of declared monoids on themselves dropped
        deps = dependences(scop)
        log += [*scop.notes, *deps.log]
        if steps is not None:
            steps.scop(scop, deps)
        # 5. the pattern's ScheduleMatrix, its `?` solved from the dependences
        solved = solve_pattern(found, scop, deps, log)
        # 6. the tree: a band of rows, tiled, separated, with local buffers; checked after every step
        seen = None if steps is None else steps.tree
        promoted = schedule_tree(scop, solved, deps, chosen, seen)
        # 7. the user's own tree instead, if there is one
        override = None if recorder is None else recorder.override("schedule", name)
        if override is not None:
            promoted = replace(promoted, schedule=_parsed(override, name))
            log.append("the schedule tree was overridden")
        with blame(override is not None, name):
            # 8. the final tree, whoever wrote it: legal, complete, blocks independent, locals within their tiles
            edges = edges_of(check_final(promoted, scop, deps, seen))
            if isinstance(solved, Stencil):
                check_vectors(promoted, scop, scop.of(solved.anchor)[-1], _together(scop, solved, chosen))
            # 9. loops, read back and compared with the Scop
            func = to_loops(promoted, scop, name)
            check_loops(func, promoted.schedule, scop, iterators_for(scop), edges)
        text = isl.tree_text(promoted.schedule)
        if steps is not None:
            steps.promoted(promoted, scop)
    if recorder is not None:
        recorder.record("schedule", name, text)
    return ScheduledProgram(func, text, tuple(log), chosen, scop, edges, override is not None)


@contextmanager
def blame(overridden: bool, name: str) -> Iterator[None]:
    """What a check finds here is the user's doing where the schedule is `overridden`: an InputError, no InternalError."""
    try:
        yield
    except (InternalError, isl.IslError) as error:
        if overridden:
            raise InputError(f"the schedule given for kernel '{name}' cannot be used: {error}") from error
        raise


def _nothing(program: Program, name: str) -> ScheduledProgram:
    """The kernel of a Program all of whose outputs are empty at all sizes."""
    outputs = tuple(b.name for b in program.outputs)
    func = Func(name, program.inputs + program.outputs, outputs, program.sizes, Block(()))
    return ScheduledProgram(func, "", ("no output has an element at any size",), TileConfig((1, 1), (1, 1)))


def _matched(program: Program, log: list[str]) -> tuple[Program, Scop, Pattern]:
    """A Program with its Scop and pattern. A local that many rows read is computed where it is read instead."""
    while True:
        scop = build_scop(program)
        try:
            found, refused = match(scop)
        except PatternMismatch as refusal:
            if not refusal.compute:
                raise
            log.append(f"{refusal.compute} is computed by its readers: {refusal}")
            program = inlined(program, refusal.compute)
        else:
            log += refused
            return program, scop, found


def _column_operands(found: Pattern, config: TileConfig) -> list[tuple[Contraction, int]]:
    """The contractions of a kernel with the widths of their register tiles."""
    match found:
        case Stencil():
            return []
        case Contraction():
            return [(found, config.instr_tile[1])]
        case Chained():
            return [(stage, width) for stage, (_, width) in zip(found.contractions, config.stage_tiles)]
    return []


def _together(scop: Scop, found: Stencil, config: TileConfig) -> isl.Map:
    return in_vectors(scop, found, config.instr_tile[1], config.lanes or config.instr_tile[1])


def schedule_tree(scop: Scop, found: Pattern, deps: Dependences, config: TileConfig,
                  seen: Seen | None = None) -> Promoted:
    """The schedule of a solved pattern. Raises PatternMismatch when a local is not local to its tile."""
    match found:
        case Stencil():
            return promote_halo(contraction_tree(scop, found, deps, config, seen), scop, found, _together(scop, found, config))
        case Contraction():
            return promote_panel(contraction_tree(scop, found, deps, config, seen), scop, found, config.instr_tile[1])
        case Chained():
            return chained_tree(scop, found, deps, config, seen)
    return staged_tree(scop, found, deps, config, seen)


def check_final(promoted: Promoted, scop: Scop, deps: Dependences, seen: Seen | None = None) -> isl.UnionMap:
    """Raise InternalError unless a schedule is legal and complete, its blocks independent and its locals local. Returns what
    loops made of it must keep: the relaxed dependences, and copies before what reads them."""
    copies = check_dataflow(promoted, scop, deps)
    order = check_tree(promoted.schedule, scop, deps, "final", copies, seen=seen)
    check_blocks(promoted.schedule, deps, order)
    check_promoted(promoted, scop, deps, order)
    return deps.relaxed.union(copies)


def solve_pattern(found: Pattern, scop: Scop, deps: Dependences, log: list[str]) -> Pattern:
    """`found` with every `?` of its matrices replaced; `log` gets the matrices. Raises PatternMismatch."""
    if isinstance(found, Contraction):
        matrix = solve(found.matrix, scop, deps.relaxed)
        log += [f"matrix\n{found.matrix}", f"matrix, solved\n{matrix}"]
        return replace(found, matrix=matrix)
    log.append(f"rows\n{found.matrix}")
    stages: list[Stage | Contraction] = []
    for stage in found.stages:
        own = isl.restrict(scop.domain, stage.matrix.entries)
        matrix = solve(stage.matrix, scop, deps.relaxed.intersect_domain(own).intersect_range(own))
        if stage.matrix.names:
            log.append(f"stage\n{stage.matrix}" + (f"solved\n{matrix}" if str(matrix) != str(stage.matrix) else ""))
        stages.append(replace(stage, matrix=matrix))
    return replace(found, stages=tuple(stages))  # type: ignore[arg-type]  # a Staged has Stages alone


def contraction_tree(scop: Scop, found: Contraction, deps: Dependences, config: TileConfig,
                     seen: Seen | None = None) -> Promoted:
    """The schedule of a solved contraction, operands read where they stand. Raises PatternMismatch when a local is not local
    to its tile."""
    build = _Build("contraction", scop, deps, seen)
    node = build.initial(initial_contraction(scop, found, deps.relaxed), found.matrix.names[:found.parallel])
    node = build.tiled(tile_contraction(node, found, config))
    schedule, order = build.separated(separate_contraction(node, scop, found))
    node = node_below(schedule, INSTR_POINT, scop.of(found.anchor)[0].name)
    place = site(node, order)
    promoted = []
    for buffer in scop.locals().values():
        if buffer.name == found.anchor.name:
            promoted.append(accumulators(place, scop, deps, found, config.instr_tile))
        else:
            promoted.append(localise(place, scop, deps, buffer))
    for instances, _ in promoted:
        node = graft(node, instances, [])
    return Promoted(node.get_schedule(), tuple(x for _, x in promoted), assignments_of(scop))


def accumulators(place: Site, scop: Scop, deps: Dependences, found: Contraction,
                 tile: tuple[int, int]) -> tuple[isl.Map, Local]:
    """The register tile of a contraction, to be grafted at `place`: what one run there accumulates, rounded up to `tile`."""
    axes = [a.name for a in found.anchor.axes]
    order = [axes.index(found.m) if found.m else -1, axes.index(found.n)]
    return localise(place, scop, deps, found.anchor.target, order, tile)


def chained_tree(scop: Scop, found: Chained, deps: Dependences, config: TileConfig,
                 seen: Seen | None = None) -> Promoted:
    """The schedule of solved chained stages. Raises PatternMismatch when a local is not local to its tile."""
    build = _Build("chain", scop, deps, seen)
    node = build.initial(initial_chained(scop, found, deps.relaxed), found.matrix.names)
    node = build.tiled(tile_chained(node, config))
    schedule, order = build.separated(separate_chained(node, scop, found, config))
    # strips live as long as the row tile, accumulators as long as their register tile
    tiles = {stage.anchor.name: (stage, tile) for stage, tile in zip(found.contractions, config.stage_tiles)}
    strips = site(node_below(schedule, BLOCK_POINT), order)
    lives: list[tuple[isl.Map, Local, str]] = []
    for name, buffer in scop.locals().items():
        if name in tiles:
            statement = scop.of(tiles[name][0].anchor)[0].name
            place = site(node_below(schedule, INSTR_POINT, statement), order)
            lives.append((*accumulators(place, scop, deps, *tiles[name]), statement))
        else:
            lives.append((*localise(strips, scop, deps, buffer), ""))
    for instances, _, statement in lives:
        node = node_below(schedule, INSTR_POINT if statement else BLOCK_POINT, statement)
        schedule = graft(node, instances, []).get_schedule()
    promoted = Promoted(schedule, tuple(x for _, x, _ in lives), assignments_of(scop))
    for stage, tile in tiles.values():
        promoted = promote_panel(promoted, scop, stage, tile[1])
    return promoted


def staged_tree(scop: Scop, found: Staged, deps: Dependences, config: TileConfig, seen: Seen | None = None) -> Promoted:
    """The schedule of solved stages. Raises PatternMismatch when a local is not local to its tile."""
    build = _Build("stages", scop, deps, seen)
    node = build.initial(initial_staged(scop, found, deps.relaxed), found.matrix.names)
    node = build.tiled(tile_staged(node, found, config))
    schedule, order = build.separated(separate_staged(node, scop, found, config))
    place = cache(lambda point: site(node_below(schedule, point), order))
    found_at: dict[frozenset[str], list[tuple[isl.Map, Local]]] = {ROW_POINT: [], BLOCK_POINT: []}
    for buffer in scop.locals().values():
        refusals = []
        for point, promoted in found_at.items():
            try:
                promoted.append(localise(place(point), scop, deps, buffer))
                break
            except PatternMismatch as refusal:
                refusals.append(str(refusal))
        else:
            raise PatternMismatch("; ".join(refusals))
    tree = schedule
    for point, promoted in found_at.items():
        node = node_below(tree, point)
        for instances, _ in promoted:
            node = graft(node, instances, [])
        tree = node.get_schedule()
    return Promoted(tree, tuple(x for promoted in found_at.values() for _, x in promoted), assignments_of(scop))


@dataclass(frozen=True, slots=True)
class _Build:
    """The steps that every tree is made in, each checked when it is done."""

    kind: str
    scop: Scop
    deps: Dependences
    seen: Seen | None

    def initial(self, band: isl.ScheduleNode, parallel: tuple[str, ...]) -> isl.ScheduleNode:
        """The band of all rows. Raises PatternMismatch where a dependence crosses one of its first, taken for parallel."""
        for name, free in zip(parallel, coincident(band, self.deps.full) if parallel else ()):
            if not free:
                raise PatternMismatch(f"values are used across different {name}, so that its blocks would not be independent")
        check_tree(band.get_schedule(), self.scop, self.deps, f"initial {self.kind}", sunk=True, seen=self.seen)
        return band

    def tiled(self, band: isl.ScheduleNode) -> isl.ScheduleNode:
        """The tile band."""
        check_tree(band.get_schedule(), self.scop, self.deps, f"tile {self.kind}", sunk=True, seen=self.seen)
        return band

    def separated(self, node: isl.ScheduleNode) -> tuple[isl.Schedule, Order]:
        """The whole tree, and what it makes of all dependences."""
        schedule = node.get_schedule()
        return schedule, check_tree(schedule, self.scop, self.deps, f"separate {self.kind}", seen=self.seen)


def _parsed(text: str, name: str) -> isl.Schedule:
    try:
        return isl.parse_schedule(text)
    except isl.IslError as error:
        raise InputError(f"the schedule given for kernel '{name}' is no schedule tree: {error}") from error

"""From a te.Program to loop IR: the polyhedral part of the spine in one numbered function."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from tsc.errors import InputError, InternalError
from tsc.loop_ir.nodes import Block, Func
from tsc.poly import PatternMismatch, isl
from tsc.poly.analyse import Analysis, analyse, formed, normalised, packed
from tsc.poly.deps import Dependences
from tsc.poly.legality import Seen, check_blocks, check_tree
from tsc.poly.pattern import OWN, PLAIN, Forms, Wanted
from tsc.poly.pattern.base import Build, Pattern
from tsc.poly.promotion.promote import Promoted, check_promoted
from tsc.poly.proof.dataflow import check_dataflow
from tsc.poly.proof.guards import check_loops
from tsc.poly.proof.loop_order import Edges, edges_of
from tsc.poly.scop import Scop, check_held
from tsc.poly.steps import Steps
from tsc.poly.tile import TileConfig, config_from_json, config_to_json
from tsc.poly.to_loops import iterators_for, to_loops
from tsc.runtime.cost import Work
from tsc.sym.expr import OversizeError
from tsc.target import DeviceSpec
from tsc.te.compute import Program
from tsc.trace import Recorder

#: isl operations that one kernel may take, about ten times what a fused matmul takes; in a form of a device's own, attention in
#: loops of warps and lanes takes 4.5 million.
OPERATIONS, FORMED_OPERATIONS = 5_000_000, 10_000_000


@dataclass(frozen=True, slots=True)
class ScheduledProgram:
    """A kernel as loop IR (before tensorize), its final schedule tree as text, what was decided, and the tile sizes used; its
    Scop (None where it computes nothing), and the dependences that loops made of `func` must keep, those of copies among them.
    `overridden` tells that the user chose the sizes or wrote the tree. `steps` are the loops of the tree themselves: on a GPU
    those of `func` are joined, one nest of warps and threads a block. `work` is what all blocks do together.
    """

    func: Func
    tree: str
    log: tuple[str, ...]
    config: TileConfig
    scop: Scop | None = None
    edges: Edges = field(default_factory=dict)
    overridden: bool = False
    steps: Func | None = None
    work: tuple[Work, ...] = ()


def schedule_program(program: Program, spec: DeviceSpec, config: TileConfig | None, recorder: Recorder | None, name: str,
                     constants: Collection[str] = (), steps: Steps | None = None, wanted: Wanted = Wanted.ANY,
                     forms: Forms = OWN) -> ScheduledProgram:
    """Schedule one kernel, with the pattern's own config where `config` is one of another pattern. Raises PatternMismatch when
    no pattern fits, InternalError when a check fails.

    Every tree is checked against the unmodified dependences after every step. `constants` are the inputs that can be laid out
    at compile time: a contraction's column operand among them is read in panels. `steps` is told what was done, for whoever
    wants to see it. Patterns are those that are `wanted`, in the `forms` in which the device computes.
    """
    with isl.budget(OPERATIONS if forms == OWN else FORMED_OPERATIONS):
        # 1. to 4. what all sizes have in common
        analysed = prepared(program, spec, constants, steps, wanted, forms)
        if analysed is None:
            return _nothing(normalised(program), name)
        # 5. these sizes: the user's own, if there are some
        if steps is not None:
            steps.space = analysed.found.space(spec)
        own = analysed.found.default_config(spec)
        chosen = own if config is None or not config.has_form_of(own) else config
        given = None if recorder is None else recorder.override("config", name)
        if given is not None:
            chosen = _config(given, name, chosen)
        if recorder is not None:
            recorder.record("config", name, config_to_json(chosen))
        # 6. the tree with these sizes, and its loops
        with blame(given is not None, name):
            made = schedule(analysed, chosen, recorder, name, steps)
        return made if given is None else replace(made, overridden=True)


def prepared(program: Program, spec: DeviceSpec, constants: Collection[str] = (), steps: Steps | None = None,
             wanted: Wanted = Wanted.ANY, forms: Forms = OWN) -> Analysis | None:
    """All of `schedule_program` before sizes are chosen; None for a Program that has nothing to compute at any size."""
    # 1. what is empty at all sizes goes away; a reduction accumulates into a local, whatever becomes of its result
    check_held(program)
    program = normalised(program)
    if not program.computes:
        return None
    # 2. all that is known without sizes or devices: statements, dependences, the pattern with its solved rows
    general = analyse(program, PLAIN if wanted is Wanted.PLAIN else OWN)
    # 3. the same in the form in which this device computes it; plain loops are the same everywhere
    analysed = formed(general, OWN if wanted is Wanted.PLAIN else forms)
    if steps is not None and analysed is not general:
        steps.scop(general.scop, general.deps)
    if wanted is Wanted.TILED and not analysed.found.tiles_products:
        raise PatternMismatch("one kernel for all would run a sum of products without register tiles")
    # 4. constant column operands are laid out, for all sizes of tiles alike
    return packed(analysed, spec, constants)


def schedule(analysed: Analysis, config: TileConfig, recorder: Recorder | None, name: str,
             steps: Steps | None = None) -> ScheduledProgram:
    """The schedule of an analysed kernel with some sizes. Raises PatternMismatch when they do not fit it, InternalError when a
    check fails, InputError where the user's own tree does."""
    scop, deps, found, log = analysed.scop, analysed.deps, analysed.found, [*analysed.log]
    if steps is not None:
        steps.scop(scop, deps)
    # 1. the tree: a band of rows, tiled, separated, with local buffers; checked after every step
    seen = None if steps is None else steps.tree
    tree = found.tree(config, Build(scop, deps, seen))
    # 2. the user's own tree instead, if there is one
    override = None if recorder is None else recorder.override("schedule", name)
    if override is not None:
        tree = replace(tree, promoted=replace(tree.promoted, schedule=_parsed(override, name)))
        log.append("the schedule tree was overridden")
    with blame(override is not None, name):
        # 3. the final tree, whoever wrote it: legal, complete, blocks independent, locals within their tiles
        edges = edges_of(check_final(tree.promoted, scop, deps, seen, tree.rounded))
        found.check(tree.promoted, config, scop)
        # 4. loops, read back and compared with the Scop
        func = found.loops(to_loops(tree.promoted, tree.rounded, name, found.kept))
        check_loops(func, tree.promoted.schedule, tree.executed, iterators_for(scop), edges)
        joined = found.joined(func, tree)
    text = isl.tree_text(tree.promoted.schedule)
    if steps is not None:
        steps.promoted(tree.promoted, scop)
    if recorder is not None:
        recorder.record("schedule", name, text)
    return ScheduledProgram(joined, text, tuple(log), config, tree.executed, edges, override is not None, func,
                            _work(found, config, scop))


def _work(found: Pattern, config: TileConfig, scop: Scop) -> tuple[Work, ...]:
    """What all blocks do together; nothing where that is beyond any expression of sizes."""
    with suppress(OversizeError):
        return found.work(config, scop)
    return ()


@contextmanager
def blame(overridden: bool, name: str) -> Iterator[None]:
    """What does not fit here is the user's doing where the schedule or its config is `overridden`: an InputError then."""
    try:
        yield
    except (InternalError, PatternMismatch, isl.IslError) as error:
        if overridden:
            raise InputError(f"what was given to schedule kernel '{name}' cannot be used: {error}") from error
        raise


def _nothing(program: Program, name: str) -> ScheduledProgram:
    """The kernel of a Program all of whose outputs are empty at all sizes."""
    outputs = tuple(b.name for b in program.outputs)
    func = Func(name, program.inputs + program.outputs, outputs, program.sizes, Block(()))
    return ScheduledProgram(func, "", ("no output has an element at any size",), TileConfig((1, 1), (1, 1)))


def check_final(promoted: Promoted, scop: Scop, deps: Dependences, seen: Seen | None = None,
                rounded: Scop | None = None) -> isl.UnionMap:
    """Raise InternalError unless a schedule is legal and complete, its blocks independent, its locals local, and what it has
    beyond `scop`, by the domains of `rounded`, guarded or harmless. Returns what loops made of it must keep: the relaxed
    dependences, and copies before what reads them."""
    rounded = rounded or scop
    copies = check_dataflow(promoted, scop, deps, rounded)
    order = check_tree(promoted.schedule, rounded, deps, "final", copies, seen=seen)
    check_blocks(promoted.schedule, deps, order)
    check_promoted(promoted, rounded, deps, order)
    return deps.relaxed.union(copies)


def _config(text: str, name: str, like: TileConfig) -> TileConfig:
    try:
        found = config_from_json(text)
        found.check_form(like)
        return found
    except ValueError as error:
        raise InputError(f"the config given for kernel '{name}' is none: {error}") from error


def _parsed(text: str, name: str) -> isl.Schedule:
    try:
        return isl.parse_schedule(text)
    except isl.IslError as error:
        raise InputError(f"the schedule given for kernel '{name}' is no schedule tree: {error}") from error

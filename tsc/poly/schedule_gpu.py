"""From a te.Program to loop IR for a GPU: the counterpart of `schedule_program`, with the same Scop, matrices and checks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tsc.loop_ir.nodes import Func
from tsc.poly import PatternMismatch, isl
from tsc.poly.deps import Dependences, dependences
from tsc.poly.digits import split_digits
from tsc.poly.gpu import GpuTileConfig, gpu_contraction
from tsc.poly.gpu_rows import gpu_rows, row_program
from tsc.poly.guards import check_loops
from tsc.poly.loop_order import Edges, edges_of
from tsc.poly.matrix import solve
from tsc.poly.normalise import inlined, separate_outputs, without_empty
from tsc.poly.pattern.contraction import Contraction, match_contraction
from tsc.poly.schedule import OPERATIONS
from tsc.poly.scop import Scop, build_scop
from tsc.poly.teams import check_teams, constant_trips, join_teams
from tsc.poly.to_loops import KEPT, PARALLEL, iterators_for, to_loops
from tsc.te.compute import Program
from tsc.te.reduce_axes import one_reduce_axis


@dataclass(frozen=True, slots=True)
class GpuLoops:
    """A kernel for a GPU: loop IR without barriers or asynchronous copies, the schedule tree as text, and what was decided.
    `steps` are the loops that the tree gave, of the instances of `executed`, whose dependences are `edges`: what is made of
    `func` is to be compared with them (`refine_gpu`)."""

    func: Func
    tree: str
    log: tuple[str, ...]
    steps: Func
    executed: Scop
    edges: Edges


def schedule_gpu(program: Program, config: GpuTileConfig, name: str) -> tuple[Func, str, tuple[str, ...]]:
    """The Func, the tree and the log of `gpu_loops`."""
    made = gpu_loops(program, config, name)
    return made.func, made.tree, made.log


def gpu_loops(program: Program, config: GpuTileConfig, name: str) -> GpuLoops:
    """The schedule of a Program for a GPU, with tiles of `config` where it is a contraction.

    Raises PatternMismatch when no GPU pattern fits, InternalError when a check fails.
    """
    with isl.budget(OPERATIONS):
        # 1. one reduce axis, so that im2col is one axis of an operand; statements, accesses, dependences; the pattern
        program = separate_outputs(without_empty(program))
        scop = build_scop(one_reduce_axis(_composed(program)))
        log: list[str] = []
        found = _contraction(scop, log)
        # 2. the tree over rounded domains, with shared buffers and registers, checked
        if found is not None:
            deps = dependences(scop)
            schedule = gpu_contraction(scop, _solved(found, scop, deps, log), deps, config)
        else:
            scop = build_scop(row_program(program))
            deps = dependences(scop)
            schedule = gpu_rows(scop, deps, config.warps)
        log += [*scop.notes, *deps.log]
        # 3. loops, read back and compared with the Scop; threads independent
        func = to_loops(schedule.promoted, schedule.rounded, name, KEPT | {"copy"} | PARALLEL)
        func = replace(func, body=split_digits(constant_trips(func.body)))
        check_loops(func, schedule.promoted.schedule, schedule.executed, iterators_for(scop))
        check_teams(func, schedule.promoted, schedule.executed)
        # 4. one nest of warps and threads a block
        return GpuLoops(join_teams(func, schedule.promoted), isl.tree_text(schedule.promoted.schedule), tuple(log), func,
                        schedule.executed, edges_of(deps.relaxed))


def _contraction(scop: Scop, log: list[str]) -> Contraction | None:
    """A product with rows and columns; what has none is left to the row kernels, with the reason in `log`."""
    try:
        found = match_contraction(scop)
    except PatternMismatch as refusal:
        log.append(str(refusal))
        return None
    if found.m is None:
        log.append(f"gpu contraction: {found.anchor.name} has no second axis")
        return None
    return found


def _composed(program: Program) -> Program:
    """`program` with what is not reduced computed where it is read: a producer is composed into the copy of an operand, a link
    of an epilogue into the next."""
    outputs = {b.name for b in program.outputs}
    for compute in program.computes:
        if compute.monoid is None:
            program = inlined(program, compute.name, compute.name in outputs)
    return program


def _solved(found: Contraction, scop: Scop, deps: Dependences, log: list[str]) -> Contraction:
    matrix = solve(found.matrix, scop, deps.relaxed)
    log += [f"matrix\n{found.matrix}", f"matrix, solved\n{matrix}"]
    return replace(found, matrix=matrix)

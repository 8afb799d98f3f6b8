"""From a te.Program to loop IR for a GPU: the counterpart of `schedule_program`, with the same Scop, matrices and checks."""

from __future__ import annotations

from dataclasses import replace

from tsc.loop_ir.nodes import Func
from tsc.poly import PatternMismatch, isl
from tsc.poly.deps import dependences
from tsc.poly.gpu import GpuTileConfig, gpu_contraction
from tsc.poly.guards import check_loops
from tsc.poly.match import match
from tsc.poly.normalise import separate_outputs, without_empty
from tsc.poly.pattern import Contraction
from tsc.poly.schedule import OPERATIONS, solve_pattern
from tsc.poly.scop import build_scop
from tsc.poly.teams import check_teams, constant_trips, join_teams
from tsc.poly.to_loops import KEPT, iterators_for, to_loops
from tsc.te.compute import Program
from tsc.te.flatten import one_reduce_axis


def schedule_gpu(program: Program, config: GpuTileConfig, name: str) -> tuple[Func, str, tuple[str, ...]]:
    """A kernel for a GPU: loop IR without barriers or asynchronous copies, the schedule tree as text, and what was decided.

    Raises PatternMismatch when no GPU pattern fits, InternalError when a check fails.
    """
    with isl.budget(OPERATIONS):
        # 1. one reduce axis, so that im2col is one axis of an operand; statements, accesses, dependences
        scop = build_scop(one_reduce_axis(separate_outputs(without_empty(program))))
        deps = dependences(scop)
        # 2. the pattern, its `?` solved
        log: list[str] = [*scop.notes, *deps.log]
        found = solve_pattern(match(scop)[0], scop, deps, log)
        if not isinstance(found, Contraction):
            raise PatternMismatch(f"gpu: there is no tree for a {type(found).__name__.lower()}")
        # 3. the tree over rounded domains, operands in shared memory, checked
        schedule = gpu_contraction(scop, found, deps, config)
        # 4. loops, read back and compared with the Scop; threads independent
        func = to_loops(schedule.promoted, schedule.rounded, name, KEPT | {"copy"})
        func = replace(func, body=constant_trips(func.body))
        check_loops(func, schedule.promoted.schedule, schedule.executed, iterators_for(scop))
        check_teams(func, schedule.promoted, schedule.executed)
        # 5. one nest of warps and threads a block
        return join_teams(func, schedule.promoted), isl.tree_text(schedule.promoted.schedule), tuple(log)

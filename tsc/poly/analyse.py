"""What is known of a Program before any size is chosen: its statements, their dependences, its pattern with solved rows.

Every schedule of a Program, for any device, starts from one Analysis. Sections 5.2 and 5.3 of the paper, up to the tiling.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from tsc.poly import PatternMismatch
from tsc.poly.deps import Dependences, dependences
from tsc.poly.normalise import inlined, separate_outputs, settled, without_empty
from tsc.poly.pattern import OWN, Forms, find
from tsc.poly.pattern.base import Pattern
from tsc.poly.promotion.layout import certify_stored
from tsc.poly.scop import Scop, with_layouts
from tsc.target import DeviceSpec
from tsc.te.compute import Program
from tsc.te.passes.layout import with_panel


@dataclass(frozen=True, slots=True)
class Analysis:
    """A Scop with its dependences, and its pattern, whose matrices have no `?` left; `log` says how it was found."""

    scop: Scop
    deps: Dependences
    found: Pattern
    log: tuple[str, ...]


def normalised(program: Program) -> Program:
    """`program` as patterns expect it: without what is empty at all sizes, every reduction into a local of its own."""
    return settled(separate_outputs(without_empty(program)))


def analyse(program: Program, forms: Forms = OWN) -> Analysis:
    """The Analysis of a `normalised` Program that computes something, as it is unless other `forms` are given. Raises
    PatternMismatch when no pattern fits."""
    log: list[str] = []
    # 1. statements, domains, access relations, and the pattern that they fit
    scop, found = _matched(program, forms, log)
    # 2. dependences, those of declared monoids on themselves dropped
    deps = dependences(scop)
    # 3. the pattern's ScheduleMatrix, its `?` solved from the dependences
    solved, matrices = found.solved(scop, deps)
    return Analysis(scop, deps, solved, (*log, f"the pattern is {solved.name}", *scop.notes, *deps.log, *matrices))


def formed(analysed: Analysis, forms: Forms) -> Analysis:
    """The Analysis of the same in the `forms` in which a device computes. Raises PatternMismatch when no pattern there fits."""
    if forms == OWN:
        return analysed
    found = analyse(analysed.scop.program, forms)
    return replace(found, log=(*analysed.log, "in the device's own form:", *found.log))


def _matched(program: Program, forms: Forms, log: list[str]) -> tuple[Scop, Pattern]:
    """A Program's Scop and pattern. A local that many rows read is computed where it is read instead."""
    while True:
        try:
            scop, found, refused = find(program, forms)
        except PatternMismatch as refusal:
            if not refusal.compute or any(c.name == refusal.compute and c.carried is not None for c in program.computes):
                raise
            log.append(f"{refusal.compute} is computed by its readers: {refusal}")
            program = inlined(program, refusal.compute)
        else:
            log += refused
            return scop, found


def packed(analysed: Analysis, spec: DeviceSpec, constants: Collection[str]) -> Analysis:
    """The same of a Program whose constant column operands, those in `constants`, are laid out as a device reads them: one
    layout for all configs. Raises InternalError where a layout is none."""
    program = analysed.scop.program
    for operand in analysed.found.column_operands(spec):
        program = with_panel(program, operand, constants)
    if program == analysed.scop.program:
        return analysed
    for buffer in program.inputs:
        certify_stored(buffer)
    return replace(analysed, scop=with_layouts(analysed.scop, program), found=analysed.found.reading(program))

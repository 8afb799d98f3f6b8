"""The patterns in order: the first that fits is taken, and those before it leave their reasons.

A new pattern is one module of this folder and one line here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import TypeAlias

from tsc.poly import PatternMismatch
from tsc.poly.pattern.base import Pattern
from tsc.poly.pattern.chain import match_chained
from tsc.poly.pattern.contraction import match_contraction
from tsc.poly.pattern.flat import match_flat
from tsc.poly.pattern.lanes import match_lanes, row_program
from tsc.poly.pattern.scan import match_scan
from tsc.poly.pattern.stages import match_injective, match_reduction
from tsc.poly.pattern.stencil import match_stencil
from tsc.poly.pattern.strips import match_strips, strip_program
from tsc.poly.pattern.turned import match_turned
from tsc.poly.pattern.warps import composed, match_warps
from tsc.poly.scop import Scop, build_scop
from tsc.te.compute import Program

Match: TypeAlias = Callable[[Scop], Pattern]
#: The order is the policy.
PATTERNS: tuple[Match, ...] = (match_scan, match_stencil, match_contraction, match_chained, match_reduction, match_injective)
#: Forms in which Programs are looked at, and the patterns that are looked for in each.
Forms: TypeAlias = tuple[tuple[Callable[[Program], Program], tuple[Match, ...]], ...]


def as_it_is(program: Program) -> Program:
    return program


#: A Program as it is, whatever the device.
OWN: Forms = ((as_it_is, PATTERNS),)
#: The same by patterns that copy nothing and prove little: what is left where the others take more operations than they may.
PLAIN: Forms = ((as_it_is, (match_scan, match_reduction, match_injective)),)
#: The forms in which blocks of a GPU compute.
IN_WARPS: Forms = ((composed, (match_warps, match_turned, match_flat)), (row_program, (match_lanes,)))
#: The same, and two products with what is between them in one kernel. That makes the first one twice, which takes less than to
#: store and read its results where products are of halves: on an H200 attention of 8x512 in fp32 took 1.6 times as long.
IN_STRIPS: Forms = (IN_WARPS[0], (strip_program, (match_strips,)), *IN_WARPS[1:])


class Wanted(Enum):
    """Which patterns will do for a Program: any; any, but a sum of products is to have register tiles; plain ones."""

    ANY, TILED, PLAIN = "any", "tiled", "plain"


def find(program: Program, forms: Forms = OWN) -> tuple[Scop, Pattern, tuple[str, ...]]:
    """The first form and pattern that fit a Program: its Scop, the pattern, and the reasons of those before it. Raises
    PatternMismatch with all reasons."""
    refusals: list[PatternMismatch] = []
    for form, patterns in forms:
        try:
            scop = build_scop(form(program))
            found, reasons = match(scop, patterns)
            return scop, found, (*map(str, refusals), *reasons)
        except PatternMismatch as refusal:
            refusals.append(refusal)
    raise PatternMismatch("; ".join(map(str, refusals)), next((r.compute for r in refusals if r.compute), ""))


def match(scop: Scop, patterns: Sequence[Match] = PATTERNS) -> tuple[Pattern, tuple[str, ...]]:
    """The first pattern that fits and the reasons of those before it. Raises PatternMismatch with all reasons."""
    reasons: list[str] = []
    blamed = ""
    for pattern in patterns:
        try:
            return pattern(scop), tuple(reasons)
        except PatternMismatch as refusal:
            reasons.append(str(refusal))
            blamed = blamed or refusal.compute
    raise PatternMismatch("; ".join(reasons), blamed)

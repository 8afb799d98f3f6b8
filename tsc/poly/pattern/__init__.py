"""The patterns in order: the first that fits is taken, and those before it leave their reasons.

A new pattern is one module of this folder and one line here.
"""

from __future__ import annotations

from tsc.poly import PatternMismatch
from tsc.poly.pattern.base import Pattern
from tsc.poly.pattern.chain import match_chained
from tsc.poly.pattern.contraction import match_contraction
from tsc.poly.pattern.stages import match_injective, match_reduction
from tsc.poly.pattern.stencil import match_stencil
from tsc.poly.scop import Scop

#: The order is the policy.
PATTERNS = (match_stencil, match_contraction, match_chained, match_reduction, match_injective)


def match(scop: Scop) -> tuple[Pattern, tuple[str, ...]]:
    """The first pattern that fits and the reasons of those before it. Raises PatternMismatch with all reasons."""
    reasons: list[str] = []
    blamed = ""
    for pattern in PATTERNS:
        try:
            return pattern(scop), tuple(reasons)
        except PatternMismatch as refusal:
            reasons.append(str(refusal))
            blamed = blamed or refusal.compute
    raise PatternMismatch("; ".join(reasons), blamed)

"""The patterns in order: the first that fits is taken, and those before it leave their reasons."""

from __future__ import annotations

from typing import TypeAlias

from tsc.poly import PatternMismatch
from tsc.poly.chain import Chained, match_chained
from tsc.poly.pattern import Contraction, Staged, match_contraction, match_injective, match_reduction
from tsc.poly.scop import Scop
from tsc.poly.stencil import match_stencil

Pattern: TypeAlias = Contraction | Chained | Staged
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

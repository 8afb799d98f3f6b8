"""Factoring: how the reductions of a Program are cut before it is scheduled, as data; it is part of what makes a Variant."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from tsc.te.compute import Program
from tsc.te.factored.chunks import cut
from tsc.te.factored.factor import NotFactored, factor


@dataclass(frozen=True, slots=True)
class Factoring:
    """`reductions` of a Program in chunks of `chunk` elements; where they stand `apart`, one launch computes the chunks'
    results and another folds them, so that blocks share rows (split rows, split k)."""

    reductions: tuple[str, ...]
    chunk: int
    apart: bool = False

    def programs(self, program: Program) -> tuple[Program, ...]:
        """The Programs to be run one after the other in place of `program`, over all of its sizes. Raises NotFactored."""
        made = factor(program, self.reductions, self.chunk)
        if not self.apart:
            return (made,)
        known = {c.name for c in program.computes}
        parts = [c.name for c in made.computes if c.monoid is not None and c.name not in known]
        return tuple(replace(part, sizes=program.sizes) for part in cut(made, parts))


def proposed(program: Program, chunk: int, apart: bool) -> Factoring | None:
    """The Factoring of as many reductions as can be cut together, None where there are none."""
    chosen: list[str] = []
    for compute in program.computes:
        if compute.monoid is None or compute.carried is not None:
            continue
        known = compute.reduce_axes[0].extent.as_int()
        if known is not None and known <= chunk:
            continue
        with suppress(NotFactored):
            factor(program, [*chosen, compute.name], chunk)
            chosen.append(compute.name)
    return Factoring(tuple(chosen), chunk, apart) if chosen else None


def to_json(factoring: Factoring | None) -> str:
    """One line that `from_json` reads back."""
    return json.dumps(None if factoring is None else asdict(factoring))


def from_json(text: str) -> Factoring | None:
    """What `to_json` wrote. Raises ValueError on anything else."""
    match json.loads(text):
        case None:
            return None
        case {"reductions": [*names], "chunk": int(chunk), "apart": bool(apart), **rest} if not rest and _names(names):
            return Factoring(tuple(names), chunk, apart)
        case other:
            raise ValueError(f"{other!r} is no factoring: expected reductions, chunk and apart, or null")


def _names(names: Sequence[Any]) -> bool:
    return bool(names) and all(isinstance(name, str) for name in names)

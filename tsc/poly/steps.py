"""What scheduling one kernel did, step by step, as text and figures: what `explain --node` prints.

Nothing here decides anything. `schedule_program` tells a `Steps` when it is given one, and works the same without.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from tsc.poly import isl
from tsc.poly.deps import Dependences
from tsc.poly.promotion.promote import Local, Promoted, greatest
from tsc.poly.scop import Access, Scop
from tsc.poly.tile import Space
from tsc.poly.tree import BLOCK_POINT, node_below
from tsc.sym import SymExpr, product
from tsc.te.expr import Buffer


@dataclass(frozen=True, slots=True)
class Traffic:
    """The box of cells of `buffer` that one block touches, at most: `extents` over the kernel's sizes, None where the footprint
    has no affine box. `exact`: no access to it is opaque, or goes through a view."""

    buffer: Buffer
    how: Literal["reads", "writes"]
    extents: tuple[SymExpr, ...] | None
    exact: bool

    @property
    def bytes(self) -> SymExpr | None:
        """Bytes a block, at most."""
        return None if self.extents is None else product(self.extents) * np.dtype(self.buffer.dtype).itemsize


@dataclass(slots=True)
class Steps:
    """The steps kept so far, (title, text) in order; the configs to choose from; the traffic of a block; and the local buffers
    with their storage."""

    kept: list[tuple[str, str]] = field(default_factory=list)
    space: Space | None = None
    traffic: tuple[Traffic, ...] = ()
    locals: tuple[Local, ...] = ()
    _separated: isl.Schedule | None = None

    def scop(self, scop: Scop, deps: Dependences) -> None:
        """Keep the statements, their accesses and the dependences."""
        self.kept.append(("program", str(scop.program).rstrip()))
        self.kept.append(("statements", "\n".join(f"{s.role:6} {s.domain}" for s in scop.statements.values())))
        accesses = [("reads", a) for a in scop.reads] + [("writes", a) for a in scop.writes]
        self.kept.append(("accesses", "\n".join(
            f"{how:6} {'' if a.exact else '(may) '}{a.relation if a.view is None else a.view}" for how, a in accesses)))
        dropped = deps.full.subtract(deps.relaxed)
        lines = [f"kept    {m}" for m in isl.maps_of(deps.relaxed)] + [f"relaxed {m}" for m in isl.maps_of(dropped)]
        self.kept.append(("dependences", "\n".join([*lines, *deps.log]) or "none"))

    def tree(self, step: str, schedule: isl.Schedule) -> None:
        """Keep the schedule tree after a step; one equal to the tree before is said to be so."""
        text = isl.tree_text(schedule).rstrip()
        same = any(old == text for title, old in self.kept if title.startswith("tree: "))
        self.kept.append((f"tree: {step}", "as before" if same else text))
        if step != "final":
            self._separated = schedule

    def promoted(self, promoted: Promoted, scop: Scop) -> None:
        """Keep where locals live, and what a block reads and writes."""
        self.locals = promoted.locals
        lines = [f"{x.buffer} lives in {x.scope} storage {x.storage}, from {x.statement}" for x in promoted.locals]
        self.kept.append(("locals", "\n".join(lines) or "none"))
        if self._separated is not None:
            self.traffic = block_traffic(scop, self._separated)


def block_traffic(scop: Scop, schedule: isl.Schedule) -> tuple[Traffic, ...]:
    """What a block touches of every input and output, from the access relations: the box of the footprint, at its largest.

    `schedule` is one without extension nodes, whose blocks are the bands marked `block`.
    """
    node = node_below(schedule, BLOCK_POINT)
    prefix, domain = node.get_prefix_schedule_relation(), node.get_domain()
    kept = {b.name for b in scop.program.inputs + scop.program.outputs}
    found: list[Traffic] = []
    accesses: dict[Literal["reads", "writes"], tuple[Access, ...]] = {"reads": scop.reads, "writes": scop.writes}
    for how, group in accesses.items():
        for buffer in dict.fromkeys(a.buffer for a in group if a.buffer.name in kept):
            own = [a for a in group if a.buffer.name == buffer.name]
            relation = isl.union_of_maps(scop.params, (a.relation for a in own)).intersect_domain(domain)
            if not relation.is_empty():
                extents = _box(isl.as_map(relation.apply_domain(prefix)), scop)
                found.append(Traffic(buffer, how, extents, all(a.exact and a.view is None for a in own)))
    return tuple(found)


def _box(footprint: isl.Map, scop: Scop) -> tuple[SymExpr, ...] | None:
    extents = []
    for i in range(footprint.dim(isl.OUT)):
        size = greatest(footprint.dim_max(i).sub(footprint.dim_min(i)), scop)
        if size is None:
            return None
        extents.append(size + 1)
    return tuple(extents)

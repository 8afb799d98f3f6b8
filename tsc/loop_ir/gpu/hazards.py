"""Accesses to memory that threads have in common, and what two of them need between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tsc.errors import InternalError
from tsc.loop_ir.nodes import Team
from tsc.sym import SymExpr
from tsc.sym.expr import coefficient_of

#: Where a statement stands: the position of each child on the way from the kernel's body.
Path = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Access:
    """What a statement reads or writes, by all threads that execute it; `copies` if by an asynchronous copy.

    `place`: for each dimension the index where it is one number, the name of the warp or thread variable where it is just that,
    None where it is anything else. `own` is the index in those variables and those of loops where no two threads can have the
    same. `warps` are the variables that tell warps apart, if there are warps. `step` is where the statement stands that it is
    made in as one step: nothing can come between that statement's parts.
    """

    buffer: str
    write: bool
    copies: bool
    place: tuple[int | str | None, ...]
    own: tuple[SymExpr, ...] | None
    warps: frozenset[str] | None
    path: Path
    step: Path
    loops: tuple[str, ...]

    def __str__(self) -> str:
        around = f" (in loops {', '.join(self.loops)})" if self.loops else ""
        return f"{'a write' if self.write else 'a read'} of {self.buffer}{around}"


class Hazard(InternalError):
    """Two accesses that nothing orders. `team` must meet between them; None where the earlier one is a copy not waited for."""

    def __init__(self, kernel: str, earlier: Access, later: Access, team: Team | None) -> None:
        what = f"no wait between the asynchronous copy that is {earlier}" if team is None else \
            f"no {team} barrier between {earlier}"
        super().__init__(f"kernel {kernel}: {what} and {later}")
        self.earlier, self.later, self.team = earlier, later, team


def apart(a: Access, b: Access) -> bool:
    """Whether the accesses surely touch different elements."""
    return a.buffer != b.buffer or any(isinstance(x, int) and isinstance(y, int) and x != y for x, y in zip(a.place, b.place))


def barrier_between(a: Access, b: Access) -> Team | None:
    """Who must meet between `a` and the later `b`; None where no two threads can be in each other's way.

    One Store does not write an element twice without a read of it in between: two writes of one statement need nothing. An
    asynchronous copy is not ordered even after what its own thread did.
    """
    if not (a.write or b.write) or apart(a, b) or (a.write and b.write and a.path == b.path):
        return None
    if a.own is not None and a.own == b.own and not b.copies:
        return None
    same = {x for x, y in zip(a.place, b.place) if isinstance(x, str) and x == y}
    return "warp" if a.warps is not None and a.warps == b.warps and a.warps <= same else "block"


def injective(index: tuple[SymExpr, ...], ranges: Mapping[str, tuple[int, int]]) -> frozenset[str]:
    """Variables whose values the index tells: those of dimensions in which every coefficient exceeds what the smaller ones add
    up to. `ranges[name]` is the trip count and the step of a variable."""
    told: set[str] = set()
    for place in index:
        names = [n for n in place.dims() if n in ranges]
        factors = {n: coefficient_of(place, n) for n in names}
        known = {n: abs(f.as_int() or 0) * ranges[n][1] for n, f in factors.items() if f is not None}
        reach = 0
        for name in sorted(names, key=lambda n: known.get(n, 0)):
            if known.get(name, 0) <= reach:
                break
            reach += known[name] * (ranges[name][0] - 1)
        else:
            told.update(names)
    return frozenset(told)

"""Accesses to memory that threads have in common, and what two of them need between them."""

from __future__ import annotations

from dataclasses import dataclass

from tsc.errors import InternalError
from tsc.loop_ir.nodes import Team

#: Where a statement stands: the position of each child on the way from the kernel's body.
Path = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Access:
    """What a statement reads or writes, by all threads that execute it.

    `place`: for each dimension the index where it is one number, the name of the warp or thread variable where it is just that,
    None where it is anything else. `warps` and `lanes` are the variables that tell who makes it. `step` is where the statement
    stands that it is made in as one step: nothing can come between that statement's parts.
    """

    buffer: str
    write: bool
    place: tuple[int | str | None, ...]
    warps: frozenset[str]
    lanes: frozenset[str]
    warped: bool
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

    One Store does not write an element twice without a read of it in between: two writes of one statement need nothing.
    """
    if not (a.write or b.write) or apart(a, b) or (a.write and b.write and a.path == b.path):
        return None
    same = {x for x, y in zip(a.place, b.place) if isinstance(x, str) and x == y}
    if a.warped and b.warped and a.warps == b.warps and a.warps <= same:
        return None if a.lanes == b.lanes and a.lanes <= same else "warp"
    if not (a.warped or b.warped) and a.lanes == b.lanes and a.lanes <= same:
        return None
    return "block"

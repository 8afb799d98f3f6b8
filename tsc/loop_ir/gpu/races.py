"""The memory that the threads of a kernel have in common, watched while the interpreter runs them.

Every cell remembers who wrote it last and who has read it since. Two accesses of different threads, one of them a write, must
have a barrier of both threads between them. An asynchronous copy arrives as late as it may: until its thread waits for it, its
target holds nothing. It is not even ordered after what its own thread did there before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsc.errors import InternalError
from tsc.loop_ir.nodes import Team

Place = tuple[int, ...]
#: The lane of what a warp does as one.
ALL = -1


class Thread(NamedTuple):
    """Who acts: a lane of a warp of a block, or with lane ALL the whole warp, with warp ALL the whole block."""

    block: int
    warp: int
    lane: int

    def __str__(self) -> str:
        if self.warp == ALL:
            return f"block {self.block}"
        return f"warp {self.warp} of block {self.block}" if self.lane == ALL else \
            f"thread {self.lane} of warp {self.warp} of block {self.block}"


@dataclass(frozen=True, slots=True)
class _Access:
    thread: Thread
    block_barriers: int
    warp_barriers: int
    loops: tuple[str, ...]


@dataclass(slots=True)
class _Cell:
    writer: _Access | None = None
    readers: dict[Thread, _Access] = field(default_factory=dict)
    copy: _Access | None = None


@dataclass(frozen=True, slots=True)
class _Copy:
    buffer: str
    at: Place
    array: NDArray[Any]
    value: Any
    loops: tuple[str, ...]


@dataclass(slots=True)
class Memory:
    """What the threads of kernel `name` did so far. `watched` buffers are common, `local` ones are a block's and new for each.
    `spread` ones lie in registers, each element in one thread's; where it says True, every warp has its own."""

    name: str
    watched: frozenset[str]
    local: frozenset[str]
    spread: Mapping[str, bool]
    warps: int
    lanes: int
    current: Thread = field(default_factory=lambda: Thread(-1, ALL, ALL))
    _cells: dict[str, dict[Place, _Cell]] = field(default_factory=dict)
    _owners: dict[tuple[str, Place, int], Thread] = field(default_factory=dict)
    _block_barriers: int = 0
    _warp_barriers: dict[int, int] = field(default_factory=dict)
    _open: dict[Thread, list[_Copy]] = field(default_factory=dict)
    _groups: dict[Thread, list[list[_Copy]]] = field(default_factory=dict)

    # -- control -----------------------------------------------------------------------------------------------

    def begin_block(self) -> None:
        """The next block starts."""
        self.current = Thread(self.current.block + 1, ALL, ALL)
        for name in self.local:
            self._cells.pop(name, None)
        self._owners.clear()

    def end_block(self) -> None:
        """All threads have left. Raises InternalError where a copy was never waited for."""
        for copies in (*self._open.values(), *(g for groups in self._groups.values() for g in groups)):
            for copy in copies:
                raise self._error(copy.buffer, copy.at, copy.loops, "is still being copied when the block ends")
        self._open.clear()
        self._groups.clear()

    def release(self, team: Team) -> None:
        """A barrier lets its threads go."""
        if team == "block":
            self._block_barriers += 1
        else:
            self._warp_barriers[self.current.warp] = self._warp_barriers.get(self.current.warp, 0) + 1

    # -- accesses ----------------------------------------------------------------------------------------------

    def read(self, buffer: str, at: Place, loops: tuple[str, ...]) -> None:
        """The current thread reads a cell. Raises InternalError for a race, and where a block's memory was never written."""
        if buffer in self.spread:
            self._own(buffer, at, loops)
        if buffer not in self.watched:
            return
        cell = self._cell(buffer, at)
        self._refuse_copy(cell, "read", buffer, at, loops)
        if cell.writer is None and buffer in self.local:
            raise self._error(buffer, at, loops, f"is read by {self.current} before anything is written there: a barrier "
                                                "or a write is missing")
        if cell.writer is not None and not self._ordered(cell.writer):
            raise self._race("read", buffer, at, loops, cell.writer, "wrote")
        cell.readers[self.current] = self._access(loops)

    def write(self, buffer: str, at: Place, loops: tuple[str, ...], copies: bool = False) -> None:
        """The current thread writes a cell, or begins to copy to it. Raises InternalError for a race."""
        if buffer in self.spread:
            self._own(buffer, at, loops)
        if buffer not in self.watched:
            return
        cell = self._cell(buffer, at)
        self._refuse_copy(cell, "written", buffer, at, loops)
        if cell.writer is not None and not self._ordered(cell.writer, copies):
            raise self._race("written", buffer, at, loops, cell.writer, "wrote")
        for reader in cell.readers.values():
            if not self._ordered(reader, copies):
                raise self._race("written", buffer, at, loops, reader, "read")
        cell.writer, cell.readers = self._access(loops), {}

    def copy(self, buffer: str, at: Place, loops: tuple[str, ...], array: NDArray[Any], value: Any) -> None:
        """The current thread begins a copy of `value` to `array[at]`."""
        self.write(buffer, at, loops, copies=True)
        self._cell(buffer, at).copy = self._access(loops)
        array[at] = np.nan if array.dtype.kind == "f" else 77
        self._open.setdefault(self.current, []).append(_Copy(buffer, at, array, value, loops))

    def commit(self) -> None:
        """The current threads close their groups."""
        for thread in self._acting():
            self._groups.setdefault(thread, []).append(self._open.pop(thread, []))

    def wait(self, pending: int) -> None:
        """All but the newest `pending` groups of the current threads arrive."""
        for thread in self._acting():
            groups = self._groups.get(thread, [])
            cut = max(0, len(groups) - pending)
            for copy in (c for group in groups[:cut] for c in group):
                copy.array[copy.at] = copy.value
                cell = self._cell(copy.buffer, copy.at)
                cell.copy = None
                cell.writer = self._access(copy.loops, thread)
            self._groups[thread] = groups[cut:]

    # -- who, and what came before -----------------------------------------------------------------------------

    def _acting(self) -> list[Thread]:
        block, warp, lane = self.current
        return [Thread(block, w, x) for w in (range(self.warps) if warp == ALL else (warp,))
                for x in (range(self.lanes) if lane == ALL else (lane,))]

    def _access(self, loops: tuple[str, ...], thread: Thread | None = None) -> _Access:
        who = thread or self.current
        return _Access(who, self._block_barriers, self._warp_barriers.get(who.warp, 0), loops)

    def _ordered(self, earlier: _Access, copies: bool = False) -> bool:
        """Whether what `earlier` did came before what the current thread does now, or `copies`."""
        if earlier.thread == self.current and self.current.lane != ALL and not copies:
            return True
        if earlier.thread.block != self.current.block:
            return False
        if earlier.block_barriers < self._block_barriers:
            return True
        warp = self.current.warp
        return earlier.thread.warp == warp and earlier.warp_barriers < self._warp_barriers.get(warp, 0)

    def _own(self, buffer: str, at: Place, loops: tuple[str, ...]) -> None:
        key = (buffer, at, self.current.warp if self.spread[buffer] else ALL)
        owner = self._owners.get(key, self.current)
        if owner.warp != self.current.warp or (ALL not in (owner.lane, self.current.lane) and owner.lane != self.current.lane):
            raise self._error(buffer, at, loops, f"is accessed by {self.current}, but lies in the registers of {owner}")
        self._owners[key] = owner if self.current.lane == ALL else self.current

    def _cell(self, buffer: str, at: Place) -> _Cell:
        return self._cells.setdefault(buffer, {}).setdefault(at, _Cell())

    # -- errors ------------------------------------------------------------------------------------------------

    def _refuse_copy(self, cell: _Cell, how: str, buffer: str, at: Place, loops: tuple[str, ...]) -> None:
        if cell.copy is not None:
            raise self._error(buffer, at, loops, f"is {how} by {self.current} while a copy of {cell.copy.thread}"
                                                 f"{_within(cell.copy.loops)} to it is under way: a wait is missing")

    def _race(self, how: str, buffer: str, at: Place, loops: tuple[str, ...], other: _Access, did: str) -> InternalError:
        return self._error(buffer, at, loops, f"is {how} by {self.current} after {other.thread} {did} it"
                                              f"{_within(other.loops)}: a barrier is missing")

    def _error(self, buffer: str, at: Place, loops: tuple[str, ...], text: str) -> InternalError:
        return InternalError(f"kernel {self.name}: {buffer}{list(at)}{_within(loops)} {text}")


def _within(loops: tuple[str, ...]) -> str:
    return f" (in loops {', '.join(loops)})" if loops else ""

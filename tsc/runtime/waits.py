"""Which steps of a region a step has to wait for: who uses what it uses, one of them changing it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Waits:
    """Who last wrote and who since has read each memory, of the steps from the last barrier on."""

    writers: dict[Hashable, int] = field(default_factory=dict)
    readers: dict[Hashable, list[int]] = field(default_factory=dict)

    def note(self, position: int, reads: Iterable[Hashable], writes: Iterable[Hashable]) -> set[int]:
        """Which steps one at `position` that reads and writes so must wait for: who wrote what it reads, and who wrote or read
        what it overwrites."""
        needed: set[int] = set()
        for memory in reads:
            needed |= {self.writers[memory]} if memory in self.writers else set()
            self.readers.setdefault(memory, []).append(position)
        for memory in writes:
            needed |= {self.writers[memory]} if memory in self.writers else set()
            needed.update(self.readers.pop(memory, ()))
            self.writers[memory] = position
        return needed - {position}

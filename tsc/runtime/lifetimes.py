"""From which step to which each storage of a Plan is in use."""

from __future__ import annotations

from tsc.runtime.plan import Loop, Region, regions_in, storages_of


def lifetimes(region: Region) -> dict[int, tuple[int, int]]:
    """The first and last step that uses each storage, the steps counted as they stand: two storages whose spans are apart never
    hold a value at the same time. A branch counts as if it came before the other. What is there before a Loop and used in it is
    in use until its end, when the next trip may use it; so is what it carries, from its beginning on."""
    spans = _Spans()
    spans.visit(region)
    return spans.of


class _Spans:
    def __init__(self) -> None:
        self.of: dict[int, tuple[int, int]] = {}
        self._now = 0

    def visit(self, region: Region) -> set[int]:
        """Returns the storages that a region uses."""
        used: set[int] = set()
        for step in region:
            self._now += 1
            begin, own = self._now, set(storages_of(step))
            self._use(own)
            inside = set().union(*map(self.visit, regions_in(step)))
            if isinstance(step, Loop):
                self._now += 1
                self._use(own - {c.start for c in step.carried if c.start != c.current})
                self._use({s for s in inside if self.of[s][0] <= begin})
            used |= own | inside
        return used

    def _use(self, storages: set[int]) -> None:
        for storage in storages:
            self.of[storage] = self.of.get(storage, (self._now, self._now))[0], self._now

"""Which Variant of each launch runs at given sizes: the one of the least cost, as good as. Section 6 of the paper."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from tsc.runtime.plan import Launch, Variant
from tsc.runtime.segments import Rows, rows_of
from tsc.sym import SymExpr

#: Choices whose rows are kept.
MEMO = 64
#: Thousandths by which a Variant has to be cheaper than the first, the best one alone: times are not known better.
WORTH = 20


def least(costs: Sequence[float]) -> int:
    """The number of the cheapest, or the first where that costs hardly more."""
    found = min(range(len(costs)), key=costs.__getitem__)
    return found if costs[found] * (1000 + WORTH) < costs[0] * 1000 else 0


def terms_at(variant: Variant, names: Mapping[str, int], units: int) -> list[dict[str, float]]:
    """What each Call of a Variant is expected to take where all names are bound, by what it goes into; those without a cost are
    left out."""
    return [call.cost.terms(call.blocks.evaluate(names), [work.count.evaluate(names) for work in call.cost.work], units)
            for call in variant.calls if call.cost is not None]


class Selection:
    """Chooses Variants of launches that follow each other, on a device of so many `units`. `counts` are the expressions of the
    work that is counted for that, of all Calls of all launches where there is a choice."""

    def __init__(self, launches: Sequence[Launch], units: int) -> None:
        self._launches, self._units = launches, units
        selecting = [launch for launch in launches if launch.selects]
        self.counts: list[SymExpr] = [
            work.count for launch in selecting for call in launch.calls if call.cost for work in call.cost.work]
        self._fixed = None if selecting else rows_of(launches, [0] * len(launches))
        self._memo: OrderedDict[tuple[int, ...], Rows] = OrderedDict()

    def rows(self, blocks: Sequence[int], counts: Sequence[int]) -> Rows:
        """The calls that run, where all Calls of all launches have so many blocks, and the work is that of `counts`."""
        if self._fixed is not None:
            return self._fixed
        chosen = tuple(least(costs) for costs in self.costs(blocks, counts))
        found = self._memo.get(chosen)
        if found is None:
            found = self._memo[chosen] = rows_of(self._launches, chosen)
            if len(self._memo) > MEMO:
                self._memo.popitem(last=False)
        return found

    def costs(self, blocks: Sequence[int], counts: Sequence[int]) -> list[list[float]]:
        """The femtoseconds that each Variant of each launch is expected to take; only [0] where there is no choice."""
        found: list[list[float]] = []
        work, number = iter(counts), iter(blocks)
        for launch in self._launches:
            costs: list[float] = []
            for variant in launch.variants:
                time = 0.0
                for call in variant.calls:
                    own = next(number)
                    if launch.selects and call.cost is not None:
                        time += call.cost.femtoseconds(own, [next(work) for _ in call.cost.work], self._units)
                costs.append(time)
            found.append(costs if launch.selects else [0])
        return found

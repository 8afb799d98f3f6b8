"""What became of a range of random cases, counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Tally:
    """`failures` maps what went wrong to the numbers of the cases, which are called `noun`; `slowest` is (seconds, number)."""

    noun: str
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: dict[str, list[int]] = field(default_factory=dict)
    slowest: tuple[float, int] = (0.0, -1)

    def count(self, outcome: str, number: int, seconds: float) -> None:
        """One more case: what is before a colon is counted, "failed: why" kept with its number."""
        self.slowest = max(self.slowest, (seconds, number))
        self.outcomes[outcome.partition(":")[0]] += 1
        if outcome.startswith("failed"):
            self.failures.setdefault(outcome.removeprefix("failed: "), []).append(number)

    def add(self, other: Tally) -> None:
        """The cases of another range as well."""
        self.outcomes += other.outcomes
        self.slowest = max(self.slowest, other.slowest)
        for why, numbers in other.failures.items():
            self.failures.setdefault(why, []).extend(numbers)

    def __str__(self) -> str:
        counts = ", ".join(f"{n} {what}" for what, n in sorted(self.outcomes.items()))
        lines = [f"{sum(self.outcomes.values())} {self.noun}: {counts}"]
        lines += [f"  FAILED {len(numbers)}: {why} (cases {', '.join(map(str, numbers[:8]))})"
                  for why, numbers in sorted(self.failures.items())]
        return "\n".join([*lines, f"  slowest: case {self.slowest[1]}, {self.slowest[0]:.1f} s"])

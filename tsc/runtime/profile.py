"""Times of kernels: each launch of a run timed alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from tsc.draw import shortened
from tsc.runtime.plan import Launch


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One kernel: the nodes it computes (of its first launch the names, of others how many there are), its calls in a run, the
    milliseconds of all of them, and their share of all kernels' time."""

    kernel: str
    nodes: tuple[str, ...]
    calls: int
    milliseconds: float
    share: float


@dataclass(frozen=True, slots=True)
class LaunchTime:
    """One launch: its kernel, the nodes it computes, and its milliseconds."""

    kernel: str
    nodes: tuple[str, ...]
    milliseconds: float


@dataclass(frozen=True, slots=True)
class Profile:
    """The kernels of a run, the slowest first, and the milliseconds of a whole run with nothing measured inside it; the
    launches in their order. As text, a table of the kernels."""

    kernels: tuple[KernelTime, ...]
    run_milliseconds: float
    threads: int
    launches: tuple[LaunchTime, ...] = ()

    def chrome_trace(self) -> str:
        """The launches one after the other, as JSON that chrome://tracing and Perfetto show (Trace Event Format, "complete"
        events; times in microseconds)."""
        events, now = [], 0.0
        for number, launch in enumerate(self.launches):
            duration = launch.milliseconds * 1e3
            events.append({"name": launch.kernel, "cat": "kernel", "ph": "X", "ts": now, "dur": duration, "pid": 0, "tid": 0,
                           "args": {"launch": number, "nodes": list(launch.nodes)}})
            now += duration
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})

    def __str__(self) -> str:
        total = sum(row.milliseconds for row in self.kernels)
        lines = [f"{self.run_milliseconds:.3f} ms a run with {self.threads} threads; {total:.3f} ms in launches timed alone",
                 f"{'ms':>10} {'share':>7} {'calls':>6}  kernel: nodes"]
        for row in self.kernels:
            nodes = shortened(", ".join(row.nodes))
            lines.append(f"{row.milliseconds:10.3f} {row.share:7.1%} {row.calls:6}  {row.kernel}: {nodes}")
        return "\n".join(lines)


def profile_of(launches: Sequence[Launch], seconds: Sequence[float], run: float, threads: int) -> Profile:
    """The Profile from the seconds of each launch and of a whole run."""
    groups: dict[str, list[int]] = {}
    for number, launch in enumerate(launches):
        groups.setdefault(launch.kernel, []).append(number)
    total = sum(seconds) or 1.0
    rows = [
        KernelTime(kernel, _nodes([launches[n] for n in numbers]), len(numbers), sum(seconds[n] for n in numbers) * 1e3,
                   sum(seconds[n] for n in numbers) / total) for kernel, numbers in groups.items()]
    alone = tuple(LaunchTime(launch.kernel, launch.nodes or (launch.node,), time * 1e3)
                  for launch, time in zip(launches, seconds, strict=True))
    return Profile(tuple(sorted(rows, key=lambda row: -row.milliseconds)), run * 1e3, threads, alone)


def _nodes(launches: Sequence[Launch]) -> tuple[str, ...]:
    first = launches[0].nodes or (launches[0].node,)
    return (*first, f"and {len(launches) - 1} like it") if len(launches) > 1 else first

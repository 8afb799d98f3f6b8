"""`tsc bench`: a model beside other runtimes, each in a process of its own, in turns, on the same random inputs.

Of each shape the first run is timed by itself, with its outputs compared, before the runtimes take turns; a time is the median
of all turns.
"""

from __future__ import annotations

import importlib.metadata
import math
import pickle
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import geometric_mean, median
from subprocess import Popen
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc.codegen_c.specs import machine_name
from tsc.errors import InputError, LaunchError
from tsc.frames import read_frame, spawned, write_frame
from tsc.roofline import Peaks, Work, peaks
from tsc.runtime.drivers.cpu import choose_module, read_cpu_flags
from tsc.runtime.feeds import random_feeds
from tsc.runtime.package import Package

OURS = "tsc"
#: The others that are known, and what installs them.
OTHERS = {"onnxruntime": "onnxruntime", "openvino": "openvino"}
#: How often the runtimes take turns, and the seconds of one.
ROUNDS, TURN = 7, 0.15
#: Outputs farther apart than this, relative to the largest value, are said to differ.
APART = 1e-2


@dataclass(frozen=True, slots=True)
class Point:
    """One shape: the median milliseconds of each runtime, those of its first run there, and how far apart the outputs of any
    other runtime are from ours, relative to the largest value; the `least` milliseconds that one core could take, where that is
    known."""

    sizes: Mapping[str, int]
    milliseconds: Mapping[str, float]
    first: Mapping[str, float]
    apart: float
    least: float | None = None

    def ratio(self, other: str) -> float:
        """How many times as long another runtime takes."""
        return self.milliseconds[other] / self.milliseconds[OURS]


@dataclass(frozen=True, slots=True)
class Benched:
    """What was measured on a `machine` with so many `threads`: `versions`, seconds to load and bytes of memory by runtime; the
    `roofline` is what one core can do at most, where that was measured."""

    machine: str
    threads: int
    versions: Mapping[str, str]
    loaded: Mapping[str, float]
    memory: Mapping[str, int]
    points: tuple[Point, ...]
    roofline: Peaks | None = None

    @property
    def ratios(self) -> dict[str, float]:
        """The geometric mean of each other runtime's ratios."""
        return {other: geometric_mean(point.ratio(other) for point in self.points) for other in self.versions if other != OURS}

    def facts(self) -> dict[str, Any]:
        """All of it, JSON-ready."""
        points = [{"sizes": dict(p.sizes), "milliseconds": dict(p.milliseconds), "first_run": dict(p.first),
                   "apart": p.apart if math.isfinite(p.apart) else None, "least": p.least} for p in self.points]
        return {"machine": self.machine, "threads": self.threads, "versions": dict(self.versions), "loaded": dict(self.loaded),
                "memory": dict(self.memory), "points": points, "ratios": self.ratios,
                "roofline": None if self.roofline is None else asdict(self.roofline)}

    def lines(self) -> list[str]:
        """A table."""
        others = [name for name in self.versions if name != OURS]
        shown = [", ".join(f"{name}={size}" for name, size in point.sizes.items()) or "as it is" for point in self.points]
        width = max(map(len, ("median ms, first run", *shown)))
        head = [f"{name:>24}" + (f"{'ratio':>8}" if name != OURS else "") for name in self.versions]
        found = [f"{self.machine}; {self.threads} thread{'s' * (self.threads > 1)}; "
                 + ", ".join(f"{name} {version}" for name, version in self.versions.items()),
                 f"{'median ms, first run':<{width}}" + "".join(head)]
        for text, point in zip(shown, self.points):
            cells = [f"{point.milliseconds[name]:>13.3f} {point.first[name]:>10.3f}"
                     + (f"{point.ratio(name):>8.2f}" if name != OURS else "") for name in self.versions]
            wrong = f"   outputs differ by {point.apart:.1g}" if not point.apart <= APART else ""
            share = "" if point.least is None else f"{100 * point.least / point.milliseconds[OURS]:>8.0f} % of the roofline"
            found.append(f"{text:<{width}}" + "".join(cells) + share + wrong)
        if self.roofline is not None:
            found.append(f"roofline: {self.roofline} of one core, products and sums, weights, inputs and outputs once")
        found += [f"{other} takes {self.ratios[other]:.2f} times as long (geometric mean)" for other in others]
        found.append("; ".join(f"{name} loads in {self.loaded[name]:.2f} s and holds {self.memory[name] / 1e6:.0f} MB"
                               for name in self.versions))
        return found


def bench(package: Package, model: Path | None, points: Sequence[Mapping[str, int]], others: Sequence[str], threads: int,
          seed: int = 0, work: Work | None = None) -> Benched:
    """Time a Package at some sizes of its dims, beside other runtimes on the `model` that it was made of; one thread also
    beside the least time that its `work` could take. Raises InputError for a runtime that is not known, or without its model;
    LaunchError where one is not installed, or fails."""
    for other in others:
        if other not in OTHERS:
            raise InputError(f"there is no runtime '{other}' to compare with; there are {', '.join(OTHERS)}")
        if model is None:
            raise InputError(f"'{other}' needs the ONNX model that the Package was made of; give it as --model")
    plan = package.plans[choose_module(package.modules, read_cpu_flags(), "the Package")]
    feeds = [random_feeds(plan.inputs, sizes, seed + k) for k, sizes in enumerate(points)]
    versions = {OURS: package.version} | {other: _version(other) for other in dict.fromkeys(others)}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tsc-bench-")))
        package.write(path := folder / "model.tscpack")
        children = {name: stack.enter_context(_child(name)) for name in versions}
        loaded = {name: child.ask("load", name, str(path if name == OURS else model), threads)
                  for name, child in children.items()}
        found = tuple(_point(children, sizes, own) for sizes, own in zip(points, feeds))
        memory = {name: child.ask("memory") for name, child in children.items()}
    roofline = peaks() if work is not None and threads == 1 else None
    if work is not None and roofline is not None:
        found = tuple(replace(point, least=work.least(point.sizes, roofline)) for point in found)
    return Benched(machine_name(), threads, versions, loaded, memory, found, roofline)


def _version(other: str) -> str:
    try:
        return importlib.metadata.version(OTHERS[other])
    except importlib.metadata.PackageNotFoundError as error:
        raise LaunchError(f"'{other}' is not installed; `pip install {OTHERS[other]}`, or leave it out") from error


class _Child:
    """A process that has one runtime."""

    def __init__(self, name: str, process: Popen[bytes]) -> None:
        self._name, self._process = name, process

    def ask(self, *request: Any) -> Any:
        """Its answer. Raises LaunchError where it has none."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            write_frame(self._process.stdin, pickle.dumps(request))
            frame = read_frame(self._process.stdout)
        except OSError:
            frame = None
        if frame is None:
            raise LaunchError(f"'{self._name}' ended its process ({self._process.wait()}) when it was asked to {request[0]}")
        match pickle.loads(frame):
            case "wrong", str(why):
                raise LaunchError(f"'{self._name}' failed to {request[0]}: {why}")
            case found:
                return found


@contextmanager
def _child(name: str) -> Iterator[_Child]:
    with spawned("tsc.bench_child") as process:
        yield _Child(name, process)


def _point(children: Mapping[str, _Child], sizes: Mapping[str, int], feeds: Mapping[str, NDArray[Any]]) -> Point:
    firsts = {name: child.ask("run", feeds) for name, child in children.items()}
    outputs = {name: values for name, (_, values) in firsts.items()}
    apart = max((_apart(outputs[OURS], values) for name, values in outputs.items() if name != OURS), default=0.0)
    times: dict[str, list[float]] = {name: [] for name in children}
    for turn in range(ROUNDS):
        for name in list(children)[::1 if turn % 2 else -1]:
            times[name] += children[name].ask("time", TURN)
    return Point(sizes, {name: 1e3 * median(own) for name, own in times.items()},
                 {name: 1e3 * seconds for name, (seconds, _) in firsts.items()}, apart)


def _apart(ours: Sequence[NDArray[Any]], theirs: Sequence[NDArray[Any]]) -> float:
    """The greatest distance of any output, relative to its largest value; infinite where they have other shapes."""
    worst = 0.0 if len(ours) == len(theirs) else math.inf
    for one, other in zip(ours, theirs):
        if one.shape != other.shape:
            return math.inf
        a, b = (np.asarray(array, np.float64) for array in (one, other))
        with np.errstate(invalid="ignore"):
            off = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
        scale = float(np.abs(b[np.isfinite(b)]).max(initial=1e-30))
        worst = max(worst, float(np.nan_to_num(off, nan=math.inf).max(initial=0)) / scale)
    return worst

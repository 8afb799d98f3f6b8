"""`tsc tune`, which is `tsc-tune`: measure a model's kernels with many configs, and make a Package that picks the fastest."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

from tsc.config import Options, Reduction
from tsc.errors import InputError
from tsc.kernels import workshop
from tsc.pipeline import build_package
from tsc.runtime.drivers.cpu import is_cpu
from tsc.runtime.files import read_regular, write_atomically
from tsc.tune.coverage_html import coverage_html
from tsc.tuning import Effort, build, covered, groups_of, tune
from tsc.tuning_crew import Crew, Processes, Ray
from tsc.tuning_group import search_called

_EXAMPLE = '{"batch": 4, "seq": 128}'
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Seconds(click.ParamType[float]):
    """A time: 90s, 30m, 2h, or plain seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The seconds that a text says."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", str(value))
        if found is None or not float(found[1]):
            self.fail(f"'{value}' is no time; write 90s, 30m or 2h", param, ctx)
        return float(found[1]) * _UNITS[found[2] or "s"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What `tsc tune` was asked for beside the model; `workers` and `ray` (an address) say who tunes, `build` is a folder."""

    records: Path
    output: Path | None
    effort: Effort
    variants: int
    traffic: Path | None
    dry_run: bool
    report: Path | None
    workers: int
    ray: str | None
    build: Path | None
    reduction: Reduction = "fixed"

    def crew(self) -> Crew | None:
        """Who tunes; None is this process."""
        if self.ray is not None:
            return Ray(self.ray, self.workers)
        return Processes(self.workers) if self.workers > 1 else None


def tune_model(model: Path, dims: dict[str, Any] | None, target: str, wanted: Wanted,
               tell: Callable[[str], None]) -> tuple[dict[str, Any], list[str]]:
    """What was tuned, as facts and as lines. Raises as `compile`, and InputError for traffic that is none."""
    records, output, report = wanted.records, wanted.output, wanted.report
    if wanted.build is not None and (wanted.ray is not None or wanted.workers > 1):
        raise click.UsageError("--build builds in one process; leave out --workers and --ray")
    options = Options(variants=wanted.variants, reduction=wanted.reduction)
    shop = workshop(target, options)
    if not is_cpu(shop.device.spec.name):
        raise InputError(f"target '{target}' cannot be tuned: times are measured on CPUs only; give a CPU's")
    groups, _ = groups_of(model, dims, shop, [] if wanted.traffic is None else traffic_of(wanted.traffic), wanted.effort.seed)
    sizes = [f"{group.order.symbol()}: {group.launches} launches, measured at {len(group.sizes)} sizes" for group in groups]
    if wanted.dry_run:
        return {"kernels": len(groups), "groups": sizes}, [f"{len(groups)} kernels would be tuned", *sizes]
    search_called(wanted.effort.search)  # says what it lacks before anything is built
    if wanted.build is not None:
        count = build(groups, shop, records, wanted.effort, wanted.build)
        return {"kernels": len(groups), "configs": count, "folder": str(wanted.build)}, [
            f"{count} configs of {len(groups)} kernels are in {wanted.build}; measure them where {shop.device.spec.name} code "
            f"runs by `python -m tsc.tune {wanted.build} {records}`"]
    crew = wanted.crew()
    try:
        found = tune(groups, shop, records, wanted.effort, crew, tell)
    finally:
        if crew is not None:
            crew.stop()
    before, after = (sum(getattr(group, name) for group in found) for name in ("before", "after"))
    lines = [*map(str, found), *([f"all kernels together: {before / after:.2f} times as fast as untuned"] if after else []),
             f"the records are in {records}"]
    facts: dict[str, Any] = {"records": str(records), "kernels": [asdict(group) for group in found]}
    if output is not None or report is not None:
        shop = workshop(target, replace(options, records=records))
        package = build_package(model, dims, shop)
        if output is not None:
            package.write(output)
            lines.append(f"the tuned Package is {output}")
            facts["package"] = str(output)
        if report is not None:
            text = coverage_html(covered(package, shop), model.name)
            write_atomically(report, [text.encode()])
            lines.append(f"what it is expected to do over its range is in {report}")
            facts["report"] = str(report)
    return facts, lines


def traffic_of(path: Path) -> Sequence[dict[str, int]]:
    """The sizes of dims, an object a line."""
    found: list[dict[str, int]] = []
    try:
        lines = read_regular(path).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the traffic '{path}' ({error}); give a file with an object of dims a line") from error
    for number, line in enumerate(filter(str.strip, lines), 1):
        try:
            point = json.loads(line)
        except ValueError:
            point = None
        if not isinstance(point, dict) or not all(type(size) is int and size >= 0 for size in point.values()):
            raise InputError(f"line {number} of '{path}' is no object of dims and their sizes; write them as {_EXAMPLE}")
        if point not in found:
            found.append(point)
    if not found:
        raise InputError(f"'{path}' has no sizes in it; give an object of dims a line, as {_EXAMPLE}")
    return found

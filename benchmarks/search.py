"""Searches on simulated devices: how far each is from the best cover after so many measurements.

    python3 dev.py bench search [--seeds N] [--jobs N] [--devices A100 ..] [--output results.json]
    python3 -m benchmarks.search --plot results.json picture.svg

Random search, a Gaussian process over the whole space, one trust region and several (TuRBO-m, what `tsc-tune` uses), at equal
measurements, each told times with 1 % of noise. What counts is the cover: the geometric mean over eight sizes, each with the
fastest of four configs, beside the same of all valid configs. The picture has the medians over all groups and seeds of each
device. Needs the extra `tune`.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tsc.poly.tile import Space, TileConfig
from tsc.tune import gaussian, simulate, simulate_cpu
from tsc.tune.pool import cover
from tsc.tune.search import RandomSearch, Search, Times, valid
from tsc.tune.simulate import A100, H200, Product, with_noise
from tsc.tune.turbo import Turbo

ROWS = (1, 8, 32, 128, 300, 700, 2048, 16384)
#: Widths and depths: queries, keys and values of BERT-large and the second half of its MLP (section 7.3 of the paper), MiniLM.
GROUPS = {"1024 -> 3072": (3072, 1024), "4096 -> 1024": (1024, 4096), "384 -> 384": (384, 384)}
BUDGETS, BATCH, VARIANTS = (32, 64, 128, 256), 8, 4


@dataclass(frozen=True, slots=True)
class Device:
    """A simulated device: its configs, and the seconds that one takes for a product."""

    space: Space
    seconds: Callable[[TileConfig, Product], float]


DEVICES = {gpu.name: Device(simulate.space_of(gpu), partial(simulate.seconds, gpu=gpu)) for gpu in (A100, H200)} | {
    "Zen 5": Device(simulate_cpu.space_of(simulate_cpu.Cpu()), partial(simulate_cpu.seconds, cpu=simulate_cpu.Cpu()))}


class WholeSpace(Turbo):
    """One Gaussian process whose box is all there is."""

    def tell(self, results: Mapping[TileConfig, Times]) -> None:
        super().tell(results)
        self.regions = tuple(replace(region, length=2.0, failures=0) for region in self.regions)


SEARCHES: dict[str, Callable[..., Search]] = {
    "random": RandomSearch, "one process": partial(WholeSpace, draws=gaussian.draws, count=1),
    "one region": partial(Turbo, draws=gaussian.draws, count=1), "regions": partial(Turbo, draws=gaussian.draws)}


@cache
def best(device: str, group: str) -> float:
    """The mean logarithm of the times of the best cover that there is."""
    found, (width, depth) = DEVICES[device], GROUPS[group]
    products = [Product(m, width, depth) for m in ROWS]
    return covered(np.log(np.array([[found.seconds(config, p) for p in products] for config in valid(found.space)])))


def covered(logs: np.ndarray) -> float:
    return float(logs[cover(np.exp(logs), VARIANTS)].min(axis=0).mean())


def run(case: tuple[str, str, str, int]) -> list[float]:
    """How many times as long as with the best cover a mean size takes, less one, after each budget."""
    device, group, name, seed = case
    found, (width, depth) = DEVICES[device], GROUPS[group]
    products = [Product(m, width, depth) for m in ROWS]
    search = SEARCHES[name](found.space, seed)
    seen: list[list[float]] = []
    while len(seen) < BUDGETS[-1]:
        asked = search.ask(BATCH)
        times = {config: [found.seconds(config, p) for p in products] for config in asked}
        search.tell({config: [math.log(with_noise(t, {"config": str(config), "size": k, "seed": seed}))
                              for k, t in enumerate(own)] for config, own in times.items()})
        seen += [[math.log(t) for t in own] for own in times.values()]
    return [math.exp(covered(np.array(seen[:budget])) - best(device, group)) - 1 for budget in BUDGETS]


def picture(found: dict[str, Any]) -> str:
    """An SVG: how far medians are above the best cover (a logarithmic scale) after so many measurements, a panel a device."""
    budgets, colours = found["budgets"], dict(zip(SEARCHES, ("#999", "#36c", "#e80", "#c03")))
    devices = list(dict.fromkeys(each["device"] for each in found["results"]))
    size = f"width='{240 * len(devices) + 110}' height='230'"
    shapes = [f"<svg xmlns='http://www.w3.org/2000/svg' {size} font-family='sans-serif' font-size='11'>"]
    for panel, device in enumerate(devices):
        left = 240 * panel + 40
        shapes.append(f"<text x='{left}' y='14'>{device}</text>")
        for percent in (0.1, 1, 10):
            high = _height(percent / 100)
            shapes.append(f"<path d='M{left} {high:.1f}h180' stroke='#ddd'/><text x='{left - 4}' y='{high + 4:.1f}' "
                          f"text-anchor='end'>{percent} %</text>")
        shapes += [f"<text x='{left + 60 * k}' y='222' text-anchor='middle'>{n}</text>" for k, n in enumerate(budgets)]
        for name, colour in colours.items():
            runs = [run for each in found["results"] if (each["device"], each["search"]) == (device, name)
                    for run in each["above"]]
            points = " ".join(f"{left + 60 * k},{_height(median(run[k] for run in runs)):.1f}" for k in range(len(budgets)))
            shapes.append(f"<polyline points='{points}' fill='none' stroke='{colour}' stroke-width='2'/>")
    shapes += [f"<text x='{240 * len(devices) + 20}' y='{30 + 16 * k}' fill='{colour}'>{name}</text>"
               for k, (name, colour) in enumerate(colours.items())]
    return "\n".join([*shapes, "</svg>\n"])


def _height(above: float) -> float:
    return 205 - 70 * math.log10(max(above, 5e-4) / 5e-4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--devices", nargs="+", choices=DEVICES, default=list(DEVICES))
    parser.add_argument("--output", type=Path)
    parser.add_argument("--plot", nargs=2, type=Path, metavar=("RESULTS", "PICTURE"))
    asked = parser.parse_args()
    if asked.plot:
        asked.plot[1].write_text(picture(json.loads(asked.plot[0].read_text())))
        return
    cases = [(d, g, s, seed) for d in asked.devices for g in GROUPS for s in SEARCHES for seed in range(asked.seeds)]
    with ProcessPoolExecutor(asked.jobs) as pool:
        found = dict(zip(cases, pool.map(run, cases)))
    results = []
    print(f"{'device':8}{'group':16}{'search':14}" + "".join(f"{b:>9}" for b in BUDGETS) + "   median % above the best cover")
    for device in asked.devices:
        for group in GROUPS:
            for name in SEARCHES:
                own = [found[device, group, name, seed] for seed in range(asked.seeds)]
                medians = [median(run[k] for run in own) for k in range(len(BUDGETS))]
                results.append({"device": device, "group": group, "search": name, "above": own})
                print(f"{device:8}{group:16}{name:14}" + "".join(f"{100 * x:9.2f}" for x in medians))
    if asked.output:
        asked.output.write_text(json.dumps({"budgets": BUDGETS, "variants": VARIANTS, "python": platform.python_version(),
                                            "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()

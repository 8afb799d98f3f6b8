"""How long a product takes on this CPU with each config of a coarser space: what the simulated CPU is fitted to.

    python3 -m benchmarks.terrain [--output terrain.json] [--rows 1 6 ..] [--depth N] [--width N]

All configs whose sizes are among `KNOBS` are built and measured at all numbers of rows, eight beside each other, told by one
that is among all of them. `python3 -m benchmarks.terrain --fit terrain.json` prints the constants of `tsc.tune.simulate_cpu`
that come nearest, and how far off they are.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from dataclasses import asdict
from pathlib import Path

import numpy as np

from benchmarks.covers import dense
from benchmarks.minilm import cpu_name
from tsc.codegen_c.specs import machine_name
from tsc.config import Options
from tsc.kernels import workshop
from tsc.poly.tile import Knob, Space, TileConfig
from tsc.tune.batch import measured_records, times_of
from tsc.tune.records import Record
from tsc.tune.search import valid
from tsc.tune.simulate import Product
from tsc.tune.simulate_cpu import FITTED, Cpu, seconds
from tsc.tuning import groups_of
from tsc.tuning_group import BATCH, batch_of, space_of

#: Sizes of knobs that are tried, by field; of others all.
KNOBS = {"block_tile": (1, 128, 512), "prefetch": (0, 2048, 8192, 16384, 32768), "raster": (0,)}
ROWS = (1, 6, 32, 128, 512)


def coarser(space: Space) -> Space:
    """The space with fewer sizes, and blocks of one width."""
    def kept(knob: Knob) -> Knob:
        sizes = tuple(s for s in knob.sizes if s in KNOBS.get(knob.field, knob.sizes))
        wide = knob.field == "block_tile" and knob.place == (1,)
        return Knob(knob.field, knob.place, (space.default.block_tile[1],) if wide else sizes or knob.sizes[:1])

    return Space(space.default, tuple(kept(knob) for knob in space.knobs), space.limits, space.whole)


def measure(depth: int, width: int, rows: tuple[int, ...], output: Path) -> None:
    """The matrix of a product, as JSON."""
    with tempfile.TemporaryDirectory() as cache:
        shop = workshop("cpu", Options(shipped=False, cache_dir=Path(cache)))
        points = [{"batch": 1, "length": count} for count in rows]
        groups, _ = groups_of(dense(depth, width), {"batch": (1, 2), "length": (1, max(rows))}, shop, points)
        group = max(groups, key=lambda g: len(g.order.program.computes))
        space = space_of(group, shop)
        assert space is not None
        configs, found = valid(coarser(space)), list[Record]()
        for begin in range(0, len(configs), BATCH):
            known = times_of(found, group.sizes)
            found += measured_records(batch_of(group, space.default, configs[begin:begin + BATCH], shop), known)
            print(f"{min(len(configs), begin + BATCH)} of {len(configs)}", flush=True)
        times = times_of(found, group.sizes)
    facts = {"machine": machine_name(), "cpu": cpu_name(), "depth": depth, "width": width, "rows": rows}
    lines = [f"{json.dumps(_named(config))}: {[round(math.exp(t) * 1e-9, 9) for t in own]}"
             for config, own in times.items() if own is not None]
    output.write_text(json.dumps(facts)[:-1] + ', "seconds": {\n ' + ",\n ".join(lines) + "\n}}\n")


def errors(cpu: Cpu, terrain: dict) -> np.ndarray:
    """Logarithms of the simulated times by the measured ones: configs by rows."""
    products = [Product(rows, terrain["width"], terrain["depth"]) for rows in terrain["rows"]]
    return np.array([[math.log(seconds(config, p, cpu, False) / t) for p, t in zip(products, own)]
                     for config, own in configs_of(terrain).items()])


def _named(config: TileConfig) -> str:
    return f"{'x'.join(map(str, config.instr_tile))} {'x'.join(map(str, config.block_tile))} {config.prefetch}"


def configs_of(terrain: dict) -> dict[TileConfig, list[float]]:
    """The configs of a matrix, each with its seconds at the numbers of rows."""
    found = {}
    for name, own in terrain["seconds"].items():
        instr, block, prefetch = name.split()
        (rows, columns), (high, wide) = (tuple(map(int, sizes.split("x"))) for sizes in (instr, block))
        found[TileConfig((rows, columns), (high, wide), prefetch=int(prefetch))] = own
    return found


def fit(path: Path) -> None:
    """Print the constants of the simulated CPU that are nearest to a matrix, by the mean of absolute logarithms."""
    from scipy.optimize import minimize  # of the extra `bench`

    terrain = json.loads(path.read_text())
    names = list(FITTED)
    start = np.log([getattr(Cpu(), name) for name in names])

    def cpu(x: np.ndarray) -> Cpu:
        return Cpu(**dict(zip(names, map(float, np.exp(x)))))

    best = minimize(lambda x: float(np.abs(errors(cpu(x), terrain)).mean()), start, method="Nelder-Mead", options={
        "maxiter": 1500, "xatol": 1e-3, "fatol": 1e-5, "adaptive": True}, bounds=[(x - 2, x + 2) for x in start])
    left = np.abs(errors(cpu(best.x), terrain))
    print({name: float(f"{value:.4g}") for name, value in asdict(cpu(best.x)).items() if name in names})
    rows = ", ".join(f"{100 * m:.1f}" for m in np.median(left, axis=0))
    print(f"off by {100 * float(np.median(left)):.1f} % in the median, {100 * float(np.quantile(left, 0.9)):.1f} at 90 %; by "
          f"rows {rows}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("terrain.json"))
    parser.add_argument("--fit", type=Path)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--depth", type=int, default=768)
    parser.add_argument("--width", type=int, default=768)
    asked = parser.parse_args()
    if asked.fit is not None:
        fit(asked.fit)
        return
    measure(asked.depth, asked.width, tuple(asked.rows), asked.output)


if __name__ == "__main__":
    main()

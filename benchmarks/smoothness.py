"""Figure 6 of the paper on kernels of our own: which tiles are fast at which numbers of rows, and how smooth that is.

    python3 -m benchmarks.smoothness terrain.json [--output picture.svg]

From a matrix of `benchmarks.terrain`. The picture has a row for each number of rows and a column for each config, ordered by
the width and the height of its register tile, then by how far ahead it asks; a cell's shade is its speed as a share of the
best, and columns that have 0.95 of it at all numbers of rows are marked. Printed are how many these are, how much times differ
between configs that are one step of one knob apart, beside any two, and how far neighbouring numbers of rows agree. The best is
what one config in a hundred reaches: the fastest of all was lucky.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path

import numpy as np

from benchmarks.terrain import configs_of
from tsc.poly.tile import TileConfig

WIDE, HIGH, LEFT, FAST = 1.6, 26, 64, 0.95


def place(config: TileConfig) -> tuple[int, int, int, int]:
    """Where a column stands: width and height of the register tile, blocks of one tile, about 128 rows or 512, bytes ahead."""
    rows, columns = config.instr_tile
    return columns, rows, min(2, config.block_tile[0] // 100), config.prefetch


def neighbours(configs: list[TileConfig]) -> list[tuple[int, int]]:
    """Pairs that are one step of one knob apart."""
    places = np.array([[sorted(set(column)).index(x) for x in column] for column in zip(*map(place, configs))]).T
    steps = np.abs(places[:, None, :] - places[None, :, :]).sum(axis=2)
    return [(int(a), int(b)) for a, b in np.argwhere(np.triu(steps == 1))]


def picture(shares: np.ndarray, rows: list[int], marked: np.ndarray) -> str:
    """An SVG."""
    width, height = LEFT + WIDE * shares.shape[0] + 8, HIGH * len(rows) + 30
    size = f"width='{width:.0f}' height='{height}'"
    shapes = [f"<svg xmlns='http://www.w3.org/2000/svg' {size} font-family='sans-serif' font-size='11'>"]
    levels = 15 - np.rint(15 * np.clip((shares - 0.3) / 0.7, 0, 1)).astype(int)
    for n in range(len(rows)):
        begin = 0
        for level, run in itertools.groupby(levels[:, n].tolist()):
            count = len(list(run))
            at = f"x='{LEFT + WIDE * begin:.1f}' y='{HIGH * n + 14}'"
            shapes.append(f"<rect {at} width='{WIDE * count:.1f}' height='{HIGH - 2}' fill='#{level:x}{level:x}f'/>")
            begin += count
    shapes += [f"<rect x='{LEFT + WIDE * k:.1f}' y='2' width='{WIDE}' height='9'/>" for k in np.flatnonzero(marked)]
    shapes += [f"<text x='{LEFT - 6}' y='{HIGH * n + 31}' text-anchor='end'>{count} rows</text>"
               for n, count in enumerate(rows)]
    note = f"{len(marked)} configs; a bar: {FAST} of the best at all numbers of rows"
    return "\n".join([*shapes, f"<text x='{LEFT}' y='{height - 4}'>{note}</text>", "</svg>\n"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("terrain", type=Path)
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    terrain = json.loads(asked.terrain.read_text())
    found = configs_of(terrain)
    configs = sorted(found, key=place)
    times = np.array([found[config] for config in configs])
    shares = np.quantile(times, 0.01, axis=0) / times
    marked, logs = (shares >= FAST).all(axis=1), np.log(times)
    pairs, drawn = neighbours(configs), np.random.default_rng(0).integers(len(configs), size=(4000, 2))
    apart, any_two = (float(np.median(np.abs(np.array([logs[a] - logs[b] for a, b in some])))) for some in (pairs, drawn))
    along = [float(np.corrcoef(logs[:, k], logs[:, k + 1])[0, 1]) for k in range(logs.shape[1] - 1)]
    print(f"{terrain['machine']}: {terrain['depth']} -> {terrain['width']}, {len(configs)} configs at {terrain['rows']} rows")
    print(f"{marked.sum()} configs have {FAST} of the best at all of them, at each {(shares >= FAST).sum(axis=0).tolist()}")
    print(f"one step of a knob changes a time by {100 * apart:.1f} % in the median, another config by {100 * any_two:.1f} %")
    print("times at neighbouring numbers of rows correlate by " + ", ".join(f"{x:.2f}" for x in along))
    if asked.output:
        asked.output.write_text(picture(shares, terrain["rows"], marked))


if __name__ == "__main__":
    main()

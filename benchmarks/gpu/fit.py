"""The Rates of configs, fitted to what a GPU was measured to take: the tables of tsc/tune/untuned.py.

    python -m benchmarks.gpu.fit benchmarks/results/gpu-nvidia-h200-configs.json [--precision fp32] [--most 4] [--groups]

Those of warp groups are a table of their own (`--groups`): they sum in another order than a warp's instructions.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from tsc.config import Precision
from tsc.poly.pattern.shared import GROUP_ROWS
from tsc.poly.tile import TileConfig, config_from_json
from tsc.runtime.cost import Rates, total
from tsc.tune.pool import Matrix, matrix_of, pooled
from tsc.tune.records import Record, place_of


def records_of(content: Mapping[str, Any], precision: str, groups: bool = False) -> list[Record]:
    """The measurements of one precision in a result of the GPU run, of warp groups or all others, as records of one group."""
    device = content["device"]
    return [Record("product", "cuda", device["name"], config_from_json(row["config"]),
                   {name: row[name] for name in ("m", "n", "k")}, device["multiprocessors"], row["blocks"], row["work"],
                   round(row["microseconds"] * 1e3), resident=row["resident"])
            for row in content["parts"]["configs"]["results"]["rows"]
            if row["precision"] == precision and (config_from_json(row["config"]).instr_tile[0] == GROUP_ROWS) == groups]


def table(records: Sequence[Record], most: int) -> tuple[Matrix, dict[TileConfig, Rates]]:
    """All that was measured, and the Rates of the few configs that together are fast, the best alone first."""
    found = matrix_of(records, (records[0].units,))
    assert found is not None, "nothing was measured"
    return found, {found.configs[k]: replace(found.rates[k], seen=()) for k in pooled(found.times, most)}


def chosen(records: Sequence[Record], found: Matrix, rates: Mapping[TileConfig, Rates]) -> list[float]:
    """At each size the speed of the config that some Rates choose, as a part of the best one's of all."""
    by_place = {(record.config, place_of(record.sizes)): record for record in records}
    parts = []
    for column, (place, units) in enumerate(found.columns):
        def cost(config: TileConfig, place: Any = place, units: int = units) -> float:
            record = by_place[config, place]
            return total(rates[config].terms(record.blocks, record.work or {}, units))

        best = found.configs.index(min(rates, key=cost))
        parts.append(float(found.times[:, column].min() / found.times[best, column]))
    return parts


def main(arguments: Sequence[str]) -> int:
    """Print the table, and how far from the best config its choices are."""
    parser = argparse.ArgumentParser(description="Fit the Rates of configs.")
    parser.add_argument("results", type=Path)
    parser.add_argument("--most", type=int, default=4, help="so many configs")
    parser.add_argument("--precision", default="fp32", choices=get_args(Precision))
    parser.add_argument("--groups", action="store_true", help="the configs of warp groups")
    options = parser.parse_args(arguments)
    records = records_of(json.loads(options.results.read_text(encoding="utf-8")), options.precision, options.groups)
    found, rates = table(records, options.most)
    for config, own in rates.items():
        print(f"    {config}: {own},")
    parts, alone = chosen(records, found, rates), chosen(records, found, dict([next(iter(rates.items()))]))
    print(f"# chosen by these Rates: {sum(parts) / len(parts):.3f} of the best of {len(found.configs)} in the mean, "
          f"{min(parts):.3f} at worst; the first alone {sum(alone) / len(alone):.3f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

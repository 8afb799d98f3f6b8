"""The Rates of configs, fitted to what a GPU was measured to take: the table of tsc/codegen_cuda/pool.py.

    python -m benchmarks.gpu.fit benchmarks/results/gpu-nvidia-h200.json [--most 6]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from tsc.config import Precision
from tsc.poly.tile import TileConfig, config_from_json
from tsc.tune.pool import cover, matrix_of
from tsc.tune.records import Record, place_of


def records_of(content: dict[str, object], precision: str) -> list[Record]:
    """The measurements of a result of the GPU run, as records of one group."""
    device, parts = content["device"], content["parts"]
    assert isinstance(device, dict) and isinstance(parts, dict)
    return [Record("product", "cuda", device["name"], config_from_json(row["config"]),
                   {name: row[name] for name in ("m", "n", "k")}, device["multiprocessors"], row["blocks"], row["work"],
                   round(row["microseconds"] * 1e3), resident=row["resident"])
            for row in parts["configs"]["results"]["rows"] if row["precision"] == precision]


def main(arguments: Sequence[str]) -> int:
    """Print the table, and how far from the best config its choices are."""
    parser = argparse.ArgumentParser(description="Fit the Rates of configs.")
    parser.add_argument("results", type=Path)
    parser.add_argument("--most", type=int, default=6, help="so many configs")
    parser.add_argument("--precision", default="fp32", choices=get_args(Precision))
    options = parser.parse_args(arguments)
    records = records_of(json.loads(options.results.read_text(encoding="utf-8")), options.precision)
    found = matrix_of(records, (records[0].units,))
    assert found is not None, "nothing was measured"
    chosen = cover(found.times, options.most)
    for k in chosen:
        print(f"    {_text(found.configs[k])}: {replace(found.rates[k], seen=())},")
    by_place = {(r.config, place_of(r.sizes)): r for r in records}
    best, taken = found.times.min(axis=0), []
    for column, (place, _) in enumerate(found.columns):
        costs = {}
        for k in chosen:
            record = by_place[found.configs[k], place]
            rates = replace(found.rates[k], seen=())
            costs[k] = sum(rates.terms(record.blocks, record.work or {}, record.units).values())
        taken.append(best[column] / found.times[min(costs, key=costs.__getitem__), column])
    print(f"# chosen by these Rates: {sum(taken) / len(taken):.3f} of the best of {len(found.configs)} in the mean, "
          f"{min(taken):.3f} at worst; the first alone {(best / found.times[chosen[0]]).mean():.3f}")
    return 0


def _text(config: TileConfig) -> str:
    return (f"TileConfig({config.instr_tile}, {config.block_tile}, warp_tile={config.warp_tile}, stages={config.stages})")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

"""What bounds a product (`explain --sol`) beside what it was measured to take, in many configs at many sizes.

    python -m benchmarks.gpu.sol benchmarks/results/gpu-nvidia-h200-configs.json [--precision fp16] [--columns 768 --terms 3072]

No GPU is needed. Each config is compiled for sm_90a and one block of it emulated; what is compiled is kept in build/sol. The
device's facts are those of tsc/codegen_cuda/specs.py, written down before. Products were measured in a row on the same
operands, which therefore are in L2 already where they fit.

No number was fitted, but two rules of counting came after a first look at measurements of fp32 on an H200: 16 bytes loaded by
each lane were taken to be served by quarters of a warp, then all at once where they are the same (neither is what the hardware
does), and now as `paired_wavefronts` of codegen_cuda/emu/abi.h has it; and a warp keeps one scheduler busy, not all.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from benchmarks.gpu.layers import multiplied
from tsc.codegen_cuda.specs import H100, H200
from tsc.config import Options, Precision
from tsc.kernels import workshop
from tsc.poly.tile import config_from_json
from tsc.runtime.cost import Rates
from tsc.runtime.package import Package
from tsc.sol.bound import microseconds, waves
from tsc.sol.light import Light, Made, make

TARGET = "sm_90a"
OUT = Path(__file__).resolve().parents[2] / "build" / "sol"
SPEEDS = {"NVIDIA H200": H200, "NVIDIA H100 80GB HBM3": H100}
WITHIN = 0.25
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Compared:
    """One measurement: its config, rows, columns and terms; microseconds of the bound and measured; what the bound is, and how
    many waves the blocks are."""

    config: str
    size: tuple[int, int, int]
    precision: str
    bound: float
    measured: float
    part: str
    waves: float

    @property
    def ratio(self) -> float:
        """The bound as a part of what was measured."""
        return self.bound / self.measured


def compared(rows: Sequence[Row], device: str, out: Path) -> Iterator[Compared]:
    """The rows of one config and product beside their bounds."""
    light = Light(_made(rows[0], out), TARGET, Options(), SPEEDS[device])
    last = light.plan.launches[-1]  # behind those that round its operands
    for row in rows:
        binding = light.bind({"m": row["m"]})
        fits = sum(light.bytes(number, binding) for number in last.args) <= light.spec.l2_bytes
        found = light.launch(last, binding, cached=fits)
        assert found.variants, found.reason
        (call,) = found.variants[0].calls
        assert call.grid.blocks == row["blocks"], f"{row['config']} has {call.grid.blocks} blocks, and had {row['blocks']}"
        yield Compared(row["config"], (row["m"], row["n"], row["k"]), row["precision"],
                       microseconds(call.cycles.most, light.speed), row["microseconds"], call.cycles.part,
                       waves(call.grid, light.limits))


def _made(row: Row, out: Path) -> Made:
    """The product of a row in its config alone, compiled before or now."""
    config, size = config_from_json(row["config"]), (row["n"], row["k"])
    tiles = "-".join(map(str, (*config.instr_tile, *config.block_tile, *config.warp_tile, config.stages)))
    package, text = (out / f"{row['precision']}-{tiles}-{size[0]}x{size[1]}.{end}" for end in ("tscpack", "json"))
    if not text.exists():
        out.mkdir(parents=True, exist_ok=True)
        shop = workshop(TARGET, Options(precision=row["precision"]))
        made = make(multiplied(*size), {}, replace(shop, pool=lambda group: {config: Rates()}))
        made.package.write(package)
        text.write_text(json.dumps(dict(made.sources)), encoding="utf-8")
    return Made(Package.read(package), json.loads(text.read_text(encoding="utf-8")))


def table(found: Sequence[Compared]) -> Iterator[str]:
    """How near bounds are: of all, by precision, by what the bound is, by how full the device is, and of the fastest
    configs."""
    yield f"{'':34} {'count':>6} {'10 %':>6} {'median':>6} {'90 %':>6} {'most':>6}   within {WITHIN:.0%}  above"
    groups = {"all": found}
    groups |= {what: [c for c in found if c.precision == what] for what in get_args(Precision)}
    groups |= {f"bound by {part}": [c for c in found if c.part == part] for part in ("tensor", "shared", "issue", "l2", "dram")}
    groups |= {"less than a tenth of a wave": [c for c in found if c.waves < 0.1],
               "a tenth to one wave": [c for c in found if 0.1 <= c.waves < 1],
               "one to three waves": [c for c in found if 1 <= c.waves < 3],
               "three waves and more": [c for c in found if c.waves >= 3]}
    sizes = {(c.precision, c.size) for c in found}
    groups["the fastest config of each size"] = [
        min((c for c in found if (c.precision, c.size) == size), key=lambda c: c.measured) for size in sorted(sizes)]
    for name, group in groups.items():
        if group:
            yield _line(name, np.array([c.ratio for c in group]))


def _line(name: str, ratios: np.ndarray[Any, np.dtype[np.float64]]) -> str:
    low, middle, high = np.quantile(ratios, (0.1, 0.5, 0.9))
    near = np.abs(ratios - 1) <= WITHIN
    return (f"{name:34} {len(ratios):6} {low:6.2f} {middle:6.2f} {high:6.2f} {ratios.max():6.2f}   {near.mean():9.1%} "
            f"{(ratios > 1).sum():6}")


def main(arguments: Sequence[str]) -> int:
    """Print the table, and what is furthest above what was measured."""
    parser = argparse.ArgumentParser(description="Compare bounds with measurements.")
    parser.add_argument("results", type=Path)
    parser.add_argument("--precision", choices=get_args(Precision), default=None, help="only products in it")
    parser.add_argument("--columns", type=int, default=None, help="only products of so many columns")
    parser.add_argument("--terms", type=int, default=None, help="only products of so many terms")
    parser.add_argument("--out", type=Path, default=OUT, help="where what is compiled is kept")
    options = parser.parse_args(arguments)
    content = json.loads(options.results.read_text(encoding="utf-8"))
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in content["parts"]["configs"]["results"]["rows"]:
        if (options.precision in (None, row["precision"]) and options.columns in (None, row["n"])
                and options.terms in (None, row["k"])):
            groups.setdefault((row["precision"], row["config"], row["n"], row["k"]), []).append(row)
    found: list[Compared] = []
    for rows in groups.values():
        found += compared(rows, content["device"]["name"], options.out)
    print("\n".join(table(found)))
    worst = max(found, key=lambda c: c.ratio)
    print(f"# the bound that is highest beside what was measured: {worst}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

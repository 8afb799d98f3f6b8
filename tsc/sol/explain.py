"""The text of `explain --sol`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx

from tsc.codegen_cuda.specs import CUDA_SPECS
from tsc.config import Options, Precision
from tsc.errors import typed
from tsc.kernels import workshop
from tsc.runtime.launch_frame import WARP
from tsc.sol.bound import microseconds, waves
from tsc.sol.light import CallBound, LaunchBound, Light, VariantBound, check_sizes, check_tools, make
from tsc.target import GpuLimits, GpuSpeed, parse_target

#: From what part on it is told that instructions do not add up to what was counted.
_WORTH_SAYING = 0.1
_NAMES = {"tensor": "tensor cores", "shared": "shared memory", "issue": "instructions", "l2": "L2", "dram": "DRAM"}


@typed
def explain_light(source: str | Path | onnx.ModelProto, sizes: Mapping[str, int], target: str,
                  dims: Mapping[str, Any] | None = None, options: Options | None = None, precision: Precision = "fp32") -> str:
    """How fast each Variant of each launch of a model could run at most on a GPU (`target`, as "sm_90a") at `sizes` (by dim),
    and what bounds it. Raises LaunchError where a tool is missing, ShapeError where a size is, and what `tsc.compile`
    raises."""
    spec = parse_target(target, CUDA_SPECS)
    speed, options = check_tools(spec), options or Options()
    check_sizes(source, dims, sizes)
    made = make(source, dims, workshop(target, replace(options, precision=precision)))
    light = Light(made, target, options)
    at = ", ".join(f"{name}={size}" for name, size in sizes.items())
    lines = [f"at most so fast on {target} ({speed.board}: {light.limits.multiprocessors} multiprocessors at "
             f"{speed.clock / 1e9:g} GHz)" + (f" at {at}" if at else "")]
    found = list(light.launches(sizes))
    for number, launch in enumerate(found):
        lines += _launch(number, launch, light)
    whole = sum(variant.most for launch in found for variant in launch.variants if variant.runs)
    unknown = sum(not launch.variants for launch in found)
    lines.append(f"all that runs, one after the other: at least {microseconds(whole, speed):.2f} us"
                 + (f", without {unknown} launches of which nothing is known" if unknown else ""))
    return "\n".join(lines)


def _launch(number: int, found: LaunchBound, light: Light) -> Iterator[str]:
    yield f"{number:3} {found.launch.kernel} (node '{found.launch.node}')"
    if found.reason:
        yield f"      not known: {found.reason}"
    for variant in found.variants:
        yield from _variant(variant, light.limits, light.speed)


def _variant(variant: VariantBound, limits: GpuLimits, speed: GpuSpeed) -> Iterator[str]:
    verdict = "runs" if variant.runs else "does not run"
    expected = f", expected {variant.expected / 1e9:.2f} us" if variant.expected else ""
    yield f"    at least {microseconds(variant.most, speed):.2f} us{expected}: {verdict}"
    for call in variant.calls:
        yield from _call(call, limits, speed)


def _call(found: CallBound, limits: GpuLimits, speed: GpuSpeed) -> Iterator[str]:
    grid, call = found.grid, found.call
    yield (f"      {call.function}: {grid.blocks} blocks of {max(call.threads, WARP)} threads, {grid.resident} a "
           f"multiprocessor, {waves(grid, limits):.2f} waves")
    parts = ", ".join(f"{_NAMES[part]} {count:.0f}" for part, count in found.cycles.parts.items()
                      if part != "l2" or speed.l2 is not None)
    yield f"        cycles of {parts}; bound by {_NAMES[found.cycles.part]}"
    if found.unexplained > _WORTH_SAYING:
        yield f"        its loops do not add up to what its block does by {found.unexplained:.0%}: instructions are rough"
    if found.least:
        yield "        a loop has nothing that is counted, and may be executed more often: instructions are a minimum"

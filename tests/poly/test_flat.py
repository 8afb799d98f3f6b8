"""Elements one after the other on a GPU: values three ways, at the ends of warps and blocks."""

from __future__ import annotations

import pytest

from tests.codegen_cuda.generated import check, launched, load, printed
from tests.poly import programs
from tests.poly.programs import at, axis, buffer, f32
from tests.poly.support import inputs_for, on_gpu
from tsc.loop_ir.lower import lower_gpu
from tsc.poly import PatternMismatch
from tsc.poly.pattern.flat import match_flat
from tsc.poly.scop import build_scop
from tsc.poly.tile import TileConfig
from tsc.te.compute import Compute, Program, SizeParam
from tsc.te.expr import Cast, call


def elements(dtype: str = "float32") -> Program:
    """out[i] = max(x[i], 0), converted to `dtype`."""
    x, out, i = buffer("x", "N"), buffer("out", "N", dtype=dtype), axis("i", "N")
    value = call("max", at(x, i), f32(0.0))
    return Program((x,), (out,), (Compute(out, (i,), value if dtype == "float32" else Cast(value, dtype)),),
                   (SizeParam("N", lo=0),))


@pytest.mark.parametrize("config", [TileConfig(block_tile=(1024, 1), warp_tile=(128, 1)),
                                    TileConfig(block_tile=(1024, 1), warp_tile=(32, 1))], ids=["four", "one"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_values(dtype: str, config: TileConfig) -> None:
    program = elements(dtype)
    func = lower_gpu(on_gpu(program, config).func, 1)
    kernels, text = printed({"kernel": func})
    assert kernels["kernel"].threads == 32 * config.warps
    for count in (0, 1, 31, 129, 1023, 1025):
        for mode in ("fast", "race"):
            check(func, kernels["kernel"], load(text), program, {"N": count}, mode, 1e-3 if dtype == "float16" else 2e-5)


def test_lanes_touch_neighbours() -> None:
    program = elements()
    func = lower_gpu(on_gpu(program, TileConfig(block_tile=(1024, 1), warp_tile=(128, 1))).func, 1)
    kernels, text = printed({"kernel": func})
    report, _, _ = launched(func, kernels["kernel"], load(text), inputs_for(program, {"N": 2048}), {"N": 2048}, count=True)
    assert report is not None and report.global_sectors == report.ideal_sectors == 2 * 2048 * 4 // 32


def test_what_is_left_to_others() -> None:
    with pytest.raises(PatternMismatch, match="more to do than one statement"):
        match_flat(build_scop(programs.total()))
    with pytest.raises(PatternMismatch, match="not one axis"):
        match_flat(build_scop(programs.transpose()))

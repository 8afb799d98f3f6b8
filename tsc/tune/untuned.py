"""The configs of a product's Variants on a GPU that nobody has tuned for, with the Rates by which a run picks one.

Fitted to an H200 (`python -m benchmarks.gpu.fit benchmarks/results/gpu-nvidia-h200-configs.json --most 4`: 13 configs, four
products, 12 numbers of rows), on which the config that they choose has 0.996 of the speed of the best one in the mean and 0.949
at worst, the best single one 0.832 in the mean. Other GPUs have the same ones: a step of k differs, an order seldom.
"""

from __future__ import annotations

from collections.abc import Mapping

from tsc.loop_ir.gpu.mma import MMA_F16
from tsc.ops.base import PatternKind
from tsc.poly.pattern.base import STEPS
from tsc.poly.pattern.warps import INSTR_TILE, MATRIX_TILE
from tsc.poly.tile import TileConfig
from tsc.runtime.cost import BLOCKS, Rates
from tsc.target import DeviceSpec
from tsc.te.compute import Program

_PRODUCT: Mapping[TileConfig, Rates] = {
    TileConfig(INSTR_TILE, (16, 32, 64), warp_tile=(16, 16), stages=4): Rates(
        1884484902, ((STEPS, 216889998),), ((STEPS, 272503388),),
        ((STEPS, 320136),), 4),
    TileConfig(INSTR_TILE, (32, 32, 32), warp_tile=(32, 16), stages=4): Rates(
        738327129, ((BLOCKS, 1124304075), (STEPS, 279735930)), ((STEPS, 179806688),),
        (), 6),
    TileConfig(INSTR_TILE, (64, 64, 32), warp_tile=(32, 32), stages=3): Rates(
        1897160130, ((STEPS, 284563488),), ((STEPS, 744490312),),
        ((BLOCKS, 1227297), (STEPS, 72830)), 4),
    TileConfig(INSTR_TILE, (128, 64, 32), warp_tile=(64, 32), stages=3): Rates(
        2218330285, ((STEPS, 409549637),), ((STEPS, 1373511895),),
        ((BLOCKS, 6116074), (STEPS, 61309)), 3)}
#: Of matrix instructions on tf32 (`--most 3`, of eleven configs): 0.990 in the mean, 0.872 at worst, 0.822 for the best alone.
_MATRIX: Mapping[TileConfig, Rates] = {
    TileConfig(MATRIX_TILE, (16, 32, 64), warp_tile=(16, 16), stages=4): Rates(
        1788559555, ((STEPS, 133360535),), ((STEPS, 91105443),),
        ((BLOCKS, 1196700), (STEPS, 48850)), 4),
    TileConfig(MATRIX_TILE, (128, 64, 32), warp_tile=(64, 32), stages=3): Rates(
        2315473686, ((STEPS, 139487099),), ((STEPS, 343663548),),
        ((BLOCKS, 5417489), (STEPS, 115619)), 3),
    TileConfig(MATRIX_TILE, (64, 64, 32), warp_tile=(32, 32), stages=4): Rates(
        2051807946, ((BLOCKS, 4112042), (STEPS, 114425370)), ((BLOCKS, 11262602), (STEPS, 209780963)),
        ((BLOCKS, 3403014), (STEPS, 96794)), 3)}
#: Of halves (`--precision fp16 --most 5`, of twelve): 0.983, 0.887 and 0.831.
_HALVES: Mapping[TileConfig, Rates] = {
    TileConfig(MATRIX_TILE, (16, 64, 64), warp_tile=(16, 16), stages=4): Rates(
        1409869952, ((STEPS, 84489000),), ((STEPS, 83725664),),
        ((BLOCKS, 1235560),), 5),
    TileConfig(MATRIX_TILE, (128, 64, 64), warp_tile=(64, 32), stages=3): Rates(
        2243097271, ((STEPS, 153149504),), ((STEPS, 300404502),),
        ((BLOCKS, 6399331), (STEPS, 112281)), 3),
    TileConfig(MATRIX_TILE, (16, 32, 64), warp_tile=(16, 16), stages=4): Rates(
        1382451895, ((STEPS, 88467553),), ((STEPS, 39951458),),
        ((BLOCKS, 1095470), (STEPS, 102945)), 9),
    TileConfig(MATRIX_TILE, (64, 64, 64), warp_tile=(32, 32), stages=4): Rates(
        2089793808, ((STEPS, 129373079),), ((STEPS, 158854084),),
        ((BLOCKS, 3591466), (STEPS, 177793)), 3),
    TileConfig(MATRIX_TILE, (16, 32, 128), warp_tile=(16, 16), stages=4): Rates(
        1691872362, ((STEPS, 165477121),), ((STEPS, 41597365),),
        ((BLOCKS, 1232837), (STEPS, 439844)), 4)}


def untuned(kind: PatternKind, program: Program, spec: DeviceSpec) -> Mapping[TileConfig, Rates]:
    """The configs of a group of a kind, the first of which is the best alone; none where its pattern has one of its own. Those
    for halves are for factors that are halves: others have tiles of twice the bytes, and other instructions."""
    if kind is not PatternKind.CONTRACTION:
        return {}
    if MMA_F16.name in spec.intrinsics and sum(buffer.dtype == MMA_F16.dtype for buffer in program.inputs) >= 2:
        return _HALVES
    return _MATRIX if spec.intrinsics else _PRODUCT


def nothing(kind: PatternKind, program: Program, spec: DeviceSpec) -> Mapping[TileConfig, Rates]:
    """No configs: each pattern has one of its own."""
    return {}

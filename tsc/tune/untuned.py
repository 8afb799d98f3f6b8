"""The configs of a product's Variants on a GPU that nobody has tuned for, with the Rates by which a run picks one.

Fitted to an H200 (`python -m benchmarks.gpu.fit benchmarks/results/gpu-nvidia-h200-configs.json --most 4`: 13 configs, four
products, 12 numbers of rows), on which the config that they choose has 0.995 of the speed of the best one in the mean and 0.922
at worst, the best single one 0.859 in the mean. Other GPUs have the same ones: a step of k differs, an order seldom.
"""

from __future__ import annotations

from collections.abc import Mapping

from tsc.loop_ir.gpu.tensorize_gpu import MMA_F16
from tsc.ops.base import PatternKind
from tsc.poly.pattern.base import STEPS
from tsc.poly.pattern.warps import INSTR_TILE, MATRIX_TILE
from tsc.poly.tile import TileConfig
from tsc.runtime.cost import BLOCKS, Rates
from tsc.target import DeviceSpec

_PRODUCT: Mapping[TileConfig, Rates] = {
    TileConfig(INSTR_TILE, (32, 32, 32), warp_tile=(32, 16), stages=4): Rates(
        6508934345, ((BLOCKS, 770575762), (STEPS, 262728963)), ((STEPS, 185970728),),
        ((BLOCKS, 31473), (STEPS, 16487)), 6),
    TileConfig(INSTR_TILE, (16, 32, 64), warp_tile=(16, 16), stages=4): Rates(
        7268186407, ((STEPS, 228223036),), ((STEPS, 247073714),),
        ((STEPS, 498114),), 4),
    TileConfig(INSTR_TILE, (64, 64, 32), warp_tile=(32, 32), stages=3): Rates(
        6455761007, ((STEPS, 263878730),), ((STEPS, 728685475),),
        ((BLOCKS, 7608392), (STEPS, 144266)), 4),
    TileConfig(INSTR_TILE, (128, 64, 32), warp_tile=(64, 32), stages=3): Rates(
        7129508155, ((STEPS, 442459629),), ((STEPS, 1284069359),),
        ((BLOCKS, 22912864), (STEPS, 205176)), 3)}
#: Of matrix instructions on tf32 (eleven configs): 0.971 in the mean, 0.794 at worst, 0.807 for the best alone.
_MATRIX: Mapping[TileConfig, Rates] = {
    TileConfig(MATRIX_TILE, (16, 64, 32), warp_tile=(16, 16), stages=4): Rates(
        4873702062, ((STEPS, 76010606),), ((STEPS, 119089130),),
        ((BLOCKS, 1739287), (STEPS, 16163)), 5),
    TileConfig(MATRIX_TILE, (64, 64, 32), warp_tile=(32, 32), stages=4): Rates(
        5476553806, ((BLOCKS, 402596579), (STEPS, 112968205)), ((STEPS, 208721109),),
        ((BLOCKS, 8086578), (STEPS, 150108)), 3),
    TileConfig(MATRIX_TILE, (128, 64, 32), warp_tile=(64, 32), stages=3): Rates(
        7989755531, ((STEPS, 160801731),), ((STEPS, 324502516),),
        ((BLOCKS, 16952169), (STEPS, 217348)), 3),
    TileConfig(MATRIX_TILE, (16, 32, 64), warp_tile=(16, 16), stages=4): Rates(
        6857790042, ((BLOCKS, 124052918), (STEPS, 121549405)), ((BLOCKS, 86584155), (STEPS, 103697635)),
        (), 4)}
#: Of halves (`--precision fp16 --most 3`, of twelve): 0.991, 0.892 and 0.860.
_HALVES: Mapping[TileConfig, Rates] = {
    TileConfig(MATRIX_TILE, (64, 64, 64), warp_tile=(32, 32), stages=4): Rates(
        5822982612, ((STEPS, 183800282),), ((STEPS, 82580373),),
        ((BLOCKS, 9389201), (STEPS, 591325)), 3),
    TileConfig(MATRIX_TILE, (16, 32, 64), warp_tile=(16, 16), stages=4): Rates(
        5155776181, ((STEPS, 85839457),), ((BLOCKS, 111555524), (STEPS, 35529574)),
        ((BLOCKS, 363201), (STEPS, 157156)), 9),
    TileConfig(MATRIX_TILE, (128, 64, 64), warp_tile=(64, 32), stages=3): Rates(
        6340460604, ((STEPS, 216493220),), ((STEPS, 216789423),),
        ((BLOCKS, 22322082), (STEPS, 566917)), 3)}


def untuned(kind: PatternKind, spec: DeviceSpec) -> Mapping[TileConfig, Rates]:
    """The configs of a group of a kind, the first of which is the best alone; none where its pattern has one of its own."""
    if kind is not PatternKind.CONTRACTION:
        return {}
    return _HALVES if MMA_F16.name in spec.intrinsics else _MATRIX if spec.intrinsics else _PRODUCT


def nothing(kind: PatternKind, spec: DeviceSpec) -> Mapping[TileConfig, Rates]:
    """No configs: each pattern has one of its own."""
    return {}

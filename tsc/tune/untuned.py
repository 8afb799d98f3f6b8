"""The configs of a product's Variants on a GPU that nobody has tuned for, with the Rates by which a run picks one.

Fitted to an H200 (`python -m benchmarks.gpu.fit benchmarks/results/gpu-nvidia-h200-configs.json --most 4`: 13 configs, four
products, 12 numbers of rows), on which the config that they choose has 0.987 of the speed of the best one in the mean and 0.912
at worst, the best single one 0.849 in the mean. Other GPUs have the same ones: a step of k differs, an order seldom.
"""

from __future__ import annotations

from collections.abc import Mapping

from tsc.ops.base import PatternKind
from tsc.poly.pattern.base import STEPS
from tsc.poly.pattern.warps import INSTR_TILE, MATRIX_TILE
from tsc.poly.tile import TileConfig
from tsc.runtime.cost import BLOCKS, Rates
from tsc.target import DeviceSpec

_PRODUCT: Mapping[TileConfig, Rates] = {
    TileConfig(INSTR_TILE, (32, 32, 32), warp_tile=(32, 16), stages=4): Rates(
        5132254672, ((STEPS, 307563648),), ((STEPS, 174661535),), ((BLOCKS, 2183108), (STEPS, 41776)), 6),
    TileConfig(INSTR_TILE, (16, 32, 32), warp_tile=(16, 16), stages=4): Rates(
        4097197963, ((BLOCKS, 436562223), (STEPS, 146600855)), ((BLOCKS, 93497170), (STEPS, 151277346)),
        ((BLOCKS, 719288), (STEPS, 55921)), 9),
    TileConfig(INSTR_TILE, (64, 64, 32), warp_tile=(32, 32), stages=3): Rates(
        4831766865, ((STEPS, 366624123),), ((STEPS, 689164936),), ((BLOCKS, 10014544), (STEPS, 315879)), 4),
    TileConfig(INSTR_TILE, (128, 64, 32), warp_tile=(64, 32), stages=3): Rates(
        5133281735, ((STEPS, 649610518),), ((STEPS, 1230106975),), ((BLOCKS, 31362439), (STEPS, 307260)), 3)}
#: Of matrix instructions on tf32 (`--precision tf32 --most 3`, of nine configs): 0.993, 0.918, and 0.866 for the best alone.
_MATRIX: Mapping[TileConfig, Rates] = {
    TileConfig(MATRIX_TILE, (16, 32, 64), warp_tile=(16, 16), stages=4): Rates(
        6182143669, ((STEPS, 199131640),), ((BLOCKS, 162078397), (STEPS, 99044722)), (), 4),
    TileConfig(MATRIX_TILE, (64, 64, 32), warp_tile=(32, 32), stages=3): Rates(
        7190860718, ((STEPS, 134647599),), ((STEPS, 225023741),), ((BLOCKS, 7497668), (STEPS, 221165)), 4),
    TileConfig(MATRIX_TILE, (128, 64, 32), warp_tile=(64, 32), stages=3): Rates(
        6652729916, ((STEPS, 398808839),), ((STEPS, 361340618),), ((BLOCKS, 16676385), (STEPS, 295515)), 3)}


def untuned(kind: PatternKind, spec: DeviceSpec) -> Mapping[TileConfig, Rates]:
    """The configs of a group of a kind, the first of which is the best alone; none where its pattern has one of its own."""
    if kind is not PatternKind.CONTRACTION:
        return {}
    return _MATRIX if spec.intrinsics else _PRODUCT


def nothing(kind: PatternKind, spec: DeviceSpec) -> Mapping[TileConfig, Rates]:
    """No configs: each pattern has one of its own."""
    return {}

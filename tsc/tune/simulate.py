"""Simulated devices: what a config of a matrix product takes, without any device; the same for everybody, at any size.

The tests of the search run on these. They are models of what is known to matter (waves, occupancy, latency that stages hide,
bandwidth of shared and global memory, matrix units), with a roughness of their own for each config, which no model explains.
Constants are published figures of the devices: NVIDIA's whitepapers on A100 and H100/H200, and how far mma.sync reaches.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tsc.poly.tile import Knob, Limit, Space, TileConfig, config_to_json, powers, rounded


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU: multiprocessors, clock, FLOP a cycle of the matrix units and shared bytes a cycle of one; bytes of shared memory,
    registers and warps that one holds; bytes a second of memory, and cycles until memory answers."""

    name: str
    multiprocessors: int
    hertz: float
    flop: int
    shared_rate: int
    shared: int
    registers: int
    warps: int
    bandwidth: float
    latency: int


#: FLOP a cycle are those that mma.sync reaches: 85 and 63 % of the peaks.
A100 = Gpu("A100", 108, 1.41e9, 1740, 128, 164 << 10, 65536, 64, 1.55e12, 480)
H200 = Gpu("H200", 132, 1.83e9, 2560, 128, 227 << 10, 65536, 64, 4.3e12, 620)
ELEMENT, ACCUMULATOR = 2, 4
#: How much the logarithm of what is each config's own deviates.
ROUGHNESS = 0.04


@dataclass(frozen=True, slots=True)
class Product:
    """C[m, n] = A[m, k] B[k, n]."""

    m: int
    n: int
    k: int


def space_of(gpu: Gpu) -> Space:
    """The configs of a product in blocks and warps."""
    default = TileConfig((16, 8, 16), (128, 128, 32), warp_tile=(64, 32), stages=3)
    blocks = (Knob("block_tile", (d,), powers(256, 16)) for d in range(2))
    warps = Knob("warp_tile", (0,), powers(128, 16)), Knob("warp_tile", (1,), powers(128, 8))
    knobs = (*blocks, Knob("block_tile", (2,), powers(128, 16)), *warps, Knob("stages", (), (1, 2, 3, 4, 5)))
    limits = (Limit("bytes of shared memory", gpu.shared, _shared), Limit("threads", 1024, lambda c: 32 * c.warps),
              Limit("registers of a thread", 255, _registers))
    return Space(default, knobs, limits, lambda c: TileConfig(
        c.instr_tile, rounded(c.block_tile, c.warp_tile), warp_tile=c.warp_tile, stages=c.stages))


def resident(config: TileConfig, gpu: Gpu) -> int:
    """Blocks that one multiprocessor holds at a time (section 6 of the paper, by floors)."""
    shared = gpu.shared // (_shared(config) + 1024)
    registers = gpu.registers // (-(-_registers(config) // 8) * 8 * 32 * config.warps)
    return max(1, min(shared, registers, gpu.warps // config.warps, 32))


def seconds(config: TileConfig, product: Product, gpu: Gpu) -> float:
    """What a product takes, without noise."""
    high, wide, _ = config.block_tile
    blocks, together = -(-product.m // high) * -(-product.n // wide), resident(config, gpu)
    full, rest = divmod(blocks, gpu.multiprocessors * together)
    cycles = full * _wave(config, product, gpu, together, gpu.multiprocessors)
    if rest:  # the last wave, in which each multiprocessor has fewer blocks
        cycles += _wave(config, product, gpu, -(-rest // gpu.multiprocessors), min(rest, gpu.multiprocessors))
    floor = (product.m * product.k + product.k * product.n + product.m * product.n) * ELEMENT / gpu.bandwidth
    spilled = 1.0 + max(0, _registers(config) - 200) / 60
    return 2.5e-6 + max(floor, cycles * spilled / gpu.hertz) * rough(ROUGHNESS, gpu.name, config_to_json(config))


def _wave(config: TileConfig, product: Product, gpu: Gpu, together: int, busy: int) -> float:
    """The cycles of a wave of so many blocks together on each of the multiprocessors that are busy."""
    (high, wide, deep), steps = config.block_tile, -(-product.k // config.block_tile[2])
    warps_m, warps_n = high // config.warp_tile[0], wide // config.warp_tile[1]
    # one step of all blocks that share a multiprocessor, by what each unit takes for it
    math_cycles = together * 2 * high * wide * deep / gpu.flop / min(1.0, (config.warps * together + 2) / 8)
    shared_cycles = together * (warps_n * high + warps_m * wide) * deep * ELEMENT / gpu.shared_rate
    share = gpu.bandwidth / gpu.hertz / busy * 2.5  # most of it comes from the second cache
    memory_cycles = together * (high + wide) * deep * ELEMENT / share
    longest = max(math_cycles, shared_cycles, memory_cycles)
    hidden = longest * (config.stages - 1) + longest * (together - 1) / together
    step = longest + max(0.0, gpu.latency - hidden) / max(1, config.stages - 1) + 12.0 * (config.stages == 1)
    return gpu.latency * 2 + steps * step + together * high * wide * ELEMENT / share


def matrix(configs: Sequence[TileConfig], products: Sequence[Product], gpu: Gpu) -> list[list[float]]:
    """The seconds of configs (rows) at products (columns)."""
    return [[seconds(config, product, gpu) for product in products] for config in configs]


def with_noise(value: float, key: Mapping[str, object], deviation: float = 0.01) -> float:
    """A measurement of a time, as noisy as one is; the same for the same key."""
    return value * math.exp(deviation * _normal(str(sorted(key.items()))))


def _shared(config: TileConfig) -> int:
    high, wide, deep = config.block_tile
    return config.stages * (high + wide) * deep * ELEMENT


def _registers(config: TileConfig) -> int:
    """Of a thread: accumulators, fragments of both operands, addresses."""
    high, wide = config.warp_tile
    return high * wide * ACCUMULATOR // 4 // 32 + (high + wide) * 16 * ELEMENT // 4 // 32 + 32


def rough(deviation: float, *key: str) -> float:
    """What a time is multiplied by that no model explains; the same for the same key."""
    return math.exp(deviation * abs(_normal(" ".join(key))))


def _normal(key: str) -> float:
    """A number from the standard normal distribution that a key says (Box and Muller 1958)."""
    raw = hashlib.sha256(key.encode()).digest()
    first, second = (int.from_bytes(raw[k:k + 8], "little") / 2**64 for k in (0, 8))
    return math.sqrt(-2 * math.log(1 - first)) * math.cos(2 * math.pi * second)

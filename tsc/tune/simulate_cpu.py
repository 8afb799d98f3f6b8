"""A simulated core of a CPU: what a config of a matrix product takes, without any device; the same for everybody.

The weights are packed, and each tile walks over the terms of its columns. What is known to matter is modelled: multiply-adds
and loads a cycle, how far these depend on each other, what a step and a tile cost besides, what streams from memory and what
stays in the second cache, how much of a wait is hidden by asking ahead. Constants are those that come nearest to a matrix that
was measured on a Zen 5 (`python3 -m benchmarks.terrain --fit benchmarks/results/terrain-amd-epyc-family-26.json`); what is left
is a roughness of each config's own.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from tsc.poly.tile import Knob, Limit, Space, TileConfig, config_to_json, powers, rounded
from tsc.tune.simulate import Product, rough

#: Columns of a packed panel, bytes of an element, bytes of a line.
PANEL, ELEMENT, LINE = 64, 4, 64
#: How much the logarithm of what is each config's own deviates.
ROUGHNESS = 0.05


@dataclass(frozen=True, slots=True)
class Cpu:
    """A core: its vectors of so many `lanes` and how many there are, bytes of its caches; multiply-adds and loads a cycle,
    cycles until a multiply-add is done; cycles that a step, a tile and a vector of its result cost besides; bytes a cycle from
    the second cache and from memory, cycles until memory answers, lines that are on their way though nothing asked ahead, the
    power of a share of a panel by which that share comes slower, and how much slower the second cache is where what is asked
    ahead pushes out the first."""

    name: str = "Zen 5"
    hertz: float = 4.1e9
    lanes: int = 16
    registers: int = 32
    l1_bytes: int = 48 << 10
    l2_bytes: int = 1 << 20
    latency: float = 4.0
    fma: float = 1.899
    load: float = 1.946
    step: float = 0.07993
    tile: float = 9.766
    store: float = 0.7177
    near: float = 49.71
    far: float = 15.03
    wait: float = 61.38
    unasked: float = 45.75
    strided: float = 0.3196
    pushed: float = 1.002


#: What is fitted.
FITTED = ("fma", "load", "step", "tile", "store", "near", "far", "wait", "unasked", "strided", "pushed")


def space_of(cpu: Cpu) -> Space:
    """The configs that the contraction pattern has for a product with packed weights."""
    default = TileConfig((6, 4 * cpu.lanes), (126, 8 * cpu.lanes), prefetch=4096)
    tiles = (Knob("instr_tile", (0,), tuple(range(1, cpu.registers))),
             Knob("instr_tile", (1,), tuple(s for s in powers(PANEL, cpu.lanes))))
    blocks = Knob("block_tile", (0,), powers(512)), Knob("block_tile", (1,), powers(8 * PANEL, PANEL))
    ahead = Knob("prefetch", (), (0, 512, 1024, 2048, 4096, 8192, 16384, 32768))
    limit = Limit("registers", cpu.registers, lambda c: (c.instr_tile[0] + 1) * -(-c.instr_tile[1] // cpu.lanes))
    return Space(default, (*tiles, *blocks, ahead), (limit,), lambda c: TileConfig(
        c.instr_tile, rounded(c.block_tile, c.instr_tile), prefetch=c.prefetch))


def seconds(config: TileConfig, product: Product, cpu: Cpu, is_rough: bool = True) -> float:
    """What a product takes, without noise."""
    blocks, last = divmod(product.m, config.block_tile[0])
    cycles = sum(count * _strip(rows, config, product.k, cpu)
                 for count, rows in ((blocks, config.block_tile[0]), (1, last)) if count and rows)
    time = cycles * -(-product.n // config.instr_tile[1]) / cpu.hertz + 1e-6
    return time * (rough(ROUGHNESS, cpu.name, config_to_json(config)) if is_rough else 1.0)


def _strip(rows: int, config: TileConfig, depth: int, cpu: Cpu) -> float:
    """The cycles of the tiles of a block that share a panel: the first of them has it from memory."""
    full, rest = divmod(rows, config.instr_tile[0])
    first, *others = [config.instr_tile[0]] * full + [rest] * (rest > 0)
    return _tile(first, config, depth, cpu, True) + sum(
        count * _tile(high, config, depth, cpu, False) for high, count in Counter(others).items())


def _tile(rows: int, config: TileConfig, depth: int, cpu: Cpu, from_memory: bool) -> float:
    """The cycles of a tile of so many rows, whose panel comes from memory or from the second cache."""
    vectors = -(-config.instr_tile[1] // cpu.lanes)
    asked = vectors if config.prefetch else 0
    step = max(rows * vectors / cpu.fma, (rows + vectors + asked) / cpu.load, cpu.latency) + cpu.step
    panel, ahead = depth * config.instr_tile[1] * ELEMENT, config.prefetch * config.instr_tile[1] // PANEL
    if from_memory or panel + rows * depth * ELEMENT > cpu.l2_bytes:
        on_the_way = ahead / LINE if ahead else cpu.unasked
        far = cpu.far * (config.instr_tile[1] / PANEL) ** cpu.strided
        rate = min(far, on_the_way * LINE / cpu.wait)  # Little's law
    else:
        rate = cpu.near / (1.0 + cpu.pushed * ahead / cpu.l1_bytes)
    walk = math.sqrt(math.hypot((depth * step) ** 2, (panel / rate) ** 2))  # both at once, but not quite
    return walk + cpu.tile + rows * vectors * cpu.store

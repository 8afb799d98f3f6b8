"""Spaces of configs: what is worth trying is legal and gives right values, keeps within limits, and is data."""

from __future__ import annotations

import re
from dataclasses import replace
from random import Random

import pytest

from tests.poly import chain_programs, programs
from tests.poly.recurrences import both_ways, gated, summed
from tests.poly.support import GPU, SMALL, WIDE, check_values, inputs_for, run, scheduled
from tests.poly.test_gpu import kernel as with_barriers
from tests.poly.test_schedule import PROGRAMS
from tsc.codegen_c.emit import emit_c
from tsc.codegen_cuda.specs import CUDA_SPECS
from tsc.loop_ir.lower import lower
from tsc.poly import PatternMismatch
from tsc.poly.pattern import IN_WARPS, OWN, Forms
from tsc.poly.pattern.contraction import registers
from tsc.poly.pattern.nest import in_register_tiles
from tsc.poly.schedule import prepared, schedule
from tsc.poly.tile import Knob, Limit, Space, TileConfig, config_from_json, config_to_json, powers
from tsc.target import DeviceSpec
from tsc.te.compute import Program


def space_of(program: Program, spec: DeviceSpec, forms: Forms = OWN) -> Space:
    analysed = prepared(program, spec, forms=forms)
    assert analysed is not None
    return analysed.found.space(spec)


def drawn(space: Space, rng: Random) -> TileConfig | None:
    config = space.at([rng.randrange(len(knob.sizes)) for knob in space.knobs])
    return config if space.refusal(config) is None else None


@pytest.mark.parametrize("name", PROGRAMS)
def test_members_give_right_values(name: str) -> None:
    make, cases = PROGRAMS[name]
    program, rng = make(), Random(name)
    space = space_of(program, SMALL)
    tried = 0
    while tried < 3:
        config = drawn(space, rng)
        if config is not None:
            tried += 1
            assert config_from_json(config_to_json(config)) == config
            made = scheduled(program, config)
            assert made.config == config
            for sizes in cases:
                check_values(made.func, program, sizes)


@pytest.mark.parametrize("spec", [SMALL, WIDE, replace(SMALL, name="narrow", vector_bytes=0)], ids=lambda spec: spec.name)
def test_each_default_keeps_within_the_limits(spec: DeviceSpec) -> None:
    others = {"attention": chain_programs.attention_chain}
    for name, make in {**{n: make for n, (make, _) in PROGRAMS.items()}, **others}.items():
        space = space_of(make(), spec)
        assert space.refusal(space.default) is None, name
        assert all(knob.sizes and list(knob.sizes) == sorted(set(knob.sizes)) for knob in space.knobs), name


@pytest.mark.parametrize("program", [summed(0).program, gated(3).program, both_ways().program], ids=["sum", "gated", "both"])
def test_recurrences_have_a_space(program: Program) -> None:
    space, rng = space_of(program, SMALL), Random(0)
    for _ in range(2):
        config = drawn(space, rng)
        assert config is not None and scheduled(program, config).config == config


def test_register_tiles_fit_the_registers() -> None:
    space = space_of(programs.gemm(), WIDE)
    others = [0] * (len(space.knobs) - 2)
    found = {config.instr_tile for config in map(space.at, ([r, c, *others] for r in range(len(space.knobs[0].sizes))
                                                            for c in range(len(space.knobs[1].sizes))))
             if space.refusal(config) is None}
    assert (7, 64) in found and (15, 32) in found and (16, 32) not in found and (31, 16) in found
    assert (8, 64) not in found and all(registers(tile, WIDE) <= 32 for tile in found)
    refused = replace(space.default, instr_tile=(8, 64))
    assert space.refusal(refused) == "registers: 36 of 32"


def test_a_packed_operand_leaves_parts_of_its_panels() -> None:
    program = programs.gemm("M", 96, "K")
    analysed = prepared(program, WIDE, [program.inputs[1].name])
    assert analysed is not None
    columns = next(knob for knob in analysed.found.space(WIDE).knobs if knob.place == (1,) and knob.field == "instr_tile")
    assert columns.sizes == (16, 32, 64)


def test_panels_are_asked_for_ahead() -> None:
    """In C alone, which reads and writes what it did; an operand that is no panel is not."""
    program = programs.gemm("M", 96, "K")
    analysed = prepared(program, WIDE, [program.inputs[1].name])
    assert analysed is not None and next(k for k in analysed.found.space(WIDE).knobs if k.field == "prefetch").sizes[0] == 0
    assert "prefetch" not in {knob.field for knob in space_of(program, WIDE).knobs}
    config = replace(analysed.found.default_config(WIDE), prefetch=2048)
    func = lower(schedule(analysed, config, None, "k").func, WIDE)
    plain, ahead = emit_c(func, WIDE), emit_c(func, WIDE, config.prefetch)
    asked = [line for line in ahead.splitlines() if "__builtin_prefetch" in line]
    vectors = len(re.findall(r"tsc_b\d+ =", ahead))  # a cache line each
    assert len(asked) == vectors > 0 and all("+ 2048);" in line for line in asked)
    assert [line for line in ahead.splitlines() if "__builtin_prefetch" not in line] == plain.splitlines()


@pytest.mark.parametrize("raster", [0, 1])
def test_order_of_blocks(raster: int) -> None:
    """Along rows, or along columns, and nothing else changes."""
    program, sizes = programs.gemm(), {"M": 11, "N": 37, "K": 2}
    made = scheduled(program, TileConfig((2, 8), (4, 16), raster=raster))
    trace: list[tuple[str, tuple[int, ...]]] = []
    run(made.func, program, sizes, inputs_for(program, sizes), trace)
    stored = [tuple(at) for name, at in trace if name.startswith("out")]
    blocks = list(dict.fromkeys((x // 4, y // 16) for x, y in stored))
    along_rows = [(x, y) for y in range(3) for x in range(3)]
    assert blocks == (sorted(along_rows) if raster else along_rows) and len(stored) == 11 * 37
    check_values(made.func, program, sizes)


def test_older_configs_are_read() -> None:
    config = TileConfig((7, 64), (126, 64))
    text = config_to_json(config)
    for later in ('"prefetch": 0, ', '"raster": 0, '):
        assert later in text and config_from_json(text.replace(later, "")) == config
    assert config_from_json(text.replace('h": 0', 'h": 64')) != config
    for wrong in (text.replace('"lanes": 0, ', ""), text.replace('h": 0', 'h": -1'), text.replace('h": 0', 'h": "far"'), "7"):
        with pytest.raises(ValueError, match=r"config|prefetch|lanes"):
            config_from_json(wrong)


def test_a_gpu_s_space() -> None:
    """Sizes that its limits allow are right, or refused since no copy of whole steps fits."""
    spec = replace(CUDA_SPECS["sm_80"], name="gpu")
    space = space_of(programs.gemm(), spec, IN_WARPS)
    assert {limit.name for limit in space.limits} == {"registers of a thread", "bytes of shared memory", "threads"}
    large = replace(space.default, block_tile=(256, 256, 64), stages=4)
    assert space.refusal(large) == "bytes of shared memory: 524288 of 166912"
    rng, right = Random(3), 0
    while right < 2:
        config = drawn(space, rng)
        if config is None or config.block_tile[0] * config.block_tile[1] > 64 * 64:
            continue
        try:
            made = with_barriers(programs.gemm(), config)
        except PatternMismatch as refusal:
            assert "in whole steps" in str(refusal)
            continue
        check_values(made, programs.gemm(), {"M": 5, "N": 11, "K": 18})
        right += 1
    rows = space_of(programs.softmax(), GPU, IN_WARPS)
    assert [knob.field for knob in rows.knobs] == ["block_tile"] and rows.default.warps == 4


def test_knobs_reach_into_fields() -> None:
    default = TileConfig((2, 8), (4, 16), row_tile=(1, 3), stage_tiles=((2, 8), (2, 8)))
    space = Space(default, (Knob("stage_tiles", (1, 0), (1, 5)), Knob("row_tile", (1,), (1, 7)), Knob("stages", (), (1, 2)),
                            Knob("instr_tile", (0,), (1, 3))), (Limit("rows", 4, lambda config: config.row_tile[1]),),
                  in_register_tiles)
    config = space.at((1, 1, 1, 1))
    assert config == replace(default, instr_tile=(3, 8), block_tile=(6, 16), row_tile=(1, 7), stage_tiles=((2, 8), (5, 8)),
                             stages=2)
    assert space.refusal(config) == "rows: 7 of 4" and space.refusal(space.at((0, 0, 0, 0))) is None
    assert powers(100, 3) == (3, 6, 12, 24, 48, 96) and powers(2, 5) == (5,) and powers(8) == (1, 2, 4, 8)


def test_seeds_of_chains() -> None:
    """Each may be made; of each width that all stages have, no register tile of any is higher."""
    space = space_of(chain_programs.attention_chain(), WIDE)
    assert len(set(space.seeds)) > 3 and all(config == space.whole(config) for config in space.seeds)
    fitting = [config for config in space.seeds if space.refusal(config) is None]
    rows = next(knob.sizes for knob in space.knobs if (knob.field, knob.place) == ("stage_tiles", (0, 0)))
    for wide in {config.stage_tiles[0][1] for config in fitting}:
        tallest = max(config.stage_tiles[0][0] for config in fitting if config.stage_tiles[0][1] == wide)
        same = [config for config in fitting if config.stage_tiles[0] == (tallest, wide)]
        higher = [(r, wide) for r in rows if r > tallest]
        assert all(space.refusal(replace(same[0], stage_tiles=(tile, *same[0].stage_tiles[1:]))) for tile in higher)


@pytest.mark.parametrize("program", [programs.gemm("M", 96, 64), programs.gemm("M", "N", "K"), programs.gemm(1, "N", 5)])
def test_seeds_fill_the_registers(program: Program) -> None:
    """Each is a config that may be made, and of each width no register tile is higher."""
    space = space_of(program, WIDE)
    rows = next(knob.sizes for knob in space.knobs if (knob.field, knob.place) == ("instr_tile", (0,)))
    assert space.seeds and len(set(space.seeds)) == len(space.seeds)
    for wide in {config.instr_tile[1] for config in space.seeds} - {space.default.instr_tile[1]}:
        own = [config for config in space.seeds if config.instr_tile[1] == wide]
        tallest = max(own, key=lambda config: config.instr_tile[0])
        assert all(space.refusal(config) is None and config == space.whole(config) for config in own)
        higher = [r for r in rows if r > tallest.instr_tile[0]]
        assert all(space.refusal(replace(tallest, instr_tile=(r, wide))) is not None for r in higher)

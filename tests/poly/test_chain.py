"""Chained contractions with row statements between them in one kernel, at odd sizes and size 1; refusals; mutations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from tests.poly import chain_programs as chains
from tests.poly.programs import at, axis, buffer
from tests.poly.support import check_values, pieces, scheduled
from tsc.errors import InternalError
from tsc.loop_ir.nodes import Allocate, walk
from tsc.poly import PatternMismatch
from tsc.poly.legality import order_of
from tsc.poly.pattern.chain import Chained, match_chained
from tsc.poly.promotion.promote import check_promoted
from tsc.poly.schedule import ScheduledProgram
from tsc.poly.scop import build_scop
from tsc.poly.tile import TileConfig
from tsc.sym import SymExpr
from tsc.te.compute import MAX, SUM, Compute, Program, SizeParam
from tsc.te.expr import mul

PROGRAMS: dict[str, Callable[[], Program]] = {
    "attention": chains.attention_chain,
    "attention_guarded": lambda: chains.attention_chain(guarded=True),
    "attention_causal_past": lambda: chains.attention_chain(causal=True, past=True, hoisted=False),
    "attention_grouped": lambda: chains.attention_chain(heads=4, shared=2, past=True),
    "attention_one_head": lambda: chains.attention_chain(heads=1, depth=3),
    "matmul_norm": chains.matmul_norm,
    "matmul_norm_residual": lambda: chains.matmul_norm(13, 5, both=True),
    "matmul_rms_norm": lambda: chains.matmul_norm(rms=True),
    "mlp": chains.mlp_chain,
}

@cache
def by_default(name: str) -> ScheduledProgram:
    return scheduled(PROGRAMS[name]())


@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name: str) -> None:
    program, made = PROGRAMS[name](), by_default(name)
    for seed in (1, 2, 3, 7):
        check_values(made.func, program, {s.name: max(s.lo, seed + i * (seed > 1)) for i, s in enumerate(program.sizes)})


@pytest.mark.parametrize("rows", [2, 4, 6])
def test_values_where_a_row_tile_is_not_full(rows: int) -> None:
    program = chains.attention_chain()
    made = scheduled(program, TileConfig(row_tile=(1, 1, rows), stage_tiles=((2, 4), (2, 4))))
    check_values(made.func, program, {"B": 2, "L": 5, "T": 3})
    check_values(made.func, program, {"B": 1, "L": 1, "T": 9})


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_pattern_and_its_strips(name: str) -> None:
    program = PROGRAMS[name]()
    assert isinstance(pieces(program).found, Chained)
    stored = {s.buffer.name: s for s in walk(by_default(name).func.body) if isinstance(s, Allocate)}
    assert {"acc", "acc1"} & set(stored) == {n for n in ("acc", "acc1") if any(c.name == n for c in program.computes)}
    assert all(stored[n].scope == "register" for n in ("acc", "acc1") if n in stored)
    rows = max(by_default(name).config.row_tile)
    for strip in {"x", "e", "p", "h"} & stored.keys():
        assert stored[strip].buffer.shape[0] == SymExpr.of(rows), "a strip holds the rows of one tile"


def test_a_value_that_every_row_needs_is_refused() -> None:
    """out[m] = sum over k, n of a[m, k, n] * (b c)[k, n]: the second product reads all of the first one."""
    a, b, c = buffer("a", "M", "K", "N"), buffer("b", "K", "J"), buffer("c", "J", "N")
    bc, acc, out = buffer("bc", "K", "N"), buffer("acc", "M"), buffer("out", "M")
    k, n, j, m = axis("k", "K"), axis("n", "N"), axis("j", "J"), axis("m", "M")
    k1, n1, m2 = axis("k1", "K"), axis("n1", "N"), axis("m2", "M")
    program = Program(
        (a, b, c), (out,),
        (Compute(bc, (k, n), mul(at(b, k, j), at(c, j, n)), (j,), SUM),
         Compute(acc, (m,), mul(at(a, m, k1, n1), at(bc, k1, n1)), (k1, n1), SUM),
         Compute(out, (m2,), at(acc, m2))), tuple(SizeParam(s) for s in ("M", "K", "J", "N")))
    with pytest.raises(PatternMismatch, match="no axis of bc is a row of all the statements"):
        match_chained(build_scop(program))


def raw_statistics() -> Program:
    """y = a b is an output, and the greatest element of each of its rows another: the accumulators are read by a reduction."""
    a, b, y, mx = buffer("a", "M", 5), buffer("b", 5, 6), buffer("y", "M", 6), buffer("mx", "M")
    m, n, k, m1, n1 = axis("m", "M"), axis("n", 6), axis("k", 5), axis("m1", "M"), axis("n1", 6)
    return Program((a, b), (y, mx), (Compute(y, (m, n), mul(at(a, m, k), at(b, k, n)), (k,), SUM),
                                     Compute(mx, (m1,), at(y, m1, n1), (n1,), MAX)), (SizeParam("M"),))


def test_a_reduction_of_accumulators_reads_a_copy() -> None:
    assert isinstance(pieces(raw_statistics()).found, Chained)
    for rows in (1, 2, 9):
        check_values(scheduled(raw_statistics()).func, raw_statistics(), {"M": rows})


# -- mutations -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", ["x", "e", "mx", "sm"])
def test_a_strip_of_too_few_rows_is_found(name: str) -> None:
    made = pieces(chains.attention_chain(), TileConfig(row_tile=(1, 1, 4), stage_tiles=((2, 4), (2, 4))))
    small = tuple(replace(x, storage=replace(x.storage, shape=(SymExpr.of(3), *x.storage.shape[1:])))
                  if x.buffer.name == name else x for x in made.promoted.locals)
    order = order_of(made.promoted.schedule, made.deps.full)
    with pytest.raises(InternalError, match=f"{name} leaves its storage"):
        check_promoted(replace(made.promoted, locals=small), made.scop, made.deps, order)


def test_a_strip_that_dies_with_the_register_tile_is_found() -> None:
    """The accumulators' life is one register tile; a strip that is read by later stages must not get it."""
    made = pieces(chains.attention_chain())
    moved = tuple(replace(x, statement="alloc_acc") if x.buffer.name == "x" else x for x in made.promoted.locals)
    order = order_of(made.promoted.schedule, made.deps.full)
    with pytest.raises(InternalError, match="values of x are used outside the tile"):
        check_promoted(replace(made.promoted, locals=moved), made.scop, made.deps, order)


def test_default_rows_are_whole_register_tiles() -> None:
    for name in PROGRAMS:
        config = by_default(name).config
        assert all(max(config.row_tile) % mr == 0 for mr, _ in config.stage_tiles)

"""Schedules for GPUs: values at odd and size-1 shapes in the interpreter, with its threads, and their form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from tests.fuzz.check import _lowered as lowered
from tests.fuzz.check import _run as run_of
from tests.fuzz.check import _sizes as sizes_of
from tests.fuzz.check import compare
from tests.fuzz.generate import random_case
from tests.poly import programs
from tests.poly.support import check_values, on_gpu
from tests.poly.test_mutations_promotion import padded_product
from tsc.errors import InternalError
from tsc.loop_ir.gpu.barriers import insert_barriers
from tsc.loop_ir.gpu.pipeline import software_pipeline
from tsc.loop_ir.gpu.threads import nest_count, nests
from tsc.loop_ir.nodes import Allocate, Barrier, For, Func, Stmt, Store, map_children, walk
from tsc.loop_ir.oracle.interpret import interpret
from tsc.loop_ir.verify import verify
from tsc.poly import PatternMismatch
from tsc.poly.deps import dependences
from tsc.poly.gpu.teams import check_teams
from tsc.poly.normalise import separate_outputs
from tsc.poly.pattern.base import Build
from tsc.poly.pattern.lanes import match_lanes, row_program
from tsc.poly.pattern.teams import copy_shape
from tsc.poly.promotion.promote import replaced
from tsc.poly.scop import build_scop
from tsc.poly.tile import TileConfig
from tsc.poly.to_loops import to_loops
from tsc.te.compute import SUM, Compute, Program, SizeParam
from tsc.te.expr import add, call, index

FOUR_WARPS = TileConfig((16, 8, 16), block_tile=(32, 16, 16), warp_tile=(16, 8))
ONE_WARP = TileConfig((8, 16, 1), block_tile=(16, 16, 8), warp_tile=(16, 16))
TWO_ROWS = TileConfig(block_tile=(2, 1, 1))


def kernel(program: Program, config: TileConfig) -> Func:
    """The kernel with its barriers."""
    func = on_gpu(program, config).func
    func = insert_barriers(func)
    verify(func)
    return func


def with_producers() -> Program:
    """out = tanh(t) + t with t = relu(exp(a) @ w + b), each a Compute of its own."""
    program = programs.gemm()
    a, *_ = program.inputs
    e, t, out = (programs.buffer(n, *s) for n, s in (("e", "MK"), ("t", "MN"), ("res", "MN")))
    i, j, p, q = (programs.axis(n, s) for n, s in (("i1", "M"), ("j1", "K"), ("p1", "M"), ("q1", "N")))
    product, last = program.computes
    exponential = Compute(e, (i, j), call("exp", programs.at(a, i, j)))
    product = replace(product, body=replaced(product.body, programs.at(a, *product.axes[:1], *product.reduce_axes),
                                             programs.at(e, *product.axes[:1], *product.reduce_axes)))
    value = programs.at(t, p, q)
    return replace(program, outputs=(out,), computes=(
        exponential, product, replace(last, target=t), Compute(out, (p, q), add(call("tanh", value), value))))


def norm_of_an_output() -> Program:
    """A layer norm of x = words + places, which is an output, too: places do not depend on the batch."""
    norm = programs.layer_norm(6)
    x, gamma = norm.inputs
    words, places = programs.buffer("words", "B", "L", 6), programs.buffer("places", "L", 6)
    b, i, c = programs.axis("b", "B"), programs.axis("i", "L"), programs.axis("c", 6)
    made = Compute(x, (b, i, c), add(programs.at(words, b, i, c), programs.at(places, i, c)))
    return replace(norm, inputs=(words, places, gamma), outputs=(x, *norm.outputs), computes=(made, *norm.computes))


CASES: dict[str, tuple[Callable[[], Program], TileConfig, list[dict[str, int]]]] = {
    "gemm": (programs.gemm, FOUR_WARPS, [{"M": 1, "N": 1, "K": 1}, {"M": 5, "N": 11, "K": 18}]),
    "gemm_transposed": (lambda: programs.gemm(transposed=True), ONE_WARP, [{"M": 3, "N": 9, "K": 11}]),
    "gemm_gelu_static": (lambda: programs.gemm("M", 24, 9, act="gelu"), ONE_WARP, [{"M": 7}]),
    "gemm_empty": (lambda: programs.gemm(lo=0), ONE_WARP, [{"M": 0, "N": 2, "K": 2}, {"M": 3, "N": 5, "K": 0}]),
    "pad_and_cast": (padded_product, ONE_WARP, [{"M": 5, "N": 7, "K": 3}]),
    "attention_scores": (programs.attention_scores, ONE_WARP, [{"B": 1, "L": 1, "T": 1}, {"B": 2, "L": 3, "T": 5}]),
    "attention_values": (programs.attention_values, ONE_WARP, [{"B": 2, "L": 5, "T": 3}]),
    "head_split": (lambda: programs.head_split(3, 4), ONE_WARP, [{"M": 5, "K": 3}]),
    "conv": (programs.conv, ONE_WARP, [{"B": 1, "H": 1, "W": 1}, {"B": 1, "H": 2, "W": 5}]),
    "conv_wide_kernel": (lambda: programs.conv(2, 3, (1, 4)), ONE_WARP, [{"B": 1, "H": 2, "W": 6}]),
    "chain_of_producers": (with_producers, ONE_WARP, [{"M": 5, "N": 7, "K": 3}]),
    "one_row": (lambda: programs.gemm(1, "N", "K"), TWO_ROWS, [{"N": 1, "K": 1}, {"N": 3, "K": 37}]),
    "transpose": (programs.transpose, TWO_ROWS, [{"B": 1, "L": 1}, {"B": 2, "L": 35}]),
    "concat": (programs.concat, TWO_ROWS, [{"A": 1, "B": 1}, {"A": 2, "B": 5}]),
    "softmax": (programs.softmax, TWO_ROWS, [{"R": 1, "C": 1}, {"R": 3, "C": 37}]),
    "softmax_empty": (lambda: programs.softmax(lo=0), TWO_ROWS, [{"R": 0, "C": 3}, {"R": 2, "C": 0}]),
    "layer_norm": (lambda: programs.layer_norm(35), TWO_ROWS, [{"B": 1, "L": 1}, {"B": 2, "L": 3}]),
    "norm_of_an_output": (norm_of_an_output, TWO_ROWS, [{"B": 1, "L": 1}, {"B": 2, "L": 3}]),
    "embedding": (lambda: programs.layer_norm(6, gather=True), TWO_ROWS, [{"B": 1, "L": 3, "V": 4}]),
}


@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    make, config, cases = CASES[name]
    program = make()
    func = kernel(program, config)
    for sizes in cases:
        check_values(func, program, sizes)


def test_a_composed_prologue_is_computed_not_copied() -> None:
    func = on_gpu(padded_product(), ONE_WARP).func
    _, reasons = software_pipeline(func, 2)
    assert len(reasons) == 1 and "is computed, not copied" in reasons[0]


def test_the_form_of_a_kernel() -> None:
    """One nest of whole warps, shared tiles outside of it, a thread's registers inside, constant trip counts but for k."""
    made = on_gpu(programs.gemm(), FOUR_WARPS)
    func, tree, log = made.func, made.tree, made.log
    assert [nest_count(n) for n in nests(func.body, "warp")] == [4]
    assert [nest_count(n) for n in nests(func.body, "thread")] == [32]
    scopes = {s.buffer.name: (s.scope, *map(str, s.buffer.shape)) for s in walk(func.body) if isinstance(s, Allocate)}
    assert scopes == {"acc_i_tile": ("shared", "32", "16"), "acc_j_tile": ("shared", "16", "16"), "acc": ("register", "4")}
    varying = [s.mark for s in walk(func.body) if isinstance(s, For) and s.kind != "block" and nest_count((s,)) is None]
    assert varying == ["k_tile"]
    assert "k_tile" in tree and any("declared associative" in line for line in log)


@pytest.mark.parametrize(("shape", "warps", "most", "expected"), [
    ((128, 32), 4, 8, (4, 8, 8)), ((32, 128), 4, 8, (16, 2, 8)), ((16, 8), 1, 4, (2, 16, 4)), ((32, 16), 4, 4, (4, 8, 4)),
    ((16, 16), 4, 4, (8, 4, 2)), ((8, 64), 1, 4, (16, 2, 4)), ((4, 256), 4, 8, (32, 1, 8))])
def test_tiles_are_copied_in_whole_steps(shape: tuple[int, int], warps: int, most: int, expected: tuple[int, int, int]) -> None:
    across, down, vector = copy_shape(shape, warps, most)
    assert (across, down, vector) == expected
    assert across * down == 32 and shape[0] % (down * warps) == 0 and shape[1] % (across * vector) == 0


def test_the_form_of_a_row_kernel() -> None:
    """A warp a row, its lanes over columns; the only barriers are a warp's own."""
    func = kernel(programs.softmax(), TWO_ROWS)
    assert [nest_count(n) for n in nests(func.body, "warp")] == [2]
    assert [nest_count(n) for n in nests(func.body, "thread")] == [32]
    assert {s.buffer.name for s in walk(func.body) if isinstance(s, Allocate)} == {"mx_part", "mx", "sm_part", "sm"}
    assert {s.team for s in walk(func.body) if isinstance(s, Barrier)} == {"warp"}


def test_what_does_not_fit_is_refused_with_a_reason() -> None:
    with pytest.raises(PatternMismatch, match="in whole steps"):
        on_gpu(programs.gemm(), TileConfig((16, 8, 16), block_tile=(16, 8, 3), warp_tile=(16, 8)))
    x, out, r = programs.buffer("x", "R"), programs.buffer("out"), programs.axis("r", "R")
    whole = Program((x,), (out,), (Compute(out, (), programs.at(x, r), (r,), SUM),), (SizeParam("R"),))
    for program, reason in ((whole, "has no rows"), (programs.total(), "several axes of symbolic extents")):
        with pytest.raises(PatternMismatch, match=reason):
            on_gpu(program, ONE_WARP)


@pytest.mark.parametrize("seeds", [range(400, 404), range(404, 408)])
def test_random_programs(seeds: range) -> None:
    """What is scheduled at all gives the right values, with all its threads; each refusal has a reason."""
    scheduled = 0
    for seed in seeds:
        rng = Random(seed)
        case = random_case(rng)
        runs = [r for most in (1, 3) if (r := run_of(case, sizes_of(case, rng, most), seed)) is not None and r.work < 500]
        program, runs = lowered(case, runs) if case.loose else (case.program, runs)
        try:
            func = kernel(program, ONE_WARP)
        except PatternMismatch as refusal:
            assert str(refusal)
            continue
        for run in runs:
            compare(run, f"seed {seed}", lambda arrays, run=run, func=func: interpret(func, arrays, run.sizes))
        scheduled += 1
    assert scheduled


def test_threads_that_share_an_element_are_rejected() -> None:
    """Every lane's part in one place."""
    scop = build_scop(row_program(separate_outputs(programs.softmax())))
    schedule = match_lanes(scop).tree(TileConfig((16, 8, 16), block_tile=(2, 1, 1)), Build(scop, dependences(scop)))
    func = to_loops(schedule.promoted, schedule.rounded, "kernel")
    check_teams(func, schedule.promoted, schedule.executed)

    def together(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Store) and stmt.buffer.name == "mx_part":
            return replace(stmt, index=(stmt.index[0], index(0)))
        return map_children(together, stmt)

    with pytest.raises(InternalError, match="no barrier in between"):
        check_teams(replace(func, body=together(func.body)), schedule.promoted, schedule.executed)

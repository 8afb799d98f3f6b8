"""Fragments: which reads are put together, that nothing else is read, and what is written out with them."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest

from tests.codegen_cuda.generated import check, launched, load, printed
from tests.poly import programs
from tests.poly.support import inputs_for, on_gpu
from tsc.codegen_cuda.emit import emit_cuda
from tsc.errors import InternalError
from tsc.loop_ir.gpu.fragments import without_fragments
from tsc.loop_ir.gpu.threads import trips
from tsc.loop_ir.gpu.unroll import MOST
from tsc.loop_ir.lower import lower_gpu
from tsc.loop_ir.marks import K
from tsc.loop_ir.nodes import Allocate, Barrier, Block, For, Func, Stmt, Store, block, map_children, walk
from tsc.poly.tile import TileConfig
from tsc.te.expr import index, loads

#: Blocks of one warp, of four, of lanes with 64 accumulators, of rows that are not whole accesses, and of a matrix instruction.
ONE = TileConfig((8, 16, 1), (16, 32, 16), warp_tile=(16, 32), stages=2)
FOUR = TileConfig((8, 16, 1), (64, 64, 16), warp_tile=(32, 32), stages=3)
LARGE = TileConfig((8, 16, 1), (64, 32, 32), warp_tile=(64, 32), stages=2)
SHORT = TileConfig((8, 16, 1), (16, 32, 6), warp_tile=(16, 32), stages=1)
MATRIX = TileConfig((16, 8, 16), (16, 16, 16), warp_tile=(16, 16), stages=2)


def lowered(config: TileConfig, transposed: bool = False) -> Func:
    return lower_gpu(on_gpu(programs.gemm(transposed=transposed), config).func, config.stages)


def fragments(func: Func) -> dict[str, tuple[int, ...]]:
    """The shape of each fragment, the last dim one access, by the buffer that it is read of."""
    found = {}
    for stmt in walk(func.body):
        if isinstance(stmt, Allocate) and "_part" in stmt.buffer.name:
            source = next(e.buffer.name for s in walk(stmt.body) if isinstance(s, Store) and s.buffer == stmt.buffer
                          for e in loads(s.value))
            found[source] = tuple(extent.as_int() or 0 for extent in stmt.buffer.shape)
    return found


@pytest.mark.parametrize(("config", "transposed", "expected"), [
    (ONE, False, {"acc_i_tile": (2, 4), "acc_j_tile": (2, 4)}),   # four steps of k of each row, four columns of each step
    (ONE, True, {"acc_i_tile": (2, 4), "acc_j_tile": (2, 4, 4)}),  # both along k: columns of a transposed operand are apart
    (FOUR, False, {"acc_i_tile": (4, 4), "acc_j_tile": (2, 4)}),
    (LARGE, False, {"acc_i_tile": (8, 4), "acc_j_tile": (2, 4)}),
    (SHORT, False, {"acc_i_tile": (2, 2), "acc_j_tile": (2, 4)}),  # steps of k are two at a time
    (MATRIX, False, {"acc_i_tile": (2, 4)})])  # pairs of columns lie apart: chunks of rows change places
def test_what_is_read_together(config: TileConfig, transposed: bool, expected: dict[str, tuple[int, ...]]) -> None:
    func = lowered(config, transposed)
    found = fragments(func)
    assert {name: found[name] for name in sorted(found)} == expected
    assert not fragments(without_fragments(func))
    assert emit_cuda(func).text.count("load_shared_row<") == len(expected)


@pytest.mark.parametrize("config", [ONE, FOUR, LARGE, SHORT])
def test_values_and_banks(config: TileConfig) -> None:
    """At shapes of several blocks and at odd ones; lanes that read at once read different banks, or the same word."""
    for transposed in (False, True):
        func, program = lowered(config, transposed), programs.gemm(transposed=transposed)
        kernels, text = printed({"kernel": func})
        for sizes in ({"M": 1, "N": 1, "K": 1}, {"M": 67, "N": 65, "K": 37}):
            for mode in ("fast", "lazy", "race"):
                check(func, kernels["kernel"], load(text), program, sizes, mode)
        sizes = {"M": 64, "N": 64, "K": 64}
        report, _, _ = launched(func, kernels["kernel"], load(text), inputs_for(program, sizes), sizes, count=True)
        assert report is not None and report.shared_requests, report
        assert config is SHORT or not report.bank_conflicts, report.bank_conflicts


def changed(stmt: Stmt, held: str, extra: Stmt) -> Stmt:
    """The loops with one more statement behind the fill of a fragment."""
    if isinstance(stmt, Allocate) and stmt.buffer.name == held and isinstance(stmt.body, Block):
        fill, *rest = stmt.body.body
        return replace(stmt, body=block(fill, extra, *rest))
    return map_children(lambda s: changed(s, held, extra), stmt)


def test_what_changes_in_between_is_found() -> None:
    func = lowered(ONE)
    held = next(s for s in walk(func.body) if isinstance(s, Allocate) and "_part" in s.buffer.name)
    source = next(e.buffer for s in walk(held.body) if isinstance(s, Store) and s.buffer == held.buffer for e in loads(s.value))
    zero = tuple(index(0) for _ in held.buffer.shape)
    value = next(s.value for s in walk(func.body) if isinstance(s, Store) and s.buffer == held.buffer)
    first = tuple(index(0) for _ in source.shape)
    for extra in (Barrier("block"), Store(held.buffer, zero, value), Store(source, first, value)):
        with pytest.raises(InternalError, match="after"):
            without_fragments(replace(func, body=changed(func.body, held.buffer.name, extra)))


def test_loops_that_count_registers_are_written_out_as_far_as_few_stores_come_of_it() -> None:
    for config in (ONE, LARGE):
        func = lowered(config)
        for stmt in walk(func.body):
            if isinstance(stmt, For) and isinstance(stmt.body, Store) and stmt.body.buffer.name == "acc":
                assert stmt.kind == "unroll"
    kinds = [[s.kind for s in walk(lowered(config).body) if isinstance(s, For) and s.mark == K] for config in (ONE, LARGE)]
    assert kinds == [["unroll", "unroll"], ["serial", "unroll", "unroll"]]  # 32 steps of 64 sums are more than may be


def test_a_loop_over_k_is_cut_where_all_of_it_is_too_much() -> None:
    """Steps of k, as many as make no more stores than are written out."""
    loops = [s for s in walk(lowered(LARGE).body) if isinstance(s, For) and s.mark == K]
    first, *inner = [trips(loop) or 0 for loop in loops]
    assert first * prod(inner) == 32 and prod(inner) * 64 <= MOST < 2 * prod(inner) * 64 + MOST // 4

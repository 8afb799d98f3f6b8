"""The strips pattern: its form, what it refuses, and schedules of it that are wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from tests.poly.chain_programs import attention_chain
from tests.poly.programs import softmax
from tests.poly.support import GPU
from tests.poly.test_schedule import Overriding
from tsc.errors import InputError, InternalError
from tsc.loop_ir.gpu.threads import nest_count, nests, shared_places
from tsc.loop_ir.lower import lower_gpu
from tsc.loop_ir.nodes import Allocate, For, Func, Stmt, Store, map_children, walk
from tsc.poly import PatternMismatch
from tsc.poly.analyse import analyse, normalised
from tsc.poly.gpu.teams import check_teams
from tsc.poly.pattern import IN_STRIPS
from tsc.poly.pattern.base import Build, Tree
from tsc.poly.pattern.strips import Strips, match_strips, strip_program
from tsc.poly.schedule import ScheduledProgram, schedule_program
from tsc.poly.scop import build_scop
from tsc.poly.tile import TileConfig
from tsc.poly.to_loops import to_loops
from tsc.targets import find
from tsc.te.compute import Program
from tsc.te.expr import Call, Expr, index
from tsc.te.expr import map_children as map_operands
from tsc.trace import Recorder


def made(program: Program, config: TileConfig | None = None, recorder: Overriding | None = None) -> ScheduledProgram:
    return schedule_program(program, GPU, config, recorder, "kernel", forms=IN_STRIPS)  # type: ignore[arg-type]


@cache
def attention() -> ScheduledProgram:
    return made(attention_chain(2, 16))


def test_the_form_of_a_kernel() -> None:
    """A walk for each phase; nothing local is longer than a chunk, and what one lane makes alone is in its registers."""
    found = attention()
    assert "the pattern is strips" in found.log
    assert [nest_count(n) for kind in ("warp", "thread") for n in nests(found.func.body, kind)] == [4, 32]  # type: ignore[arg-type]
    local = {s.buffer.name: (s.scope, *(e.as_int() for e in s.buffer.shape)) for s in walk(found.func.body)
             if isinstance(s, Allocate)}
    assert local == {
        "mx_part": ("register", 2), "mx_lanes": ("shared", 64, 4), "mx": ("shared", 64),
        "sm_part": ("register", 2), "sm_lanes": ("shared", 64, 4), "sm": ("shared", 64),
        "acc_1": ("register", 32), "acc_2": ("register", 32), "acc1_terms": ("register", 32), "acc1": ("register", 8),
        "acc1_strip": ("shared", 4, 16, 64), "acc_1_l0_s2_tile": ("shared", 64, 16),
        **{f"acc_{n}_element_s{k}_tile": ("shared", 64, 16) for n, k in ((1, 4), (2, 22))}, "acc1_d6_tile": ("shared", 64, 16)}
    loops = [s for s in walk(found.func.body) if isinstance(s, For)]
    assert [s.mark for s in loops if nest_count((s,)) is None] == ["block", "block", "k_tile", "k_tile"]


def test_both_walks_are_pipelined() -> None:
    recorder = Recorder()
    func = lower_gpu(attention().func, 2, recorder=recorder)
    assert not [d for d in recorder.decisions if d.stage == "pipeline"]
    staged = [s.buffer.name for s in walk(func.body) if isinstance(s, Allocate) and s.scope == "shared" and len(
        s.buffer.shape) == 3 and s.buffer.name.endswith("_tile")]
    assert len(staged) == 3


def test_other_sizes() -> None:
    config = TileConfig((16, 8, 8), row_tile=(128,), warp_tile=(32, 64))
    found = made(attention_chain(2, 16), config)
    assert found.config == config
    assert [nest_count(n) for n in nests(found.func.body, "warp")] == [4]


def test_rows_of_a_block() -> None:
    """Where two blocks of 64 rows do not stand on a multiprocessor together, a block has 128, if those fit; what is counted is
    what a block takes."""
    found = attention_chain(2, 16), attention_chain(2, 64), attention_chain(2, 128)
    chosen = {}
    for arch in ("sm_80", "sm_90a"):
        spec = find(f"emu:{arch}", "tf32").spec
        for program in found:
            strips = analyse(normalised(program), ((strip_program, (match_strips,)),)).found
            assert isinstance(strips, Strips)
            config = strips.default_config(spec)
            chosen[arch, program.inputs[0].shape[-1].as_int()] = config.row_tile[0]
            assert strips.space(spec).default == config
    assert chosen == {("sm_80", 16): 64, ("sm_80", 64): 64, ("sm_80", 128): 64, ("sm_90a", 16): 64, ("sm_90a", 64): 128,
                      ("sm_90a", 128): 64}
    strips = analyse(normalised(found[0]), ((strip_program, (match_strips,)),)).found
    assert isinstance(strips, Strips)
    assert strips.shared_bytes(TileConfig(row_tile=(64,), stages=2)) == shared_places(lower_gpu(attention().func, 2))[1]


def test_what_does_not_fit_a_block_is_refused() -> None:
    with pytest.raises(PatternMismatch, match="extent of 200; a block has one tile, of at most 128"):
        match_strips(build_scop(strip_program(normalised(attention_chain(2, 200)))))
    with pytest.raises(PatternMismatch, match="there are 0 sums of products"):
        strip_program(normalised(softmax()))


# -- mutations -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("change", [
    ("acc1_strip_store[b0_s41, h0_s42, l0_s43, chunk_s44, element_s45] -> [(chunk_s44)]",
     "acc1_strip_store[b0_s41, h0_s42, l0_s43, chunk_s44, element_s45] -> [(1 + chunk_s44)]"),  # a chunk too late
    ("sm_part_update[", "mx_part_update["),
])
def test_another_order_is_refused(change: tuple[str, str]) -> None:
    tree = attention().tree
    assert change[0] in tree, tree
    with pytest.raises(InputError):
        made(attention_chain(2, 16), recorder=Overriding(tree.replace(*change)))


def tree_of(program: Program) -> tuple[Tree, Func]:
    found = analyse(normalised(program), ((strip_program, (match_strips,)),))
    assert isinstance(found.found, Strips)
    tree = found.found.tree(found.found.default_config(GPU), Build(found.scop, found.deps))
    return tree, found.found.loops(to_loops(tree.promoted, tree.rounded, "kernel", found.found.kept))


def test_lanes_that_share_an_element_are_refused() -> None:
    """Of a swizzled strip, each element has one lane that stores it; of registers, one that has them."""
    tree, func = tree_of(attention_chain(2, 16))
    check_teams(func, tree.promoted, tree.executed)

    def unswizzled(expr: Expr) -> Expr:
        return index(0) if isinstance(expr, Call) and expr.fn == "bitxor" else map_operands(unswizzled, expr)

    def changed(stmt: Stmt, name: str, change: Callable[[Expr], Expr]) -> Stmt:
        if isinstance(stmt, Store) and stmt.buffer.name == name:
            return replace(stmt, index=tuple(map(change, stmt.index)))
        return map_children(lambda s: changed(s, name, change), stmt)

    with pytest.raises(InternalError, match="no barrier in between"):
        check_teams(replace(func, body=changed(func.body, "acc1_strip", unswizzled)), tree.promoted, tree.executed)
    with pytest.raises(InternalError, match="touches registers of another"):
        check_teams(replace(func, body=changed(func.body, "mx_part", lambda e: index(0))), tree.promoted, tree.executed)

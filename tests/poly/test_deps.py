"""Dependences and what a tree makes of them, against isl's own analysis and against the tree's order as one flat map."""

from __future__ import annotations

from collections.abc import Callable

import islpy
import pytest

from tests.poly import chain_programs, programs
from tests.poly.support import SMALL
from tsc.poly import isl
from tsc.poly.deps import dependences
from tsc.poly.legality import order_of
from tsc.poly.pattern import match
from tsc.poly.pattern.base import Build
from tsc.poly.scop import Scop, build_scop
from tsc.te.compute import Program

PROGRAMS: dict[str, Callable[[], Program]] = {
    "gemm": programs.gemm, "conv": programs.conv, "softmax": programs.softmax, "layer_norm": programs.layer_norm,
    "gather": lambda: programs.layer_norm(4, gather=True), "column_sums": programs.column_sums, "concat": programs.concat,
    "head_split": programs.head_split, "attention": chain_programs.attention_chain,
    "matmul_norm": chain_programs.matmul_norm}


def _original_order(scop: Scop) -> isl.UnionMap:
    """Instances -> (number of the statement, its axes, zeros)."""
    depth = max(len(s.axes) for s in scop.statements.values())
    parts = []
    for number, statement in enumerate(scop.statements.values()):
        axes = [a.name for a in statement.axes]
        values = ", ".join([str(number), *axes, *["0"] * (depth - len(axes))])
        parts.append(f"{statement.name}[{', '.join(axes)}] -> [{values}]")
    return isl.UnionMap(f"{scop.params} -> {{ {'; '.join(parts)} }}").intersect_domain(scop.domain)


@pytest.mark.parametrize("name", PROGRAMS)
def test_dependences_are_those_that_isl_finds(name: str) -> None:
    scop = build_scop(PROGRAMS[name]())
    written = {a.buffer.name for a in scop.writes}
    reads = isl.union_of_maps(scop.params, (a.relation for a in scop.reads if a.buffer.name in written))
    writes = isl.union_of_maps(scop.params, (a.relation for a in scop.writes))
    found = isl.UnionMap(scop.params + " -> { }")
    for sink, source in ((reads, writes), (writes, writes), (writes, reads)):
        info = islpy.UnionAccessInfo.from_sink(sink).set_may_source(source).set_schedule_map(_original_order(scop))
        found = found.union(info.compute_flow().get_may_dependence())
    deps = dependences(scop)
    assert deps.full.is_equal(found.intersect_params(scop.context))
    assert deps.through.keys() == written


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_tree_breaks_what_its_flat_order_breaks(name: str) -> None:
    scop = build_scop(PROGRAMS[name]())
    deps = dependences(scop)
    found = match(scop)[0].solved(scop, deps)[0]
    trees: dict[str, isl.Schedule] = {}
    found.tree(found.default_config(SMALL), Build(scop, deps, trees.__setitem__))
    assert len(trees) == 3  # initial, tiled, separated: no extensions yet, so that each is one map
    for step, tree in trees.items():
        flat = tree.get_map()
        for pairs in (deps.full, deps.full.reverse()):
            backward = pairs.intersect(flat.lex_ge_union_map(flat))
            assert order_of(tree, pairs).broken.is_equal(backward), step

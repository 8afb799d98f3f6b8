"""Patterns and matrices: which axes are chosen, what rows follow from access relations, how `?` is solved, why not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.poly import programs
from tests.poly.programs import at, axis, buffer
from tsc.poly import PatternMismatch, isl
from tsc.poly.deps import dependences
from tsc.poly.matrix import ScheduleMatrix, function, solve
from tsc.poly.pattern import match
from tsc.poly.pattern.contraction import Contraction
from tsc.poly.pattern.stages import Staged
from tsc.poly.scop import Scop, build_scop
from tsc.te.compute import MAX, SUM, Compute, Program, SizeParam
from tsc.te.expr import Cast, Expr, add, index, mul
from tsc.te.passes.products import unit_stride


def rows_of(matrix: ScheduleMatrix, statement: str) -> list[str]:
    return ["?" if r is None else isl.function_text(r) for r in matrix.entries[statement]]


def solved(program: Program) -> tuple[Scop, Contraction]:
    scop = build_scop(program)
    found, _ = match(scop)
    assert isinstance(found, Contraction)
    return scop, replace(found, matrix=solve(found.matrix, scop, dependences(scop).relaxed))


def test_contraction_rows_and_solved_shifts() -> None:
    _, found = solved(programs.gemm())
    assert (found.batch, found.n, found.m) == ((), "j", "i")
    assert rows_of(found.matrix, "acc_init") == ["j", "i", "0"]
    assert rows_of(found.matrix, "out_store") == ["y", "x", "-1 + K"]
    assert rows_of(solved(programs.gemm("M", 8, 256))[1].matrix, "out_store") == ["y", "x", "255"]


def test_one_unknown_a_reduce_axis() -> None:
    scop = build_scop(programs.conv(256, 8, (3, 3)))
    found, _ = match(scop)
    assert isinstance(found, Contraction)
    assert rows_of(found.matrix, "out_store")[-3:] == ["?", "?", "?"]
    assert rows_of(solved(programs.conv(256, 8, (3, 3)))[1].matrix, "out_store")[-3:] == ["255", "2", "2"]


def test_the_vector_axis_follows_the_store() -> None:
    _, found = solved(programs.attention_values())
    assert (found.batch, found.n, found.m) == (("b", "h"), "j", "i")
    assert rows_of(found.matrix, "out_store") == ["c", "g", "y", "x", "-1 + T"]
    assert rows_of(solved(programs.head_split())[1].matrix, "out_store") == ["4h + d", "x", "-1 + K"]
    conv, _ = match(build_scop(programs.conv()))
    assert isinstance(conv, Contraction) and (conv.n, conv.m) == ("w", "o")


def test_rows_do_not_depend_on_names() -> None:
    """The transposed store is recognised by what it reads, so that n is the anchor's first axis."""
    a, w = buffer("a", "M", "K"), buffer("w", "K", "N")
    acc, out = buffer("acc", "M", "N"), buffer("out", "N", "M")
    i, j, r, x, y = axis("i", "M"), axis("j", "N"), axis("r", "K"), axis("x", "N"), axis("y", "M")
    _, found = solved(Program(
        (a, w), (out,), (Compute(acc, (i, j), mul(at(a, i, r), at(w, r, j)), (r,), SUM), Compute(out, (x, y), at(acc, y, x))),
        tuple(SizeParam(s) for s in "MNK")))
    assert (found.n, found.m) == ("i", "j")
    assert rows_of(found.matrix, "out_store") == ["y", "x", "-1 + K"]


@pytest.mark.parametrize("make, reason", [
    (programs.softmax, "2 reductions"), (programs.column_sums, "no sum of products"), (programs.transpose, "0 reductions")])
def test_refusals_have_reasons(make: object, reason: str) -> None:
    scop = build_scop(make())  # type: ignore[operator]
    found, reasons = match(scop)
    assert isinstance(found, Staged) and any(reason in r for r in reasons)


def test_a_matrix_vector_product_is_a_reduction() -> None:
    a, x, out = buffer("a", "M", "K"), buffer("x", "K"), buffer("out", "M")
    i, r = axis("i", "M"), axis("r", "K")
    found, reasons = match(build_scop(Program(
        (a, x), (out,), (Compute(out, (i,), mul(at(a, i, r), at(x, r)), (r,), SUM),), (SizeParam("M"), SizeParam("K")))))
    assert isinstance(found, Staged) and any("no second axis" in r for r in reasons)


def test_a_maximum_of_products_is_no_contraction() -> None:
    program = programs.gemm()
    first = replace(program.computes[0], monoid=MAX)
    found, reasons = match(build_scop(replace(program, computes=(first, program.computes[1]))))
    assert isinstance(found, Staged) and any("no sum of products" in r for r in reasons)


def test_stages_of_a_layer_norm() -> None:
    found, _ = match(build_scop(programs.layer_norm(8)))
    assert isinstance(found, Staged)
    assert [s.statements for s in found.stages] == [
        ("total_init", "total_update", "mean_store"), ("square_init", "square_update", "rstd_store"), ("out_store",)]
    assert not found.within < len(found.matrix.names)


def test_columns_are_reduced_across() -> None:
    found, _ = match(build_scop(programs.column_sums()))
    assert isinstance(found, Staged) and found.within < len(found.matrix.names)


def test_shifts_are_the_least_and_the_greatest_legal_ones() -> None:
    scop = build_scop(programs.gemm())
    deps = dependences(scop).relaxed
    found, _ = match(scop)
    matrix = solve(found.matrix, scop, deps)
    for statement, change in (("out_store", "K - 2"), ("acc_init", "1")):
        rows = (*matrix.entries[statement][:-1], function(scop, statement, change))
        schedule = isl.row_map(isl.rows(scop.domain, [[
            (rows if s == statement else matrix.entries[s])[-1] for s in matrix.entries]]), 0)
        assert not deps.intersect(schedule.lex_gt_union_map(schedule)).is_empty(), statement


def test_an_infeasible_shift_has_a_reason() -> None:
    scop = build_scop(programs.gemm())
    found, _ = match(scop)
    names = list(scop.statements)
    both = isl.UnionMap("[M, N, K] -> { acc_update[i, j, r] -> out_store[i, j]; out_store[i, j] -> acc_update[i, j, r] }")
    with pytest.raises(PatternMismatch, match=r"no single affine shift of .*out_store"):
        solve(found.matrix, scop, both.intersect_domain(scop.domain).intersect_range(scop.domain))
    assert names == ["acc_init", "acc_update", "out_store"]


def test_a_shift_that_is_not_one_affine_piece_has_a_reason() -> None:
    scop = build_scop(programs.gemm())
    found, _ = match(scop)
    ragged = isl.UnionMap("[M, N, K] -> { acc_init[i, j] -> acc_update[i, j, r] : r > 2 or K <= 5 }")
    with pytest.raises(PatternMismatch, match="no single affine shift"):
        solve(found.matrix, scop, ragged.intersect_domain(scop.domain).intersect_range(scop.domain))


@pytest.mark.parametrize("where", ["r < K - 1 or K <= 5", "r = 0 and K = 1", "r = 2"])
def test_what_follows_a_reduction_comes_behind_all_of_it(where: str) -> None:
    """Also where it needs few of its terms, or needs them at few sizes."""
    scop = build_scop(programs.gemm())
    found, _ = match(scop)
    some = isl.UnionMap(f"[M, N, K] -> {{ acc_update[i, j, r] -> out_store[i, j] : {where} }}")
    solved = solve(found.matrix, scop, some.intersect_domain(scop.domain).intersect_range(scop.domain))
    assert isl.function_text(solved.entries["out_store"][-1]) == "-1 + K"


def test_unit_stride() -> None:
    x = buffer("x", "A", "B")
    i, j = axis("i", "A"), axis("j", "B")
    cases: list[tuple[Expr, str, bool]] = [
        (at(x, i, j), "j", True), (at(x, i, j), "i", False), (Cast(at(x, i, j), "float64"), "j", True),
        (at(x, i, add(at(x, i, j).index[1], index(3))), "j", True), (at(x, i, mul(index(2), at(x, i, j).index[1])), "j", False),
        (at(x, j, j), "j", False), (add(at(x, i, j), at(x, i, j)), "j", False)]
    for factor, name, expected in cases:
        assert unit_stride(factor, name) is expected, factor

"""Scops: statements, exact and opaque accesses, conditions, the symbolic context."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.poly import programs
from tests.poly.programs import at, axis, buffer, v
from tests.poly.support import SMALL
from tsc.errors import InternalError
from tsc.poly import isl
from tsc.poly.affine import condition_text, index_text
from tsc.poly.schedule import schedule_program
from tsc.poly.scop import build_scop, needs, unproved, with_checks
from tsc.sym import dim
from tsc.te.compute import Compute, Fact, Program, SizeParam
from tsc.te.expr import BOOL, Call, Cast, CheckedIndex, Const, Expr, Size, Var, add, call, index, mul, substitute
from tsc.te.index import is_affine
from tsc.te.intrinsics import MEANING


def test_statements_of_a_reduction() -> None:
    scop = build_scop(programs.gemm())
    assert list(scop.statements) == ["acc_init", "acc_update", "out_store"]
    assert scop.domain.is_equal(isl.UnionSet(
        "[M, N, K] -> { acc_init[i, j] : 0 <= i < M and 0 <= j < N;"
        " acc_update[i, j, k] : 0 <= i < M and 0 <= j < N and 0 <= k < K;"
        " out_store[i, j] : 0 <= i < M and 0 <= j < N }").intersect_params(scop.context))


def test_access_relations() -> None:
    scop = build_scop(programs.gemm("M", "N", "K", transposed=True))
    reads = isl.union_of_maps(scop.params, (a.relation for a in scop.reads if a.statement == "acc_update"))
    expected = isl.UnionMap("[M, N, K] -> { acc_update[i, j, k] -> a[i, k]; acc_update[i, j, k] -> w[j, k];"
                            " acc_update[i, j, k] -> acc[i, j] }").intersect_domain(scop.domain)
    assert reads.is_equal(expected)
    assert all(a.exact for a in scop.reads + scop.writes)


def test_context_has_bounds_and_divisors() -> None:
    program = replace(programs.transpose(), sizes=(SizeParam("B", 0, 4), SizeParam("L", 1, 1, 64)))
    assert build_scop(program).context.is_equal(isl.Set("[B, L] -> { : B >= 0 and B mod 4 = 0 and 1 <= L <= 64 }"))


def test_facts_prove_extents_and_stay_out_of_the_context() -> None:
    x, out = buffer("x", "N"), buffer("out", "H")
    i = axis("i", "H")
    sizes = (SizeParam("N"), SizeParam("H"))
    program = Program((x,), (out,), (Compute(out, (i,), at(x, mul(v(i), Const(2, "int64")))),), sizes)
    with pytest.raises(InternalError, match="outside its extents"):
        build_scop(program)
    scop = build_scop(replace(program, facts=(Fact(dim("H"), "==", (dim("N") + 1) // 2),)))
    assert scop.context.is_equal(isl.Set("[N, H] -> { : N >= 1 and H >= 1 }"))
    hidden = (Fact(dim("H"), "<=", dim("h0")), Fact(2 * dim("h0"), "<=", dim("N") + 1))
    known = build_scop(replace(program, facts=hidden)).known
    assert known.is_equal(isl.Set("[N, H] -> { : N >= 1 and 1 <= H and 2H <= N + 1 }"))


def _indices() -> st.SearchStrategy[Expr]:
    leaves = st.sampled_from((Var("i"), Var("j"), Size(dim("M")), index(-3), index(0), index(1), index(4),
                              Cast(Var("i"), "int64"), Cast(Var("i"), "int8"), at(buffer("k", "M", dtype="int64"), Var("i"))))
    binary = st.sampled_from(("add", "sub", "mul", "floordiv", "mod", "min", "max"))
    return st.recursive(leaves, lambda inner: st.one_of(
        st.builds(lambda fn, a, b: Call(fn, (a, b), "int64"), binary, inner, inner),
        st.builds(lambda fn, a: Call(fn, (a,), "int64"), st.sampled_from(("neg", "abs")), inner),
        st.builds(lambda a, b: Call("select", (Call("lt", (a, b), BOOL), a, b), "int64"), inner, inner)), max_leaves=6)


@given(_indices())
def test_what_te_calls_affine_has_a_formula(place: Expr) -> None:
    """A Cast counted as affine once, which isl knows nothing of: such an index was checked by nobody."""
    if is_affine(place):
        assert index_text(place, {"i": "i", "j": "j"}) is not None


def test_data_dependent_index_is_opaque() -> None:
    scop = build_scop(programs.layer_norm(4, gather=True))
    table = next(a for a in scop.reads if a.buffer.name == "table")
    assert not table.exact
    assert table.relation.range().is_subset(isl.Set("[B, L, V] -> { table[v, c] : 0 <= v < V and 0 <= c < 4 }"))
    assert any("opaque" in note for note in scop.notes)


@pytest.mark.defect(23)
def test_symbolic_division_is_an_exact_cell_of_a_view_and_constant_division_needs_none() -> None:
    x, out = buffer("x", 2), buffer("out", "M")
    i = axis("i", "M")
    for divisor, through in ((Size(dim("L")), True), (Const(3, "int64"), False)):
        index = call("mod", call("floordiv", v(i), divisor), Const(2, "int64"))
        scop = build_scop(Program((x,), (out,), (Compute(out, (i,), at(x, index)),), (SizeParam("L"), SizeParam("M"))))
        read, = scop.reads
        assert read.exact and (read.view is not None) == through and not scop.notes
        if read.view is not None:
            assert read.view.relation.is_equal(isl.Map("[L, M] -> { out_store[i] -> [i] : L > 0 and 0 <= i < M }"))
            assert read.view.layout.index == (substitute(index, {"i": v(axis("i0", 1))}),)


def test_conditions_restrict_accesses() -> None:
    scop = build_scop(programs.concat())
    domains = {a.buffer.name: a.relation.domain() for a in scop.reads}
    assert domains["x"].is_equal(isl.Set("[A, B] -> { out_store[i, j] : 0 <= i < A and 0 <= j < 3 and B > 0 }"))
    assert domains["y"].is_equal(isl.Set("[A, B] -> { out_store[i, j] : A <= i < A + B and 0 <= j < 3 and A > 0 }"))


def test_a_product_as_an_extent_is_refused() -> None:
    x, out = buffer("x", dim("A") * dim("B")), buffer("out", dim("A") * dim("B"))
    i = axis("i", dim("A") * dim("B"))
    with pytest.raises(InternalError, match="size of its own"):
        build_scop(Program((x,), (out,), (Compute(out, (i,), at(x, i)),), (SizeParam("A"), SizeParam("B"))))


def test_an_axis_named_like_a_size_is_refused() -> None:
    x, out = buffer("x", "N"), buffer("out", "N")
    n = axis("N", "N")
    with pytest.raises(InternalError, match="share the names"):
        build_scop(Program((x,), (out,), (Compute(out, (n,), add(at(x, n), at(x, n))),), (SizeParam("N"),)))


@pytest.mark.parametrize("negate", [False, True])
@pytest.mark.parametrize("fn", ["and", "or", "xor", "eq", "ne"])
def test_a_condition_holds_where_its_formula_does(fn: str, negate: bool) -> None:
    place = Var("i")
    one, two = call("lt", place, index(4)), Call("not", (call("eq", call("mod", place, index(2)), index(0)),), BOOL)
    text = condition_text(Call(fn, (one, Call(fn, (two, Const(False, BOOL)), BOOL)), BOOL), {"i": "i"}, negate)
    assert text is not None
    for i in range(8):
        odd = int(MEANING[fn](i % 2 == 1, False))
        holds = bool(MEANING[fn](i < 4, bool(odd))) != negate
        assert isl.condition("[i]", f"i = {i} and {text}").is_empty() != holds, i


# -- indices without a formula ---------------------------------------------------------------------------------

N = Size(dim("N"))
_NARROW = Cast(Cast(Var("i"), "int8"), "int64")
_DATA = at(buffer("k", "M", dtype="int64"), Var("i"))
HELD = {
    "checked": CheckedIndex(_DATA, dim("N"), "k"),
    "between ends": call("min", call("max", _DATA, index(0)), call("sub", N, index(1))),
    "a number's remainder": call("min", call("mod", _NARROW, index(7)), call("sub", N, index(1))),
    "half of what is checked": call("floordiv", CheckedIndex(_DATA, dim("N"), "k"), index(2)),
}
FREE = {
    "a remainder, of nothing where there are no elements": call("mod", _DATA, N),
    "data": _DATA,
    "a narrow integer": _NARROW,
    "below an end": call("min", _DATA, call("sub", N, index(1))),
    "above an end": call("max", _NARROW, index(0)),
    "one more than is checked": add(CheckedIndex(_DATA, dim("N"), "k"), index(1)),
    "checked for another extent": CheckedIndex(_DATA, dim("M"), "k"),
    "chosen by data": Call("select", (Call("lt", (_DATA, N), BOOL), _DATA, index(0)), "int64"),
}


def reading(place: Expr) -> Program:
    out = buffer("out", "M")
    inputs = (buffer("x", "N"), buffer("k", "M", dtype="int64"))
    return Program(inputs, (out,), (Compute(out, (axis("i", "M"),), at(inputs[0], place)),),
                   (SizeParam("N", 1), SizeParam("M", 1)))


@pytest.mark.parametrize("name", HELD)
def test_what_no_formula_says_may_be_held_within_extents(name: str) -> None:
    assert all(access.bounded for access in build_scop(reading(HELD[name])).reads)


@pytest.mark.parametrize("name", FREE)
def test_what_nothing_holds_within_extents_is_no_scop(name: str) -> None:
    with pytest.raises(InternalError, match="at an index that nothing holds within its extents"):
        schedule_program(reading(FREE[name]), SMALL, None, None, "kernel")
    assert needs(reading(FREE[name])) == () and unproved(reading(FREE[name])) is not None
    assert all(access.bounded for access in build_scop(with_checks(reading(FREE[name]))).reads)


def test_only_what_nothing_holds_is_checked() -> None:
    program = reading(HELD["between ends"])
    assert with_checks(program) is program

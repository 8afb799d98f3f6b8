"""Reductions cut into chunks mean what they meant: the te evaluator before and after, at random extents and chunks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.poly import programs
from tests.poly.chain_programs import attention_chain
from tests.poly.programs import at, axis, buffer, f32, v
from tsc.errors import InternalError
from tsc.sym import dim
from tsc.te.compute import MAX, MIN, SUM, Compute, Monoid, Program, SizeParam
from tsc.te.evaluate import evaluate
from tsc.te.expr import BOOL, INDEX, Call, Cast, Const, Expr, Size, Var, add, call, mul, select
from tsc.te.factored import factor as module
from tsc.te.factored.chunks import cut
from tsc.te.factored.factor import NotFactored, factor
from tsc.te.factored.monoids import TupleMonoid, declared, replaced


def softmax(shared: bool = True) -> Program:
    """Softmax over any length, 0 included; its exponentials stored or written out."""
    program = programs.softmax(lo=0)
    if shared:
        return program
    _, e, sm, out = program.computes
    axes = [Var(a.name) for a in (*sm.axes, *sm.reduce_axes)]
    body = call("exp", call("sub", at(program.inputs[0], *axes), at(buffer("mx", "R"), axes[0])))
    return replace(program, computes=(program.computes[0], e, replace(sm, body=body), out))


def variance(columns: int | str = "C") -> Program:
    """rstd[r] = 1 / sqrt(sum over c of (x - mean)**2 / C + epsilon), and the mean."""
    n: Expr = f32(float(columns)) if isinstance(columns, int) else Cast(Size(dim(columns)), "float32")
    x, total, mean, square, out = (buffer(name, *shape) for name, shape in (
        ("x", ("R", columns)), ("total", ("R",)), ("mean", ("R",)), ("square", ("R",)), ("out", ("R",))))
    r0, c0, r1, r2, c2, r3 = (axis(name, e) for name, e in (
        ("r0", "R"), ("c0", columns), ("r1", "R"), ("r2", "R"), ("c2", columns), ("r3", "R")))
    centred = call("sub", at(x, r2, c2), at(mean, r2))
    return Program(
        (x,), (mean, out),
        (Compute(total, (r0,), at(x, r0, c0), (c0,), SUM), Compute(mean, (r1,), call("div", at(total, r1), n)),
         Compute(square, (r2,), mul(centred, centred), (c2,), SUM),
         Compute(out, (r3,), call("div", f32(1.0), call("sqrt", add(call("div", at(square, r3), n), f32(1e-5)))))),
        tuple(SizeParam(s) for s in ("R", columns) if isinstance(s, str)))


def arg(extreme: Monoid = MAX, last: bool = False) -> Program:
    """out[r] = the first (or last) c at which x[r, c] is extreme; the extent (or -1) where there is none."""
    x, top, out = buffer("x", "R", "C"), buffer("top", "R"), buffer("out", "R", dtype="int64")
    r0, c0, r1, c1 = axis("r0", "R"), axis("c0", "C"), axis("r1", "R"), axis("c1", "C")
    none: Expr = Const(-1, INDEX) if last else Size(dim("C"))
    place = select(call("eq", at(x, r1, c1), at(top, r1)), v(c1), none)
    return Program(
        (x,), (top, out),
        (Compute(top, (r0,), at(x, r0, c0), (c0,), extreme), Compute(out, (r1,), place, (c1,), MAX if last else MIN)),
        (SizeParam("R"), SizeParam("C", 0)))


def attention(shares: str = "late", heads: int = 2, depth: int = 3) -> Program:
    """out[b, l, h, d] = sum over t of softmax over t of (q . k * 0.5 + mask) * v. `shares`: the division comes "late", or the
    shares are stored, divided ("early"), or multiplied by a reciprocal and turned from NaN into 0 ("guarded")."""
    q, k, w = (buffer(n, "B", e, heads, depth) for n, e in (("q", "L"), ("k", "T"), ("v", "T")))
    mask, square = buffer("mask", "B", "T"), ("B", heads, "L", "T")
    acc, s, e, p = (buffer(n, *square) for n in ("acc", "s", "e", "p"))
    mx, sm, r = (buffer(n, *square[:3]) for n in ("mx", "sm", "r"))
    o, out = buffer("o", *square[:3], depth), buffer("out", "B", "L", heads, depth)
    rows = [[axis(f"{n}{i}", x) for n, x in zip("bhlt", square)] for i in range(9)]
    d0, d6, d7 = (axis(f"d{i}", depth) for i in (0, 6, 7))

    def row(i: int) -> tuple[Any, ...]:
        return tuple(rows[i][:3])

    def whole(i: int) -> tuple[Any, ...]:
        return tuple(rows[i])

    (b0, h0, l0, t0), (b6, h6, l6, t6), (b7, h7, l7, _) = rows[0], rows[6], rows[7]
    shifted = call("exp", call("sub", at(s, *whole(3)), at(mx, *row(3))))
    share = {"late": at(e, *whole(5)), "early": call("div", at(e, *whole(5)), at(sm, *row(5))),
             "guarded": mul(at(e, *whole(5)), at(r, *row(5)))}[shares]
    if shares == "guarded":
        share = select(Call("isnan", (share,), BOOL), f32(0.0), share)
    result = at(o, b7, h7, l7, d7)
    computes = (
        Compute(acc, whole(0), mul(at(q, b0, l0, h0, d0), at(k, b0, t0, h0, d0)), (d0,), SUM),
        Compute(s, whole(1), add(mul(at(acc, *whole(1)), f32(0.5)), at(mask, rows[1][0], rows[1][3]))),
        Compute(mx, row(2), at(s, *whole(2)), (rows[2][3],), MAX), Compute(e, whole(3), shifted),
        Compute(sm, row(4), at(e, *whole(4)), (rows[4][3],), SUM),
        Compute(r, row(8), call("div", f32(1.0), at(sm, *row(8)))), Compute(p, whole(5), share),
        Compute(o, (b6, h6, l6, d6), mul(at(p, *whole(6)), at(w, b6, t6, h6, d6)), (t6,), SUM),
        Compute(out, (b7, l7, h7, d7), call("div", result, at(sm, b7, h7, l7)) if shares == "late" else result))
    computes = tuple(c for c in computes if c.name != "r" or shares == "guarded")
    return Program((q, k, w, mask), (out,), computes, tuple(SizeParam(x) for x in "BLT"))


CASES: dict[str, tuple[Callable[[], Program], tuple[str, ...]]] = {
    "softmax": (softmax, ("mx", "sm")), "softmax_written_out": (lambda: softmax(False), ("mx", "sm")),
    "softmax_fixed": (lambda: programs.softmax("R", 13), ("mx", "sm")), "only_the_maximum": (softmax, ("mx",)),
    "variance": (variance, ("total", "square")), "variance_fixed": (lambda: variance(12), ("total", "square")),
    "layer_norm": (lambda: programs.layer_norm(20), ("total", "square")),
    **{f"{extreme.fn}_{'last' if last else 'first'}": (lambda e=extreme, x=last: arg(e, x), ("top", "out"))
       for extreme in (MAX, MIN) for last in (False, True)},
    "split_k": (programs.gemm, ("acc",)), "columns": (programs.column_sums, ("out",)), "total": (programs.total, ("out",)),
    **{f"attention_{shares}": (lambda s=shares: attention(s), ("mx", "sm", "o")) for shares in ("late", "early", "guarded")},
    **{f"chain_{'_'.join(flags)}": (lambda f=flags: attention_chain(2, 3, **dict.fromkeys(f, True)), ("mx", "sm", "acc1"))
       for flags in (("hoisted",), ("guarded",), ("causal",), ("past",), ("causal", "past"))},
    "chain_shared": (lambda: attention_chain(4, 3, shared=2), ("mx", "sm", "acc1"))}


def data(program: Program, sizes: dict[str, int], seed: int) -> dict[str, Any]:
    """Inputs with ties, and values of -inf in some (for softmax whole rows of it)."""
    rng = np.random.default_rng(seed)
    made = {b.name: rng.integers(-3, 4, tuple(d.evaluate(sizes) for d in b.shape)) * 0.75 for b in program.inputs}
    for name in made.keys() & {"mask"} if "mask" in made else made.keys() & {"x"} if "mx" in str(program) else ():
        made[name][rng.random(made[name].shape) < 0.4] = -math.inf
    return {n: a.astype("float32") for n, a in made.items()}


def check(program: Program, changed: Program, sizes: dict[str, int], seed: int = 0) -> None:
    inputs = data(program, sizes, seed)
    expected, found = evaluate(program, inputs, sizes, "float64"), evaluate(changed, inputs, sizes, "float64")
    for b in program.outputs:
        np.testing.assert_allclose(found[b.name], expected[b.name], rtol=1e-9, atol=1e-9, err_msg=f"{b.name} at {sizes}")


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=15, deadline=None)
@given(values=st.lists(st.integers(0, 19), min_size=3, max_size=3), chunk=st.sampled_from([1, 2, 3, 5, 8, 19, 64]),
       seed=st.integers(0, 9))
def test_factoring_keeps_the_meaning(name: str, values: list[int], chunk: int, seed: int) -> None:
    program, names = CASES[name][0](), CASES[name][1]
    sizes = {s.name: max(s.lo, x) for s, x in zip(program.sizes, values)}
    changed = factor(program, names, chunk)
    check(program, changed, sizes, seed)
    parts = [c.name for c in changed.computes if c.name.endswith("_part")]
    assert len(parts) == len(names)
    first, second = cut(changed, parts)
    inputs = data(program, sizes, seed)
    between = evaluate(first, {b.name: inputs[b.name] for b in first.inputs}, sizes, "float64")
    given_both = inputs | {b.name: between[b.name] for b in first.outputs}
    found = evaluate(second, {b.name: given_both[b.name] for b in second.inputs}, sizes, "float64") | between
    expected = evaluate(program, inputs, sizes, "float64")
    for b in program.outputs:
        np.testing.assert_allclose(found[b.name], expected[b.name], rtol=1e-9, atol=1e-9)


def test_rows_of_minus_infinity_alone() -> None:
    """Chunks of nothing but -inf count nothing in a row that has more; where the whole row is so, softmax is NaN as before."""
    program = softmax()
    changed = factor(program, ["mx", "sm"], 2)
    x = np.full((3, 6), -np.inf, "float32")
    x[1, 5], x[2, 0] = 2.0, -1.0
    found = evaluate(changed, {"x": x}, {"R": 3, "C": 6}, "float64")
    np.testing.assert_array_equal(found["sm"], [0.0, 1.0, 1.0])
    np.testing.assert_array_equal(found["out"], evaluate(program, {"x": x}, {"R": 3, "C": 6}, "float64")["out"])


def test_the_shared_exponentials_are_stored_once() -> None:
    changed = factor(attention("early"), ["mx", "sm", "o"], 8)
    names = [c.name for c in changed.computes]
    assert names == ["acc", "s", "mx_part", "mx", "mx_terms", "sm_part", "sm", "o_sum_part", "o_sum", "o", "out"]
    assert sum(str(c).count("exp(") for c in changed.computes if c.name.endswith(("_part", "_terms"))) == 1
    assert "mx_terms" not in {c.name for c in factor(softmax(), ["mx", "sm"], 8).computes}


def test_a_chunk_that_divides_the_extent_has_no_tail() -> None:
    assert "lt(" not in str(factor(programs.softmax("R", 24), ["mx", "sm"], 8))
    assert "lt(" in str(factor(programs.softmax("R", 25), ["mx", "sm"], 8))


# -- refusals --------------------------------------------------------------------------------------------------

def _sum_of(body: Callable[[Expr, Expr], Expr], extent: str = "C") -> Program:
    """total = sum of x, out = sum of a body of x and the total, which is no TupleMonoid."""
    x, total, out = buffer("x", "R", "C"), buffer("total", "R"), buffer("out", "R")
    r0, c0, r1, c1 = axis("r0", "R"), axis("c0", "C"), axis("r1", "R"), axis("c1", extent)
    return Program((x,), (out,), (Compute(total, (r0,), at(x, r0, c0), (c0,), SUM),
                                  Compute(out, (r1,), body(at(x, r1, c1), at(total, r1)), (c1,), SUM)),
                   (SizeParam("R"), SizeParam("C")))


@pytest.mark.parametrize(("program", "names", "reason"), [
    (softmax(), ["out"], "out is no reduction"), (softmax(), ["nothing"], "nothing is no reduction"),
    (_sum_of(lambda x, t: call("tanh", call("sub", x, t))), ["total", "out"], "out is made with the result of total"),
    (_sum_of(lambda x, t: call("exp", call("sub", x, t))), ["total", "out"], "no declared TupleMonoid"),
    (_sum_of(lambda x, t: mul(call("sub", x, call("div", t, f32(7.0))), call("sub", x, call("div", t, f32(7.0))))),
     ["total", "out"], "no declared TupleMonoid"),
    (programs.layer_norm("C"), ["total", "square"], "square is made with the result of total"),
])
def test_what_is_no_tuple_monoid_is_refused(program: Program, names: list[str], reason: str) -> None:
    with pytest.raises(NotFactored, match=reason):
        factor(program, names, 4)


def test_a_scale_does_not_leave_a_sum_that_may_be_empty() -> None:
    """Nothing divided by nothing is no zero."""
    program = attention("early")
    sizes = tuple(replace(s, lo=0) if s.name == "T" else s for s in program.sizes)
    with pytest.raises(NotFactored, match="o is made with the result of mx, sm"):
        factor(replace(program, sizes=sizes), ["mx", "sm", "o"], 4)


def test_a_guard_against_something_else_stays() -> None:
    """NaN turned into 0 element by element is not NaN turned into 0 row by row."""
    program = attention("guarded")
    other = replace(program, computes=tuple(
        replace(c, body=replaced(c.body, at(program.computes[3].target, *c.axes), at(program.computes[1].target, *c.axes)))
        if c.name == "p" else c for c in program.computes))
    assert other != program
    with pytest.raises(NotFactored, match="o is made with"):
        factor(other, ["mx", "sm", "o"], 4)


def test_a_chunk_has_elements() -> None:
    with pytest.raises(NotFactored, match="expected at least 1"):
        factor(softmax(), ["mx"], 0)


# -- mutations -------------------------------------------------------------------------------------------------

def _folds(wrong: Callable[[str], Expr]) -> Callable[[str], tuple[TupleMonoid, ...]]:
    """The declarations with another fold of the last component."""
    def changed(dtype: str) -> tuple[TupleMonoid, ...]:
        return tuple(TupleMonoid((*m.components[:-1], replace(m.components[-1], fold=wrong(m.components[-1].name))))
                     for m in declared(dtype))
    return changed


def _part(name: str) -> Expr:
    return Var(f"part.{name}", INDEX if name == "place" else "float32")


@pytest.mark.parametrize("name", ["softmax", "variance", "max_first", "max_last", "min_first", "attention_early"])
def test_a_wrong_combine_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts taken as they are, without what the whole's first result makes of them."""
    program, names = CASES[name][0](), CASES[name][1]
    sizes = {s.name: 13 for s in program.sizes}
    check(program, factor(program, names, 4), sizes)
    monkeypatch.setattr(module, "declared", _folds(_part))
    with pytest.raises(AssertionError):
        check(program, factor(program, names, 4), sizes)


@pytest.mark.parametrize("name", ["softmax", "split_k", "min_first", "variance"])
def test_a_dropped_tail_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program, names = CASES[name][0](), CASES[name][1]
    monkeypatch.setattr(module._Writer, "guarded", lambda self, match, place, body, monoid: body)
    with pytest.raises(InternalError, match="is read outside"):
        check(program, factor(program, names, 4), {s.name: 13 for s in program.sizes})
    monkeypatch.undo()
    monkeypatch.setattr(module, "ceildiv", lambda extent, size: extent // size)  # whole chunks only
    with pytest.raises(AssertionError):
        check(program, factor(program, names, 4), {s.name: 13 for s in program.sizes}, seed=2)


@pytest.mark.parametrize("name", ["max_first", "min_first", "total"])
def test_a_wrong_identity_behind_the_tail_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program, names = CASES[name][0](), CASES[name][1]
    monkeypatch.setattr(Monoid, "identity", lambda self, dtype: 5.0 if self.fn == "max" else -5.0)
    changed = factor(program, names, 4)
    monkeypatch.undo()
    with pytest.raises(AssertionError):
        check(program, changed, {s.name: 13 for s in program.sizes})

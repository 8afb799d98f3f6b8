"""The algebra of the declared TupleMonoids: laws that every one must keep, and that wrong ones break."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tsc.te.compute import MAX, MIN, SUM, Compute, Program
from tsc.te.evaluate import evaluate
from tsc.te.expr import INDEX, Buffer, Const, Expr, Load, Var, call, map_children, mul
from tsc.te.factored.monoids import Component, TupleMonoid, declared, extreme_and_place, max_and_sum, mean_and_spread, unify
from tsc.te.intrinsics import MEANING

Tuple = dict[str, Any]
FLOAT = "float64"
NONE = np.iinfo(np.int64).max
MONOIDS = {"max_and_sum": max_and_sum(FLOAT), "mean_and_spread": mean_and_spread(FLOAT),
           **{f"{e.fn}_{'last' if last else 'first'}": extreme_and_place(FLOAT, e, last)
              for e in (MAX, MIN) for last in (False, True)}}


def value(expr: Expr, known: Tuple) -> Any:
    """An expression of scalars, by the te evaluator."""
    def literal(e: Expr) -> Expr:
        return Const(known[e.name].item(), e.dtype) if isinstance(e, Var) else map_children(literal, e)

    out = Buffer("out", expr.dtype, ())
    return evaluate(Program((), (out,), (Compute(out, (), literal(expr)),), ()), {}, {})["out"]


def lifted(monoid: TupleMonoid, x: float, w: float, place: int, none: int) -> Tuple:
    known = {"x": np.float64(x), "w": np.float64(w), "place": np.int64(place), "none": np.int64(none)}
    return {n: value(e, known) for n, e in monoid.lift().items()} | {"none": known["none"]}


def combined(monoid: TupleMonoid, a: Tuple, b: Tuple) -> Tuple:
    left, right = ({c.name: Var(f"{side}.{c.name}", c.dtype) for c in monoid.components} for side in "ab")
    known = {f"{side}.{n}": v for side, part in (("a", a), ("b", b)) for n, v in part.items()} | {"none": a["none"]}
    return {n: value(e, known) for n, e in monoid.combine(left, right).items()} | {"none": a["none"]}


def identity(monoid: TupleMonoid, none: int) -> Tuple:
    return {n: value(c, {}) for n, c in monoid.identity().items()} | {"none": np.int64(none)}


def folded(monoid: TupleMonoid, parts: list[Tuple], none: int) -> Tuple:
    result = identity(monoid, none)
    for part in parts:
        result = combined(monoid, result, part)
    return result


def agree(a: Tuple, b: Tuple) -> None:
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=1e-9, atol=1e-9, err_msg=name)


REALS = st.one_of(st.floats(-30, 30), st.sampled_from([-math.inf, 0.0, 1.0, -1000.0, 1000.0]))
FINITE = st.one_of(st.floats(-30, 30), st.sampled_from([0.0, 1.0, 1.0]))
Elements = list[tuple[float, float]]


def direct(monoid: TupleMonoid, elements: Elements, none: int) -> Tuple:
    """What the components mean: each reduces its element over all elements, made with the results of the earlier ones."""
    whole: Tuple = {}
    for c in monoid.components:
        earlier = {f"whole.{n}": v for n, v in whole.items()} | {"none": np.int64(none)}
        whole[c.name] = value(Const(c.monoid.identity(c.dtype), c.dtype), {})
        for i, (x, w) in enumerate(elements):
            known = earlier | {"x": np.float64(x), "w": np.float64(w), "place": np.int64(i)}
            whole[c.name] = MEANING[c.monoid.fn](whole[c.name], value(c.element, known))
    return whole | {"none": np.int64(none)}


def none_of(monoid: TupleMonoid) -> int:
    return -1 if monoid.components[-1].monoid == MAX else NONE


def parts_of(monoid: TupleMonoid, elements: Elements) -> list[Tuple]:
    return [lifted(monoid, x, w, i, none_of(monoid)) for i, (x, w) in enumerate(elements)]


def check_laws(monoid: TupleMonoid, elements: Elements, cuts: tuple[int, int], order: list[int]) -> None:
    """Associativity, commutativity and identity over parts made of elements, in any grouping and any order; and that the
    fold of lifted elements is what is declared."""
    none, first, second = none_of(monoid), *cuts
    parts = parts_of(monoid, elements)
    a, b, c = (folded(monoid, p, none) for p in (parts[:first], parts[first:second], parts[second:]))
    agree(combined(monoid, combined(monoid, a, b), c), combined(monoid, a, combined(monoid, b, c)))
    agree(combined(monoid, a, b), combined(monoid, b, a))
    agree(combined(monoid, identity(monoid, none), b), b)
    agree(combined(monoid, b, identity(monoid, none)), b)
    agree(folded(monoid, parts, none), folded(monoid, [parts[i] for i in order], none))
    agree(folded(monoid, parts, none), direct(monoid, elements, none))


@st.composite
def cases(draw: st.DrawFn, numbers: st.SearchStrategy[float]) -> tuple[Elements, tuple[int, int], list[int]]:
    elements = draw(st.lists(st.tuples(numbers, FINITE), max_size=7))
    first = draw(st.integers(0, len(elements)))
    return elements, (first, draw(st.integers(first, len(elements)))), draw(st.permutations(range(len(elements))))


@pytest.mark.parametrize("name", MONOIDS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_the_laws_hold(name: str, data: st.DataObject) -> None:
    check_laws(MONOIDS[name], *data.draw(cases(FINITE if name == "mean_and_spread" else REALS)))


@settings(max_examples=25, deadline=None)
@given(elements=st.lists(st.tuples(FINITE, FINITE), min_size=1, max_size=9))
def test_folding_elements_is_the_definition(elements: Elements) -> None:
    """Against NumPy in float64: what the components stand for."""
    x, w = (np.array(column) for column in zip(*elements))
    soft, spread = MONOIDS["max_and_sum"], MONOIDS["mean_and_spread"]
    agree(folded(soft, parts_of(soft, elements), 0), {"top": x.max(), "total": (w * np.exp(x - x.max())).sum(), "none": 0})
    agree(folded(spread, parts_of(spread, elements), 0),
          {"count": len(x), "total": x.sum(), "spread": len(x) * x.var(), "none": 0})
    ends: list[tuple[str, float, int]] = [
        ("max_first", x.max(), x.argmax()), ("max_last", x.max(), len(x) - 1 - x[::-1].argmax()),
        ("min_first", x.min(), x.argmin()), ("min_last", x.min(), len(x) - 1 - x[::-1].argmin())]
    for name, top, place in ends:
        found = folded(MONOIDS[name], parts_of(MONOIDS[name], elements), none_of(MONOIDS[name]))
        assert (found["top"], found["place"]) == (top, place), name


def _changed(monoid: TupleMonoid, position: int, **fields: Any) -> TupleMonoid:
    components = list(monoid.components)
    components[position] = replace(components[position], **fields)
    return TupleMonoid(tuple(components))


def _unscaled() -> TupleMonoid:
    return _changed(max_and_sum(FLOAT), 1, fold=Var("part.total", FLOAT))


def _unguarded() -> TupleMonoid:
    """exp(-inf - -inf) of an empty part is NaN."""
    part, top = Var("part.top", FLOAT), Var("whole.top", FLOAT)
    return _changed(max_and_sum(FLOAT), 1, fold=mul(Var("part.total", FLOAT), call("exp", call("sub", part, top))))


def _unmoved() -> TupleMonoid:
    return _changed(mean_and_spread(FLOAT), 2, fold=Var("part.spread", FLOAT))


def _any_place() -> TupleMonoid:
    return _changed(extreme_and_place(FLOAT, MAX, False), 1, fold=Var("part.place", INDEX))


def _wrong_identity() -> TupleMonoid:
    """A maximum that starts at 0: the monoid whose fold takes max(part, 0)."""
    return _changed(max_and_sum(FLOAT), 0, fold=call("max", Var("part.top", FLOAT), Const(0.0, FLOAT)))


FEW: list[tuple[Elements, tuple[int, int], list[int]]] = [
    ([(1.0, 1.0), (3.0, 1.0), (-2.0, 0.5), (3.0, 2.0)], (1, 2), [3, 1, 0, 2]), ([(-2.0, 1.0), (-5.0, 1.0)], (0, 1), [1, 0]),
    ([(2.0, 1.0), (1.0, 1.0), (7.0, 1.0)], (1, 3), [2, 0, 1]), ([(-math.inf, 1.0), (0.0, 2.0)], (0, 1), [1, 0])]


@pytest.mark.parametrize("wrong", [_unscaled, _unguarded, _unmoved, _any_place, _wrong_identity])
def test_a_wrong_declaration_breaks_a_law(wrong: Callable[[], TupleMonoid]) -> None:
    broken = 0
    for case in FEW:
        try:
            check_laws(wrong(), *case)
        except AssertionError:
            broken += 1
    assert broken
    for monoid in MONOIDS.values():
        for case in FEW:
            check_laws(monoid, *case)


def test_unification() -> None:
    x, y, w = (Load(Buffer(n, "float32", ()), ()) for n in "xyw")
    pattern = mul(Var("w", "float32"), call("exp", call("sub", Var("x", "float32"), Var("whole.top", "float32"))))
    shifted = call("exp", call("sub", x, y))
    for written in (mul(w, shifted), mul(shifted, w)):
        assert next(unify(pattern, written, {"x": x}))["whole.top"] == y
        assert not list(unify(pattern, written, {"x": y}))
    assert not list(unify(pattern, call("exp", call("sub", y, x)), {}))
    assert not list(unify(mul(Var("a"), Var("a")), mul(x, y), {})) and list(unify(mul(Var("a"), Var("a")), mul(x, x), {}))


def test_counting_needs_no_reduction() -> None:
    assert [c.counts for c in mean_and_spread("float32").components] == [True, False, False]
    assert not Component("n", "float32", MAX, Const(1.0, "float32"), Var("part.n", "float32")).counts
    assert len(declared("int64")) == 4 and len(declared("float32")) == 6
    assert declared("float32")[0].components[1].monoid == SUM

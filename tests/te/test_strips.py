"""Two products in strips mean what they meant: the te evaluator before and after, at odd lengths and several widths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.poly import programs
from tests.poly.chain_programs import attention_chain, matmul_norm, mlp_chain
from tests.te.test_factor import attention, check, data
from tsc.poly.pattern.warps import composed
from tsc.sym import SymExpr
from tsc.te.compute import Compute, Program
from tsc.te.evaluate import evaluate
from tsc.te.expr import Call, Cast, Const, Expr, Load, map_children
from tsc.te.factored import strips as module
from tsc.te.factored.factor import NotFactored
from tsc.te.factored.strips import in_strips, scaled_late

CASES: dict[str, Callable[[], Program]] = {
    **{f"attention_{shares}": (lambda s=shares: attention(s)) for shares in ("late", "early", "guarded")},
    **{"_".join(flags): (lambda f=flags: attention_chain(2, 3, **dict.fromkeys(f, True)))
       for flags in (("hoisted",), ("guarded",), ("causal",), ("past",), ("causal", "past"))},
    "shared": lambda: attention_chain(4, 3, shared=2)}


def whole(program: Program) -> Program:
    """With a length that chunks of 8 divide."""
    def fixed(extent: SymExpr) -> SymExpr:
        return extent.substitute({"T": SymExpr.of(24)})

    def visit(expr: Expr) -> Expr:
        inner = map_children(visit, expr)
        return replace(inner, buffer=replace(inner.buffer, shape=tuple(map(fixed, inner.buffer.shape)))) if isinstance(
            inner, Load) else inner

    def changed(c: Compute) -> Compute:
        axes = [tuple(replace(a, extent=fixed(a.extent)) for a in some) for some in (c.axes, c.reduce_axes)]
        return replace(c, body=visit(c.body), axes=axes[0], reduce_axes=axes[1],
                       target=replace(c.target, shape=tuple(map(fixed, c.target.shape))))

    return replace(program, computes=tuple(map(changed, program.computes)), sizes=program.sizes[:2],
                   inputs=tuple(replace(b, shape=tuple(map(fixed, b.shape))) for b in program.inputs))


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", CASES)
@settings(max_examples=8, deadline=None)
@given(values=st.lists(st.sampled_from([1, 2, 7, 8, 9, 17]), min_size=3, max_size=3), width=st.sampled_from([8, 16, 64]),
       seed=st.integers(0, 9))
def test_strips_keep_the_meaning(name: str, late: bool, values: list[int], width: int, seed: int) -> None:
    """Rows of -inf among them, whose shares are NaN, or 0 where that is asked for."""
    program = CASES[name]()
    sizes = {s.name: max(s.lo, x) for s, x in zip(program.sizes, values)}
    given_program = scaled_late(program) if late else program
    check(program, in_strips(composed(given_program), width), sizes, seed)


def test_phases() -> None:
    """The maximum is the first one's, sums and the product the second's; shares that are divided before would take a third."""
    for name, early, late in (("hoisted", 2, 2), ("guarded", 3, 2), ("attention_early", 3, 2), ("attention_guarded", 3, 2)):
        program = CASES[name]()
        for made, phases in ((program, early), (scaled_late(program), late)):
            found = in_strips(composed(made), 8)
            products = [c for c in found.computes if c.target.name.startswith("acc_")]
            assert len(products) == phases, name
    names = [c.name for c in in_strips(composed(CASES["hoisted"]()), 8).computes]
    assert names == ["acc_1", "mx_part", "mx_lanes", "mx", "acc_2", "acc1_terms", "sm_part", "sm_lanes", "sm", "acc1_strip",
                     "acc1", "out"]


def test_exponentials_are_made_once_and_what_is_whole_has_no_guards() -> None:
    made = in_strips(composed(CASES["hoisted"]()), 8)
    assert sum(str(c).count("exp(") for c in made.computes) == 1
    assert str(made).count("lt(") == 5  # of both products' columns, and of what is made of them
    assert "lt(" not in str(in_strips(composed(whole(CASES["hoisted"]())), 8))


def test_a_rounded_share_is_rounded_before_it_is_scaled() -> None:
    """A strip of halves: what is stored is at most 1, whatever the row's sum."""
    program = attention("early")

    def rounded(c: Compute) -> Compute:
        if c.name == "p":
            return replace(c, target=replace(c.target, dtype="float16"), body=Cast(c.body, "float16"))
        if c.name != "o":
            return c
        assert isinstance(c.body, Call)
        share, value = c.body.args
        assert isinstance(share, Load)
        read = Cast(Load(replace(share.buffer, dtype="float16"), share.index), "float32")
        return replace(c, body=Call("mul", (read, value), "float32"))

    halves = replace(program, computes=tuple(map(rounded, program.computes)))
    late = scaled_late(halves)
    assert [c.name for c in late.computes] == ["acc", "s", "mx", "e", "sm", "o_sum", "o", "out"]
    made = in_strips(composed(late), 8)
    strip = next(c for c in made.computes if c.name == "o_sum_strip")
    assert strip.target.dtype == "float16" and isinstance(strip.body, Cast) and isinstance(strip.body.value, Load)
    check(program, made, {"B": 2, "L": 3, "T": 17})


# -- refusals --------------------------------------------------------------------------------------------------

def kept_scores() -> Program:
    program = attention_chain()
    return replace(program, outputs=(*program.outputs, program.computes[1].target))


@pytest.mark.parametrize(("program", "reason"), [
    (programs.softmax(), "there are 0 sums of products"), (matmul_norm(), "there are 1 sums of products"),
    (mlp_chain(), "nothing is reduced between acc and acc1"), (kept_scores(), "x keeps what acc makes")])
def test_what_is_nothing_of_the_kind_is_refused(program: Program, reason: str) -> None:
    with pytest.raises(NotFactored, match=reason):
        in_strips(composed(program), 8)


def test_scales_stay_where_terms_may_be_large() -> None:
    """Of a softmax without its maximum the sum might overflow where that of shares does not."""
    program = attention("early")
    _, s, mx, e, *others = program.computes
    bare = replace(e, body=Call("exp", (Load(s.target, tuple(i for x in _reads(e, "s") for i in x.index)),), "float32"))
    large = replace(program, computes=(program.computes[0], s, mx, bare, *others))
    assert scaled_late(large) == large
    empty = replace(program, sizes=tuple(replace(x, lo=0) for x in program.sizes))
    assert scaled_late(empty) == empty


def _reads(compute: Compute, name: str) -> list[Load]:
    found: list[Load] = []

    def visit(expr: Expr) -> Expr:
        if isinstance(expr, Load) and expr.buffer.name == name:
            found.append(expr)
        return map_children(visit, expr)

    visit(compute.body)
    return found


# -- mutations -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("what", "wrong"), [
    ("guarded", lambda self, body, at, otherwise: body), ("inside", lambda self, at: Const(True, "bool")),
    ("place", lambda self, at: at.element)])
def test_a_wrong_strip_is_seen(what: str, wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its guards or its chunks: at a length that these are for."""
    monkeypatch.setattr(module._Writer, what, wrong)
    program, sizes = CASES["hoisted"](), {"B": 1, "L": 2, "T": 17}
    with pytest.raises(Exception):  # noqa: B017  # another value, or a read outside
        check(program, in_strips(composed(program), 8), sizes)


def test_a_late_scale_needs_its_guard() -> None:
    """A row of -inf alone is NaN, which the guard makes 0."""
    program, sizes = attention("guarded"), {"B": 1, "L": 2, "T": 3}
    inputs = data(program, sizes, 0) | {"mask": np.full((1, 3), -np.inf, "float32")}
    for made in (program, scaled_late(program)):
        np.testing.assert_array_equal(evaluate(made, inputs, sizes, "float64")["out"], 0)

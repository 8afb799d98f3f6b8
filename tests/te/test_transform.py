"""Program transformations keep the meaning (the te evaluator before and after, at odd sizes) and reach the form promised."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tsc.sym import ONE, ShapeEnv, SymExpr, dim, product
from tsc.te.compute import MAX, SUM, Axis, Compute, Program
from tsc.te.evaluate import evaluate
from tsc.te.expr import INDEX, Buffer, Call, Cast, CheckedIndex, Const, Expr, Load, Size, Var, add, call, index, mul
from tsc.te.linear import Ranges, simplify
from tsc.te.passes.collapse import collapse
from tsc.te.passes.transform import Canonical, canonical, drop_unit_dims, drop_unused, lower, merge_divisions, simplified

A, B, K, N = dim("A"), dim("B"), dim("K"), dim("N")


def environment() -> ShapeEnv:
    env = ShapeEnv()
    for name in "ABKN":
        env.declare(name)
    return env


def buffer(name: str, *shape: int | SymExpr, dtype: str = "float32") -> Buffer:
    return Buffer(name, dtype, tuple(map(SymExpr.of, shape)))


def axis(name: str, extent: int | SymExpr) -> Axis:
    return Axis(name, SymExpr.of(extent))


def at(target: Buffer, *where: Axis | Expr) -> Load:
    return Load(target, tuple(Var(w.name) if isinstance(w, Axis) else w for w in where))


def loose(*computes: Compute, outputs: tuple[str, ...] = ()) -> Program:
    return Program((), tuple(c.target for c in computes if c.name in (outputs or (computes[-1].name,))), computes, ())


def run(found: Canonical, data: dict[str, Any], dims: dict[str, int]) -> dict[str, Any]:
    """Outputs by loose name, flat; inputs take the shape that their Buffer has by now."""
    sizes = {name: expr.evaluate(dims) for name, expr in found.sizes.items()}
    inputs = {b.name: data[found.buffers[b.name]].reshape([d.evaluate(sizes) for d in b.shape]) for b in found.program.inputs}
    made = evaluate(found.program, inputs, sizes)
    return {found.buffers[b.name]: made[b.name].ravel() for b in found.program.outputs}


def check(program: Program, data: dict[str, Any], dims: dict[str, int], env: ShapeEnv | None = None) -> Canonical:
    """Each pass alone and all of them compute what the program does; returns the lowered program."""
    env = env or environment()
    expected = run(canonical(program, env), data, dims)
    steps = [simplified(program, env), drop_unit_dims(program), merge_divisions(simplified(program, env), env),
             collapse(simplified(program, env), env)]
    lowered = lower(program, env)
    for found in (*(canonical(s, env) for s in steps), lowered):
        got = run(found, data, dims)
        assert got.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(got[name], value, rtol=1e-6, atol=1e-6)
    return lowered


def values(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# -- collapse --------------------------------------------------------------------------------------------------

def dense(epilogue_shape: tuple[SymExpr, ...] | None = None) -> Program:
    """out = x[A, B, K] @ w[K, N] + b + residual."""
    x, w, bias, res = buffer("x", A, B, K), buffer("w", K, N), buffer("b", N), buffer("r", A, B, N)
    acc, out = buffer("m", A, B, N), buffer("out", A, B, N)
    i, j, n, k, p, q, o = (axis(c, e) for c, e in zip("ijnkpqo", (A, B, N, K, A, B, N)))
    return loose(
        Compute(acc, (i, j, n), mul(at(x, i, j, k), at(w, k, n)), (k,), SUM),
        Compute(out, (p, q, o), add(add(at(acc, p, q, o), at(bias, o)), at(res, p, q, o))))


def test_rows_of_a_contraction_collapse_through_its_epilogue() -> None:
    dims = {"A": 3, "B": 5, "K": 7, "N": 4}
    data = {"x": values(3, 5, 7), "w": values(7, 4), "b": values(4), "r": values(3, 5, 4, seed=1)}
    found = check(dense(), data, dims)
    assert [len(c.axes) for c in found.program.computes] == [2, 2]
    assert found.sizes["s0"] == A * B
    assert [len(b.shape) for b in found.program.inputs] == [2, 2, 1, 2]


def test_axes_that_one_access_takes_apart_do_not_collapse() -> None:
    """A mask over the outer axis alone keeps the two apart."""
    x, mask, out = buffer("x", A, B), buffer("mask", A), buffer("out", A, B)
    i, j = axis("i", A), axis("j", B)
    found = check(loose(Compute(out, (i, j), mul(at(x, i, j), at(mask, i)))), {"x": values(3, 5), "mask": values(3)},
                  {"A": 3, "B": 5})
    assert len(found.program.computes[0].axes) == 2


def test_a_part_of_symbolic_rows_does_not_collapse() -> None:
    x, out = buffer("x", N, K), buffer("out", A, K)
    i, j = axis("i", A), axis("j", K)
    program = loose(Compute(out, (i, j), at(x, i, j)))
    found = check(program, {"x": np.arange(35.0).reshape(7, 5)}, {"A": 3, "N": 7, "K": 5})
    assert len(found.program.computes[0].axes) == 2  # A * K <= N * K is affine in no sizes


def test_a_transposed_access_does_not_collapse() -> None:
    x, out = buffer("x", B, A), buffer("out", A, B)
    i, j = axis("i", A), axis("j", B)
    found = check(loose(Compute(out, (i, j), at(x, j, i))), {"x": values(5, 3)}, {"A": 3, "B": 5})
    assert len(found.program.computes[0].axes) == 2


def test_a_local_read_transposed_keeps_its_dims() -> None:
    """The writer could collapse, its reader could not: so neither does."""
    x, mid, out = buffer("x", A, B), buffer("mid", A, B), buffer("out", B, A)
    i, j, p, q = axis("i", A), axis("j", B), axis("p", B), axis("q", A)
    program = loose(Compute(mid, (i, j), call("exp", at(x, i, j))), Compute(out, (p, q), at(mid, q, p)))
    found = check(program, {"x": values(3, 5)}, {"A": 3, "B": 5})
    assert [len(c.axes) for c in found.program.computes] == [2, 2]


def test_a_reshape_between_local_and_output_disappears() -> None:
    """acc[m, n] read at [b*L + l, n]: the epilogue's rows become the contraction's."""
    x, mid, out = buffer("x", A * B, N), buffer("mid", A * B, N), buffer("out", A, B, N)
    i, j, a, b, n = axis("i", A * B), axis("j", N), axis("a", A), axis("b", B), axis("n", N)
    row = add(mul(Var("a"), Size(B)), Var("b"))
    program = loose(Compute(mid, (i, j), call("exp", at(x, i, j))),
                    Compute(out, (a, b, n), add(at(mid, row, n), at(buffer("bias", N), n))))
    found = check(program, {"x": values(15, 4), "bias": values(4)}, {"A": 3, "B": 5, "N": 4})
    assert [len(c.axes) for c in found.program.computes] == [2, 2]
    assert "mul" not in str(found.program)


def test_reduce_axes_collapse_too() -> None:
    x, out = buffer("x", A, B, K), buffer("out", A)
    i, j, k = axis("i", A), axis("j", B), axis("k", K)
    found = check(loose(Compute(out, (i,), at(x, i, j, k), (j, k), MAX)), {"x": values(3, 5, 2)}, {"A": 3, "B": 5, "K": 2})
    assert len(found.program.computes[0].reduce_axes) == 1


def test_an_axis_used_as_a_number_stays() -> None:
    """A causal mask compares the axes themselves."""
    x, out = buffer("x", A, B), buffer("out", A, B)
    i, j = axis("i", A), axis("j", B)
    body = Call("select", (call("le", Var("j"), Var("i")), at(x, i, j), Const(0.0, "float32")), "float32")
    found = check(loose(Compute(out, (i, j), body)), {"x": values(3, 5)}, {"A": 3, "B": 5})
    assert len(found.program.computes[0].axes) == 2


# -- views, units, sizes ---------------------------------------------------------------------------------------

def test_division_and_remainder_read_a_flat_view() -> None:
    x, out = buffer("x", A, B, K), buffer("out", A * B, K)
    p, k = axis("p", A * B), axis("k", K)
    body = at(x, call("floordiv", Var("p"), Size(B)), call("mod", Var("p"), Size(B)), k)
    found = check(loose(Compute(out, (p, k), body)), {"x": values(3, 5, 2)}, {"A": 3, "B": 5, "K": 2})
    assert "mod" not in str(found.program) and len(found.program.computes[0].axes) == 1


def test_a_symbolic_stride_reads_a_split_view() -> None:
    x, out = buffer("x", A * B), buffer("out", B, A)
    b, a = axis("b", B), axis("a", A)
    program = loose(Compute(out, (b, a), at(x, add(mul(Var("a"), Size(B)), Var("b")))))
    found = check(program, {"x": values(15)}, {"A": 3, "B": 5})
    assert len(found.program.inputs[0].shape) == 2 and "mul" not in str(found.program)


def test_unit_dims_go_and_a_scalar_keeps_one() -> None:
    x, out = buffer("x", 1, A, 1), buffer("out", 1, A, 1)
    u, i, v = axis("u", 1), axis("i", A), axis("v", 1)
    found = check(loose(Compute(out, (u, i, v), call("neg", at(x, u, i, v)))), {"x": values(1, 3, 1)}, {"A": 3})
    assert [str(b) for b in found.program.inputs] == ["t0: float32[s0]"]
    scalar = check(loose(Compute(buffer("out"), (), at(buffer("x")))), {"x": values()}, {})
    assert scalar.program.outputs[0].shape == (ONE,)


def test_extents_are_affine_in_the_sizes() -> None:
    """A product is a size of its own, a sum of two sizes stays a sum, and an expression used only whole is one size."""
    half = (A + 1) // 2
    extents = (A * B, A + K, half, A)
    axes = tuple(axis(f"i{k}", e) for k, e in enumerate(extents))
    program = loose(Compute(buffer("out", *extents), axes, at(buffer("x", A + K, half), axes[1], axes[2])))
    found = canonical(program, environment())
    assert set(found.sizes.values()) == {A * B, A, K, half}
    assert all(len(m) <= 1 for b in (*found.program.inputs, *found.program.outputs) for e in b.shape for m, _ in e.terms)
    total, i = buffer("x", A + K), axis("i", A + K)
    whole = canonical(loose(Compute(buffer("out", A + K), (i,), at(total, i))), environment())
    assert list(whole.sizes.values()) == [A + K]


def test_sizes_carry_their_bounds() -> None:
    env = environment()
    env.declare("E", lo=0)
    env.declare("D", divisor=8)
    extents = (dim("E"), dim("D"), A)
    axes = tuple(axis(f"i{k}", e) for k, e in enumerate(extents))
    found = canonical(loose(Compute(buffer("out", *extents), axes, Const(0.0, "float32"))), env)
    assert [(s.lo, s.divisor) for s in found.program.sizes] == [(0, 1), (8, 8), (1, 1)]


def test_a_size_that_may_be_negative_says_so() -> None:
    """`A - 3` as a number is at least -2; as an extent it is not negative, and one rounded up is positive."""
    out, i = buffer("out", A), axis("i", A)

    def below(size: SymExpr) -> Expr:
        return Cast(call("lt", Var("i"), Size(size)), "float32")

    def lows(body: Expr) -> list[int]:
        return [s.lo for s in canonical(loose(Compute(out, (i,), body)), environment()).program.sizes]

    assert lows(at(buffer("x", A - 3), index(0))) == [1]
    assert lows(at(buffer("x", -((-A) // B * B)), Var("i"))) == [1, 1]
    alone = canonical(loose(Compute(buffer("out", K), (axis("i", K),), below(A - 3))), environment())
    assert (alone.program.sizes[1].lo, alone.sizes["s1"]) == (-2, A - 3)
    apart = canonical(loose(Compute(buffer("out", K), (axis("i", K),), below(A - B))), environment())
    assert apart.program.sizes[1].lo < -1000 and apart.sizes["s1"] == A - B


def test_equal_programs_print_equal_text() -> None:
    one, two = dense(), dense()
    renamed = {a.name: Var(f"other_{a.name}") for c in two.computes for a in (*c.axes, *c.reduce_axes)}

    def rename(expr: Expr) -> Expr:
        match expr:
            case Var(name=name):
                return renamed[name]
            case Load(buffer=b, index=where):
                return Load(Buffer(f"w_{b.name}", b.dtype, b.shape), tuple(map(rename, where)))
            case Call(fn=fn, args=args, dtype=dtype):
                return Call(fn, tuple(map(rename, args)), dtype)
        return expr

    def rename_axes(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(Axis(renamed[a.name].name, a.extent) for a in axes)

    computes = tuple(
        Compute(Buffer(f"w_{c.name}", c.target.dtype, c.target.shape), rename_axes(c.axes), rename(c.body),
                rename_axes(c.reduce_axes), c.monoid) for c in two.computes)
    other = Program((), (computes[-1].target,), computes, ())
    first, second = lower(one, environment()), lower(other, environment())
    assert str(first.program) == str(second.program)
    assert second.buffers == {k: f"w_{v}" for k, v in first.buffers.items()}


def test_what_no_output_needs_is_dropped() -> None:
    x, dead, out = buffer("x", A), buffer("dead", A), buffer("out", A)
    i, j = axis("i", A), axis("j", A)
    program = loose(Compute(dead, (i,), at(buffer("y", A), i)), Compute(out, (j,), at(x, j)))
    kept = drop_unused(program)
    assert [c.name for c in kept.computes] == ["out"] and [b.name for b in kept.inputs] == ["x"]


# -- index arithmetic ------------------------------------------------------------------------------------------

def test_a_checked_index_within_its_range_is_plain() -> None:
    ranges = Ranges({"i": A}, environment())
    inside = CheckedIndex(Var("i"), A + 2, "table")
    assert simplify(inside, ranges) == Var("i")
    assert simplify(CheckedIndex(Const(-1, INDEX), A, "table"), ranges) == index(A - 1)
    outside = CheckedIndex(add(Var("i"), index(1)), A, "table")
    assert isinstance(simplify(outside, ranges), CheckedIndex)


def test_order_is_decided_only_where_the_ranges_decide_it() -> None:
    ranges = Ranges({"i": A, "j": B}, environment())
    assert simplify(call("lt", Var("i"), Size(A)), ranges) == Const(True, "bool")
    assert simplify(call("ge", Var("i"), Size(A)), ranges) == Const(False, "bool")
    assert simplify(call("gt", Var("i"), index(-1)), ranges) == Const(True, "bool")
    assert simplify(call("le", Var("i"), Var("j")), ranges) == call("le", Var("i"), Var("j"))


@st.composite
def index_expressions(draw: st.DrawFn, depth: int = 3) -> Expr:
    if depth == 0 or draw(st.booleans()):
        return draw(st.sampled_from([Var("i"), Var("j"), Size(A), Size(B), index(A * B)])
                    | st.integers(-3, 9).map(lambda k: Const(k, INDEX)))
    left = draw(index_expressions(depth=depth - 1))
    fn = draw(st.sampled_from(["add", "sub", "mul", "floordiv", "mod"]))
    if fn in ("floordiv", "mod"):
        return Call(fn, (left, draw(st.sampled_from([Const(4, INDEX), Const(3, INDEX), Size(A), Size(B)]))), INDEX)
    return Call(fn, (left, draw(index_expressions(depth=depth - 1))), INDEX)


@settings(max_examples=150, deadline=None)
@given(index_expressions(), index_expressions(), st.sampled_from(["lt", "le", "gt", "ge"]), st.integers(1, 5),
       st.integers(1, 7))
def test_simplified_index_arithmetic_has_the_same_value(x: Expr, y: Expr, order: str, a: int, b: int) -> None:
    out = buffer("out", A, B, dtype=INDEX)
    compared = Cast(Call(order, (x, y), "bool"), INDEX)
    program = loose(Compute(out, (axis("i", A), axis("j", B)), add(mul(x, Const(2, INDEX)), compared)))
    env, dims = environment(), {"A": a, "B": b}
    before, after = (run(canonical(p, env), {}, dims)["out"] for p in (program, simplified(program, env)))
    np.testing.assert_array_equal(before, after)


# -- random programs -------------------------------------------------------------------------------------------

@st.composite
def pointwise_programs(draw: st.DrawFn) -> tuple[Program, list[Buffer]]:
    """A local and an output over random dims, reading inputs permuted, broadcast or whole."""
    extents = draw(st.lists(st.sampled_from([ONE, SymExpr.of(3), A, B, A * B]), min_size=1, max_size=4))
    inputs: list[Buffer] = []

    def axes(tag: str) -> tuple[Axis, ...]:
        return tuple(axis(f"{tag}{k}", e) for k, e in enumerate(extents))

    def read(over: tuple[Axis, ...]) -> Expr:
        order = draw(st.permutations(range(len(over)))) if draw(st.booleans()) else range(len(over))
        chosen = [over[k] for k in order if draw(st.integers(0, 3))]
        made = buffer(f"x{len(inputs)}", *(a.extent for a in chosen))
        inputs.append(made)
        return at(made, *chosen)

    one, two = axes("i"), axes("j")
    mid, out = Buffer("mid", "float32", tuple(extents)), Buffer("out", "float32", tuple(extents))
    first = Compute(mid, one, add(read(one), read(one)))
    second = Compute(out, two, mul(at(mid, *two), read(two)))
    return loose(first, second), inputs


@settings(max_examples=60, deadline=None)
@given(pointwise_programs(), st.integers(1, 4), st.integers(1, 5))
def test_random_programs_keep_their_meaning(made: tuple[Program, list[Buffer]], a: int, b: int) -> None:
    program, inputs = made
    dims = {"A": a, "B": b}
    check(program, {x.name: values(product(x.shape).evaluate(dims), seed=k) for k, x in enumerate(inputs)}, dims)

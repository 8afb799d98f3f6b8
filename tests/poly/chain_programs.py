"""te.Programs of several contractions and reductions with equal rows in one kernel, as fusion makes them."""

from __future__ import annotations

from tests.poly.programs import at, axis, buffer, f32, gelu, v
from tsc.sym import SymExpr, dim
from tsc.te.compute import MAX, SUM, Compute, Program, SizeParam
from tsc.te.expr import BOOL, INDEX, Call, Const, Expr, Size, add, call, mul, select


def attention_chain(heads: int = 2, depth: int = 5, guarded: bool = False, hoisted: bool = True, causal: bool = False,
                    past: bool = False, shared: int = 1) -> Program:
    """out[b, l, h, d] = sum over t of p[b, h, l, t] * v[b, g, t, d], where g = h // shared and p is the softmax over t of
    q[b, l, h] . k[b, g, t] * 0.25 + mask.

    `guarded` stores the probabilities and turns NaN rows into zeros (exported masked attention); otherwise, with `hoisted`, the
    row operand is the stored exponential and the division comes once an output, else the probabilities are stored. `causal`
    compares indices instead of adding a mask. `past` makes the keys' extent the sum of two sizes.
    """
    t_extent: SymExpr = dim("P") + dim("L") if past else dim("T")
    groups = heads // shared
    q = buffer("q", "B", "L", heads, depth)
    k, w = buffer("k", "B", groups, t_extent, depth), buffer("v", "B", groups, t_extent, depth)
    mask = buffer("mask", "B", t_extent)
    square = ("B", heads, "L", t_extent)
    acc, x, mx = buffer("acc", *square), buffer("x", *square), buffer("mx", "B", heads, "L")
    e, sm, p = buffer("e", *square), buffer("sm", "B", heads, "L"), buffer("p", *square)
    acc1, out = buffer("acc1", "B", heads, "L", depth), buffer("out", "B", "L", heads, depth)

    def rows(n: int) -> tuple:
        return axis(f"b{n}", "B"), axis(f"h{n}", heads), axis(f"l{n}", "L"), axis(f"t{n}", t_extent)

    def head(h: object) -> Expr:
        return v(h) if shared == 1 else call("floordiv", v(h), Const(shared, INDEX))

    (b0, h0, l0, t0), (b1, h1, l1, t1), (b2, h2, l2, t2), (b3, h3, l3, t3) = map(rows, range(4))
    (b4, h4, l4, t4), (b5, h5, l5, t5), (b6, h6, l6, t6), (b7, h7, l7, _) = map(rows, range(4, 8))
    d0, d6, d7 = axis("d0", depth), axis("d6", depth), axis("d7", depth)
    scaled = mul(at(acc, b1, h1, l1, t1), f32(0.25))
    if causal:
        last: Expr = add(v(l1), Size(dim("P"))) if past else v(l1)
        scaled = select(Call("le", (v(t1), last), BOOL), scaled, f32(float("-inf")))
    else:
        scaled = add(scaled, at(mask, b1, t1))
    share = call("div", at(e, b5, h5, l5, t5), at(sm, b5, h5, l5))
    if guarded:
        share = select(Call("isnan", (share,), BOOL), f32(0.0), share)
    stored = guarded or not hoisted
    result = at(acc1, b7, h7, l7, d7)
    operand = p if stored else e
    computes = [
        Compute(acc, (b0, h0, l0, t0), mul(at(q, b0, l0, h0, d0), at(k, b0, head(h0), t0, d0)), (d0,), SUM),
        Compute(x, (b1, h1, l1, t1), scaled),
        Compute(mx, (b2, h2, l2), at(x, b2, h2, l2, t2), (t2,), MAX),
        Compute(e, (b3, h3, l3, t3), call("exp", call("sub", at(x, b3, h3, l3, t3), at(mx, b3, h3, l3)))),
        Compute(sm, (b4, h4, l4), at(e, b4, h4, l4, t4), (t4,), SUM),
        *([Compute(p, (b5, h5, l5, t5), share)] if stored else []),
        Compute(acc1, (b6, h6, l6, d6), mul(at(operand, b6, h6, l6, t6), at(w, b6, head(h6), t6, d6)), (t6,), SUM),
        Compute(out, (b7, l7, h7, d7), result if stored else call("div", result, at(sm, b7, h7, l7)))]
    sizes = ["B", "L"] + (["P"] if past else ["T"])
    inputs = (q, k, w) if causal else (q, k, mask, w)
    return Program(inputs, (out,), tuple(computes), tuple(SizeParam(s) for s in sizes))


def matmul_norm(columns: int = 12, depth: int | str = "K", both: bool = False, rms: bool = False) -> Program:
    """out = norm over n of y, y[m, n] = a[m, k] w[k, n] + bias[n] + r[m, n]; `both` writes y too (a residual stream)."""
    a, w, bias, r = buffer("a", "M", depth), buffer("w", depth, columns), buffer("bias", columns), buffer("r", "M", columns)
    gamma = buffer("gamma", columns)
    acc, y, out = (buffer(n, "M", columns) for n in ("acc", "y", "out"))
    total, mean, square, rstd = (buffer(n, "M") for n in ("total", "mean", "square", "rstd"))
    m = [axis(f"m{n}", "M") for n in range(7)]
    c = [axis(f"n{n}", columns) for n in range(7)]
    k = axis("k", depth)

    def centred(i: int) -> Expr:
        return at(y, m[i], c[i]) if rms else call("sub", at(y, m[i], c[i]), at(mean, m[i]))

    means = [] if rms else [
        Compute(total, (m[2],), at(y, m[2], c[2]), (c[2],), SUM),
        Compute(mean, (m[3],), call("div", at(total, m[3]), f32(float(columns))))]
    computes = [
        Compute(acc, (m[0], c[0]), mul(at(a, m[0], k), at(w, k, c[0])), (k,), SUM),
        Compute(y, (m[1], c[1]), add(add(at(acc, m[1], c[1]), at(bias, c[1])), at(r, m[1], c[1]))),
        *means,
        Compute(square, (m[4],), mul(centred(4), centred(4)), (c[4],), SUM),
        Compute(rstd, (m[5],), call("div", f32(1.0), call("sqrt", add(call("div", at(square, m[5]), f32(float(columns))),
                                                                      f32(1e-5))))),
        Compute(out, (m[6], c[6]), mul(mul(centred(6), at(rstd, m[6])), at(gamma, c[6])))]
    sizes = ("M", depth) if isinstance(depth, str) else ("M",)
    return Program((a, w, bias, r, gamma), (y, out) if both else (out,), tuple(computes), tuple(SizeParam(s) for s in sizes))


def mlp_chain(inner: int = 24, columns: int = 10, depth: int = 6) -> Program:
    """out[m, n] = r[m, n] + b1[n] + sum over j of h[m, j] w1[j, n], h = gelu(a w0 + b0): matmul, activation, matmul."""
    a, w0, b0 = buffer("a", "M", depth), buffer("w0", depth, inner), buffer("b0", inner)
    w1, b1, r = buffer("w1", inner, columns), buffer("b1", columns), buffer("r", "M", columns)
    acc, h = buffer("acc", "M", inner), buffer("h", "M", inner)
    acc1, out = buffer("acc1", "M", columns), buffer("out", "M", columns)
    m = [axis(f"m{n}", "M") for n in range(4)]
    i, j, n2, n3 = axis("i", inner), axis("j", inner), axis("n2", columns), axis("n3", columns)
    k, s = axis("k", depth), axis("s", inner)
    return Program(
        (a, w0, b0, w1, b1, r), (out,),
        (Compute(acc, (m[0], i), mul(at(a, m[0], k), at(w0, k, i)), (k,), SUM),
         Compute(h, (m[1], j), gelu(add(at(acc, m[1], j), at(b0, j)))),
         Compute(acc1, (m[2], n2), mul(at(h, m[2], s), at(w1, s, n2)), (s,), SUM),
         Compute(out, (m[3], n3), add(add(at(acc1, m[3], n3), at(b1, n3)), at(r, m[3], n3)))),
        (SizeParam("M"),))

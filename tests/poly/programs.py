"""te.Programs made by hand, one a kind of kernel, for the tests of the polyhedral core."""

from __future__ import annotations

from tsc.sym import SymExpr, dim
from tsc.te.compute import MAX, SUM, Axis, Compute, Program, SizeParam
from tsc.te.expr import BOOL, INDEX, Buffer, Call, Cast, CheckedIndex, Const, Expr, Load, Size, Var, add, call, mul, select
from tsc.te.intrinsics import WORDS


def f32(value: float) -> Const:
    return Const(value, "float32")


def size(value: int | str) -> SymExpr:
    return SymExpr.of(value) if isinstance(value, int) else dim(value)


def buffer(name: str, *shape: int | str | SymExpr, dtype: str = "float32") -> Buffer:
    return Buffer(name, dtype, tuple(s if isinstance(s, SymExpr) else size(s) for s in shape))


def axis(name: str, extent: int | str | SymExpr) -> Axis:
    return Axis(name, extent if isinstance(extent, SymExpr) else size(extent))


def at(target: Buffer, *index: Expr | Axis) -> Load:
    return Load(target, tuple(Var(i.name) if isinstance(i, Axis) else i for i in index))


def v(item: Axis) -> Expr:
    return Var(item.name)


def gelu(x: Expr) -> Expr:
    return mul(mul(f32(0.5), x), add(f32(1.0), call("erf", mul(x, f32(0.70710678)))))


def gemm(m: int | str = "M", n: int | str = "N", k: int | str = "K", lo: int = 1, act: str = "relu",
         transposed: bool = False, dtype: str = "float32") -> Program:
    """out[m, n] = act(sum over k of a[m, k] * w[k, n] + b[n]); `transposed` reads w[n, k]; a and w are of a dtype."""
    a, w = buffer("a", m, k, dtype=dtype), buffer("w", *((n, k) if transposed else (k, n)), dtype=dtype)
    b, acc, out = buffer("b", n), buffer("acc", m, n), buffer("out", m, n)
    i, j, r, x, y = axis("i", m), axis("j", n), axis("r", k), axis("x", m), axis("y", n)
    value = add(at(acc, x, y), at(b, y))
    value = call("max", value, f32(0.0)) if act == "relu" else gelu(value)
    return Program(
        (a, w, b), (out,),
        (Compute(acc, (i, j), mul(as_float(at(a, i, r)), as_float(at(w, j, r) if transposed else at(w, r, j))), (r,), SUM),
         Compute(out, (x, y), value)),
        tuple(SizeParam(s, lo) for s in (m, n, k) if isinstance(s, str)))


def words(parts: int = 2) -> Program:
    """out[m, n] = 2 * (sum over k of the products of the parts of w[m, k] and x[n, k + 1], or of a word of ones behind K): the
    second one is copied as [k][n]."""
    w, x, acc, out = (buffer(name, *shape, dtype="int32") for name, shape in (
        ("w", ("M", "K")), ("x", ("N", "K")), ("acc", ("M", "N")), ("out", ("M", "N"))))
    i, j, r, y, z = axis("i", "M"), axis("j", "N"), axis("r", "K"), axis("y", "M"), axis("z", "N")
    behind, ones = add(v(r), Const(1, INDEX)), Const(0x01010101, "int32")
    column = select(call("lt", behind, Size(size("K"))), at(x, j, behind), ones)
    return Program((w, x), (out,), (
        Compute(acc, (i, j), call(WORDS[parts][1], column, at(w, i, r)), (r,), SUM),
        Compute(out, (y, z), add(at(acc, y, z), at(acc, y, z)))), (SizeParam("M"), SizeParam("N"), SizeParam("K")))


def as_float(value: Expr) -> Expr:
    return value if value.dtype == "float32" else Cast(value, "float32")


def attention_scores(heads: int = 2, depth: int = 5) -> Program:
    """s[b, h, l, t] = (sum over d of q[b, l, h, d] * k[b, t, h, d]) * scale + mask[b, t], with symbolic B, L, T."""
    q, k = buffer("q", "B", "L", heads, depth), buffer("k", "B", "T", heads, depth)
    mask, acc, out = buffer("mask", "B", "T"), buffer("acc", "B", heads, "L", "T"), buffer("out", "B", heads, "L", "T")
    b, h, i, j, d = axis("b", "B"), axis("h", heads), axis("i", "L"), axis("j", "T"), axis("d", depth)
    c, g, x, y = axis("c", "B"), axis("g", heads), axis("x", "L"), axis("y", "T")
    return Program(
        (q, k, mask), (out,),
        (Compute(acc, (b, h, i, j), mul(at(q, b, i, h, d), at(k, b, j, h, d)), (d,), SUM),
         Compute(out, (c, g, x, y), add(mul(at(acc, c, g, x, y), f32(0.25)), at(mask, c, y)))),
        (SizeParam("B"), SizeParam("L"), SizeParam("T")))


def attention_values(heads: int = 2, depth: int = 32) -> Program:
    """out[b, l, h, d] = sum over t of p[b, h, l, t] * v[b, t, h, d]: the store is transposed."""
    p, w = buffer("p", "B", heads, "L", "T"), buffer("w", "B", "T", heads, depth)
    acc, out = buffer("acc", "B", heads, "L", depth), buffer("out", "B", "L", heads, depth)
    b, h, i, j, t = axis("b", "B"), axis("h", heads), axis("i", "L"), axis("j", depth), axis("t", "T")
    c, x, g, y = axis("c", "B"), axis("x", "L"), axis("g", heads), axis("y", depth)
    return Program(
        (p, w), (out,),
        (Compute(acc, (b, h, i, j), mul(at(p, b, h, i, t), at(w, b, t, h, j)), (t,), SUM),
         Compute(out, (c, x, g, y), at(acc, c, g, x, y))),
        (SizeParam("B"), SizeParam("L"), SizeParam("T")))


def head_split(heads: int = 3, depth: int = 4) -> Program:
    """out[h, m, d] = sum over k of a[m, k] * w[k, h*depth+d] + bias[h*depth+d]: a quasi-affine store."""
    width = heads * depth
    a, w, bias = buffer("a", "M", "K"), buffer("w", "K", width), buffer("bias", width)
    acc, out = buffer("acc", "M", width), buffer("out", heads, "M", depth)
    i, j, r = axis("i", "M"), axis("j", width), axis("r", "K")
    h, x, d = axis("h", heads), axis("x", "M"), axis("d", depth)
    column = add(mul(v(h), Const(depth, INDEX)), v(d))
    return Program(
        (a, w, bias), (out,),
        (Compute(acc, (i, j), mul(at(a, i, r), at(w, r, j)), (r,), SUM),
         Compute(out, (h, x, d), add(at(acc, x, column), at(bias, column)))),
        (SizeParam("M"), SizeParam("K")))


def softmax(rows: int | str = "R", columns: int | str = "C", lo: int = 1) -> Program:
    """out = softmax(x) over the last axis, with its exponentials kept in a local."""
    x, out = buffer("x", rows, columns), buffer("out", rows, columns)
    mx, e, sm = buffer("mx", rows), buffer("e", rows, columns), buffer("sm", rows)
    r0, c0, r1, c1 = axis("r0", rows), axis("c0", columns), axis("r1", rows), axis("c1", columns)
    r2, c2, r3, c3 = axis("r2", rows), axis("c2", columns), axis("r3", rows), axis("c3", columns)
    return Program(
        (x,), (out,),
        (Compute(mx, (r0,), at(x, r0, c0), (c0,), MAX),
         Compute(e, (r1, c1), call("exp", call("sub", at(x, r1, c1), at(mx, r1)))),
         Compute(sm, (r2,), at(e, r2, c2), (c2,), SUM),
         Compute(out, (r3, c3), call("div", at(e, r3, c3), at(sm, r3)))),
        tuple(SizeParam(s, lo) for s in (rows, columns) if isinstance(s, str)))


def layer_norm(columns: int | str = "C", gather: bool = False) -> Program:
    """Layer norm over the last axis of x[B, L, C]; with `gather`, x is a table's rows picked by ids."""
    count = Call("max", (f32(1.0), f32(1.0)), "float32") if isinstance(columns, str) else f32(float(columns))
    ids, table = buffer("ids", "B", "L", dtype="int64"), buffer("table", "V", columns)
    x, gamma, out = buffer("x", "B", "L", columns), buffer("gamma", columns), buffer("out", "B", "L", columns)
    total, mean, square, rstd = (buffer(n, "B", "L") for n in ("total", "mean", "square", "rstd"))

    def value(b: Axis, i: Axis, c: Axis) -> Expr:
        if not gather:
            return at(x, b, i, c)
        return at(table, CheckedIndex(at(ids, b, i), dim("V"), "ids"), c)

    def axes(n: int) -> tuple[Axis, Axis, Axis]:
        return axis(f"b{n}", "B"), axis(f"l{n}", "L"), axis(f"c{n}", columns)

    (b0, i0, c0), (b1, i1, _), (b2, i2, c2), (b3, i3, _), (b4, i4, c4) = (axes(n) for n in range(5))
    centred = call("sub", value(b2, i2, c2), at(mean, b2, i2))
    return Program(
        ((ids, table) if gather else (x,)) + (gamma,), (out,),
        (Compute(total, (b0, i0), value(b0, i0, c0), (c0,), SUM),
         Compute(mean, (b1, i1), call("div", at(total, b1, i1), count)),
         Compute(square, (b2, i2), mul(centred, centred), (c2,), SUM),
         Compute(rstd, (b3, i3), call("div", f32(1.0), call("sqrt", add(at(square, b3, i3), f32(1e-5))))),
         Compute(out, (b4, i4, c4), mul(mul(call("sub", value(b4, i4, c4), at(mean, b4, i4)), at(rstd, b4, i4)),
                                        at(gamma, c4)))),
        (SizeParam("B"), SizeParam("L")) + ((SizeParam("V"),) if gather else ())
        + ((SizeParam(columns),) if isinstance(columns, str) else ()))


def shared_rows() -> Program:
    """out[b, l, c] = y - sum over c of y, where y = x[b, l, c] + exp(p[l, c]): the exponentials are read by every b."""
    x, p, out = buffer("x", "B", "L", 4), buffer("p", "L", 4), buffer("out", "B", "L", 4)
    t, sm = buffer("t", "L", 4), buffer("sm", "B", "L")
    i, j = axis("i", "L"), axis("j", 4)
    b0, l0, c0, b1, l1, c1 = (axis(n, e) for n, e in zip(("b0", "l0", "c0", "b1", "l1", "c1"), ("B", "L", 4) * 2))
    return Program(
        (x, p), (out,),
        (Compute(t, (i, j), call("exp", at(p, i, j))),
         Compute(sm, (b0, l0), add(at(x, b0, l0, c0), at(t, l0, c0)), (c0,), SUM),
         Compute(out, (b1, l1, c1), call("sub", add(at(x, b1, l1, c1), at(t, l1, c1)), at(sm, b1, l1)))),
        (SizeParam("B"), SizeParam("L")))


def column_sums() -> Program:
    """out[c] = sum over r of x[r, c]: the kept axis is the consecutive one."""
    x, out = buffer("x", "R", "C"), buffer("out", "C")
    c, r = axis("c", "C"), axis("r", "R")
    return Program((x,), (out,), (Compute(out, (c,), at(x, r, c), (r,), SUM),), (SizeParam("R"), SizeParam("C")))


def total() -> Program:
    """out[] = sum over r, c of x[r, c]."""
    x, out = buffer("x", "R", "C"), buffer("out")
    r, c = axis("r", "R"), axis("c", "C")
    return Program((x,), (out,), (Compute(out, (), at(x, r, c), (r, c), SUM),), (SizeParam("R"), SizeParam("C")))


def total_and_rows() -> Program:
    """out[r] = sum over c of (total + x[r, c]), where total = sum over r, c of x[r, c]: rows that the anchor does not have."""
    x, t, out = buffer("x", "R", "C"), buffer("t"), buffer("out", "R")
    r0, c0, r1, c1 = axis("r0", "R"), axis("c0", "C"), axis("r1", "R"), axis("c1", "C")
    return Program((x,), (out,), (Compute(t, (), at(x, r0, c0), (r0, c0), SUM),
                                  Compute(out, (r1,), add(at(t), at(x, r1, c1)), (c1,), SUM)), (SizeParam("R"), SizeParam("C")))


def two_row_counts() -> Program:
    """p[n, c] = exp(x[n, c]) beside q[m] = sum over r of y[m, r]: one kernel, rows of different extents."""
    x, y, p, q = buffer("x", "N", 3), buffer("y", "M", 2), buffer("p", "N", 3), buffer("q", "M")
    n, c, m, r = axis("n", "N"), axis("c", 3), axis("m", "M"), axis("r", 2)
    return Program((x, y), (p, q), (Compute(p, (n, c), call("exp", at(x, n, c))), Compute(q, (m,), at(y, m, r), (r,), SUM)),
                   (SizeParam("N"), SizeParam("M")))


def transpose(shape: tuple[int | str, int | str, int | str] = ("B", "L", 6)) -> Program:
    """out[i, k, j] = x[i, j, k]."""
    x, out = buffer("x", *shape), buffer("out", shape[0], shape[2], shape[1])
    i, k, j = axis("i", shape[0]), axis("k", shape[2]), axis("j", shape[1])
    return Program((x,), (out,), (Compute(out, (i, k, j), at(x, i, j, k)),),
                   tuple(SizeParam(s) for s in shape if isinstance(s, str)))


def concat() -> Program:
    """out = concat(x[A, 3], y[B, 3]) over the first axis."""
    x, y, out = buffer("x", "A", 3), buffer("y", "B", 3), buffer("out", dim("A") + dim("B"), 3)
    i, j = axis("i", dim("A") + dim("B")), axis("j", 3)
    inside = call("lt", v(i), Size(dim("A")))
    body = select(inside, at(x, i, j), at(y, call("sub", v(i), Size(dim("A"))), j))
    return Program((x, y), (out,), (Compute(out, (i, j), body),), (SizeParam("A"), SizeParam("B")))


def where() -> Program:
    """out = where(c, x, y) with c broadcast, then squared through a local."""
    c = Buffer("c", BOOL, (dim("N"),))
    x, y, t, out = (buffer(n, "M", "N") for n in ("x", "y", "t", "out"))
    i, j, p, q = axis("i", "M"), axis("j", "N"), axis("p", "M"), axis("q", "N")
    return Program(
        (c, x, y), (out,),
        (Compute(t, (i, j), call("tanh", select(at(c, j), at(x, i, j), at(y, i, j)))),
         Compute(out, (p, q), mul(at(t, p, q), at(t, p, q)))),
        (SizeParam("M"), SizeParam("N")))


def chosen_columns() -> Program:
    """out[i, j] = exp(x[j, i] where c[i, j], else y[i, j]): lanes picked one by one in a choice."""
    x, y, c, out = buffer("x", "N", "M"), buffer("y", "M", "N"), buffer("c", "M", "N", dtype=BOOL), buffer("out", "M", "N")
    i, j = axis("i", "M"), axis("j", "N")
    return Program((x, y, c), (out,), (Compute(out, (i, j), call("exp", select(at(c, i, j), at(x, j, i), at(y, i, j)))),),
                   (SizeParam("M"), SizeParam("N")))


def conv(channels: int = 3, out_channels: int = 5, kernel: tuple[int, int] = (3, 2)) -> Program:
    """out[b, o, h, w] = relu(sum over c, p, q of x[b, c, h+p-1, w+q] * k[o, c, p, q]), padded by one row above and below."""
    kh, kw = kernel
    x = buffer("x", "B", channels, "H", dim("W") + (kw - 1))
    k, acc, out = (buffer("k", out_channels, channels, kh, kw), buffer("acc", "B", out_channels, "H", "W"),
                   buffer("out", "B", out_channels, "H", "W"))
    b, o, h, w = axis("b", "B"), axis("o", out_channels), axis("h", "H"), axis("w", "W")
    c, p, q = axis("c", channels), axis("p", kh), axis("q", kw)
    b1, o1, h1, w1 = axis("b1", "B"), axis("o1", out_channels), axis("h1", "H"), axis("w1", "W")
    row = call("sub", add(v(h), v(p)), Const(1, INDEX))
    inside = Call("and", (call("ge", row, Const(0, INDEX)), call("lt", row, Size(dim("H")))), BOOL)
    pixel = select(inside, at(x, b, c, row, add(v(w), v(q))), f32(0.0))
    return Program(
        (x, k), (out,),
        (Compute(acc, (b, o, h, w), mul(pixel, at(k, o, c, p, q)), (c, p, q), SUM),
         Compute(out, (b1, o1, h1, w1), call("max", at(acc, b1, o1, h1, w1), f32(0.0)))),
        (SizeParam("B"), SizeParam("H"), SizeParam("W")))

"""Sums of products: MatMul, Gemm, Conv and the primitive Convolve it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tsc.errors import ModelError, UnsupportedError
from tsc.ir import Node, TensorType
from tsc.ops.base import Builder, InferContext, Lowering, OpDef, PatternKind, Reduction, Sample
from tsc.ops.generate import typed
from tsc.ops.reduce import cast
from tsc.ops.samples import floats, ints
from tsc.ops.shapes import (
    Shape,
    at_least_zero,
    broadcast,
    canonical,
    expect_list,
    expect_rank,
    expect_within,
    is_float,
    tensor,
    unify,
    where,
)
from tsc.ops.words import PARTS
from tsc.sym import GREATEST, ONE, ZERO, SymExpr, ceildiv, sym_max
from tsc.te.compute import SUM
from tsc.te.expr import Cast, Expr, add, call, from_bfloat, index, mul, select
from tsc.te.intrinsics import WORDS

# -- MatMul ----------------------------------------------------------------------------------------------------

def _matmul_depth(ctx: InferContext) -> SymExpr:
    a, b = canonical(ctx, 0), canonical(ctx, 1)
    return unify(ctx.env, a[-1], b[-2] if len(b) > 1 else b[0], f"{where(ctx)}: the inner dims must be equal")


def matmul_types(ctx: InferContext) -> tuple[TensorType, ...]:
    """Of a product of the first two inputs, with broadcast batches."""
    expect_rank(ctx, 0, 1)
    expect_rank(ctx, 1, 1)
    _matmul_depth(ctx)
    a, b = canonical(ctx, 0), canonical(ctx, 1)
    batch = broadcast(ctx.env, [a[:-2], b[:-2]], where(ctx))
    rows, columns = a[-2:-1], b[-1:] if len(b) > 1 else ()
    return tensor(_sum_dtype(ctx), (*batch, *rows, *columns))


def _matmul_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Reduction:
    ctx = lowering.infer
    a, b = canonical(ctx, 0), canonical(ctx, 1)
    axis = lowering.axis("k", _matmul_depth(ctx))
    k = lowering.var(axis)
    rows, columns = min(len(a) - 1, 1), min(len(b) - 1, 1)
    batch = at[:len(at) - rows - columns]
    row, column = at[len(batch):len(batch) + rows], at[len(at) - columns:] if columns else ()
    left = lowering.read(0, (*_batch_index(batch, a[:-2]), *row, k))
    right = lowering.read(1, (*_batch_index(batch, b[:-2]), k, *column))
    return Reduction(SUM, (axis,), _product(ctx, left, right))


def _product(ctx: InferContext, left: Expr, right: Expr) -> Expr:
    """The product of two factors in the type of the sum, or the sum of those of the parts of two words."""
    dtype, parts = _sum_dtype(ctx), int(ctx.attr(PARTS, 0))
    return call(WORDS[parts][1], left, right) if parts else mul(_widened(left, dtype), _widened(right, dtype))


def _widened(factor: Expr, dtype: str) -> Expr:
    """A factor in the type of the sum; whole numbers are summed up as such, so that 16 bits without a sign are a bfloat16's."""
    if factor.dtype == "uint16" and dtype == "float32":
        return from_bfloat(factor)
    return factor if factor.dtype == dtype else Cast(factor, dtype)


def _sum_dtype(ctx: InferContext) -> str:
    """The type in which products are added: that of the factors, or a wider one that the node asks for."""
    return str(ctx.attr("sum_dtype", ctx.type(0).dtype))


def with_factors(node: Node, factors: tuple[str, ...], sum_dtype: str) -> Node:
    """A node that multiplies other factors and adds up in `sum_dtype`."""
    return replace(node, inputs=(*factors, *node.inputs[len(factors):]), attrs={**node.attrs, "sum_dtype": sum_dtype})


def _batch_index(at: Sequence[Expr], shape: Shape) -> list[Expr]:
    own = at[len(at) - len(shape):]
    return [index(0) if d == ONE else i for i, d in zip(own, shape)]


# -- Gemm ------------------------------------------------------------------------------------------------------

def _gemm_types(ctx: InferContext) -> tuple[TensorType, ...]:
    a, b = canonical(ctx, 0), canonical(ctx, 1)
    if len(a) != 2 or len(b) != 2:
        raise ModelError(f"{where(ctx)} multiplies tensors of rank {len(a)} and {len(b)}, expected matrices")
    a = a[::-1] if ctx.attr("transA", 0) else a
    b = b[::-1] if ctx.attr("transB", 0) else b
    unify(ctx.env, a[1], b[0], f"{where(ctx)}: the inner dims must be equal")
    result = (ctx.env.canon(a[0]), ctx.env.canon(b[1]))
    if ctx.has(2):
        expect_within(ctx, 2, result)
    return tensor(ctx.type(0).dtype, tuple(map(ctx.env.canon, result)))


def _gemm(builder: Builder) -> tuple[str, ...]:
    """alpha * A' @ B' + beta * C, the transpositions being reads in another order. Integers times a fraction are floats. A beta
    of 0 leaves C out, as in BLAS: 0 times an infinity of it would be a NaN."""
    ctx = builder.infer
    own, factors = ctx.type(0).dtype, [float(ctx.attr(name, 1.0)) for name in ("alpha", "beta")]
    working = own if is_float(own) or all(f.is_integer() for f in factors) else "float64"
    a, b = ctx.node.inputs[:2]
    if ctx.attr("transA", 0):
        a = builder.emit("Transpose", a, perm=(1, 0))
    if ctx.attr("transB", 0):
        b = builder.emit("Transpose", b, perm=(1, 0))
    result = _scaled(builder, cast(builder, builder.emit("MatMul", a, b), own, working), factors[0], working)
    if ctx.has(2) and factors[1] != 0:
        bias = cast(builder, ctx.node.inputs[2], own, working)
        result = builder.emit("Add", result, _scaled(builder, bias, factors[1], working))
    return (cast(builder, result, working, own),)


def _scaled(builder: Builder, value: str, factor: float, dtype: str) -> str:
    return value if factor == 1.0 else builder.emit("Mul", value, scalar_operand(builder, factor, dtype))


def scalar_operand(builder: Builder, value: float, dtype: str) -> str:
    """A constant scalar of `dtype`."""
    return builder.constant(np.asarray(value).astype(dtype))  # -1 of an unsigned type is its greatest number


# -- Conv ------------------------------------------------------------------------------------------------------

#: The attribute of a convolution that says what it reads outside of its input.
_OUTSIDE = "outside"


def _spatial(ctx: InferContext) -> tuple[tuple[int, ...], tuple[int, ...], tuple[SymExpr, ...], tuple[SymExpr, ...]]:
    """Strides, dilations, and the padding before and after each spatial axis."""
    shape, kernel = canonical(ctx, 0)[2:], _kernel(ctx)[2:]
    rank = len(shape)
    strides, dilations = positives(ctx, "strides", rank), positives(ctx, "dilations", rank)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations)]
    begins, ends = padding(ctx, shape, spans, strides)
    return strides, dilations, begins, ends


def _kernel(ctx: InferContext) -> Shape:
    """The shape of a kernel, whose channels are its second dim; those of words are its last."""
    own = canonical(ctx, 1)
    return (own[0], own[-1], *own[1:-1]) if ctx.attr(PARTS, 0) else own


def has_one_channel(node: Node, kernel: Shape) -> bool:
    """Whether a node convolves channels one by one, so that no more than a window is summed up."""
    return node.op == "Convolve" and kernel[1] == ONE


def of_words(node: Node, factors: tuple[str, str], parts: int, outside: int | str) -> Node:
    """A convolution of words whose kernel has its channels last; `outside` is a word, or the name of a value that has it."""
    made = with_factors(replace(node, inputs=node.inputs[:2]), factors, "int32")
    attrs = {**made.attrs, PARTS: parts}
    if isinstance(outside, str):
        return replace(made, inputs=(*made.inputs, outside), attrs=attrs)
    return replace(made, attrs={**attrs, _OUTSIDE: outside} if outside else attrs)


def sums_channels(node: Node) -> bool:
    """Whether a node is a convolution of primitives in which each output has all channels, that are numbers by themselves."""
    return node.op == "Convolve" and node.attrs.get("group", 1) == 1 and PARTS not in node.attrs


def of_each_channel(node: Node, weights: Sequence[int]) -> bool:
    """Whether a node is a convolution of primitives of which each output has one channel of its own, by its weights' shape."""
    return node.op == "Convolve" and node.attrs.get("group", 1) == weights[0] and weights[1] == 1 and PARTS not in node.attrs


def is_convolution(node: Node) -> bool:
    """Whether a node is a convolution of primitives."""
    return node.op == "Convolve"


def positives(ctx: InferContext, name: str, rank: int) -> tuple[int, ...]:
    """An attribute of one positive number a spatial axis (1 where it is absent). Raises ModelError for any other."""
    given = tuple(int(v) for v in ctx.attr(name, (1,) * rank))
    if len(given) != rank or any(v < 1 for v in given):
        raise ModelError(f"{where(ctx)} has {name} {given}, expected {rank} numbers of at least 1")
    return given


def padding(ctx: InferContext, shape: Sequence[SymExpr], spans: Sequence[SymExpr],
            strides: Sequence[int]) -> tuple[tuple[SymExpr, ...], tuple[SymExpr, ...]]:
    """Padding before and after each spatial axis of a window operator: `pads`, or what `auto_pad` asks for."""
    mode = ctx.attr("auto_pad", "NOTSET") or "NOTSET"
    rank = len(shape)
    _expect_reachable(ctx, spans, "windows")
    _expect_reachable(ctx, [SymExpr.of(s) for s in strides], "strides")
    if mode == "VALID":
        return (ZERO,) * rank, (ZERO,) * rank
    if mode == "NOTSET":
        pads = [SymExpr.of(int(p)) for p in ctx.attr("pads", (0,) * (2 * rank))]
        if len(pads) != 2 * rank or any(ctx.env.prove_lt(p, 0) for p in pads):
            raise ModelError(f"{where(ctx)} has pads {', '.join(map(str, pads))}, expected {2 * rank} numbers of at least 0")
        _expect_reachable(ctx, pads, "pads")
        return tuple(pads[:rank]), tuple(pads[rank:])
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise UnsupportedError(f"{where(ctx)} has auto_pad '{mode}', expected NOTSET, VALID, SAME_UPPER or SAME_LOWER")
    totals = [_at_least(ctx, (ceildiv(d, s) - 1) * s + span - d) for d, s, span in zip(shape, strides, spans)]
    less = tuple(t // 2 for t in totals)
    more = tuple(t - half for t, half in zip(totals, less))
    return (less, more) if mode == "SAME_UPPER" else (more, less)


def _expect_reachable(ctx: InferContext, lengths: Sequence[SymExpr], what: str) -> None:
    """Raise UnsupportedError for a length beyond the greatest size: positions are calculated from it in 64 bits."""
    for length in lengths:
        least, _ = ctx.env.bounds(length)
        if least is not None and least > GREATEST:
            raise UnsupportedError(f"{where(ctx)} has {what} of {length} elements, more than {GREATEST}; make them smaller")


def _at_least(ctx: InferContext, value: SymExpr) -> SymExpr:
    return value if ctx.env.prove_le(0, value) else sym_max(value, 0)


def window_extent(ctx: InferContext, extent: SymExpr, span: SymExpr, stride: int) -> SymExpr:
    """How many windows of `span` elements fit into `extent` (padding included) at `stride`."""
    return ctx.env.canon(at_least_zero(ctx, extent - span, "the padded dim less the window") // stride + 1)


def group_of(ctx: InferContext) -> int:
    """The attribute `group`. Raises ModelError where it is no number of groups."""
    group = int(ctx.attr("group", 1))
    if group < 1:
        raise ModelError(f"{where(ctx)} has group {group}, expected at least 1")
    return group


def _groups(ctx: InferContext) -> SymExpr:
    """The number of groups, which is a size where a decomposition wrote it."""
    given = ctx.attr("group", 1)
    return ctx.env.canon(given) if isinstance(given, SymExpr) else SymExpr.of(group_of(ctx))


def expect_window(ctx: InferContext, w: Shape) -> None:
    """Weights must hold something along each spatial axis, as much as `kernel_shape` says."""
    if ctx.attr("kernel_shape") is not None:
        for k, d in zip(positives(ctx, "kernel_shape", len(w) - 2), w[2:]):
            unify(ctx.env, SymExpr.of(k), d, f"{where(ctx)}: kernel_shape must be that of its weights")
    for d in w[2:]:
        ctx.env.assume_le(1, d, f"{where(ctx)}: a window must hold at least one weight along each axis")


def with_bias(builder: Builder, result: str) -> str:
    """`result` and the bias of each channel, input 2, where there is one."""
    ctx = builder.infer
    if not ctx.has(2):
        return result
    bias = builder.emit("Unsqueeze", ctx.node.inputs[2], axes=tuple(range(1, ctx.type(0).rank - 1)))
    return builder.emit("Add", result, bias)


def convolved(ctx: InferContext) -> tuple[tuple[SymExpr, ...], tuple[SymExpr, ...], SymExpr]:
    """The shapes of an input and of its kernel, which are of one rank, and the number of groups."""
    expect_rank(ctx, 0, 3)
    x, w = canonical(ctx, 0), _kernel(ctx)
    if len(x) != len(w):
        raise ModelError(f"{where(ctx)} convolves rank {len(x)} with a kernel of rank {len(w)}, expected equal ranks")
    return x, w, _groups(ctx)


def conv_types(ctx: InferContext) -> tuple[TensorType, ...]:
    """Of a convolution of input 0 by input 1, with the bias of input 2 where there is one."""
    result = _convolve_types(ctx)
    if ctx.has(2):
        expect_list(ctx, 2, _kernel(ctx)[0])
    return result


def _convolve_types(ctx: InferContext) -> tuple[TensorType, ...]:
    x, w, group = convolved(ctx)
    unify(ctx.env, x[1], w[1] * group, f"{where(ctx)}: input channels must be groups times kernel channels")
    ctx.env.assume_eq(w[0] % group, ZERO, f"{where(ctx)}: group must divide the output channels")
    expect_window(ctx, w)
    x, w = canonical(ctx, 0), _kernel(ctx)
    strides, dilations, begins, ends = _spatial(ctx)
    extents = [window_extent(ctx, d + p + q, (k - 1) * r + 1, s)
               for d, k, s, r, p, q in zip(x[2:], w[2:], strides, dilations, begins, ends)]
    return tensor(_sum_dtype(ctx), [ctx.env.canon(d) for d in (x[0], w[0], *extents)])


def _conv(builder: Builder) -> tuple[str, ...]:
    node = builder.infer.node
    return (with_bias(builder, builder.emit("Convolve", *node.inputs[:2], **node.attrs)),)


def _convolve_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Reduction:
    """sum over channels and window of x[n, c, s*o + r*k - p] * w[m, c, k]; where x would be read outside it is zero, or what
    input 2 or an attribute says. Words are summed up channels innermost."""
    ctx = lowering.infer
    x, w = canonical(ctx, 0), _kernel(ctx)
    strides, dilations, begins, ends = _spatial(ctx)
    group = _groups(ctx)
    axes = tuple(lowering.axis(name, extent) for name, extent in zip(("c", *"hwdefg"), w[1:]))
    channel, *window = (lowering.var(a) for a in axes)
    source_channel: Expr = channel
    if group != ONE:
        members = ctx.env.canon(w[0] // group)
        source_channel = add(mul(call("floordiv", at[1], index(members)), index(w[1])), channel)
    places = [call("sub", add(mul(o, index(s)), mul(k, index(r))), index(p))
              for o, k, s, r, p in zip(at[2:], window, strides, dilations, begins)]
    value = lowering.read(0, (at[0], source_channel, *places))
    outside = typed(ctx.attr(_OUTSIDE, 0), value.dtype) if not ctx.has(2) else lowering.read(
        2, (index(0),) * ctx.type(2).rank)
    for place, extent, before, after in zip(places, x[2:], begins, ends):
        if after != ZERO:
            value = select(call("lt", place, index(extent)), value, outside)
        if before != ZERO:
            value = select(call("ge", place, index(0)), value, outside)
    if ctx.attr(PARTS, 0):
        weight = lowering.read(1, (at[1], *window, channel))
        return Reduction(SUM, (*axes[1:], axes[0]), _product(ctx, value, weight))
    return Reduction(SUM, axes, _product(ctx, value, lowering.read(1, (at[1], channel, *window))))


# -- samples ---------------------------------------------------------------------------------------------------

def _matmuls() -> Sequence[Sample]:
    shapes = (((3, 5), (5, 7)), ((2, 3, 5), (5, 1)), ((2, 1, 3, 5), (4, 5, 2)), ((5,), (5, 3)), ((3, 5), (5,)), ((5,), (5,)),
              ((2, 3, 5), (5,)), ((5,), (2, 5, 3)), ((1, 1), (1, 1)), ((1, 3, 5), (2, 5, 1)))
    return [*(Sample([floats(*a), floats(*b)]) for a, b in shapes),
            Sample([ints(3, 4, dtype="int32"), ints(4, 2, dtype="int32")])]


def _gemms() -> Sequence[Sample]:
    return [Sample([floats(3, 5), floats(5, 7), floats(7)]), Sample([floats(5, 3), floats(7, 5)], {"transA": 1, "transB": 1}),
            Sample([floats(1, 5), floats(5, 2), floats(1, 1)], {"alpha": 0.5, "beta": 2.0}),
            Sample([floats(3, 5), floats(7, 5), floats(3, 1)], {"transB": 1})]


def _convs() -> Sequence[Sample]:
    return [
        Sample([floats(2, 3, 7, 5), floats(4, 3, 3, 2), floats(4)], {"pads": (1, 0, 2, 1), "strides": (2, 1)}),
        Sample([floats(1, 4, 9, 8), floats(6, 2, 3, 3)], {"group": 2, "dilations": (2, 1), "pads": (1, 1, 1, 1)}),
        Sample([floats(1, 3, 6), floats(3, 1, 3), floats(3)], {"group": 3}),
        Sample([floats(1, 2, 7, 6), floats(3, 2, 3, 2)], {"auto_pad": "SAME_UPPER", "strides": (2, 2)}),
        Sample([floats(1, 2, 7, 6), floats(3, 2, 3, 2)], {"auto_pad": "SAME_LOWER"}),
        Sample([floats(1, 2, 5, 5), floats(1, 2, 5, 5)], {"auto_pad": "VALID"}),
        Sample([floats(1, 1, 3, 4, 5), floats(2, 1, 2, 3, 2)], {"pads": (1, 1, 1, 0, 0, 0)}),
    ]


OPS: tuple[OpDef, ...] = (
    OpDef("MatMul", PatternKind.CONTRACTION, matmul_types, te=_matmul_te, samples=_matmuls, widens=("float32", "int32")),
    OpDef("Gemm", PatternKind.CONTRACTION, _gemm_types, decompose=_gemm, samples=_gemms,
          reads=("alpha", "beta", "transA", "transB")),
    OpDef("Conv", PatternKind.CONTRACTION, conv_types, decompose=_conv, samples=_convs,
          reads=("kernel_shape", "strides", "dilations", "pads", "auto_pad", "group")),
    OpDef("Convolve", PatternKind.CONTRACTION, _convolve_types, te=_convolve_te, domain="tsc", widens=("int32",)),
)

"""Pooling: MaxPool, AveragePool, their global forms, and the primitives over windows that they are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from tsc.errors import ModelError, UnsupportedError
from tsc.ir import TensorType
from tsc.ops.base import Builder, InferContext, Lowering, OpDef, PatternKind, Reduction, Sample
from tsc.ops.contraction import padding, positives, scalar_operand
from tsc.ops.generate import converted, typed
from tsc.ops.reduce import mean, reduction
from tsc.ops.samples import floats
from tsc.ops.shapes import at_least_zero, canonical, delinearised, expect_rank, is_float, linear_index, tensor, where
from tsc.sym import ONE, ZERO, ShapeEnv, SymExpr, ceildiv, product, sym_min
from tsc.te.compute import MAX, MIN, SUM, Axis, Monoid
from tsc.te.expr import Expr, add, call, index, mul, select

#: The most elements that a window may have of which none is known to lie outside of the tensor in every window.
_MOST = 1 << 24


@dataclass(frozen=True, slots=True)
class _Window:
    """A window along one axis: output `o` covers `o*stride - begin + k*dilation` for `k < size`."""

    extent: SymExpr
    size: int
    stride: int
    dilation: int
    begin: SymExpr
    end: SymExpr
    count: SymExpr

    @property
    def inside(self) -> bool:
        """Whether no window reaches out of the tensor."""
        last = (self.count - 1) * self.stride + (self.size - 1) * self.dilation - self.begin
        beyond = (last - self.extent + 1).as_int()
        return self.begin == ZERO and beyond is not None and -self.stride <= beyond <= 0

    def narrowed(self, env: ShapeEnv) -> _Window:
        """Without the elements at both ends that are known to lie outside of the tensor in every window; one is left."""
        first, _ = env.bounds(self.begin - (self.count - 1) * self.stride)
        _, last = env.bounds(self.begin + self.extent - 1)
        skipped = 0 if first is None else min(max(-(-first // self.dilation), 0), self.size - 1)
        behind = self.size if last is None else min(last // self.dilation + 1, self.size)
        return replace(self, size=max(behind - skipped, 1), begin=self.begin - skipped * self.dilation)

    def place(self, output: Expr, k: Expr) -> Expr:
        """The position of element `k` of the window of `output`."""
        return call("sub", add(mul(output, index(self.stride)), mul(k, index(self.dilation))), index(self.begin))


def _windows(ctx: InferContext) -> tuple[_Window, ...]:
    expect_rank(ctx, 0, 3)
    shape = canonical(ctx, 0)[2:]
    if ctx.attr("kernel_shape") is None:
        raise ModelError(f"{where(ctx)} lacks its kernel_shape")
    sizes, strides, dilations = (positives(ctx, name, len(shape)) for name in ("kernel_shape", "strides", "dilations"))
    spans = [SymExpr.of((k - 1) * d + 1) for k, d in zip(sizes, dilations)]
    begins, ends = padding(ctx, shape, spans, strides)
    return tuple(
        _Window(d, k, s, r if k > 1 else 1, p, q, _count(ctx, d, span, s, p, q))
        for d, k, s, r, p, q, span in zip(shape, sizes, strides, dilations, begins, ends, spans))


def _count(ctx: InferContext, extent: SymExpr, span: SymExpr, stride: int, begin: SymExpr, end: SymExpr) -> SymExpr:
    """How many windows an axis has. `ceil_mode` adds one that reaches beyond the padding but starts before it; the sizes that
    auto_pad asks for do not depend on it."""
    env, padded = ctx.env, ctx.env.canon(extent + begin + end)
    if not ctx.attr("ceil_mode", 0) or ctx.attr("auto_pad", "NOTSET") not in ("", "NOTSET"):
        return env.canon(at_least_zero(ctx, env.canon(padded - span), "the padded dim less the window") // stride + 1)
    at_least_zero(ctx, env.canon(padded - span + stride - 1), "the count of its windows less 1")
    rounded, starting_inside = env.canon(ceildiv(padded - span, stride) + 1), env.canon(ceildiv(extent + begin, stride))
    return rounded if env.prove_le(rounded, starting_inside) else env.canon(sym_min(rounded, starting_inside))


def pool_types(ctx: InferContext) -> tuple[TensorType, ...]:
    """The type of what a window operator gives."""
    windows = _windows(ctx)
    sizes = [w.narrowed(ctx.env).size for w in windows]
    if prod(sizes) > _MOST:
        raise UnsupportedError(f"{where(ctx)} has windows of {' x '.join(map(str, sizes))} elements that may lie inside its "
                               f"input, more than {_MOST}; make them smaller, or say how large the input is")
    return tensor(ctx.type(0).dtype, (*canonical(ctx, 0)[:2], *(w.count for w in windows)))


def _window_reduction(lowering: Lowering, at: tuple[Expr, ...], monoid: Monoid,
                      of: Callable[[Expr, Sequence[Expr]], Expr] = lambda value, places: value) -> Reduction:
    """`monoid` over each window, of its elements or of something `of` them and their places; the identity stands for what lies
    outside the tensor."""
    windows = [w.narrowed(lowering.infer.env) for w in _windows(lowering.infer)]
    axes: tuple[Axis, ...] = tuple(lowering.axis("w", SymExpr.of(w.size)) for w in windows)
    places = [w.place(o, lowering.var(a)) for w, o, a in zip(windows, at[2:], axes)]
    value = of(lowering.read(0, (*at[:2], *places)), places)
    outside = typed(monoid.identity(value.dtype), value.dtype)
    for window, place in zip(windows, places):
        if not window.inside:
            value = select(call("lt", place, index(window.extent)), value, outside)
        if window.begin != ZERO:
            value = select(call("ge", place, index(0)), value, outside)
    return Reduction(monoid, axes, value)


def _max_pool_types(ctx: InferContext) -> tuple[TensorType, ...]:
    values, = pool_types(ctx)
    return (values, TensorType("int64", values.shape))[:len(ctx.node.outputs)]


def _max_pool(builder: Builder) -> tuple[str, ...]:
    node = builder.infer.node
    values = builder.emit("WindowMax", node.inputs[0], **node.attrs)
    if not any(node.outputs[1:]):
        return (values,)
    spots = builder.emit("WindowSpot", node.inputs[0], values, **node.attrs)
    order = node.attrs.get("storage_order", 0)
    return values, builder.emit("SpotIndex", spots, shape=canonical(builder.infer, 0), storage_order=order)


def _window_max_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Reduction:
    return _window_reduction(lowering, at, MAX)


def _window_spot_types(ctx: InferContext) -> tuple[TensorType, ...]:
    return tensor("int64", canonical(ctx, 1))


def _window_spot_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Reduction:
    """Where the first of the greatest elements lies (what is no number is the greatest), as a row-major number in its image."""
    extents, top = canonical(lowering.infer, 0)[2:], lowering.read(1, at)

    def spot(value: Expr, places: Sequence[Expr]) -> Expr:
        found = call("eq", value, top)
        if is_float(value.dtype):
            found = call("or", found, call("isnan", value))
        return select(found, linear_index(places, extents), index(product(extents)))

    return _window_reduction(lowering, at, MIN, spot)


def _spot_index_types(ctx: InferContext) -> tuple[TensorType, ...]:
    return tensor("int64", canonical(ctx, 0))


def _spot_index_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    """Its number in the whole tensor; the axes of an image count from the last on, or (storage_order) from the first. A window
    in which nothing lies gets the image's last."""
    ctx = lowering.infer
    shape = [ctx.env.canon(s) for s in ctx.attr("shape")]
    images, extents = shape[:2], shape[2:]
    spot = call("min", lowering.read(0, at), index(product(extents) - 1))
    if ctx.attr("storage_order", 0):
        spot = linear_index(delinearised(spot, extents)[::-1], extents[::-1])
    return add(mul(linear_index(at[:2], images), index(product(extents))), spot)


def _window_sum_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Reduction:
    return _window_reduction(lowering, at, SUM)


def _average_pool(builder: Builder) -> tuple[str, ...]:
    ctx = builder.infer
    total = builder.emit("WindowSum", ctx.node.inputs[0], **ctx.node.attrs)
    windows = _windows(ctx)
    if all(w.inside for w in windows):
        members = product(w.size for w in windows).as_int()
        return (builder.emit("Div", total, scalar_operand(builder, float(members or 1), ctx.type(0).dtype)),)
    return (builder.emit("Div", total, builder.emit("WindowCount", ctx.node.inputs[0], **ctx.node.attrs)),)


def _window_count_types(ctx: InferContext) -> tuple[TensorType, ...]:
    return tensor(ctx.type(0).dtype, (ONE, ONE, *(w.count for w in _windows(ctx))))


def _window_count_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    """How many elements of each window count: those inside the tensor, or (count_include_pad) inside the padded one."""
    ctx = lowering.infer
    padded = bool(ctx.attr("count_include_pad", 0))
    total: Expr = index(1)
    for w, o in zip(_windows(ctx), at[2:]):
        start = w.place(o, index(0))
        low = -w.begin if padded else ZERO
        high = w.extent + w.end if padded else w.extent
        # elements at start + k*dilation with low <= it < high
        skipped = call("max", _ceildiv(call("sub", index(low), start), w.dilation), index(0))
        reached = call("min", _ceildiv(call("sub", index(high), start), w.dilation), index(w.size))
        total = mul(total, call("sub", reached, skipped))
    return converted(total, lowering.out[0].dtype)


def _ceildiv(value: Expr, divisor: int) -> Expr:
    return call("floordiv", add(value, index(divisor - 1)), index(divisor))


# -- global pooling --------------------------------------------------------------------------------------------

def global_types(ctx: InferContext) -> tuple[TensorType, ...]:
    """The type of one number a channel."""
    expect_rank(ctx, 0, 3)
    shape = canonical(ctx, 0)
    return tensor(ctx.type(0).dtype, (*shape[:2], *(ONE,) * (len(shape) - 2)))


def _global_average(builder: Builder) -> tuple[str, ...]:
    ctx = builder.infer
    return (mean(builder, ctx.node.inputs[0], range(2, ctx.type(0).rank), ctx.type(0).dtype),)


def _global_max(builder: Builder) -> tuple[str, ...]:
    return (reduction(builder, "ReduceMax", builder.infer.node.inputs[0], range(2, builder.infer.type(0).rank)),)


# -- samples ---------------------------------------------------------------------------------------------------

def _pools() -> Sequence[Sample]:
    x = floats(2, 3, 7, 8)
    return [Sample([x], {"kernel_shape": (2, 3)}),
            Sample([x], {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}),
            Sample([x], {"kernel_shape": (3, 2), "strides": (2, 3), "ceil_mode": 1}),
            Sample([x], {"kernel_shape": (3, 3), "strides": (2, 2), "auto_pad": "SAME_UPPER"}),
            Sample([floats(1, 2, 9)], {"kernel_shape": (3,), "dilations": (2,), "pads": (2, 1)})]


def _max_pools() -> Sequence[Sample]:
    even = np.round(floats(2, 2, 5, 6))
    places = [Sample([x], {"kernel_shape": (3, 2), "strides": (2, 1), "pads": (1, 0, 1, 1), "storage_order": o}, outputs=2)
              for x in (floats(2, 3, 7, 8), even) for o in (0, 1)]
    return [*_pools(), *places, Sample([floats(1, 2, 9)], {"kernel_shape": (3,), "dilations": (2,)}, outputs=2)]


def _averages() -> Sequence[Sample]:
    return [*_pools(), *(Sample(s.inputs, {**s.attrs, "count_include_pad": 1}) for s in _pools()[1:2])]


def _wholes() -> Sequence[Sample]:
    return [Sample([floats(2, 3, 5, 4)]), Sample([floats(1, 3, 1)])]


OPS: tuple[OpDef, ...] = (
    OpDef("MaxPool", PatternKind.REDUCE, _max_pool_types, decompose=_max_pool, samples=_max_pools,
          reads=("kernel_shape", "strides", "dilations", "pads", "auto_pad", "ceil_mode", "storage_order")),
    OpDef("AveragePool", PatternKind.REDUCE, pool_types, decompose=_average_pool, samples=_averages,
          reads=("kernel_shape", "strides", "dilations", "pads", "auto_pad", "ceil_mode", "count_include_pad")),
    OpDef("GlobalAveragePool", PatternKind.REDUCE, global_types, decompose=_global_average, samples=_wholes),
    OpDef("GlobalMaxPool", PatternKind.REDUCE, global_types, decompose=_global_max, samples=_wholes),
    OpDef("WindowMax", PatternKind.REDUCE, pool_types, te=_window_max_te, domain="tsc"),
    OpDef("WindowSpot", PatternKind.REDUCE, _window_spot_types, te=_window_spot_te, domain="tsc"),
    OpDef("SpotIndex", PatternKind.ELEMENTWISE, _spot_index_types, te=_spot_index_te, domain="tsc"),
    OpDef("WindowSum", PatternKind.REDUCE, pool_types, te=_window_sum_te, domain="tsc"),
    OpDef("WindowCount", PatternKind.INJECTIVE, _window_count_types, te=_window_count_te, domain="tsc", static_inputs=(0,)),
)

"""Activations: each one expression over the primitive intrinsics."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tsc.ops.base import InferContext, OpDef, Sample
from tsc.ops.elementwise import Body, elementwise, first, intrinsic, literal, required, singles
from tsc.ops.samples import floats, ints
from tsc.ops.shapes import canonical, expect_within, is_float
from tsc.te.expr import Cast, Expr, add, call, mul, select


def _unary(fn: Callable[[InferContext, Expr], Expr]) -> Body:
    return lambda ctx, args: fn(ctx, first(args))


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + exp(-x)); exp overflows to inf where the result is 0."""
    return call("div", literal(1, x), add(literal(1, x), call("exp", call("neg", x))))


def _log1p(x: Expr) -> Expr:
    """log(1 + x) of x >= 0, as near as a logarithm is, where 1 + x rounds too (Goldberg 1991, theorem 4)."""
    rounded = add(literal(1, x), x)
    near = mul(call("log", rounded), call("div", x, call("sub", rounded, literal(1, x))))
    return select(call("eq", rounded, literal(1, x)), x, near)


def softplus(x: Expr) -> Expr:
    """log(1 + exp(x)), as max(x, 0) + log(1 + exp(-|x|)) so that nothing overflows."""
    return add(call("max", x, literal(0, x)), _log1p(call("exp", call("neg", call("abs", x)))))


def _positive(x: Expr, yes: Expr, no: Expr) -> Expr:
    return select(call("gt", x, literal(0, x)), yes, no)


def _expm1(x: Expr) -> Expr:
    return call("sub", call("exp", x), literal(1, x))


def _gelu(ctx: InferContext, x: Expr) -> Expr:
    half = mul(literal(0.5, x), x)
    if ctx.attr("approximate", "none") == "tanh":
        cubic = mul(literal(0.044715, x), mul(x, mul(x, x)))
        return mul(half, add(literal(1, x), call("tanh", mul(literal(np.sqrt(2 / np.pi), x), add(x, cubic)))))
    return mul(half, add(literal(1, x), call("erf", mul(x, literal(np.sqrt(0.5), x)))))


def _leaky(ctx: InferContext, x: Expr) -> Expr:
    return select(call("ge", x, literal(0, x)), x, mul(literal(ctx.attr("alpha", 0.01), x), x))


def _elu(ctx: InferContext, x: Expr) -> Expr:
    return select(call("lt", x, literal(0, x)), mul(literal(ctx.attr("alpha", 1.0), x), _expm1(x)), x)


def _celu(ctx: InferContext, x: Expr) -> Expr:
    alpha, zero = literal(ctx.attr("alpha", 1.0), x), literal(0, x)
    return add(call("max", x, zero), call("min", zero, mul(alpha, _expm1(call("div", x, alpha)))))


def _selu(ctx: InferContext, x: Expr) -> Expr:
    alpha = literal(ctx.attr("alpha", 1.67326319217681884765625), x)
    return mul(literal(ctx.attr("gamma", 1.05070102214813232421875), x), _positive(x, x, mul(alpha, _expm1(x))))


def _hard(x: Expr, alpha: float, beta: float) -> Expr:
    line = add(mul(literal(alpha, x), x), literal(beta, x))
    return call("max", call("min", line, literal(1, x)), literal(0, x))


def _hard_sigmoid(ctx: InferContext, x: Expr) -> Expr:
    return _hard(x, ctx.attr("alpha", 0.2), ctx.attr("beta", 0.5))


def _swish(ctx: InferContext, x: Expr) -> Expr:
    return mul(x, sigmoid(mul(literal(ctx.attr("alpha", 1.0), x), x)))


def _thresholded(ctx: InferContext, x: Expr) -> Expr:
    return select(call("gt", x, literal(ctx.attr("alpha", 1.0), x)), x, literal(0, x))


def _shrink(ctx: InferContext, x: Expr) -> Expr:
    """The formula in floats, as `lambd` and `bias` are; what is left of an integer is truncated."""
    value = x if is_float(x.dtype) else Cast(x, "float64")
    bias, edge = literal(ctx.attr("bias", 0.0), value), ctx.attr("lambd", 0.5)
    low, high = call("lt", value, literal(-edge, value)), call("gt", value, literal(edge, value))
    if value is not x and float(bias.value).is_integer() and abs(bias.value) < 2**63:
        value, bias = x, literal(bias.value, x)
    shrunk = select(low, add(value, bias), select(high, call("sub", value, bias), literal(0, value)))
    return shrunk if shrunk.dtype == x.dtype else Cast(shrunk, x.dtype)


def _prelu(ctx: InferContext, args: Sequence[Expr | None]) -> Expr:
    x = first(args)
    return select(call("lt", x, literal(0, x)), mul(required(args, 1), x), x)


def _slopes(ctx: InferContext) -> None:
    expect_within(ctx, 1, canonical(ctx, 0))


def _with(**attrs: float) -> Callable[[], Sequence[Sample]]:
    return lambda: [Sample([floats(3, 5)]), Sample([floats(1, 7)], attrs)]


def _gelus() -> Sequence[Sample]:
    return [Sample([floats(3, 5)]), Sample([floats(1, 7)], {"approximate": "tanh"})]


def _relus() -> Sequence[Sample]:
    return [Sample([floats(3, 5)]), Sample([floats()]), Sample([ints(2, 3, dtype="int32")])]


OPS: tuple[OpDef, ...] = (
    elementwise("Relu", _unary(lambda ctx, x: call("max", x, literal(0, x))), samples=_relus),
    elementwise("Tanh", intrinsic("tanh"), samples=singles()),
    elementwise("Sigmoid", _unary(lambda ctx, x: sigmoid(x)), samples=singles(-90.0, 90.0)),
    elementwise("Gelu", _unary(_gelu), samples=_gelus, reads=("approximate",)),
    elementwise("LeakyRelu", _unary(_leaky), samples=_with(alpha=0.3), reads=("alpha",)),
    elementwise("PRelu", _prelu, samples=lambda: [Sample([floats(2, 3, 5), floats(3, 1)])], required=2, check=_slopes),
    elementwise("ThresholdedRelu", _unary(_thresholded), samples=_with(alpha=0.3), reads=("alpha",)),
    elementwise("Elu", _unary(_elu), samples=_with(alpha=0.3), reads=("alpha",)),
    elementwise("Celu", _unary(_celu), samples=_with(alpha=0.3), reads=("alpha",)),
    elementwise("Selu", _unary(_selu), samples=_with(alpha=0.3, gamma=1.5), reads=("alpha", "gamma")),
    elementwise("HardSigmoid", _unary(_hard_sigmoid), samples=_with(alpha=0.4, beta=0.3), reads=("alpha", "beta")),
    elementwise("HardSwish", _unary(lambda ctx, x: mul(x, _hard(x, 1 / 6, 0.5))), samples=singles(-4.0, 4.0)),
    elementwise("Swish", _unary(_swish), samples=_with(alpha=0.3), reads=("alpha",)),
    elementwise("Softplus", _unary(lambda ctx, x: softplus(x)), samples=singles(-90.0, 90.0)),
    elementwise("Softsign", _unary(lambda ctx, x: call("div", x, add(literal(1, x), call("abs", x)))), samples=singles()),
    elementwise("Mish", _unary(lambda ctx, x: mul(x, call("tanh", softplus(x)))), samples=singles(-9.0, 9.0)),
    elementwise("Shrink", _unary(_shrink), samples=_with(bias=0.3, lambd=0.8), reads=("bias", "lambd")),
)

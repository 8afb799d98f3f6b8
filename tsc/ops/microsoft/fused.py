"""Activations with a bias, and products and convolutions with what stands before and behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tsc.errors import UnsupportedError
from tsc.ops.base import Builder, OpDef, PatternKind, Sample
from tsc.ops.contraction import scalar_operand
from tsc.ops.form import FLOATS, Form
from tsc.ops.microsoft.domain import MICROSOFT
from tsc.ops.samples import floats
from tsc.ops.shapes import where

_CONV = {"kernel_shape": "ints", "pads": "ints", "strides": "ints", "dilations": "ints"}


# -- activations -------------------------------------------------------------------------------------------------

def _gelu(approximate: str, bias: int | None) -> Callable[[Builder], tuple[str, ...]]:
    def decompose(builder: Builder) -> tuple[str, ...]:
        x = builder.infer.node.inputs[0]
        if bias is not None and builder.infer.has(bias):
            x = builder.emit("Add", x, builder.infer.node.inputs[bias])
        return (builder.emit("Gelu", x, approximate=approximate),)

    return decompose


def _quick_gelu(builder: Builder) -> tuple[str, ...]:
    """x * sigmoid(alpha x)."""
    ctx = builder.infer
    x, alpha = ctx.node.inputs[0], scalar_operand(builder, float(ctx.attr("alpha")), ctx.type(0).dtype)
    return (builder.emit("Mul", x, builder.emit("Sigmoid", builder.emit("Mul", x, alpha))),)


def _activated(builder: Builder, x: str, parameters: Sequence[float | None]) -> str:
    """The activation that the attribute of this name says, of x; parameters are in the order in which it has them."""
    ctx = builder.infer
    kind = ctx.attr("activation", "")
    first, second = (*parameters, None, None)[:2]
    if not kind:
        return x
    if kind in ("Relu", "Tanh", "Sigmoid", "Softplus", "Softsign"):
        return builder.emit(kind, x)
    if kind in ("LeakyRelu", "Elu", "ThresholdedRelu") and first is not None:
        return builder.emit(kind, x, alpha=first)
    if kind == "HardSigmoid" and first is not None and second is not None:
        return builder.emit(kind, x, alpha=first, beta=second)
    if kind == "Clip" and first is not None and second is not None:
        low, high = (scalar_operand(builder, value, ctx.type(0).dtype) for value in (first, second))
        return builder.emit(kind, x, low, high)
    given = ", ".join(str(p) for p in parameters if p is not None)
    raise UnsupportedError(f"{where(ctx)} has the activation '{kind}' with the parameters ({given}), which is not supported")


# -- products ----------------------------------------------------------------------------------------------------

def _product(builder: Builder) -> tuple[str, ...]:
    """alpha * A @ B, each as it is or transposed."""
    ctx = builder.infer
    operands = [_turned(builder, i, side) for i, side in enumerate("AB")]
    made, alpha = builder.emit("MatMul", *operands), float(ctx.attr("alpha"))
    return (made if alpha == 1 else builder.emit("Mul", made, scalar_operand(builder, alpha, ctx.type(0).dtype)),)


def _turned(builder: Builder, i: int, side: str) -> str:
    """An operand with its last two axes exchanged, and the first one made the last but one before that, where attributes say
    so."""
    ctx = builder.infer
    rank, value = ctx.type(i).rank, ctx.node.inputs[i]
    if rank < 2:
        return value
    perm = list(range(rank))
    if ctx.attr(f"transBatch{side}", 0):
        perm = [*perm[1:-1], 0, rank - 1]
    if ctx.attr(f"trans{side}"):
        perm[-2:] = reversed(perm[-2:])
    return value if perm == list(range(rank)) else builder.emit("Transpose", value, perm=tuple(perm))


def _gemm(builder: Builder) -> tuple[str, ...]:
    ctx = builder.infer
    attrs = {name: ctx.attr(name) for name in ("alpha", "beta", "transA", "transB")}
    parameters = [ctx.attr(f"activation_{name}") for name in ("alpha", "beta", "gamma")]
    return (_activated(builder, builder.emit("Gemm", *ctx.node.inputs, **attrs), parameters),)


def _conv(builder: Builder) -> tuple[str, ...]:
    """A convolution, to which input Z is added, through an activation."""
    ctx = builder.infer
    attrs = {name: value for name, value in ctx.node.attrs.items() if not name.startswith("activation")}
    made = builder.emit("Conv", *ctx.node.inputs[:3], **attrs)
    if ctx.has(3):
        made = builder.emit("Add", made, ctx.node.inputs[3])
    return (_activated(builder, made, ctx.attr("activation_params", ())),)


# -- samples -----------------------------------------------------------------------------------------------------

def _wide() -> Sequence[Sample]:
    return [Sample([floats(2, 3, 5, low=-4, high=4)]), Sample([floats(7)]), Sample([floats(4, 1)])]


def _biased() -> Sequence[Sample]:
    return [Sample([floats(2, 3, 5), floats(5)])]


def _products() -> Sequence[Sample]:
    return [Sample([floats(2, 3, 5), floats(5, 4)], {"alpha": 0.5}), Sample([floats(2, 5, 3), floats(2, 4, 5)], {
                "transA": 1, "transB": 1}), Sample([floats(5), floats(5, 4)], {"transA": 1}), Sample([floats(3, 5), floats(5)])]


def _batched() -> Sequence[Sample]:
    return [Sample([floats(4, 2, 5), floats(2, 5, 3)], {"transBatchA": 1}),
            Sample([floats(2, 4, 5), floats(3, 2, 5)], {"transBatchB": 1, "transB": 1, "alpha": 2.0}),
            Sample([floats(3, 2, 6, 5), floats(2, 6, 5, 4)], {"transBatchA": 1})]


def _gemms() -> Sequence[Sample]:
    a, b, c = floats(3, 5), floats(5, 4), floats(4)
    return [Sample([a, b, c], {"activation": "Relu", "alpha": 0.5, "beta": 2.0}), Sample([a, b], {"activation": "Tanh"}),
            Sample([a, floats(4, 5), c], {"transB": 1, "activation": "LeakyRelu", "activation_alpha": 0.1}),
            Sample([a, b, c], {"activation": "HardSigmoid", "activation_alpha": 0.3, "activation_beta": 0.4})]


def _convs() -> Sequence[Sample]:
    x, w, b = floats(2, 3, 6, 7), floats(4, 3, 3, 3), floats(4)
    padded: dict[str, Any] = {"pads": (1, 1, 1, 1)}
    return [Sample([x, w, b, floats(2, 4, 6, 7)], padded | {"activation": "Relu"}),
            Sample([x, w, b], {"strides": (2, 1), "activation": "Clip", "activation_params": (0.0, 6.0)}),
            Sample([x, w], padded | {"activation": "LeakyRelu", "activation_params": (0.2,)}),
            Sample([x, w, b], {"activation": "HardSigmoid", "activation_params": (0.2, 0.5)}), Sample([x, w, b])]


_T = {"T": FLOATS}
_SIDES = {"transA": 0, "transB": 0, "alpha": 1.0}

OPS: tuple[OpDef, ...] = (
    OpDef("Gelu", PatternKind.ELEMENTWISE, decompose=_gelu("none", None), samples=_wide, domain=MICROSOFT,
          form=Form("X:T", "Y:T", _T)),
    OpDef("FastGelu", PatternKind.ELEMENTWISE, decompose=_gelu("tanh", 1), samples=lambda: [*_wide(), *_biased()],
          domain=MICROSOFT, form=Form("X:T bias?:T", "Y:T", _T)),
    OpDef("BiasGelu", PatternKind.ELEMENTWISE, decompose=_gelu("none", 1), samples=_biased, domain=MICROSOFT,
          form=Form("A:T B:T", "C:T", _T)),
    OpDef("QuickGelu", PatternKind.ELEMENTWISE, decompose=_quick_gelu, samples=_wide, domain=MICROSOFT,
          form=Form("X:T", "Y:T", _T, {"alpha": 1.702}), reads=("alpha",)),
    OpDef("FusedMatMul", PatternKind.CONTRACTION, decompose=_product, samples=lambda: [*_products(), *_batched()],
          domain=MICROSOFT, form=Form("A:T B:T", "Y:T", _T, {**_SIDES, "transBatchA": 0, "transBatchB": 0}),
          reads=(*_SIDES, "transBatchA", "transBatchB")),
    OpDef("TransposeMatMul", PatternKind.CONTRACTION, decompose=_product, samples=_products, domain=MICROSOFT,
          form=Form("A:T B:T", "Y:T", _T, _SIDES), reads=(*_SIDES,)),
    OpDef("FusedGemm", PatternKind.CONTRACTION, decompose=_gemm, samples=_gemms, domain=MICROSOFT,
          form=Form("A:T B:T C?:T", "Y:T", _T, {**_SIDES, "beta": 1.0}, {
              "activation": "string", "activation_alpha": "float", "activation_beta": "float", "activation_gamma": "float"}),
          reads=(*_SIDES, "beta", "activation", "activation_alpha", "activation_beta", "activation_gamma")),
    OpDef("FusedConv", PatternKind.CONTRACTION, decompose=_conv, samples=_convs, domain=MICROSOFT,
          form=Form("X:T W:T B?:T Z?:T", "Y:T", _T, {"auto_pad": "NOTSET", "group": 1}, {
              **_CONV, "activation": "string", "activation_params": "floats"}),
          reads=(*_CONV, "auto_pad", "group", "activation", "activation_params")),
)

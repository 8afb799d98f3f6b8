"""An LSTM with weights of 8 bits: what they are multiplied with is brought to 8 bits, too, the state anew at each step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc import te
from tsc.errors import ModelError
from tsc.ops.base import Builder, InferContext, OpDef, PatternKind, Sample
from tsc.ops.form import BYTES, FLOAT32, Form
from tsc.ops.microsoft.domain import MICROSOFT
from tsc.ops.microsoft.quantized import spanned
from tsc.ops.movement import positions, shape_operand
from tsc.ops.recurrent import LENGTHS, Layer, R, Step, W, X, carried_states, layer_types, layers, of_direction
from tsc.ops.reduce import cast, reduction
from tsc.ops.samples import floats, ints, scalar, scales
from tsc.ops.shapes import canonical, unify, where
from tsc.sym import SymExpr
from tsc.te import Scalar, Tensor
from tsc.te.expr import call

W_SCALE, W_ZERO, R_SCALE, R_ZERO = range(8, 12)


def _layer(builder: Builder) -> tuple[str, ...]:
    ctx = builder.infer
    states = layer_types(ctx, "LSTM", turned=True)[0].shape
    gates = ctx.env.canon(states[3] * 4)
    for i in (W_SCALE, W_ZERO, R_SCALE, R_ZERO):
        _expect_each(ctx, i, (states[1], gates))
    whole, scale = spanned(builder, _in_use(builder), 3)

    def product(d: int) -> tuple[str, str, Mapping[str, str]]:
        made = cast(builder, builder.emit("MatMul", whole, _weights(builder, W, W_ZERO, d)), "int32", "float32")
        made = builder.emit("Mul", made, builder.emit("Mul", scale, of_direction(builder, W_SCALE, d)))
        weights = builder.emit("Transpose", _weights(builder, R, R_ZERO, d), perm=(1, 0))
        unit = builder.emit("Expand", of_direction(builder, R_SCALE, d), shape_operand(builder, (gates,)))
        return made, weights, {"unit": unit}

    return layers(builder, "LSTM", product, _recurrence)


def _in_use(builder: Builder) -> str:
    """The input with 0 for the steps that come when all rows have ended."""
    ctx = builder.infer
    x = ctx.node.inputs[X]
    if not ctx.has(LENGTHS):
        return x
    last = cast(builder, reduction(builder, "ReduceMax", ctx.node.inputs[LENGTHS], (0,)), "int32", "int64")
    runs = builder.emit("Less", positions(builder, canonical(ctx, X)[0], 2), last)
    return builder.emit("Where", runs, x, builder.constant(np.array(0, np.float32)))


def _expect_each(ctx: InferContext, i: int, shape: tuple[SymExpr, ...]) -> None:
    """Input `i` has a number for each direction, or for each column of each."""
    own = canonical(ctx, i)
    if len(own) not in (1, 2):
        raise ModelError(f"{where(ctx)} has an input {i} of rank {len(own)}, expected 1 or 2")
    for have, want in zip(own, shape):
        unify(ctx.env, have, want, f"{where(ctx)}: input {i} has a number for each direction, or for each column of it")


def _weights(builder: Builder, i: int, zero_point: int, d: int) -> str:
    """Weights of direction `d` less their zero points, in int32."""
    return builder.emit("Sub", *(cast(builder, of_direction(builder, k, d), builder.infer.type(k).dtype, "int32")
                                 for k in (i, zero_point)))


@dataclass(frozen=True, slots=True)
class _BytesStep(Step):
    """A step whose weights are whole numbers, each column in steps of a `unit` that is given."""

    def mixed(self, name: str, count: int, factor: Tensor, offset: int = 0) -> Tensor:
        """`factor`, in 255 steps that span all its numbers at that time and 0, times the weights: exact but for scales."""
        steps, rows, hidden = self.shape
        factor = self._running(f"{name}_running", factor)
        low, high = self._end(f"{name}_low", te.min, factor), self._end(f"{name}_high", te.max, factor)

        def scale_at(t: Scalar) -> Scalar:
            least, most = te.minimum(low[t], 0.0), te.maximum(high[t], 0.0)
            return te.where(most == least, 1.0, (most - least) / 255.0)

        scale = te.compute((steps,), scale_at, f"{name}_scale")
        zero = te.compute((steps,), lambda t: _rounded(_cut(-te.minimum(low[t], 0.0) / scale[t])), f"{name}_zero")
        whole = te.compute((steps, rows, hidden), lambda t, b, j: te.cast(
            _cut(_rounded(factor[t, b, j] / scale[t]) + zero[t]) - zero[t], "int32"), f"{name}_whole")
        k = te.reduce_axis(hidden, f"{name}_k")
        summed = te.compute((steps, rows, hidden * count), lambda t, b, q: te.sum(
            self.weights[q + hidden * offset, k] * whole[t, b, k], axis=k), f"{name}_summed")
        return te.compute((steps, rows, hidden * count), lambda t, b, q: te.cast(summed[t, b, q], "float32") * (
            scale[t] * self.given["unit"][q + hidden * offset]), name)

    def _running(self, name: str, factor: Tensor) -> Tensor:
        """Without the rows that have ended, which span nothing. In reverse all count, also those that have not begun."""
        if "lengths" not in self.given or self.layer.reverse:
            return factor
        return te.compute(self.shape, lambda t, b, j: te.where(
            t <= te.cast(self.given["lengths"][b], "int64"), factor[t, b, j], 0.0), name)

    def _end(self, name: str, extremum: Callable[..., Any], factor: Tensor) -> Tensor:
        """The least or greatest number of each time."""
        steps, rows, hidden = self.shape
        b, j = te.reduce_axis(rows, f"{name}_b"), te.reduce_axis(hidden, f"{name}_j")
        return te.compute((steps,), lambda t: extremum(factor[t, b, j], axis=(b, j)), name)


def _cut(x: Scalar) -> Scalar:
    return te.maximum(te.minimum(x, 255.0), 0.0)


def _rounded(x: Scalar) -> Scalar:
    """The nearest whole number, of two the even one."""
    return Scalar(call("round", x.expr), x.uses)


def _recurrence(x: Tensor, weights: Tensor, *others: Tensor, layer: Layer) -> tuple[Tensor, ...]:
    return carried_states(_BytesStep(layer, x, weights, dict(zip(layer.given, others, strict=True))))


# -- samples -----------------------------------------------------------------------------------------------------

def _samples() -> Sequence[Sample]:
    """Of one row: the threads that ONNX Runtime gives some rows each to bring them to 8 bits by themselves."""
    x, bias, first = floats(5, 1, 4), floats(1, 48), floats(1, 1, 6, low=-1, high=1)
    weights = [ints(1, n, 24, low=0, high=100, dtype="uint8") for n in (4, 6)]
    signed = [ints(2, n, 24, low=-60, high=60, dtype="int8") for n in (4, 6)]
    one: list[NDArray[Any]] = [np.reshape(part, 1) for part in (
        scalar(0.011), scalar(53, "uint8"), scalar(0.013), scalar(48, "uint8"))]
    columns: list[NDArray[Any]] = [scales(2, 24) / 5, np.zeros((2, 24), np.int8), scales(2, 24) / 4, np.zeros((2, 24), np.int8)]
    return [Sample([x, *weights, bias, None, first, first / 2, None, *one], {"hidden_size": 6}, 3),
            Sample([x, *weights, None, None, None, None, floats(1, 18, low=-0.3, high=0.3), *one], {
                "hidden_size": 6, "direction": "reverse", "clip": 0.7}, 3),
            Sample([x, *signed, floats(2, 48), None, None, None, None, *columns], {
                "hidden_size": 6, "direction": "bidirectional"}, 3)]


_ATTRIBUTES = {"activations": "strings", "activation_alpha": "floats", "activation_beta": "floats", "clip": "float",
               "hidden_size": "int"}

OPS: tuple[OpDef, ...] = (
    OpDef("DynamicQuantizeLSTM", PatternKind.CONTRACTION, decompose=_layer, samples=_samples, domain=MICROSOFT,
          reads=(*_ATTRIBUTES, "direction", "input_forget"),
          form=Form("X:T W:B R:B B?:T sequence_lens?:I initial_h?:T initial_c?:T P?:T W_scale:T W_zero_point:B R_scale:T "
                    "R_zero_point:B", "Y?:T Y_h?:T Y_c?:T", {"T": FLOAT32, "B": BYTES, "I": ("int32",)},
                    {"direction": "forward", "input_forget": 0}, _ATTRIBUTES)),
)

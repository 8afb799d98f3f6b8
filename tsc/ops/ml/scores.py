"""Scores of classes: what is done to them at the end, and the labels that they stand for."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tsc.errors import ModelError, UnsupportedError
from tsc.ops.base import Builder, InferContext
from tsc.ops.contraction import scalar_operand
from tsc.ops.ml.common import chosen, numbers
from tsc.ops.reduce import reduction
from tsc.ops.shapes import where

TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
#: What is this close to 0 counts as 0 where zeros stay such.
_NOTHING = 1e-7


def transform_of(ctx: InferContext) -> str:
    """What is done to scores. Raises ModelError for what is not known."""
    return chosen(ctx, "post_transform", TRANSFORMS)


def transformed(builder: Builder, scores: str, transform: str, dtype: str) -> str:
    """Scores [rows, classes] after one of TRANSFORMS."""
    match transform:
        case "SOFTMAX":
            return builder.emit("Softmax", scores, axis=1)
        case "LOGISTIC":
            return builder.emit("Sigmoid", scores)
        case "SOFTMAX_ZERO":
            return _softmax_of_some(builder, scores, dtype)
        case "PROBIT":
            return _probit(builder, scores, dtype)
    return scores


def single(builder: Builder, score: str, transform: str, dtype: str) -> str:
    """The only score of each row [rows, 1] at the end: of all transforms, ONNX Runtime does PROBIT to one score alone."""
    return _probit(builder, score, dtype) if transform == "PROBIT" else score


def both(builder: Builder, score: str, transform: str, dtype: str, centre: int) -> str:
    """The scores of two classes, of which [rows, 1] is that of the second: those of the first and the second add up to
    `centre`, unless their LOGISTIC is taken. Of other transforms ONNX Runtime does none."""
    if transform == "PROBIT":
        raise UnsupportedError(f"{where(builder.infer)} has the post_transform PROBIT of one score for two classes, which is "
                               "not supported; export it with NONE")
    opposite = builder.emit("Neg", score)
    if centre and transform != "LOGISTIC":
        opposite = builder.emit("Sub", scalar_operand(builder, centre, dtype), score)
    pair = builder.emit("Concat", opposite, score, axis=1)
    return builder.emit("Sigmoid", pair) if transform == "LOGISTIC" else pair


def _softmax_of_some(builder: Builder, scores: str, dtype: str) -> str:
    """A softmax in which zeros have no part."""
    top = reduction(builder, "ReduceMax", scores, (1,))
    powers = builder.emit("Exp", builder.emit("Sub", scores, top))
    small = builder.emit("LessOrEqual", builder.emit("Abs", scores), scalar_operand(builder, _NOTHING, dtype))
    kept = builder.emit("Mul", scores, builder.emit("Exp", builder.emit("Neg", top)))
    parts = builder.emit("Where", small, kept, powers)
    total = reduction(builder, "ReduceSum", parts, (1,))
    none = builder.emit("Equal", total, scalar_operand(builder, 0, dtype))
    shared = builder.emit("Div", parts, builder.emit("Where", none, scalar_operand(builder, 1, dtype), total))
    return builder.emit("Where", none, scalar_operand(builder, 0.5, dtype), shared)


def _probit(builder: Builder, scores: str, dtype: str) -> str:
    """The quantile of a normal distribution, by Winitzki's approximation of the inverse of erf, as ONNX Runtime has it."""
    def number(value: float) -> str:
        return scalar_operand(builder, value, dtype)

    x = builder.emit("Sub", builder.emit("Mul", scores, number(2)), number(1))
    inner = builder.emit("Mul", builder.emit("Sub", number(1), x), builder.emit("Add", number(1), x))
    log = builder.emit("Log", inner)
    first = builder.emit("Add", builder.emit("Mul", log, number(0.5)), number(2 / (math.pi * 0.147)))
    second = builder.emit("Mul", log, number(1 / 0.147))
    root = builder.emit("Sqrt", builder.emit("Sub", builder.emit("Mul", first, first), second))
    size = builder.emit("Sqrt", builder.emit("Sub", root, first))
    sign = builder.emit("Where", builder.emit("Less", x, number(0)), number(-1), number(1))
    return builder.emit("Mul", builder.emit("Mul", sign, size), number(1.41421356))


def labels_of(ctx: InferContext, name: str, count: int) -> NDArray[np.int64]:
    """The labels of classes, which are their numbers where an attribute names none. Raises ModelError for fewer or more."""
    found: NDArray[np.int64] = numbers(ctx, name, "int64")
    if len(found) not in (0, count):
        raise ModelError(f"{where(ctx)} has {len(found)} labels for {count} classes, expected one of each")
    return found if len(found) else np.arange(count)


def best(builder: Builder, scores: str, labels: NDArray[np.int64]) -> str:
    """The label of the first of the greatest scores of each row."""
    place = builder.emit("ArgMax", scores, axis=1, keepdims=0)
    plain = np.array_equal(labels, np.arange(len(labels)))
    return place if plain else builder.emit("Gather", builder.constant(labels), place, axis=0)


def either(builder: Builder, condition: str, labels: NDArray[np.int64]) -> str:
    """The second of two labels where a condition [rows, 1] holds, else the first."""
    yes, no = builder.constant(labels[1:2]), builder.constant(labels[:1])
    return builder.emit("Squeeze", builder.emit("Where", condition, yes, no), axes=(1,))

"""Support vector machines: sums of what a kernel makes of rows and support vectors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from tsc.errors import ModelError, UnsupportedError
from tsc.ops.base import Builder, InferContext, OpDef, PatternKind, Sample
from tsc.ops.contraction import scalar_operand
from tsc.ops.ml.common import DOMAIN, STRINGS, chosen, features, in_floats, listed, numbers, rows, working
from tsc.ops.ml.forest import Array
from tsc.ops.ml.scores import best, both, labels_of, single, transform_of, transformed
from tsc.ops.reduce import cast, reduction
from tsc.ops.samples import floats
from tsc.ops.shapes import where

KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")


def _kernel(builder: Builder, count: int, dtype: str) -> str:
    """The kernel of each row of the input and each of `count` support vectors, [rows, count]."""
    ctx = builder.infer
    kernel, given = chosen(ctx, "kernel_type", KERNELS), numbers(ctx, "kernel_params", "float32").tolist()
    vectors = listed(ctx, "support_vectors", "float32")
    if len(vectors) % count:
        raise ModelError(f"{where(ctx)} has {len(vectors)} numbers in {count} support_vectors, expected as many in each")
    if kernel != "LINEAR" and len(given) != 3:
        raise ModelError(f"{where(ctx)} has {len(given)} kernel_params, expected gamma, coef0 and degree")
    vectors = vectors.reshape(count, -1).astype(dtype)
    features(ctx, vectors.shape[1])
    x = rows(builder, dtype)
    gamma, offset, degree = (scalar_operand(builder, value, dtype) for value in (
        given if len(given) == 3 else (0, 0, 0)))
    if kernel == "RBF":
        apart = builder.emit("Sub", builder.emit("Unsqueeze", x, axes=(1,)), builder.constant(vectors))
        squares = reduction(builder, "ReduceSum", builder.emit("Mul", apart, apart), (2,), keepdims=0)
        return builder.emit("Exp", builder.emit("Neg", builder.emit("Mul", gamma, squares)))
    product = builder.emit("MatMul", x, builder.constant(np.ascontiguousarray(vectors.T)))
    if kernel == "LINEAR":
        return product
    moved = builder.emit("Add", builder.emit("Mul", product, gamma), offset)
    return builder.emit("Pow", moved, degree) if kernel == "POLY" else builder.emit("Tanh", moved)


def _sums(builder: Builder, values: str, coefficients: Array, dtype: str) -> str:
    """Values times coefficients [values, sums], plus one number of `rho` for each sum."""
    ctx = builder.infer
    rho = listed(ctx, "rho", "float32")
    if len(rho) != coefficients.shape[1]:
        raise ModelError(f"{where(ctx)} has {len(rho)} numbers in rho, expected {coefficients.shape[1]}")
    made = builder.emit("MatMul", values, builder.constant(coefficients.astype(dtype)))
    return builder.emit("Add", made, builder.constant(rho.astype(dtype)))


def _regressor(builder: Builder) -> tuple[str, ...]:
    """One sum a row, or whether that is above 0 (1 or -1). Without support vectors the coefficients are those of features."""
    ctx = builder.infer
    dtype, coefficients = working(ctx), listed(ctx, "coefficients", "float32")
    count, transform = int(ctx.attr("n_supports")), transform_of(ctx)
    if count > 0 and len(coefficients) != count:
        raise ModelError(f"{where(ctx)} has {len(coefficients)} coefficients and {count} support vectors, expected one of each")
    if count <= 0:
        features(ctx, len(coefficients))
    values = _kernel(builder, count, dtype) if count > 0 else rows(builder, dtype)
    made = _sums(builder, values, coefficients[:, None], dtype)
    if not ctx.attr("one_class"):
        return (in_floats(builder, single(builder, made, transform, dtype), dtype),)
    above = builder.emit("Greater", made, scalar_operand(builder, 0, dtype))
    one, other = (builder.constant(np.array(value, np.float32)) for value in (1, -1))
    return (builder.emit("Where", above, one, other),)


def _pairs(ctx: InferContext, counts: Sequence[int], coefficients: Array) -> tuple[Array, Array]:
    """Of each pair of classes the coefficients of all support vectors, and which of both it votes for where its sum is above
    0 and where not: [vectors, pairs], [2, pairs, classes]."""
    classes, ends = len(counts), np.cumsum(counts)
    pairs = list(itertools.combinations(range(classes), 2))
    table, votes = np.zeros((int(ends[-1]), len(pairs)), np.float32), np.zeros((2, len(pairs), classes), np.float32)
    for k, (i, j) in enumerate(pairs):
        for own, row in ((i, j - 1), (j, i)):
            at = slice(int(ends[own]) - counts[own], int(ends[own]))
            table[at, k] = coefficients[row, at]
        votes[0, k, i] = votes[1, k, j] = 1
    return table, votes


def _classifier(builder: Builder) -> tuple[str, ...]:
    """The class that most of the pairs of classes vote for, and the sums of the pairs."""
    ctx = builder.infer
    dtype, transform, counts = working(ctx), transform_of(ctx), [int(n) for n in ctx.attr("vectors_per_class", ())]
    if ctx.attr("prob_a"):
        raise UnsupportedError(f"{where(ctx)} has the attribute 'prob_a', which is not supported: fit the model with "
                               "probability=False, or calibrate it by another model, and export it again")
    if len(counts) < 2 or min(counts) < 0 or sum(counts) < 1:
        raise UnsupportedError(f"{where(ctx)} has support vectors of {len(counts)} classes, but two or more only are "
                               "supported; export a linear model as such")
    coefficients = listed(ctx, "coefficients", "float32")
    if len(coefficients) != sum(counts) * (len(counts) - 1):
        raise ModelError(f"{where(ctx)} has {len(coefficients)} coefficients for {sum(counts)} support vectors of "
                         f"{len(counts)} classes, expected one of each vector for each other class")
    table, votes = _pairs(ctx, counts, coefficients.reshape(len(counts) - 1, -1))
    scores = _sums(builder, _kernel(builder, sum(counts), dtype), table, dtype)
    first = builder.emit("Greater", scores, scalar_operand(builder, 0, dtype))
    chances = cast(builder, first, "bool", "float32")
    most = builder.emit("Add", builder.emit("MatMul", chances, builder.constant(votes[0] - votes[1])),
                        builder.constant(votes[1].sum(0)))
    label = best(builder, most, labels_of(ctx, "classlabels_ints", len(counts)))
    made = transformed(builder, scores, transform, dtype) if len(counts) > 2 else both(
        builder, scores, transform, dtype, centre=int(transform != "NONE"))
    return label, in_floats(builder, made, dtype)


# -- samples -----------------------------------------------------------------------------------------------------

def _list(*shape: int) -> tuple[float, ...]:
    return tuple(floats(*shape).ravel().tolist())


def _regressions() -> Sequence[Sample]:
    vectors = {"support_vectors": _list(4, 3), "coefficients": _list(4), "n_supports": 4, "rho": (0.25,),
               "kernel_params": (0.5, 0.25, 3.0)}
    return [*(Sample([floats(5, 3)], {**vectors, "kernel_type": kernel}) for kernel in KERNELS),
            Sample([floats(5, 3)], {**vectors, "one_class": 1}),
            Sample([floats(5, 3)], {"coefficients": _list(3), "rho": (-0.5,), "kernel_params": (0.0, 0.0, 0.0)})]


def _classes() -> Sequence[Sample]:
    three = {"support_vectors": _list(5, 3), "vectors_per_class": (2, 1, 2), "coefficients": _list(2, 5), "rho": _list(3),
             "kernel_params": (0.5, 0.25, 3.0), "classlabels_ints": (4, -1, 2)}
    two = {**three, "vectors_per_class": (3, 2), "coefficients": _list(5), "rho": (0.125,), "classlabels_ints": (1, 0)}
    return [*(Sample([floats(6, 3)], {**three, "kernel_type": kernel}, 2) for kernel in KERNELS),
            Sample([floats(6, 3)], {**three, "post_transform": "SOFTMAX"}, 2), Sample([floats(6, 3)], two, 2),
            Sample([floats(6, 3)], {**two, "post_transform": "LOGISTIC"}, 2)]


_VECTORS = ("support_vectors", "coefficients", "rho", "kernel_type", "kernel_params", "post_transform")

OPS: tuple[OpDef, ...] = (
    OpDef("SVMRegressor", PatternKind.CONTRACTION, decompose=_regressor, samples=_regressions, domain=DOMAIN,
          reads=(*_VECTORS, "n_supports", "one_class")),
    OpDef("SVMClassifier", PatternKind.CONTRACTION, decompose=_classifier, samples=_classes, domain=DOMAIN, instead=STRINGS,
          reads=(*_VECTORS, "vectors_per_class", "classlabels_ints", "prob_a"), ignores=("prob_b",)),
)

"""Linear models: a product with coefficients, plus intercepts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tsc.errors import ModelError
from tsc.ops.base import Builder, InferContext, OpDef, PatternKind, Sample
from tsc.ops.contraction import scalar_operand
from tsc.ops.ml.common import DOMAIN, STRINGS, features, in_floats, listed, numbers, rows, working
from tsc.ops.ml.scores import best, both, either, labels_of, single, transform_of, transformed
from tsc.ops.samples import floats
from tsc.ops.shapes import where


def _product(builder: Builder, count: int) -> tuple[str, str]:
    """The sums of `count` rows of coefficients for each row of the input, and their type."""
    ctx, dtype = builder.infer, working(builder.infer)
    coefficients, intercepts = listed(ctx, "coefficients", "float32"), numbers(ctx, "intercepts", "float32")
    if count < 1 or len(coefficients) % count or len(intercepts) not in (0, count):
        raise ModelError(f"{where(ctx)} has {len(coefficients)} coefficients and {len(intercepts)} intercepts for {count} rows,"
                         " expected as many for each")
    weights = coefficients.reshape(count, -1).T.astype(dtype)
    x = rows(builder, dtype)
    if len(weights) > 1 or ctx.type(0).rank == 1:
        features(ctx, len(weights))
    made = builder.emit("MatMul", x, builder.constant(weights))
    return (builder.emit("Add", made, builder.constant(intercepts.astype(dtype))) if len(intercepts) else made), dtype


def _regressor(builder: Builder) -> tuple[str, ...]:
    ctx = builder.infer
    made, dtype = _product(builder, int(ctx.attr("targets")))
    transform = transform_of(ctx)
    made = (transformed if int(ctx.attr("targets")) > 1 else single)(builder, made, transform, dtype)
    return (in_floats(builder, made, dtype),)


def _class_rows(ctx: InferContext) -> int:
    """How many rows of coefficients there are: one an intercept, or as many as the features leave."""
    if (intercepts := len(numbers(ctx, "intercepts", "float32"))):
        return intercepts
    columns = ctx.env.canon(features(ctx, 1)).as_int()
    return len(ctx.attr("coefficients")) // columns if columns else len(numbers(ctx, "classlabels_ints", "int64"))


def _classifier(builder: Builder) -> tuple[str, ...]:
    """The label and the scores of each class. One row of coefficients stands for the second of two classes."""
    ctx = builder.infer
    transform, count = transform_of(ctx), _class_rows(ctx)
    scores, dtype = _product(builder, count)
    if count > 1:
        label = best(builder, scores, labels_of(ctx, "classlabels_ints", count))
        return label, in_floats(builder, transformed(builder, scores, transform, dtype), dtype)
    labels = numbers(ctx, "classlabels_ints", "int64")
    if len(labels) not in (0, 2):
        raise ModelError(f"{where(ctx)} has {len(labels)} labels and one row of coefficients, expected two labels")
    positive = builder.emit("Greater", scores, scalar_operand(builder, 0, dtype))
    label = either(builder, positive, labels if len(labels) else np.array([0, 1]))
    made = both(builder, scores, transform, dtype, centre=1) if len(labels) else single(builder, scores, transform, dtype)
    return label, in_floats(builder, made, dtype)


# -- samples -----------------------------------------------------------------------------------------------------

def _list(*shape: int) -> tuple[float, ...]:
    return tuple(floats(*shape).ravel().tolist())


def _regressions() -> Sequence[Sample]:
    return [Sample([floats(5, 3)], {"coefficients": _list(3), "intercepts": (0.5,)}),
            Sample([floats(4, 3)], {"coefficients": _list(2, 3), "intercepts": _list(2), "targets": 2})]


def _classes() -> Sequence[Sample]:
    three = {"coefficients": _list(3, 4), "intercepts": _list(3), "classlabels_ints": (7, -1, 3)}
    transforms = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO")
    return [*(Sample([floats(6, 4)], three | {"post_transform": t}, 2) for t in transforms),
            Sample([floats(6, 4)], {"coefficients": _list(4), "intercepts": (0.25,), "classlabels_ints": (4, 2),
                                    "post_transform": "LOGISTIC"}, 2)]


OPS: tuple[OpDef, ...] = (
    OpDef("LinearRegressor", PatternKind.CONTRACTION, decompose=_regressor, samples=_regressions, domain=DOMAIN,
          reads=("coefficients", "intercepts", "targets", "post_transform")),
    OpDef("LinearClassifier", PatternKind.CONTRACTION, decompose=_classifier, samples=_classes, domain=DOMAIN, instead=STRINGS,
          reads=("coefficients", "intercepts", "classlabels_ints", "post_transform"), ignores=("multi_class",)),
)

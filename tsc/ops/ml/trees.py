"""Ensembles of trees: regressors, classifiers, and what opset 5 has in place of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tsc.errors import ModelError, UnsupportedError
from tsc.ops.base import Builder, OpDef, PatternKind
from tsc.ops.contraction import scalar_operand
from tsc.ops.ml.common import DOMAIN, STRINGS, chosen, in_floats, numbers
from tsc.ops.ml.forest import Array, Ints, Votes, Walk
from tsc.ops.ml.given import forest, number_list, numbered_forest
from tsc.ops.ml.samples import classifiers, ensembles, regressors
from tsc.ops.ml.scores import TRANSFORMS, best, both, either, labels_of, single, transform_of, transformed
from tsc.ops.ml.walk import AGGREGATES, aggregated, said
from tsc.ops.reduce import cast
from tsc.ops.shapes import where


def _with_base(builder: Builder, said: str, base: Array, targets: int, dtype: str) -> str:
    if len(base) not in (0, targets):
        raise ModelError(f"{where(builder.infer)} has {len(base)} base values for {targets} targets, expected one of each")
    return builder.emit("Add", said, builder.constant(base.astype(dtype))) if base.any() else said


def _regressor(builder: Builder) -> tuple[str, ...]:
    ctx = builder.infer
    aggregate, transform = chosen(ctx, "aggregate_function", tuple(AGGREGATES)), transform_of(ctx)
    targets = numbers(ctx, "target_ids", "int64")
    walk, votes = forest(ctx, "target", int(ctx.attr("n_targets", targets.max(initial=0) + 1)))
    dtype = votes.weight.dtype.name
    found = aggregated(builder, walk, votes, aggregate)
    scores = _with_base(builder, found, number_list(ctx, "base_values"), votes.targets, dtype)
    made = (transformed if votes.targets > 1 else single)(builder, scores, transform, dtype)
    return (in_floats(builder, made, dtype),)


def _classifier(builder: Builder) -> tuple[str, ...]:
    """The label and the scores of each class. Where all votes are for one of two classes they stand for the second, which is
    chosen above 0, or above a half where no vote is negative."""
    ctx = builder.infer
    transform, labels = transform_of(ctx), numbers(ctx, "classlabels_int64s", "int64")
    if len(labels) < 2:
        raise UnsupportedError(f"{where(ctx)} has {len(labels)} integer labels, but classifiers of two and more classes only "
                               "are supported")
    walk, votes = forest(ctx, "class", len(labels))
    dtype, base = votes.weight.dtype.name, number_list(ctx, "base_values")
    voted = np.unique(votes.target)
    if len(labels) == 2 and len(voted) < 2:
        one = replace(votes, target=np.zeros_like(votes.target), targets=1)
        return _of_two(builder, walk, one, base, labels, bool(voted.sum()))
    found, given = said(builder, walk, votes, "SUM")
    scores = _with_base(builder, found, base, len(labels), dtype)
    ranked = scores if given is None or len(base) else builder.emit(
        "Where", cast(builder, given, "int32", "bool"), scores, scalar_operand(builder, -np.inf, dtype))
    label = best(builder, ranked, labels_of(ctx, "classlabels_int64s", len(labels)))
    return label, in_floats(builder, transformed(builder, scores, transform, dtype), dtype)


def _of_two(builder: Builder, walk: Walk, votes: Votes, base: Array, labels: Ints, second: bool) -> tuple[str, ...]:
    """The label and the scores of two classes by the votes for one, the first or the second, which then the first has not."""
    ctx, dtype = builder.infer, votes.weight.dtype.name
    if len(base) > 1 or (second and len(base)):
        raise UnsupportedError(f"{where(ctx)} has {len(base)} base values, but all votes are for one of two classes; export it "
                               "with one base value and votes for class 0")
    score = _with_base(builder, said(builder, walk, votes, "SUM", asked=False)[0], base, 1, dtype)
    positive = bool((votes.weight >= 0).all())
    above = builder.emit("Greater", score, scalar_operand(builder, 0.5 if positive else 0, dtype))
    label, transform = either(builder, above, labels), transform_of(ctx)
    if not second:
        return label, in_floats(builder, both(builder, score, transform, dtype, centre=int(positive)), dtype)
    nothing = builder.emit("Mul", score, scalar_operand(builder, 0, dtype))
    pair = builder.emit("Concat", nothing, score, axis=1)
    return label, in_floats(builder, transformed(builder, pair, transform, dtype), dtype)


def _ensemble(builder: Builder) -> tuple[str, ...]:
    """The ensemble of opset 5, which says by numbers how it is put together."""
    ctx = builder.infer
    how, after = int(ctx.attr("aggregate_function")), int(ctx.attr("post_transform"))
    if not (0 <= how < 4 and 0 <= after < len(TRANSFORMS)):
        raise ModelError(f"{where(ctx)} has aggregate_function {how} and post_transform {after}, expected 0 to 3 and 0 to 4")
    walk, votes = numbered_forest(ctx)
    dtype, said = votes.weight.dtype.name, aggregated(builder, walk, votes, ("AVERAGE", "SUM", "MIN", "MAX")[how])
    made = (transformed if votes.targets > 1 else single)(builder, said, TRANSFORMS[after], dtype)
    return (cast(builder, made, dtype, ctx.type(0).dtype),)


_NODES = tuple(f"nodes_{name}" for name in (
    "treeids", "nodeids", "featureids", "values", "values_as_tensor", "modes", "truenodeids", "falsenodeids",
    "missing_value_tracks_true"))
_HITS = ("nodes_hitrates", "nodes_hitrates_as_tensor")
_BASE = ("base_values", "base_values_as_tensor", "post_transform")


def _voters(word: str) -> tuple[str, ...]:
    return tuple(f"{word}_{name}" for name in ("treeids", "nodeids", "ids", "weights", "weights_as_tensor"))


def _op(name: str, kind: PatternKind, decompose: Callable[[Builder], tuple[str, ...]], **others: Any) -> OpDef:
    """An operator of the kind that its parts besides the walk are of, which brings its own."""
    return OpDef(name, kind, decompose=decompose, domain=DOMAIN, **others)


OPS: tuple[OpDef, ...] = (
    _op("TreeEnsembleRegressor", PatternKind.ELEMENTWISE, _regressor, samples=regressors, ignores=_HITS,
        reads=(*_NODES, *_BASE, *_voters("target"), "n_targets", "aggregate_function")),
    _op("TreeEnsembleClassifier", PatternKind.REDUCE, _classifier, samples=classifiers, ignores=_HITS, instead=STRINGS,
        reads=(*_NODES, *_BASE, *_voters("class"), "classlabels_int64s")),
    _op("TreeEnsemble", PatternKind.REDUCE, _ensemble, samples=ensembles, ignores=("nodes_hitrates",), reads=(
        "nodes_featureids", "nodes_splits", "nodes_modes", "nodes_truenodeids", "nodes_falsenodeids", "nodes_trueleafs",
        "nodes_falseleafs", "nodes_missing_value_tracks_true", "membership_values", "leaf_targetids", "leaf_weights",
        "tree_roots", "n_targets", "aggregate_function", "post_transform")),
)

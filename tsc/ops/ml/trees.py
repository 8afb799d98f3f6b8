"""Ensembles of trees: rows walk down all of them at once, then what the leaves that they reach say is summed.

The walk is a recurrence: each trip takes every row and tree a step down, and in a leaf stays there. So a forest of any shape is
one kernel, whose size depends neither on how many trees there are nor on how deep they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc import te
from tsc.errors import ModelError, UnsupportedError
from tsc.ops.base import Builder, InferContext, OpDef, PatternKind
from tsc.ops.contraction import scalar_operand
from tsc.ops.define import CUSTOM, CustomOp
from tsc.ops.ml.common import DOMAIN, STRINGS, chosen, features, in_floats, numbers, rows, working
from tsc.ops.ml.forest import (
    MOST_VOTES,
    Array,
    Ints,
    Names,
    Nodes,
    Votes,
    Walk,
    by_target,
    split_leaves,
    walk_of,
)
from tsc.ops.ml.samples import classifiers, ensembles, regressors
from tsc.ops.ml.scores import TRANSFORMS, best, both, either, labels_of, single, transform_of, transformed
from tsc.ops.reduce import cast
from tsc.ops.shapes import where
from tsc.te import Scalar, Tensor

#: How what trees say is put together, and what says nothing there.
AGGREGATES = {"SUM": 0.0, "AVERAGE": 0.0, "MIN": np.inf, "MAX": -np.inf}


# -- the walk ----------------------------------------------------------------------------------------------------

def _walked(x: Tensor, feature: Tensor, threshold: Tensor, child: Tensor, roots: Tensor, *says: Tensor, depth: int, targets: int,
            sides: str, aggregate: str) -> tuple[Tensor, ...]:
    """What the leaves say that rows of x reach from roots, put together for each target, of each of the tables `says`: of what
    leaves say of every target, or of the one that their tree is for, where the roots stand by their targets."""
    extent, trees = x.shape[0], int(roots.extents[0].as_int() or 0)
    nodes = te.state((depth + 1, extent, trees), "int32", "nodes")

    def step(d: Scalar, n: Scalar, t: Scalar) -> Scalar:
        node = nodes[d - 1, n, t]
        value, limit = x[n, feature[node]], threshold[node]
        return te.where(d >= 1, child[node, _side(value, limit, sides)], roots[t])

    nodes = te.scan(nodes, step)

    def total(table: Tensor, name: str) -> Tensor:
        own = len(table.shape) == 1
        tree = te.reduce_axis(trees // targets if own else trees, f"tree_{name}")
        fold = {"MIN": te.min, "MAX": te.max}.get(aggregate, te.sum)

        def said(n: Scalar, c: Scalar) -> Any:
            if own:
                return fold(table[nodes[depth, n, c * (trees // targets) + tree]], axis=tree)
            return fold(table[nodes[depth, n, tree], c], axis=tree)

        return te.compute((extent, targets), said, name)

    return tuple(total(table, f"said{k}") for k, table in enumerate(says))


def _side(value: Scalar, limit: Scalar, sides: str) -> Scalar:
    """The column of children that a comparison leads to (see `tsc.ops.ml.forest`)."""
    name, _, apart = sides.partition(" ")
    last = 2 if name == "all" else 1
    match name:
        case "le":
            found = te.where(value <= limit, 0, 1)
        case "lt":
            found = te.where(value < limit, 0, 1)
        case _:
            found = te.where(value < limit, 0, te.where(value == limit, 1, 2))
    return te.where(value == value, found, last + 1) if apart else found


def _said(builder: Builder, walk: Walk, votes: Votes, aggregate: str, asked: bool = True) -> tuple[str, str | None]:
    """What a forest says of each target of each row and, if that is asked, whether it says anything (1 or 0), None where it
    always does."""
    ctx = builder.infer
    compared = np.result_type(working(ctx), walk.threshold.dtype).name
    columns = features(ctx, 1)
    ctx.env.assume_le(int(walk.feature.max(initial=0)) + 1, columns, f"{where(ctx)}: its input has all features that its trees ask for")
    order = by_target(votes, walk)
    roots, table, given = walk.roots, *(_own(walk, votes, aggregate) if order is not None else _table(ctx, walk, votes, aggregate))
    always = bool(given[:-1].all())
    if order is not None:
        roots = np.where(order < 0, walk.leaves - 1, walk.roots[order]).ravel().astype(np.int32)
        always &= bool((order[:, :1] >= 0).all())
    inputs = [rows(builder, compared), *map(builder.constant, (walk.feature, walk.threshold.astype(compared), walk.child, roots))]

    def walked(says: Array, how: str) -> str:
        definition = CustomOp(DOMAIN, ctx.node.op, _walked)
        return builder.several(CUSTOM, (*inputs, builder.constant(says)), 1, definition=definition, attributes={
            "depth": walk.depth, "targets": votes.targets, "sides": walk.sides, "aggregate": how})[0]

    return walked(table, aggregate), None if always or not asked else walked(given.astype(np.int32), "MAX")


def _own(walk: Walk, votes: Votes, aggregate: str) -> tuple[Array, NDArray[np.bool_]]:
    """What each leaf says of the target that its tree is for, and whether it does."""
    return _filled((walk.leaves,), (votes.leaf,), votes, aggregate)


def _table(ctx: InferContext, walk: Walk, votes: Votes, aggregate: str) -> tuple[Array, NDArray[np.bool_]]:
    """What each leaf says of each target, and whether it does."""
    size = walk.leaves * votes.targets
    if size > max(MOST_VOTES, 4 * len(votes.leaf)):
        raise UnsupportedError(f"{where(ctx)} has {walk.leaves} leaves that may vote for {votes.targets} targets, more than are "
                               "supported; export it with trees of one target each")
    return _filled((walk.leaves, votes.targets), (votes.leaf, votes.target), votes, aggregate)


def _filled(shape: tuple[int, ...], at: tuple[Ints, ...], votes: Votes, aggregate: str) -> tuple[Array, NDArray[np.bool_]]:
    table, given = np.full(shape, AGGREGATES[aggregate], votes.weight.dtype), np.zeros(shape, bool)
    {"MIN": np.minimum, "MAX": np.maximum}.get(aggregate, np.add).at(table, at, votes.weight)
    given[at] = True
    return table, given


def _aggregated(builder: Builder, walk: Walk, votes: Votes, aggregate: str) -> str:
    """What a forest says of each target; 0 where it says nothing."""
    said, given = _said(builder, walk, votes, aggregate, asked=aggregate in ("MIN", "MAX"))
    if aggregate == "AVERAGE":
        said = builder.emit("Div", said, scalar_operand(builder, len(walk.roots), votes.weight.dtype.name))
    if given is None:
        return said
    return builder.emit("Where", cast(builder, given, "int32", "bool"), said, scalar_operand(builder, 0, votes.weight.dtype.name))


# -- the attributes of opset 1 and 3 -------------------------------------------------------------------------------

def _number_list(ctx: InferContext, name: str) -> Array:
    """A list of numbers, which may be a tensor of its own since opset 3. Raises ModelError where both are given."""
    own, tensor = ctx.attr(name), ctx.attr(f"{name}_as_tensor")
    if own and tensor is not None:
        raise ModelError(f"{where(ctx)} has both {name} and {name}_as_tensor, expected one of them")
    found = np.asarray(own or (), np.float32) if tensor is None else np.asarray(tensor)
    if found.ndim != 1 or found.dtype.name not in ("float32", "float64"):
        raise ModelError(f"{where(ctx)} has {name} of type {found.dtype.name} and rank {found.ndim}, expected a list of floats")
    return found


def _of_length(ctx: InferContext, name: str, count: int) -> Ints:
    found = numbers(ctx, name, "int64")
    if len(found) != count:
        raise ModelError(f"{where(ctx)} has {len(found)} {name} for {count} nodes, expected one of each; export it again")
    return np.asarray(found, np.int64)


def _forest(ctx: InferContext, voters: str, targets: int) -> tuple[Walk, Votes]:
    """The tables of the attributes, of which those of what leaves say begin with a word."""
    trees, named = numbers(ctx, "nodes_treeids", "int64"), where(ctx)
    count = len(trees)
    if not count:
        raise ModelError(f"{named} has no nodes, expected trees; export it again")
    ids, feature, yes, no = (_of_length(ctx, f"nodes_{name}", count) for name in ("nodeids", "featureids", "truenodeids", "falsenodeids"))
    missing = _of_length(ctx, "nodes_missing_value_tracks_true", count) if ctx.attr(
        "nodes_missing_value_tracks_true") else np.zeros(count, np.int64)
    threshold, modes = _number_list(ctx, "nodes_values"), ctx.attr("nodes_modes", ())
    if len(threshold) != count or len(modes) != count:
        raise ModelError(f"{named} has {len(threshold)} nodes_values and {len(modes)} nodes_modes for {count} nodes, expected one "
                         "of each; export it again")
    leaf, inner_modes = split_leaves(modes, named)
    inner, names = ~leaf, Names(trees, ids, named)
    rank = np.where(leaf, np.cumsum(leaf) - 1 + inner.sum(), np.cumsum(inner) - 1)  # leaves behind the others
    nodes = Nodes(_features(feature[inner], named), threshold[inner], inner_modes,
                  *(rank[names.places(trees[inner], side[inner], "a child")] for side in (yes, no)),
                  missing[inner] != 0, int(leaf.sum()))
    firsts = np.sort(np.unique(trees, return_index=True)[1])
    walk = walk_of(nodes, rank[firsts], named)

    weight = _number_list(ctx, f"{voters}_weights")
    of, at, target = (numbers(ctx, f"{voters}_{name}", "int64") for name in ("treeids", "nodeids", "ids"))
    if not len(of) == len(at) == len(target) == len(weight):
        raise ModelError(f"{named} has {len(of)} {voters}_treeids, {len(at)} {voters}_nodeids, {len(target)} {voters}_ids and "
                         f"{len(weight)} {voters}_weights, expected as many of each; export it again")
    places = names.places(of, at, "a weight")
    spoken = leaf[places]  # what other nodes say is never heard
    votes = Votes(rank[places][spoken] - int(inner.sum()), target[spoken], weight[spoken].astype(_weight_type(ctx, weight)), targets)
    return walk, _checked(votes, named)


def _weight_type(ctx: InferContext, weight: Array) -> np.dtype[Any]:
    return np.result_type(working(ctx), weight.dtype)


def _features(found: Ints, named: str) -> Ints:
    if found.size and not 0 <= found.min() <= found.max() < 2**31 - 1:
        raise ModelError(f"{named} asks for feature {found.min()} or {found.max()}, which does not exist; export it again")
    return found


def _checked(votes: Votes, named: str) -> Votes:
    if votes.targets < 1:
        raise ModelError(f"{named} has {votes.targets} targets, expected at least one")
    if votes.target.size and not 0 <= votes.target.min() <= votes.target.max() < votes.targets:
        raise ModelError(f"{named} votes for target {votes.target.min()} or {votes.target.max()}, expected 0 to {votes.targets - 1}")
    return votes


def _with_base(builder: Builder, said: str, base: Array, targets: int, dtype: str) -> str:
    if len(base) not in (0, targets):
        raise ModelError(f"{where(builder.infer)} has {len(base)} base values for {targets} targets, expected one of each")
    return builder.emit("Add", said, builder.constant(base.astype(dtype))) if base.any() else said


# -- operators ---------------------------------------------------------------------------------------------------

def _regressor(builder: Builder) -> tuple[str, ...]:
    ctx = builder.infer
    aggregate, transform = chosen(ctx, "aggregate_function", tuple(AGGREGATES)), transform_of(ctx)
    targets = numbers(ctx, "target_ids", "int64")
    walk, votes = _forest(ctx, "target", int(ctx.attr("n_targets", targets.max(initial=0) + 1)))
    dtype = votes.weight.dtype.name
    said = _with_base(builder, _aggregated(builder, walk, votes, aggregate), _number_list(ctx, "base_values"), votes.targets, dtype)
    made = (transformed if votes.targets > 1 else single)(builder, said, transform, dtype)
    return (in_floats(builder, made, dtype),)


def _classifier(builder: Builder) -> tuple[str, ...]:
    """The label and the scores of each class. Where all votes are for one of two classes they stand for the second, which is
    chosen above 0, or above a half where no vote is negative."""
    ctx = builder.infer
    transform, labels = transform_of(ctx), numbers(ctx, "classlabels_int64s", "int64")
    if len(labels) < 2:
        raise UnsupportedError(f"{where(ctx)} has {len(labels)} integer labels, but classifiers of two and more classes only are "
                               "supported")
    walk, votes = _forest(ctx, "class", len(labels))
    dtype, base = votes.weight.dtype.name, _number_list(ctx, "base_values")
    voted = np.unique(votes.target)
    if len(labels) == 2 and len(voted) < 2:
        return _of_two(builder, walk, replace(votes, target=np.zeros_like(votes.target), targets=1), base, labels, bool(voted.sum()))
    said, given = _said(builder, walk, votes, "SUM")
    scores = _with_base(builder, said, base, len(labels), dtype)
    ranked = scores if given is None or len(base) else builder.emit(
        "Where", cast(builder, given, "int32", "bool"), scores, scalar_operand(builder, -np.inf, dtype))
    label = best(builder, ranked, labels_of(ctx, "classlabels_int64s", len(labels)))
    return label, in_floats(builder, transformed(builder, scores, transform, dtype), dtype)


def _of_two(builder: Builder, walk: Walk, votes: Votes, base: Array, labels: Ints, second: bool) -> tuple[str, ...]:
    """The label and the scores of two classes by the votes for one, the first or the second, which then the first has not."""
    ctx, dtype = builder.infer, votes.weight.dtype.name
    if len(base) > 1 or (second and len(base)):
        raise UnsupportedError(f"{where(ctx)} has {len(base)} base values, but all votes are for one of two classes; export it with "
                               "one base value and votes for class 0")
    score = _with_base(builder, _said(builder, walk, votes, "SUM", asked=False)[0], base, 1, dtype)
    positive = bool((votes.weight >= 0).all())
    above = builder.emit("Greater", score, scalar_operand(builder, 0.5 if positive else 0, dtype))
    label, transform = either(builder, above, labels), transform_of(ctx)
    if not second:
        return label, in_floats(builder, both(builder, score, transform, dtype, centre=int(positive)), dtype)
    nothing = builder.emit("Mul", score, scalar_operand(builder, 0, dtype))
    pair = builder.emit("Concat", nothing, score, axis=1)
    return label, in_floats(builder, transformed(builder, pair, transform, dtype), dtype)


def _ensemble(builder: Builder) -> tuple[str, ...]:
    """The ensemble of opset 5, whose nodes and leaves are numbered through all trees, and which says how by numbers."""
    ctx, named = builder.infer, where(builder.infer)
    how, after = int(ctx.attr("aggregate_function")), int(ctx.attr("post_transform"))
    if not (0 <= how < 4 and 0 <= after < len(TRANSFORMS)):
        raise ModelError(f"{named} has aggregate_function {how} and post_transform {after}, expected 0 to 3 and 0 to 4")
    aggregate, transform = ("AVERAGE", "SUM", "MIN", "MAX")[how], TRANSFORMS[after]
    target = numbers(ctx, "leaf_targetids", "int64")
    dtype = working(ctx) if working(ctx) != "float16" else "float32"
    weight = np.asarray(ctx.attr("leaf_weights")).astype(dtype)
    if weight.shape != target.shape:
        raise ModelError(f"{named} has {weight.size} leaf_weights and {len(target)} leaf_targetids, expected as many of each")
    nodes, roots = _plain_nodes(ctx, len(target), dtype), numbers(ctx, "tree_roots", "int64")
    if not len(roots) or not 0 <= roots.min() <= roots.max() < len(numbers(ctx, "nodes_featureids", "int64")):
        raise ModelError(f"{named} has {len(roots)} tree_roots, expected numbers of nodes; export it again")
    votes = _checked(Votes(np.arange(len(target)), target, weight, int(ctx.attr("n_targets", target.max(initial=0) + 1))), named)
    said = _aggregated(builder, walk_of(nodes, roots, named), votes, aggregate)
    made = (transformed if votes.targets > 1 else single)(builder, said, transform, dtype)
    return (cast(builder, made, dtype, ctx.type(0).dtype),)


def _plain_nodes(ctx: InferContext, leaves: int, dtype: str) -> Nodes:
    feature = numbers(ctx, "nodes_featureids", "int64")
    count = len(feature)
    yes, no, yes_is_leaf, no_is_leaf = (_of_length(ctx, f"nodes_{name}", count) for name in (
        "truenodeids", "falsenodeids", "trueleafs", "falseleafs"))
    missing = _of_length(ctx, "nodes_missing_value_tracks_true", count) if ctx.attr(
        "nodes_missing_value_tracks_true") else np.zeros(count, np.int64)
    modes, splits = np.asarray(ctx.attr("nodes_modes")), np.asarray(ctx.attr("nodes_splits")).astype(dtype)
    if modes.shape != (count,) or splits.shape != (count,):
        raise ModelError(f"{where(ctx)} has {modes.size} nodes_modes and {splits.size} nodes_splits for {count} nodes, expected one "
                         "of each; export it again")
    for side, is_leaf in ((yes, yes_is_leaf), (no, no_is_leaf)):
        most = np.where(is_leaf != 0, leaves, count)
        if ((side < 0) | (side >= most)).any():
            raise ModelError(f"{where(ctx)} has a node whose child does not exist; export it again")
    found = Nodes(_features(feature, where(ctx)), splits, modes.astype(np.int64), *(
        np.where(is_leaf != 0, side + count, side) for side, is_leaf in ((yes, yes_is_leaf), (no, no_is_leaf))), missing != 0, leaves)
    return _without_sets(ctx, found, dtype)


def _without_sets(ctx: InferContext, nodes: Nodes, dtype: str) -> Nodes:
    """Nodes that ask whether a feature is in a set (mode 6) as nodes that ask for one member after the other."""
    count, asks = len(nodes.feature), np.flatnonzero(nodes.modes == 6)
    if not 0 <= nodes.modes.min(initial=0) <= nodes.modes.max(initial=0) <= 6:
        raise ModelError(f"{where(ctx)} has a node of mode {nodes.modes.min()} or {nodes.modes.max()}, expected 0 to 6")
    given = ctx.attr("membership_values")
    members = np.zeros(0, dtype) if given is None else np.asarray(given).astype(dtype).ravel()
    ends = np.flatnonzero(np.isnan(members))
    if len(ends) != len(asks) or (len(ends) and ends[-1] != len(members) - 1):
        raise ModelError(f"{where(ctx)} has {len(ends)} sets of membership_values for {len(asks)} nodes of mode 6, expected one of "
                         "each, with a NaN behind it")
    if not len(asks):
        return nodes
    sizes = np.diff(np.concatenate([[-1], ends])) - 1
    more = np.maximum(sizes - 1, 0)  # nodes besides the one that is there
    extra = int(more.sum())
    of = np.repeat(asks, more)

    def moved(side: Ints) -> Ints:
        return np.where(side >= count, side + extra, side)

    yes, no, threshold = (np.concatenate([part, part[of]]) for part in (moved(nodes.yes), moved(nodes.no), nodes.threshold))
    firsts, start = np.concatenate([[0], ends[:-1] + 1]), count + np.cumsum(more) - more
    threshold[asks] = np.where(sizes > 0, members[firsts], np.nan)
    threshold[count:] = np.concatenate([members[a + 1:b] for a, b in zip(firsts, ends)])
    last = no[asks]
    no[count:] = np.arange(count + 1, count + extra + 1)
    no[asks] = np.where(more > 0, start, last)
    no[(start + more - 1)[more > 0]] = last[more > 0]
    modes = np.concatenate([nodes.modes, np.full(extra, 4)])
    modes[asks] = 4
    return Nodes(np.concatenate([nodes.feature, nodes.feature[of]]), threshold, modes, yes, no,
                 np.concatenate([nodes.missing, nodes.missing[of]]), nodes.leaves)


_NODES = tuple(f"nodes_{name}" for name in (
    "treeids", "nodeids", "featureids", "values", "values_as_tensor", "modes", "truenodeids", "falsenodeids",
    "missing_value_tracks_true"))
_HITS = ("nodes_hitrates", "nodes_hitrates_as_tensor")
_BASE = ("base_values", "base_values_as_tensor", "post_transform")


def _voters(word: str) -> tuple[str, ...]:
    return tuple(f"{word}_{name}" for name in ("treeids", "nodeids", "ids", "weights", "weights_as_tensor"))


def _op(name: str, decompose: Callable[[Builder], tuple[str, ...]], **others: Any) -> OpDef:
    return OpDef(name, PatternKind.OPAQUE, decompose=decompose, domain=DOMAIN, **others)


OPS: tuple[OpDef, ...] = (
    _op("TreeEnsembleRegressor", _regressor, samples=regressors, ignores=_HITS,
        reads=(*_NODES, *_BASE, *_voters("target"), "n_targets", "aggregate_function")),
    _op("TreeEnsembleClassifier", _classifier, samples=classifiers, ignores=_HITS, instead=STRINGS,
        reads=(*_NODES, *_BASE, *_voters("class"), "classlabels_int64s")),
    _op("TreeEnsemble", _ensemble, samples=ensembles, ignores=("nodes_hitrates",), reads=(
        "nodes_featureids", "nodes_splits", "nodes_modes", "nodes_truenodeids", "nodes_falsenodeids", "nodes_trueleafs",
        "nodes_falseleafs", "nodes_missing_value_tracks_true", "membership_values", "leaf_targetids", "leaf_weights", "tree_roots",
        "n_targets", "aggregate_function", "post_transform")),
)

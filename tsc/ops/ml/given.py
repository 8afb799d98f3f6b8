"""Forests as nodes' attributes give them, checked, as tables."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tsc.errors import ModelError
from tsc.ops.base import InferContext
from tsc.ops.ml.common import numbers, working
from tsc.ops.ml.forest import Array, Ints, Names, Nodes, Votes, Walk, split_leaves, walk_of
from tsc.ops.shapes import where

# -- opsets 1 and 3 ------------------------------------------------------------------------------------------------

def number_list(ctx: InferContext, name: str) -> Array:
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


def forest(ctx: InferContext, voters: str, targets: int) -> tuple[Walk, Votes]:
    """The tables of the attributes, of which those of what leaves say begin with a word."""
    trees, named = numbers(ctx, "nodes_treeids", "int64"), where(ctx)
    count = len(trees)
    if not count:
        raise ModelError(f"{named} has no nodes, expected trees; export it again")
    names = ("nodeids", "featureids", "truenodeids", "falsenodeids")
    (ids, feature, yes, no), missing = (_of_length(ctx, f"nodes_{name}", count) for name in names), _missing(ctx, count)
    threshold, modes = number_list(ctx, "nodes_values"), ctx.attr("nodes_modes", ())
    if len(threshold) != count or len(modes) != count:
        raise ModelError(f"{named} has {len(threshold)} nodes_values and {len(modes)} nodes_modes for {count} nodes, expected "
                         "one of each; export it again")
    leaf, inner_modes = split_leaves(modes, named)
    inner, table = ~leaf, Names(trees, ids, named)
    rank = np.where(leaf, np.cumsum(leaf) - 1 + inner.sum(), np.cumsum(inner) - 1)  # leaves behind the others
    first, second = (rank[table.places(trees[inner], side[inner], "a child")] for side in (yes, no))
    nodes = Nodes(_features(feature[inner], named), threshold[inner], inner_modes, first, second, missing[inner],
                  int(leaf.sum()))
    firsts = np.sort(np.unique(trees, return_index=True)[1])
    walk = walk_of(nodes, rank[firsts], named)

    weight = number_list(ctx, f"{voters}_weights")
    of, at, target = (numbers(ctx, f"{voters}_{name}", "int64") for name in ("treeids", "nodeids", "ids"))
    if not len(of) == len(at) == len(target) == len(weight):
        raise ModelError(f"{named} has {len(of)} {voters}_treeids, {len(at)} {voters}_nodeids, {len(target)} {voters}_ids and "
                         f"{len(weight)} {voters}_weights, expected as many of each; export it again")
    places = table.places(of, at, "a weight")
    spoken = leaf[places]  # what other nodes say is never heard
    weight = weight.astype(np.result_type(working(ctx), weight.dtype))
    return walk, _checked(Votes(rank[places][spoken] - int(inner.sum()), target[spoken], weight[spoken], targets), named)


def _missing(ctx: InferContext, count: int) -> NDArray[np.bool_]:
    """Whether what is no number goes to the first child of each node."""
    name = "nodes_missing_value_tracks_true"
    return _of_length(ctx, name, count) != 0 if ctx.attr(name) else np.zeros(count, bool)


def _features(found: Ints, named: str) -> Ints:
    if found.size and not 0 <= found.min() <= found.max() < 2**31 - 1:
        raise ModelError(f"{named} asks for feature {found.min()} or {found.max()}, which does not exist; export it again")
    return found


def _checked(votes: Votes, named: str) -> Votes:
    if votes.targets < 1:
        raise ModelError(f"{named} has {votes.targets} targets, expected at least one")
    if votes.target.size and not 0 <= votes.target.min() <= votes.target.max() < votes.targets:
        raise ModelError(f"{named} votes for target {votes.target.min()} or {votes.target.max()}, expected 0 to "
                         f"{votes.targets - 1}")
    return votes


# -- opset 5 -----------------------------------------------------------------------------------------------------

def numbered_forest(ctx: InferContext) -> tuple[Walk, Votes]:
    """The tables of the attributes, whose nodes and leaves are numbered through all trees."""
    named, target = where(ctx), numbers(ctx, "leaf_targetids", "int64")
    dtype = "float64" if ctx.type(0).dtype == "float64" else "float32"
    weight = np.asarray(ctx.attr("leaf_weights")).astype(dtype)
    if weight.shape != target.shape:
        raise ModelError(f"{named} has {weight.size} leaf_weights and {len(target)} leaf_targetids, expected as many of each")
    nodes, roots = _plain_nodes(ctx, len(target), dtype), numbers(ctx, "tree_roots", "int64")
    if not len(roots) or not 0 <= roots.min() <= roots.max() < len(numbers(ctx, "nodes_featureids", "int64")):
        raise ModelError(f"{named} has {len(roots)} tree_roots, expected numbers of nodes; export it again")
    targets = int(ctx.attr("n_targets", target.max(initial=0) + 1))
    return walk_of(nodes, roots, named), _checked(Votes(np.arange(len(target)), target, weight, targets), named)


def _plain_nodes(ctx: InferContext, leaves: int, dtype: str) -> Nodes:
    feature = numbers(ctx, "nodes_featureids", "int64")
    count = len(feature)
    yes, no, yes_is_leaf, no_is_leaf = (_of_length(ctx, f"nodes_{name}", count) for name in (
        "truenodeids", "falsenodeids", "trueleafs", "falseleafs"))
    modes, splits = np.asarray(ctx.attr("nodes_modes")), np.asarray(ctx.attr("nodes_splits")).astype(dtype)
    if modes.shape != (count,) or splits.shape != (count,):
        raise ModelError(f"{where(ctx)} has {modes.size} nodes_modes and {splits.size} nodes_splits for {count} nodes, expected"
                         " one of each; export it again")
    for side, is_leaf in ((yes, yes_is_leaf), (no, no_is_leaf)):
        most = np.where(is_leaf != 0, leaves, count)
        if ((side < 0) | (side >= most)).any():
            raise ModelError(f"{where(ctx)} has a node whose child does not exist; export it again")
    first, second = (np.where(is_leaf != 0, side + count, side) for side, is_leaf in ((yes, yes_is_leaf), (no, no_is_leaf)))
    found = Nodes(_features(feature, where(ctx)), splits, modes.astype(np.int64), first, second, _missing(ctx, count), leaves)
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
        raise ModelError(f"{where(ctx)} has {len(ends)} sets of membership_values for {len(asks)} nodes of mode 6, expected one"
                         " of each, with a NaN behind it")
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

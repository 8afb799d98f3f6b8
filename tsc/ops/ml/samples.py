"""Small forests for the tests of trees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tsc.ops.base import Sample
from tsc.ops.samples import floats

#: A tree of two levels, one that is deeper on one side, and one leaf alone: of each node its mode, feature, threshold and
#: children.
_TREES = (
    (("BRANCH_LEQ", 0, 0.25, 1, 2), ("BRANCH_LEQ", 2, -0.5, 3, 4), ("BRANCH_LEQ", 1, 0.5, 5, 6), *[("LEAF", 0, 0.0, 0, 0)] * 4),
    (("BRANCH_LEQ", 1, 0.0, 1, 2), ("LEAF", 0, 0.0, 0, 0), ("BRANCH_LEQ", 0, -0.25, 3, 4), ("BRANCH_LEQ", 2, 0.75, 5, 6),
     *[("LEAF", 0, 0.0, 0, 0)] * 3),
    (("LEAF", 0, 0.0, 0, 0),))
_OTHERS = ("BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_LEQ")


def _nodes(mixed: bool = False) -> dict[str, Any]:
    every = [(t, k, *node) for t, tree in enumerate(_TREES) for k, node in enumerate(tree)]
    trees, ids, modes, features, values, yes, no = zip(*every)
    if mixed:
        modes = tuple(m if m == "LEAF" else _OTHERS[k % len(_OTHERS)] for k, m in enumerate(modes))
    return {"nodes_treeids": trees, "nodes_nodeids": ids, "nodes_modes": modes, "nodes_featureids": features,
            "nodes_values": values, "nodes_truenodeids": yes, "nodes_falsenodeids": no}


def _votes(word: str, targets: int, every: bool = True) -> Mapping[str, Any]:
    """What leaves say, of every target or of one a tree."""
    found = [(t, k, c) for t, tree in enumerate(_TREES) for k, node in enumerate(tree) if node[0] == "LEAF"
             for c in (range(targets) if every else [t % targets])]
    trees, ids, said = zip(*found)
    return {f"{word}_treeids": trees, f"{word}_nodeids": ids, f"{word}_ids": said,
            f"{word}_weights": tuple(floats(len(found)).tolist())}


def regressors() -> Sequence[Sample]:
    """Forests of one and two targets, of all ways to put together, and of all modes."""
    x = floats(9, 3)
    ties, two = np.round(x * 4) / 4, {**_nodes(), **_votes("target", 2), "n_targets": 2, "base_values": (0.5, -1.0)}
    return [Sample([x], {**_nodes(), **_votes("target", 1), "n_targets": 1}),
            *(Sample([x], {**two, "aggregate_function": how}) for how in ("AVERAGE", "MIN", "MAX")),
            Sample([x], {**_nodes(), **_votes("target", 3, every=False), "n_targets": 3}),
            Sample([ties], {**_nodes(mixed=True), **_votes("target", 1), "n_targets": 1})]


def classifiers() -> Sequence[Sample]:
    """Forests of two classes by one score, and of three."""
    x, three = floats(9, 3), {"classlabels_int64s": (4, -2, 7)}
    positive = {**_votes("class", 1), "class_weights": tuple(abs(floats(9) / 4).tolist())}
    return [Sample([x], {**_nodes(), **positive, "classlabels_int64s": (3, 8)}, 2),
            Sample([x], {**_nodes(), **_votes("class", 3), **three}, 2),
            Sample([x], {**_nodes(), **_votes("class", 3, every=False), **three, "post_transform": "SOFTMAX"}, 2)]


def ensembles() -> Sequence[Sample]:
    """A forest as opset 5 has it: one tree of three leaves, whose last asks for members of a set, and a stump."""
    attrs = {"nodes_featureids": (0, 2, 1), "nodes_splits": np.array([0.25, 0.0, -0.5], np.float32),
             "nodes_modes": np.array([0, 1, 3], np.uint8), "nodes_truenodeids": (1, 1, 3), "nodes_falsenodeids": (0, 2, 4),
             "nodes_trueleafs": (0, 1, 1), "nodes_falseleafs": (1, 1, 1), "leaf_targetids": (0, 1, 1, 0, 1),
             "leaf_weights": floats(5), "tree_roots": (0, 2), "n_targets": 2}
    sets = {**attrs, "nodes_modes": np.array([0, 6, 6], np.uint8), "nodes_missing_value_tracks_true": (0, 1, 0),
            "membership_values": np.array([1.0, 2.0, -1.0, np.nan, 0.5, np.nan], np.float32)}
    x = np.round(floats(9, 3) * 2) / 2
    single = {**attrs, "leaf_targetids": (0,) * 5, "n_targets": 1}
    return [Sample([floats(9, 3)], attrs), Sample([x], sets), Sample([x], {**attrs, "post_transform": 3}),
            *(Sample([x], {**single, "aggregate_function": how}) for how in (2, 3))]

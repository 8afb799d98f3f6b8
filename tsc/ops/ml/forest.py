"""Trees as tables: what attributes say of nodes and leaves, checked, and made what a walk reads.

A walk goes from the root down by one table, `child`, whose columns are what comparing a feature with a threshold may find: it
is less, equal, greater, or one of both is no number. So a table of any modes is walked alike, and columns that are the same in
all nodes are one. A leaf is its own child.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc.errors import ModelError, UnsupportedError

Ints = NDArray[np.int64]
Array = NDArray[Any]

#: Whether a node's comparison holds of a feature that is less than its threshold, equal, greater, or no number.
MODES = {
    "BRANCH_LEQ": (True, True, False, False), "BRANCH_LT": (True, False, False, False),
    "BRANCH_GTE": (False, True, True, False), "BRANCH_GT": (False, False, True, False),
    "BRANCH_EQ": (False, True, False, False), "BRANCH_NEQ": (True, False, True, True)}
#: A walk takes as many trips for every row and tree as the deepest tree has levels.
MOST_LEVELS = 4096
#: A table has at most so many elements, or four for each number that attributes hold.
MOST_VOTES = 1 << 24


@dataclass(frozen=True, slots=True, eq=False)
class Nodes:
    """Nodes that compare, in any order: their children are nodes, by numbers from 0 on, or leaves, by numbers behind those.
    `modes` are places in MODES, `missing` says whether what is no number goes to the first child."""

    feature: Ints
    threshold: Array
    modes: Ints
    yes: Ints
    no: Ints
    missing: NDArray[np.bool_]
    leaves: int


@dataclass(frozen=True, slots=True, eq=False)
class Walk:
    """What a walk reads: of each node, leaves first, the feature, the threshold and the children; the roots; the number of
    leaves; how many steps lead to any of them; and what the columns of children are (see `tsc.ops.ml.trees`)."""

    feature: NDArray[np.int32]
    threshold: Array
    child: NDArray[np.int32]
    roots: NDArray[np.int32]
    leaves: int
    depth: int
    sides: str


@dataclass(frozen=True, slots=True, eq=False)
class Votes:
    """What leaves say: `leaf` adds `weight` to `target`, of which there are `targets`. A leaf may say something of many."""

    leaf: Ints
    target: Ints
    weight: Array
    targets: int


def walk_of(nodes: Nodes, roots: Ints, where: str) -> Walk:
    """The tables of a walk from roots; the last leaf is one more, which no node leads to. Raises ModelError for nodes that are
    no trees, UnsupportedError for too deep ones."""
    count, leaves = len(nodes.feature), nodes.leaves
    children = np.stack([nodes.yes, nodes.no])
    if not _within(children, count + leaves) or not _within(roots, count + leaves):
        raise ModelError(f"{where} has a node whose child does not exist; export it again")
    depth = _depth(children, roots, count, where)
    holds = np.array(list(MODES.values()))[nodes.modes]
    unordered = np.isnan(nodes.threshold)
    holds[unordered] = holds[unordered, 3:]  # whatever the feature is
    holds[nodes.missing, 3] = True
    sides, columns = _sides(holds)
    moved = np.concatenate([np.arange(count) + leaves + 1, np.arange(leaves)])  # leaves first, and one that says nothing
    leaves += 1
    own = np.repeat(np.arange(leaves)[:, None], len(columns), 1)
    inner = np.where(holds[:, columns], moved[nodes.yes][:, None], moved[nodes.no][:, None])
    nothing = np.zeros(leaves, np.int64)
    return Walk(np.concatenate([nothing, nodes.feature]).astype(np.int32),
                np.concatenate([nothing, np.where(unordered, 0, nodes.threshold)]).astype(nodes.threshold.dtype),
                np.concatenate([own, inner]).astype(np.int32), moved[roots].astype(np.int32), leaves, depth, sides)


def _within(numbers: Ints, count: int) -> bool:
    return bool(np.all((numbers >= 0) & (numbers < count)))


def _sides(holds: NDArray[np.bool_]) -> tuple[str, list[int]]:
    """The fewest columns that tell the children apart, and their name: "le" and "lt" are two, with what is no number among the
    last, "all" three; "nan" behind it is one more for that."""
    same = [bool(np.array_equal(holds[:, k], holds[:, k + 1])) for k in range(3)]
    name, columns = ("le", [0, 2]) if same[0] else ("lt", [0, 2]) if same[1] else ("all", [0, 1, 2])
    return (name, columns) if same[2] else (f"{name} nan", [*columns, 3])


def _depth(children: Ints, roots: Ints, count: int, where: str) -> int:
    """How many steps lead from a root to the farthest leaf. Nodes may have several parents, but none is below itself."""
    too_deep = UnsupportedError(f"{where} has trees of more than {MOST_LEVELS} levels, which are not supported")
    reached, level, levels = np.zeros(count, bool), np.unique(roots[roots < count]), 0
    while level.size:
        reached[level], levels = True, levels + 1
        if levels > MOST_LEVELS:
            raise too_deep
        below = np.unique(children[:, level])
        level = below[below < count]
        level = level[~reached[level]]
    inner = np.flatnonzero(reached)
    below = children[:, inner].ravel()
    parents = np.bincount(below[below < count], minlength=count)
    level, depth, seen = inner[parents[inner] == 0], 0, 0
    while level.size:
        if depth == MOST_LEVELS:
            raise too_deep
        depth, seen = depth + 1, seen + len(level)
        below, times = np.unique(children[:, level], return_counts=True)
        below, times = below[below < count], times[below < count]
        parents[below] -= times
        level = below[parents[below] == 0]
    if seen < len(inner):
        raise ModelError(f"{where} has nodes that are below themselves, expected trees; export it again")
    return depth


# -- nodes by the numbers of their trees -------------------------------------------------------------------------

class Names:
    """The pairs of a tree and a node as places in the lists of attributes."""

    def __init__(self, trees: Ints, nodes: Ints, where: str) -> None:
        self._where = where
        self._trees, of = np.unique(trees, return_inverse=True)
        self._nodes, rank = np.unique(nodes, return_inverse=True)
        keys = of * len(self._nodes) + rank
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]
        if len(keys) > 1 and (self._keys[1:] == self._keys[:-1]).any():
            raise ModelError(f"{where} has two nodes of one number in a tree; export it again")

    def places(self, trees: Ints, nodes: Ints, what: str) -> Ints:
        """Where nodes stand. Raises ModelError for one that does not exist."""
        of, rank = (np.minimum(np.searchsorted(known, asked), len(known) - 1) for known, asked in (
            (self._trees, trees), (self._nodes, nodes)))
        keys = of * len(self._nodes) + rank
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        found = (self._trees[of] == trees) & (self._nodes[rank] == nodes) & (self._keys[at] == keys)
        if not found.all():
            k = int(np.flatnonzero(~found)[0])
            raise ModelError(f"{self._where} has {what} of node {nodes[k]} of tree {trees[k]}, which does not exist; export it "
                             "again")
        return np.asarray(self._order[at], np.int64)


def split_leaves(modes: Sequence[str], where: str) -> tuple[NDArray[np.bool_], Ints]:
    """Which of some nodes are leaves, and the modes of the others as places in MODES."""
    words, which = np.unique(np.asarray(modes, dtype=object).astype(str), return_inverse=True)
    unknown = [word for word in words if word != "LEAF" and word not in MODES]
    if unknown:
        raise ModelError(f"{where} has nodes of mode '{unknown[0][:40]}', expected LEAF, {', '.join(MODES)}")
    number = np.array([-1 if word == "LEAF" else list(MODES).index(word) for word in words])[which]
    return number < 0, number[number >= 0]


# -- what leaves say ---------------------------------------------------------------------------------------------

def trees_of(walk: Walk) -> Ints | None:
    """The tree that each leaf is of, -1 where it is of none. None where trees share nodes."""
    found = np.full(len(walk.child), -1)
    level, found[walk.roots] = walk.roots, np.arange(len(walk.roots))
    if (found[walk.roots] != np.arange(len(walk.roots))).any():
        return None
    while level.size:
        below, trees = walk.child[level].ravel(), np.repeat(found[level], walk.child.shape[1])
        new = found[below] < 0
        found[below[new]] = trees[new]
        if (found[below] != trees).any():
            return None
        level = np.unique(below[new])
    return found[:walk.leaves]


def by_target(votes: Votes, walk: Walk) -> NDArray[np.int64] | None:
    """The trees [targets, as many of each] in the order of the one target that each votes for, -1 where there are too few.
    None where trees vote for several, or where too many would be too few."""
    trees, of = len(walk.roots), trees_of(walk)
    if of is None or votes.targets > 2 * trees + 16:
        return None
    tree, target = of[votes.leaf], votes.target
    tree, target = tree[tree >= 0], target[tree >= 0]
    own = np.zeros(trees, np.int64)
    own[tree] = target
    if (own[tree] != target).any():
        return None
    counts = np.bincount(own, minlength=votes.targets)
    group = int(counts.max(initial=0))
    if group * votes.targets > 2 * trees + 16:
        return None
    order = np.argsort(own, kind="stable")
    table = np.full((votes.targets, group), -1)
    table[own[order], np.arange(trees) - (np.cumsum(counts) - counts)[own[order]]] = order
    return table

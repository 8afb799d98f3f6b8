"""The walk of rows down trees, all of them at once, and what the leaves that they reach say, put together.

The walk is a recurrence: each trip takes every row and tree a step down, and in a leaf stays there. So a forest of any shape is
one kernel, whose size depends neither on how many trees there are nor on how deep they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc import te
from tsc.errors import UnsupportedError
from tsc.ops.base import Builder, InferContext
from tsc.ops.contraction import scalar_operand
from tsc.ops.define import CUSTOM, CustomOp
from tsc.ops.ml.common import DOMAIN, features, rows, working
from tsc.ops.ml.forest import MOST_VOTES, Array, Ints, Votes, Walk, by_target
from tsc.ops.reduce import cast
from tsc.ops.shapes import where
from tsc.te import Scalar, Tensor

#: How what trees say is put together, and what says nothing there.
AGGREGATES = {"SUM": 0.0, "AVERAGE": 0.0, "MIN": np.inf, "MAX": -np.inf}


def _walked(x: Tensor, feature: Tensor, threshold: Tensor, child: Tensor, roots: Tensor, says: Tensor, depth: int, targets: int,
            sides: str, aggregate: str) -> Tensor:
    """What the leaves say that rows of x reach from roots, put together for each target: of what leaves say of every target, or
    of the one that their tree is for, where the roots stand by their targets."""
    extent, trees = x.shape[0], int(roots.extents[0].as_int() or 0)
    nodes = te.state((depth + 1, extent, trees), "int32", "nodes")

    def step(d: Scalar, n: Scalar, t: Scalar) -> Scalar:
        node = nodes[d - 1, n, t]
        value, limit = x[n, feature[node]], threshold[node]
        return te.where(d >= 1, child[node, _side(value, limit, sides)], roots[t])

    nodes = te.scan(nodes, step)

    own = len(says.shape) == 1
    tree = te.reduce_axis(trees // targets if own else trees, "tree")
    fold = {"MIN": te.min, "MAX": te.max}.get(aggregate, te.sum)

    def told(n: Scalar, c: Scalar) -> Any:
        leaf = nodes[depth, n, c * (trees // targets) + tree if own else tree]
        return fold(says[leaf] if own else says[leaf, c], axis=tree)

    return te.compute((extent, targets), told, "said")


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


def said(builder: Builder, walk: Walk, votes: Votes, aggregate: str, asked: bool = True) -> tuple[str, str | None]:
    """What a forest says of each target of each row and, if that is asked, whether it says anything (1 or 0), None where it
    always does."""
    ctx = builder.infer
    compared = np.result_type(working(ctx), walk.threshold.dtype).name
    ctx.env.assume_le(int(walk.feature.max(initial=0)) + 1, features(ctx, 1),
                      f"{where(ctx)}: its input has all features that its trees ask for")
    order, roots = by_target(votes, walk), walk.roots
    table, given = _table(ctx, walk, votes, aggregate) if order is None else _own(walk, votes, aggregate)
    always = bool(given[:-1].all())
    if order is not None:
        roots = np.where(order < 0, walk.leaves - 1, walk.roots[order]).ravel().astype(np.int32)
        always &= bool((order[:, :1] >= 0).all())
    tables = (walk.feature, walk.threshold.astype(compared), walk.child, roots)
    inputs = [rows(builder, compared), *map(builder.constant, tables)]

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
        raise UnsupportedError(f"{where(ctx)} has {walk.leaves} leaves that may vote for {votes.targets} targets, more than are"
                               " supported; export it with trees of one target each")
    return _filled((walk.leaves, votes.targets), (votes.leaf, votes.target), votes, aggregate)


def _filled(shape: tuple[int, ...], at: tuple[Ints, ...], votes: Votes,
            aggregate: str) -> tuple[Array, NDArray[np.bool_]]:
    table, given = np.full(shape, AGGREGATES[aggregate], votes.weight.dtype), np.zeros(shape, bool)
    {"MIN": np.minimum, "MAX": np.maximum}.get(aggregate, np.add).at(table, at, votes.weight)
    given[at] = True
    return table, given


def aggregated(builder: Builder, walk: Walk, votes: Votes, aggregate: str) -> str:
    """What a forest says of each target; 0 where it says nothing."""
    found, given = said(builder, walk, votes, aggregate, asked=aggregate in ("MIN", "MAX"))
    if aggregate == "AVERAGE":
        found = builder.emit("Div", found, scalar_operand(builder, len(walk.roots), votes.weight.dtype.name))
    if given is None:
        return found
    nothing = scalar_operand(builder, 0, votes.weight.dtype.name)
    return builder.emit("Where", cast(builder, given, "int32", "bool"), found, nothing)

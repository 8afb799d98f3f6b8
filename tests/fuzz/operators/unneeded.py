"""Indices outside of what they select from that no output needs: both oracles refuse them, and a compiler that never reads
there need not see them. Then the outputs must be those of the model with any index inside in their place."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import NodeProto

from tests.fuzz.operators.case import Case, feeds_of, model_of
from tests.fuzz.operators.conventions import attribute
from tests.fuzz.operators.oracles import Reference
from tests.fuzz.operators.values import Array

_SELECT = ("Gather", "GatherElements", "GatherND")


def with_indices_inside(case: Case, values: Mapping[str, Array]) -> dict[str, Array] | None:
    """`values` with the first element's index in the place of each that is outside; None where there is none, or where the
    outputs are others with the last element's."""
    selecting = [n for n in case.nodes if n.op_type in _SELECT and n.input[1] in values]
    zeros = {**values, **{n.input[1]: np.zeros_like(values[n.input[1]]) for n in selecting}}
    known = _all_values(case, zeros)
    first, last, moved = dict(values), dict(values), False
    for node in selecting:
        if node.input[0] not in known and node.input[0] not in values:
            return None
        name, shape = node.input[1], np.shape(known.get(node.input[0], values.get(node.input[0])))
        count = _counts(node, shape, values[name])
        outside = (values[name] < -count) | (values[name] >= count)
        first[name] = np.where(outside, 0, first[name]).astype(values[name].dtype)
        last[name] = np.where(outside, count - 1, last[name]).astype(values[name].dtype)
        moved = moved or bool(outside.any())
    outputs = [_all_values(case, v) for v in (first, last)] if moved else []
    same = moved and all(o in one and o in other and np.array_equal(one[o], other[o], equal_nan=one[o].dtype.kind == "f")
                         for one, other in [outputs] for o in case.outputs)
    return first if same else None


def _all_values(case: Case, values: Mapping[str, Array]) -> dict[str, Array]:
    reference = Reference(model_of(case, values))
    feeds = feeds_of(case, values)
    reference.run(feeds)
    return reference.all_values(feeds)


def _counts(node: NodeProto, shape: tuple[int, ...], indices: Array) -> Array:
    """How many elements each index selects from."""
    if node.op_type != "GatherND":
        return np.asarray(shape[attribute(node, "axis", 0)])
    batch = attribute(node, "batch_dims", 0)
    return np.asarray(shape[batch:batch + indices.shape[-1]])

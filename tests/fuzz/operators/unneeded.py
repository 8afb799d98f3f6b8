"""Indices outside of what they select from that no output needs: both oracles refuse them, and a compiler that never reads
there need not see them. Then the outputs must be those of the model with any index inside in their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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


def outputs_anyhow(case: Case, values: Mapping[str, Array]) -> list[Array] | None:
    """The outputs where a Gather that cannot be computed, of nothing at all, gives anything; None where it matters what."""
    found = [_filled(case, values, fill) for fill in (0, 1)]
    if None in found:
        return None
    one, other = ([made[o] for o in case.outputs] for made in found if made is not None)
    same = all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(one, other))
    return one if same else None


def _filled(case: Case, values: Mapping[str, Array], fill: int) -> dict[str, Array] | None:
    model = model_of(case, values)
    reference = Reference(model)
    reference.run(feeds_of(case, values))  # which may be refused on the way
    known: dict[str, Array] = {"": None, **(reference.narrow.rt_inits_ if reference.narrow else {}), **feeds_of(case, values)}
    try:
        for node in reference.narrow.rt_nodes_ if reference.narrow else ():
            given = [known[i] for i in node.input]
            if node.op_type == "Gather" and given[0].size == 0:
                axis = attribute(node.onnx_node, "axis", 0) % given[0].ndim
                shape = (*given[0].shape[:axis], *given[1].shape, *given[0].shape[axis + 1:])
                made: Sequence[Array] = [np.full(shape, fill, given[0].dtype)]
            else:
                made = node.run(*given, context={}) if node.need_context() else node.run(*given)
            known.update(zip(node.output, made))
    except Exception:
        return None
    return known if all(o in known for o in case.outputs) else None


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

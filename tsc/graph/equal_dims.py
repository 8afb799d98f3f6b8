"""Dims that an exporter named apart though the model means one: a dim that is read at every index of another.

`mask[arange(batch)]` reads `batch` rows of a mask whose own batch has another name. The standard only asks that there be
enough of them, so equality cannot be proved: it is assumed, and a Guard checks it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tsc.ir import Contents, Graph, Node, TensorType
from tsc.ops import definition
from tsc.sym import ONE, ZERO, ShapeEnv, SymExpr


def assume_counted_dims(graph: Graph, types: Mapping[str, TensorType], contents: Mapping[str, Contents], env: ShapeEnv) -> None:
    """Unify each bare Dim that a Gather or GatherND reads at 0, 1, .. D-1 with the bare Dim D."""
    producers = graph.producers()
    for node in graph.nodes:
        if node.op not in ("Gather", "GatherND") or node.domain:
            continue
        for extent, index in _read_dims(node, types, producers):
            count = _count(index, producers, contents, graph)
            if count is None:
                continue
            extent, count = env.canon(extent), env.canon(count)
            if extent != count and extent.as_dim() is not None and count.as_dim() is not None:
                where = f"node '{node.name}' ({node.op})"
                env.assume_eq(count, extent, f"{where}: a dim that is read at each index of another must be equal to it")


def _read_dims(node: Node, types: Mapping[str, TensorType], producers: Mapping[str, Node]) -> Iterator[tuple[SymExpr, str]]:
    """The data's dims that are read at computed positions, each with the value that holds the positions."""
    shape, indices = types[node.inputs[0]].shape, node.inputs[1]
    if node.op == "Gather":
        yield shape[int(node.attrs.get("axis", 0))], indices
        return
    maker, rank = producers.get(indices), types[indices].rank
    if node.attrs.get("batch_dims", 0) or maker is None or maker.op != "Concat":
        return
    parts = [i for i in maker.inputs if types[i].shape[-1] == ONE]
    if int(maker.attrs["axis"]) in (-1, rank - 1) and len(parts) == len(maker.inputs):
        yield from zip(shape, parts)


def _count(value: str, producers: Mapping[str, Node], contents: Mapping[str, Contents], graph: Graph) -> SymExpr | None:
    """D where `value` is 0, 1, .. D-1, reshaped, repeated or cast; else None."""
    node = producers.get(value)
    while node is not None and (definition(node).is_view or node.op in ("Expand", "Cast")):
        node = producers.get(node.inputs[0])
    if node is None or node.op != "Range":
        return None
    start, limit, step = (_scalar(i, contents, graph) for i in node.inputs)
    return limit if start == ZERO and step == ONE else None


def _scalar(value: str, contents: Mapping[str, Contents], graph: Graph) -> SymExpr | None:
    if value in contents:
        found: SymExpr = contents[value].ravel()[0]
        return found
    constant = graph.constants.get(value)
    return None if constant is None or constant.dtype.kind not in "iu" else SymExpr.of(int(constant.ravel()[0]))

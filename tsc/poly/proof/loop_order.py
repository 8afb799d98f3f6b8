"""Whether loops execute dependent instances in order, read from where their statements stand and what their loops count."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tsc.errors import InternalError
from tsc.poly import isl
from tsc.poly.proof.occurrences import Occurrence, exclusive

#: Dependences by the names of the statements at their two ends.
Edges = Mapping[tuple[str, str], isl.Map]


def edges_of(dependences: isl.UnionMap) -> Edges:
    """Dependences by the names of their statements."""
    return {(str(m.get_tuple_name(isl.IN)), str(m.get_tuple_name(isl.OUT))): m for m in isl.maps_of(dependences)}


def check_order(found: Sequence[Occurrence], edges: Edges, where: str,
                impossible: Callable[[isl.Set], bool] = lambda points: bool(points.is_empty())) -> None:
    """Raise InternalError unless every dependence leads from an instance executed earlier to one executed later. `where` names
    the loops, `impossible` says what is known of the parameters: that some points do not occur. Raises Unreadable where an
    instance has no formula."""
    named = [(x.store.instance.statement, x) for x in found if x.store.instance is not None]
    for source, first in named:
        for target, second in named:
            edge = edges.get((source, target))
            if edge is None or exclusive(first, second):
                continue
            late = _late(first, second, edge)
            if late is not None and not impossible(late.domain()):
                raise InternalError(f"the loops of {where} execute {target} before {source}, whose values it needs: {late}")


def _late(first: Occurrence, second: Occurrence, edge: isl.Map) -> isl.Map | None:
    """The pairs of loop points at which `first` is not executed before what depends on it in `second`."""
    shared, before = _shared(first, second)
    if not shared and before:
        return None
    wrong = _wrong(first, second, shared, before)
    pairs = first.instances().apply_range(edge).apply_range(second.instances().reverse())
    late = pairs.intersect(wrong)
    return None if late.is_empty() else late


def _shared(first: Occurrence, second: Occurrence) -> tuple[list[str], bool]:
    """The loops around both, and whether the first stands first in the text within them."""
    shared: list[str] = []
    for a, b in zip(first.time, second.time):
        if a != b:
            return shared, isinstance(a, int) and isinstance(b, int) and a < b
        if isinstance(a, str):
            shared.append(a)
    return shared, False


def not_before(first: Occurrence, second: Occurrence) -> isl.Map:
    """The instances of `first` -> those of `second` that are not executed after them. Raises Unreadable."""
    shared, before = _shared(first, second)
    return first.instances().reverse().apply_range(_wrong(first, second, shared, before)).apply_range(second.instances())


def _wrong(first: Occurrence, second: Occurrence, shared: Sequence[str], before: bool) -> isl.Map:
    """All pairs of points of two occurrences of which the first is not executed before the second: `before` says which of them
    stands first in the text, `shared` are the loops around both."""
    left = {v: f"a{i}" for i, v in enumerate(first.scope.variables)}
    right = {v: f"b{i}" for i, v in enumerate(second.scope.variables)}
    cases: list[str] = []
    same: list[str] = []
    for v in shared:
        sign = "!=" if v in first.lanes else ">"
        cases.append(" and ".join([*same, f"{left[v]} {sign} {right[v]}"]))
        same.append(f"{left[v]} = {right[v]}")
    if not before:
        cases.append(" and ".join(same) or "1 = 1")
    where = " or ".join(f"({c})" for c in cases) or "1 = 0"
    return isl.Map(f"{{ [{', '.join(left.values())}] -> [{', '.join(right.values())}] : {where} }}")

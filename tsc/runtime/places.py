"""Which axis of which input tells the size of which Dim."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tsc.errors import ShapeError
from tsc.runtime.plan import Plan
from tsc.sym import SymExpr


@dataclass(frozen=True, slots=True)
class Place:
    """One axis of one input."""

    input: int
    axis: int
    size: SymExpr


def places_of(plan: Plan) -> list[Place]:
    """Every axis of every input, in order."""
    return [Place(i, a, size) for i, spec in enumerate(plan.inputs) for a, size in enumerate(spec.shape)]


def binding_places(plan: Plan) -> list[Place]:
    """The places that bind one new Dim each, so that all Dims of inputs are bound. Raises ShapeError where they cannot be."""
    return list(_binding(places_of(plan)))


def _binding(places: Sequence[Place]) -> Iterator[Place]:
    """First those that are a Dim, then those linear in one Dim not yet bound."""
    bound: set[str] = set()
    for place in places:
        name = place.size.as_dim()
        if name is not None and name.name not in bound:
            bound.add(name.name)
            yield place
    waiting = [p for p in places if p.size.dims() - bound]
    while waiting:
        for place in waiting:
            new = place.size.dims() - bound
            if len(new) == 1 and _linear_in(place.size, *new):
                bound |= new
                yield place
                break
        else:
            names = ", ".join(sorted(frozenset().union(*(p.size.dims() for p in waiting)) - bound))
            raise ShapeError(f"no input's shape tells the size of {names}; give an input an axis of that size")
        waiting = [p for p in waiting if p.size.dims() - bound]


def _linear_in(size: SymExpr, name: str) -> bool:
    """Whether `size` is `c * name + rest`, with an integer c and a rest without `name`."""
    using = [m for m, _ in size.terms if any(name in SymExpr((((a,), 1),)).dims() for a in m)]
    return len(using) == 1 and len(using[0]) == 1 and str(using[0][0]) == name

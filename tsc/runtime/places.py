"""Which axis of which input tells the size of which Dim."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from tsc.errors import ShapeError
from tsc.runtime.plan import Axis, Bind, TensorSpec
from tsc.sym import Range, SymExpr
from tsc.sym.affine import is_linear_in


def binds_of(inputs: Sequence[TensorSpec], ranges: Mapping[str, Range], computed: Collection[str] = ()) -> tuple[Bind, ...]:
    """A Bind for each Dim of the inputs' shapes and contents but those that are `computed` from others. Raises ShapeError where
    they do not tell them all."""
    return tuple(Bind(name, axis, ranges.get(name, Range())) for name, axis in _binding(inputs, computed))


def axes_of(inputs: Sequence[TensorSpec]) -> list[tuple[Axis, SymExpr]]:
    """Every axis of every input with its size, and what of its contents is sizes, in order."""
    return [(Axis(i, a), size) for i, spec in enumerate(inputs) for a, size in enumerate((*spec.shape, *spec.contents))]


def _binding(inputs: Sequence[TensorSpec], computed: Collection[str]) -> Iterator[tuple[str, Axis]]:
    """First the axes that are a Dim, by name, then those linear in one Dim not yet bound."""
    plain: dict[str, Axis] = {}
    for axis, size in axes_of(inputs):
        name = size.as_dim()
        if name is not None and name.name not in computed:
            plain.setdefault(name.name, axis)
    yield from sorted(plain.items(), key=lambda item: item[0])
    bound = {*plain, *computed}
    waiting = [p for p in axes_of(inputs) if p[1].dims() - bound]
    while waiting:
        for axis, size in waiting:
            new = size.dims() - bound
            if len(new) == 1 and is_linear_in(size, *new):
                bound |= new
                yield next(iter(new)), axis
                break
        else:
            names = ", ".join(sorted(frozenset().union(*(size.dims() for _, size in waiting)) - bound))
            raise ShapeError(f"no input's shape tells the size of {names}; give an input an axis of that size")
        waiting = [p for p in waiting if p[1].dims() - bound]



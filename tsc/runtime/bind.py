"""From a request to numbers: which input is wrong and why, what each Dim is, and every size of the plan at that shape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc.errors import InputError, InternalError, LaunchError, ShapeError
from tsc.runtime.memory import Array, round_up
from tsc.runtime.plan import Plan, TensorSpec
from tsc.runtime.tape import Tape
from tsc.sym import SymExpr

Shapes = tuple[tuple[int, ...], ...]
MAX_BYTES = 1 << 47  # no process has more address space


@dataclass(frozen=True, slots=True)
class Binding:
    """The plan at one shape. `sizes` holds all kernels' integer parameters one after the other, `table` the columns
    (sizes address, blocks) of the launch table, `offsets` a byte offset an argument of a launch (0 unless in the arena)."""

    dims: dict[str, int]
    sizes: NDArray[np.int64]
    table: NDArray[np.int64]
    offsets: NDArray[np.int64]
    outputs: tuple[tuple[int, ...], ...]
    copies: tuple[int, ...]
    arena_bytes: int
    scratch_bytes: int


@dataclass(frozen=True, slots=True)
class _Place:
    """One axis of one input."""

    input: int
    axis: int
    size: SymExpr


class Binder:
    """Checks requests against a Plan and evaluates the Plan's expressions."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.dims = tuple(plan.ranges)
        self._inputs = tuple((spec.name, np.dtype(spec.dtype), len(spec.shape)) for spec in plan.inputs)
        self._names = frozenset(spec.name for spec in plan.inputs)
        places = [_Place(i, a, size) for i, spec in enumerate(plan.inputs) for a, size in enumerate(spec.shape)]
        self._binders = list(_binders(places))
        self._others = [p for p in places if p not in self._binders]
        unbound = plan.ranges.keys() - frozenset().union(*(p.size.dims() for p in places))
        if unbound:
            raise InternalError(f"no input's shape tells the size of {', '.join(sorted(unbound))}")
        self._expected = Tape(self.dims, [p.size for p in self._others])
        self._guards = Tape(self.dims, [side for g in plan.guards for side in (g.left, g.right)])
        launches, storages = plan.launches, plan.storages
        self._arguments = [a for launch in launches for a in launch.args]
        self._counts = [len(launch.sizes) for launch in launches]
        groups = [
            [size for launch in launches for size in launch.sizes],
            [launch.blocks for launch in launches],
            [launch.scratch for launch in launches],
            [s.offset for s in storages],
            [size for spec in plan.outputs for size in spec.shape],
            [c.bytes for c in plan.copies],
            [plan.arena_bytes],
        ]
        self._lengths = [len(group) for group in groups]
        self._tape = Tape(self.dims, [expr for group in groups for expr in group])

    # -- the request ---------------------------------------------------------------------------------------------------

    def arrays(self, feeds: Mapping[str, Any]) -> list[Array]:
        """The feeds in the plan's order, contiguous. Raises InputError for a missing, unknown or ill-typed one."""
        if feeds.keys() != self._names:
            self._wrong_names(feeds)
        result = []
        for name, dtype, rank in self._inputs:
            array = np.asarray(feeds[name])
            if array.dtype != dtype:
                raise InputError(f"input '{name}' has dtype {array.dtype}, expected {dtype}; cast it with .astype('{dtype}')")
            if array.ndim != rank:
                spec = next(s for s in self.plan.inputs if s.name == name)
                raise ShapeError(f"input '{name}' has rank {array.ndim} (shape {array.shape}), expected rank {rank}: "
                                 f"{format_shape(spec.shape)}")
            if not (array.flags.c_contiguous and array.flags.aligned):
                array = array.copy(order="C")
            result.append(array)
        return result

    def _wrong_names(self, feeds: Mapping[str, Any]) -> None:
        known = ", ".join(f"'{name}'" for name, _, _ in self._inputs) or "none"
        for name, _, _ in self._inputs:
            if name not in feeds:
                raise InputError(f"input '{name}' is missing; this model's inputs are {known}")
        unknown = next(name for name in feeds if name not in self._names)
        raise InputError(f"there is no input '{unknown}'; this model's inputs are {known}")

    # -- the sizes -----------------------------------------------------------------------------------------------------

    def sizes(self, shapes: Shapes) -> list[int]:
        """The size of every Dim, in the order of `dims`. Raises ShapeError naming the input that does not fit."""
        bound: dict[str, int] = {}
        first: dict[str, _Place] = {}
        for place in self._binders:
            name, value = _solve(place.size, shapes[place.input][place.axis], bound, self._describe(place, shapes))
            bound[name], first[name] = value, place
            self._check_range(name, value, self._describe(place, shapes))
        values = [bound[name] for name in self.dims]
        for place, expected in zip(self._others, self._evaluate(self._expected, values)):
            if shapes[place.input][place.axis] != expected:
                raise self._contradiction(place, expected, first, shapes)
        self._check_guards(values)
        return values

    def given(self, dims: Mapping[str, int]) -> list[int]:
        """The sizes of `dims` by name, in order. Raises ShapeError for a missing, unknown or out-of-range one."""
        known = ", ".join(self.dims) or "none"
        for name in dims:
            if name not in self.plan.ranges:
                raise ShapeError(f"there is no dim '{name}'; this model's dims are {known}")
        for name in self.dims:
            if name not in dims:
                raise ShapeError(f"dim '{name}' is missing; this model's dims are {known}")
            self._check_range(name, dims[name], f"dim '{name}' is {dims[name]}")
        values = [dims[name] for name in self.dims]
        self._check_guards(values)
        return values

    def _check_range(self, name: str, value: int, what: str) -> None:
        known = self.plan.ranges[name]
        if value < known.lo or (known.hi is not None and value > known.hi) or value % known.divisor:
            raise ShapeError(f"{what}, outside {known}, the range of dim '{name}'; use a size in range or compile a wider one")

    def _check_guards(self, values: Sequence[int]) -> None:
        sides = self._evaluate(self._guards, values)
        for guard, left, right in zip(self.plan.guards, sides[::2], sides[1::2]):
            if left != right if guard.relation == "==" else left > right:
                at = ", ".join(f"{name}={value}" for name, value in zip(self.dims, values))
                raise ShapeError(f"the model needs {guard} ({guard.reason}), but {left} {guard.relation} {right} does not hold "
                                 f"at {at}; use other sizes")

    def _describe(self, place: _Place, shapes: Shapes) -> str:
        return f"input '{self._inputs[place.input][0]}' has size {shapes[place.input][place.axis]} at axis {place.axis}"

    def _contradiction(self, place: _Place, expected: int, first: Mapping[str, _Place], shapes: Shapes) -> ShapeError:
        what = self._describe(place, shapes)
        causes = [self._describe(first[name], shapes) for name in sorted(place.size.dims())]
        if not causes:
            return ShapeError(f"{what}, expected {expected}")
        return ShapeError(f"{what}, expected {place.size} = {expected}, because {' and '.join(causes)}; make them agree")

    def _evaluate(self, tape: Tape, values: Sequence[int]) -> list[int]:
        try:
            return tape.evaluate(values)
        except ZeroDivisionError as error:
            at = ", ".join(f"{name}={value}" for name, value in zip(self.dims, values))
            raise ShapeError(f"a size of the model is divided by zero at {at}; use other sizes") from error

    # -- the plan at these sizes ---------------------------------------------------------------------------------------

    def bind(self, values: Sequence[int]) -> Binding:
        """Every number of the plan at the sizes `values` of `dims`. Raises LaunchError when that is beyond any memory."""
        numbers = iter(self._evaluate(self._tape, values))
        groups = [[next(numbers) for _ in range(length)] for length in self._lengths]
        sizes, blocks, scratch, offsets, extents, copies, (arena,) = groups
        if max(arena, max(sizes, default=0), max(scratch, default=0), max(blocks, default=0)) > MAX_BYTES:
            at = ", ".join(f"{name}={value}" for name, value in zip(self.dims, values))
            raise LaunchError(f"not enough memory: {arena} bytes are needed at {at}; use a smaller shape")
        rest = iter(extents)
        flat = np.array(sizes, np.int64)
        starts = np.cumsum([0, *self._counts[:-1]], dtype=np.int64) if self._counts else np.empty(0, np.int64)
        table = np.empty((len(blocks), 2), np.int64)
        table[:, 0] = starts * 8 + flat.__array_interface__["data"][0]
        table[:, 1] = blocks
        return Binding(
            dims=dict(zip(self.dims, values)), sizes=flat, table=table,
            offsets=np.array(offsets, np.int64)[self._arguments] if self._arguments else np.empty(0, np.int64),
            outputs=tuple(tuple(next(rest) for _ in spec.shape) for spec in self.plan.outputs),
            copies=tuple(copies), arena_bytes=arena, scratch_bytes=round_up(max(scratch, default=0)))


def format_shape(shape: Sequence[SymExpr]) -> str:
    """`[batch, 4]`."""
    return f"[{', '.join(map(str, shape))}]"


def format_spec(spec: TensorSpec) -> str:
    """`ids: int64[batch, seq]`."""
    return f"{spec.name}: {spec.dtype}{format_shape(spec.shape)}"


# -- which axis binds which Dim ----------------------------------------------------------------------------------------

def _binders(places: Sequence[_Place]) -> Iterator[_Place]:
    """The places that bind one new Dim each: first those that are a Dim, then those linear in one Dim not yet bound."""
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
            raise InternalError(f"no input's shape tells the size of {names}")
        waiting = [p for p in waiting if p.size.dims() - bound]


def _linear_in(size: SymExpr, name: str) -> bool:
    """Whether `size` is `c * name + rest`, with an integer c and a rest without `name`."""
    using = [m for m, _ in size.terms if any(name in SymExpr((((a,), 1),)).dims() for a in m)]
    return len(using) == 1 and len(using[0]) == 1 and str(using[0][0]) == name


def _solve(size: SymExpr, value: int, bound: Mapping[str, int], what: str) -> tuple[str, int]:
    """The name and size of the one unbound Dim of `size` that makes it equal `value`."""
    plain = size.as_dim()
    if plain is not None:
        return plain.name, value
    (name,) = size.dims() - bound.keys()
    rest = size.evaluate({**bound, name: 0})
    slope = size.evaluate({**bound, name: 1}) - rest
    solved, remainder = divmod(value - rest, slope)
    if remainder or solved < 0:
        raise ShapeError(f"{what}, expected {size} for some {name}; use such a size")
    return name, solved

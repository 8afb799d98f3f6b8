"""From a request to numbers: which input is wrong and why, what each Dim is, and every size of the plan at that shape."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc.errors import InputError, LaunchError, ShapeError
from tsc.runtime.check import Bounds, Numbers, grouped
from tsc.runtime.memory import Array, as_array, round_up
from tsc.runtime.places import Place, binding_places, places_of
from tsc.runtime.plan import Plan, TensorSpec
from tsc.runtime.schema import MAX_NUMBER
from tsc.runtime.tape import Tape
from tsc.sym import Guard, SymExpr

Shapes = tuple[tuple[int, ...], ...]


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


class Binder:
    """Checks requests against a Plan and evaluates the Plan's expressions, which must lie within `bounds` if there are any."""

    def __init__(self, plan: Plan, bounds: Bounds | None = None) -> None:
        self.plan = plan
        self._bounds = bounds
        self.dims = tuple(plan.ranges)
        self._inputs = tuple((spec.name, np.dtype(spec.dtype), len(spec.shape)) for spec in plan.inputs)
        self._names = frozenset(spec.name for spec in plan.inputs)
        places = places_of(plan)
        self._binders = binding_places(plan)
        self._others = [p for p in places if p not in self._binders]
        unbound = sorted(plan.ranges.keys() - frozenset().union(*(p.size.dims() for p in places)))
        if unbound:
            raise ShapeError(f"no input's shape tells the size of {', '.join(unbound)}; give an input an axis of that size")
        self._expected = Tape(self.dims, [p.size for p in self._others])
        self._guards = Tape(self.dims, [side for g in plan.guards for side in (g.left, g.right)])
        self._widths = tuple(np.dtype(spec.dtype).itemsize for spec in plan.outputs)
        launches, storages = plan.launches, plan.storages
        self._arguments = [a for launch in launches for a in launch.args]
        self._counts = [len(launch.sizes) for launch in launches]
        groups = [
            [size for launch in launches for size in launch.sizes],
            [launch.blocks for launch in launches],
            [launch.scratch for launch in launches],
            [s.offset for s in storages],
            [s.bytes for s in storages],
            [size for spec in plan.inputs for size in spec.shape],
            [size for spec in plan.outputs for size in spec.shape],
            [c.bytes for c in plan.copies],
            [plan.arena_bytes],
        ]
        self._lengths = [len(group) for group in groups]
        self._tape = Tape(self.dims, [expr for group in groups for expr in group])

    # -- the request ---------------------------------------------------------------------------------------------------

    def arrays(self, feeds: Mapping[str, Any]) -> list[Array]:
        """The feeds in the plan's order, where they lie. Raises InputError for a missing, unknown or ill-typed one."""
        if not isinstance(feeds, Mapping):
            raise InputError(f"feeds are a dict from input names to arrays, not a {type(feeds).__name__}; "
                             f"give {{'{next(iter(self._names), 'x')}': array}}")
        if feeds.keys() != self._names:
            self._wrong_names(feeds)
        result = []
        for name, dtype, rank in self._inputs:
            array = as_array(feeds[name], f"input '{name}'")
            if array.dtype != dtype:
                raise InputError(f"input '{name}' has dtype {array.dtype}, expected {dtype}; cast it with .astype('{dtype}')")
            if array.ndim != rank:
                spec = next(s for s in self.plan.inputs if s.name == name)
                raise ShapeError(f"input '{name}' has rank {array.ndim} (shape {array.shape}), expected rank {rank}: "
                                 f"{format_shape(spec.shape)}")
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
        first: dict[str, Place] = {}
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
            if not isinstance(dims[name], int | np.integer):
                raise ShapeError(f"dim '{name}' is {dims[name]!r}, expected a whole number")
            self._check_range(name, int(dims[name]), f"dim '{name}' is {dims[name]}")
        values = [int(dims[name]) for name in self.dims]
        self._check_guards(values)
        return values

    def _check_range(self, name: str, value: int, what: str) -> None:
        known = self.plan.ranges[name]
        if value < known.lo or (known.hi is not None and value > known.hi) or value % known.divisor:
            for guard in self.plan.guards:  # a range may be as narrow as a node needs it
                if guard.left.dims() | guard.right.dims() == {name} and _breaks(guard, name, value):
                    raise ShapeError(f"the model needs {guard} ({guard.reason}), but {what}; use other sizes")
            raise ShapeError(f"{what}, outside {known}, the range of dim '{name}'; use a size in range or compile a wider one")

    def _check_guards(self, values: Sequence[int]) -> None:
        sides = self._evaluate(self._guards, values)
        for guard, left, right in zip(self.plan.guards, sides[::2], sides[1::2]):
            if left != right if guard.relation == "==" else left > right:
                raise ShapeError(f"the model needs {guard} ({guard.reason}), but {left} {guard.relation} {right} does not hold "
                                 f"at {self._at(values)}; use other sizes")

    def _describe(self, place: Place, shapes: Shapes) -> str:
        return f"input '{self._inputs[place.input][0]}' has size {shapes[place.input][place.axis]} at axis {place.axis}"

    def _contradiction(self, place: Place, expected: int, first: Mapping[str, Place], shapes: Shapes) -> ShapeError:
        what = self._describe(place, shapes)
        causes = [self._describe(first[name], shapes) for name in sorted(place.size.dims())]
        if not causes:
            return ShapeError(f"{what}, expected {expected}")
        return ShapeError(f"{what}, expected {place.size} = {expected}, because {' and '.join(causes)}; make them agree, or "
                          f"compile with dims={{'{self._inputs[place.input][0]}': (…)}}, which names its axes apart, or has "
                          "a 1 where one always is 1")

    def _evaluate(self, tape: Tape, values: Sequence[int]) -> list[int]:
        try:
            return tape.evaluate(values)
        except ZeroDivisionError as error:
            raise ShapeError(f"a size of the model is divided by zero at {self._at(values)}; use other sizes") from error

    # -- the plan at these sizes ---------------------------------------------------------------------------------------

    def bind(self, values: Sequence[int]) -> Binding:
        """Every number of the plan at the sizes `values` of `dims`. Raises LaunchError when that is beyond any memory, and
        PackageError where it is outside the bounds."""
        numbers = iter(self._evaluate(self._tape, values))
        groups = [[next(numbers) for _ in range(length)] for length in self._lengths]
        sizes, blocks, scratch, offsets, storages, given, extents, copies, (arena,) = groups
        if max(arena, *sizes, *scratch, *blocks, *extents, 0) > MAX_NUMBER:
            raise self.short(f"{arena} bytes are needed", dict(zip(self.dims, values)))
        outputs = tuple(map(tuple, grouped(extents, (len(spec.shape) for spec in self.plan.outputs))))
        if self._bounds is not None:
            inputs = grouped(given, (len(spec.shape) for spec in self.plan.inputs))
            self._bounds.check(Numbers(
                self._at(values), grouped(sizes, self._counts), blocks, scratch, offsets,
                self._storage_bytes(storages, inputs, outputs), copies, arena))
        flat = np.array(sizes, np.int64)
        starts = np.cumsum([0, *self._counts[:-1]], dtype=np.int64) if self._counts else np.empty(0, np.int64)
        table = np.empty((len(blocks), 2), np.int64)
        table[:, 0] = starts * 8 + flat.__array_interface__["data"][0]
        table[:, 1] = blocks
        return Binding(
            dims=dict(zip(self.dims, values)), sizes=flat, table=table,
            offsets=np.array(offsets, np.int64)[self._arguments] if self._arguments else np.empty(0, np.int64),
            outputs=outputs, copies=tuple(copies), arena_bytes=arena, scratch_bytes=round_up(max(scratch, default=0)))

    def short(self, what: str, dims: Mapping[str, int]) -> LaunchError:
        """That memory is short of `what` at these sizes, and which node makes most."""
        def size(number: int) -> int:
            storage = self.plan.storages[number]
            if storage.kind != "output":
                return storage.bytes.evaluate(dims)
            return math.prod(d.evaluate(dims) for d in self.plan.outputs[storage.index].shape) * self._widths[storage.index]

        makers: dict[int, str] = {}
        for launch in self.plan.launches:
            for number in launch.args:  # whoever has it first writes it
                if self.plan.storages[number].kind in ("arena", "output"):
                    makers.setdefault(number, launch.node)
        at = f" at {self._at(list(dims.values()))}" if dims else ""
        most = max(makers, key=size, default=None)
        by = "" if most is None else f" (node '{makers[most]}' makes most, {size(most)} bytes)"
        return LaunchError(f"not enough memory: {what}{at}{by}; use a smaller shape")

    def _at(self, values: Sequence[int]) -> str:
        return ", ".join(f"{name}={value}" for name, value in zip(self.dims, values))

    def _storage_bytes(self, arena: Sequence[int], inputs: Sequence[Sequence[int]],
                       outputs: Sequence[Sequence[int]]) -> list[int]:
        """The bytes of each storage, from its own expression or from the shape of what it is."""
        result = []
        for storage, size in zip(self.plan.storages, arena):
            match storage.kind:
                case "input":
                    size = math.prod(inputs[storage.index]) * self._inputs[storage.index][1].itemsize
                case "output":
                    size = math.prod(outputs[storage.index]) * self._widths[storage.index]
                case "constant" if self._bounds is not None:
                    size = self._bounds.constants[storage.index]
            result.append(size)
        return result


def format_shape(shape: Sequence[SymExpr]) -> str:
    """`[batch, 4]`."""
    return f"[{', '.join(map(str, shape))}]"


def format_spec(spec: TensorSpec) -> str:
    """`ids: int64[batch, seq]`."""
    return f"{spec.name}: {spec.dtype}{format_shape(spec.shape)}"


def _breaks(guard: Guard, name: str, value: int) -> bool:
    try:
        return not guard.holds({name: value})
    except ZeroDivisionError:
        return True


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

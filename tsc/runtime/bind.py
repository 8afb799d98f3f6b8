"""From a request to numbers: which input is wrong and why, what each Dim is, and every size of the plan at that shape."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc.errors import InputError, LaunchError, PackageError, ShapeError
from tsc.runtime.arrays import AnyArray, DeviceArray
from tsc.runtime.bounds import Bounds, Layout, Numbers
from tsc.runtime.memory import as_array, round_up
from tsc.runtime.places import axes_of
from tsc.runtime.plan import HOST, Axis, Bind, Plan, TensorSpec, static_names
from tsc.runtime.schema import LEAST_NUMBER, MAX_NUMBER
from tsc.runtime.segments import Code, Rows, Segment, code_of, rows_of, segments_of
from tsc.runtime.select import Selection
from tsc.runtime.tape import Tape
from tsc.sym import Guard, SymExpr

#: Of each input the sizes of its axes, then the elements that sizes depend on.
Shapes = tuple[tuple[int, ...], ...]
Place = tuple[Axis, SymExpr]


@dataclass(frozen=True, slots=True)
class Bound:
    """A Segment at its sizes, with the `rows` that run; `sizes` holds all kernels' integer parameters one after the other,
    `blocks` the blocks of the rows, `offsets` a byte offset an argument (0 unless in an arena), `copies` the source, target and
    bytes of each copy, the storages with their offsets. `scratch_bytes` is the most scratch that a worker needs,
    `together_bytes` what all blocks of one row do."""

    rows: Rows
    sizes: NDArray[np.int64]
    blocks: NDArray[np.int64]
    offsets: NDArray[np.int64]
    copies: tuple[tuple[int, int, int, int, int], ...]
    scratch_bytes: int
    together_bytes: int


@dataclass(frozen=True, slots=True)
class Binding:
    """The plan at one shape: the sizes of its `dims`, and of all static `names`; the shapes of the outputs, None where they are
    not known before they are made; the memory plan. `whole` is the only Segment of a straight plan, whose scratch is known;
    others are in `parts`, by what their numbers depend on, from when they were first met."""

    dims: dict[str, int]
    names: dict[str, int]
    outputs: tuple[tuple[int, ...] | None, ...]
    layout: Layout
    arena_bytes: int
    scratch_bytes: int
    whole: Bound | None
    parts: dict[tuple[object, ...], Bound] = field(default_factory=dict)


class _Sizes:
    """What of a Segment depends on sizes."""

    def __init__(self, segment: Segment, units: int) -> None:
        launches, copies = segment.launches, segment.copies
        self.counts = [len(launch.sizes) for launch in launches]
        self.calls = [len(launch.calls) for launch in launches]
        calls = [call for launch in launches for call in launch.calls]
        self.selection = Selection(launches, units)
        groups = [[size for launch in launches for size in launch.sizes], [call.blocks for call in calls],
                  [call.scratch for call in calls], [copy.bytes for copy in copies], self.selection.counts]
        self.lengths = [len(group) for group in groups]
        self.tape = Tape(segment.names, [expr for group in groups for expr in group])


class Binder:
    """Checks requests against a Plan and evaluates the Plan's expressions, which must lie within `bounds` if there are any.
    `code` is what is left to do when a request is checked and its sizes are known; `units` is how many cores or multiprocessors
    the device has for a run."""

    def __init__(self, plan: Plan, bounds: Bounds | None = None, units: int = 1) -> None:
        self.plan = plan
        self._bounds = bounds
        self.code: Code = code_of(plan)
        self.segments = tuple(segments_of(self.code))
        self.straight = len(self.code) == len(self.segments) <= 1
        self.dims = tuple(plan.ranges)
        self.evals = {name: value for name, value in static_names(plan).items() if value is not None}
        self._inputs = tuple((spec.name, spec.numpy, len(spec.shape)) for spec in plan.inputs)
        self._names = frozenset(spec.name for spec in plan.inputs)
        told = tuple((len(spec.contents), spec.steps) if spec.contents else None for spec in plan.inputs)
        self._told = told if any(told) else ()  # most models have none, and a run asks each time
        binds = [step for step in plan.body if isinstance(step, Bind) and isinstance(step.source, Axis)]
        sizes = dict(axes_of(plan.inputs))
        #: By which axis each Dim is told, with that axis's size; the other axes, with theirs.
        self.binders = [(step.name, (step.source, sizes[step.source])) for step in binds if isinstance(step.source, Axis)]
        self.others = [p for p in sizes.items() if p[0] not in {step.source for step in binds}]
        static = self.static_names = (*self.dims, *self.evals)
        self._expected = Tape(static, [size for _, size in self.others])
        self.guards = [g for g in plan.guards if g.left.dims() | g.right.dims() <= set(static)]
        self._sides = Tape(static, [side for g in self.guards for side in (g.left, g.right)])
        self.dtypes = tuple(spec.numpy for spec in plan.outputs)
        #: Whether an output's shape is known before anything runs.
        self.known = tuple(all(size.dims() <= set(static) for size in spec.shape) for spec in plan.outputs)
        storages = plan.storages
        groups = [
            [s.offset for s in storages],
            [s.bytes for s in storages],
            [size for spec in plan.inputs for size in spec.shape],
            [size for spec, known in zip(plan.outputs, self.known) if known for size in spec.shape],
            list(plan.arenas.values()),
        ]
        self._lengths = [len(group) for group in groups]
        self._tape = Tape(static, [expr for group in groups for expr in group])
        self._sizes = [_Sizes(segment, units) for segment in self.segments]

    # -- the request ---------------------------------------------------------------------------------------------------

    def arrays(self, feeds: Mapping[str, Any], take: Callable[[Any, str], AnyArray] = as_array) -> list[AnyArray]:
        """The feeds in the plan's order, where they lie, as `take` says of each and what it is called. Raises InputError for a
        missing, unknown or ill-typed one."""
        if not isinstance(feeds, Mapping):
            raise InputError(f"feeds are a dict from input names to arrays, not a {type(feeds).__name__}; "
                             f"give {{'{next(iter(self._names), 'x')}': array}}")
        if feeds.keys() != self._names:
            self._wrong_names(feeds)
        result = []
        for name, dtype, rank in self._inputs:
            array = take(feeds[name], f"input '{name}'")
            if array.dtype != dtype and array.dtype != self._spec(name).dtype:  # a device has bfloat16 where NumPy has none
                raise InputError(f"input '{name}' has dtype {array.dtype}, expected {dtype}; cast it with .astype('{dtype}')")
            if array.ndim != rank:
                raise ShapeError(f"input '{name}' has rank {array.ndim} (shape {array.shape}), expected rank {rank}: "
                                 f"{format_shape(self._spec(name).shape)}")
            result.append(array)
        return result

    def _spec(self, name: str) -> TensorSpec:
        return next(spec for spec in self.plan.inputs if spec.name == name)

    def shapes(self, arrays: Sequence[AnyArray]) -> Shapes:
        """The sizes of each array's axes and, behind them, its elements where sizes depend on them. Raises ShapeError for
        another number of these, and InputError for one that is no whole number."""
        if not self._told:
            return tuple([a.shape for a in arrays])
        return tuple([(*a.shape, *self._whole(name, a, *told)) if told else a.shape
                      for (name, _, _), a, told in zip(self._inputs, arrays, self._told)])

    def _whole(self, name: str, given: AnyArray, count: int, steps: int) -> list[int]:
        if math.prod(given.shape) != count:
            raise ShapeError(f"input '{name}' has shape {given.shape}, expected {format_shape(self._spec(name).shape)}")
        array = given.numpy() if isinstance(given, DeviceArray) else given
        if array.dtype.kind == "f":
            array = array if steps == 1 else array.astype(np.float64) * steps
            for value in array[array != np.trunc(array)].ravel().tolist():  # or NaN
                expected = "whole numbers" if steps == 1 else f"multiples of 1 / {steps}"
                raise InputError(f"input '{name}' holds {value / steps}, expected {expected}, on which sizes depend")
            if not np.isfinite(array).all():
                raise InputError(f"input '{name}' holds an infinity, expected numbers on which sizes depend")
        return [int(value) for value in array.ravel().tolist()]

    def _wrong_names(self, feeds: Mapping[str, Any]) -> None:
        known = ", ".join(f"'{name}'" for name, _, _ in self._inputs) or "none"
        unknown = next((f"there is no input '{name}'" for name in feeds if name not in self._names), "")
        missing = next((f"input '{name}' is missing" for name, _, _ in self._inputs if name not in feeds), "")
        raise InputError(f"{' and '.join(filter(None, (missing, unknown)))}; this model's inputs are {known}")

    # -- the sizes -----------------------------------------------------------------------------------------------------

    def sizes(self, shapes: Shapes) -> list[int]:
        """The size of every Dim, in the order of `dims`. Raises ShapeError naming the input that does not fit."""
        bound: dict[str, int] = {}
        first: dict[str, Place] = {}
        for name, place in self.binders:
            value = _solve(name, place[1], _size_at(place, shapes), bound, self._describe(place, shapes))
            if place[1].as_dim() is None and value < min(0, self.plan.ranges[name].lo):
                raise ShapeError(f"{self._describe(place, shapes)}, expected {place[1]} for some {name}; use such a size")
            bound[name], first[name] = value, place
            self._check_range(name, value, self._describe(place, shapes))
        values = [bound[name] for name in self.dims]
        for place, expected in zip(self.others, self._evaluate(self._expected, self.static(values), self._at(values))):
            if _size_at(place, shapes) != expected:
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
            for guard in self.guards:  # a range may be as narrow as a node needs it
                if guard.left.dims() | guard.right.dims() == {name} and _breaks(guard, name, value):
                    raise ShapeError(f"the model needs {guard} ({guard.reason}), but {what}; use other sizes")
            raise ShapeError(f"{what}, outside {known}, the range of dim '{name}'; use a size in range or compile a wider one")

    def _check_guards(self, values: Sequence[int]) -> None:
        sides = self._evaluate(self._sides, self.static(values))
        for guard, left, right in zip(self.guards, sides[::2], sides[1::2]):
            if left != right if guard.relation == "==" else left > right:
                raise broken(guard, left, right, self._at(values))

    def static(self, values: Sequence[int]) -> Sequence[int]:
        """The values of all `static_names` at these sizes of the dims."""
        if not self.evals:
            return values
        names = dict(zip(self.dims, values))
        for name, value in self.evals.items():
            names[name] = evaluated(value, names, f"'{name}'")
        return list(names.values())

    def _describe(self, place: Place, shapes: Shapes) -> str:
        name, _, rank = self._inputs[place[0].input]
        if place[0].axis < rank:
            return f"input '{name}' has size {_size_at(place, shapes)} at axis {place[0].axis}"
        held, steps = _size_at(place, shapes), self._spec(name).steps
        at = f" at place {place[0].axis - rank}" if rank else ""
        return f"input '{name}' holds {held if steps == 1 else held / steps}{at}"

    def _contradiction(self, place: Place, expected: int, first: Mapping[str, Place], shapes: Shapes) -> ShapeError:
        what = self._describe(place, shapes)
        causes = [self._describe(first[name], shapes) for name in sorted(place[1].dims() & first.keys())]
        if not causes:
            return ShapeError(f"{what}, expected {expected}")
        return ShapeError(f"{what}, expected {place[1]} = {expected}, because {' and '.join(causes)}; make them agree, or "
                          f"compile with dims={{'{self._inputs[place[0].input][0]}': (…)}}, which names its axes apart, or has "
                          "a 1 where one always is 1")

    def _evaluate(self, tape: Tape, values: Sequence[int], at: str | None = None) -> list[int]:
        try:
            return tape.evaluate(values)
        except ZeroDivisionError as error:
            raise divided(self._at(values) if at is None else at) from error

    # -- the plan at these sizes ---------------------------------------------------------------------------------------

    def bind(self, values: Sequence[int]) -> Binding:
        """Every number of the plan at the sizes `values` of `dims`, as far as they alone tell it. Raises LaunchError when that
        is beyond any memory, and PackageError where it is outside the bounds."""
        static, at = self.static(values), self._at(values)
        numbers = iter(self._evaluate(self._tape, static))
        offsets, storages, given, extents, arenas = (list(islice(numbers, length)) for length in self._lengths)
        dims = dict(zip(self.dims, values))
        if max(*arenas, *extents, 0, 0) > MAX_NUMBER:
            longest = max(extents, default=0)
            raise self.short(f"an output would have {longest} elements along an axis" if longest > MAX_NUMBER
                             else f"{sum(arenas)} bytes are needed", dims)
        known = iter(grouped(extents, (len(s.shape) for s, known in zip(self.plan.outputs, self.known) if known)))
        outputs = tuple(self._shape(i, next(known)) if is_known else None for i, is_known in enumerate(self.known))
        inputs = grouped(given, (len(spec.shape) for spec in self.plan.inputs))
        layout = Layout(at, offsets, self._storage_bytes(storages, inputs, outputs), dict(zip(self.plan.arenas, arenas)))
        if self._bounds is not None:
            self._bounds.check_layout(layout)
        names = dict(zip(self.static_names, static))
        whole = None
        if self.straight:
            whole = self._bound(self.segments[0], layout, names, at, dims) if self.segments else _NOTHING
        scratch = 0 if whole is None else whole.scratch_bytes
        return Binding(dims, names, outputs, layout, layout.arenas.get(HOST, 0), scratch, whole)

    def part(self, segment: Segment, binding: Binding, names: Mapping[str, int], places: Sequence[int]) -> Bound:
        """A Segment of a plan that is not straight, at the sizes `names`, where storage i lies where number `places[i]` is
        planned. Raises as `bind` does."""
        at = ", ".join(f"{name}={names[name]}" for name in (*self.dims, *(n for n in segment.names if n not in binding.dims)))
        layout, moved = binding.layout, {}
        for index, storage in enumerate(self.plan.storages):
            if storage.kind == "output" and storage.index in segment.outputs and not self.known[storage.index]:
                moved[index] = math.prod(self.shape(storage.index, names)) * self.dtypes[storage.index].itemsize
        sizes = [moved.get(index, size) for index, size in enumerate(layout.bytes)] if moved else layout.bytes
        offsets = [layout.offsets[place] for place in places]
        return self._bound(segment, Layout(at, offsets, sizes, layout.arenas), names, at, binding.dims)

    def shape(self, output: int, names: Mapping[str, int]) -> tuple[int, ...]:
        """The shape of an output when all its names are bound."""
        spec = self.plan.outputs[output]
        return self._shape(output, [evaluated(size, names, f"the shape of output '{spec.name}'") for size in spec.shape])

    def _shape(self, output: int, extents: Sequence[int]) -> tuple[int, ...]:
        if extents and min(extents) < 0:
            raise ShapeError(f"output '{self.plan.outputs[output].name}' would have the shape {list(extents)}; use other sizes")
        return tuple(extents)

    def outside(self, problem: str, at: str) -> PackageError:
        """That the plan has a problem at these sizes."""
        return PackageError(problem) if self._bounds is None else self._bounds.wrong(problem, at)

    def _bound(self, segment: Segment, layout: Layout, names: Mapping[str, int], at: str, dims: Mapping[str, int]) -> Bound:
        known = self._sizes[segment.number]
        numbers = iter(self._evaluate(known.tape, [names[name] for name in segment.names], at))
        sizes, blocks, scratch, copies, work = (list(islice(numbers, length)) for length in known.lengths)
        if max(*sizes, *scratch, *blocks, 0, 0) > MAX_NUMBER or min(sizes, default=0) < LEAST_NUMBER:
            raise self.short("a kernel needs a size beyond any memory", dims)
        if self._bounds is not None:
            writes = self._bounds.check(segment, Numbers(at, grouped(sizes, known.counts), grouped(blocks, known.calls),
                                                         grouped(scratch, known.calls), copies, layout.bytes))
            # where nothing is written because a dim is 0, another may be as large as no memory is
            runs = [own for own, count in zip(writes, known.calls) for _ in range(count)]
            blocks, scratch = ([n if own else 0 for n, own in zip(numbers, runs)] for numbers in (blocks, scratch))
        rows, flat = known.selection.rows(blocks, work), np.array(sizes, np.int64)
        offsets, of_rows, each = layout.offsets, np.array(blocks, np.int64)[rows.calls], np.array(scratch, np.int64)[rows.calls]
        return Bound(
            rows, flat, of_rows, np.array([offsets[s] for s in rows.storages], np.int64),
            tuple((c.source, offsets[c.source], c.target, offsets[c.target], size) for c, size in zip(segment.copies, copies)),
            round_up(int(each.max(initial=0))), max((n * size for n, size in zip(of_rows.tolist(), each.tolist())), default=0))

    def short(self, what: str, dims: Mapping[str, int]) -> LaunchError:
        """That memory is short of `what` at these sizes, and which node makes most."""
        def size(number: int) -> int:
            storage = self.plan.storages[number]
            if storage.kind != "output":
                return storage.bytes.evaluate(names)
            if not self.known[storage.index]:
                return 0
            shape = self.plan.outputs[storage.index].shape
            return math.prod(d.evaluate(names) for d in shape) * self.dtypes[storage.index].itemsize

        names = dict(zip(self.static_names, self.static(list(dims.values()))))
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
                       outputs: Sequence[Sequence[int] | None]) -> list[int]:
        """The bytes of each storage, from its own expression or from the shape of what it is."""
        result = []
        for storage, size in zip(self.plan.storages, arena):
            match storage.kind:
                case "input":
                    size = math.prod(inputs[storage.index]) * self._inputs[storage.index][1].itemsize
                case "output":
                    shape = outputs[storage.index]
                    size = 0 if shape is None else math.prod(shape) * self.dtypes[storage.index].itemsize
                case "constant" if self._bounds is not None:
                    size = self._bounds.constants[storage.index]
            result.append(size)
        return result


_NOTHING = Bound(rows_of((), ()), np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64), (), 0, 0)


def grouped(values: Iterable[int], counts: Iterable[int]) -> list[list[int]]:
    """`values` cut into runs of the given lengths."""
    rest = iter(values)
    return [list(islice(rest, count)) for count in counts]


def evaluated(expr: SymExpr, names: Mapping[str, int], what: str) -> int:
    """The value of one expression. Raises ShapeError where it is none, or beyond any size."""
    try:
        value = expr.evaluate(names)
    except ZeroDivisionError as error:
        raise divided(", ".join(f"{name}={names[name]}" for name in sorted(expr.dims()))) from error
    if not LEAST_NUMBER <= value <= -LEAST_NUMBER:
        raise ShapeError(f"{what} is {expr}, a number of {value.bit_length()} bits, beyond any size; use other sizes")
    return value


def divided(at: str) -> ShapeError:
    """That no expression of the model has a value at these sizes."""
    return ShapeError(f"a size of the model is divided by zero at {at}; use other sizes")


def broken(guard: Guard, left: int, right: int, at: str) -> ShapeError:
    """That a Guard does not hold."""
    return ShapeError(f"the model needs {guard} ({guard.reason}), but {left} {guard.relation} {right} does not hold at {at}; "
                      "use other sizes")


def format_shape(shape: Sequence[SymExpr]) -> str:
    """`[batch, 4]`."""
    return f"[{', '.join(map(str, shape))}]"


def format_spec(spec: TensorSpec) -> str:
    """`ids: int64[batch, seq]`, or `shape: int64[2] = [shape_0, shape_1]` where sizes depend on what it holds, or
    `scales: float32[2] = [scales_0, scales_1] / 1024` where that need not be whole."""
    told = f" = {format_shape(spec.contents)}{f' / {spec.steps}' if spec.steps > 1 else ''}" if spec.contents else ""
    return f"{spec.name}: {spec.dtype}{format_shape(spec.shape)}{told}"


def _breaks(guard: Guard, name: str, value: int) -> bool:
    try:
        return not guard.holds({name: value})
    except ZeroDivisionError:
        return True


def _size_at(place: Place, shapes: Shapes) -> int:
    return shapes[place[0].input][place[0].axis]


def _solve(name: str, size: SymExpr, value: int, bound: Mapping[str, int], what: str) -> int:
    """The size of the Dim that makes `size` equal `value`."""
    if size.as_dim() is not None:
        return value
    rest = evaluated(size, {**bound, name: 0}, what)
    slope = evaluated(size, {**bound, name: 1}, what) - rest
    solved, remainder = divmod(value - rest, slope)
    if remainder:
        raise ShapeError(f"{what}, expected {size} for some {name}; use such a size")
    return solved

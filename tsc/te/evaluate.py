"""The meaning of a te.Program, run in NumPy: the oracle of every kernel and the folder of constants."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc.errors import InputError, InternalError
from tsc.te.compute import Axis, Compute, Program, runs
from tsc.te.expr import Call, Cast, CheckedIndex, Const, Expr, Load, Size, Var
from tsc.te.intrinsics import MEANING, converted

Array = NDArray[Any]

#: Largest grid of a reduction that is evaluated at once, in elements.
_CHUNK = 1 << 20

_UFUNCS: dict[str, np.ufunc] = {
    "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum, "and": np.logical_and, "or": np.logical_or}


def evaluate(program: Program, inputs: Mapping[str, Array], sizes: Mapping[str, int],
             dtype: str | None = None) -> dict[str, Array]:
    """Every target of `program`, by name. `inputs` are plain (not panelled) arrays; `sizes` binds the size parameters.

    `dtype` (say "float64") replaces every floating-point type, for use as a reference of higher precision. Raises
    InputError for a checked index out of range, InternalError for any other access outside a buffer.
    """
    buffers: dict[str, Array] = {}
    for buffer in program.inputs:
        array = np.asarray(inputs[buffer.name])
        expected = tuple(d.evaluate(sizes) for d in buffer.shape)
        if array.shape != expected:
            raise InternalError(f"input {buffer.name} of a program has shape {array.shape}, expected {expected}")
        buffers[buffer.name] = array.astype(_numpy_type(buffer.dtype, dtype), copy=False)
    with np.errstate(all="ignore"):
        for group in runs(program.computes):
            _evaluate(group, buffers, _Scope(buffers, sizes, dtype))
    return {c.name: buffers[c.name] for c in program.computes}


@dataclass(frozen=True, slots=True)
class _Scope:
    """The arrays, the sizes, and the type that stands for all floating-point types (None: each its own)."""

    buffers: Mapping[str, Array]
    sizes: Mapping[str, int]
    real: str | None


def _numpy_type(dtype: str, real: str | None) -> np.dtype[Any]:
    return np.dtype(real if real is not None and dtype.startswith(("float", "bfloat")) else dtype)


def _evaluate(group: tuple[Compute, ...], buffers: dict[str, Array], scope: _Scope) -> None:
    """Add the targets of a Compute to `buffers`, or of a recurrence trip by trip."""
    for compute in group:
        shape = tuple(a.extent.evaluate(scope.sizes) for a in compute.axes)
        buffers[compute.name] = np.zeros(shape, _numpy_type(compute.target.dtype, scope.real))
    if group[0].carried is None:
        _fill(group[0], buffers[group[0].name], None, scope)
        return
    trips = range(min(buffers[c.name].shape[_position(c)] for c in group))
    for trip in reversed(trips) if group[0].carried.reverse else trips:
        for compute in group:
            _fill(compute, buffers[compute.name], trip, scope)


def _position(compute: Compute) -> int:
    """Which of a carried Compute's axes it is carried along."""
    return next(k for k, a in enumerate(compute.axes) if compute.carried is not None and a.name == compute.carried.axis)


def _fill(compute: Compute, result: Array, trip: int | None, scope: _Scope) -> None:
    """Write a Compute's elements, those of one trip or all: reductions slab by slab where their grid is large."""
    spans = [range(n) for n in result.shape]
    if trip is not None:
        spans[_position(compute)] = range(trip, trip + 1)
    inner = [range(a.extent.evaluate(scope.sizes)) for a in compute.reduce_axes]
    for slab in _slabs(spans, max(1, _CHUNK // max(1, math.prod(map(len, inner))))):
        grid = [*slab, *inner]
        value = np.empty(tuple(map(len, grid)), result.dtype)
        if value.size:
            value[...] = _grid_value(compute.body, _grid(compute.axes + compute.reduce_axes, grid), scope)
        if compute.monoid is not None:
            trailing = tuple(range(len(slab), len(grid)))
            identity = compute.monoid.identity(compute.target.dtype)
            value = _UFUNCS[compute.monoid.fn].reduce(value, axis=trailing, dtype=result.dtype, initial=identity)
        result[tuple(slice(s.start, s.stop) for s in slab)] = value


def _slabs(spans: list[range], most: int) -> Iterator[list[range]]:
    """Cut a grid into boxes of at most `most` points (or one), leading axes first."""
    if not spans:
        yield []
        return
    row = math.prod(map(len, spans[1:]))
    step = max(1, most // max(1, row))
    for start in range(spans[0].start, spans[0].stop, step):
        span = range(start, min(start + step, spans[0].stop))
        if row <= most:
            yield [span, *spans[1:]]
        else:
            yield from ([span, *rest] for rest in _slabs(spans[1:], most))


def _grid(axes: tuple[Axis, ...], spans: list[range]) -> dict[str, Array]:
    """Axis name -> its values, shaped to broadcast with those of the other axes."""
    rank = len(axes)
    return {a.name: np.arange(s.start, s.stop, dtype=np.int64).reshape((1,) * k + (-1,) + (1,) * (rank - k - 1))
            for k, (a, s) in enumerate(zip(axes, spans))}


# -- expressions -----------------------------------------------------------------------------------------------

def _grid_value(body: Expr, variables: Mapping[str, Array], scope: _Scope) -> Array:
    return np.asarray(_value(body, variables, scope, np.True_))


def _value(expr: Expr, variables: Mapping[str, Array], scope: _Scope, live: Any) -> Any:
    """The value over the grid. `live` tells which grid points need it: elsewhere a wrong index does no harm."""
    match expr:
        case Var(name=name):
            return variables[name]
        case Const(value=value, dtype=dtype):
            return _numpy_type(dtype, scope.real).type(value)
        case Size(value=value):
            return np.int64(value.evaluate(scope.sizes))
        case Cast(value=inner, dtype=dtype):
            return converted(_value(inner, variables, scope, live), _numpy_type(dtype, scope.real))
        case CheckedIndex():
            return _checked(expr, _value(expr.value, variables, scope, live), scope, live)
        case Load():
            return _loaded(expr, [_value(i, variables, scope, live) for i in expr.index], scope, live)
        case Call(fn="select", args=(condition, yes, no)):
            chosen = _value(condition, variables, scope, live)
            return np.where(chosen, _value(yes, variables, scope, np.logical_and(live, chosen)),
                            _value(no, variables, scope, np.logical_and(live, np.logical_not(chosen))))
        case Call(fn=fn, args=args):
            return _meaning(fn)(*(_value(a, variables, scope, live) for a in args))
    raise InternalError(f"cannot evaluate {expr!r}")


def _meaning(fn: str) -> Callable[..., Any]:
    found = MEANING.get(fn)
    if found is None:
        raise InternalError(f"intrinsic {fn!r} has no meaning")
    return found


def _checked(expr: CheckedIndex, value: Any, scope: _Scope, live: Any) -> Any:
    extent = expr.extent.evaluate(scope.sizes)
    wrong = np.logical_and(live, np.logical_or(value < -extent, value >= extent))
    if np.any(wrong):
        bad = np.broadcast_to(value, np.broadcast_shapes(np.shape(value), wrong.shape))[wrong][0]
        raise InputError(f"index {bad} of '{expr.what}' is out of range, expected at least {-extent} and below {extent}")
    return np.clip(np.where(value < 0, value + extent, value), 0, max(0, extent - 1))


def _loaded(expr: Load, index: list[Any], scope: _Scope, live: Any) -> Any:
    array = scope.buffers.get(expr.buffer.name)
    if array is None:
        raise InternalError(f"buffer {expr.buffer.name} is read before it is computed")
    places = []
    for place, extent in zip(index, array.shape, strict=True):
        outside = np.logical_or(np.less(place, 0), np.greater_equal(place, extent))
        if np.any(np.logical_and(live, outside)):
            raise InternalError(f"buffer {expr.buffer.name} of shape {array.shape} is read outside at {expr.index}")
        places.append(np.clip(place, 0, max(0, extent - 1)))
    if array.size == 0:
        return array.dtype.type(0)
    return array[tuple(places)]

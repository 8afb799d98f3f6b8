"""Tensors of the tensor DSL: dims, placeholders, constants, and computes given by functions of their indices.

    M, N, K = te.dim("M"), te.dim("N"), te.dim("K")
    a, b = te.placeholder((M, K), "float32", "a"), te.placeholder((K, N), "float32", "b")
    k = te.reduce_axis(K, "k")
    c = te.compute((M, N), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "c")

Everything here is a value; nothing is registered anywhere. `te/dsl/assemble.py` turns tensors into a Program.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from tsc.errors import ShapeError
from tsc.sym import Range, SymExpr
from tsc.sym import dim as sym_dim
from tsc.te.compute import Axis, Compute, Monoid
from tsc.te.dsl.scalar import (
    DTYPES,
    NOTHING,
    IndexVar,
    Scalar,
    Uses,
    here,
    joined,
    joined_dims,
    kind_of,
    literal,
    place_of,
    refuse,
    shown,
)
from tsc.te.expr import INDEX, Buffer, Cast, CheckedIndex, Load, Size, Var, as_size, index, loads

Shape = Sequence[int | Scalar | SymExpr]


# -- sizes -----------------------------------------------------------------------------------------------------

def dim(name: str, low: int = 1, high: int | None = None, divisor: int = 1) -> Scalar:
    """A symbolic size, `low <= name <= high` (None: unbounded) and divisible by `divisor`; it may be computed with.

    Raises ModelError for a name that is no identifier, and where no size is left.

    Examples:
        >>> print(dim("M") * 2 + 1)
        2*M + 1
    """
    if not name.isidentifier() or name in ("max", "min"):
        refuse(f"a dim cannot be called {name!r}; give it an identifier")
    if low < 0 or divisor < 1 or (high is not None and high < max(low, divisor)):
        refuse(f"dim '{name}' has no size between {low} and {high} that {divisor} divides")
    return Scalar(Size(sym_dim(name)), Uses(dims={name: Range(low, high, divisor)}))


def size(value: SymExpr, dims: Mapping[str, Range] | None = None) -> Scalar:
    """A size as a Scalar."""
    known = {name: r for name, r in (dims or {}).items() if name in value.dims()}
    return Scalar(index(value), Uses(dims=known) if known else NOTHING)


def sizes_of(shape: Any, what: str) -> tuple[tuple[SymExpr, ...], Mapping[str, Range]]:
    """The extents of a shape, and the dims in them. Raises ShapeError for what is no size."""
    entries = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    extents: list[SymExpr] = []
    for entry in entries:
        found = as_size(entry.expr) if isinstance(entry, Scalar) else None
        if isinstance(entry, int | np.integer | SymExpr) and not isinstance(entry, bool):
            found = SymExpr.of(entry if isinstance(entry, SymExpr) else int(entry))
        known = None if found is None else found.as_int()
        if found is None or (known is not None and known < 0):
            raise ShapeError(f"{here()}: the shape of {what} has {entry}, expected an int, a te.dim, or arithmetic of dims")
        extents.append(found)
    return tuple(extents), joined_dims(e.uses.dims for e in entries if isinstance(e, Scalar))


def reduce_axis(extent: int | Scalar | SymExpr, name: str = "k") -> Scalar:
    """An index that runs over `0 .. extent-1` and is reduced over by te.sum and its like."""
    (found,), dims = sizes_of((extent,), f"reduce axis '{name}'")
    return _index(IndexVar(name, found, dims, True, here()))


def _index(variable: IndexVar) -> Scalar:
    return Scalar(Var(variable.name), Uses(axes={variable.name: variable}, dims=variable.dims))


# -- tensors ---------------------------------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class Trips:
    """That a state has one value a trip: along its axis number `axis`, upwards or in `reverse`."""

    axis: int
    reverse: bool


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A named tensor: a placeholder, a constant (`data`), or what a Compute defines (`definition` with what it `uses`); a state
    and what a te.scan makes of it know their `trips`.

    `tensor[i, j]` is an element, a Scalar. An index may be anything of an integer type: affine in the axes it is exact;
    an element of another tensor, or a product of axes, is allowed, checked when the kernel runs, and keeps the scheduler from
    knowing more than that any element may be read. Negative indices that are data count from the end.
    """

    name: str
    dtype: str
    extents: tuple[SymExpr, ...]
    dims: Mapping[str, Range]
    place: str
    definition: Compute | None = None
    uses: Uses = NOTHING
    data: NDArray[Any] | None = None
    trips: Trips | None = None
    serial: int = field(default_factory=itertools.count().__next__)  # the order in which tensors were made

    __iter__ = None  # a tensor is indexed by expressions; iterating would never end

    @property
    def shape(self) -> tuple[int | Scalar, ...]:
        """Each dim, an int where it is constant."""
        known = [e.as_int() for e in self.extents]
        return tuple(size(e, self.dims) if k is None else k for e, k in zip(self.extents, known))

    @property
    def buffer(self) -> Buffer:
        """The tensor as expressions name it."""
        return Buffer(self.name, self.dtype, self.extents)

    def __getitem__(self, at: Any) -> Scalar:
        given = at if isinstance(at, tuple) else (at,)
        if len(given) != len(self.extents):
            raise ShapeError(f"{here()}: '{self.name}' has rank {len(self.extents)} (shape {self._shape_text()}), "
                             f"but is indexed by {len(given)} indices")
        places = [self._position(k, value) for k, value in enumerate(given)]
        load = Load(self.buffer, tuple(p.expr for p in places))
        own = Uses(tensors={self.name: self}, dims=self.dims, places={load: here()})
        return Scalar(load, joined([own, *(p.uses for p in places)]))

    def _position(self, d: int, value: Any) -> Scalar:
        found = literal(value, INDEX, f"index of {self.name}") if not isinstance(value, Scalar) else value
        if kind_of(found) not in "iu":
            refuse(f"index {d} of '{self.name}' is '{shown(found.expr)}' of {found.dtype}, expected an integer")
        expr = found.expr if found.dtype == INDEX else Cast(found.expr, INDEX)
        if any(loads(expr)):  # data may say anything, so it is checked when the kernel runs
            expr = CheckedIndex(expr, self.extents[d], self.name)
        return Scalar(expr, found.uses)

    def _whole(self, *_: Any) -> NoReturn:
        index = ", ".join("ijklmnpq"[:len(self.extents)]) if 0 < len(self.extents) <= 8 else "..." if self.extents else "()"
        refuse(f"'{self.name}' is a tensor, and arithmetic is of its elements: write {self.name}[{index}] in the function of a "
               "te.compute")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __neg__ = __pow__ = _whole
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __matmul__ = __rmatmul__ = __lt__ = __le__ = __gt__ = __ge__ = _whole

    def _shape_text(self) -> str:
        return f"[{', '.join(map(str, self.extents))}]"

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}{self._shape_text()}"


def placeholder(shape: Shape, dtype: str = "float32", name: str = "x") -> Tensor:
    """A tensor that is given when the kernel runs, under its `name`.

    `shape` has numbers, dims, or arithmetic of dims; `dtype` is NumPy's name of an element type. Raises ShapeError or
    ModelError with the line of the user's code.

    Examples:
        >>> print(placeholder((dim("M"), 4), "float32", "x"))
        x: float32[M, 4]
    """
    extents, dims = sizes_of(shape, f"'{name}'")
    return Tensor(_checked_name(name), _checked_dtype(dtype, name), extents, dims, here())


def constant(data: Any, name: str) -> Tensor:
    """A tensor whose elements are known now: weights, say. It is compiled in, and laid out for the kernels that read it."""
    array = np.ascontiguousarray(data)
    extents = tuple(map(SymExpr.of, array.shape))
    return Tensor(_checked_name(name), _checked_dtype(array.dtype.name, name), extents, {}, here(), data=array)


def state(shape: Shape, dtype: str = "float32", name: str = "h", axis: int = 0, reverse: bool = False) -> Tensor:
    """What is carried from trip to trip along `axis`, upwards or in `reverse`: te.scan says what each trip makes of it.

    Its elements may be read before that, those of earlier trips alone; behind it, those of what te.scan gives.
    """
    extents, dims = sizes_of(shape, f"'{name}'")
    if not -len(extents) <= axis < len(extents):
        raise ShapeError(f"{here()}: the state '{name}' of rank {len(extents)} cannot be carried along axis {axis}")
    trips = Trips(axis % len(extents), reverse)
    return Tensor(_checked_name(name), _checked_dtype(dtype, name), extents, dims, here(), trips=trips)


def scan(carried: Tensor, function: Callable[..., Any]) -> Tensor:
    """The state `carried` at each trip: `function` of its indices gives an element, made of other tensors and of elements of
    states that earlier trips made. Tensors that stand between (a te.sum over what was, say) are part of the trip.

    Raises ShapeError or ModelError with the line of the user's code.

    Examples:
        >>> n = dim("n")
        >>> x, total = placeholder((n,), "float32", "x"), state((n,), "float32", "total")
        >>> from tsc import te
        >>> print(scan(total, lambda t: x[t] + te.where(t >= 1, total[t - 1], 0.0)).definition)
        total[t<n] = add(x[t], select(ge(t, 1), total[sub(t, 1)], 0.0:float32))
    """
    if not isinstance(carried, Tensor) or carried.trips is None or carried.definition is not None:
        refuse(f"te.scan takes a te.state, not {carried if isinstance(carried, Tensor) else type(carried).__name__}")
    made = _computed(carried.extents, carried.dims, function, carried.name, carried)
    if made.dtype != carried.dtype:
        refuse(f"the function of the state '{carried.name}' gives {made.dtype}, expected {carried.dtype}; cast it")
    return made


def compute(shape: Shape, function: Callable[..., Any], name: str) -> Tensor:
    """A tensor defined element by element: `function` of the indices, one a dim, gives an expression or a te.sum and its like.

    Raises ShapeError or ModelError with the line of the user's code.

    Examples:
        >>> x = placeholder((dim("M"), 4), "float32", "x")
        >>> print(compute((4, dim("M")), lambda i, j: x[j, i] * 2.0, "y").definition)
        y[i<4, j<M] = mul(x[j, i], 2.0:float32)
    """
    extents, dims = sizes_of(shape, f"'{name}'")
    return _computed(extents, dims, function, name)


def _computed(extents: tuple[SymExpr, ...], dims: Mapping[str, Range], function: Callable[..., Any], name: str,
              carried: Tensor | None = None) -> Tensor:
    """A tensor defined by a function; of the state `carried`, which it may read."""
    place, where = here(), place_of(function)
    axes = [IndexVar(axis, extent, dims, False, where)
            for axis, extent in zip(_parameters(function, len(extents), name, where), extents)]
    made = function(*map(_index, axes))
    reduction = made if isinstance(made, Reduction) else None
    body = reduction.value if reduction is not None else made
    if not isinstance(body, Scalar):
        if not isinstance(body, bool | int | float | np.generic):
            refuse(f"the function of '{name}' gives a {type(body).__name__}, expected an expression of elements or one te.sum, "
                   "te.max and their like", where)
        body = literal(body, None, name)
    reduced = () if reduction is None else reduction.axes
    _check_axes(name, body, axes, reduced, where)
    target = Buffer(_checked_name(name), body.dtype, extents)
    definition = Compute(
        target, tuple(Axis(a.name, a.extent) for a in axes), body.expr, tuple(Axis(a.name, a.extent) for a in reduced),
        None if reduction is None else reduction.monoid)
    known = joined_dims([dims, body.uses.dims, *(a.dims for a in reduced)])
    if body.uses.tensors.get(name, carried) is not carried:
        refuse(f"'{name}' reads another tensor called '{name}', made at {body.uses.tensors[name].place}; rename one", where)
    trips = None if carried is None else carried.trips
    return Tensor(name, body.dtype, extents, known, place, definition, body.uses, trips=trips)


@dataclass(frozen=True, slots=True)
class Reduction:
    """`monoid` over `axes` of `value`: what te.sum gives, and all that the function of a te.compute may give."""

    monoid: Monoid
    axes: tuple[IndexVar, ...]
    value: Scalar

    def _alone(self, *_: Any) -> NoReturn:
        refuse("a reduction must be all that the function of a te.compute gives; give it a te.compute of its own, and read "
               "its elements")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __neg__ = __pow__ = _alone
    __lt__ = __le__ = __gt__ = __ge__ = _alone


def _parameters(function: Callable[..., Any], rank: int, name: str, where: str) -> list[str]:
    """A name for each index: the function's own parameters; `*i` stands for i0, i1, ..."""
    names: list[str] = []
    for p in inspect.signature(function).parameters.values():
        if p.kind is p.VAR_POSITIONAL:
            names += [f"{p.name}{k}" for k in range(rank - len(names))]
        elif p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty:
            names.append(p.name)
    if len(names) != rank:
        raise ShapeError(f"{where}: the function of '{name}' takes {len(names)} indices, but its shape has rank {rank}")
    return names


def _check_axes(name: str, body: Scalar, axes: Sequence[IndexVar], reduced: Sequence[IndexVar], where: str) -> None:
    known = {a.name: a for a in axes}
    for axis in reduced:
        if axis.name in known:
            refuse(f"the reduce axis '{axis.name}' of '{name}' shadows its index '{axis.name}'; rename one", where)
        known[axis.name] = axis
    for axis in body.uses.axes.values():
        if known.get(axis.name) is not axis:
            hint = f"reduce over it with te.sum(..., axis={axis.name}) or its like" if axis.reduces else (
                "an index lives in the function of its own te.compute only")
            refuse(f"'{name}' reads the axis '{axis.name}' made at {axis.place}, which is none of its axes; {hint}", where)


def _checked_name(name: str) -> str:
    if not name.isidentifier():
        refuse(f"a tensor cannot be called {name!r}; give it an identifier")
    return name


def _checked_dtype(dtype: Any, name: str) -> str:
    try:
        found = str(np.dtype(dtype).name)
    except TypeError:
        found = str(dtype)
    if found not in DTYPES:
        refuse(f"'{name}' cannot be of dtype '{found}', expected one of {', '.join(DTYPES)}")
    return found

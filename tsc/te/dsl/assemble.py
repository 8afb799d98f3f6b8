"""Tensors -> Computes: everything that outputs need, in order, with names unique and what is not affine checked at run time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, cast

from tsc.errors import ModelError, ShapeError
from tsc.sym import ZERO, ShapeEnv, SymExpr
from tsc.te.compute import Axis, Carried, Compute
from tsc.te.dsl.scalar import joined_dims, shown
from tsc.te.dsl.tensor import Tensor, Trips
from tsc.te.expr import Call, CheckedIndex, Expr, Load, Size, Var, as_size, loads, map_children, substitute
from tsc.te.index import is_affine
from tsc.te.linear import Ranges, linear, simplify, within


@dataclass(frozen=True, slots=True)
class Definition:
    """A Compute over the names of tensors and Dims, its axes renamed so that they are unique; and where its user reads each
    element: the text of the access and its `file:line`, in the order of `loads`."""

    compute: Compute
    reads: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Assembled:
    """What outputs need: definitions in an order in which each reads only earlier ones, and the placeholders and constants."""

    definitions: tuple[Definition, ...]
    placeholders: tuple[Tensor, ...]
    constants: tuple[Tensor, ...]


def declare(tensors: Collection[Tensor], env: ShapeEnv) -> None:
    """Tell `env` the ranges of the dims of `tensors`. Raises ModelError where one is declared twice with different ranges."""
    for name, known in joined_dims(t.dims for t in tensors).items():
        env.declare(name, known.lo, known.hi, known.divisor, asked=True)


def reached(outputs: Sequence[Tensor]) -> list[Tensor]:
    """All tensors that `outputs` are made of, in the order in which they were made, so that each comes after what it reads, but
    for states: what te.scan makes of one stands for it.

    Raises ModelError where two share a name, or where nothing is made of a state.
    """
    done: dict[str, Tensor] = {}
    states: dict[str, Tensor] = {}
    pending = list(outputs)
    while pending:
        tensor = pending.pop()
        is_state = tensor.trips is not None and tensor.definition is None
        known = (states if is_state else done).setdefault(tensor.name, tensor)
        if known is not tensor:
            first, second = sorted((known, tensor), key=lambda t: t.serial)
            raise ModelError(f"{second.place}: this tensor is called '{second.name}' like the one made at {first.place}; "
                             "rename one")
        pending += [cast(Tensor, t) for t in tensor.uses.tensors.values() if done.get(t.name) is not t]
    for name, found in states.items():
        if name not in done or done[name].uses.tensors.get(name, found) is not found or done[name].trips is not found.trips:
            raise ModelError(f"{found.place}: the state '{name}' is read, but no te.scan that is needed here makes it")
    return sorted(done.values(), key=lambda t: t.serial)


def assemble(outputs: Sequence[Tensor], env: ShapeEnv) -> Assembled:
    """What computes `outputs`; `env` knows the dims. Raises ModelError where two tensors share a name."""
    tensors = reached(outputs)
    loops = _recurrences(tensors)
    made = tuple(definition(t, env, loops.get(t.name, ())) for t in _ordered(tensors, loops))
    given = [t for t in tensors if t.definition is None]
    return Assembled(made, tuple(t for t in given if t.data is None), tuple(t for t in given if t.data is not None))


Loop: TypeAlias = tuple[Tensor, ...]


def _recurrences(tensors: Sequence[Tensor]) -> dict[str, Loop]:
    """The tensors that make a trip together, in order, by the name of each of them: they read, on some way, themselves."""
    reads = {t.name: set(t.uses.tensors) for t in tensors}
    behind = {t.name: _closure(t.name, reads) for t in tensors if t.definition is not None}
    return {name: tuple(t for t in tensors if t.name in found and name in behind.get(t.name, ()))
            for name, found in behind.items() if name in found}


def _closure(name: str, reads: Mapping[str, set[str]]) -> set[str]:
    """All that a tensor is made of, itself among that only where it is read on some way."""
    found, pending = set[str](), [name]
    while pending:
        new = reads.get(pending.pop(), set()) - found
        found |= new
        pending += new
    return found


def _ordered(tensors: Sequence[Tensor], loops: Mapping[str, Loop]) -> list[Tensor]:
    """Computed tensors, each behind what it reads, and those that make a trip together side by side."""
    made: dict[str, Tensor] = {}
    waiting = [t for t in tensors if t.definition is not None]
    while waiting:
        for tensor in waiting:
            together = loops.get(tensor.name, (tensor,))
            own = {t.name for t in together}
            if all(name in made or name in own for t in together for name in t.uses.tensors
                   if any(w.name == name for w in waiting)):
                made |= {t.name: t for t in together}
                waiting = [t for t in waiting if t.name not in own]
                break
    return list(made.values())


def _carried(tensor: Tensor, together: Loop, names: Mapping[str, str]) -> Carried | None:
    """How a tensor is carried with others. Raises ModelError where they do not go the same way."""
    if not together or tensor.definition is None:
        return None
    states = [t for t in together if t.trips is not None]
    first, axes = states[0], tensor.definition.axes
    for other in states:
        if other.trips != first.trips:
            raise ModelError(f"{other.place}: the states '{first.name}' and '{other.name}' make their trips together, but not "
                             "along one axis, the same way")
    trips = cast(Trips, first.trips)
    if trips.axis >= len(axes) or axes[trips.axis].extent != first.extents[trips.axis]:
        raise ShapeError(f"{tensor.place}: '{tensor.name}' is part of the trips of the state '{first.name}', and has another "
                         f"number of them along axis {trips.axis}")
    return Carried(first.name, names[axes[trips.axis].name], trips.reverse)


def definition(tensor: Tensor, env: ShapeEnv, together: Loop = ()) -> Definition:
    """The Definition of a computed tensor, its sizes canonical under `env`; of one that makes trips `together` with others."""
    compute = tensor.definition
    if compute is None:
        raise ModelError(f"{tensor.place}: '{tensor.name}' is given, not computed")
    names = {a.name: f"{tensor.name}.{a.name}" for a in (*compute.axes, *compute.reduce_axes)}
    reads = tuple((shown(load), tensor.uses.places[load]) for load in loads(compute.body))

    def axes(old: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(Axis(names[a.name], env.canon(a.extent)) for a in old)

    own, reduced = axes(compute.axes), axes(compute.reduce_axes)
    ranges = Ranges({a.name: env.canon(a.extent) for a in (*compute.axes, *compute.reduce_axes)}, env)
    notes: list[str] = []
    body = _checked(canonical_sizes(compute.body, env), ranges, notes)
    body = substitute(body, {a: Var(n) for a, n in names.items()})
    target = replace(compute.target, shape=tuple(a.extent for a in own))
    carried = _carried(tensor, together, names)
    return Definition(Compute(target, own, body, reduced, compute.monoid, carried), reads, tuple(notes))


def canonical_sizes(expr: Expr, env: ShapeEnv) -> Expr:
    """`expr` with every size in it canonical under `env`."""
    inner = map_children(lambda c: canonical_sizes(c, env), expr)
    match inner:
        case Size(value=value):
            return Size(env.canon(value))
        case Load(buffer=buffer):
            return replace(inner, buffer=replace(buffer, shape=tuple(map(env.canon, buffer.shape))))
        case CheckedIndex(extent=extent):
            return replace(inner, extent=env.canon(extent))
    return inner


# -- indices that are not affine -------------------------------------------------------------------------------

def _checked(expr: Expr, ranges: Ranges, notes: list[str]) -> Expr:
    """`expr` with every index checked at run time that is neither affine (isl proves those) nor provably inside."""
    inner = map_children(lambda c: _checked(c, ranges, notes), expr)
    if not isinstance(inner, Load):
        return inner
    at = []
    for position, extent in zip(inner.index, inner.buffer.shape):
        if isinstance(position, CheckedIndex):
            notes.append(f"'{shown(inner)}' is indexed by data: it may read any element along that dim, and is checked at run "
                         "time")
        elif not is_affine(position):
            simple = simplify(position, ranges)
            proved = _inside(simple, extent, ranges)
            if not (proved or is_affine(simple)):
                position = CheckedIndex(position, extent, "an index expression")
            notes.append(f"'{shown(inner)}' is not affine: it may read any element along that dim, and is "
                         + ("proved to stay within it" if proved else "checked at run time"))
        at.append(position)
    return replace(inner, index=tuple(at))


def _inside(expr: Expr, extent: SymExpr, ranges: Ranges) -> bool:
    """Whether `0 <= expr < extent` is provable from the facts about sizes."""
    match expr:
        case Call(fn="floordiv", args=(a, b)):
            by = as_size(b)
            return by is not None and ranges.env.prove_lt(ZERO, by) and _inside(a, extent * by, ranges)
    return within(linear(expr), extent, ranges)


def renamed(definition: Definition, names: Mapping[str, str]) -> Definition:
    """`definition` with other names for the tensors in `names`."""
    def visit(expr: Expr) -> Expr:
        inner = map_children(visit, expr)
        if isinstance(inner, Load):
            return replace(inner, buffer=replace(inner.buffer, name=names.get(inner.buffer.name, inner.buffer.name)))
        return inner

    compute = definition.compute
    target = replace(compute.target, name=names.get(compute.name, compute.name))
    return replace(definition, compute=replace(compute, target=target, body=visit(compute.body)))


def sources(definition: Definition) -> Mapping[str, None]:
    """The names of the tensors that a definition reads, in order."""
    return dict.fromkeys(load.buffer.name for load in loads(definition.compute.body))

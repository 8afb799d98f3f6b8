"""Random recurrences: states carried along an axis either way, steps of several Computes, contractions among them, and what
stands before and behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.fuzz.draft import Draft, f32
from tsc.sym import SymExpr
from tsc.te.compute import SUM, Axis, Carried, Compute, Monoid
from tsc.te.expr import Buffer, Expr, Load, Var, add, call, index, mul, select


def trips(d: Draft) -> None:
    """One recurrence or two, the second of which may read the first."""
    if d.chance(0.3):
        axes = d.axes(d.extents(1, 3))
        d.define(axes, d.value(axes))
    shape = list(d.computes[-1].target.shape) if d.computes and d.chance(0.6) else d.extents(1, 3)
    for number in range(2 if d.chance(0.25) else 1):
        _recurrence(d, shape, number)
    if d.chance(0.4):
        axes = d.axes(shape)
        over = d.axes([d.extent()]) if d.chance(0.2) else ()
        behind = d.read_target(d.computes[-1].target, axes)
        if behind is not None:
            d.define(axes, d.combine(behind, (*axes, *over)), over, SUM)


def _recurrence(d: Draft, shape: Sequence[SymExpr], number: int) -> None:
    along, reverse = d.rng.randrange(len(shape)), d.chance(0.4)
    states = [Buffer(f"s{number}_{k}", "float32", tuple(shape)) for k in range(d.rng.randint(1, 2))]
    before = d.computes[-1].target if d.computes and d.chance(0.7) else None

    def define(target: Buffer, axes: tuple[Axis, ...], body: Expr, over: tuple[Axis, ...] = (),
               by: Monoid | None = None) -> None:
        d.computes.append(Compute(target, axes, body, over, by, Carried(f"c{number}", axes[along].name, reverse)))

    for k, state in enumerate(states):
        axes = d.axes(shape)
        found = [_earlier(d, other, tuple(Var(a.name) for a in axes), along, reverse)
                 for other in states if other is state or d.chance(0.5)]
        found += [Load(other, tuple(Var(a.name) for a in axes)) for other in states[:k] if d.chance(0.5)]
        if len(shape) > 1 and d.chance(0.4):
            found.append(_mixed(d, state, shape, along, reverse, define, axes))
        if before is not None and (read := d.read_target(before, axes)) is not None:
            found.append(read)
        body = d.value(axes, 1)
        for other in found:
            body = call(d.rng.choice(["add", "add", "add", "sub", "max"]), body, other)
        if d.real and d.chance(0.5):
            body = call("tanh", body)
        elif d.chance(0.8):  # or else it grows
            body = call("max", call("min", body, f32(7)), f32(-7))
        define(state, axes, body)


def _earlier(d: Draft, state: Buffer, at: tuple[Expr, ...], along: int, reverse: bool) -> Expr:
    """The element of a trip before, one or two of them; something else in the first trips."""
    far = 2 if d.chance(0.15) else 1
    there = add(at[along], index(far if reverse else -far))
    inside = call("lt", there, index(state.shape[along])) if reverse else call("ge", there, index(0))
    return select(inside, Load(state, (*at[:along], there, *at[along + 1:])), f32(d.rng.randint(-2, 2)))


def _mixed(d: Draft, state: Buffer, shape: Sequence[SymExpr], along: int, reverse: bool, define: Callable[..., None],
           axes: tuple[Axis, ...]) -> Expr:
    """A reduction over a whole row of the state before, stored as a step of its own."""
    row = d.rng.choice([k for k in range(len(shape)) if k != along])
    own, over = d.axes(shape), d.axes([shape[row]])
    at = tuple(Var(over[0].name if k == row else a.name) for k, a in enumerate(own))
    term = _earlier(d, state, at, along, reverse)
    if d.chance(0.7):
        weights = d.input("float32", (shape[row], shape[row]))
        term = mul(Load(weights, (Var(over[0].name), Var(own[row].name))), term)
    target = Buffer(f"{state.name}_z", "float32", tuple(shape))
    define(target, own, term, over, SUM)
    return Load(target, tuple(Var(a.name) for a in axes))

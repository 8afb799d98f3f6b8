"""Rewrites of a Program before it is scheduled, te -> te: reductions into locals, Computes into their readers."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import islice

from tsc.poly import PatternMismatch
from tsc.sym import SymExpr
from tsc.te.compute import SUM, Axis, Compute, Program, facts_of, needed
from tsc.te.expr import Buffer, Const, Expr, Load, Var, loads, map_children, substitute, walk
from tsc.te.passes.products import is_contraction

#: Nodes of a body in which other Computes are computed at most.
MOST_TERMS = 2_000


def separate_outputs(program: Program) -> Program:
    """`program` with every reduction's target local; an output gets a Compute of its own that copies it."""
    outputs = {b.name for b in program.outputs}
    reduced = {c.name: replace(c.target, name=f"{c.name}_acc") for c in program.computes if c.monoid and c.name in outputs}
    if not reduced:
        return program
    computes: list[Compute] = []
    for compute in program.computes:
        body = _renamed(compute.body, reduced)
        if compute.name not in reduced:
            computes.append(replace(compute, body=body))
            continue
        local = reduced[compute.name]
        axes = tuple(Axis(f"{a.name}_out", a.extent) for a in compute.axes)
        computes.append(replace(compute, target=local, body=body))
        carried = compute.carried and replace(compute.carried, axis=f"{compute.carried.axis}_out")
        computes.append(Compute(compute.target, axes, Load(local, tuple(Var(a.name) for a in axes)), carried=carried))
    return replace(program, computes=tuple(computes))


def without_empty(program: Program) -> Program:
    """`program` without what is empty at all sizes: Computes of no elements go away (an output stays, and nothing writes it),
    and a reduction over no elements is its identity."""
    facts = facts_of(program.sizes)

    def has_zero(extents: Iterable[SymExpr]) -> bool:
        return any((high := facts.bounds(extent)[1]) is not None and high <= 0 for extent in extents)

    empty = {c.name for c in program.computes if has_zero(c.target.shape)}
    computes: list[Compute] = []
    for compute in program.computes:
        if compute.monoid is not None and has_zero(a.extent for a in compute.reduce_axes):
            dtype = compute.target.dtype
            compute = replace(compute, body=Const(compute.monoid.identity(dtype), dtype), reduce_axes=(), monoid=None)
        computes.append(replace(compute, body=_without(compute.body, empty)))
    return replace(program, computes=needed(computes, {b.name for b in program.outputs} - empty))


def _without(expr: Expr, empty: Collection[str]) -> Expr:
    """`expr` without loads of targets that have no elements: they stand where no instance gets to."""
    inner = map_children(lambda c: _without(c, empty), expr)
    if not isinstance(inner, Load) or inner.buffer.name not in empty:
        return inner
    return Const(SUM.identity(inner.dtype), inner.dtype)


def inlined(program: Program, name: str, keep: bool = False) -> Program:
    """`program` in which nobody reads the Compute `name`, which reduces nothing: its readers compute its elements themselves.
    A local goes away; `keep` an output. Raises PatternMismatch for a recurrence, which reads itself, and where a reader becomes
    longer than MOST_TERMS by it: of a chain whose links read the one before several times the last would compute the first
    some power of that often."""
    compute = next(c for c in program.computes if c.name == name)
    if compute.carried is not None:
        raise PatternMismatch(f"{name} is carried from trip to trip")

    def visit(expr: Expr) -> Expr:
        inner = map_children(visit, expr)
        if not isinstance(inner, Load) or inner.buffer.name != name:
            return inner
        return substitute(compute.body, {a.name: i for a, i in zip(compute.axes, inner.index)})

    def reading(reader: Compute) -> Compute:
        if all(load.buffer.name != name for load in loads(reader.body)):
            return reader
        made = replace(reader, body=visit(reader.body))
        if next(islice(walk(made.body), MOST_TERMS, None), None) is not None:
            raise PatternMismatch(f"{reader.name} with {name} computed where it is read has more than {MOST_TERMS} terms")
        return made

    return replace(program, computes=tuple(c if c is compute else reading(c) for c in program.computes
                                           if keep or c is not compute))


def settled(program: Program) -> Program:
    """`program` with a copy of every contraction that more than the stores behind it read, where there are other reductions:
    its accumulators live in registers, and only those stores see them."""
    computes = list(program.computes)
    if sum(c.monoid is not None for c in computes) < 2:
        return program
    for name in [c.name for c in computes if is_contraction(c) and c.carried is None]:
        place = next(i for i, c in enumerate(computes, 1) if c.name == name)
        contraction = computes[place - 1]
        readers = [c for c in computes if any(load.buffer == contraction.target for load in loads(c.body))]
        behind = [c for c, d in zip(computes[place:], readers) if c == d and c.monoid is None]
        if len(behind) == len(readers):
            continue
        copy = next((c for c in behind if c.body == Load(contraction.target, tuple(Var(a.name) for a in c.axes))), None)
        if copy is None:
            axes = tuple(Axis(f"{a.name}_copy", a.extent) for a in contraction.axes)
            copy = Compute(replace(contraction.target, name=f"{contraction.name}_copy"), axes,
                           Load(contraction.target, tuple(Var(a.name) for a in axes)))
            behind.append(copy)
            computes.insert(place, copy)
        swap = {contraction.name: copy.target}
        computes = [c if c in behind else replace(c, body=_renamed(c.body, swap)) for c in computes]
    return replace(program, computes=tuple(computes))


def _renamed(expr: Expr, reduced: dict[str, Buffer]) -> Expr:
    inner = map_children(lambda c: _renamed(c, reduced), expr)
    if isinstance(inner, Load) and inner.buffer.name in reduced:
        return replace(inner, buffer=reduced[inner.buffer.name])
    return inner

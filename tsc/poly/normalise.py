"""Rewrites of a Program before it is scheduled, te -> te: reductions into locals, Computes into their readers."""

from __future__ import annotations

from dataclasses import replace

from tsc.te.compute import Axis, Compute, Program
from tsc.te.expr import Buffer, Expr, Load, Var, map_children, substitute


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
        computes.append(Compute(compute.target, axes, Load(local, tuple(Var(a.name) for a in axes))))
    return replace(program, computes=tuple(computes))


def inlined(program: Program, name: str) -> Program:
    """`program` without the local Compute `name`, which reduces nothing: its readers compute its elements themselves."""
    compute = next(c for c in program.computes if c.name == name)

    def visit(expr: Expr) -> Expr:
        inner = map_children(visit, expr)
        if not isinstance(inner, Load) or inner.buffer.name != name:
            return inner
        return substitute(compute.body, {a.name: i for a, i in zip(compute.axes, inner.index)})

    return replace(program, computes=tuple(replace(c, body=visit(c.body)) for c in program.computes if c is not compute))


def _renamed(expr: Expr, reduced: dict[str, Buffer]) -> Expr:
    inner = map_children(lambda c: _renamed(c, reduced), expr)
    if isinstance(inner, Load) and inner.buffer.name in reduced:
        return replace(inner, buffer=reduced[inner.buffer.name])
    return inner

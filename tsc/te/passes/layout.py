"""Packed weights: the layout of a contraction's constant column operand.

The matmul micro-kernel reads `width` consecutive columns of one operand at every k step. A constant operand can be laid
out so at compile time: one layout per weight and instruction set, shared by every kernel that reads it that way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from tsc.te.compute import Program
from tsc.te.expr import Buffer, Expr, Load, Var, loads, map_loads, variables
from tsc.te.layout import panels
from tsc.te.passes.narrow import as_narrow


@dataclass(frozen=True, slots=True)
class ColumnOperand:
    """A factor of which a device reads so many columns, along an axis, at once: its `width`. Where it takes several steps of
    the sum together, these are `beside` each other: the axis, and how many."""

    factor: Expr
    axis: str
    width: int
    beside: tuple[str, int] | None = None


def with_panel(program: Program, operand: ColumnOperand, constants: Collection[str]) -> Program:
    """`program` with what an operand reads of `constants` in panels along its axis, as far as it can be: buffers that are read
    in one way alone, at the axis in one place of their index and nowhere else in it. Steps are side by side where the operand
    is one element, as it is or widened."""
    factor, axis = operand.factor, operand.axis
    for load in dict.fromkeys(loads(factor)):
        buffer, places = load.buffer, [d for d, place in enumerate(load.index) if axis in variables(place)]
        reads = {other for c in program.computes for other in loads(c.body) if other.buffer.name == buffer.name}
        if buffer.name not in constants or buffer.layout or reads != {load} or [load.index[d] for d in places] != [Var(axis)]:
            continue
        steps, count = operand.beside or ("", 1)
        along = [d for d, place in enumerate(load.index) if steps in variables(place)]
        together = as_narrow(factor) == load and [load.index[d] for d in along] == [Var(steps)]
        layout = panels(len(load.index), places[0], operand.width, (along[0], count) if together else None)
        packed = replace(buffer, layout=layout)
        program = replace(
            program, inputs=tuple(packed if b.name == packed.name else b for b in program.inputs),
            computes=tuple(replace(c, body=with_layouts(c.body, (packed,))) for c in program.computes))
    return program


def with_layouts(expr: Expr, buffers: Iterable[Buffer]) -> Expr:
    """`expr` with loads of those of `buffers` that have the names of what it loads."""
    table = {b.name: b for b in buffers}

    def load(found: Load) -> Expr:
        return replace(found, buffer=table.get(found.buffer.name, found.buffer))

    return map_loads(load, expr)

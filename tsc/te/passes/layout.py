"""Packed weights: the layout of a contraction's constant column operand.

The matmul micro-kernel reads `width` consecutive columns of one operand at every k step. A constant operand can be laid
out so at compile time: one layout per weight and instruction set, shared by every kernel that reads it that way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from tsc.te.compute import Program
from tsc.te.expr import Buffer, Expr, Load, Var, loads, map_loads, variables
from tsc.te.layout import panels


def with_panel(program: Program, factor: Expr, axis: str, width: int, constants: Collection[str]) -> Program:
    """`program` with what `factor` reads of `constants` in panels of `width` along `axis`, as far as it can be: buffers that
    are read in one way alone, at the axis in one place of their index and nowhere else in it."""
    for load in dict.fromkeys(loads(factor)):
        buffer, places = load.buffer, [d for d, place in enumerate(load.index) if axis in variables(place)]
        reads = {other for c in program.computes for other in loads(c.body) if other.buffer.name == buffer.name}
        if buffer.name not in constants or buffer.layout or reads != {load} or [load.index[d] for d in places] != [Var(axis)]:
            continue
        packed = replace(buffer, layout=panels(len(load.index), places[0], width))
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

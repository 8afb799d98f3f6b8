"""Packed weights: the layout of a contraction's constant column operand.

The matmul micro-kernel reads `width` consecutive columns of one operand at every k step. A constant operand can be laid
out so at compile time: one layout per weight and instruction set, shared by every kernel that reads it that way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from tsc.te.compute import Program
from tsc.te.expr import Buffer, Cast, Expr, Load, Var, loads, map_loads
from tsc.te.layout import panels


def with_panel(program: Program, factor: Expr, axis: str, width: int, constants: Collection[str]) -> Program:
    """`program` with the buffer that `factor` reads in panels of `width` along `axis`; unchanged where it cannot be.

    It can be when `factor` is one load (through casts) of a buffer in `constants`, indexed by plain axes, each once, and read
    nowhere else.
    """
    while isinstance(factor, Cast):
        factor = factor.value
    if not isinstance(factor, Load) or factor.buffer.name not in constants or factor.buffer.layout:
        return program
    names = [i.name for i in factor.index if isinstance(i, Var)]
    reads = {load for c in program.computes for load in loads(c.body) if load.buffer.name == factor.buffer.name}
    if axis not in names or len(set(names)) != len(factor.index) or reads != {factor}:
        return program
    packed = replace(factor.buffer, layout=panels(len(names), names.index(axis), width))
    return replace(
        program, inputs=tuple(packed if b.name == packed.name else b for b in program.inputs),
        computes=tuple(replace(c, body=with_layouts(c.body, (packed,))) for c in program.computes))


def with_layouts(expr: Expr, buffers: Iterable[Buffer]) -> Expr:
    """`expr` with loads of those of `buffers` that have the names of what it loads."""
    table = {b.name: b for b in buffers}

    def load(found: Load) -> Expr:
        return replace(found, buffer=table.get(found.buffer.name, found.buffer))

    return map_loads(load, expr)

"""Packed weights: which constant operands of a contraction are stored in panels.

The matmul micro-kernel reads `width` consecutive columns of one operand at every k step. A constant operand can be laid
out so at compile time: one layout per weight and instruction set, shared by every kernel that reads it that way.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tsc.te.compute import Compute, Program
from tsc.te.expr import Buffer, Call, Cast, Expr, Load, Var, loads, map_children


def with_panels(program: Program, constants: Collection[str], width: int) -> Program:
    """`program` with its contraction's constant column operand in panels of `width`; unchanged where there is none.

    The operand must be read by plain axes only: one parallel axis that the other factor does not use, and reduce axes.
    """
    packed: dict[str, Buffer] = {}
    for compute in program.computes:
        found = column_operand(compute, constants)
        if found is not None and sum(found[0].buffer.name in _reads(c) for c in program.computes) == 1:
            load, axis = found
            packed[load.buffer.name] = replace(load.buffer, panel=(axis, width))
    if not packed:
        return program
    return replace(
        program,
        inputs=tuple(packed.get(b.name, b) for b in program.inputs),
        computes=tuple(replace(c, body=_rebuffer(c.body, packed)) for c in program.computes))


def column_operand(compute: Compute, constants: Collection[str]) -> tuple[Load, int] | None:
    """The constant factor of a product reduced by a sum, with the dimension that its one parallel axis indexes."""
    if compute.monoid is None or compute.monoid.fn != "add":
        return None
    product = compute.body
    while isinstance(product, Cast):
        product = product.value
    if not (isinstance(product, Call) and product.fn == "mul"):
        return None
    parallel = {a.name for a in compute.axes}
    for factor, other in (product.args, product.args[::-1]):
        load = factor
        while isinstance(load, Cast):
            load = load.value
        if not isinstance(load, Load) or load.buffer.name not in constants or load.buffer.panel is not None:
            continue
        names = [i.name for i in load.index if isinstance(i, Var)]
        columns = [n for n in names if n in parallel]
        if len(set(names)) == len(load.index) and len(columns) == 1 and columns[0] not in _variables(other):
            return load, names.index(columns[0])
    return None


def _reads(compute: Compute) -> set[str]:
    return {load.buffer.name for load in loads(compute.body)}


def _variables(expr: Expr) -> set[str]:
    found: set[str] = set()

    def visit(node: Expr) -> Expr:
        if isinstance(node, Var):
            found.add(node.name)
        return map_children(visit, node)

    visit(expr)
    return found


def _rebuffer(expr: Expr, packed: dict[str, Buffer]) -> Expr:
    inner = map_children(lambda c: _rebuffer(c, packed), expr)
    if isinstance(inner, Load) and inner.buffer.name in packed:
        return replace(inner, buffer=packed[inner.buffer.name])
    return inner

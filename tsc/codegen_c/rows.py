"""k loops of register tiles whose rows may lie outside of what they are read from, as those of an image at its edges.

Such a row is read from a block of zeros (`tsc_kernel.h`; a loop of more trips begins anew after each so many). That is chosen
once, before the loop, which then asks nothing: a question for each row in each step takes registers that accumulators need.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tsc.codegen_c.scalar import Scope, flatten, scalar
from tsc.codegen_c.types import c_type, zeros
from tsc.loop_ir.cpu.tensorize import FmaTile, read_fma_tile
from tsc.loop_ir.facts import inside
from tsc.loop_ir.marks import FMA_TILE
from tsc.loop_ir.nodes import For, Intrin
from tsc.sym import ONE
from tsc.sym.expr import coefficient_of
from tsc.te.expr import INDEX, Call, Const, Expr, Load, Var, call, substitute, variables

#: A loop of fewer trips asks no more often than it would choose.
FEW = 16


@dataclass(frozen=True, slots=True)
class _Choice:
    """An operand that is `load` where all conditions hold, else 0, as which one of the header's `zeros` is read."""

    conditions: tuple[Expr, ...]
    load: Load
    zeros: str


def from_zeros(loop: For, scope: Scope) -> FmaTile | None:
    """The tile of a k loop whose rows are neighbours in memory along it, or outside for all of it; None for any other loop."""
    tile = read_fma_tile(loop.body.meaning) if isinstance(loop.body, Intrin) and loop.body.name == FMA_TILE else None
    found = None if tile is None else _choice(tile.left)
    if tile is None or found is None or loop.step != 1 or found.load.dtype != tile.acc.dtype:
        return None
    if any(loop.var in variables(condition) for condition in found.conditions):
        return None
    trips = call("sub", loop.hi, loop.lo)
    if isinstance(trips, Const) and int(trips.value) < FEW:
        return None
    inner, leaves = replace(scope, facts=inside(scope.facts, loop)), dict[str, Expr]()
    offset = flatten(found.load.buffer, found.load.index, inner, leaves)
    beside = not any(loop.var in variables(leaf) for leaf in leaves.values()) and coefficient_of(offset, loop.var) == ONE
    return tile if beside and found.load.buffer.name not in scope.registers else None


def _choice(expr: Expr) -> _Choice | None:
    match expr:
        case Call(fn="select", args=(condition, Load() as load, Const(value=value, dtype=dtype))) if zeros(value, dtype):
            return _Choice((condition,), load, zeros(value, dtype))
        case Call(fn="select", args=(condition, yes, Const(value=value, dtype=dtype))) if found := _choice(yes):
            same = zeros(value, dtype) == found.zeros
            return replace(found, conditions=(condition, *found.conditions)) if same else None
    return None


def rows_from_zeros(loop: For, tile: FmaTile, scope: Scope, depth: int) -> Iterator[tuple[int, str]]:
    """What stands before such a loop: `tsc_row0`, .., at which each row's elements from `tsc_from` on begin, until `tsc_to`."""
    found, kind = _choice(tile.left), c_type(tile.acc.dtype)
    assert found is not None
    first, end = scalar(loop.lo, scope), scalar(loop.hi, scope)
    yield depth, f"for (int64_t tsc_from = {first}; tsc_from < {end}; tsc_from += TSC_ZEROS) {{"
    yield depth + 1, f"const int64_t tsc_to = tsc_min_int64(tsc_from + TSC_ZEROS, {end});"
    begin = replace(scope, names={**scope.names, f"var {loop.var}": "tsc_from"}, facts=inside(scope.facts, loop))
    for row in range(tile.rows):
        at = {tile.row: Const(row, INDEX)}
        asked = " && ".join(scalar(substitute(condition, at), scope) for condition in found.conditions)
        place = scalar(substitute(found.load, at), begin)
        yield depth + 1, f"const {kind} *const tsc_row{row} = {asked} ? &{place} : {found.zeros};"


def row_texts(loop: For, tile: FmaTile, scope: Scope) -> Sequence[str]:
    """The element of each row in a trip of such a loop."""
    place = f"{scalar(Var(loop.var), scope)} - tsc_from"
    return [f"tsc_row{row}[{place}]" for row in range(tile.rows)]

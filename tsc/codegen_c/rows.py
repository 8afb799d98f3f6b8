"""k loops of register tiles whose rows may lie outside of what they are read from, as those of an image at its edges.

Such a row is read from a block of zeros (`tsc_kernel.h`; a loop of more trips begins anew after each so many). That is chosen
once, before the loop, which then asks nothing: a question for each row in each step takes registers that accumulators need.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tsc.codegen_c.scalar import Scope, neighbours, scalar
from tsc.codegen_c.types import c_type, zeros
from tsc.loop_ir.cpu.tensorize import FmaTile, read_fma_tile
from tsc.loop_ir.facts import inside
from tsc.loop_ir.marks import FMA_TILE
from tsc.loop_ir.nodes import For, Intrin, Stmt
from tsc.te.expr import INDEX, Call, Const, Expr, Load, Var, call, substitute, variables

#: A loop of fewer trips asks no more often than it would choose.
FEW = 16


@dataclass(frozen=True, slots=True)
class _Choice:
    """An operand that is `load` where all conditions hold, else 0, as which one of the header's `zeros` is read."""

    conditions: tuple[Expr, ...]
    load: Load
    zeros: str


@dataclass(frozen=True, slots=True)
class ChosenRows:
    """A k loop of a tile, each step the `meaning`, whose rows are neighbours in memory along it, or outside for all of it."""

    loop: For
    meaning: Stmt
    tile: FmaTile
    choice: _Choice

    def before(self, scope: Scope, depth: int) -> Iterator[tuple[int, str]]:
        """What stands before the loop: at `tsc_row0`, .. each row's elements from `tsc_from` on begin, until `tsc_to`."""
        loop, choice, kind = self.loop, self.choice, c_type(self.tile.acc.dtype)
        first, end = scalar(loop.lo, scope), scalar(loop.hi, scope)
        yield depth, f"for (int64_t tsc_from = {first}; tsc_from < {end}; tsc_from += TSC_ZEROS) {{"
        yield depth + 1, f"const int64_t tsc_to = tsc_min_int64(tsc_from + TSC_ZEROS, {end});"
        begin = replace(scope, names={**scope.names, f"var {loop.var}": "tsc_from"}, facts=inside(scope.facts, loop))
        for row in range(self.tile.rows):
            at = {self.tile.row: Const(row, INDEX)}
            asked = " && ".join(scalar(substitute(condition, at), scope) for condition in choice.conditions)
            place = scalar(substitute(choice.load, at), begin)
            yield depth + 1, f"const {kind} *const tsc_row{row} = {asked} ? &{place} : {choice.zeros};"

    def texts(self, scope: Scope) -> list[str]:
        """The element of each row in a trip of the loop."""
        place = f"{scalar(Var(self.loop.var), scope)} - tsc_from"
        return [f"tsc_row{row}[{place}]" for row in range(self.tile.rows)]


def chosen_rows(loop: For, scope: Scope) -> ChosenRows | None:
    """A loop as one whose rows can be chosen before it; None where that cannot be, or is not worth it."""
    if not isinstance(loop.body, Intrin) or loop.body.name != FMA_TILE or loop.step != 1:
        return None
    tile = read_fma_tile(loop.body.meaning)
    found = None if tile is None else _choice(tile.left)
    if tile is None or found is None or found.load.dtype != tile.acc.dtype:
        return None
    trips = call("sub", loop.hi, loop.lo)
    few = isinstance(trips, Const) and int(trips.value) < FEW
    if few or any(loop.var in variables(condition) for condition in found.conditions):
        return None
    inner = replace(scope, facts=inside(scope.facts, loop))
    return ChosenRows(loop, loop.body.meaning, tile, found) if neighbours(found.load, loop.var, inner) else None


def _choice(expr: Expr) -> _Choice | None:
    match expr:
        case Call(fn="select", args=(condition, Load() as load, Const(value=value, dtype=dtype))) if zeros(value, dtype):
            return _Choice((condition,), load, zeros(value, dtype))
        case Call(fn="select", args=(condition, yes, Const(value=value, dtype=dtype))) if found := _choice(yes):
            same = zeros(value, dtype) == found.zeros
            return replace(found, conditions=(condition, *found.conditions)) if same else None
    return None

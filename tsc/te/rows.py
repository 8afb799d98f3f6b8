"""Which Programs compute row by row: as many rows as a size says, of which none has to do with another."""

from __future__ import annotations

from tsc.sym import SymExpr, dim
from tsc.te.compute import Compute, Program
from tsc.te.expr import Buffer, CheckedIndex, Expr, Load, Size, Var, children


def independent_rows(program: Program) -> str | None:
    """The size that counts rows (or equal blocks of rows) which have nothing to do with each other; None where there is none.

    All outputs begin with an axis of that size, or of a constant times it, and so does all that they are made of, or it has
    that size nowhere and is the same for every row. Row number i of anything is made of rows number i alone, and neither i nor
    how many there are is in any value. So the rows of several calls, one behind the other, are those of one call with the sum
    of their sizes.
    """
    extents = {buffer.shape[0] if buffer.shape else None for buffer in program.outputs}
    extent = extents.pop() if len(extents) == 1 else None
    if extent is None or len(extent.dims()) != 1:
        return None
    name, = extent.dims()
    rows = _Rows(name, extent)
    if extent != dim(name) * extent.evaluate({name: 1}) or not all(map(rows.is_plain, (*program.inputs, *program.outputs))):
        return None
    return name if all(map(rows.has_rows, program.outputs)) and all(map(rows.keeps_apart, program.computes)) else None


class _Rows:
    """As many rows as `extent`, a multiple of the size `name`."""

    def __init__(self, name: str, extent: SymExpr) -> None:
        self._name, self._extent = name, extent

    def has_rows(self, buffer: Buffer) -> bool:
        """Whether a buffer is so many rows, one behind the other."""
        return bool(buffer.shape) and not buffer.layout and buffer.shape[0] == self._extent and not any(
            self._name in size.dims() for size in buffer.shape[1:])

    def is_plain(self, buffer: Buffer) -> bool:
        """Whether a buffer is rows, or has nothing to do with how many there are."""
        return self.has_rows(buffer) or not any(self._name in size.dims() for size in buffer.shape)

    def keeps_apart(self, compute: Compute) -> bool:
        """Whether each row of what is computed is made of rows of its own number, or it is no rows and made of none."""
        rows = self.has_rows(compute.target)
        row = compute.axes[0].name if rows else None
        axes = (*compute.axes[1:], *compute.reduce_axes) if rows else (*compute.axes, *compute.reduce_axes)
        return (self.is_plain(compute.target) and not any(self._name in axis.extent.dims() for axis in axes)
                and not (rows and compute.along == row) and self._holds(compute.body, row))

    def _holds(self, expr: Expr, row: str | None) -> bool:
        match expr:
            case Var(name=name):
                return name != row
            case Size(value=value):
                return self._name not in value.dims()
            case CheckedIndex(extent=extent) if self._name in extent.dims():
                return False
            case Load(buffer=buffer, index=index):
                own = self.has_rows(buffer)
                if not self.is_plain(buffer) or (own and (row is None or index[0] != Var(row))):
                    return False
                return all(self._holds(part, row) for part in index[1 if own else 0:])
        return all(self._holds(part, row) for part in children(expr))

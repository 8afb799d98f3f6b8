"""The matrix instructions that a warp, or a warp group, executes, and what one of them means for a lane.

With g = lane // 4 and t = lane % 4 (PTX ISA 9.7.14.5) a lane has rows g and g + 8 of 16 and columns 2t and 2t + 1 of 8.
"""

from __future__ import annotations

from dataclasses import dataclass

from tsc.loop_ir.marks import TILE_COLUMN, TILE_ROW
from tsc.loop_ir.nodes import For, Stmt, Store
from tsc.te.expr import Buffer, Call, Cast, Const, Expr, Load

LANES, ROWS, HALF, COLUMNS, PAIR = 32, 16, 8, 8, 2
#: Warps of a group, which have their rows below each other.
GROUP = 4


@dataclass(frozen=True, slots=True)
class Mma:
    """A matrix instruction: its steps along k, the dtype of its operands, how they enter a float32 product, and the warps that
    execute it together, `ROWS` rows each."""

    name: str
    depth: int
    dtype: str
    warps: int = 1

    def operand(self, value: Expr) -> Expr | None:
        """The element that a factor of a product stands for; None where it is none of this instruction's."""
        match value:
            case Cast(value=Load() as load, dtype="float32") if self.dtype == "float16" == load.dtype:
                return load
            case Load() if self.dtype == "float32" == value.dtype:
                return value
        return None

    def factor(self, load: Expr) -> Expr:
        """What the instruction multiplies: exact halves, or floats without their lower 13 bits."""
        return Cast(load, "float32") if self.dtype == "float16" else Call("tf32", (load,), "float32")


MMA_F16 = Mma("mma_m16n8k16_f16", 16, "float16")
MMA_TF32 = Mma("mma_m16n8k8_tf32", 8, "float32")
WGMMA_F16 = Mma("wgmma_m64k16_f16", 16, "float16", GROUP)


@dataclass(frozen=True, slots=True)
class MmaTile:
    """A lane's part of C += A B: `acc[registers] += left * right` for each of the tiles by `rows` and by `columns`, `half`
    (rows g, g + 8), `pair` (columns 2t, 2t + 1) and step of `k`. `left` is an element of A at row g + 8 half, `right` one of B
    at column 2t + pair, in shared memory. `rows` and `columns` are None where there is one tile."""

    rows: For | None
    columns: For | None
    acc: Buffer
    registers: tuple[Expr, ...]
    k: str
    depth: int
    half: str
    pair: str
    left: Expr
    right: Expr


def read_mma_tile(meaning: Stmt) -> MmaTile | None:
    """The parts of a statement of the instructions' form, None where it is not one."""
    tiles: dict[str, For] = {}
    while isinstance(meaning, For) and meaning.mark in (TILE_ROW, TILE_COLUMN):
        tiles[meaning.mark], meaning = meaning, meaning.body
    match meaning:
        case For(var=k, hi=Const(value=depth), body=For(var=half, body=For(var=pair, body=Store(
                buffer=acc, index=registers, value=Call(fn="add", args=(Load(), Call(fn="mul", args=(left, right)))))))):
            a, b = (x.value if isinstance(x, Cast) else x.args[0] if isinstance(x, Call) else x for x in (left, right))
            return MmaTile(tiles.get(TILE_ROW), tiles.get(TILE_COLUMN), acc, registers, k, int(depth), half, pair, a, b)
    return None

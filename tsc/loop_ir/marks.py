"""Marks: what the loops of a schedule are for, as the polyhedral stage names them and later passes read it off `For.mark`; and
the names of the statements that promotion adds.
"""

from __future__ import annotations

#: Loops over blocks, all independent; on a GPU over the warps of a block and the threads of a warp.
BLOCK, WARP, THREAD = "block", "warp", "thread"
#: The loops of a contraction: over register tiles, over k (in tiles, on a GPU), over the rows and columns of a register tile;
#: those that initialise one and that store what it holds.
INSTR_N, INSTR_M, K_TILE, K = "instr_n", "instr_m", "k_tile", "k"
TILE_ROW, TILE_COLUMN, INIT, EPILOGUE = "i", "j", "init", "epilogue"
#: The loops of stages: over the rows of a tile, then those of a statement: a reduction, what is around it, the innermost.
ROW, REDUCE, OUTER, INNER = "row", "reduce", "outer", "inner"
#: The trips of a recurrence, which run one after the other.
TRIP = "trip"
#: The places of which a fold asks whether something goes there.
PLACE = "place"
#: The loops of a copy.
COPY = "copy"
#: The tensor intrinsics of one k step of a register tile (`loop_ir/cpu/tensorize.py`), and of several (`loop_ir/cpu/dots.py`).
FMA_TILE, PAIR_TILE, QUAD_TILE, BFLOAT_TILE = "fma_tile", "pair_tile", "quad_tile", "bfloat_tile"
#: The tensor intrinsics that transpose squares of so many rows and columns (`loop_ir/cpu/squares.py`), the largest first.
SQUARES = {lanes: f"square_{lanes}" for lanes in (16, 8, 4)}
#: Elements of which there are squares, moved by their bits, and of which devices that have masks load a part of a vector.
SQUARE_DTYPES = frozenset({"float32", "int32", "uint32"})
#: Loops that later passes look for: they are kept, with one iteration, where they run once.
KEPT = frozenset({K, TILE_ROW, TILE_COLUMN, INIT, EPILOGUE})
#: Loops whose iterations run in parallel.
PARALLEL = frozenset({BLOCK, WARP, THREAD})


def alloc_of(buffer: str) -> str:
    """The statement whose instances say where a local's storage begins its life."""
    return f"alloc_{buffer}"


def copy_of(buffer: str) -> str:
    """The statement that copies what is read into a local."""
    return f"copy_{buffer}"


def fill_of(buffer: str) -> str:
    """The statement that fills what nobody copies into a local."""
    return f"fill_{buffer}"

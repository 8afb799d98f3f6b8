"""Matrix instructions of a warp: the fragments of A and B that its lanes hold, loaded once for all tiles of a step of k.

With g = lane / 4 and t = lane % 4 (PTX ISA 9.7.14.5) a lane holds rows g and g + 8 of A and column g of B, of each the numbers
in bytes 4t to 4t + 3 and 16 + 4t to 19 + 4t along k. In the meaning a lane has columns 2t and 2t + 1 of B instead, those of its
part of C: B's column g is one of the lane g / 2. Where eight rows lie in shared memory as 16 whole bytes each, ldmatrix loads
them; numbers of two bytes also where they lie the other way, columns as rows. Else a lane loads words.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tsc.codegen_c.scalar import Scope
from tsc.codegen_cuda.narrow import place_text, split_text
from tsc.errors import InternalError
from tsc.loop_ir.facts import inside
from tsc.loop_ir.gpu.mma import MMA_F16, MMA_TF32, MmaTile, read_mma_tile
from tsc.loop_ir.gpu.threads import trips
from tsc.loop_ir.gpu.widen import begins_whole
from tsc.loop_ir.nodes import Block, For, Stmt
from tsc.loop_ir.simplify import simplify_expr
from tsc.te.expr import Expr, Load, Var, add, call, index, item_bytes, mul, substitute

#: Rows and columns of the matrices that ldmatrix loads, a row as so many bytes.
_SIDE, _ROW_BYTES = 8, 16
_WITHIN, _NOTHING = "tsc_within", Block(())


@dataclass(frozen=True, slots=True)
class _Form:
    """An instruction's element type, that of an element in memory, how many of them make a word, and a word of them as text."""

    kind: str
    element: str
    together: int
    word: str

    def packed(self, texts: Sequence[str]) -> str:
        """Elements, the first lowest, as one word."""
        words = (f"{self.word.format(text)} << {32 // self.together * k}" if k else self.word.format(text)
                 for k, text in enumerate(texts))
        return " | ".join(words)


_FORMS = {MMA_F16.name: _Form("f16", "f16", 2, "static_cast<u32>({}.bits)"),
          MMA_TF32.name: _Form("tf32", "float", 1, "float_bits({})")}


@dataclass(frozen=True, slots=True)
class _Operand:
    """One of A and B: an element of it, the loop over its tiles (None: there is one), the instructions and the lanes that it is
    for, and how many times eight `rows` a tile has: rows of A, columns of B."""

    load: Load
    tiles: For | None
    tile: MmaTile
    lane: str
    rows: int

    @property
    def count(self) -> int:
        """How many tiles there are."""
        return 1 if self.tiles is None else trips(self.tiles) or 0

    @property
    def across(self) -> int:
        """How many numbers along k one half has."""
        return self.tile.depth // 2

    def at(self, number: Expr, half: Expr, row: Expr, k: Expr) -> Expr:
        """The element in a tile at a row of one of its halves, at k: what the meaning's lane of that row multiplies."""
        tile, place = self.tile, dict[str, Expr]({self.tile.k: k})
        if self.rows == 2:  # A: lanes are rows
            place |= {self.lane: mul(index(4), row), tile.half: half}
        else:
            place |= {self.lane: call("floordiv", row, index(2)), tile.pair: call("mod", row, index(2))}
        if self.tiles is not None:
            place[self.tiles.var] = add(self.tiles.lo, mul(index(self.tiles.step), number))
        return substitute(self.load, place)


def mma_lines(name: str, meaning: Stmt, lane: str, scope: Scope) -> Iterator[str]:
    """The instructions of one step of k of the warp whose lanes are numbered by the variable `lane`."""
    tile, form = read_mma_tile(meaning), _FORMS.get(name)
    if tile is None or form is None or not (isinstance(tile.left, Load) and isinstance(tile.right, Load)):
        raise InternalError(f"there is no CUDA for the intrinsic {name}")
    a = _Operand(tile.left, tile.rows, tile, lane, 2)
    b = _Operand(tile.right, tile.columns, tile, lane, 1)
    places = [[[_register(tile, a, i, b, j, half, pair, scope) for half in range(2) for pair in range(2)]
               for j in range(b.count)] for i in range(a.count)]
    yield "{"
    yield f"  float c[{a.count}][{b.count}][4] = {{{', '.join(_list(map(_list, row)) for row in places)}}};"
    yield from _loaded("a", a, form, scope)
    yield from _loaded("b", b, form, scope)
    yield f"  mma_tile<{form.kind}>(c, a, b);"
    yield from (f"  {place} = c[{i}][{j}][{k}];" for i, row in enumerate(places) for j, four in enumerate(row)
                for k, place in enumerate(four))
    yield "}"


def _list(texts: Iterable[str]) -> str:
    return f"{{{', '.join(texts)}}}"


def _register(tile: MmaTile, a: _Operand, i: int, b: _Operand, j: int, half: int, pair: int, scope: Scope) -> str:
    at: dict[str, Expr] = {tile.half: index(half), tile.pair: index(pair)}
    at |= {x.tiles.var: add(x.tiles.lo, index(x.tiles.step * n)) for x, n in ((a, i), (b, j)) if x.tiles is not None}
    place = tuple(simplify_expr(substitute(r, at), scope.facts) for r in tile.registers)
    return f"{scope.name(f'buffer {tile.acc.name}')}[{place_text(tile.acc, place, scope)}]"


# -- fragments -------------------------------------------------------------------------------------------------

def _loaded(name: str, operand: _Operand, form: _Form, scope: Scope) -> Iterator[str]:
    """The words of all tiles of an operand as an array of that name: for each of the halves along k those by rows."""
    for transposed in (False, True) if form.together == 2 else (False,):
        if all(_is_whole(operand, number, half, upper, transposed, scope) for number in range(operand.count)
               for half in range(operand.rows) for upper in range(2)):
            yield from _by_matrices(name, operand, transposed, scope)
            return
    lane = Var(operand.lane)
    row, first = call("floordiv", lane, index(4)), mul(index(form.together), call("mod", lane, index(4)))
    tiles = []
    for number in range(operand.count):
        at = [(half, [add(first, index(operand.across * upper + k)) for k in range(form.together)])
              for upper in range(2) for half in range(operand.rows)]
        tiles.append(_list([form.packed([_word(operand.at(index(number), index(half), row, k), form, scope) for k in steps])
                            for half, steps in at]))
    yield f"  const u32 {name}[{operand.count}][{2 * operand.rows}] = {_list(tiles)};"


def _by_matrices(name: str, operand: _Operand, transposed: bool, scope: Scope) -> Iterator[str]:
    """The same by ldmatrix: of each matrix eight lanes say where a row is, or a column where it is `transposed`. Of B, whose
    tiles are two matrices, those of two tiles are loaded at once where there are as many."""
    together = 2 if operand.rows == 1 and operand.count % 2 == 0 else 1
    lane, words = Var(operand.lane), 2 * operand.rows * together
    line, matrix = call("mod", lane, index(_SIDE)), call("floordiv", lane, index(_SIDE))
    half = call("mod", matrix, index(2)) if operand.rows == 2 else index(0)
    first = mul(index(operand.across), call("mod", call("floordiv", matrix, index(operand.rows)), index(2)))
    yield f"  u32 {name}[{operand.count // together}][{words}];"
    for number in range(0, operand.count, together):
        tile = add(index(number), call("floordiv", lane, index(2 * _SIDE))) if together == 2 else index(number)
        at = operand.at(tile, half, index(0), add(first, line)) if transposed else operand.at(tile, half, line, first)
        address, offset = _address(at, scope)
        yield f"  ldmatrix<{words}, {str(transposed).lower()}, {offset}>({name}[{number // together}], {address});"


def _is_whole(operand: _Operand, number: int, half: int, upper: int, transposed: bool, scope: Scope) -> bool:
    """Whether the rows of one matrix, or its columns where it is `transposed`, are 16 bytes of shared memory each, from a
    multiple of 16 on."""
    size = _ROW_BYTES // item_bytes(operand.load.dtype)
    other = f"{_WITHIN}_other"
    facts = inside(inside(scope.facts, For(other, index(0), index(_SIDE), _NOTHING)),
                   For(_WITHIN, index(0), index(size), _NOTHING))
    along, across, first = Var(_WITHIN), Var(other), index(operand.across * upper)
    found = operand.at(index(number), index(half), along, add(first, across)) if transposed else \
        operand.at(index(number), index(half), across, add(first, along))
    found = simplify_expr(found, facts)
    return isinstance(found, Load) and begins_whole(found.buffer, found.index, _WITHIN, size, facts)


def _word(load: Expr, form: _Form, scope: Scope) -> str:
    address, offset = _address(load, scope)
    return f"load_shared_at<{offset}, {form.element}>({address})"


def _address(load: Expr, scope: Scope) -> tuple[str, int]:
    """Where an element is in shared memory: the address of something, and how many bytes from there."""
    assert isinstance(load, Load)
    place, offset = split_text(load.buffer, load.index, scope, item_bytes(load.dtype))
    return f"{scope.name(f'buffer {load.buffer.name}')} + {place}", offset

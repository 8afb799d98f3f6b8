"""Matrix instructions of a warp: each lane's registers of A, B and C, gathered as the instruction's layout has them.

With g = lane / 4 and t = lane % 4 (PTX ISA 9.7.14.5) a lane holds rows g and g + 8 of A and column g of B, of each the numbers
in bytes 4t to 4t + 3 and 16 + 4t to 19 + 4t along k. In the meaning a lane has columns 2t and 2t + 1 of B instead, those of its
part of C: B's column g is one of the lane g / 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tsc.codegen_c.scalar import Scope, scalar
from tsc.codegen_cuda.narrow import place_text
from tsc.errors import InternalError
from tsc.loop_ir.gpu.tensorize_gpu import MMA_F16, MMA_TF32, MmaTile, read_mma_tile
from tsc.loop_ir.nodes import Stmt
from tsc.te.expr import Expr, Load, Var, add, call, index, mul, substitute


@dataclass(frozen=True, slots=True)
class _Form:
    """An instruction's element type, how many of them make a word, and a word of them as text."""

    kind: str
    together: int
    word: str

    def packed(self, texts: Sequence[str]) -> str:
        """Elements, the first lowest, as one word."""
        words = (f"{self.word.format(text)} << {32 // self.together * k}" if k else self.word.format(text)
                 for k, text in enumerate(texts))
        return " | ".join(words)


_FORMS = {MMA_F16.name: _Form("f16", 2, "static_cast<u32>({}.bits)"), MMA_TF32.name: _Form("tf32", 1, "float_bits({})")}


def mma_lines(name: str, meaning: Stmt, lane: str, scope: Scope) -> Iterator[str]:
    """One instruction of the warp whose lanes are numbered by the variable `lane`."""
    tile, form = read_mma_tile(meaning), _FORMS.get(name)
    if tile is None or form is None or not (isinstance(tile.left, Load) and isinstance(tile.right, Load)):
        raise InternalError(f"there is no CUDA for the intrinsic {name}")
    row, within = call("floordiv", Var(lane), index(4)), call("mod", Var(lane), index(4))
    steps = [[add(mul(index(form.together), within), index(4 * form.together * upper + k)) for k in range(form.together)]
             for upper in range(2)]  # along k: the numbers of a lane's words
    column = {lane: call("floordiv", row, index(2)), tile.pair: call("mod", row, index(2))}
    a = [[{tile.half: index(half), tile.k: step} for step in steps[upper]] for upper in range(2) for half in range(2)]
    b = [[{**column, tile.k: step} for step in steps[upper]] for upper in range(2)]
    places = [_register(tile, half, pair, scope) for half in range(2) for pair in range(2)]
    yield "{"
    yield f"  float c[1][1][4] = {{{{{{{', '.join(places)}}}}}}};"
    yield f"  const u32 a[1][4] = {{{{{_words(tile.left, a, form, scope)}}}}};"
    yield f"  const u32 b[1][2] = {{{{{_words(tile.right, b, form, scope)}}}}};"
    yield f"  mma_tile<{form.kind}>(c, a, b);"
    yield from (f"  {place} = c[0][0][{k}];" for k, place in enumerate(places))
    yield "}"


def _words(operand: Load, words: Sequence[Sequence[Mapping[str, Expr]]], form: _Form, scope: Scope) -> str:
    return ", ".join(form.packed([scalar(substitute(operand, place), scope) for place in word]) for word in words)


def _register(tile: MmaTile, half: int, pair: int, scope: Scope) -> str:
    place = tuple(substitute(i, {tile.half: index(half), tile.pair: index(pair)}) for i in tile.registers)
    return f"{scope.name(f'buffer {tile.acc.name}')}[{place_text(tile.acc, place, scope)}]"

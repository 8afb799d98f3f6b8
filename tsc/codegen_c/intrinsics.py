"""The tensor intrinsics of the C back end: each renders one small meaning (`loop_ir/cpu/tensorize.py`) in vector registers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tsc.codegen_c.rows import ChosenRows
from tsc.codegen_c.scalar import Scope, flatten, offset_text, scalar, sym_text
from tsc.codegen_c.types import c_type, vector_type
from tsc.codegen_c.vector import Lanes, register_at, splat, vector
from tsc.errors import InternalError
from tsc.loop_ir.cpu.dots import DOTS, OF_WORDS, read_dot_tile
from tsc.loop_ir.cpu.squares import read_square
from tsc.loop_ir.cpu.tensorize import FmaTile, read_fma_tile
from tsc.loop_ir.facts import inside
from tsc.loop_ir.marks import BFLOAT_TILE, FMA_TILE, PAIR_TILE, QUAD_TILE, SQUARES
from tsc.loop_ir.nodes import For, Stmt, walk
from tsc.sym.expr import coefficient_of
from tsc.te.expr import INDEX, Buffer, Call, Const, Expr, Load, call, item_bytes, loads, substitute, variables
from tsc.te.index import to_sym
from tsc.te.intrinsics import WORDS
from tsc.te.passes.narrow import as_narrow

CACHE_LINE = 64


@dataclass(frozen=True, slots=True)
class TensorIntrin:
    """An instruction: `render` writes C for a statement that has this intrinsic's form."""

    name: str
    render: Callable[[Stmt, Scope, int], Iterator[tuple[int, str]]]


#: The header's function by which each of them accumulates.
_ACCUMULATE: Mapping[str, str] = {
    FMA_TILE: "accumulate", PAIR_TILE: "dot", QUAD_TILE: "dot_bytes", BFLOAT_TILE: "dot_bfloat"}


def _render_fma_tile(meaning: Stmt, scope: Scope, depth: int) -> Iterator[tuple[int, str]]:
    """One k step: the column vectors are loaded once, each row's scalar is broadcast once, and every pair is one FMA."""
    yield from _render_steps(FMA_TILE, meaning, ({},), scope, depth)


def _render_dot_tile(name: str, meaning: Stmt, scope: Scope, depth: int) -> Iterator[tuple[int, str]]:
    """Several k steps, whose numbers share the lanes of 32 bits: every pair of vectors is one sum of their products."""
    if read_fma_tile(meaning) is not None:  # of words, which have the steps together
        yield from _render_steps(name, meaning, ({},), scope, depth)
        return
    found = read_dot_tile(meaning)
    if found is None:
        raise InternalError("a register tile: it is no steps that are taken together")
    each, count, step = found
    yield from _render_steps(name, step, tuple({each: Const(k, INDEX)} for k in range(count)), scope, depth)


def render_rows(rows: ChosenRows, scope: Scope, depth: int) -> Iterator[tuple[int, str]]:
    """A k loop whose rows are read from zeros where they are outside."""
    inner = replace(scope.with_name("var", rows.loop.var), facts=inside(scope.facts, rows.loop))
    name = inner.name(f"var {rows.loop.var}")
    yield from rows.before(scope, depth)
    yield depth + 1, f"for (int64_t {name} = tsc_from; {name} < tsc_to; {name} += 1) {{"
    yield from _render_steps(FMA_TILE, rows.meaning, ({},), inner, depth + 2, rows.texts(inner))
    yield depth + 1, "}"
    yield depth, "}"


def _render_steps(name: str, meaning: Stmt, steps: Sequence[Mapping[str, Expr]], scope: Scope, depth: int,
                  rows: Sequence[str] = ()) -> Iterator[tuple[int, str]]:
    """One step, or several together, of which each says what its variables are; `rows` are the left operands, if they are
    there."""
    tile = read_fma_tile(meaning)
    if tile is None or tile.acc.name not in scope.registers:
        raise InternalError("a register tile: its accumulators are not vector registers")
    accumulate = f"tsc_{_ACCUMULATE[name]}_{tile.acc.dtype}x{tile.lanes}"
    given = tile.acc.dtype if name == FMA_TILE else "int32"  # what the lanes of both factors hold
    what, kind = f"{given}x{tile.lanes}", vector_type(given, tile.lanes)
    in_order = not tile.turned if tile.fn in OF_WORDS else name != QUAD_TILE or as_narrow(tile.left).dtype == "uint8"
    lanes = Lanes(tile.lane, tile.lanes)
    # a vector may be part of a panel: by this its lanes are seen to be neighbours there
    loop = next(s for s in walk(meaning) if isinstance(s, For) and s.var == tile.lane)
    scope = replace(scope, facts=inside(scope.facts, loop))
    columns = range(0, tile.columns, tile.lanes)
    yield depth, "{"
    for text in _asked_ahead(tile, steps[0], scope):
        yield depth + 1, text
    for number, column in enumerate(columns):
        rights = [substitute(tile.right, {tile.column: Const(column, INDEX), **step}) for step in steps]
        text = _side_by_side(rights, tile, what, scope) or _together(
            f"tsc_pair_{what}", [vector(right, lanes, scope) for right in rights])
        yield depth + 1, f"const {kind} tsc_b{number} = {text};"
    place = flatten(tile.acc, tile.index, scope, {})
    chosen = None if rows else _chosen_for_all_rows(tile)  # by a condition that pairs do not have
    if chosen is not None:
        yield from _choice(*chosen, tile, scope, depth + 1)
    for row in range(tile.rows):
        left = rows[row] if rows else f"tsc_c{row}"
        if chosen is None and not rows:
            left = _of_steps([substitute(tile.left, {tile.row: Const(row, INDEX), **step}) for step in steps], scope)
        yield depth + 1, f"const {kind} tsc_a{row} = {splat(left, given, tile.lanes)};"
        for number, column in enumerate(columns):
            at = {tile.row: row, tile.column: column, tile.lane: 0}
            acc, factors = register_at(tile.acc, place, at, lanes, scope), (f"tsc_a{row}", f"tsc_b{number}")
            yield depth + 1, f"{acc} = {accumulate}({acc}, {', '.join(factors if in_order else factors[::-1])});"
    yield depth, "}"


def _side_by_side(rights: Sequence[Expr], tile: FmaTile, what: str, scope: Scope) -> str | None:
    """Columns of several steps that lie side by side in memory, if they do."""
    match as_narrow(rights[0]):
        case Load(buffer=buffer, index=place) if buffer.beside is not None and len(rights) == buffer.beside[1]:
            first = tuple(substitute(i, {tile.lane: Const(0, INDEX)}) for i in place)
            at = f"&{scope.name(f'buffer {buffer.name}')}[{offset_text(buffer, first, scope)}]"
            whole = item_bytes(buffer.dtype) * len(rights) == 4
            return f"tsc_side_by_side_{what}({at})" if whole else f"tsc_pairs_of_{buffer.dtype}_{what}({at})"
    return None


def _together(function: str, texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{function}({', '.join(texts)})"


def _of_steps(values: Sequence[Expr], scope: Scope) -> str:
    """A scalar of one step, or those of several in one, which are read together where they are neighbours in memory."""
    function = f"tsc_{WORDS[len(values)][0]}_int32" if len(values) > 1 else ""
    match as_narrow(values[0]):
        case Load(buffer=buffer, index=first) if (
                len(values) > 1 and buffer.name not in scope.registers and item_bytes(buffer.dtype) * len(values) == 4
                and all(_is_behind(value, k, buffer, first, scope) for k, value in enumerate(values))):
            return f"tsc_together_at(&{scope.name(f'buffer {buffer.name}')}[{offset_text(buffer, first, scope)}])"
    return _together(function, [scalar(as_narrow(value) if len(values) > 1 else value, scope) for value in values])


def _is_behind(value: Expr, distance: int, buffer: Buffer, first: tuple[Expr, ...], scope: Scope) -> bool:
    """Whether a value is the element so far behind another one of a buffer."""
    found, leaves = as_narrow(value), dict[str, Expr]()
    return isinstance(found, Load) and found.buffer == buffer and (
        flatten(buffer, found.index, scope, leaves) - flatten(buffer, first, scope, leaves)).as_int() == distance


def _chosen_for_all_rows(tile: FmaTile) -> tuple[Expr, Expr, Expr] | None:
    """The condition by which the left operand is chosen, and its two sides, where that is the same in all rows."""
    match tile.left:
        case Call(fn="select", args=(condition, yes, no)) if tile.row not in variables(condition):
            return condition, yes, no
    return None


def _choice(condition: Expr, yes: Expr, no: Expr, tile: FmaTile, scope: Scope, depth: int) -> Iterator[tuple[int, str]]:
    """The left operands `tsc_c0`, `tsc_c1`, ... by one branch for all rows: gcc takes time by the square of their number."""
    rows = range(tile.rows)
    yield depth, f"{c_type(tile.acc.dtype)} {', '.join(f'tsc_c{row}' for row in rows)};"
    for head, side in ((f"if ({scalar(condition, scope)}) {{", yes), ("} else {", no)):
        yield depth, head
        for row in rows:
            yield depth + 1, f"tsc_c{row} = {_of_row(side, row, tile, scope)};"
    yield depth, "}"


def _of_row(expr: Expr, row: int, tile: FmaTile, scope: Scope) -> str:
    return scalar(substitute(expr, {tile.row: Const(row, INDEX)}), scope)


def _asked_ahead(tile: FmaTile, step: Mapping[str, Expr], scope: Scope) -> Iterator[str]:
    """Prefetches of what a step some bytes further on reads of a panel, a cache line each. Beyond its end they do nothing."""
    width = item_bytes(tile.acc.dtype)
    for load in loads(tile.right) if scope.prefetch else ():
        if load.buffer.panel is not None:
            for column in range(0, tile.columns, CACHE_LINE // width):
                first = {tile.column: Const(column, INDEX), tile.lane: Const(0, INDEX), **step}
                at = tuple(substitute(i, first) for i in load.index)
                place = f"&{scope.name(f'buffer {load.buffer.name}')}[{offset_text(load.buffer, at, scope)}]"
                yield f"__builtin_prefetch((const char *){place} + {scope.prefetch});"


def _render_square(lanes: int, meaning: Stmt, scope: Scope, depth: int) -> Iterator[tuple[int, str]]:
    """A call of the header's function, which transposes whole squares in registers."""
    square = read_square(meaning)
    if square is None or not isinstance(meaning, For) or not isinstance(meaning.body, For):
        raise InternalError("a square: it is no copy of rows into columns")
    within = replace(scope, facts=inside(inside(scope.facts, meaning), meaning.body))
    begin = {loop.var: loop.lo for loop in (square.along, square.across)}

    def side(buffer: Buffer, place: tuple[Expr, ...], var: str) -> str:
        """Where the square begins in a buffer, and how far apart its rows are, that is the elements along a loop."""
        leaves: dict[str, Expr] = {}
        apart = coefficient_of(flatten(buffer, place, within, leaves), var)
        if apart is None:
            raise InternalError(f"a square of {buffer} is not affine in {var}")
        first = offset_text(buffer, tuple(substitute(i, begin) for i in place), scope)
        return f"&{scope.name(f'buffer {buffer.name}')}[{first}], {sym_text(apart, leaves, scope)}"

    target = side(square.store.buffer, square.store.index, square.across.var)
    source = side(square.load.buffer, square.load.index, square.along.var)
    stored, columns = (scalar(call("sub", loop.hi, loop.lo), scope) for loop in (square.along, square.across))
    rows = stored
    if square.end is not None:
        leaves: dict[str, Expr] = {}
        rows = f"tsc_min_int64({sym_text(square.end - to_sym(square.along.lo, leaves), leaves, scope)}, {stored})"
    yield depth, f"tsc_square{lanes}({target}, {source}, {rows}, {columns}, {stored});"


INTRINSICS = {i.name: i for i in (
    TensorIntrin(FMA_TILE, _render_fma_tile), *(TensorIntrin(name, partial(_render_dot_tile, name)) for name in DOTS),
    *(TensorIntrin(name, partial(_render_square, lanes)) for lanes, name in SQUARES.items()))}

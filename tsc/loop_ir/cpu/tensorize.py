"""tensorize: the k steps of a contraction tile become the `fma_tile` intrinsic over accumulators in vector registers.

The schedule's tile is `acc[mr][nr]`, initialised, updated over k, then read by an epilogue. Where legal it becomes, for each
tile height 1 .. mr, a k loop of `fma_tile` on full-width columns; its result is left in an aligned stack tile for the epilogue.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from tsc.loop_ir.cpu.dots import DOTS, OF_WORDS, dots_of, taken_together
from tsc.loop_ir.cpu.vector_rules import varies
from tsc.loop_ir.cpu.window_tile import UNROLLED, WindowTile, reduce_loops
from tsc.loop_ir.facts import inside
from tsc.loop_ir.marks import EPILOGUE, FMA_TILE, INIT, PAIR_TILE, TILE_COLUMN, TILE_ROW, K
from tsc.loop_ir.nodes import (
    Allocate,
    Block,
    For,
    Func,
    If,
    Instance,
    Intrin,
    Let,
    Stmt,
    Store,
    block,
    map_children,
    map_exprs,
    walk,
)
from tsc.loop_ir.places import Place
from tsc.loop_ir.simplify import simplify_stmt, substitute_stmt
from tsc.loop_ir.verify_reads import unproved
from tsc.sym import SymExpr
from tsc.sym.expr import Apply, coefficient_of
from tsc.sym.facts import Facts
from tsc.target import DeviceSpec
from tsc.te.compute import facts_of
from tsc.te.expr import Buffer, Call, CheckedIndex, Const, Expr, Load, Var, add, call, index, item_bytes, loads, substitute
from tsc.te.expr import map_children as map_operands
from tsc.te.expr import walk as walk_expr
from tsc.te.index import to_sym
from tsc.te.passes.products import PRODUCTS

#: What register tiles sum up.
_SUMS = ("float32", "float64", "int32")
#: rows, columns, lanes, and the buffer to leave the result in.
_MicroKernel = Callable[[int, int, int, Buffer], Stmt]


@dataclass(frozen=True, slots=True)
class FmaTile:
    """`acc[row, column + lane] += left * right` for all rows and columns of one k step; `left` is the same in all columns. `fn`
    is what multiplies them; `turned`: the right one first."""

    acc: Buffer
    index: tuple[Expr, ...]
    row: str
    rows: int
    column: str
    columns: int
    lane: str
    lanes: int
    left: Expr
    right: Expr
    instance: Instance | None = None
    fn: str = "mul"
    turned: bool = False


@dataclass(frozen=True, slots=True)
class _Tile:
    """A tile as the schedule made it, its loops starting at 0: `acc[row, column] = fn(acc[row, column], value)`. `started` and
    `instance` are what its initialisation and its update execute."""

    acc: Buffer
    rows: Expr
    width: Expr
    init: Expr
    started: Instance | None
    loops: tuple[For, ...]
    row: str
    column: str
    fn: str
    value: Expr
    instance: Instance | None
    epilogue: tuple[Stmt, ...]


def fma_tile(tile: FmaTile) -> Intrin:
    """The intrinsic and its meaning: of words it is that which takes as many steps as they have parts."""
    place = (*tile.index[:-1], add(tile.index[-1], Var(tile.lane)))
    product = call(tile.fn, *((tile.right, tile.left) if tile.turned else (tile.left, tile.right)))
    update = Store(tile.acc, place, call("add", Load(tile.acc, place), product), tile.instance)
    return Intrin(OF_WORDS.get(tile.fn, FMA_TILE), _tile_loops(update, tile))


def _tile_loops(body: Stmt, tile: FmaTile) -> Stmt:
    inner = For(tile.lane, index(0), index(tile.lanes), body, kind="vector")
    columns = For(tile.column, index(0), index(tile.columns), inner, step=tile.lanes, kind="unroll", mark=FMA_TILE)
    return For(tile.row, index(0), index(tile.rows), columns, kind="unroll", mark=FMA_TILE)


def read_fma_tile(meaning: Stmt) -> FmaTile | None:
    """The parts of a statement of `fma_tile`'s form, None where it is not one."""
    match meaning:
        case For(var=row, hi=Const(value=rows), kind="unroll", body=For(
                var=column, hi=Const(value=columns), kind="unroll", body=For(
                    var=lane, hi=Const(value=lanes), kind="vector", body=Store(buffer=acc, index=place, instance=instance,
                        value=Call(fn="add", args=(Load(), Call(fn=fn, args=(first, second)))))))) if fn in PRODUCTS:
            turned = fn != "mul" and varies(first, lane)
            factors = (second, first) if turned else (first, second)
            return FmaTile(acc, place, row, int(rows), column, int(columns), lane, int(lanes), *factors, instance, fn, turned)
    return None


def tensorize(func: Func, spec: DeviceSpec) -> tuple[Func, tuple[str, ...]]:
    """`func` with its contraction tiles on `fma_tile`, and for each tile left as it was the reason."""
    reasons: list[str] = []

    def visit(stmt: Stmt, facts: Facts) -> Stmt:
        match stmt:
            case Allocate(scope="register", buffer=buffer) if _is_accumulator(stmt):
                made = _tensorize_tile(stmt, facts, spec)
                if isinstance(made, str):
                    reasons.append(f"{buffer.name}: {made}")
                    return replace(stmt, scope="stack")  # an array: only register tiles compute columns that nobody stores
                return made
            case For() | Let():
                inner = inside(facts, stmt)
                return map_children(lambda s: visit(s, inner), stmt)
        return map_children(lambda s: visit(s, facts), stmt)

    return replace(func, body=visit(func.body, facts_of(func.sizes))), tuple(reasons)


def _is_accumulator(stmt: Allocate) -> bool:
    return len(stmt.buffer.shape) == 2 and any(isinstance(s, For) and s.mark == K for s in walk(stmt.body))


def _tensorize_tile(stmt: Allocate, facts: Facts, spec: DeviceSpec) -> Stmt | str:
    tile = _match(stmt, facts)
    if isinstance(tile, str):
        return tile
    rows, columns = (e.as_int() for e in stmt.buffer.shape)
    lanes = spec.vector_bytes // item_bytes(stmt.buffer.dtype)
    if not lanes:
        return "there are no vectors"
    if rows is None or columns is None or columns % lanes:
        return f"a tile of {stmt.buffer} is not whole vectors of {lanes}"
    if stmt.buffer.dtype not in _SUMS:
        return f"{stmt.buffer.dtype} accumulators are not vectorized"
    inner = facts
    for loop in tile.loops:
        inner = inside(inner, loop)
    height, width, vectors = (f"{stmt.buffer.name}_{part}" for part in ("rows", "width", "vectors"))
    micro_kernel = _micro_kernels(replace(tile, width=Var(width)), columns, lanes, inner, spec)
    if isinstance(micro_kernel, str):
        return micro_kernel
    spilled = Buffer(f"{stmt.buffer.name}_tile", stmt.buffer.dtype, stmt.buffer.shape)
    chosen: Stmt = Block(())
    widths = sorted({-(-w // lanes) for w in _extents(tile.width, columns, inner)})
    for count in sorted(_extents(tile.rows, rows, inner)):
        micro: Stmt = Block(())
        for wide in widths:  # what a narrow tile at the end does not need is not computed
            narrow = micro_kernel(count, wide * lanes, lanes, spilled)
            micro = narrow if micro == Block(()) else If(call("lt", Var(vectors), index(wide)), micro, narrow)
        chosen = micro if chosen == Block(()) else If(call("eq", Var(height), index(count)), micro, chosen)
    epilogue = _rebuffer(block(*tile.epilogue), stmt.buffer, spilled)
    needed = call("floordiv", add(Var(width), index(lanes - 1)), index(lanes))
    whole = Let(height, tile.rows, Let(width, tile.width, Let(vectors, needed, block(chosen, epilogue))))
    made = simplify_stmt(Allocate(spilled, "stack", whole), facts, keep_marked=True)
    return unproved(made, Place(facts)) or made  # whole vectors read for columns that nobody stores


def _micro_kernels(tile: _Tile, columns: int, lanes: int, facts: Facts, spec: DeviceSpec) -> _MicroKernel | str:
    """What makes the tile for some rows and columns: a matrix product where it is one, else what a WindowTile can do."""
    factors = _factors(tile)
    refused = factors if isinstance(factors, str) else _check_columns(tile, factors[1], columns, facts)
    fn = tile.value.fn if isinstance(tile.value, Call) else ""
    needed = OF_WORDS.get(fn, FMA_TILE)
    if needed not in spec.intrinsics:
        refused = f"the device has no {needed}"
    if refused is None and not isinstance(factors, str):
        if fn in OF_WORDS:
            return partial(_micro_kernel, tile, *factors, facts, FMA_TILE)
        dots = dots_of(*factors, tile.acc.dtype, spec.intrinsics)
        stored = [load for load in loads(factors[1]) if load.buffer.beside is not None]
        if stored:
            dots = frozenset(dot for dot in dots if all(_side_by_side(x, DOTS[dot], tile.loops[-1], facts) for x in stored))
            if not dots:
                return "its column operand has steps side by side, which are not taken together"
        return partial(_micro_kernel, tile, *factors, facts, next(iter(dots if stored else dots & {PAIR_TILE}), FMA_TILE))
    window = WindowTile(tile.acc, tile.loops, tile.row, tile.column, tile.width, tile.init, tile.started, tile.fn, tile.value,
                        tile.instance, has_masks=spec.masks)
    window = window.unmasked(columns, facts)
    again = window.refusal(columns, lanes, facts, spec)
    return window.micro_kernel if again is None else f"{refused}; {again}"


# -- matching --------------------------------------------------------------------------------------------------

def _match(stmt: Allocate, facts: Facts) -> _Tile | str:
    acc = stmt.buffer
    parts = [_from_zero(s, facts) for s in (stmt.body.body if isinstance(stmt.body, Block) else (stmt.body,))]
    at = [i for i, s in enumerate(parts) if isinstance(s, For) and s.mark == K]
    if len(at) != 1 or at[0] != 1:
        return "not an initialisation followed by one k loop"
    init, epilogue = parts[0], tuple(parts[2:])
    match init:
        case For(var=first, hi=rows, body=For(var=second, hi=width, body=Store(
                buffer=target, index=place, value=value, instance=started))) if (
                    _is_cell(place, first, second, rows) and target == acc):
            if any(isinstance(n, (Var, Load)) for n in walk_expr(value)):
                return "its initial value is not a constant"
        case _:
            return "its initialisation is not two loops over the tile"
    loops: list[For] = []
    body: Stmt = parts[1]
    while isinstance(body, For) and body.mark == K:
        loops.append(body)
        facts = inside(facts, body)
        body = _from_zero(body.body, facts)
    match body:
        case For(var=i, hi=update_rows, body=For(var=j, body=Store(buffer=target, index=place, value=Call(
                fn=fn, args=(Load(buffer=source, index=again), operand)), instance=instance))) \
                if place == again and _is_cell(place, i, j, update_rows) and target == source == acc:
            pass
        case _:
            return "its k loop is not acc[i, j] = fn(acc[i, j], ..) over the tile"
    if any(load.buffer == acc for load in loads(operand)):
        return "its k loop uses the running values"
    if update_rows != rows:
        return "its initialisation and its k loop have different heights"
    if any(isinstance(s, Store) and s.buffer == acc for e in epilogue for s in walk(e)):
        return "its epilogue writes the accumulators"
    started = started and started.at({first: Var(i), second: Var(j)})
    return _Tile(acc, rows, width, value, started, tuple(loops), i, j, fn, operand, instance, epilogue)


def _is_cell(place: tuple[Expr, ...], row: str, column: str, rows: Expr) -> bool:
    """Whether `place` is the tile's [row, column]; the only row may be written 0."""
    return place == (Var(row), Var(column)) or (place == (index(0), Var(column)) and rows == index(1))


def _from_zero(stmt: Stmt, facts: Facts) -> Stmt:
    """Loops over the tile rewritten to start at 0: the schedule may count in global coordinates."""
    if isinstance(stmt, For) and stmt.mark in (TILE_ROW, TILE_COLUMN, INIT, EPILOGUE):
        if stmt.lo != index(0) and stmt.step == 1:
            moved = substitute_stmt(stmt.body, {stmt.var: add(Var(stmt.var), stmt.lo)})
            stmt = replace(stmt, lo=index(0), hi=call("sub", stmt.hi, stmt.lo), body=moved)
        simplified = simplify_stmt(stmt, facts, keep_marked=True)
        if not isinstance(simplified, For):
            return simplified
        return replace(simplified, body=_from_zero(simplified.body, inside(facts, simplified)))
    if isinstance(stmt, Block):
        return Block(tuple(_from_zero(s, facts) for s in stmt.body))
    return stmt


def _factors(tile: _Tile) -> tuple[Expr, Expr] | str:
    """The factors of a sum of products as (row operand, column operand), or why there are none."""
    if tile.fn == "add" and isinstance(tile.value, Call) and tile.value.fn in PRODUCTS:
        a, b = tile.value.args
        in_a, in_b = varies(a, tile.column), varies(b, tile.column)
        if in_a != in_b:
            left, right = (b, a) if in_a else (a, b)
            if not varies(right, tile.row):
                return left, right
    return "its k step is not a product of a row operand and a column operand"


def _extents(extent: Expr, whole: int, facts: Facts) -> set[int]:
    """The extents that a tile of up to `whole` can have: `min(e, whole)` takes two values where e is a constant less what
    `whole` divides."""
    leaves: dict[str, Expr] = {}
    sym = facts.reduce(to_sym(extent, leaves))
    match sym.terms:
        case (((), value),):
            return {value}
        case ((((Apply(fn="min", args=args),), 1)),):
            rest = [a for a in args if a != SymExpr.of(whole)]
            constant = sum(c for m, c in rest[0].terms if not m)
            if len(rest) == 1 and facts.divisor(rest[0] - constant) % whole == 0:
                return {whole, constant % whole or whole}
    return set(range(1, whole + 1))


# -- legality --------------------------------------------------------------------------------------------------

def _check_columns(tile: _Tile, right: Expr, columns: int, facts: Facts) -> str | None:
    """Why the column operand cannot be read in whole rows of the tile, or None."""
    inner = inside(facts, For(tile.row, index(0), tile.rows, Block(())))
    inner = inside(inner, For(tile.column, index(0), index(columns), Block(())))
    for load in loads(right):
        position = -1 if load.buffer.panel is None else load.buffer.panel[0]
        leaves: dict[str, Expr] = {}
        places = [to_sym(i, leaves) for i in load.index]
        if any(isinstance(n, (Load, CheckedIndex)) for leaf in leaves.values() for n in walk_expr(leaf)):
            return f"the index of its column operand {load.buffer.name} depends on data"
        moving = [n for n, place in enumerate(places) if tile.column in place.dims()]
        if not moving:
            continue
        if moving != [position % len(places)] or coefficient_of(places[position], tile.column) != SymExpr.of(1):
            return f"its column operand {load.buffer.name} is not contiguous along the columns"
        first = places[position].substitute({tile.column: SymExpr.of(0)})
        if load.buffer.panel is not None:
            if load.buffer.panel[1] % columns or inner.divisor(first) % columns:
                return f"its column operand {load.buffer.name} has panels of {load.buffer.panel[1]} for a tile of {columns}"
        elif not inner.lt(places[position], load.buffer.shape[-1]):
            return f"columns of {load.buffer.name} beyond its extent would be read"
    if any(isinstance(n, Call) and n.fn == "select" for n in walk_expr(right)):
        return "its column operand is chosen by a condition"
    return None


def _side_by_side(load: Load, count: int, steps: For, facts: Facts) -> bool:
    """Whether so many steps of a loop at a time, from its first on, are those that a layout has side by side."""
    along, stored = load.buffer.beside or (0, 1)
    low, leaves = to_sym(steps.lo, {}), dict[str, Expr]()
    place = to_sym(load.index[along], leaves)
    others = (low, to_sym(steps.hi, {}) - low, place.substitute({steps.var: SymExpr.of(0)}))
    return (count == stored and not leaves and coefficient_of(place, steps.var) == SymExpr.of(1)
            and all(facts.divisor(o) % count == 0 for o in others))


# -- building --------------------------------------------------------------------------------------------------

def _micro_kernel(tile: _Tile, left: Expr, right: Expr, facts: Facts, intrinsic: str, rows: int, columns: int, lanes: int,
                  spilled: Buffer) -> Stmt:
    """The tile for some rows and columns, as many k steps at a time as an intrinsic takes, of a loop that stands where `facts`
    hold."""
    name = tile.acc.name
    acc = replace(tile.acc, name=f"{name}_{rows}x{columns}", shape=(SymExpr.of(rows), SymExpr.of(columns)))
    row, column, lane = (f"{name}_{part}" for part in ("row", "column", "lane"))
    place = (Var(row), Var(column))
    whole = add(Var(column), Var(lane))
    moved: dict[str, Expr] = {tile.row: Var(row), tile.column: whole}
    step = FmaTile(acc, place, row, rows, column, columns, lane, lanes, substitute(left, moved), substitute(right, moved),
                   tile.instance and tile.instance.at(moved), *_multiplied_by(tile.value, right))
    if intrinsic == FMA_TILE:
        update = reduce_loops(tile.loops, fma_tile(step), rows * columns // lanes)
    else:
        *outer, last = tile.loops
        update = reduce_loops(tuple(outer), taken_together(last, fma_tile(step), intrinsic, facts), UNROLLED)
    start = _tile_loops(Store(acc, (Var(row), whole), tile.init, tile.started and tile.started.at(moved)), step)
    finish = _tile_loops(Store(spilled, (Var(row), whole), Load(acc, (Var(row), whole))), step)
    return Allocate(acc, "register", block(start, update, finish))


def _multiplied_by(product: Expr, right: Expr) -> tuple[str, bool]:
    """What multiplies two factors, and whether the right one stands first where that is of consequence."""
    assert isinstance(product, Call)
    return product.fn, product.fn in OF_WORDS and product.args[0] == right


def _rebuffer(stmt: Stmt, old: Buffer, new: Buffer) -> Stmt:
    def swap(expr: Expr) -> Expr:
        inner = map_operands(swap, expr)
        return replace(inner, buffer=new) if isinstance(inner, Load) and inner.buffer == old else inner

    return map_exprs(swap, stmt)

"""Broken loops: a random change to the final loops of a kernel. Validation refuses it, or they are still right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

from tests.fuzz.check import Made, compare_variant
from tsc.errors import InternalError
from tsc.loop_ir.nodes import Allocate, Block, For, Func, If, Intrin, Let, Stmt, Store, children, map_children
from tsc.loop_ir.verify import verify
from tsc.sym import SymExpr
from tsc.te.expr import Call, Const, Expr, Var, add, call, index, loads, select, substitute
from tsc.te.expr import map_children as map_operands
from tsc.te.expr import walk as walk_expr

#: A statement changed, None where there is nothing to change.
Change = Callable[[Stmt, Random], Stmt | None]


def check_broken(made: Made, rng: Random, count: int) -> Counter[str]:
    """What became of `count` broken variants of a kernel's loops. Raises Wrong for one that a compile would accept and that
    computes something else at one of the tested sizes."""
    found: Counter[str] = Counter()
    for _ in range(count):
        broken = break_loops(made.lowered, rng)
        if broken is None:
            found["broken loops not applicable"] += 1
            continue
        kind, func = broken
        try:
            undecided = made.values(func)
        except InternalError:
            found["broken loops refused"] += 1
            continue
        try:
            undecided = made.order(func) or undecided
        except InternalError:
            found["broken loops refused by order alone"] += 1
            continue
        if made.stored(made.lowered) and not made.stored(func):
            found["broken loops refused by storage alone"] += 1
            continue
        compare_variant(made, func, f"broken loops: {kind}", rng)
        found[f"broken loops {'undecided' if undecided else 'equivalent'}: {kind}"] += 1
    return found


def break_loops(func: Func, rng: Random) -> tuple[str, Func] | None:
    """A random change that keeps the rules of the loop IR, by name; None where none was found."""
    for _ in range(8):
        kind = rng.choice(list(CHANGES))
        changed = broken(func, kind, rng)
        if changed is None or changed == func:
            continue
        try:
            verify(changed)
        except InternalError:
            continue
        return kind, changed
    return None


def broken(func: Func, kind: str, rng: Random) -> Func | None:
    """`func` with one statement changed, None where that cannot be done to any."""
    change = CHANGES[kind]
    places = [place for place, stmt in _statements(func.body) if change(stmt, Random(0)) is not None]
    if not places:
        return None
    place = rng.choice(places)
    return replace(func, body=_at(func.body, place, lambda s: change(s, rng) or s))


def _statements(stmt: Stmt, place: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Stmt]]:
    yield place, stmt
    for number, child in enumerate(children(stmt)):
        yield from _statements(child, (*place, number))


def _at(stmt: Stmt, place: tuple[int, ...], change: Callable[[Stmt], Stmt]) -> Stmt:
    if not place:
        return change(stmt)
    number = iter(range(len(children(stmt))))
    return map_children(lambda s: _at(s, place[1:], change) if next(number) == place[0] else s, stmt)


# -- changes ---------------------------------------------------------------------------------------------------

def swap_statements(stmt: Stmt, rng: Random) -> Stmt | None:
    """Two neighbours change places."""
    if not isinstance(stmt, Block) or len(stmt.body) < 2:
        return None
    k = rng.randrange(len(stmt.body) - 1)
    parts = list(stmt.body)
    parts[k], parts[k + 1] = parts[k + 1], parts[k]
    return Block(tuple(parts))


def drop_statement(stmt: Stmt, rng: Random) -> Stmt | None:
    """One of several statements is missing."""
    if not isinstance(stmt, Block) or len(stmt.body) < 2:
        return None
    k = rng.randrange(len(stmt.body))
    return Block((*stmt.body[:k], *stmt.body[k + 1:]))


def write_neighbour(stmt: Stmt, rng: Random) -> Stmt | None:
    """A store goes to the element before or after."""
    if not isinstance(stmt, Store) or not stmt.index:
        return None
    return replace(stmt, index=_moved(stmt.index, rng))


def read_neighbour(stmt: Stmt, rng: Random) -> Stmt | None:
    """A load reads the element before or after."""
    if not isinstance(stmt, Store):
        return None
    found = [x for x in loads(stmt.value) if x.index]
    if not found:
        return None
    chosen = rng.choice(found)
    return replace(stmt, value=_replaced(stmt.value, chosen, replace(chosen, index=_moved(chosen.index, rng))))


def _moved(place: tuple[Expr, ...], rng: Random) -> tuple[Expr, ...]:
    k = rng.randrange(len(place))
    return (*place[:k], call(rng.choice(["add", "sub"]), place[k], index(1)), *place[k + 1:])


def shift_lanes(stmt: Stmt, rng: Random) -> Stmt | None:
    """The stores of a vector loop are off by one lane, or what they load is."""
    if not (isinstance(stmt, For) and stmt.kind == "vector"):
        return None
    stored, shift = rng.random() < 0.5, {stmt.var: add(Var(stmt.var), index(1))}

    def visit(s: Stmt) -> Stmt:
        if not isinstance(s, Store):
            return map_children(visit, s)
        if stored:
            return replace(s, index=tuple(substitute(i, shift) for i in s.index))
        return replace(s, value=substitute(s.value, shift))

    return map_children(visit, stmt)


def invert_condition(stmt: Stmt, rng: Random) -> Stmt | None:
    """A guard or a mask holds where it did not."""
    if not isinstance(stmt, If):
        return None
    return replace(stmt, condition=Call("not", (stmt.condition,), "bool"))


def drop_condition(stmt: Stmt, rng: Random) -> Stmt | None:
    """A guard or a mask is missing."""
    return stmt.then if isinstance(stmt, If) else None


def drop_branch(stmt: Stmt, rng: Random) -> Stmt | None:
    """Only one of two sides is there."""
    return replace(stmt, otherwise=None) if isinstance(stmt, If) and stmt.otherwise is not None else None


def invert_select(stmt: Stmt, rng: Random) -> Stmt | None:
    """A choice within a value takes the other side."""
    if not isinstance(stmt, Store):
        return None
    found = [e for e in walk_expr(stmt.value) if isinstance(e, Call) and e.fn == "select"]
    if not found:
        return None
    chosen = rng.choice(found)
    condition, yes, no = chosen.args
    return replace(stmt, value=_replaced(stmt.value, chosen, select(condition, no, yes)))


def change_bound(stmt: Stmt, rng: Random) -> Stmt | None:
    """A loop one iteration longer or shorter at either end, or without one operand of its bound."""
    if not isinstance(stmt, For) or stmt.kind == "block":
        return None
    one = index(1)
    choices: list[Stmt] = [replace(stmt, hi=call("sub", stmt.hi, one)), replace(stmt, lo=add(stmt.lo, one)),
                           replace(stmt, hi=add(stmt.hi, one)), replace(stmt, lo=call("sub", stmt.lo, one))]
    if isinstance(stmt.hi, Call) and stmt.hi.fn == "min":
        choices += [replace(stmt, hi=a) for a in stmt.hi.args]
    return rng.choice(choices)


def change_step(stmt: Stmt, rng: Random) -> Stmt | None:
    """A loop that takes other strides."""
    if not isinstance(stmt, For) or stmt.kind in ("block", "vector"):
        return None
    return replace(stmt, step=rng.choice([stmt.step + 1, stmt.step * 2, max(1, stmt.step - 1)]))


def change_let(stmt: Stmt, rng: Random) -> Stmt | None:
    """A name stands for one more or less."""
    if not isinstance(stmt, Let):
        return None
    return replace(stmt, value=call(rng.choice(["add", "sub"]), stmt.value, index(1)))


def change_constant(stmt: Stmt, rng: Random) -> Stmt | None:
    """A literal in a value is another one."""
    if not isinstance(stmt, Store):
        return None
    found = [e for e in walk_expr(stmt.value) if isinstance(e, Const) and e.dtype != "bool"]
    if not found:
        return None
    chosen = rng.choice(found)
    other: Expr = Const(chosen.value + 1 if abs(chosen.value) < 2**24 else 3, chosen.dtype)
    return replace(stmt, value=_replaced(stmt.value, chosen, other))


def change_operation(stmt: Stmt, rng: Random) -> Stmt | None:
    """An operation is another one of as many operands."""
    if not isinstance(stmt, Store):
        return None
    found = [e for e in walk_expr(stmt.value) if isinstance(e, Call) and e.fn in _OTHER]
    if not found:
        return None
    chosen = rng.choice(found)
    return replace(stmt, value=_replaced(stmt.value, chosen, replace(chosen, fn=_OTHER[chosen.fn])))


_OTHER = {"add": "sub", "sub": "add", "mul": "add", "max": "min", "min": "max", "lt": "le", "le": "lt", "ge": "gt", "gt": "ge",
          "floordiv": "mod", "mod": "floordiv"}


def swap_index(stmt: Stmt, rng: Random) -> Stmt | None:
    """Two coordinates of a store change places: a tile is transposed."""
    if not isinstance(stmt, Store) or len(stmt.index) < 2:
        return None
    a, b = rng.sample(range(len(stmt.index)), 2)
    place = list(stmt.index)
    place[a], place[b] = place[b], place[a]
    return replace(stmt, index=tuple(place))


def shrink_allocation(stmt: Stmt, rng: Random) -> Stmt | None:
    """Storage one element smaller; the accesses say the same as before."""
    if not isinstance(stmt, Allocate) or not stmt.buffer.shape or stmt.buffer.shape[-1] == SymExpr.of(1):
        return None
    *rest, last = stmt.buffer.shape
    small = replace(stmt.buffer, shape=(*rest, last - 1))

    def visit(s: Stmt) -> Stmt:
        inner = map_children(visit, s)
        if not isinstance(inner, Store):
            return inner
        found = [x for x in loads(inner.value) if x.buffer == stmt.buffer]
        value = inner.value
        for load in found:
            value = _replaced(value, load, replace(load, buffer=small))
        return replace(inner, value=value, buffer=small if inner.buffer == stmt.buffer else inner.buffer)

    return replace(stmt, buffer=small, body=visit(stmt.body))


def accumulate_again(stmt: Stmt, rng: Random) -> Stmt | None:
    """A statement is executed twice."""
    return Block((stmt, stmt)) if isinstance(stmt, Store | Intrin) else None


def _replaced(expr: Expr, old: Expr, new: Expr) -> Expr:
    return new if expr == old else map_operands(lambda e: _replaced(e, old, new), expr)


CHANGES: dict[str, Change] = {
    "swapped statements": swap_statements, "dropped statement": drop_statement, "written neighbour": write_neighbour,
    "read neighbour": read_neighbour, "shifted lanes": shift_lanes, "inverted condition": invert_condition,
    "dropped condition": drop_condition, "dropped branch": drop_branch, "inverted select": invert_select,
    "changed bound": change_bound, "changed step": change_step, "changed let": change_let,
    "changed constant": change_constant, "changed operation": change_operation, "swapped coordinates": swap_index,
    "smaller allocation": shrink_allocation, "executed twice": accumulate_again}

"""What passes keep in storage of their own: proved to stay within it, and one element less of it is found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import pytest

from tests.loop_ir.funcs import buffer, c32, size, store
from tests.poly.test_refine import PROGRAMS, lowered, scheduled
from tsc.codegen_c.specs import CPU_SPECS
from tsc.errors import InternalError
from tsc.loop_ir.nodes import Allocate, For, Func, If, Stmt, Store, map_children, map_exprs, walk
from tsc.loop_ir.places import places_of
from tsc.loop_ir.verify_storage import verify_storage
from tsc.te.compute import SizeParam
from tsc.te.expr import BOOL, Buffer, Call, Expr, Load, Var, call, index, map_loads, mul, select


def with_storage(stmt: Stmt, old: Buffer, new: Buffer) -> Stmt:
    """`stmt` with other storage in place of `old`, accessed as before."""
    def load(found: Load) -> Expr:
        return replace(found, buffer=new) if found.buffer == old else found

    def visit(node: Stmt) -> Stmt:
        node = map_children(visit, node)
        return replace(node, buffer=new) if isinstance(node, (Store, Allocate)) and node.buffer == old else node

    return map_exprs(lambda e: map_loads(load, e), visit(stmt))


def smaller(before: Func, after: Func) -> Iterator[tuple[str, Func]]:
    """`after` with one element less in one dimension of one storage that `before` has not."""
    given = {s.buffer for s in walk(before.body) if isinstance(s, Allocate)}
    for old in {s.buffer: None for s in walk(after.body) if isinstance(s, Allocate) and s.buffer not in given}:
        for axis, extent in enumerate(old.shape):
            new = replace(old, shape=(*old.shape[:axis], extent - 1, *old.shape[axis + 1:]))
            yield f"{old.name}[{axis}]", replace(after, body=with_storage(after.body, old, new))


@pytest.mark.parametrize(("name", "device"), [
    pytest.param(name, device, marks=pytest.mark.slow if device == ("cpu-generic", "cpu-avx2")[k % 2] else ())
    for k, name in enumerate(PROGRAMS) for device in CPU_SPECS])
def test_one_element_less_is_found(name: str, device: str) -> None:
    before, after = scheduled(name, device).func, lowered(name, device)
    verify_storage(before, places_of(after))
    for what, broken in smaller(before, after):
        with pytest.raises(InternalError, match="it is not proved that"):
            verify_storage(before, places_of(broken))
            raise AssertionError(f"{what} may be one smaller")


def test_there_is_storage_to_be_tried() -> None:
    assert sum(1 for name in PROGRAMS for _ in smaller(scheduled(name, "cpu-avx512").func, lowered(name, "cpu-avx512"))) > 20


TILE = buffer("tile", 4)
LOOP = Var("i")
INSIDE = call("lt", LOOP, index(4))
LAST = call("eq", Var("n"), index(4))


def chosen(condition: Expr, place: Expr, kind: Literal["serial", "vector"] = "serial") -> Stmt:
    """A loop of five that reads the tile under a condition."""
    return For("i", index(0), index(5), store(TILE, (index(0),), select(condition, Load(TILE, (place,)), c32(0))), 1, kind)


def guarded_square(below: int) -> Stmt:
    """What is stored at a third of the square of n < 5, where the square modulo 32 is less than `below`."""
    square = mul(Var("n"), Var("n"))
    place = call("floordiv", square, index(3))
    inside = call("lt", call("mod", square, index(32)), index(below))
    return For("n", index(0), index(5), If(inside, store(TILE, (place,), c32(0))))


@pytest.mark.parametrize(("body", "proved"), [
    (For("i", index(0), index(4), store(TILE, (LOOP,), c32(0))), True),
    (For("i", index(0), index(5), store(TILE, (LOOP,), c32(0))), False),
    (For("i", index(-1), index(4), store(TILE, (LOOP,), c32(0))), False),
    (For("i", index(0), size("N"), store(TILE, (LOOP,), c32(0))), False),
    (For("i", index(0), size("N"), If(INSIDE, store(TILE, (LOOP,), c32(0)))), True),
    (For("i", index(0), size("N"), If(INSIDE, store(TILE, (index(0),), c32(0)), store(TILE, (LOOP,), c32(0)))), False),
    (store(TILE, (index(0),), Load(TILE, (index(4),))), False),
    (chosen(INSIDE, LOOP), True),
    (chosen(Call("not", (INSIDE,), BOOL), LOOP), False),
    (chosen(INSIDE, LOOP, "vector"), True),
    (chosen(call("eq", LOOP, index(3)), LOOP), True),
    (chosen(call("eq", LOOP, index(4)), LOOP), False),
    (chosen(call("ne", LOOP, index(3)), LOOP), False),
    (chosen(Call("not", (call("ne", LOOP, index(3)),), BOOL), LOOP), True),
    (chosen(call("eq", LOOP, index(3)), LOOP, "vector"), False),  # all lanes read
    (For("n", index(0), index(5), If(LAST, chosen(call("eq", LOOP, index(4)), call("sub", LOOP, Var("n"))))), True),
    (For("n", index(0), index(6), If(LAST, chosen(call("eq", LOOP, index(3)), call("sub", LOOP, Var("n"))))), False),
    (For("n", index(0), index(6), chosen(call("eq", LOOP, index(4)), call("sub", LOOP, Var("n")))), False),
    (guarded_square(10), True),
    (guarded_square(17), False)])
def test_loops_and_conditions_bound_it(body: Stmt, proved: bool) -> None:
    before = Func("kernel", (), (), (SizeParam("N", 1),), store(TILE, (index(0),), c32(0)))
    after = replace(before, body=Allocate(TILE, "register", body))
    if proved:
        verify_storage(before, places_of(after))
    else:
        with pytest.raises(InternalError, match="kernel kernel: it is not proved that tile"):
            verify_storage(before, places_of(after))

"""Loops read for all sizes: what looks at other data in each iteration has no formula, and what does not need it has one."""

from __future__ import annotations

import pytest

from tests.poly.programs import axis, buffer
from tsc.loop_ir.nodes import For, If, Let, Stmt, Store
from tsc.poly.proof.occurrences import Occurrence, Scope, Unreadable, occurrences
from tsc.te.expr import Load, Size, Var, add, call, index, mul

IDS, TABLE, OUT = buffer("ids", "N", dtype="int64"), buffer("x", 9), buffer("y", "N")
SCOPE = Scope(("N",), texts={"N": "N"})
STORE = Store(OUT, (Var("i"),), Load(TABLE, (Var("v"),)))


def read(body: Stmt) -> Occurrence:
    """The one Store of `for i < N: let v = ids[i] in body`."""
    found, = occurrences(For("i", index(0), Size(axis("n", "N").extent), Let("v", Load(IDS, (Var("i"),)), body)), SCOPE)
    return found


def test_a_place_that_data_say_is_unknown_and_the_rest_is_not() -> None:
    found = read(STORE)
    assert found.relation(found.tuple_text("y", found.store.index)).is_equal(found.relation("y[i]"))
    assert "v" in found.scope.data
    for place in (Var("v"), add(Var("i"), Var("v")), mul(Var("v"), Var("i")), call("floordiv", Var("v"), index(2)),
                  call("max", Var("v"), Var("i"))):
        with pytest.raises(Unreadable, match="no formula"):
            found.tuple_text("y", (place,))


def test_what_depends_on_the_unknown_is_unknown() -> None:
    found = read(Let("w", add(Var("v"), index(1)), Let("u", add(Var("i"), index(1)), STORE)))
    assert found.relation(found.tuple_text("y", (Var("u"),))).is_equal(found.relation("y[i + 1]"))
    with pytest.raises(Unreadable, match="no formula"):
        found.tuple_text("y", (Var("w"),))


def test_conditions_and_bounds_need_formulas() -> None:
    for body in (If(call("lt", Var("v"), index(3)), STORE), For("j", index(0), Var("v"), STORE),
                 For("j", Var("v"), index(9), STORE, step=2)):
        with pytest.raises(Unreadable, match="no formula"):
            read(body)

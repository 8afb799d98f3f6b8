"""Folds of what goes to places: one store for each update, the values of a loop over all places, and what is left as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.loop_ir.funcs import buffer, c32, loop, store
from tests.poly.programs import axis
from tests.poly.support import run, scheduled
from tsc.codegen_c.specs import CPU_SPECS
from tsc.loop_ir.lower import lower
from tsc.loop_ir.marks import PLACE, REDUCE
from tsc.loop_ir.nodes import Allocate, For, Func, If, Let, Stmt, walk
from tsc.loop_ir.spots import store_at_spots
from tsc.poly.tile import TileConfig
from tsc.te.compute import MAX, MIN, PROD, SUM, Compute, Monoid, Program, SizeParam
from tsc.te.expr import INDEX, Buffer, CheckedIndex, Const, Expr, Load, Size, Var, add, call, index, loads, select
from tsc.te.passes.spots import nothing_of, spot_of, there

N, W, K = SizeParam("N"), SizeParam("W"), SizeParam("K")


def spread(monoid: Monoid, dtype: str, spots: tuple[str, ...], shape: tuple[str, ...], place: str) -> Program:
    """out[..] = the fold over k of u[.., k, ..], where spots[..] at k is the index `place` along one axis."""
    axes = {name.upper(): axis(name, name.upper()) for name in "nw"}
    k, u = axis("k", "K"), buffer("u", *("K" if s == place else s for s in shape), dtype=dtype)
    at = {"K": Var("k"), **{name: Var(a.name) for name, a in axes.items()}}
    t, out = buffer("t", *spots, dtype=INDEX), buffer("out", *shape, dtype=dtype)
    goes = call("eq", Load(t, tuple(at[s] for s in spots)), at[place])
    given = Load(u, tuple(at["K" if s == place else s] for s in shape))
    body = select(goes, given, nothing_of(monoid.fn, dtype))
    return Program((t, u), (out,), (Compute(out, tuple(axes[s] for s in shape), body, (k,), monoid),), (N, W, K))


PROGRAMS = {
    "rows": spread(SUM, "float32", ("K",), ("N", "W"), "N"), "greatest": spread(MAX, "float32", ("K",), ("N", "W"), "N"),
    "elements": spread(SUM, "float64", ("N", "K"), ("N", "W"), "W"), "least": spread(MIN, "int64", ("N", "K"), ("N", "W"), "W"),
    "columns": spread(PROD, "float32", ("K", "W"), ("N", "W"), "N"), "list": spread(SUM, "int32", ("K",), ("N",), "N"),
    "truths": spread(Monoid("or"), "bool", ("K",), ("N", "W"), "N")}
SIZES = ({"N": 1, "W": 1, "K": 1}, {"N": 7, "W": 19, "K": 40}, {"N": 37, "W": 5, "K": 90}, {"N": 3, "W": 33, "K": 2})


def given(program: Program, sizes: Mapping[str, int], seed: int) -> dict[str, Any]:
    """Updates, and where they go: beyond both ends too, and as far as numbers go."""
    rng = np.random.default_rng(seed)
    spots, updates = (tuple(d.evaluate(sizes) for d in b.shape) for b in program.inputs)
    far = rng.choice(np.array([np.iinfo(np.int64).min, np.iinfo(np.int64).max, -1, sizes["N"], sizes["W"]]), spots)
    goes = np.where(rng.random(spots) < 0.2, far, rng.integers(-2, max(sizes["N"], sizes["W"]) + 2, spots))
    return {"t": goes, "u": (rng.integers(-4, 5, updates) / 4).astype(program.inputs[1].dtype)}


def lowered(program: Program, rows: tuple[int, ...]) -> Func:
    made = scheduled(program, TileConfig(row_tile=rows))
    return lower(made.func, CPU_SPECS["cpu-avx512"])


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("size", [1, 8, 64])
def test_values_are_those_of_loops_over_all_places(name: str, size: int) -> None:
    program = PROGRAMS[name]
    before = lowered(program, (size,) * len(program.outputs[0].shape))
    after = store_at_spots(before)
    if size > 1:
        assert any(isinstance(s, For) and s.mark == PLACE for s in walk(before.body))
        assert not any(isinstance(s, For) and s.mark == PLACE for s in walk(after.body))
    for seed, sizes in enumerate(SIZES):
        inputs = given(program, sizes, seed)
        np.testing.assert_array_equal(run(after, program, sizes, inputs)["out"], run(before, program, sizes, inputs)["out"])


def test_values_are_numpys() -> None:
    program, sizes = PROGRAMS["rows"], SIZES[2]
    inputs, wanted = given(program, sizes, 5), np.zeros((sizes["N"], sizes["W"]), np.float32)
    for goes, row in zip(inputs["t"], inputs["u"]):
        if 0 <= goes < sizes["N"]:
            wanted[goes] += row
    np.testing.assert_array_equal(run(store_at_spots(lowered(program, (8, 8))), program, sizes, inputs)["out"], wanted)


@pytest.mark.parametrize("name", ["rows", "elements", "columns", "list"])
def test_an_update_is_stored_once(name: str) -> None:
    """However many places there are: each of them asked took as many steps as there are places."""
    program, sizes = PROGRAMS[name], {"N": 23, "W": 29, "K": 11}
    trace: list[Any] = []
    func = store_at_spots(lowered(program, (64,) * len(program.outputs[0].shape)))
    run(func, program, sizes, given(program, sizes, 1), trace)
    updates = [one for one in trace if one[0].endswith("_update")]
    assert 0 < len(updates) <= np.prod([d.evaluate(sizes) for d in program.inputs[1].shape])


# -- what is left as it is -------------------------------------------------------------------------------------

ACC, T, X = buffer("acc", 8), buffer("t", "K", dtype=INDEX), buffer("x", "N")
PLACES = Var("i")


def asked(update: Expr, *, at: Expr = PLACES, old: Expr | None = None, hi: Expr | int = 8) -> Func:
    """A loop over places within one over updates."""
    value = call("add", Load(ACC, (at,)) if old is None else old, update)
    inner = loop("i", 0, hi, store(ACC, (at,), value), mark=PLACE)
    body: Stmt = Allocate(ACC, "stack", loop("k", 0, Size(K_SIZE), inner, mark=REDUCE))
    return Func("f", (T, X), (), (N, K), loop("b", 0, 1, body, kind="block"))


K_SIZE = T.shape[0]
GOES: Expr = Load(T, (Var("k"),))
GIVEN: Expr = Load(X, (index(0),))
CHECKED = CheckedIndex(GOES, X.shape[0], "t")


def where(goes: Expr, place: Expr = PLACES, nothing: float = 0.0) -> Expr:
    return select(call("eq", goes, place), GIVEN, c32(nothing))


@pytest.mark.parametrize(("update", "changes"), [
    (where(GOES), {}), (where(GOES, add(PLACES, index(3))), {}), (where(CHECKED), {}),
    (select(call("lt", Var("k"), index(5)), where(GOES), c32(0)), {}),
    (select(call("and", call("eq", PLACES, GOES), call("lt", PLACES, index(5))), GIVEN, c32(0)), {})])
def test_loops_that_are_stores(update: Expr, changes: dict[str, Any]) -> None:
    assert not any(isinstance(s, For) and s.mark == PLACE for s in walk(store_at_spots(asked(update, **changes)).body))


@pytest.mark.parametrize(("update", "changes"), [
    (where(GOES, nothing=1.0), {}),                                                  # it adds something everywhere
    (where(GOES, nothing=-0.0), {}),
    (GIVEN, {}),
    (where(GOES, call("mul", PLACES, index(2))), {}),                                # places are others
    (where(add(GOES, PLACES)), {}),
    (select(call("or", call("eq", GOES, PLACES), call("lt", PLACES, index(1))), GIVEN, c32(0)), {}),
    (select(call("ne", GOES, PLACES), GIVEN, c32(0)), {}),
    (where(GOES), {"at": index(0), "old": Load(ACC, (index(1),))}),                  # it is no fold
    (where(CHECKED), {"hi": Size(X.shape[0] - 1)}),                                  # there may be no place that is asked
    (add(where(GOES), where(GOES)), {}),
    (select(call("lt", PLACES, index(5)), where(GOES), c32(0)), {}),                 # not all places may ask
    (select(call("and", call("lt", PLACES, index(5)), call("eq", PLACES, GOES)), GIVEN, c32(0)), {}),
    (select(call("lt", Var("k"), index(5)), where(GOES), where(GOES)), {}),
    (select(call("eq", GOES, PLACES), Load(X, (CheckedIndex(PLACES, X.shape[0], "t"),)), c32(0)), {})])
def test_loops_that_stay(update: Expr, changes: dict[str, Any]) -> None:
    func = asked(update, **changes)
    assert store_at_spots(func) == func


def test_what_conditions_guard_is_looked_at_under_them() -> None:
    """Where an update goes may lie beyond the memory that there is, but where a condition says that it does not."""
    condition, other = call("lt", Var("k"), index(5)), call("lt", index(1), Var("k"))
    (made,) = [s for s in walk(store_at_spots(asked(select(condition, c32(0), select(other, where(GOES), c32(0))))).body)
               if isinstance(s, For) and s.mark == REDUCE]
    assert isinstance(made.body, If) and made.body.condition == call("not", condition)
    assert isinstance(made.body.then, If) and made.body.then.condition == other and made.body.then.otherwise is None
    assert isinstance(made.body.then.then, Let)


def test_a_place_that_the_loop_itself_decides_stays() -> None:
    target = Buffer("acc", INDEX, ACC.shape)
    update = select(call("eq", Load(target, (index(0),)), PLACES), index(1), index(0))
    inner = loop("i", 0, 8, store(target, (PLACES,), call("add", Load(target, (PLACES,)), update)), mark=PLACE)
    func = Func("f", (target,), ("acc",), (N,), loop("b", 0, 1, inner, kind="block"))
    assert store_at_spots(func) == func


def test_loops_without_the_mark_stay() -> None:
    func = asked(where(GOES))
    (plain,) = [s for s in walk(func.body) if isinstance(s, For) and s.mark == PLACE]
    assert store_at_spots(replace(func, body=loop("b", 0, 1, replace(plain, mark=""), kind="block"))).body == loop(
        "b", 0, 1, replace(plain, mark=""), kind="block")


def test_spots_in_words() -> None:
    found = spot_of(where(GOES, add(PLACES, index(3))), "i", Const(0.0, "float32"))
    assert found is not None and (found.goes, str(found.offset)) == (GOES, "3")
    assert there(where(GOES), where(GOES).args[0]) == GIVEN  # type: ignore[union-attr, arg-type]
    assert {load.buffer.name for load in loads(found.test)} == {"t"}

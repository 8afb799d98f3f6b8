"""Verifier, simplifier, block mapping, scratch, tensorize and vectorize: what each accepts, refuses, and says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.loop_ir import funcs
from tests.loop_ir.funcs import buffer, c32, loop, minimum, size, store, sub
from tsc.codegen_c.specs import CPU_SPECS
from tsc.errors import InternalError
from tsc.loop_ir.cpu.tensorize import tensorize
from tsc.loop_ir.cpu.vectorize import vectorize
from tsc.loop_ir.lower import lower
from tsc.loop_ir.map_blocks import map_blocks
from tsc.loop_ir.nodes import Allocate, Block, For, Func, If, Intrin, Stmt, Store, block, map_children, walk
from tsc.loop_ir.oracle.interpret import interpret
from tsc.loop_ir.print import format_func, format_stmt
from tsc.loop_ir.scratch import plan_scratch
from tsc.loop_ir.simplify import simplify, substitute_stmt
from tsc.loop_ir.verify import verify
from tsc.sym import SymExpr, dim
from tsc.te.compute import SizeParam
from tsc.te.expr import BOOL, Buffer, Call, Const, Expr, Load, Size, Var, add, call, index, map_loads, select
from tsc.trace import Recorder

AVX512 = CPU_SPECS["cpu-avx512"]
X, Y = buffer("x", "N"), buffer("y", "N")


def func(body: Stmt, *buffers: Buffer, outputs: tuple[str, ...] = ("y",)) -> Func:
    return Func("f", buffers or (X, Y), outputs, (SizeParam("N"),), body)


def copy(var: str, lo: int = 0) -> For:
    return loop(var, lo, size("N"), store(Y, (Var(var),), Load(X, (Var(var),))), mark="inner")


@pytest.mark.parametrize(("body", "message"), [
    (store(Y, (Var("i"),), c32(0)), "variable i is used outside its scope"),
    (loop("i", 0, size("N"), copy("i")), "variable i is bound twice"),
    (loop("N", 0, 3, copy("i")), "variable N is bound twice"),
    (loop("i", 0, size("Z"), copy("j")), "uses sizes that the kernel does not have"),
    (loop("i", 0, size("N"), copy("j"), step=0), "has step 0"),
    (loop("i", 0, size("N"), copy("j"), kind="vector"), "no constant trip count"),
    (loop("i", 0, size("N"), loop("b", 0, 2, copy("j"), kind="block")), "block loop b is inside"),
    (Store(Y, (index(0), index(0)), c32(0)), "accessed with 2 indices"),
    (Store(Y, (index(0),), index(0)), "a int64 is stored"),
    (Store(buffer("z", "N"), (index(0),), c32(0)), "accessed where it is not in scope"),
    (Store(Y, (c32(0),), c32(0)), "an index is float32"),
    (Store(Y, (index(0),), Call("frobnicate", (c32(0),), "float32")), "unknown intrinsic 'frobnicate'"),
    (Store(Y, (index(0),), Call("add", (c32(0), Const(1.0, "float64")), "float32")), "operands differ in dtype"),
    (Store(Y, (index(0),), Call("select", (c32(1), c32(0), c32(0)), "float32")), "select on a float32"),
    (If(index(1), copy("i")), "a condition is int64"),
    (Allocate(buffer("x", 2), "stack", copy("i")), "allocated where that name is in use"),
    (Allocate(buffer("z", "N"), "register", copy("i")), "extents that are not constant"),
])
def test_the_verifier_names_what_is_wrong(body: Stmt, message: str) -> None:
    with pytest.raises(InternalError, match=message):
        verify(func(body))


LANE, TILE = Var("i"), buffer("tile", 16)


def lanes(*stores: Store) -> Func:
    """A vector loop of eight lanes in a buffer of twice as many, and in a matrix."""
    body = loop("i", 0, 8, block(*stores), kind="vector")
    return func(loop("b", 0, 1, Allocate(TILE, "stack", body), kind="block"))


def shifted(to: Expr, source: Expr) -> Store:
    return store(TILE, (to,), add(Load(TILE, (source,)), c32(1)))


@pytest.mark.parametrize("stores", [
    (shifted(add(LANE, index(1)), LANE),),                                    # each reads what the one before it writes
    (shifted(LANE, add(LANE, index(7))),),                                    # the first reads what the last one writes
    (shifted(LANE, sub(index(7), LANE)),),                                    # reversed in place
    (shifted(LANE, call("floordiv", LANE, index(2))),),                       # not linear
    (shifted(LANE, call("mul", Var("b"), index(3))),),                        # the same for all, wherever that is
    (store(TILE, (LANE,), c32(0)), store(TILE, (add(LANE, index(1)),), c32(1))),  # two statements, one after the other
    (store(TILE, (add(LANE, index(1)),), c32(0)), store(Y, (LANE,), Load(TILE, (LANE,)))),
])
def test_lanes_that_touch_each_others_elements_are_refused(stores: tuple[Store, ...]) -> None:
    with pytest.raises(InternalError, match="a lane of vector loop i stores to tile"):
        verify(lanes(*stores))


@pytest.mark.parametrize("stores", [
    (shifted(LANE, LANE),),
    (shifted(LANE, add(LANE, index(8))),),  # a fold in halves
    (shifted(call("mul", LANE, index(2)), add(call("mul", LANE, index(2)), index(1))),),
    (store(TILE, (LANE,), c32(0)), shifted(LANE, LANE), store(Y, (LANE,), Load(TILE, (LANE,)))),
])
def test_lanes_apart_pass(stores: tuple[Store, ...]) -> None:
    verify(lanes(*stores))


def test_the_verifier_checks_the_signature() -> None:
    with pytest.raises(InternalError, match="outputs"):
        verify(func(copy("i"), outputs=("q",)))
    with pytest.raises(InternalError, match="one name"):
        verify(func(copy("i"), X, X, Y))
    verify(func(copy("i")))


def test_trivial_loops_and_guards_go() -> None:
    inner = loop("j", Var("i"), add(Var("i"), index(1)), If(call("lt", Var("j"), size("N")), store(Y, (Var("j"),), c32(1))))
    dead = loop("z", 3, 3, store(Y, (Var("z"),), c32(2)))
    made = simplify(func(loop("i", 0, size("N"), inner, dead, If(call("lt", Var("i"), index(0)), dead))))
    assert format_stmt(made.body) == "for i in 0 .. <N>\n  y[i] = 1.0:float32  # S[i]\n"


def test_marked_loops_stay_while_passes_look_for_them() -> None:
    once = func(loop("k", 0, 1, store(Y, (Var("k"),), c32(1)), mark="k"))
    assert isinstance(simplify(once, keep_marked=True).body, For)
    assert isinstance(simplify(once).body, Store)


def test_block_bounds_must_be_sizes() -> None:
    ragged = loop("a", 0, 3, loop("b", Var("a"), size("N"), store(Y, (Var("b"),), c32(0)), kind="block"), kind="block")
    with pytest.raises(InternalError, match="block loop b depend on a"):
        map_blocks(func(ragged))
    with pytest.raises(InternalError, match="perfect outermost nest"):
        map_blocks(func(block(copy("i"), loop("a", 0, 3, copy("j"), kind="block"))))


def test_scratch_lies_behind_what_lives_and_siblings_share() -> None:
    a, b, c = (buffer(n, n.upper()) for n in "abc")
    body = Allocate(a, "scratch", block(Allocate(b, "scratch", Block(())), Allocate(c, "scratch", Block(()))))
    made = plan_scratch(Func("f", (), (), tuple(SizeParam(s) for s in "ABC"), body))
    offsets = {s.buffer.name: s.offset for s in walk(made.body) if isinstance(s, Allocate)}
    sizes = {"A": 17, "B": 3, "C": 100}
    assert {n: o.evaluate(sizes) for n, o in offsets.items()} == {"a": 0, "b": 128, "c": 128}
    assert made.scratch.evaluate(sizes) == 128 + 448


def test_scratch_that_keeps_nothing_takes_no_room() -> None:
    """Found by random programs: n elements forty apart lie within 40 * n - 39, which is below 0 where n is 0, and what
    lay behind began before the kernel's memory."""
    a, b = Buffer("a", "float32", (SymExpr.of(40) * dim("A") - 39,)), buffer("b", "B")
    body = Allocate(a, "scratch", Allocate(b, "scratch", Block(())))
    made = plan_scratch(Func("f", (), (), (SizeParam("A", 0), SizeParam("B", 1)), body))
    offsets = {s.buffer.name: s.offset for s in walk(made.body) if isinstance(s, Allocate)}
    for n, room in ((0, 0), (1, 64), (2, 192), (17, 2624)):
        sizes = {"A": n, "B": 3}
        assert {name: o.evaluate(sizes) for name, o in offsets.items()} == {"a": 0, "b": room}
        assert made.scratch.evaluate(sizes) == room + 64
    positive = plan_scratch(Func("f", (), (), (SizeParam("A", 1), SizeParam("B", 1)), body))
    assert "max" in str(made.scratch) and "max" not in str(positive.scratch)


def intrinsics(made: Func) -> list[Intrin]:
    return [s for s in walk(made.body) if isinstance(s, Intrin)]


def test_every_tile_height_and_width_gets_its_own_k_loop() -> None:
    made, reasons = tensorize(simplify(funcs.gemm_gelu("N", "K", 7, 64), keep_marked=True), AVX512)
    assert reasons == ()
    assert len(intrinsics(made)) == 7 * 4
    verify(made)


def global_coordinates(made: Func) -> Func:
    """The same tile with m = m1 + i and n = n1 + j as its loops."""

    def shift(stmt: Stmt) -> Stmt:
        inner = map_children(shift, stmt)
        if isinstance(inner, For) and inner.var in ("i", "j"):
            origin = Var("m1" if inner.var == "i" else "n1")
            body = substitute_stmt(inner.body, {inner.var: sub(Var(inner.var), origin)})
            end = minimum(add(inner.hi, origin), size("M" if inner.var == "i" else "N"))
            return replace(inner, lo=origin, hi=end, body=body)
        return inner

    return replace(made, body=shift(made.body))


def test_tiles_in_global_coordinates_are_found() -> None:
    made, reasons = tensorize(simplify(global_coordinates(funcs.gemm_gelu("N", "K", 7, 64)), keep_marked=True), AVX512)
    assert reasons == () and len(intrinsics(made)) == 7 * 4


def test_columns_that_are_not_there_are_not_read() -> None:
    plain = funcs.gemm_gelu("N", "K", 7, 64, packed=False)
    made, (reason,) = tensorize(simplify(plain, keep_marked=True), CPU_SPECS["cpu-generic"])
    assert "columns of w beyond its extent" in reason and not intrinsics(made)
    made, reasons = tensorize(simplify(plain, keep_marked=True), AVX512)
    assert reasons == () and not intrinsics(made) and "select(lt(add(acc_column, acc_lane)" in format_func(made)  # masked
    divisible = replace(plain, sizes=tuple(SizeParam(s.name, 1, 64 if s.name == "N" else 1) for s in plain.sizes))
    assert len(intrinsics(tensorize(simplify(divisible, keep_marked=True), AVX512)[0])) == 7
    narrow = funcs.gemm_gelu("N", "K", 7, 24)
    assert "not whole vectors" in tensorize(simplify(narrow, keep_marked=True), AVX512)[1][0]


def rewritten(change: Callable[[Store], Store], name: str, packed: bool = True) -> Func:
    def visit(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Store) and stmt.instance is not None and stmt.instance.statement == name:
            return change(stmt)
        return map_children(visit, stmt)

    tile = funcs.gemm_gelu("N", "K", 7, 64, packed)
    return replace(tile, body=visit(tile.body))


@pytest.mark.parametrize(("name", "change", "reason"), [
    ("init", lambda s: replace(s, value=Load(X, (Var("i"),))), "initial value is not a constant"),
    ("update", lambda s: replace(s, value=call("add", *s.value.args[::-1])), "k loop is not"),
    ("update", lambda s: replace(s, value=call("add", s.value.args[0], call("sin", s.value.args[1]))), "not a product"),
    ("out", lambda s: Store(buffer("acc", 7, 64), (Var("i"), Var("j")), c32(0)), "epilogue writes"),
])
def test_other_tiles_are_left_with_a_reason(name: str, change: Callable[[Store], Store], reason: str) -> None:
    made, reasons = tensorize(simplify(rewritten(change, name), keep_marked=True), CPU_SPECS["cpu-avx2"])
    assert not intrinsics(made)
    assert len(reasons) == 1 and reason in reasons[0]


@pytest.mark.parametrize("packed", [False, True])
def test_any_monoid_accumulates_in_vector_registers(packed: bool) -> None:
    """max over k of x * w is no fma_tile, but its accumulators are registers too where lanes can be masked."""
    found = rewritten(lambda s: replace(s, value=call("max", *s.value.args)), "update", packed)
    made, reasons = tensorize(simplify(found, keep_marked=True), AVX512)
    assert reasons == () and not intrinsics(made)
    assert len([s for s in walk(made.body) if isinstance(s, Allocate) and s.scope == "register"]) == 7 * 4


def test_a_tile_that_begins_within_a_vector_of_a_panel_is_left() -> None:
    """Its lanes would be no neighbours."""
    def moved(load: Load) -> Load:
        return load if load.buffer.panel is None else replace(load, index=(load.index[0], add(load.index[1], index(8))))

    found = rewritten(lambda s: replace(s, value=map_loads(moved, call("max", *s.value.args))), "update")
    made, reasons = tensorize(simplify(found, keep_marked=True), AVX512)
    assert "no parts of panels" in reasons[0]
    assert not [s for s in walk(made.body) if isinstance(s, Allocate) and s.scope == "register"]


def vectors(made: Func) -> list[For]:
    return [s for s in walk(made.body) if isinstance(s, For) and s.kind == "vector"]


def one(value: Load | Call, *extra: Buffer) -> tuple[Func, tuple[str, ...]]:
    return vectorize(func(loop("i", 0, size("N"), store(Y, (Var("i"),), value)), X, Y, *extra), AVX512)


@pytest.mark.parametrize(("value", "reason"), [
    (Load(buffer("t", "N", 3), (Var("i"), index(0))), "t is read with a stride"),
    (Load(buffer("t", "N"), (call("floordiv", Var("i"), index(3)),)), "index of t is not affine"),
    (Load(buffer("t", "N"), (Load(buffer("ids", "N", dtype="int64"), (Var("i"),)),)), "index of t depends on data"),
    (Load(buffer("t", "N", 64, panel=(1, 64)), (Var("i"), index(0))), "t is stored in panels"),
    (Load(buffer("t", "N", panel=(0, 64)), (add(Var("i"), index(1)),)), "its vectors are no parts of panels"),
    (Load(buffer("t", "N", panel=(0, 12)), (Var("i"),)), "its vectors are no parts of panels"),
    (Call("cos", (Load(X, (Var("i"),)),), "float32"), "cos on float32 has no vector form"),
    (Load(Y, (add(Var("i"), index(-1)),)), "y is accessed at different places"),
])
def test_loops_that_stay_scalar_say_why(value: Load | Call, reason: str) -> None:
    made, reasons = one(value)
    assert not vectors(made)
    assert len(reasons) == 1 and reason in reasons[0]


def test_vectors_that_are_parts_of_panels() -> None:
    for place in (Var("i"), add(Var("i"), index(32))):
        made, reasons = one(Load(buffer("t", "N", 3, panel=(0, 64)), (place, index(2))))
        assert reasons == () and len(vectors(made)) == 2


def test_a_guarded_load_splits_the_loop_instead_of_being_made() -> None:
    padded = select(call("lt", Var("i"), Size(dim("N") - 5)), Load(X, (add(Var("i"), index(5)),)), c32(0))
    narrow = func(loop("i", 0, size("N"), store(Y, (Var("i"),), padded)), X, Y)
    made, reasons = vectorize(narrow, CPU_SPECS["cpu-generic"])
    assert reasons == () and len(vectors(made)) == 4  # two parts, each whole and masked
    assert "select" not in format_func(made)
    made, reasons = one(padded)  # type: ignore[arg-type]
    assert reasons == () and len(vectors(made)) == 2  # lanes that the condition leaves out are masked instead
    unrelated = select(call("gt", Load(X, (Var("i"),)), c32(0)), Load(X, (add(Var("i"), index(5)),)), c32(0))
    assert "out of bounds without it" in one(unrelated)[1][0]  # type: ignore[arg-type]
    assert vectors(one(select(call("gt", Load(X, (Var("i"),)), c32(0)), Load(X, (Var("i"),)), c32(0)))[0])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["cpu-avx512", "cpu-avx2"])
def test_a_copy_is_cut_at_the_edges_of_what_it_copies(name: str) -> None:
    """y[i] = x[i - 3], zeros around it, and zeros alone where N < 20: no condition is left inside a loop."""
    inside = select(call("ge", Size(dim("N") - 20), index(0)), Load(X, (add(Var("i"), index(-3)),)), c32(0))
    below = select(call("lt", add(Var("i"), index(-3)), Size(dim("N") - 5)), inside, c32(0))
    value = select(call("ge", add(Var("i"), index(-3)), index(0)), below, c32(0))
    plain = func(loop("i", 0, size("N"), store(Y, (Var("i"),), value), mark="copy"))
    made, reasons = vectorize(plain, CPU_SPECS[name])
    assert reasons == () and vectors(made) and "select" not in format_func(made)
    for n in (0, 1, 3, 19, 20, 21, 64, 83):
        x, found, expected = np.arange(1, n + 1, dtype="float32"), np.full(n, 77, "float32"), np.zeros(n, "float32")
        interpret(made, {"x": x, "y": found}, {"N": n})
        if n >= 20:
            expected[3:n - 2] = x[:n - 5]
        np.testing.assert_array_equal(found, expected, err_msg=str(n))


@pytest.mark.parametrize("step", [2, 3])
@pytest.mark.parametrize("name", ["cpu-avx512", "cpu-generic"])
def test_a_loop_of_steps_is_cut_between_them(step: int, name: str) -> None:
    """Elements -1, -1 + step, ... below N, of x where it has them: a part that began at an edge would miss or shift some."""
    edge = Size(dim("N") - 5)
    inside = select(call("lt", Var("i"), edge), Load(X, (Var("i"),)), c32(0))
    value = select(call("ge", Var("i"), index(2)), inside, c32(0))
    target = Buffer("y", "float32", (dim("N") + 1,))
    body = loop("i", -1, size("N"), store(target, (add(Var("i"), index(1)),), value), mark="copy", step=step)
    made, _ = vectorize(func(body, X, target), CPU_SPECS[name])
    assert "select" not in format_func(made)
    for n in range(5, 40):
        x, found = np.arange(1, n + 1, dtype="float32"), np.full(n + 1, 77, "float32")
        interpret(made, {"x": x, "y": found}, {"N": n})
        expected = np.pad(np.where((np.arange(n) >= 2) & (np.arange(n) < n - 5), x, 0), (1, 0))
        expected[np.arange(n + 1) % step != 0] = 77
        np.testing.assert_array_equal(found, expected, err_msg=str(n))


def test_short_loops_take_short_vectors() -> None:
    made, reasons = vectorize(func(loop("i", 0, 9, store(Y, (Var("i"),), c32(0)))), AVX512)
    assert reasons == () and {v.hi for v in vectors(made)} == {index(8)}
    made, (reason,) = vectorize(func(loop("i", 0, 3, store(Y, (Var("i"),), c32(0)))), AVX512)
    assert "runs 3 times" in reason and not vectors(made)


def test_a_load_made_anyway_needs_no_proof() -> None:
    """select(isnan(x[i]), 0, x[i]): the condition itself reads what it guards."""
    x = Load(buffer("w", "M"), (Var("i"),))
    value = select(Call("isnan", (x,), BOOL), c32(0), x)
    assert vectors(one(value)[0])  # type: ignore[arg-type]


def test_reductions_need_a_vector_form_too() -> None:
    top = buffer("top", 1, dtype="float64")
    x = buffer("x", "N", dtype="float64")
    update = store(top, (index(0),), call("max", Load(top, (index(0),)), Load(x, (Var("i"),))))
    made, (reason,) = vectorize(func(loop("i", 0, size("N"), update), x, top, outputs=("top",)), AVX512)
    assert "max on float64" in reason and not vectors(made)


@pytest.mark.parametrize(("extent", "costly", "ways"), [("N", False, 4), (400, False, 4), (100, False, 1), ("N", True, 1)])
def test_long_cheap_reductions_have_several_accumulators(extent: str | int, costly: bool, ways: int) -> None:
    total, x = buffer("total", 1), buffer("x", extent)
    element = Load(x, (Var("i"),))
    value = Call("exp", (element,), "float32") if costly else element
    update = store(total, (index(0),), call("add", Load(total, (index(0),)), value))
    plain = func(loop("i", 0, size(extent) if isinstance(extent, str) else extent, update), x, total, outputs=("total",))
    made, reasons = vectorize(plain, AVX512)
    accumulators = {s.buffer.name for s in walk(made.body) if isinstance(s, Allocate) and s.scope == "register"}
    assert reasons == () and len(accumulators) == ways
    for n in (0, 1, 15, 16, 63, 64, 65, 300) if isinstance(extent, str) else (extent,):
        numbers = np.random.default_rng(n).integers(-4, 5, n).astype("float32")  # their sums are exact in any order
        found = np.zeros(1, "float32")
        interpret(made, {"x": numbers, "total": found}, {"N": n})
        np.testing.assert_allclose(found, [np.sum(np.exp(numbers) if costly else numbers, dtype="float64")], rtol=1e-5)


def test_what_stays_scalar_is_recorded() -> None:
    recorder = Recorder()
    lower(funcs.transpose_add(), AVX512, recorder)
    assert any(d.stage == "vectorize" and "stride" in d.reason for d in recorder.decisions)


def test_printed_form(golden: Callable[[str, str], None]) -> None:
    golden("loop_ir_softmax.txt", format_func(lower(funcs.softmax(2), CPU_SPECS["cpu-avx2"])))


def test_conditions_fold() -> None:
    guard = call("and", call("lt", Var("i"), size("N")), Call("eq", (Load(X, (Var("i"),)), c32(0)), BOOL))
    made = simplify(func(loop("i", 0, size("N"), If(guard, store(Y, (Var("i"),), c32(1))))))
    assert "if eq(x[i], 0.0:float32)\n" in format_func(made)


@pytest.mark.parametrize("guarded", [False, True])
def test_conditions_around_a_loop_say_what_it_may_read(guarded: bool) -> None:
    """A row before the one of a trip is read under a condition of each element: of which trips there is one, the If says."""
    rows, out = buffer("rows", "M", "N"), buffer("out", "M", "N")
    m, n = Var("m"), Var("n")
    value = select(Call("lt", (Load(X, (n,)), c32(0)), BOOL), c32(1), Load(rows, (sub(m, index(1)), n)))
    inner: Stmt = loop("n", 0, size("N"), store(out, (m, n), value), mark="inner")
    trips = loop("m", 0, size("M"), If(call("ge", m, index(1)), inner) if guarded else inner, mark="outer")
    body = loop("b", 0, 1, trips, kind="block")
    made, reasons = vectorize(Func("f", (X, rows, out), ("out",), (SizeParam("N"), SizeParam("M")), body), AVX512)
    assert any(isinstance(s, For) and s.kind == "vector" for s in walk(made.body)) == guarded
    assert guarded or "rows, which may be read out of bounds without it" in reasons[0]

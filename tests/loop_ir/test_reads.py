"""What a vector of iterations reads: nothing that its scalar iterations would not read, unless it is proved to be there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.loop_ir import funcs
from tests.loop_ir.funcs import buffer, c32, loop, size, store
from tsc.codegen_c.specs import CPU_SPECS
from tsc.errors import InternalError
from tsc.loop_ir.bounds import within
from tsc.loop_ir.cpu.tensorize import tensorize
from tsc.loop_ir.cpu.vector_rules import executed
from tsc.loop_ir.cpu.vectorize import vectorize
from tsc.loop_ir.facts import inside
from tsc.loop_ir.lower import lower
from tsc.loop_ir.nodes import Func, Intrin, Stmt, Store, map_children, map_exprs, walk
from tsc.loop_ir.places import places_of
from tsc.loop_ir.simplify import simplify, substitute_stmt
from tsc.loop_ir.verify_reads import verify_reads
from tsc.sym import dim
from tsc.target import DeviceSpec
from tsc.te.compute import SizeParam, facts_of
from tsc.te.expr import INDEX, Call, CheckedIndex, Expr, Load, Var, add, call, index, map_loads, select

SPECS = [CPU_SPECS[name] for name in ("cpu-avx512", "cpu-avx2", "cpu-generic")]
LANE, J = Var("i"), Var("j")
X, Y, D, IDS = buffer("x", "N"), buffer("y", "N"), buffer("d", "N"), buffer("ids", "M", dtype="int64")
#: A condition of the lanes, one that is the same in all of them, and one of data.
LANES, SAME = call("lt", LANE, call("sub", size("N"), index(5))), call("lt", J, size("N"))
DATA = call("gt", Load(D, (LANE,)), c32(0))
ONE, NEXT = Load(X, (J,)), Load(X, (add(LANE, index(5)),))


def check(func: Func) -> None:
    verify_reads(func.name, places_of(func))


def reads(value: Expr) -> dict[str, tuple[int, bool]]:
    """For each buffer, under how many known conditions it is read, and whether any is lost."""
    return {r.what.buffer.name: (len(r.known), r.lost) for r in executed(value, "i") if isinstance(r.what, Load)}


@pytest.mark.parametrize(("value", "expected"), [
    (select(LANES, NEXT, c32(0)), (1, False)),                             # masked
    (select(LANES, ONE, c32(0)), (1, False)),                              # one scalar, where a lane wants it
    (select(LANES, select(SAME, ONE, c32(0)), c32(0)), (2, False)),
    (select(LANES, select(SAME, ONE, c32(1)), c32(0)), (2, False)),        # with its own choice, as a scalar
    (select(LANES, c32(0), NEXT), (0, True)),                              # no masks for the other lanes
    (select(DATA, NEXT, c32(0)), (0, True)),
    (select(DATA, select(SAME, ONE, c32(0)), c32(0)), (1, True)),
    (select(LANES, Load(buffer("x", "N", 2), (LANE, index(0))), c32(0)), (0, True)),  # with a stride: every lane
])
def test_what_is_known_where_a_load_is_executed(value: Expr, expected: tuple[int, bool]) -> None:
    assert reads(value)["x"] == expected


def test_an_index_that_is_loaded_is_not_masked() -> None:
    place = CheckedIndex(Load(IDS, (J,)), X.shape[0], "x")
    value = select(LANES, Load(buffer("x", "N", "N"), (place, LANE)), c32(0))
    assert [(type(r.what).__name__, r.lost) for r in executed(value, "i")] == [
        ("Load", False), ("CheckedIndex", True), ("Load", True)]


def test_conditions_prove_bounds() -> None:
    facts, x = facts_of((SizeParam("N"), SizeParam("M"))), Load(X, (LANE,))
    below, above, over, under = (call(fn, LANE, at) for fn, at in (
        ("lt", size("N")), ("ge", index(0)), ("ge", size("N")), ("lt", index(0))))

    def negated(condition: Expr) -> Expr:
        return Call("not", (condition,), "bool")

    for known in ((below, above), (Call("and", (below, above), "bool"),), (negated(over), above),
                  (negated(Call("or", (over, under), "bool")),)):
        assert within(x, facts, known)
        assert not within(Load(X, (add(LANE, index(1)),)), facts, known)
    for known in ((below,), (above,), (negated(below), above), (negated(Call("and", (over, under), "bool")),)):
        assert not within(x, facts, known)


def func(value: Expr) -> Func:
    """y[i] = value, for all j < M."""
    body = loop("j", 0, size("M"), loop("i", 0, size("N"), store(Y, (LANE,), value)))
    return Func("f", (X, Y, D, IDS), ("y",), (SizeParam("N"), SizeParam("M")), body)


@pytest.mark.defect(12)
@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.name)
@pytest.mark.parametrize("value", [
    select(LANES, select(SAME, ONE, c32(0)), c32(0)), select(LANES, c32(0), select(SAME, ONE, c32(0))),
    select(DATA, select(SAME, ONE, c32(0)), c32(0)), select(DATA, select(LANES, ONE, c32(0)), c32(0)),
    select(SAME, select(DATA, ONE, c32(0)), c32(0))])
def test_whatever_is_made_of_a_guarded_load_reads_no_more(value: Expr, spec: DeviceSpec) -> None:
    """x[j] is not there for j >= N; a load that does not vary was taken for harmless, whatever guarded it."""
    made, _ = vectorize(func(value), spec)
    check(simplify(made))


# -- mutations -------------------------------------------------------------------------------------------------

def in_vectors(value: Expr) -> Func:
    """All of `value` in vectors of four, without a question."""
    place = add(Var("v"), Var("l"))
    inner = loop("l", 0, 4, substitute_stmt(store(Y, (LANE,), value), {"i": place}), kind="vector")
    body = loop("j", 0, size("M"), loop("v", 0, size("N"), inner, step=4))
    return Func("f", (X, Y, D, IDS), ("y",), (SizeParam("N", 4, 4), SizeParam("M")), body)


@pytest.mark.parametrize("value", [
    select(DATA, NEXT, c32(0)), select(DATA, ONE, c32(0)), select(LANES, c32(0), NEXT), select(DATA, c32(0), ONE),
    select(DATA, select(LANES, NEXT, c32(0)), select(SAME, ONE, NEXT)),
    select(LANES, Load(buffer("x", "N"), (Call("mod", (LANE, index(3)), INDEX),)), select(SAME, c32(0), ONE))])
def test_a_load_whose_guard_is_lost_is_rejected(value: Expr) -> None:
    with pytest.raises(InternalError, match="a condition that guards it does not hold"):
        check(in_vectors(value))


@pytest.mark.parametrize("value", [
    select(LANES, NEXT, c32(0)), select(LANES, select(SAME, ONE, c32(0)), c32(0)), select(SAME, ONE, c32(0)),
    select(DATA, Load(X, (LANE,)), c32(0)), select(DATA, select(LANES, NEXT, c32(0)), c32(0))])
def test_a_load_that_keeps_its_guard_or_is_there_is_accepted(value: Expr) -> None:
    check(in_vectors(value))


@pytest.mark.parametrize("change", [lambda mask, yes, no: yes, lambda mask, yes, no: select(call("le", *mask.args), yes, no)],
                         ids=["no mask", "one lane more"])
def test_columns_that_are_not_there_are_not_read(change: Callable[..., Expr]) -> None:
    """A register tile computes whole vectors: without its mask, the last columns are read beyond the row."""
    plain = funcs.gemm_gelu("N", "K", 7, 64, packed=False)
    made, _ = tensorize(simplify(plain, keep_marked=True), CPU_SPECS["cpu-avx512"])
    check(made)

    def visit(stmt: Stmt) -> Stmt:
        match stmt:
            case Store(value=Call(args=(old, Call(fn="select", args=(mask, yes, no))))):
                return replace(stmt, value=call("add", old, change(mask, yes, no)))
        return map_children(visit, stmt)

    broken = replace(made, body=visit(made.body))
    assert broken != made
    with pytest.raises(InternalError, match="for columns that may not be there"):
        check(broken)


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.name)
def test_a_tile_whose_columns_are_not_proved_stays_scalar_alone(spec: DeviceSpec) -> None:
    """Its loops end at another size than the rows that they read: that both are the same nobody says."""
    plain = funcs.gemm_gelu("N", "K", 6, 64)
    other = {b: replace(b, shape=(*b.shape[:-1], dim("P"))) for b in plain.buffers if b.name in ("w", "b")}
    sizes = (*plain.sizes, SizeParam("P"))

    def elsewhere(expr: Expr) -> Expr:
        return map_loads(lambda x: replace(x, buffer=other.get(x.buffer, x.buffer)), expr)

    buffers = tuple(other.get(b, b) for b in plain.buffers)
    func = replace(plain, buffers=buffers, sizes=sizes, body=map_exprs(elsewhere, plain.body))
    made, (reason,) = tensorize(simplify(func, keep_marked=True), spec)
    assert "w[" in reason and "for columns that may not be there" in reason
    assert not any(isinstance(s, Intrin) for s in walk(made.body))
    check(made)
    lower(func, spec)


@pytest.mark.parametrize(("columns", "there"), [(64, True), (65, False)])
def test_an_axis_in_panels_has_whole_panels(columns: int, there: bool) -> None:
    facts = inside(inside(facts_of((SizeParam("N"),)), loop("v", 0, size("N"), step=64)), loop("l", 0, columns))
    place = (add(Var("v"), Var("l")),)
    assert within(Load(buffer("x", "N", panel=(0, 64)), place), facts) is there
    assert not within(Load(X, place), facts)

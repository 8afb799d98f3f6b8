"""How much is evaluated of a kernel: about as many points as there is a budget for, whatever the sizes are."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from tests.poly import programs
from tsc.codegen_c.specs import CPU_SPECS
from tsc.errors import InternalError
from tsc.loop_ir.lower import lower
from tsc.loop_ir.map_blocks import BLOCK
from tsc.loop_ir.nodes import For, Func, If, Let, Stmt, Store, map_children
from tsc.poly.schedule import schedule_program
from tsc.sym import ONE, SymExpr, dim
from tsc.te.compute import SUM, Axis, Compute, Fact, Monoid, Program, SizeParam
from tsc.te.expr import (
    BOOL,
    Buffer,
    Call,
    Cast,
    CheckedIndex,
    Const,
    Expr,
    Load,
    Size,
    Var,
    call,
    index,
    map_loads,
    mul,
    select,
    walk,
)
from tsc.te.expr import map_children as map_operands
from tsc.validate import check, check_values
from tsc.validate.cases import LEAST, admitted, choose_sizes, limits_of, statements
from tsc.validate.program import Impossible


@pytest.mark.parametrize("terms", [0, 1, 5000])
def test_few_points_of_a_large_grid(terms: int) -> None:
    """Sums of no terms are points, too: their axes were taken whole."""
    (across, along), = limits_of(programs.gemm("M", "N", "K"), [{"M": 5000, "N": 4000, "K": terms}], 1000)
    assert across >= LEAST and across**2 * max(1, min(along, terms)) <= 1000


def test_sizes_that_were_solved_for_are_held_to_products() -> None:
    """As a set, sizes know nothing of `a == b * c`: what lay outside by such a fact was executed."""
    sizes = tuple(SizeParam(name, 1) for name in ("a", "b", "c", "d"))
    facts = (Fact(dim("a"), "==", dim("b") * dim("c")), Fact(dim("d"), "==", dim("h") * dim("b")))
    program = replace(programs.gemm("a", "b", "c"), sizes=sizes, facts=facts)
    rng = Random(0)
    assert admitted(program, {"a": 6, "b": 2, "c": 3, "d": 8}, rng) == {"a": 6, "b": 2, "c": 3, "d": 8}
    for wrong in ({"a": 5, "b": 2, "c": 3, "d": 8}, {"a": 6, "b": 2, "c": 3, "d": 7}):
        found = admitted(program, wrong, rng)
        assert found is not None and found["a"] == found["b"] * found["c"] and found["d"] % found["b"] == 0


def test_sizes_that_facts_define_twice_are_found() -> None:
    """Found by a net with branches at half its size: `b` is rounded up to halves, and even; what it is made from was not taken
    for what defines it, so that others made from it had no value."""
    c, b, half = dim("c"), dim("b"), (dim("d") + 1) // 2
    facts = (Fact(b, "==", (c + 1) // 2), Fact(dim("a"), "==", dim("h0")), Fact(dim("h0"), "==", b * half),
             Fact(b, "==", 2 * ((b + 1) // 2)))
    circle = (Fact(b, "==", 2 * ((b + 1) // 2)), Fact(dim("a"), "==", dim("h0")), Fact(dim("h0"), "==", dim("a")))
    large = If(call("lt", index(40), Size(dim("a"))), Store(Buffer("y", "float32", (ONE,)), (index(0),), Const(1.0, "float32")))
    for known in (facts, circle):
        program = replace(programs.gemm("a", "b", "c"), sizes=tuple(SizeParam(n, 1) for n in "abcd"), facts=known)
        chosen, done = choose_sizes(program, Func("one", (), (), program.sizes, large), Random(0))
        assert chosen and len(done) == 1 and any(sizes["a"] > 40 for sizes in chosen)
        assert all(sizes["b"] % 2 == 0 for sizes in chosen)
        assert known is circle or all(sizes["b"] == (sizes["c"] + 1) // 2 for sizes in chosen)


def test_what_one_truth_decides_is_decided_several_times_at_each_size() -> None:
    """Found by random programs: in all five Cases that executed a store of broken loops, the truth was the same."""
    m, n = dim("M"), dim("N")
    truth, x, y = Buffer("truth", "bool", (ONE,)), Buffer("x", "float32", (m, n)), Buffer("y", "float32", (m, n))

    def value(*at: str) -> Expr:
        return select(Load(truth, (index(0),)), Load(x, tuple(map(Var, at))), Const(0.0, "float32"))

    compute = Compute(y, (Axis("i", m), Axis("j", n)), value("i", "j"))
    program = Program((truth, x), (y,), (compute,), (SizeParam("M", 64), SizeParam("N", 64)))
    store = Store(y, (Var("k"), Var("l")), value("k", "l"))
    loops = For("k", index(0), Size(m), For("l", index(0), Size(n), store))
    chosen, _ = choose_sizes(program, Func("one", (truth, x, y), ("y",), program.sizes, loops), Random(0))
    assert min(Counter((sizes["M"], sizes["N"]) for sizes in chosen).values()) >= 3


def test_little_data_is_tried_often() -> None:
    """Found by random programs: what two comparisons of data decide at one element was not seen at few sizes."""
    x, y = Buffer("x", "float32", (dim("N"),)), Buffer("y", "float32", (dim("N"),))
    compute = Compute(y, (Axis("i", dim("N")),), Load(x, (Var("i"),)))
    loops = For("i", index(0), Size(dim("N")), Store(y, (Var("i"),), Load(x, (Var("i"),))))
    for size, least in ((SizeParam("N", 4, 2, 12), 60), (SizeParam("N", 1), 60), (SizeParam("N", 2000, 1, 2001), 12)):
        program = Program((x,), (y,), (compute,), (size,))
        chosen, _ = choose_sizes(program, Func("copy", (x, y), ("y",), program.sizes, loops), Random(0))
        assert len(chosen) >= least, (size, len(chosen))


def blocks(name: str) -> Program:
    """A matrix product, or what an element makes of its place."""
    if name == "product":
        return programs.gemm("M", "N", "K")
    m, n = dim("M"), dim("N")
    value = Cast(call("sub", mul(Var("j"), index(3)), Var("i")), "float32")
    compute = Compute(Buffer("y", "float32", (m, n)), (Axis("i", m), Axis("j", n)), value)
    return Program((), (compute.target,), (compute,), (SizeParam("M", 1), SizeParam("N", 1)))


@pytest.mark.parametrize("name", ["product", "places"])
def test_more_than_one_block_is_tried_in_each_direction(name: str) -> None:
    """Found by random programs: nobody saw what became of the number of a block, which was 0 at all sizes."""
    program = blocks(name)
    made = schedule_program(program, CPU_SPECS["cpu-avx512"], None, None, name, [])
    func = lower(made.func, CPU_SPECS["cpu-avx512"])
    lets = [s for s in statements(func) if isinstance(s, Let) and Var(BLOCK) in walk(s.value)]
    assert len(lets) == 2 and made.scop is not None
    assert check_values(program, func, made.scop.program).undecided is None
    for let in lets:
        broken = replace(func, body=replaced(func.body, let, replace(let, value=index(0))))
        with pytest.raises(InternalError):
            check_values(program, broken, made.scop.program)


def replaced(stmt: Stmt, old: Stmt, new: Stmt) -> Stmt:
    """`stmt` with one statement in place of another."""
    return new if stmt is old else map_children(lambda s: replaced(s, old, new), stmt)


def loops_of(program: Program) -> tuple[Func, Program]:
    """Final loops for AVX2, and the Program of their Scop."""
    spec = CPU_SPECS["cpu-avx2"]
    made = schedule_program(program, spec, None, None, "kernel", [])
    assert made.scop is not None
    return lower(made.func, spec), made.scop.program


def tells_apart(program: Program, func: Func, scheduled: Program, store: Store, value: Expr) -> None:
    """With every seed the loops are right, and with another value in one of their Stores they are not."""
    wrong = replace(func, body=replaced(func.body, store, replace(store, value=value)))
    for seed in range(20):
        assert check_values(program, func, scheduled, seed=seed).undecided is None
        with pytest.raises(InternalError, match="is another value"):
            check_values(program, wrong, scheduled, seed=seed)


def test_a_choice_by_a_fed_number_is_seen_both_ways() -> None:
    """Found by random programs: the last of several rows, by a number that is fed, was never asked for at the sizes tried."""
    x, i, t, y = (Buffer("x", "float32", (SymExpr.of(16), dim("N"))), Buffer("i", "int64", ()),
                  Buffer("t", "float32", (SymExpr.of(16), dim("N"))), Buffer("y", "float32", ()))
    a, b = Axis("a", SymExpr.of(16)), Axis("b", dim("N"))
    row = call("sub", Var("a"), index(15))
    shifted = Compute(t, (a, b), select(call("ge", row, index(0)), Load(x, (row, Var("b"))), Const(0, "float32")))
    chosen = Compute(y, (), Load(t, (CheckedIndex(Load(i, ()), SymExpr.of(16), "i"), index(0))))
    program = Program((x, i), (y,), (shifted, chosen), (SizeParam("N", 2),))
    func, scheduled = loops_of(program)

    def beside(load: Load) -> Expr:
        return replace(load, index=(load.index[0], index(1))) if load.buffer.name == "x" else load

    (store,) = [s for s in statements(func) if isinstance(s, Store)]
    tells_apart(program, func, scheduled, store, map_loads(beside, store.value))


def test_a_choice_by_a_large_number_is_seen_both_ways() -> None:
    """The number of an end token is hardly ever among random ones."""
    x, i, y = Buffer("x", "float32", (dim("N"),)), Buffer("i", "int64", (dim("N"),)), Buffer("y", "float32", (dim("N"),))
    n = Axis("n", dim("N"))
    found = call("eq", Load(i, (Var("n"),)), Const(49407, "int64"))
    program = Program((x, i), (y,), (Compute(y, (n,), select(found, Load(x, (Var("n"),)), Const(0, "float32"))),),
                      (SizeParam("N", 2),))
    func, scheduled = loops_of(program)

    def first(load: Load) -> Expr:
        return replace(load, index=(index(0),)) if load.buffer.name == "x" else load

    stores = [s for s in statements(func) if isinstance(s, Store)]
    for store in stores:
        tells_apart(program, func, scheduled, store, map_loads(first, store.value))


def test_what_one_element_decides_is_seen_both_ways_at_all_sizes() -> None:
    """Found by random programs: a long sum was chosen by one number alone, and at all sizes but the least it never was."""
    x, z, t, y = (Buffer("x", "float32", (dim("N"), dim("N"))), Buffer("z", "float32", (SymExpr.of(1),)),
                  Buffer("t", "float32", (SymExpr.of(1),)), Buffer("y", "float32", (SymExpr.of(1),)))
    a, b = Axis("a", SymExpr.of(1)), Axis("b", SymExpr.of(1))
    m, n = Axis("m", dim("N")), Axis("n", dim("N"))
    total = Compute(t, (a,), Load(x, (Var("m"), Var("n"))), (m, n), SUM)
    chosen = call("eq", Load(z, (Var("b"),)), Const(-1.0, "float32"))
    made = Compute(y, (b,), select(chosen, Load(t, (Var("b"),)), Const(0.0, "float32")))
    program = Program((x, z), (y,), (total, made), (SizeParam("N", 1),))
    func, scheduled = loops_of(program)

    def turned(load: Load) -> Expr:
        return replace(load, index=(load.index[0], load.index[0])) if load.buffer.name == "x" else load

    store = next(s for s in statements(func) if isinstance(s, Store) and map_loads(turned, s.value) != s.value)
    tells_apart(program, func, scheduled, store, map_loads(turned, store.value))


def any_of() -> Program:
    """Which columns have a number below 1 in the last of nine rows; only the first may."""
    x, y = Buffer("x", "float32", (dim("N"), SymExpr.of(9), dim("M"))), Buffer("y", BOOL, (dim("M"),))
    n, k, m = Axis("n", dim("N")), Axis("k", SymExpr.of(9)), Axis("m", dim("M"))
    less = call("lt", Load(x, (Var("n"), Var("k"), Var("m"))), Const(1.0, "float32"))
    first, last = call("ge", index(0), Var("m")), call("ge", Var("k"), index(8))
    body = call("and", call("and", less, first), last)
    return Program((x,), (y,), (Compute(y, (m,), body, (n, k), Monoid("or")),), (SizeParam("M"), SizeParam("N")))


def test_one_term_of_many_that_are_folded_to_a_truth() -> None:
    """Found by random programs: of a hundred terms those of one row decide, at one place, and there in a rest of few lanes."""
    program = any_of()
    func, scheduled = loops_of(program)

    def stricter(expr: Expr) -> Expr:
        inner = map_operands(stricter, expr)
        return replace(inner, fn="gt") if isinstance(inner, Call) and inner.fn == "ge" and inner.args[0] == index(0) else inner

    guarded = [s.then for s in statements(func) if isinstance(s, If)]
    store = next(s for stmt in guarded for s in statements(replace(func, body=stmt))
                 if isinstance(s, Store) and stricter(s.value) != s.value)
    tells_apart(program, func, scheduled, store, stricter(store.value))


def test_sizes_that_cannot_be_are_left_out_wherever_they_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that are taken often may be found to be impossible only then: these are left out, and no others."""
    program, run, often = any_of(), check._compared, set[int]()
    func, scheduled = loops_of(program)
    sizes = [{"M": m, "N": n} for m in (9, 1, 17) for n in (3, 2)]

    def found_late(*asked: Any) -> check.Executed:
        cases = asked[3]
        often.add(len(cases))
        if len(cases) > len(sizes) and (late := frozenset(n for n, c in enumerate(cases) if c.sizes == sizes[3])):
            raise Impossible(late)
        return run(*asked)

    monkeypatch.setattr(check, "_compared", found_late)
    compared = check_values(program, func, scheduled, sizes)
    assert max(often) >= 200 and compared.sizes == (*sizes[:3], *sizes[4:])

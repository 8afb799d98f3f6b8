"""Values of final loops against the te Program by random interpretation: right kernels pass, broken ones are named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from random import Random

import numpy as np
import pytest

from tests.fuzz import break_loops
from tests.loop_ir import funcs
from tests.poly import programs, support
from tests.poly.support import SMALL, WIDE
from tsc.codegen_c.specs import CPU_SPECS
from tsc.errors import InternalError
from tsc.loop_ir.lower import lower
from tsc.loop_ir.marks import PAIR_TILE, QUAD_TILE
from tsc.loop_ir.nodes import Allocate, Block, For, Func, If, Intrin, Stmt, Store, map_children, map_exprs
from tsc.loop_ir.simplify import substitute_stmt
from tsc.loop_ir.verify import verify
from tsc.plan import pack
from tsc.poly.schedule import schedule_program
from tsc.poly.tile import TileConfig
from tsc.sym import SymExpr
from tsc.target import DeviceSpec
from tsc.te.compute import MAX, MIN, Axis, Compute, Monoid, Program, SizeParam
from tsc.te.expr import BOOL, Buffer, Call, Const, Expr, Load, Var, add, call, index, loads, map_loads, mul, select
from tsc.te.layout import Combinators, panels
from tsc.validate import check_order, check_rows, check_values, loops
from tsc.validate.algebra import Algebra, Value, hashed
from tsc.validate.sampled import Marks

PROGRAMS: dict[str, Callable[[], Program]] = {
    "gemm": programs.gemm, "scores": programs.attention_scores, "values": programs.attention_values,
    "heads": programs.head_split, "softmax": programs.softmax, "norm": programs.layer_norm, "sums": programs.column_sums,
    "total": programs.total, "transpose": programs.transpose, "concat": programs.concat, "where": programs.where,
    "conv": programs.conv, "pairs": programs.words, "quads": lambda: programs.words(4),
    "large": lambda: programs.gemm("M", 3072, 3072)}


@dataclass(frozen=True)
class Kernel:
    """A kernel's final loops, and the Program of its Scop."""

    program: Program
    func: Func
    scheduled: Program | None

    def check(self, func: Func | None = None) -> str | None:
        return check_values(self.program, func or self.func, self.scheduled).undecided


@cache
def kernel(name: str, spec: DeviceSpec = WIDE, config: TileConfig | None = None) -> Kernel:
    program = PROGRAMS[name]()
    found = schedule_program(program, spec, config, None, name, [b.name for b in program.inputs])
    return Kernel(program, lower(found.func, spec), None if found.scop is None else found.scop.program)


@pytest.mark.parametrize("spec", [SMALL, WIDE], ids=lambda s: s.name)
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_right_passes(name: str, spec: DeviceSpec) -> None:
    assert kernel(name, spec).check() is None


# -- broken loops that must be found ---------------------------------------------------------------------------

def found(one: Kernel, func: Func) -> bool:
    """Whether a broken Func is refused, which keeps the rules of the loop IR (but that lanes are independent)."""
    assert func != one.func
    try:
        verify(func)
    except InternalError as why:
        assert "a lane of vector loop" in str(why)
        return True
    try:
        assert one.check(func) is None
    except InternalError:
        return True
    return False


def found_or_right(one: Kernel, func: Func, sizes: dict[str, int]) -> bool:
    """Whether a broken Func is refused. Fails for one that is not and computes something else at `sizes`."""
    if found(one, func):
        return True
    support.check_values(func, one.program, sizes)
    return False


def changed(func: Func, change: Callable[[Stmt], Stmt | None], number: int = 0) -> Func:
    """`func` with `change` made of the `number`th statement that it applies to."""
    seen = -1

    def visit(stmt: Stmt) -> Stmt:
        nonlocal seen
        made = change(stmt)
        if made is not None:
            seen += 1
            if seen == number:
                return made
        return map_children(visit, stmt)

    result = replace(func, body=visit(func.body))
    assert seen >= number
    return result


def test_the_order_of_dependent_statements() -> None:
    def swap(stmt: Stmt) -> Stmt | None:
        """The k loop of a register tile before its initialisation."""
        match stmt:
            case Block(body=(first, For(mark="k") as k, *rest)):
                return Block((k, first, *rest))
        return None

    assert found(kernel("gemm"), changed(kernel("gemm").func, swap))


@pytest.mark.parametrize("name", ["gemm", "softmax", "norm", "conv"])
def test_every_dropped_statement(name: str) -> None:
    one = kernel(name, SMALL)
    tried = 0
    for place, stmt in break_loops._statements(one.func.body):
        for k in range(len(stmt.body) if isinstance(stmt, Block) else 0):
            def without(s: Stmt, k: int = k) -> Stmt:
                assert isinstance(s, Block)
                return Block((*s.body[:k], *s.body[k + 1:]))

            only_fills = all(s.instance is not None and s.instance.statement.startswith("fill_")
                             for _, s in break_loops._statements(stmt.body[k]) if isinstance(s, Store))
            if only_fills:  # zeros in lanes that nobody stores: nothing depends on them
                continue
            tried += 1
            assert found(one, replace(one.func, body=break_loops._at(one.func.body, place, without))), f"{place}, {k}"
    assert tried > 3


def test_tensorize_writing_a_neighbour() -> None:
    def neighbour(stmt: Stmt) -> Stmt | None:
        """One step of the matrix product adds to the next row's accumulators."""
        match stmt:
            case Intrin(meaning=meaning):
                def moved(s: Stmt) -> Stmt:
                    if isinstance(s, Store):
                        return replace(s, index=(Call("mod", (add(s.index[0], index(1)), index(7)), "int64"), *s.index[1:]))
                    return map_children(moved, s)

                return replace(stmt, meaning=moved(meaning))
        return None

    one = kernel("gemm")
    assert found(one, changed(one.func, neighbour))


@pytest.mark.parametrize(("name", "dot"), [("pairs", PAIR_TILE), ("quads", QUAD_TILE)])
@pytest.mark.parametrize("fn", ["mul", "dot_pair", "dot_quad"])
def test_words_multiplied_by_something_else(name: str, dot: str, fn: str) -> None:
    """By what multiplies other parts, or of bytes the other way round."""
    def other(stmt: Stmt) -> Stmt | None:
        match stmt:
            case Intrin(name=own, meaning=meaning):
                assert own == dot

                def multiplied(e: Expr) -> Expr:
                    match e:
                        case Call(fn="add", args=(acc, Call(fn=known, args=(a, b)))) if known.startswith("dot_"):
                            return add(acc, call(fn, *((b, a) if known == fn else (a, b))))
                    return e

                return replace(stmt, meaning=map_exprs(multiplied, meaning))
        return None

    one = kernel(name, CPU_SPECS["cpu-avx512-vnni"])
    assert found(one, changed(one.func, other)) == ((name, fn) != ("pairs", "dot_pair"))  # whose parts are of one kind


SIZES_OF = {"softmax": {"R": 5, "C": 37}, "where": {"M": 3, "N": 37}, "norm": {"B": 2, "L": 3, "C": 37},
            "heads": {"M": 9, "K": 9}}


@pytest.mark.parametrize("name", ["softmax", "where", "norm", "heads"])
@pytest.mark.parametrize("by", [1, -1])
def test_vectorize_off_by_one_lane(name: str, by: int) -> None:
    def shifted(stmt: Stmt) -> Stmt | None:
        if not (isinstance(stmt, For) and stmt.kind == "vector"):
            return None
        shift = {stmt.var: add(Var(stmt.var), index(by))}

        def visit(s: Stmt) -> Stmt:
            if not isinstance(s, Store):
                return map_children(visit, s)
            return replace(s, value=break_loops.substitute(s.value, shift))

        return map_children(visit, stmt)

    one = kernel(name)
    number = 0
    refused = 0
    while True:
        try:
            func = changed(one.func, shifted, number)
        except AssertionError:
            break
        number += 1
        refused += func != one.func and found_or_right(one, func, SIZES_OF[name])  # some lanes hold one number
    assert refused > number // 3


@pytest.mark.parametrize("name, change", [
    ("softmax", break_loops.invert_condition), ("softmax", break_loops.drop_condition), ("where", break_loops.drop_condition),
    ("where", break_loops.invert_condition), ("sums", break_loops.invert_condition)])
def test_masks(name: str, change: break_loops.Change) -> None:
    one = kernel(name)
    masks = [(place, s) for place, s in break_loops._statements(one.func.body) if isinstance(s, For) and s.kind == "vector"
             and isinstance(s.body, If)]
    assert masks
    for place, _ in masks:
        body = break_loops._at(one.func.body, (*place, 0), lambda s: change(s, Random(0)) or s)
        assert found(one, replace(one.func, body=body))


def test_a_copy_one_element_short() -> None:
    one, refused = kernel("conv", SMALL), 0
    for place, stmt in break_loops._statements(one.func.body):
        if isinstance(stmt, For) and stmt.mark == "copy" and any(
                isinstance(s, Store) and any(loads(s.value)) for _, s in break_loops._statements(stmt)):
            short = replace(stmt, hi=Call("sub", (stmt.hi, index(1)), "int64"))
            func = replace(one.func, body=break_loops._at(one.func.body, place, lambda _, short=short: short))
            refused += found_or_right(one, func, {"B": 2, "H": 5, "W": 9})  # the last column of a halo may be read by none
    assert refused > 1


@pytest.mark.parametrize("kept", [loops._MOST_KEPT, 0])
def test_a_packed_weight_that_is_permuted(monkeypatch: pytest.MonkeyPatch, kept: int) -> None:
    one = kernel("gemm")
    monkeypatch.setattr(loops, "_MOST_KEPT", kept)
    one.check()
    assert any(b.panel for b in one.func.buffers)

    def permuted(array: np.ndarray, layout: Combinators) -> np.ndarray:
        made = pack.packed(array, layout)
        return np.concatenate([made[..., [1, 0]], made[..., 2:]], axis=-1)

    loops._packed_places.cache_clear()
    monkeypatch.setattr(loops, "packed", permuted)
    with pytest.raises(InternalError, match="is another value in the loops"):
        one.check()
    loops._packed_places.cache_clear()


def test_a_panel_of_another_width() -> None:
    """The kernel reads one layout, the plan packs another: where a buffer is declared, not where it is read."""
    one = kernel("gemm")

    def narrow(buffer: Buffer) -> Buffer:
        return buffer if buffer.panel is None else replace(buffer, layout=panels(2, buffer.panel[0], buffer.panel[1] // 2))

    with pytest.raises(InternalError, match=r"behind the last panel|is another value"):
        one.check(replace(one.func, buffers=tuple(map(narrow, one.func.buffers))))


def test_an_accumulator_that_is_not_initialised() -> None:
    def uninitialised(stmt: Stmt) -> Stmt | None:
        match stmt:
            case Allocate(scope="register", body=Block(body=parts)):
                return replace(stmt, body=Block(parts[1:]))
        return None

    for name in ("gemm", "softmax"):
        assert found(kernel(name), changed(kernel(name).func, uninitialised))


@pytest.mark.parametrize("low, high", [(1, 0), (0, -1), (-1, 0), (0, 1)])
@pytest.mark.parametrize("name", ["gemm", "large", "conv", "total"])
def test_a_reduction_with_a_term_more_or_less(name: str, low: int, high: int) -> None:
    def longer(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, For) and stmt.mark in ("k", "reduce"):
            return replace(stmt, lo=add(stmt.lo, index(low)), hi=add(stmt.hi, index(high)))
        return None

    assert found(kernel(name, SMALL), changed(kernel(name, SMALL).func, longer))


def test_a_term_counted_twice_at_the_edge_of_a_tile() -> None:
    """The last vector begins where the one before ended, less one."""
    one = kernel("total", SMALL)

    def again(stmt: Stmt) -> Stmt | None:
        match stmt:
            case For(kind="vector", body=If(condition=condition, then=Store() as store)):
                lane = {stmt.var: Call("sub", (Var(stmt.var), index(1)), "int64")}
                return replace(stmt, body=If(condition, replace(store, value=break_loops.substitute(store.value, lane))))
        return None

    assert found(one, changed(one.func, again))


# -- numbers, marks and limits -----------------------------------------------------------------------------------

@pytest.mark.parametrize("fn", ["lt", "le", "gt", "ge"])
@pytest.mark.parametrize("number", [0.0, 1.0, -1.0, 0.5, 2.0, -2.0, 3.0, -3.0, 4.0, -4.0])
def test_a_comparison_with_a_number_goes_both_ways(fn: str, number: float) -> None:
    """Found by random programs: no data was less than 0, so that nothing was seen of what is done then."""
    data = Value(hashed(np.uint64(5), np.arange(1000)), True)
    with np.errstate(over="ignore"):  # as all of it is called
        found = Algebra().call(fn, "bool", data, Value(np.asarray(number, np.float32))).data
    assert 120 < np.count_nonzero(found) < 880


@pytest.mark.parametrize(("strict", "other"), [("lt", "le"), ("gt", "ge")])
def test_less_is_told_from_less_or_equal(strict: str, other: str) -> None:
    data, one = Value(hashed(np.uint64(5), np.arange(1000)), True), Value(np.asarray(1, np.float32))
    with np.errstate(over="ignore"):
        both = [Algebra().call(fn, "bool", data, one).data for fn in (strict, other)]
    assert np.count_nonzero(both[0] != both[1]) > 120 and not (both[0] & ~both[1]).any()


def test_nothing_is_wanted_of_what_is_empty() -> None:
    """The last of all Cases may have an axis of no elements, and loops that are wrong may ask for some."""
    marks = Marks.of(np.array([3, 0]), np.array([True, False, True]))
    assert marks is not None
    inside, _ = marks.wanted(np.array([0, 0, 2]), np.array([2, 0, 3]), np.array([0, 1, 1]))
    assert inside.tolist() == [True, False, False]


def test_a_buffer_of_more_elements_than_memory_holds_marks_for_is_left_undecided() -> None:
    """Found by random operators: a pad of 2^32 elements, of which a few are compared, was said to need a larger machine."""
    one, long = Buffer("x", "float32", (SymExpr.of(1),)), Buffer("y", "float32", (SymExpr.of(2**38),))
    program = Program((one,), (long,), (Compute(long, (Axis("i", SymExpr.of(2**38)),), Load(one, (index(0),))),), ())
    made = schedule_program(program, SMALL, None, None, "long", [])
    compared = check_values(program, lower(made.func, SMALL), None if made.scop is None else made.scop.program)
    assert compared.undecided == "a buffer is too long"


# -- the order of sums -----------------------------------------------------------------------------------------

SIZES = [{"M": 9, "N": 13, "K": 11}, {"M": 1, "N": 1, "K": 1}, {"M": 7, "N": 64, "K": 5}]


def test_other_tiles_sum_in_the_same_order() -> None:
    one, other = kernel("gemm", SMALL), kernel("gemm", replace(SMALL, instr_tile=(3, 8)))
    assert one.func != other.func
    plain = [replace(k.func, buffers=k.func.buffers) for k in (one, other)]
    check_order(plain[0], plain[1], SIZES)


def _backwards(stmt: Stmt) -> Stmt | None:
    """A loop over k from its end to its begin."""
    if isinstance(stmt, For) and stmt.mark == "k":
        last = Call("sub", (Call("sub", (stmt.hi, index(1)), "int64"), Var(stmt.var)), "int64")
        return replace(stmt, body=substitute_stmt(stmt.body, {stmt.var: last}))
    return None


def test_another_order_of_summation_is_found() -> None:
    one = kernel("gemm", SMALL)
    count = sum(isinstance(s, For) and s.mark == "k" for _, s in break_loops._statements(one.func.body))
    func = one.func
    for number in range(count):
        func = changed(func, _backwards, number)
    assert one.check(func) is None, "sums in any order are the same values"
    with pytest.raises(InternalError, match="in different orders"):
        check_order(one.func, func, SIZES)


#: One row, the small device's tile and one more or less, several tiles and a rest, and more rows than a block of the wide one.
BATCHES = [1, 2, 3, 6, 7, 8, 13, 127]


@pytest.mark.parametrize("spec", [SMALL, WIDE], ids=lambda s: s.name)
@pytest.mark.parametrize("name, size, rest", [
    ("gemm", "M", {"N": 13, "K": 11}), ("gemm", "M", {"N": 65, "K": 5}), ("softmax", "R", {"C": 37}),
    ("norm", "B", {"L": 3, "C": 37}), ("scores", "B", {"L": 5, "T": 20})])
def test_a_row_alone_and_in_a_batch_sums_in_one_order(name: str, size: str, rest: dict[str, int], spec: DeviceSpec) -> None:
    check_rows(kernel(name, spec).func, size, [{size: count, **rest} for count in BATCHES])


def test_a_tile_that_sums_in_an_order_of_its_own_is_found() -> None:
    """One of the register tiles walks through k backwards: the values are right, the rows it computes are summed otherwise."""
    one = kernel("gemm", SMALL)
    count = sum(isinstance(s, For) and s.mark == "k" for _, s in break_loops._statements(one.func.body))
    refused = 0
    for number in range(count):
        func = changed(one.func, _backwards, number)
        assert one.check(func) is None
        try:
            check_rows(func, "M", [{"M": m, "N": 13, "K": 11} for m in BATCHES])
        except InternalError as error:
            assert "in another order" in str(error)
            refused += 1
    assert refused > 1


# -- what laws allow -------------------------------------------------------------------------------------------

def test_maxima_may_be_taken_in_any_order_and_twice() -> None:
    x, y = Buffer("x", "float32", (funcs.dim("N"),)), Buffer("y", "float32", (funcs.SymExpr.of(1),))
    i, k = Axis("i", funcs.SymExpr.of(1)), Axis("k", funcs.dim("N"))
    program = Program((x,), (y,), (Compute(y, (i,), Load(x, (Var("k"),)), (k,), MAX),), (SizeParam("N"),))

    def walk_twice(start: float) -> Func:
        at = (index(0),)
        update = Store(y, at, Call("max", (Load(y, at), Load(x, (Var("a"),))), "float32"))
        body = Block((Store(y, at, Const(start, "float32")), *(For("a", index(0), funcs.size("N"), update) for _ in range(2))))
        return Func("twice", (x, y), ("y",), program.sizes, body)

    assert check_values(program, walk_twice(float("-inf"))).undecided is None
    with pytest.raises(InternalError):
        check_values(program, walk_twice(0.0))


@pytest.mark.parametrize("monoid", [MAX, MIN], ids=["max", "min"])
@pytest.mark.parametrize(("constant", "other"), [(0.0, 1.0), (0.0, -1.0), (-1.0, 1.0), (5.0, 6.0), (float("inf"), 0.0)])
def test_neighbours_are_told_apart_among_others(monoid: Monoid, constant: float, other: float) -> None:
    """Found by random programs: beside two numbers at random, 0 was as good as 1 at the edge of a window."""
    x, y = Buffer("x", "float32", (funcs.SymExpr.of(17),)), Buffer("y", "float32", (funcs.SymExpr.of(16),))
    axes, rows = (Axis("i", funcs.SymExpr.of(16)),), (Axis("r", funcs.SymExpr.of(3)),)
    place = add(add(Var("i"), mul(Var("r"), index(2))), index(-2))
    inside = Call("ge", (place, index(0)), BOOL)

    def padded(with_: float) -> Expr:
        return select(inside, Load(x, (call("min", place, index(16)),)), Const(with_, "float32"))

    def func(with_: float) -> Func:
        start = Const(monoid.identity("float32"), "float32")
        body = Call(monoid.fn, (Load(y, (Var("i"),)), padded(with_)), "float32")
        inner = For("r", index(0), index(3), Store(y, (Var("i"),), body))
        loops = For("i", index(0), index(16), Block((Store(y, (Var("i"),), start), inner)))
        return Func("window", (x, y), ("y",), (), loops)

    program = Program((x,), (y,), (Compute(y, axes, padded(constant), rows, monoid),), ())
    assert check_values(program, func(constant)).undecided is None
    for seed in range(5):
        with pytest.raises(InternalError):
            check_values(program, func(other), seed=seed)


def test_nothing_is_undefined_in_a_message() -> None:
    one = kernel("transpose", SMALL)
    func = changed(one.func, lambda s: replace(s, value=map_loads(_next, s.value)) if isinstance(s, Store) and any(
        loads(s.value)) else None)
    with pytest.raises(InternalError, match=r"kernel transpose is not what its Program means: .*"):
        one.check(func)


def _next(load: Load) -> Expr:
    before = Call("max", (index(0), Call("sub", (load.index[-1], index(1)), "int64")), "int64")
    return replace(load, index=(*load.index[:-1], before))

"""The final loops against the tree's: what the passes make is accepted, every way of breaking it is found, for all sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from itertools import product
from random import Random

import pytest

from tests.fuzz import break_loops
from tests.poly import programs
from tests.poly.programs import buffer, size
from tsc.codegen_c.specs import CPU_SPECS
from tsc.errors import InternalError
from tsc.loop_ir.lower import lower
from tsc.loop_ir.nodes import Allocate, Block, For, Func, If, Intrin, Let, Stmt, Store, map_children
from tsc.poly import isl
from tsc.poly.proof.occurrences import Scope
from tsc.poly.proof.refine import check_lowered, statements_of
from tsc.poly.proof.region import Known
from tsc.poly.schedule import ScheduledProgram, schedule_program
from tsc.te.compute import SUM, Axis, Compute, Fact, Program, SizeParam
from tsc.te.expr import INDEX, Call, Const, Expr, Load, Var, add, call, index, loads, map_loads, mul, select


def few() -> Program:
    """t[a, b] = sum over k < n, l <= n of tanh(x[k, l, a, b]) with n <= 12: no vector along l is ever full, nor masked."""
    axes, over = (Axis("a", size(4)), Axis("b", size(1))), (Axis("k", size("n")), Axis("l", size("n") + 1))
    x = buffer("x", "n", size("n") + 1, 4, 1)
    body = call("tanh", programs.at(x, *over, *axes))
    total = Compute(buffer("t", 4, 1), axes, body, over, SUM)
    return Program((x,), (total.target,), (total,), (SizeParam("n", 2, 1, 12),))


def cut_elsewhere(lead: int | str = 1) -> Program:
    """t[b] = sum over p < P of x[b, p % W, p // W] with P = H * W: a run of the loop for each quotient, between products."""
    axes, over = (Axis("b", size(lead)),), Axis("p", size("P"))
    x, by = buffer("x", lead, "W", "H"), index(size("W"))
    column, row = (Call(fn, (Var("p"), by), INDEX) for fn in ("mod", "floordiv"))
    total = Compute(buffer("t", lead), axes, programs.at(x, *axes, column, row), (over,), SUM)
    sizes = tuple(map(SizeParam, [*size(lead).dims(), "H", "P", "W"]))
    return Program((x,), (total.target,), (total,), sizes, (Fact(size("P"), "==", size("H") * size("W")),))


def stacked() -> Program:
    """t[a < 2, b < n] = (x, y side by side)[a * n + b]: the boundary between them is a product."""
    axes = Axis("a", size(2)), Axis("b", size("n"))
    at = add(mul(Var("a"), index(size("n"))), Var("b"))
    second = Load(buffer("y", "n"), (call("sub", at, index(size("n"))),))
    value = select(call("lt", at, index(size("n"))), Load(buffer("x", "n"), (at,)), second)
    made = Compute(buffer("t", 2, "n"), axes, value)
    return Program((buffer("x", "n"), buffer("y", "n")), (made.target,), (made,), (SizeParam("n", 4, 4),))


def masked_ahead(columns: int | str = 15) -> Program:
    """out[c] = sum over b of t[c, b], where t[a, b] = (x[a, min(b + 3, last)] == -1 ? (b + 3 <= last ? y[a, b + 3] : 0) :
    s[a, b]) and s = z @ w: a choice by data from a clamped place, which is no clamped one in all loops but the last."""
    x, y, s, t = (buffer(name, "n", columns) for name in ("x", "y", "s", "t"))
    z, w, out = buffer("z", "n", "p"), buffer("w", "p", columns), buffer("out", "n")
    (a, b), (c, d), (e, f) = ([Axis(i, size("n")), Axis(j, size(columns))] for i, j in ("ab", "cd", "ef"))
    k, ahead, last = Axis("k", size("p")), add(Var("b"), index(3)), index(size(columns) - 1)
    chosen = call("eq", programs.at(x, a, call("min", ahead, last)), programs.f32(-1.0))
    inner = select(call("le", ahead, last), programs.at(y, a, ahead), programs.f32(0.0))
    sizes = sorted({"n", "p", *size(columns).dims()})
    return Program((x, y, z, w), (out,), (
        Compute(s, (e, f), mul(programs.at(z, e, k), programs.at(w, k, f)), (k,), SUM),
        Compute(t, (a, b), select(chosen, inner, programs.at(s, a, b))),
        Compute(out, (c,), programs.at(t, c, d), (d,), SUM)), tuple(SizeParam(s, 1) for s in sizes))


PROGRAMS: dict[str, Callable[[], Program]] = {
    "gemm": programs.gemm, "softmax": programs.softmax, "layer_norm": programs.layer_norm, "head_split": programs.head_split,
    "scores": programs.attention_scores, "values": programs.attention_values,
    "constant": partial(programs.gemm, 15, 4, 1), "one_row": partial(programs.gemm, 1, 70, "K"), "conv": programs.conv,
    "words": programs.words, "few": few, "cut_elsewhere": cut_elsewhere,
    "batch_cut_elsewhere": partial(cut_elsewhere, "B"), "stacked": stacked,
    "masked_ahead": masked_ahead, "masked_ahead_of_any": partial(masked_ahead, "m")}


@cache
def scheduled(name: str, device: str) -> ScheduledProgram:
    return schedule_program(PROGRAMS[name](), CPU_SPECS[device], None, None, "kernel")


@cache
def lowered(name: str, device: str) -> Func:
    return lower(scheduled(name, device).func, CPU_SPECS[device])


def validate(name: str, device: str, after: Func) -> tuple[str, ...]:
    made = scheduled(name, device)
    assert made.scop is not None
    return check_lowered(made.func, after, made.scop, made.edges)


@pytest.mark.parametrize("device", CPU_SPECS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_the_passes_make_is_read_back_for_all_sizes(name: str, device: str) -> None:
    assert validate(name, device, lowered(name, device)) == ()


# -- mutations -------------------------------------------------------------------------------------------------

Change = Callable[[Stmt], Stmt | None]


def mutated(func: Func, change: Change) -> Func:
    """`func` with `change` made where it first applies."""
    done = False

    def visit(stmt: Stmt) -> Stmt:
        nonlocal done
        new = None if done else change(stmt)
        if new is not None:
            done = True
            return new
        return map_children(visit, stmt)

    found = replace(func, body=visit(func.body))
    assert done, "the mutation does not apply"
    return found


def executes(name: str) -> Callable[[Stmt], bool]:
    return lambda s: isinstance(s, Store) and s.instance is not None and s.instance.statement == name


def of(name: str, change: Callable[[Store], Stmt | None]) -> Change:
    """`change` at the first store that executes statement `name`."""
    return lambda s: change(s) if isinstance(s, Store) and executes(name)(s) else None


def moved(store: Store) -> Store:
    """Writes one place further on."""
    return replace(store, index=(*store.index[:-1], add(store.index[-1], index(1))))


def another(store: Store) -> Store:
    """Executes the neighbour of its instance."""
    assert store.instance is not None
    *first, last = store.instance.index
    return replace(store, instance=replace(store.instance, index=(*first, add(last, index(1)))))


def marked(mark: str, change: Callable[[For], Stmt | None]) -> Change:
    return lambda s: change(s) if isinstance(s, For) and s.mark == mark else None


def swapped(first: str, second: str) -> Change:
    """Two neighbours that execute statements of these names change places."""

    def change(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, Block):
            for i, (a, b) in enumerate(zip(stmt.body, stmt.body[1:])):
                if statements_of(a) == {first} and statements_of(b) == {second}:
                    return Block((*stmt.body[:i], b, a, *stmt.body[i + 2:]))
        return None

    return change


def masks(change: Callable[[If], Stmt | None]) -> Change:
    """`change` at the condition of a masked vector."""
    return lambda s: (replace(s, body=new) if isinstance(s, For) and s.kind == "vector" and isinstance(s.body, If)
                      and (new := change(s.body)) is not None else None)


def unmarked(change: Callable[[Store], Stmt | None]) -> Change:
    """`change` at the first store that executes nothing."""
    return lambda s: change(s) if isinstance(s, Store) and s.instance is None else None


def _without_value(fn: str) -> Change:
    """The first fold of two accumulators keeps only one of them."""
    return unmarked(lambda s: replace(s, value=s.value.args[0]) if isinstance(s.value, Call) and s.value.fn == fn else None)


def _wrong_start(store: Store) -> Stmt | None:
    return replace(store, value=Const(1.0, store.buffer.dtype)) if isinstance(store.value, Const) else None


def _without_what_was_there(stmt: Stmt) -> Stmt | None:
    """Folded lanes take an element's place instead of being combined with it."""
    if isinstance(stmt, Store) and stmt.instance is None and isinstance(stmt.value, Call) and (
            stmt.value.args[0] == Load(stmt.buffer, stmt.index) and isinstance(stmt.value.args[1], Call)):
        return replace(stmt, value=stmt.value.args[1])
    return None


def _smaller(stmt: Stmt) -> Stmt | None:
    """The first array of the schedule has one element less."""
    return break_loops.shrink_allocation(stmt, Random(0)) if isinstance(stmt, Allocate) and stmt.scope != "register" else None


def reading(buffer_name: str, place: Callable[[tuple[Expr, ...]], tuple[Expr, ...]]) -> Callable[[Store], Stmt | None]:
    """Reads one buffer elsewhere."""
    def read(store: Store) -> Stmt | None:
        new = map_loads(lambda x: replace(x, index=place(x.index)) if x.buffer.name == buffer_name else x, store.value)
        return replace(store, value=new) if new != store.value else None

    return read


def next_to(place: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """One element further on."""
    return (*place[:-1], add(place[-1], index(1)))


def backwards(place: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Lanes in the other direction."""
    assert isinstance(place[-1], Call)
    return (*place[:-1], call("sub", *place[-1].args))


def masked(change: Callable[[Store], Stmt | None]) -> Change:
    """`change` at the store of a masked vector."""
    return masks(lambda s: replace(s, then=new) if isinstance(s.then, Store) and (new := change(s.then)) is not None else None)


MUTATIONS: dict[str, tuple[str, Change]] = {
    "a statement dropped": ("gemm", of("out_store", lambda s: Block(()))),
    "an instance lost": ("gemm", of("out_store", lambda s: replace(s, instance=None))),
    "an update's instance lost": ("softmax", of("sm_update", lambda s: replace(s, instance=None))),
    "an update dropped": ("gemm", of("acc_update", lambda s: Block(()))),
    "an update twice": ("gemm", lambda s: Block((s, s)) if isinstance(s, Intrin) else None),
    "tensorize writes a neighbour": ("gemm", of("acc_update", moved)),
    "tensorize starts a neighbour": ("gemm", of("acc_init", moved)),
    "tensorize executes a neighbour": ("gemm", of("acc_update", another)),
    "a tile not written back": ("gemm", unmarked(lambda s: Block(()) if isinstance(s.value, Load) else None)),
    "a tile written back next to itself": ("gemm", unmarked(lambda s: moved(s) if isinstance(s.value, Load) else None)),
    "a tile half written back": ("gemm", lambda s: replace(s, hi=index(1)) if isinstance(s, For) and s.kind == "unroll"
                                 and statements_of(s) == set() and s.hi != index(1) else None),
    "the tile of another height": ("gemm", lambda s: replace(s, condition=call("eq", s.condition.args[0], index(1)))
                                   if isinstance(s, If) and isinstance(s.condition, Call) and s.condition.fn == "eq" else None),
    "a narrow tile for a wide one": ("gemm", lambda s: replace(s, condition=call("le", *s.condition.args))
                                     if isinstance(s, If) and isinstance(s.condition, Call)
                                     and s.condition.args[0] == Var("acc_vectors") else None),
    "an epilogue reads another row": ("gemm", of("out_store", lambda s: replace(
        s, value=map_loads(lambda load: replace(load, index=(add(load.index[0], index(1)), load.index[1]))
                           if "tile" in load.buffer.name else load, s.value)))),
    "k starts late": ("gemm", marked("k", lambda s: replace(s, lo=index(1)))),
    "k ends early": ("gemm", marked("k", lambda s: replace(s, hi=call("sub", s.hi, index(1))))),
    "a copy one short": ("gemm", marked("copy", lambda s: replace(s, hi=call("sub", s.hi, index(1))))),
    "a copy dropped": ("gemm", marked("copy", lambda s: Block(()))),
    "a copy after its use": ("gemm", lambda s: Block((*s.body[1:], s.body[0])) if isinstance(s, Block)
                             and isinstance(s.body[0], For) and s.body[0].mark == "copy" else None),
    "blocks that overlap": ("gemm", lambda s: replace(s, value=call("floordiv", s.value, index(2)))
                            if isinstance(s, Let) and s.var == "c0" else None),
    "vectors off by one lane": ("softmax", of("e_store", moved)),
    "vectors that execute the next lane": ("softmax", of("out_store", another)),
    "vectors that overlap": ("softmax", marked("inner", lambda s: replace(s, step=s.step - 1))),
    "vectors with gaps": ("softmax", marked("inner", lambda s: replace(s, step=s.step + 1))),
    "a mask inverted": ("softmax", masks(lambda s: replace(s, condition=call("ge", *s.condition.args))
                                         if isinstance(s.condition, Call) else None)),
    "a mask one lane wider": ("softmax", masks(lambda s: replace(s, condition=call("le", *s.condition.args))
                                               if isinstance(s.condition, Call) else None)),
    "a mask dropped": ("softmax", masks(lambda s: s.then)),
    "masked lanes that read a local backwards": ("softmax", masked(reading("e", backwards))),
    "masked lanes that read an input backwards": ("softmax", masked(reading("x", backwards))),
    "a local read one place on": ("softmax", of("out_store", reading("e", next_to))),
    "an input read one place on": ("softmax", of("mx_update", reading("x", next_to))),
    "a maximum that begins at a number": ("softmax", of("mx_init", lambda s: replace(s, value=Const(3.0, "float32")))),
    "what is behind the end of a row filled with ones": ("conv", of("fill_acc_panel", lambda s: replace(
        s, value=Const(1.0, "float32")))),
    "what is behind the end of a row copied": ("gemm", of("copy_acc_panel", lambda s: replace(
        s, value=s.value.args[1]) if isinstance(s.value, Call) and s.value.fn == "select" else None)),
    "a copy of what is next to it": ("conv", of("copy_acc_panel", reading("x", next_to))),
    "a copy of what is around an image": ("conv", lambda s: replace(s, otherwise=s.then) if isinstance(s, If) and s.otherwise
                                          and s.otherwise != s.then and statements_of(s) == {"copy_acc_panel"} else None),
    "a tile of another row": ("gemm", of("acc_update", reading("a", lambda place: (add(place[0], index(1)), *place[1:])))),
    "a choice by what is one place on": ("masked_ahead", of("t_store", reading("x", next_to))),
    "a choice by what is beyond the last": ("masked_ahead", of(
        "t_store", lambda s: None if any(x.buffer.name == "y" for x in loads(s.value)) else reading("x", next_to)(s))),
    "another input": ("stacked", of("t_store", lambda s: replace(
        s, value=map_loads(lambda x: replace(x, buffer=buffer("y", "n")) if x.buffer.name == "x" else x, s.value)))),
    "a remainder by a size of the wrong sign": ("cut_elsewhere", of("t_acc_update", reading("x", lambda place: (
        place[0], call("sub", *place[1].args) if isinstance(place[1], Call) else place[1], *place[2:])))),
    "statements swapped": ("softmax", swapped("sm_init", "sm_update")),
    "exponentials before their maximum": ("softmax", swapped("mx_update", "e_store")),
    "lanes that start elsewhere": ("softmax", unmarked(_wrong_start)),
    "a lane's maximum lost": ("softmax", _without_value("max")),
    "lanes folded twice": ("softmax", unmarked(lambda s: replace(s, value=Call(s.value.fn, (s.value, s.value), s.value.dtype))
                                               if isinstance(s.value, Call) else None)),
    "lanes folded by another operator": ("softmax", unmarked(lambda s: replace(s, value=replace(s.value, fn="min"))
                                                             if isinstance(s.value, Call) and s.value.fn == "max" else None)),
    "lanes never folded": ("softmax", unmarked(lambda s: Block(()) if s.buffer.name == "mx" else None)),
    "what was there before the lanes lost": ("softmax", _without_what_was_there),
    "lanes that nothing is added to start elsewhere": ("few", unmarked(_wrong_start)),
    "nothing but lanes folded": ("few", _without_what_was_there),
    "lanes that nothing is added to folded elsewhere": ("few", unmarked(lambda s: replace(
        s, buffer=buffer("t", 4, 1), index=(index(0),) * 2) if s.buffer.name == "t_acc" else None)),
    "storage one element smaller": ("softmax", _smaller),
    "a word too far on": ("words", of("acc_update", reading("w", lambda p: (p[0], add(p[1], index(1)))))),
    "a word of another row": ("words", of("acc_update", reading("acc_panel", lambda p: (index(0), *p[1:])))),
    "a word copied from beside": ("words", of("copy_acc_panel", reading("x", lambda p: (p[0], call("sub", p[1], index(1)))))),
    "a rest skipped": ("layer_norm", lambda s: Block(()) if isinstance(s, If) and isinstance(s.then, For)
                       and s.then.kind == "vector" else None),
}


@pytest.mark.defect(21)
@pytest.mark.parametrize("what", MUTATIONS)
def test_broken_loops_are_found(what: str) -> None:
    name, change = MUTATIONS[what]
    broken = mutated(lowered(name, "cpu-avx512"), change)
    with pytest.raises(InternalError, match=r"kernel|allocates|accumulators|reduced into|update of|blocks of|bound twice"):
        validate(name, "cpu-avx512", broken)


def test_what_was_excluded_once_is_excluded_by_the_same_knowledge_alone() -> None:
    points = isl.condition("[n]", "n >= 5")
    meanings = {"n": isl.condition("[n]", "n = 3")}
    known = Known(isl.condition("[n]", "n >= 0"), meanings)
    assert known.excludes(points)
    assert known.excludes(points)
    meanings["n"] = isl.condition("[n]", "n = 7")  # of another place
    assert not known.excludes(points)
    more = isl.condition("[m]", "m >= 5")
    assert known.where(isl.condition("[m]", "m = 4")).excludes(more)  # of a place within
    assert not known.excludes(more)


def test_ends_that_lie_in_order_are_told_from_those_that_may_not() -> None:
    """Two loops of one that is cut at `e`, the clamped place `p`: what runs says `0 < e` and `e < n`, and neither end lies
    before its begin."""
    inside = isl.condition("[n, p]", "n >= 0")
    known = Known(inside, {"e": isl.condition("[e, n, p]", "e = max(0, min(p, n))")})
    pieces = [isl.Set(f"[e, n] -> {{ [i] : {text} }}") for text in ("0 <= i < e", "e <= i < n")]
    ordered = known.ordered(pieces)
    assert ordered.context.is_equal(inside.intersect(isl.condition("[e, n]", "0 <= e <= n")))
    unclamped = Known(inside, {"e": isl.condition("[e, n, p]", "e = p")})
    assert unclamped.ordered(pieces).context.is_equal(inside)


@pytest.mark.parametrize("fn", ["floordiv", "mod", "mul"])
def test_what_a_name_means_is_true_of_what_it_stands_for(fn: str) -> None:
    """Of quotients, remainders and products of parameters, which isl has no formula for, at all small numbers."""
    scope = Scope(("x", "y"))
    text = scope.text(call(fn, Var("x"), Var("y")))
    meaning = scope.names.meanings[text]
    away = 0
    for x, y in product(range(-9, 10), range(-2, 8)):
        at = meaning.intersect(isl.condition("[x, y]", f"x = {x} and y = {y}"))
        if y:
            value = {"floordiv": x // y, "mod": x % y, "mul": x * y}[fn]
            assert not at.intersect(isl.condition(f"[{text}]", f"{text} = {value}")).is_empty(), (x, y)
        away += y > 0 and at.intersect(isl.condition(f"[{text}]", f"{text} = {-50 if x >= 0 else 50}")).is_empty()
    assert away == (70 if fn == "mul" else 7 * 19)  # and says something where divisors, or first factors, are positive


@pytest.mark.parametrize(("text", "excluded"), [
    ("p >= 4 * s and p < 4 * s", True),                     # needs no product
    ("p < 4 * s and i >= 4 * s and i < p + s", True),       # q is at most 3
    ("p < 4 * s and i >= 4 * s and i <= p + s", False),     # as at q = 3
    ("p - q < 6 * (s - 1) and i >= 6 * (s - 1) and i < p - q + s - 1 and q <= 50", True),  # rows of s - 1
    ("p > 2 * s and i < 3 * s and i >= p", True),           # q is at least 3
    ("p > 2 * s and i < 3 * s and i >= p - 1", False),
    ("p < 4 * s and i >= 4 * s and i < p + s and s >= 0", True)])
def test_multiples_of_a_size(text: str, excluded: bool) -> None:
    """`p == q * s` has no formula; that it is a multiple is known where a proof would fail."""
    meanings = {"p": isl.condition("[p, q, s]", "(q >= 1 and s >= 1 and p >= q + s - 1) or (q = 0 and p = 0) or s <= 0")}
    known = Known(isl.condition("[s]", "s >= 2"), meanings, {"p": ("q", "s")})
    points = isl.condition("[p, q, s, i]", f"q >= 0 and {text}")
    assert known.excludes(points) == excluded
    if not excluded:  # there are such numbers
        assert any(not points.intersect(isl.condition("[p, q, s]", f"s = {s} and q = {q} and p = {q * s}")).is_empty()
                   for s in range(2, 9) for q in range(9))

"""The threads' loops against the tree's: what the passes make is accepted, every way of breaking it is found, for all sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from random import Random

import pytest

from tests.fuzz.check import _lowered as in_range
from tests.fuzz.generate import random_case
from tests.poly.support import on_gpu
from tests.poly.test_gpu import CASES, FOUR_WARPS, ONE_WARP
from tests.poly.test_refine import Change, another, marked, moved, mutated, of, swapped
from tests.poly.test_tensorize_gpu import halves
from tsc.errors import InternalError
from tsc.loop_ir.gpu.mma import MMA_F16, MMA_TF32
from tsc.loop_ir.lower import lower_gpu
from tsc.loop_ir.nodes import Allocate, Block, For, Func, If, Intrin, Let, Stmt, Store, block, map_children, map_exprs
from tsc.loop_ir.nodes import children as statements_in
from tsc.loop_ir.simplify import substitute_stmt
from tsc.poly import PatternMismatch
from tsc.poly.proof import refine_gpu
from tsc.poly.proof.refine import statements_of
from tsc.poly.proof.refine_gpu import check_lowered_gpu
from tsc.poly.schedule import ScheduledProgram
from tsc.poly.tile import TileConfig
from tsc.sym import SymExpr
from tsc.te.compute import Program
from tsc.te.expr import Buffer, Call, Expr, Load, Var, add, call, index, map_loads, mul, substitute
from tsc.te.expr import map_children as map_operands

#: Those of `test_gpu`, and operands in halves; with the stages of their copies.
KERNELS: dict[str, tuple[Callable[[], Program], TileConfig, int]] = {
    **{name: (make, config, 2) for name, (make, config, _) in CASES.items()},
    "gemm": (CASES["gemm"][0], FOUR_WARPS, 3), "gemm_serial": (CASES["gemm"][0], ONE_WARP, 1),
    "gemm_halves": (CASES["gemm"][0], FOUR_WARPS, 2)}


@cache
def scheduled(name: str) -> ScheduledProgram:
    make, config, _ = KERNELS[name]
    made = on_gpu(make(), config)
    return replace(made, steps=halves(made.steps), func=halves(made.func)) if name.endswith("halves") else made


@cache
def lowered(name: str) -> Func:
    return lower_gpu(scheduled(name).func, KERNELS[name][2], (MMA_F16, MMA_TF32))


def validate(name: str, after: Func) -> tuple[str, ...]:
    made = scheduled(name)
    return check_lowered_gpu(made.steps, after, made.scop, made.edges)


@pytest.mark.parametrize("name", KERNELS)
def test_what_threads_execute_is_read_back_for_all_sizes(name: str) -> None:
    assert validate(name, lowered(name)) == ()


@pytest.mark.parametrize("seeds", [range(400, 408), range(408, 416)], ids=str)
def test_random_programs_are_read_back(seeds: range) -> None:
    read = 0
    for seed in seeds:
        case = random_case(Random(seed))
        try:
            made = on_gpu(in_range(case, [])[0] if case.loose else case.program, ONE_WARP)
        except PatternMismatch:
            continue
        func = lower_gpu(made.func, 2, (MMA_TF32,))
        assert check_lowered_gpu(made.steps, func, made.scop, made.edges) == ()
        read += 1
    assert read


def test_what_is_not_decided_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refine_gpu, "OPERATIONS", 1000)
    (note,) = validate("gemm", lowered("gemm"))
    assert note.startswith("the threads' loops are not read back for all sizes")


# -- mutations -------------------------------------------------------------------------------------------------

Indices = Callable[[tuple[Expr, ...]], tuple[Expr, ...]]
LANE, WARP = Var("lane"), Var("warp")
#: A lane's registers by columns, and its registers.
TRANSPOSED = add(mul(index(2), Var("c10")), Var("c8_half"))
FRAGMENT = Buffer("acc", "float32", (SymExpr.of(4),))


def reads(buffer: str, change: Indices) -> Callable[[Store], Stmt]:
    """`change` of the index at which a store reads `buffer`."""
    return lambda s: replace(s, value=map_loads(
        lambda x: Load(x.buffer, change(x.index)) if x.buffer.name == buffer else x, s.value))


def writes(change: Indices) -> Callable[[Store], Stmt]:
    return lambda s: replace(s, index=change(s.index))


def everywhere(buffer: str, change: Indices) -> Change:
    """`change` of the index at every access to a buffer."""

    def visit(stmt: Stmt) -> Stmt:
        inner = map_children(visit, stmt)
        return replace(inner, index=change(inner.index)) if isinstance(inner, Store) and inner.buffer.name == buffer else inner

    def swap(expr: Expr) -> Expr:
        return map_loads(lambda x: Load(x.buffer, change(x.index)) if x.buffer.name == buffer else x, expr)

    return lambda s: visit(map_exprs(swap, s)) if isinstance(s, Let) else None


def put(var: str, value: Expr) -> Indices:
    """Indices with a value for a variable."""
    return lambda i: tuple(substitute(e, {var: value}) for e in i)


def instead(var: str, value: Expr) -> Callable[[Stmt], Stmt]:
    """A statement, with what it executes, at another value of a variable."""
    return lambda s: substitute_stmt(s, {var: value})


def further(position: int, by: int = 1) -> Indices:
    return lambda i: tuple(add(e, index(by)) if k == position % len(i) else e for k, e in enumerate(i))


def next_stage(count: int) -> Indices:
    return lambda i: (call("mod", add(i[0], index(1)), index(count)), *i[1:])


def unswizzled(i: tuple[Expr, ...]) -> tuple[Expr, ...]:
    def visit(expr: Expr) -> Expr:
        inner = map_operands(visit, expr)
        return inner.args[0] if isinstance(inner, Call) and inner.fn == "bitxor" else inner
    return tuple(map(visit, i))


def in_two_stages(i: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Tiles in two of three stages."""
    stage = i[0].args[0] if isinstance(i[0], Call) and i[0].fn == "mod" else i[0]
    return call("mod", stage, index(2)), *i[1:]


def only(condition: Expr) -> Callable[[Stmt], Stmt]:
    return lambda s: If(condition, s)


def loops(var: str, change: Callable[[For], Stmt]) -> Change:
    return lambda s: change(s) if isinstance(s, For) and s.var == var else None


def products(change: Callable[[Stmt], Stmt]) -> Change:
    """`change` of a matrix instruction."""
    return lambda s: change(s) if isinstance(s, Intrin) else None


def runs(first: Callable[[Stmt], bool], second: Callable[[Stmt], bool]) -> Change:
    """A statement put behind the one that follows it."""

    def change(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, Block):
            for i, (a, b) in enumerate(zip(stmt.body, stmt.body[1:])):
                if first(a) and second(b):
                    return Block((*stmt.body[:i], b, a, *stmt.body[i + 2:]))
        return None

    return change


def folds(change: Callable[[If], Stmt]) -> Change:
    """`change` of what lane 0 does alone."""
    return lambda s: change(s) if isinstance(s, If) and s.condition == call("lt", LANE, index(1)) else None


def marked_as(mark: str) -> Callable[[Stmt], bool]:
    return lambda s: isinstance(s, For) and s.mark == mark


def made(name: str) -> Callable[[Stmt], bool]:
    return lambda s: statements_of(s) == {name}


def wider(store: Store) -> Stmt:
    """The mask of a copy reaches one element further."""
    assert isinstance(store.value, Call) and isinstance(store.value.args[0], Call)
    condition, *rest = store.value.args
    first, second = condition.args
    assert isinstance(second, Call)
    again = Call("and", (first, call("ge", add(second.args[0], index(1)), second.args[1])), condition.dtype)
    return replace(store, value=replace(store.value, args=(again, *rest)))


def copied_ahead(by: int) -> Change:
    """The guard of the copies of a later tile."""
    return lambda s: (replace(s, condition=call("lt", add(s.condition.args[0], index(by)), s.condition.args[1]))
                      if isinstance(s, If) and isinstance(s.condition, Call) and s.condition.args[1] == Var("c2_tiles") and
                      s.condition.args[0] != Var("c2_first") else None)


MUTATIONS: dict[str, tuple[str, Change]] = {
    # instances: every thread its own
    "a lane off by one": ("gemm", of("out_store", instead("lane", add(LANE, index(1))))),
    "a lane idle": ("gemm", of("out_store", only(call("lt", LANE, index(31))))),
    "a lane's part done by another": ("gemm", products(instead("lane", call("sub", index(31), LANE)))),
    "a warp's tile dropped": ("gemm", products(only(call("lt", WARP, index(3))))),
    "two warps on one tile": ("gemm", products(instead("warp", mul(index(2), call("floordiv", WARP, index(2)))))),
    "warps with rows and columns exchanged": ("gemm", products(instead("warp", add(
        mul(index(2), call("mod", WARP, index(2))), call("floordiv", WARP, index(2)))))),
    "a warp too few": ("gemm", loops("warp", lambda s: replace(s, hi=index(3)))),
    "a warp too many": ("gemm", loops("warp", lambda s: replace(s, hi=index(5)))),
    "half a warp": ("gemm", loops("lane", lambda s: replace(s, hi=index(16)))),
    "an instruction twice": ("gemm", products(lambda s: Block((s, s)))),
    "an instruction of half its depth": ("gemm", loops("c7_step", lambda s: replace(s, hi=index(4)))),
    "instructions with gaps": ("gemm", loops("c7", lambda s: replace(s, step=16))),
    "a statement dropped": ("gemm", of("acc_init", lambda s: Block(()))),
    "an instance lost": ("gemm", of("acc_update", lambda s: replace(s, instance=None))),
    "the neighbour's instance": ("gemm", of("acc_update", another)),
    "a copy one short": ("gemm", marked("copy", lambda s: replace(s, hi=call("sub", s.hi, index(s.step))))),
    "a copy by one warp": ("gemm", of("copy_acc_j_tile", instead("warp", index(0)))),
    "a first copy skipped": ("gemm", marked("prologue", lambda s: replace(s, lo=index(1)))),
    "a last copy skipped": ("gemm", copied_ahead(1)),
    "a copy too many": ("gemm", copied_ahead(-1)),
    "every lane folds": ("softmax", folds(lambda s: s.then)),
    "no lane folds": ("softmax", folds(lambda s: Block(()))),
    "blocks that overlap": ("gemm", lambda s: replace(s, value=call("floordiv", s.value, index(2)))
                            if isinstance(s, Let) and s.var == "c0" else None),
    # cells: what is stored and read is where it was
    "a lane writes its neighbour's element": ("gemm", of("out_store", moved)),
    "a fragment transposed": ("gemm", of("acc_update", lambda s: reads("acc", lambda i: (TRANSPOSED,))(
        replace(s, index=(TRANSPOSED,))))),
    "a fragment transposed where it is read": ("gemm", of("acc_update", reads("acc", lambda i: (TRANSPOSED,)))),
    "lanes of an operand transposed": ("gemm", of("acc_update", reads("acc_j_tile", put("lane", add(
        mul(index(8), call("mod", LANE, index(4))), call("floordiv", LANE, index(4))))))),
    "halves of an operand exchanged": ("gemm_halves", of("acc_update", reads(
        "acc_i_tile", put("c8_half", call("sub", index(1), Var("c8_half")))))),
    "an operand read without its swizzle": ("gemm", of("acc_update", reads("acc_i_tile", unswizzled))),
    "a copy made without its swizzle": ("gemm", of("copy_acc_j_tile", writes(unswizzled))),
    "a column further in halves": ("gemm_halves", of("acc_update", reads("acc_j_tile", further(-1)))),
    "another warp's rows": ("gemm", of("acc_update", reads("acc_i_tile", put("warp", call("sub", index(3), WARP))))),
    "another register": ("gemm", of("out_store", reads("acc", lambda i: (call("sub", index(3), i[0]),)))),
    "another column's bias": ("gemm", of("out_store", reads("b", further(0)))),
    "a copy of the next element": ("gemm", of("copy_acc_i_tile", reads("a", further(-1)))),
    "a copy's mask one wider": ("gemm", of("copy_acc_i_tile", wider)),
    "a copy into the next stage": ("gemm", of("copy_acc_i_tile", writes(next_stage(3)))),
    "an operand from the next stage": ("gemm", of("acc_update", reads("acc_j_tile", next_stage(3)))),
    "every stage's index off by one": ("gemm", everywhere("acc_i_tile", further(0))),
    "two stages for three tiles": ("gemm", everywhere("acc_j_tile", in_two_stages)),
    "another lane's part": ("softmax", of("mx_update", reads("mx_part", further(-1)))),
    "another row's maximum": ("softmax", of("out_store", reads("mx", put("warp", call("sub", index(1), WARP))))),
    "another row of ids": ("embedding", of("out_store", reads("ids", further(-1)))),
    # order, and how long storage lives
    "products before they begin": ("gemm", runs(marked_as("init"), lambda s: isinstance(s, Let))),
    "results before their products": ("gemm_serial", runs(marked_as("k_tile"), marked_as("epilogue"))),
    "a copy after its use": ("gemm_serial", marked("k_tile", lambda s: replace(s, body=block(
        *(x for x in statements_in(s.body) if not made("copy_acc_j_tile")(x)),
        *(x for x in statements_in(s.body) if made("copy_acc_j_tile")(x)))))),
    "the fold before its start": ("softmax", swapped("mx_part_init", "mx_part_update")),
    "an accumulator of each tile": ("gemm", marked("k_tile", lambda s: replace(
        s, body=Allocate(FRAGMENT, "register", s.body)))),
    "registers too few": ("gemm", lambda s: replace(s, buffer=replace(s.buffer, shape=(SymExpr.of(3),)))
                          if isinstance(s, Allocate) and s.buffer.name == "acc" else None),
    "a stage too few": ("gemm", lambda s: replace(s, buffer=replace(s.buffer, shape=s.buffer.shape[1:]))
                        if isinstance(s, Allocate) and s.buffer.name == "acc_i_tile" else None),
}


@pytest.mark.parametrize("what", MUTATIONS)
def test_broken_threads_are_found(what: str) -> None:
    name, change = MUTATIONS[what]
    broken = mutated(lowered(name), change)
    with pytest.raises(InternalError, match=r"kernel|allocates|blocks of"):
        validate(name, broken)


def test_what_changes_nothing_is_accepted() -> None:
    """Copies in another order; another lane that begins a row's maximum: the barrier before the fold is there already."""
    another_lane = mutated(lowered("softmax"), folds(lambda s: replace(s, condition=call("eq", LANE, index(1)))))
    assert validate("softmax", another_lane) == ()
    assert validate("gemm", mutated(lowered("gemm"), runs(marked_as("copy"), marked_as("copy")))) == ()
    assert validate("gemm_serial", mutated(lowered("gemm_serial"), runs(marked_as("copy"), marked_as("copy")))) == ()

"""Every proof about promotion is shown to fail on a broken copy, fill, layout or domain."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import islpy
import pytest

from tests.poly import programs
from tests.poly.programs import at, axis, buffer, f32
from tests.poly.support import Pieces, check_values, pieces
from tsc.errors import InternalError
from tsc.loop_ir.nodes import Func, If, Stmt, Store, block, map_children, walk
from tsc.poly import isl
from tsc.poly.deps import Dependences, dependences
from tsc.poly.gpu.teams import check_teams, constant_trips
from tsc.poly.legality import check_tree, order_of
from tsc.poly.normalise import separate_outputs
from tsc.poly.pattern.base import Build, Tree
from tsc.poly.pattern.warps import match_warps
from tsc.poly.promotion.layout import Layout, plain
from tsc.poly.promotion.promote import Assignment, Operand, Promoted, check_promoted, promote_operand
from tsc.poly.proof.dataflow import check_dataflow
from tsc.poly.proof.guards import check_loops
from tsc.poly.schedule import check_final
from tsc.poly.scop import Scop, build_scop
from tsc.poly.tile import TileConfig
from tsc.poly.to_loops import iterators_for, to_loops
from tsc.poly.tree import node_below
from tsc.sym import dim
from tsc.te.compute import SUM, Compute, Program, SizeParam
from tsc.te.expr import BOOL, Call, Cast, Const, Expr, Load, Size, Var, add, call, index, mul, select
from tsc.te.expr import map_children as map_operands

# -- copies on a CPU: the operand panel ------------------------------------------------------------------------

def padded_product() -> Program:
    """out[i, j] = relu(sum over r of a[i, r] * float(w[r, j - 1], 0 outside)): a pad and a cast to be composed."""
    a, w = buffer("a", "M", "K"), buffer("w", "K", "N", dtype="float16")
    acc, out = buffer("acc", "M", dim("N") + 2), buffer("out", "M", dim("N") + 2)
    i, j, r, x, y = axis("i", "M"), axis("j", dim("N") + 2), axis("r", "K"), axis("x", "M"), axis("y", dim("N") + 2)
    column = call("sub", Var("j"), index(1))
    inside = Call("and", (call("ge", column, index(0)), call("lt", column, Size(dim("N")))), BOOL)
    padded = select(inside, Cast(at(w, r, column), "float32"), f32(0.0))
    return Program((a, w), (out,), (Compute(acc, (i, j), mul(at(a, i, r), padded), (r,), SUM),
                                    Compute(out, (x, y), call("max", at(acc, x, y), f32(0.0)))),
                   (SizeParam("M"), SizeParam("N"), SizeParam("K")))


def _checked(made: Pieces, promoted: Promoted) -> None:
    order = check_dataflow(promoted, made.scop, made.deps)
    check_tree(promoted.schedule, made.scop, made.deps, "promoted", order)


def _with(promoted: Promoted, name: str, change: Callable[[Assignment], Assignment]) -> Promoted:
    return replace(promoted, assignments={**promoted.assignments, name: change(promoted.assignments[name])})


def _valued(change: Callable[[Expr], Expr]) -> Callable[[Assignment], Assignment]:
    return lambda a: replace(a, value=change(a.value))


def _everywhere(change: Callable[[Expr], Expr | None]) -> Callable[[Expr], Expr]:
    def visit(expr: Expr) -> Expr:
        changed = change(expr)
        return map_operands(visit, expr) if changed is None else changed
    return visit


def _shifted_load(name: str, position: int) -> Callable[[Expr], Expr]:
    """Loads of `name` one cell further along `position`."""
    def change(e: Expr) -> Expr | None:
        if isinstance(e, Load) and e.buffer.name == name:
            return replace(e, index=tuple(add(i, index(1)) if d == position else i for d, i in enumerate(e.index)))
        return None
    return _everywhere(change)


PROGRAMS: dict[str, Callable[[], Program]] = {
    "gemm": programs.gemm, "transposed": lambda: programs.gemm(transposed=True), "scores": programs.attention_scores,
    "conv": programs.conv, "padded": padded_product}


@pytest.mark.parametrize("name", PROGRAMS)
def test_promotions_are_proved(name: str) -> None:
    made = pieces(PROGRAMS[name]())
    assert any(s.startswith("copy_") for s in made.promoted.assignments)
    _checked(made, made.promoted)


@pytest.mark.parametrize("name", ["gemm", "transposed", "scores"])
@pytest.mark.parametrize("position", [0, 1])
def test_a_copy_from_a_wrong_cell_is_rejected(name: str, position: int) -> None:
    made = pieces(PROGRAMS[name]())
    source = "k" if name == "scores" else "w"
    broken = _with(made.promoted, "copy_acc_panel", _valued(_shifted_load(source, position)))
    with pytest.raises(InternalError, match="which is not"):
        _checked(made, broken)


def test_a_copy_of_another_buffer_is_rejected() -> None:
    made = pieces(programs.gemm())
    other = _everywhere(lambda e: at(buffer("a", "M", "K"), index(0), index(0)) if isinstance(e, Load) else None)
    with pytest.raises(InternalError, match="which is not"):
        _checked(made, _with(made.promoted, "copy_acc_panel", _valued(other)))


def _wrong_pad(e: Expr) -> Expr | None:
    return Const(1.0, "float32") if e == Const(0.0, "float32") else None


def _wider_pad(e: Expr) -> Expr | None:
    return replace(e, fn="gt") if isinstance(e, Call) and e.fn == "ge" else None


def _no_pad(e: Expr) -> Expr | None:
    return e.args[1] if isinstance(e, Call) and e.fn == "select" else None


def _no_cast(e: Expr) -> Expr | None:
    return replace(e, dtype="float64") if isinstance(e, Cast) else None


@pytest.mark.parametrize("change", [_wrong_pad, _wider_pad, _no_pad, _no_cast])
def test_a_prologue_composed_wrongly_is_rejected(change: Callable[[Expr], Expr | None]) -> None:
    made = pieces(padded_product())
    before = made.promoted.assignments["copy_acc_panel"].value
    broken = _with(made.promoted, "copy_acc_panel", _valued(_everywhere(change)))
    assert broken.assignments["copy_acc_panel"].value != before
    with pytest.raises(InternalError, match="which is not"):
        _checked(made, broken)


def test_an_equal_prologue_in_other_words_is_accepted() -> None:
    """The proof is about values, not about text: `j - 1 >= 0` is `j > 0`."""
    made = pieces(padded_product())
    reworded = _everywhere(lambda e: call("gt", Var("j"), index(0)) if isinstance(e, Call) and e.fn == "ge" else None)
    other = _with(made.promoted, "copy_acc_panel", _valued(reworded))
    assert other != made.promoted
    _checked(made, other)


@pytest.mark.parametrize("position", [0, 1])
def test_a_read_of_a_wrong_cell_of_the_local_is_rejected(position: int) -> None:
    made = pieces(programs.gemm())
    broken = _with(made.promoted, "acc_update", _valued(_shifted_load("acc_panel", position)))
    with pytest.raises(InternalError, match=r"no copy fills it|which is not"):
        _checked(made, broken)


def test_a_statement_that_computes_something_else_is_rejected() -> None:
    made = pieces(programs.gemm())
    broken = _with(made.promoted, "out_store", lambda a: replace(a, value=mul(a.value, f32(2.0))))
    with pytest.raises(InternalError, match="which is not"):
        _checked(made, broken)
    moved = _with(made.promoted, "out_store", lambda a: replace(a, index=(a.index[0], index(0))))
    with pytest.raises(InternalError, match="another cell"):
        _checked(made, moved)


@pytest.mark.parametrize(("old", "new"), [("< K", "< K - 1"), ("o1 <= 3", "o1 <= 2"), ("0 <= o0", "1 <= o0")])
def test_a_footprint_that_is_too_small_is_rejected(old: str, new: str) -> None:
    made = pieces(programs.gemm())
    text = isl.tree_text(made.promoted.schedule)
    line = next(x for x in text.splitlines() if "extension" in x and "-> copy_acc_panel[" in x)
    copy = next(p for p in line.split(";") if "copy_acc_panel" in p)
    partial = text.replace(line, line.replace(copy, copy.replace(old, new)))
    assert partial != text
    with pytest.raises(InternalError, match="no copy fills it"):
        _checked(made, replace(made.promoted, schedule=islpy.Schedule(partial)))


def test_a_fill_where_a_copy_belongs_is_rejected() -> None:
    made = pieces(programs.gemm())
    zero = _with(made.promoted, "copy_acc_panel", lambda a: replace(a, value=Const(0.0, "float32")))
    with pytest.raises(InternalError, match="which is not"):
        _checked(made, zero)


def test_storage_with_too_few_columns_is_rejected() -> None:
    made = pieces(programs.gemm())
    locals_ = tuple(replace(x, layout=None, storage=replace(x.storage, shape=(x.box[0], x.box[1] - 1)))
                    if x.buffer.name == "acc_panel" else x for x in made.promoted.locals)
    with pytest.raises(InternalError, match="leaves the storage"):
        _checked(made, replace(made.promoted, locals=locals_))


def test_a_dropped_dimension_is_rejected() -> None:
    """Two cells of one life in one place."""
    made = pieces(programs.gemm())
    locals_ = tuple(replace(x, dims=(1,), layout=None, storage=replace(x.storage, shape=x.box[1:]))
                    if x.buffer.name == "acc_panel" else x for x in made.promoted.locals)
    with pytest.raises(InternalError, match="leaves the storage"):
        _checked(made, replace(made.promoted, locals=locals_))


def test_a_copy_outside_the_life_is_rejected() -> None:
    """The storage begins its life after the copies have run."""
    made = pieces(programs.gemm())
    lines = isl.tree_text(made.promoted.schedule).splitlines()
    alloc = next(i for i, x in enumerate(lines) if "filter" in x and "alloc_acc_panel" in x)
    copy, use = (i for i, x in enumerate(lines) if i > alloc and x.startswith(lines[alloc].partition("filter")[0] + "filter"))
    assert "copy_acc_panel" in lines[copy]
    late = "\n".join([*lines[:alloc], *lines[alloc + 1:use], lines[alloc], *lines[use:]]) + "\n"
    with pytest.raises(InternalError, match="life"):
        _checked(made, replace(made.promoted, schedule=islpy.Schedule(late)))


# -- any access, anywhere in a tree ----------------------------------------------------------------------------

def _alone(node: isl.ScheduleNode, statement: str) -> isl.ScheduleNode:
    """The node below the filter of one statement."""
    while node.get_type() != isl.NodeType.filter or isl.tuple_names(node.filter_get_filter()) != {statement}:
        parts = [node.child(i) for i in range(node.n_children())]
        node = next(p for p in parts if p.get_type() != isl.NodeType.filter
                    or statement in isl.tuple_names(p.filter_get_filter()))
    return node.child(0)


def _copied_exponentials(complete: bool) -> tuple[Pieces, Promoted]:
    """Softmax of rows of 6 whose last statement reads its exponentials from a copy: made just before it, or before the row."""
    made = pieces(programs.softmax("R", 6))
    reader = made.scop.statements["out_store"]
    row, column = (a.name for a in reader.axes)
    value = at(made.scop.locals()["e"], Var(row), Var(column))
    operand = Operand.over_axes("e_copy", value, reader, (row, column), (1,))
    node = node_below(made.promoted.schedule, {"block", "row"})
    node = _alone(node, "out_store") if complete else node
    return made, promote_operand(
        made.promoted, node, made.scop, reader.domain, operand, plain((6,)), "stack", f32(0.0),
        lambda copies: [("copy", isl.instance_coordinate(copies, 1))])


def test_an_intermediate_is_promoted_where_it_is_complete() -> None:
    made, promoted = _copied_exponentials(True)
    assert promoted.assignments["out_store"] != made.promoted.assignments["out_store"]
    _checked(made, promoted)
    check_promoted(promoted, made.scop, made.deps, order_of(promoted.schedule, made.deps.full))
    func = to_loops(promoted, made.scop, "kernel")
    check_loops(func, promoted.schedule, made.scop, iterators_for(made.scop))
    check_values(func, made.scop.program, {"R": 5})


def test_a_source_that_is_written_after_the_copy_is_rejected() -> None:
    made, promoted = _copied_exponentials(False)
    with pytest.raises(InternalError, match="is written between"):
        _checked(made, promoted)


# -- rounded domains, fills, layouts, owners: a product on a GPU -----------------------------------------------

@functools.cache
def _gpu(divisor: int = 1) -> tuple[Scop, Dependences, Tree]:
    program = programs.gemm()
    program = replace(program, sizes=tuple(replace(s, divisor=divisor) for s in program.sizes))
    scop = build_scop(separate_outputs(program))
    deps = dependences(scop)
    found, _ = match_warps(scop).solved(scop, deps)
    return scop, deps, found.tree(TileConfig((16, 8, 16), block_tile=(32, 16, 16), warp_tile=(16, 8)), Build(scop, deps))


def _gpu_checked(promoted: Promoted) -> None:
    scop, deps, schedule = _gpu()
    check_final(promoted, scop, deps, rounded=schedule.rounded)


def _gpu_loops(promoted: Promoted, schedule: Tree) -> Func:
    func = to_loops(promoted, schedule.rounded, "kernel")
    return replace(func, body=constant_trips(func.body))


def test_a_divisible_context_has_neither_guards_nor_fills() -> None:
    scop, _, schedule = _gpu(32)
    assert not schedule.promoted.guards
    assert schedule.rounded.domain.is_equal(scop.domain)
    func = _gpu_loops(schedule.promoted, schedule)
    assert not any(isinstance(s, If) for s in walk(func.body))
    copies = [s for s in walk(func.body) if isinstance(s, Store) and s.instance and s.instance.statement.startswith("copy")]
    assert len(copies) == 2 and all(isinstance(s.value, Load) for s in copies)


def test_an_indivisible_one_has_them() -> None:
    _, _, schedule = _gpu()
    assert list(schedule.promoted.guards) == ["out_store"]
    assert all(isinstance(a.value, Call) and a.value.fn == "select"
               for n, a in schedule.promoted.assignments.items() if n.startswith("copy"))


def test_a_dropped_guard_is_rejected() -> None:
    _, _, schedule = _gpu()
    bare = replace(schedule.promoted, guards={})
    with pytest.raises(InternalError, match="without a guard, and writes to out"):
        _gpu_checked(bare)
    func = _gpu_loops(schedule.promoted, schedule)
    check_loops(func, schedule.promoted.schedule, schedule.executed, iterators_for(schedule.executed))
    with pytest.raises(InternalError, match="outside"):
        check_loops(_gpu_loops(bare, schedule), bare.schedule, schedule.executed, iterators_for(schedule.executed))


@pytest.mark.parametrize("guard", [
    call("lt", Var("x"), Size(dim("M"))), Const(True, "bool"),
    Call("and", (call("lt", Var("x"), Size(dim("M"))), call("lt", Var("y"), call("sub", Size(dim("N")), index(1)))), BOOL)])
def test_a_guard_that_is_too_weak_or_too_strong_is_rejected(guard: Expr) -> None:
    with pytest.raises(InternalError, match="does not leave the instances"):
        _gpu_checked(replace(_gpu()[2].promoted, guards={"out_store": guard}))


def _filling(value: float) -> Callable[[Assignment], Assignment]:
    return _valued(lambda v: select(v.args[0], v.args[1], f32(value)) if isinstance(v, Call) else v)


def _filled(promoted: Promoted, rows: float, columns: float) -> Promoted:
    return _with(_with(promoted, "copy_acc_i_tile", _filling(rows)), "copy_acc_j_tile", _filling(columns))


@pytest.mark.parametrize("values", [(1.0, 1.0), (2.0, -1.0), (float("inf"), 0.0), (0.0, float("nan"))])
def test_a_wrong_fill_is_rejected(values: tuple[float, float]) -> None:
    with pytest.raises(InternalError, match="which is not neutral"):
        _gpu_checked(_filled(_gpu()[2].promoted, *values))


def test_a_fill_that_changes_no_sum_is_accepted() -> None:
    """1 x 0 is neutral: the proof is about what is combined."""
    _gpu_checked(_filled(_gpu()[2].promoted, 1.0, 0.0))


def test_a_missing_fill_is_rejected() -> None:
    """A copy without its condition, and a copy of nothing but what exists."""
    _, _, schedule = _gpu()
    broken = _with(schedule.promoted, "copy_acc_i_tile", _valued(lambda v: v.args[1]))
    with pytest.raises(InternalError, match="which is not neutral"):
        _gpu_checked(broken)
    with pytest.raises(InternalError, match="outside its extents"):
        check_loops(_gpu_loops(broken, schedule), broken.schedule, schedule.executed, iterators_for(schedule.executed))


@pytest.mark.parametrize("name", ["acc_i_tile", "acc_j_tile"])
def test_a_fill_over_what_is_needed_is_rejected(name: str) -> None:
    def narrow(v: Expr) -> Expr:
        assert isinstance(v, Call)
        return select(Call("and", (v.args[0], call("gt", Var("r"), index(0))), BOOL), v.args[1], v.args[2])

    with pytest.raises(InternalError, match="which is not"):
        _gpu_checked(_with(_gpu()[2].promoted, f"copy_{name}", _valued(narrow)))


def test_a_rounded_domain_that_lacks_instances_is_rejected() -> None:
    scop, deps, schedule = _gpu()
    update = schedule.rounded.statements["acc_update"]
    short = replace(update, domain=update.domain.subtract(isl.Set("[M, N, K] -> { acc_update[i, j, r] : r = 0 }")))
    rounded = replace(schedule.rounded, statements={**schedule.rounded.statements, "acc_update": short})
    with pytest.raises(InternalError, match="lacks some of its instances"):
        check_dataflow(schedule.promoted, scop, deps, rounded)


def _relaid(promoted: Promoted, name: str, change: Callable[[Layout], Layout]) -> Promoted:
    locals_ = []
    for x in promoted.locals:
        if x.buffer.name == name:
            assert x.layout is not None
            layout = change(x.layout)
            x = replace(x, layout=layout, storage=replace(x.storage, shape=layout.storage))
        locals_.append(x)
    return replace(promoted, locals=tuple(locals_))


@pytest.mark.parametrize(("name", "change", "message"), [
    ("acc_i_tile", lambda x: replace(x, index=(x.index[0], add(x.index[1], index(1)))), "leaves its storage"),
    ("acc_i_tile", lambda x: replace(x, index=(x.index[0], call("mod", x.index[1], index(8)))), "one place"),
    ("acc_j_tile", lambda x: replace(x, storage=(x.storage[0] + 1, x.storage[1])), "empty"),
    ("acc", lambda x: replace(x, index=(*x.index[:3], call("floordiv", x.index[3], index(2)))), "one place"),
    ("acc", lambda x: plain((16, 16)), "leaves its storage"),
])
def test_a_layout_that_is_no_bijection_onto_the_footprint_is_rejected(
        name: str, change: Callable[[Layout], Layout], message: str) -> None:
    with pytest.raises(InternalError, match=message):
        _gpu_checked(_relaid(_gpu()[2].promoted, name, change))


@pytest.mark.parametrize("change", [
    lambda x: replace(x, index=(x.index[0], x.index[1], call("sub", index(31), x.index[2]), x.index[3])),  # another lane
    lambda x: replace(x, index=(call("sub", index(1), x.index[0]), *x.index[1:])),  # another warp
    lambda x: replace(x, owners=0),
])
def test_registers_of_others_are_out_of_reach(change: Callable[[Layout], Layout]) -> None:
    _, _, schedule = _gpu()
    check_teams(_gpu_loops(schedule.promoted, schedule), schedule.promoted, schedule.executed)
    broken = _relaid(schedule.promoted, "acc", change)
    _gpu_checked(broken)  # a bijection all the same
    with pytest.raises(InternalError, match="registers"):
        check_teams(_gpu_loops(broken, schedule), broken, schedule.executed)


def test_a_step_that_reads_what_it_writes_is_rejected() -> None:
    """The products in the nest that copies: no barrier can stand between the threads."""
    _, _, schedule = _gpu()

    def merged(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Store) and stmt.instance and stmt.instance.statement == "copy_acc_j_tile":
            return block(stmt, replace(stmt, value=Load(stmt.buffer, (index(0), index(0)))))
        return map_children(merged, stmt)

    func = _gpu_loops(schedule.promoted, schedule)
    with pytest.raises(InternalError, match="no barrier in between"):
        check_teams(replace(func, body=merged(func.body)), schedule.promoted, schedule.executed)

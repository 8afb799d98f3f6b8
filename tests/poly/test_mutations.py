"""Every check of the polyhedral core is shown to fail on a broken schedule, tree or loop nest."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import islpy
import pytest

from tests.poly import programs
from tests.poly.programs import at, axis, buffer, f32
from tests.poly.support import SMALL, Pieces, pieces, scheduled
from tsc.errors import InternalError
from tsc.loop_ir.nodes import Block, For, Func, If, Stmt, Store, map_children, walk
from tsc.poly import PatternMismatch, isl
from tsc.poly.deps import Dependences, dependences
from tsc.poly.legality import check_blocks, check_instances, check_tree, order_of
from tsc.poly.matrix import function
from tsc.poly.pattern import match
from tsc.poly.pattern.base import Build
from tsc.poly.pattern.contraction import Contraction
from tsc.poly.pattern.nest import initial_nest
from tsc.poly.pattern.stages import Staged
from tsc.poly.promotion.promote import check_promoted
from tsc.poly.proof.dataflow import check_dataflow
from tsc.poly.proof.guards import check_loops
from tsc.poly.proof.loop_order import edges_of
from tsc.poly.proof.refine import statements_of
from tsc.poly.schedule import check_final
from tsc.poly.scop import Scop, build_scop
from tsc.poly.to_loops import iterators_for, to_loops
from tsc.poly.tree import separated
from tsc.sym import SymExpr, dim
from tsc.te.compute import SUM, Compute, Program, SizeParam
from tsc.te.expr import Buffer, CheckedIndex, Const, Expr, Size, Var, add, call, index, mul, select

# -- dependences -----------------------------------------------------------------------------------------------

def _order(made: Pieces) -> isl.UnionMap:
    """Copies before their readers."""
    return check_dataflow(made.promoted, made.scop, made.deps)


@pytest.mark.parametrize("make", [programs.gemm, programs.softmax, lambda: programs.layer_norm(6), programs.conv])
def test_a_reversed_dependence_is_rejected(make: Callable[[], Program]) -> None:
    made = pieces(make())
    check_tree(made.promoted.schedule, made.scop, made.deps, "as made", _order(made))
    back = made.deps.relaxed.reverse()
    with pytest.raises(InternalError, match="breaks dependences"):
        check_tree(made.promoted.schedule, made.scop, replace(made.deps, full=back, relaxed=back), "reversed", _order(made))


def test_every_single_reversed_dependence_is_rejected() -> None:
    made = pieces(programs.layer_norm(6))
    for one in isl.maps_of(made.deps.relaxed):
        back = isl.UnionMap.from_map(one).reverse()
        assert not order_of(made.promoted.schedule, back).broken.is_empty(), one


def test_only_the_updates_own_dependences_are_dropped() -> None:
    scop = build_scop(programs.gemm())
    deps = dependences(scop)
    dropped = deps.full.subtract(deps.relaxed)
    assert [str(m.get_tuple_name(isl.IN)) for m in isl.maps_of(dropped)] == ["acc_update"]
    edges = {(str(m.get_tuple_name(isl.IN)), str(m.get_tuple_name(isl.OUT))) for m in isl.maps_of(deps.relaxed)}
    assert edges == {("acc_init", "acc_update"), ("acc_init", "out_store"), ("acc_update", "out_store")}
    assert len(deps.log) == 1


# -- the matrix and the tree -----------------------------------------------------------------------------------

@pytest.mark.parametrize("shift", ["K - 2", "0", "-1", "i - 1"])
def test_a_wrongly_sunk_epilogue_is_rejected(shift: str) -> None:
    made = pieces(programs.gemm())
    assert isinstance(made.found, Contraction)
    matrix = made.found.matrix
    text = shift.replace("i", "x")
    wrong = {**matrix.entries, "out_store": (*matrix.entries["out_store"][:-1], function(made.scop, "out_store", text))}
    node = initial_nest(made.scop, replace(made.found, matrix=replace(matrix, entries=wrong)), made.deps.relaxed)
    with pytest.raises(InternalError, match="breaks dependences"):
        check_tree(node.get_schedule(), made.scop, made.deps, "sunk", sunk=True)


def test_an_epilogue_sunk_further_is_legal() -> None:
    made = pieces(programs.gemm())
    assert isinstance(made.found, Contraction)
    matrix = made.found.matrix
    later = {**matrix.entries, "out_store": (*matrix.entries["out_store"][:-1], function(made.scop, "out_store", "K + 3"))}
    node = initial_nest(made.scop, replace(made.found, matrix=replace(matrix, entries=later)), made.deps.relaxed)
    check_tree(node.get_schedule(), made.scop, made.deps, "sunk", sunk=True)


@pytest.mark.parametrize("order", [["acc_update", "acc_init", "out_store"], ["acc_init", "out_store", "acc_update"]])
def test_a_wrong_sequence_is_rejected(order: list[str]) -> None:
    made = pieces(programs.gemm())
    node = islpy.Schedule.from_domain(made.scop.domain).get_root().child(0)
    node = node.insert_sequence(isl.filters([isl.restrict(made.scop.domain, [s]) for s in order]))
    with pytest.raises(InternalError, match="breaks dependences"):
        check_tree(node.get_schedule(), made.scop, made.deps, "sequence")


@pytest.mark.parametrize("change", [("0 <= j < N }", "0 <= j < N - 1 }"), ("0 <= j < N }", "0 <= j < N and i > 0 }")])
def test_a_filter_that_loses_instances_is_rejected(change: tuple[str, str]) -> None:
    made = pieces(programs.gemm())
    lines = isl.tree_text(made.promoted.schedule).splitlines()
    at_line = next(i for i, line in enumerate(lines) if "filter" in line and "acc_init" in line and change[0] in line)
    lines[at_line] = lines[at_line].replace(*change)
    with pytest.raises((InternalError, islpy.Error)):
        check_instances(islpy.Schedule("\n".join(lines) + "\n"), made.scop, "narrowed")


def test_a_widened_domain_is_rejected() -> None:
    made = pieces(programs.gemm())
    wider = isl.tree_text(made.promoted.schedule).replace("0 <= j < N", "0 <= j <= N")
    with pytest.raises(InternalError, match="adds"):
        check_instances(islpy.Schedule(wider), made.scop, "widened")


# -- blocks ----------------------------------------------------------------------------------------------------

def _check_blocks(schedule: isl.Schedule, deps: Dependences) -> None:
    check_blocks(schedule, deps, order_of(schedule, deps.full))


def _blocks_over_k(scop: Scop, statements: list[str]) -> isl.Schedule:
    rows = [[function(scop, s, "r" if s == "acc_update" else "0") for s in statements]]
    node = islpy.Schedule.from_domain(scop.domain).get_root().child(0)
    node = isl.mark(node.insert_partial_schedule(isl.rows(scop.domain, rows)), "block")
    return node.get_schedule()


def test_a_block_parallel_reduction_is_rejected() -> None:
    scop = build_scop(programs.gemm())
    with pytest.raises(InternalError, match="depend on each other"):
        _check_blocks(_blocks_over_k(scop, list(scop.statements)), dependences(scop))


def test_a_block_parallel_reduction_without_init_is_rejected() -> None:
    scop = build_scop(programs.gemm())
    only = isl.restrict(scop.domain, ["acc_update"])
    scop = replace(
        scop, statements={"acc_update": scop.statements["acc_update"]}, domain=only,
        reads=tuple(a for a in scop.reads if a.statement == "acc_update"),
        writes=tuple(a for a in scop.writes if a.statement == "acc_update"))
    deps = dependences(scop)
    schedule = _blocks_over_k(scop, ["acc_update"])
    assert deps.relaxed.is_empty() and order_of(schedule, deps.relaxed).broken.is_empty()
    with pytest.raises(InternalError, match="depend on each other"):
        _check_blocks(schedule, deps)


def test_a_block_mark_inside_is_rejected() -> None:
    made = pieces(programs.gemm())
    text = isl.tree_text(made.promoted.schedule).replace('mark: "k"', 'mark: "block"')
    with pytest.raises(InternalError, match="outermost"):
        _check_blocks(islpy.Schedule(text), made.deps)


# -- accesses --------------------------------------------------------------------------------------------------

def _copy(body: Callable[[Expr], Expr], extent: int = 0) -> Program:
    x, out = buffer("x", "N"), buffer("out", dim("N") + extent)
    i = axis("i", dim("N") + extent)
    return Program((x,), (out,), (Compute(out, (i,), body(Var("i"))),), (SizeParam("N"),))


def _x(i: Expr) -> Expr:
    return at(buffer("x", "N"), i)


@pytest.mark.parametrize("body", [
    lambda i: _x(add(i, index(1))),
    lambda i: _x(call("sub", i, index(1))),
    lambda i: _x(mul(i, index(2))),
    lambda i: select(call("le", i, Size(dim("N"))), _x(add(i, index(1))), f32(0.0)),
    lambda i: select(call("lt", i, index(3)), f32(0.0), _x(call("sub", i, index(4)))),
])
def test_an_out_of_extent_access_is_rejected(body: Callable[[Expr], Expr]) -> None:
    with pytest.raises(InternalError, match="outside its extents"):
        build_scop(_copy(body))


@pytest.mark.parametrize("body", [
    lambda i: select(call("lt", add(i, index(1)), Size(dim("N"))), _x(add(i, index(1))), f32(0.0)),
    lambda i: select(call("lt", i, index(3)), f32(0.0), _x(call("sub", i, index(3)))),
    lambda i: _x(call("min", add(i, index(1)), call("sub", Size(dim("N")), index(1)))),
    lambda i: _x(call("mod", i, index(1))),
])
def test_guarded_accesses_are_accepted(body: Callable[[Expr], Expr]) -> None:
    scop = build_scop(_copy(body))
    assert all(a.exact for a in scop.reads)


def test_reading_what_nothing_writes_is_rejected() -> None:
    x, t, out = buffer("x", "N"), buffer("t", "N"), buffer("out", "N")
    i, j, k = axis("i", "N"), axis("j", "N"), axis("k", "N")
    good = Program((x,), (out,), (Compute(t, (i,), at(x, i)), Compute(out, (j,), at(t, j))), (SizeParam("N"),))
    build_scop(good)
    wide = Buffer("t", "float32", (dim("N") + 1,))
    bad = replace(good, computes=(good.computes[0], Compute(out, (k,), at(wide, add(Var("k"), index(1))))))
    with pytest.raises(InternalError, match="where nothing writes it"):
        build_scop(bad)


# -- loops -----------------------------------------------------------------------------------------------------

def _mutated(func: Func, change: Callable[[Stmt], Stmt | None]) -> Func:
    """`func` with the first statement changed for which `change` returns one."""
    done = False

    def visit(stmt: Stmt) -> Stmt:
        nonlocal done
        if not done and (new := change(stmt)) is not None:
            done = True
            return new
        return map_children(visit, stmt)

    body = visit(func.body)
    assert done
    return replace(func, body=body)


def _widen(mark: str) -> Callable[[Stmt], Stmt | None]:
    return lambda s: replace(s, hi=add(s.hi, index(1))) if isinstance(s, For) and s.mark == mark else None


def _narrow(mark: str) -> Callable[[Stmt], Stmt | None]:
    return lambda s: replace(s, hi=call("sub", s.hi, index(1))) if isinstance(s, For) and s.mark == mark else None


def _unguard(mark: str) -> Callable[[Stmt], Stmt | None]:
    return lambda s: replace(s, hi=s.hi.args[0]) if isinstance(s, For) and s.mark == mark and hasattr(s.hi, "args") else None


@pytest.mark.parametrize("change", [
    *(kind(mark) for kind in (_widen, _narrow) for mark in ("init", "k", "i", "j", "epilogue")),
    *(_unguard(mark) for mark in ("i", "j", "epilogue")),
    *(kind("copy") for kind in (_widen, _narrow)),
    lambda s: replace(s, hi=s.hi.args[1]) if isinstance(s, For) and s.mark == "instr_m" else None,  # runs into the next block
    lambda s: replace(s, step=s.step + 1) if isinstance(s, For) and s.mark == "copy" else None,
    lambda s: replace(s, buffer=s.buffer, instance=None) if isinstance(s, Store) and "panel" in s.buffer.name else None,
    lambda s: Block(()) if isinstance(s, Store) and "panel" in s.buffer.name else None,
    lambda s: replace(s, step=s.step + 1) if isinstance(s, For) and s.mark == "block" else None,
    lambda s: replace(s, lo=index(1)) if isinstance(s, For) and s.mark == "k" else None,
])
def test_a_dropped_widened_or_narrowed_bound_is_rejected(change: Callable[[Stmt], Stmt | None]) -> None:
    made = pieces(programs.gemm())
    func = to_loops(made.promoted, made.scop, "kernel")
    names = iterators_for(made.scop)
    check_loops(func, made.promoted.schedule, made.scop, names)
    with pytest.raises(InternalError, match=r"the loops|names no statement"):
        check_loops(_mutated(func, change), made.promoted.schedule, made.scop, names)


@pytest.mark.defect(21)
@pytest.mark.parametrize("program", [programs.gemm(), programs.softmax(), programs.layer_norm(), programs.attention_scores()])
def test_loops_in_another_order_are_rejected(program: Program) -> None:
    """Each pair of neighbours of each sequence, where one needs the other."""
    made = pieces(program)
    func, names = to_loops(made.promoted, made.scop, "kernel"), iterators_for(made.scop)
    edges = edges_of(check_final(made.promoted, made.scop, made.deps))
    check_loops(func, made.promoted.schedule, made.scop, names, edges)
    rejected = 0
    for body in [s.body for s in walk(func.body) if isinstance(s, Block)]:
        for k in range(len(body) - 1):
            swapped = Block((*body[:k], body[k + 1], body[k], *body[k + 2:]))
            needed = any((a, b) in edges for a in statements_of(body[k]) for b in statements_of(body[k + 1]))
            broken = _mutated(func, lambda s, old=body, new=swapped: new if isinstance(s, Block) and s.body == old else None)
            if needed:
                rejected += 1
                with pytest.raises(InternalError, match="whose values it needs"):
                    check_loops(broken, made.promoted.schedule, made.scop, names, edges)
            else:
                check_loops(broken, made.promoted.schedule, made.scop, names, edges)
    assert rejected


def _two_outputs() -> Program:
    """Two unrelated outputs of different extents in one kernel: the loops need guards."""
    x, y, p, q = buffer("x", "N"), buffer("y", "M"), buffer("p", "N"), buffer("q", "M")
    i, j = axis("i", "N"), axis("j", "M")
    return Program((x, y), (p, q), (Compute(p, (i,), at(x, i)), Compute(q, (j,), at(y, j))), (SizeParam("N"), SizeParam("M")))


@pytest.mark.parametrize("change", [
    lambda s: s.then if isinstance(s, If) else None,
    lambda s: replace(s, condition=Const(False, "bool")) if isinstance(s, If) else None,
])
def test_a_dropped_or_narrowed_guard_is_rejected(change: Callable[[Stmt], Stmt | None]) -> None:
    scop = build_scop(_two_outputs())
    deps = dependences(scop)
    # both statements under one block loop of single cells, so that isl has to guard them
    statements = list(scop.statements)
    node = islpy.Schedule.from_domain(scop.domain).get_root().child(0)
    cells = [function(scop, "p_store", "i"), function(scop, "q_store", "j")]
    node = node.insert_partial_schedule(isl.rows(scop.domain, [cells]))
    node = isl.mark(isl.atomic(node), "block").child(0).child(0)
    node = node.insert_sequence(isl.filters([isl.restrict(scop.domain, [s]) for s in statements]))
    made = pieces(_two_outputs())
    promoted = replace(made.promoted, schedule=node.get_schedule())
    check_tree(promoted.schedule, scop, deps, "by hand")
    func = to_loops(promoted, scop, "kernel")
    check_loops(func, promoted.schedule, scop, iterators_for(scop))
    with pytest.raises(InternalError, match="the loops"):
        check_loops(_mutated(func, change), promoted.schedule, scop, iterators_for(scop))


@pytest.mark.parametrize("name", ["acc", "acc_panel"])
def test_storage_that_is_too_small_is_rejected(name: str) -> None:
    made = pieces(programs.gemm())

    def smaller(b: Buffer) -> Buffer:
        return replace(b, shape=(*b.shape[:-1], b.shape[-1] - 1))

    locals_ = tuple(replace(x, storage=smaller(x.storage)) if x.buffer.name == name else x for x in made.promoted.locals)
    promoted = replace(made.promoted, locals=locals_)
    func = to_loops(promoted, made.scop, "kernel")
    with pytest.raises(InternalError, match="outside its extents"):
        check_loops(func, promoted.schedule, made.scop, iterators_for(made.scop))
    if name == "acc":
        with pytest.raises(InternalError, match="leaves its storage"):
            check_promoted(promoted, made.scop, made.deps, order_of(promoted.schedule, made.deps.full))


# -- promotion -------------------------------------------------------------------------------------------------

def test_a_panel_copied_too_late_is_rejected() -> None:
    made = pieces(programs.gemm())
    order = _order(made)
    assert not order.is_empty()
    assert order_of(made.promoted.schedule, made.deps.relaxed, order).broken.is_empty()
    late = order.reverse()  # what would hold if the copies came after the updates
    moved = order_of(_with_update_first(made), made.deps.relaxed, order).broken
    assert not late.is_empty() and not moved.is_empty()


def _with_update_first(made: Pieces) -> isl.Schedule:
    """The tree with what fills the panel grafted after its use."""
    lines = isl.tree_text(made.promoted.schedule).splitlines()
    start = next(i for i, line in enumerate(lines) if line.strip() == "sequence:")
    indent = len(lines[start]) - len(lines[start].lstrip())
    heads = [i for i in range(start + 1, len(lines)) if lines[i].startswith(" " * indent + "- ")] + [len(lines)]
    parts = [lines[a:b] for a, b in itertools.pairwise(heads)]
    assert any("copy_acc_panel" in part[0] for part in parts[:-1])
    order = [parts[-1], *parts[:-1]]
    return islpy.Schedule("\n".join(lines[:heads[0]] + [line for part in order for line in part]) + "\n")


def test_a_panel_filled_in_part_is_rejected() -> None:
    made = pieces(programs.gemm())
    check_promoted(made.promoted, made.scop, made.deps, order_of(made.promoted.schedule, made.deps.full))
    text = isl.tree_text(made.promoted.schedule)
    line = next(x for x in text.splitlines() if "extension" in x and "-> copy_acc_panel[" in x)
    partial = text.replace(line, line.replace("< K", "< K - 1"))
    assert partial != text
    with pytest.raises(InternalError, match="no copy fills it"):
        check_dataflow(replace(made.promoted, schedule=islpy.Schedule(partial)), made.scop, made.deps)


def test_a_local_used_across_tiles_is_refused() -> None:
    """out[i] = t[i] + t[N-1-i]: no row of one tile alone holds both."""
    x, t, out = buffer("x", "N"), buffer("t", "N"), buffer("out", "N")
    i, j = axis("i", "N"), axis("j", "N")
    mirrored = call("sub", Size(dim("N") - 1), Var("j"))
    computes = (Compute(t, (i,), call("exp", at(x, i))), Compute(out, (j,), add(at(t, j), at(t, mirrored))))
    program = Program((x,), (out,), computes, (SizeParam("N"),))
    with pytest.raises(PatternMismatch, match="used across"):
        scheduled(program)


def test_a_wrong_row_is_refused_by_locality() -> None:
    """Row sums used by another row: sum[r] read at the mirrored row."""
    made = build_scop(programs.softmax())
    deps = dependences(made)
    whole = replace(deps, full=deps.full.union(isl.UnionMap(
        "[R, C] -> { mx_update[r, c] -> e_store[r + 1, c] : 0 <= r < R - 1 and 0 <= c < C }")))
    found = match(made)[0].solved(made, deps)[0]
    assert isinstance(found, Staged)
    schedule = found.tree(found.default_config(SMALL), Build(made, deps)).promoted.schedule
    with pytest.raises(InternalError, match="depend on each other"):
        _check_blocks(schedule, whole)


def test_an_opaque_read_of_a_local_splits() -> None:
    """A row picked by data: the epilogue's cell of the sum is not affine."""
    a, w, ids = buffer("a", "M", "K"), buffer("w", "K", "N"), buffer("ids", "M", dtype="int64")
    acc, out = buffer("acc", "M", "N"), buffer("out", "M", "N")
    i, j, r, x, y = axis("i", "M"), axis("j", "N"), axis("r", "K"), axis("x", "M"), axis("y", "N")
    program = Program(
        (a, w, ids), (out,),
        (Compute(acc, (i, j), mul(at(a, i, r), at(w, r, j)), (r,), SUM),
         Compute(out, (x, y), at(acc, CheckedIndex(at(ids, x), SymExpr.of(dim("M")), "ids"), y))),
        (SizeParam("M"), SizeParam("N"), SizeParam("K")))
    with pytest.raises(PatternMismatch, match="not affine or not unique"):
        scheduled(program)


@pytest.mark.defect(22)
@pytest.mark.parametrize("name,row,refused", [
    ("out_store", "K - 1 + 1000", "in the midst"), ("out_store", "1000", "breaks dependences"),
    ("acc_init", "-1", "in the midst"), ("acc_init", "K - 1", ""), ("out_store", "0", "")])
def test_the_solved_shift_decides_what_is_built(name: str, row: str, refused: str) -> None:
    """Beyond the anchor's iterations there is nothing to separate; at the other end of them the statement changes its place,
    which the dependences forbid."""
    scop = build_scop(programs.gemm())
    deps = dependences(scop)
    found, _ = match(scop)
    solved = found.solved(scop, deps)[0]
    assert isinstance(solved, Contraction)
    assert separated(scop, solved.matrix, list(scop.statements)) == ["acc_init", "acc_update", "out_store"]
    rows = solved.matrix.entries[name]
    entries = {**solved.matrix.entries, name: (*rows[:-1], function(scop, name, row))}
    shifted = replace(solved, matrix=replace(solved.matrix, entries=entries))
    with pytest.raises((PatternMismatch, InternalError), match=refused or "breaks dependences"):
        shifted.tree(shifted.default_config(SMALL), Build(scop, deps))
    if not refused:
        assert separated(scop, shifted.matrix, list(scop.statements)) != ["acc_init", "acc_update", "out_store"]

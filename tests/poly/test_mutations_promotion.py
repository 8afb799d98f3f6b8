"""Every proof about promotion is shown to fail on a broken copy, fill, layout or domain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import islpy
import pytest

from tests.poly import programs
from tests.poly.programs import at, axis, buffer, f32
from tests.poly.support import Pieces, pieces
from tsc.errors import InternalError
from tsc.poly import isl
from tsc.poly.dataflow import check_dataflow
from tsc.poly.legality import check_tree
from tsc.poly.promote import Assignment, Promoted
from tsc.sym import dim
from tsc.te.compute import SUM, Compute, Program, SizeParam
from tsc.te.expr import BOOL, Call, Cast, Const, Expr, Load, Size, Var, add, call, index, map_children, mul, select

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
        return map_children(visit, expr) if changed is None else changed
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


@pytest.mark.parametrize(("old", "new"), [("< K", "< K - 1"), ("o1 < N", "o1 < N - 1"), ("0 <= o0", "1 <= o0")])
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
    locals_ = tuple(replace(x, storage=replace(x.storage, shape=(x.storage.shape[0], x.storage.shape[1] - 1)))
                    if x.buffer.name == "acc_panel" else x for x in made.promoted.locals)
    with pytest.raises(InternalError, match="leaves the storage"):
        _checked(made, replace(made.promoted, locals=locals_))


def test_a_dropped_dimension_is_rejected() -> None:
    """Two cells of one life in one place."""
    made = pieces(programs.gemm())
    locals_ = tuple(replace(x, dims=(1,), storage=replace(x.storage, shape=x.storage.shape[1:]))
                    if x.buffer.name == "acc_panel" else x for x in made.promoted.locals)
    with pytest.raises(InternalError, match="leaves the storage"):
        _checked(made, replace(made.promoted, locals=locals_))


def test_a_copy_outside_the_life_is_rejected() -> None:
    """The storage begins its life after the copies have run."""
    made = pieces(programs.gemm())
    lines = isl.tree_text(made.promoted.schedule).splitlines()
    alloc = next(i for i, x in enumerate(lines) if "filter" in x and "alloc_acc_panel" in x)
    fill = next(i for i, x in enumerate(lines) if "filter" in x and "fill_acc_panel" in x)
    late = "\n".join([*lines[:alloc], *lines[alloc + 1:fill], lines[alloc], *lines[fill:]]) + "\n"
    with pytest.raises(InternalError, match="life"):
        _checked(made, replace(made.promoted, schedule=islpy.Schedule(late)))

"""Halos: which stencils read a copy of their image, how large it is, and that a wrong one is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import islpy
import pytest

from tests.poly.conv_programs import WINDOWS, Window, canonical
from tests.poly.programs import at, axis, buffer
from tests.poly.support import SMALL, Pieces, check_values, pieces, scheduled
from tsc.errors import InternalError
from tsc.poly import isl
from tsc.poly.legality import check_tree
from tsc.poly.pattern.base import Build
from tsc.poly.pattern.nest import nest_tree
from tsc.poly.pattern.stencil import Stencil
from tsc.poly.promotion.halo import in_vectors, promote_halo
from tsc.poly.promotion.promote import Promoted, check_promoted
from tsc.poly.proof.dataflow import check_dataflow, check_vectors
from tsc.te.compute import MAX, Compute, Program, SizeParam
from tsc.te.expr import Call, Const, Expr, Load, Var, add, call, index, map_children, mul

#: A block of the small device: rows and columns of outputs.
ROWS, COLUMNS = 16, 16
COPIED = ["depthwise", "depthwise_spaced", "depthwise_line", "depthwise_prologue", "grouped", "pool"]


def _made(name: str) -> Pieces:
    return pieces(canonical(WINDOWS[name]).program)


def _checked(made: Pieces, promoted: Promoted) -> None:
    order = check_tree(promoted.schedule, made.scop, made.deps, "halo", check_dataflow(promoted, made.scop, made.deps))
    check_promoted(promoted, made.scop, made.deps, order)


@pytest.mark.parametrize("name", COPIED)
def test_a_block_copies_what_its_windows_see(name: str) -> None:
    made = _made(name)
    (halo,) = [x for x in made.promoted.locals if x.buffer.name == "acc_halo"]
    block = (ROWS, COLUMNS)[-len(WINDOWS[name].kernel):]
    spans = [(n - 1) * s + (k - 1) * d + 1 for n, (k, s, d, _, _) in zip(block, WINDOWS[name].per_dim())]
    channels = {"grouped": [2], "depthwise_line": [3]}.get(name, [])  # of a group; rows, where the image has none
    assert [e.as_int() for e in halo.storage.shape] == channels + spans
    _checked(made, made.promoted)


@pytest.mark.parametrize("window", [
    Window((2, 2), 2, 0, strides=(2, 2)), Window((2, 3), 2, 0, strides=(1, 3), ends=(1, 0)), Window((1,), 3, 3, groups=3)])
def test_windows_that_hardly_overlap_read_the_image(window: Window) -> None:
    made = pieces(canonical(window).program)
    overlap = any(x.buffer.name == "acc_halo" for x in made.promoted.locals)
    assert overlap == (window.kernel == (2, 3))  # its rows are read twice


@pytest.mark.parametrize(("row", "copied"), [
    (call("sub", index(2), Var("k")), True), (call("max", call("sub", Var("n"), index(1)), index(0)), False)])
def test_what_is_no_box_is_read_where_it_stands(row: Expr, copied: bool) -> None:
    """Rows in reverse are a box; rows from a clamped place begin at no affine one."""
    x, acc, out = buffer("x", "N", 40), buffer("acc", "N", 20), buffer("out", "N", 20)
    n, i, k, a, b = axis("n", "N"), axis("i", 20), axis("k", 3), axis("a", "N"), axis("b", 20)
    place = (n, add(mul(Var("i"), index(1)), row)) if copied else (row, add(Var("i"), Var("k")))
    window = Compute(acc, (n, i), at(x, *place), (k,), MAX)
    program = Program((x,), (out,), (window, Compute(out, (a, b), at(acc, a, b))), (SizeParam("N"),))
    made = scheduled(program)
    assert ("copy_acc_halo" in made.tree) == copied
    for size in (1, 2, 17):
        check_values(made.func, program, {"N": size})


# -- mutations -------------------------------------------------------------------------------------------------

def _with(made: Pieces, change: Callable[[Expr], Expr]) -> Promoted:
    old = made.promoted.assignments["copy_acc_halo"]
    changed = replace(old, value=change(old.value))
    assert changed != old
    return replace(made.promoted, assignments={**made.promoted.assignments, "copy_acc_halo": changed})


def _moved(expr: Expr) -> Expr:
    """Every load one column further."""
    if isinstance(expr, Load) and expr.index:
        return replace(expr, index=(*expr.index[:-1], add(expr.index[-1], index(1))))
    return map_children(_moved, expr)


def _unguarded(expr: Expr) -> Expr:
    """What is chosen inside the image, everywhere."""
    return _unguarded(expr.args[1]) if isinstance(expr, Call) and expr.fn == "select" else map_children(_unguarded, expr)


def _filled(expr: Expr) -> Expr:
    """Ones around the image."""
    return Const(1.0, "float32") if expr == Const(0.0, "float32") else map_children(_filled, expr)


@pytest.mark.parametrize("change", [_moved, _unguarded, _filled])
@pytest.mark.parametrize("name", ["depthwise", "depthwise_spaced", "grouped"])
def test_a_copy_of_something_else_is_rejected(name: str, change: Callable[[Expr], Expr]) -> None:
    made = _made(name)
    with pytest.raises(InternalError, match="which is not"):
        _checked(made, _with(made, change))


def test_a_copy_that_lacks_the_border_is_rejected() -> None:
    made = _made("depthwise")
    text = isl.tree_text(made.promoted.schedule)
    line = next(x for x in text.splitlines() if "extension" in x and "-> copy_acc_halo[" in x)
    narrow = text.replace(line, line.replace("<= 16 + i3", "<= 15 + i3"))
    assert narrow != text
    with pytest.raises(InternalError, match="no copy fills it"):
        _checked(made, replace(made.promoted, schedule=islpy.Schedule(narrow)))


@pytest.mark.defect(31)
@pytest.mark.parametrize("name", COPIED)
def test_a_copy_for_the_outputs_alone_is_rejected(name: str) -> None:
    """Lanes past the last output read the copy too: they would compute with what nobody wrote."""
    made = _made(name)
    found, (update,) = made.found, [s for s in made.scop.statements.values() if s.role == "update"]
    assert isinstance(found, Stencil)
    tile, lanes = found.default_config(SMALL).instr_tile[1], SMALL.vector_bytes // 4
    vectors, single = (in_vectors(made.scop, found, tile, n) for n in (lanes, 1))
    check_vectors(made.promoted, made.scop, update, vectors)
    plain = nest_tree(found, found.default_config(SMALL), Build(made.scop, made.deps), "stencil")
    narrow = promote_halo(plain, made.scop, found, single)
    _checked(made, narrow)
    with pytest.raises(InternalError, match="where no copy fills it"):
        check_vectors(narrow, made.scop, update, vectors)


def test_storage_without_the_border_is_rejected() -> None:
    made = _made("depthwise")
    small = tuple(replace(x, layout=None, storage=replace(x.storage, shape=(x.box[0], x.box[1] - 1)))
                  if x.buffer.name == "acc_halo" else x for x in made.promoted.locals)
    with pytest.raises(InternalError, match="leaves the storage"):
        _checked(made, replace(made.promoted, locals=small))

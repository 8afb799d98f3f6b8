"""Windows: which pattern and which axes they get, and that a wrong prologue in a panel's copy is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.poly import programs
from tests.poly.conv_programs import WINDOWS, Window, canonical
from tests.poly.support import Pieces, pieces
from tsc.errors import InternalError
from tsc.poly.pattern import match
from tsc.poly.pattern.contraction import Contraction
from tsc.poly.pattern.stencil import Stencil
from tsc.poly.proof.dataflow import check_dataflow
from tsc.poly.scop import build_scop
from tsc.te.compute import Program
from tsc.te.expr import INDEX, Call, Const, Expr, Load, map_children, walk


def positions(program: Program) -> set[str]:
    """The divisions in the Program's indices."""
    return {n.fn for c in program.computes for n in walk(c.body) if isinstance(n, Call) and n.fn in ("floordiv", "mod")}


def test_positions_of_an_image_are_one_axis() -> None:
    made = canonical(WINDOWS["padded"]).program
    assert [len(c.axes) for c in made.computes] == [3, 3] and positions(made) == {"floordiv", "mod"}
    assert [len(c.axes) for c in canonical(WINDOWS["volume"]).program.computes] == [4, 4]  # depth stays an axis
    assert [len(c.axes) for c in canonical(WINDOWS["point"]).program.computes] == [3, 3]
    assert not positions(canonical(WINDOWS["point"]).program)  # nothing around a point is read: plainly collapsed
    for name in ("line", "depthwise", "pool"):
        assert not positions(canonical(WINDOWS[name]).program), name


@pytest.mark.defect(30)
@pytest.mark.parametrize("name", ["grouped_deep", "grouped_point"])
def test_groups_that_share_an_operand_are_contractions(name: str) -> None:
    """One for each group: the group is a batch axis, the outputs within it the rows, the image's positions the columns."""
    window, program = WINDOWS[name], canonical(WINDOWS[name]).program
    found, _ = match(build_scop(program))
    assert isinstance(found, Contraction) and not isinstance(found, Stencil)
    extents = {a.name: a.extent.as_int() for a in found.anchor.axes}
    assert found.m is not None and extents[found.m] == window.out // window.groups
    assert [extents[b] for b in found.batch][-1] == window.groups


@pytest.mark.parametrize("name", ["depthwise", "depthwise_spaced", "depthwise_line", "depthwise_wide", "pool", "pool_third",
                                  "grouped"])
def test_windows_without_shared_operands_are_stencils(name: str) -> None:
    found, _ = match(build_scop(canonical(WINDOWS[name]).program))
    assert isinstance(found, Stencil)
    rows = found.anchor.axes
    assert found.n == rows[-1].name and (found.m is None or found.m == rows[-2].name)


@pytest.mark.parametrize(("make", "reason"), [
    (programs.gemm, "no constant window"), (programs.softmax, "2 reductions"), (programs.transpose, "0 reductions"),
    (lambda: programs.attention_scores(2, 5), "reads no window"),
    (lambda: canonical(Window((3,), 4, 10)).program, "shares an operand"),
    (lambda: canonical(Window((33, 33), 3, 3, groups=3)).program, "no constant window"),
    (lambda: canonical(Window((3, 3), 2, 0, strides=(1, 5))).program, "reads no window")])
def test_other_patterns_say_why_they_are_no_stencil(make: Callable[[], Program], reason: str) -> None:
    found, reasons = match(build_scop(make()))
    assert not isinstance(found, Stencil) and any("stencil" in r and reason in r for r in reasons), reasons


# -- prologues composed into a copy ----------------------------------------------------------------------------

def with_copy(made: Pieces, change: Callable[[Expr], Expr]) -> None:
    """Check the dataflow with what the panel's copy stores changed."""
    name = next(s for s in made.promoted.assignments if s.startswith("copy_"))
    copy = made.promoted.assignments[name]
    changed = {**made.promoted.assignments, name: replace(copy, value=change(copy.value))}
    assert changed != made.promoted.assignments
    check_dataflow(replace(made.promoted, assignments=changed), made.scop, made.deps)


def offset(expr: Expr, old: int, new: int) -> Expr:
    """`expr` with one index constant replaced, wherever it stands."""
    if expr == Const(old, INDEX):
        return Const(new, INDEX)
    return map_children(lambda c: offset(c, old, new), expr)


def loads_moved(expr: Expr) -> Expr:
    """Every load one element further along its last dim, its conditions as they were."""
    inner = map_children(loads_moved, expr)
    if isinstance(inner, Load):
        return replace(inner, index=(*inner.index[:-1], Call("add", (inner.index[-1], Const(1, INDEX)), INDEX)))
    return inner


def unguarded(expr: Expr) -> Expr:
    """The outermost choice's first side, whatever its condition."""
    return expr.args[1] if isinstance(expr, Call) and expr.fn == "select" else expr


@pytest.mark.parametrize("make", [lambda: canonical(WINDOWS["padded"]).program, lambda: canonical(WINDOWS["line"]).program,
                                  programs.conv], ids=["positions", "line", "rows"])
@pytest.mark.parametrize("change", [lambda e: offset(e, 1, 2), loads_moved, unguarded], ids=["padding", "moved", "unguarded"])
def test_a_wrong_prologue_is_found(make: Callable[[], Program], change: Callable[[Expr], Expr]) -> None:
    made = pieces(make())
    check_dataflow(made.promoted, made.scop, made.deps)
    with pytest.raises(InternalError, match="after promotion acc_update stores"):
        with_copy(made, change)

"""Tile-local intermediates: that each one's life is a tile is shown to be proved by breaking it, in trees of stitched rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import islpy
import pytest

from tests.poly import programs
from tests.poly.programs import at, axis, buffer
from tests.poly.support import Pieces, check_values, pieces, scheduled
from tests.te.test_factor import softmax, variance
from tsc.errors import InternalError
from tsc.poly import PatternMismatch, isl
from tsc.poly.legality import order_of
from tsc.poly.promotion.promote import Local, Promoted, check_promoted, graft, localise, site
from tsc.poly.schedule import check_final
from tsc.poly.tree import BLOCK_POINT, ROW_POINT, node_below
from tsc.sym import SymExpr, dim
from tsc.te.compute import SUM, Compute, Program, SizeParam
from tsc.te.expr import Expr, Size, Var, call
from tsc.te.factored.factor import factor

PROGRAMS: dict[str, Callable[[], Program]] = {
    "softmax": programs.softmax, "layer_norm": programs.layer_norm, "variance": variance,
    "online_softmax": lambda: factor(softmax(), ["mx", "sm"], 8)}
#: A local of each program that has a whole row of elements, or one element a row.
LOCALS = {"softmax": "e", "layer_norm": "mean", "variance": "square", "online_softmax": "sm_part"}


def _final(made: Pieces, promoted: Promoted) -> None:
    check_final(promoted, made.scop, made.deps)


def _altered(made: Pieces, name: str, **fields: Any) -> Promoted:
    found = tuple(replace(x, **fields) if x.buffer.name == name else x for x in made.promoted.locals)
    assert found != made.promoted.locals
    return replace(made.promoted, locals=found)


def _local(made: Pieces, name: str) -> Local:
    return next(x for x in made.promoted.locals if x.buffer.name == name)


@pytest.mark.parametrize("name", PROGRAMS)
def test_all_intermediates_are_local(name: str) -> None:
    made = pieces(PROGRAMS[name]())
    _final(made, made.promoted)
    assert {x.buffer.name for x in made.promoted.locals} == set(made.scop.locals())


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_output_kept_in_a_local_alone_is_rejected(name: str) -> None:
    made = pieces(PROGRAMS[name]())
    node = node_below(made.promoted.schedule, BLOCK_POINT)
    place = site(node, order_of(made.promoted.schedule, made.deps.full))
    instances, local = localise(place, made.scop, made.deps, made.scop.program.outputs[-1])
    schedule = graft(node, instances, []).get_schedule()
    with pytest.raises(InternalError, match="out outlives the kernel"):
        _final(made, replace(made.promoted, schedule=schedule, locals=(*made.promoted.locals, local)))


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_intermediate_without_storage_is_rejected(name: str) -> None:
    made = pieces(PROGRAMS[name]())
    left = tuple(x for x in made.promoted.locals if x.buffer.name != LOCALS[name])
    with pytest.raises(InternalError, match=f"the local {LOCALS[name]} has no storage"):
        _final(made, replace(made.promoted, locals=left))


@pytest.mark.parametrize(("name", "local"), [("softmax", "e"), ("online_softmax", "sm_part")])
def test_storage_that_folds_a_row_together_is_rejected(name: str, local: str) -> None:
    """One place for all elements of a row, one element too few, and the other dimension."""
    made = pieces(PROGRAMS[name]())
    storage = _local(made, local).storage
    for fields in ({"dims": (-1,), "storage": replace(storage, shape=(SymExpr.of(1),))},
                   {"storage": replace(storage, shape=(storage.shape[0] - 1,))},
                   {"dims": (1 - _local(made, local).dims[0],)}):
        with pytest.raises(InternalError, match="leaves its storage"):
            _final(made, _altered(made, local, **fields))


def test_storage_of_one_row_under_a_tile_of_rows_is_rejected() -> None:
    """What lives in one row's loop, put where it lives as long as the whole tile."""
    made = pieces(programs.softmax())
    text = isl.tree_text(made.promoted.schedule)
    assert node_below(made.promoted.schedule, ROW_POINT).get_tree_depth() > node_below(
        made.promoted.schedule, BLOCK_POINT).get_tree_depth()
    line = next(x for x in text.splitlines() if "extension" in x)
    wide = text.replace(line, line.replace("alloc_e[i0 + i1,", "alloc_e[i0,"))
    assert wide != text
    with pytest.raises(InternalError, match="e leaves its storage"):
        _final(made, replace(made.promoted, schedule=islpy.Schedule(wide)))


@pytest.mark.parametrize(("statement", "message"), [("mx_update", "breaks dependences"), ("e_store", "breaks dependences")])
def test_an_intermediate_made_by_another_tile_is_rejected(statement: str, message: str) -> None:
    """A statement moved to the next tile of rows: what reads it comes before it."""
    made = pieces(programs.softmax())
    text = isl.tree_text(made.promoted.schedule)
    row = {"mx_update": "[r0, c0] -> [(r0 - (r0) mod 4)", "e_store": "[r1, c1] -> [(r1 - (r1) mod 4)"}[statement]
    moved = text.replace(statement + row, statement + row + " + 4")
    assert moved != text
    with pytest.raises(InternalError, match=message):
        _final(made, replace(made.promoted, schedule=islpy.Schedule(moved)))


def test_an_intermediate_made_by_an_earlier_tile_is_rejected() -> None:
    """Statements moved to the tile before: every dependence goes forward still, but across blocks and lives."""
    made = pieces(programs.softmax())
    text = isl.tree_text(made.promoted.schedule)
    for statement in ("mx_init[r0]", "mx_update[r0, c0]"):
        row = f"{statement} -> [(r0 - (r0) mod 4)"
        assert row in text
        text = text.replace(row, row + " - 4")
    early = replace(made.promoted, schedule=islpy.Schedule(text))
    with pytest.raises(InternalError, match="depend on each other"):
        _final(made, early)
    with pytest.raises(InternalError, match="values of mx are used outside the tile"):
        check_promoted(early, made.scop, made.deps, order_of(early.schedule, made.deps.full))


def test_a_row_that_another_row_reads_is_no_local() -> None:
    """out[r, c] = x[r, c] - s[R - 1 - r], then minus s[r]: read at the mirrored row alone the rows of out are mirrored; read at
    both, no tile of rows holds what it needs."""
    x, sums, out = buffer("x", "R", "C"), buffer("sums", "R"), buffer("out", "R", "C")
    r0, c0, r1, c1 = axis("r0", "R"), axis("c0", "C"), axis("r1", "R"), axis("c1", "C")
    mirrored = at(sums, call("sub", Size(dim("R") - 1), Var("r1")))

    def program(value: Expr) -> Program:
        return Program((x,), (out,), (Compute(sums, (r0,), at(x, r0, c0), (c0,), SUM), Compute(out, (r1, c1), value)),
                       (SizeParam("R"), SizeParam("C")))

    once = call("sub", at(x, r1, c1), mirrored)
    check_values(scheduled(program(once)).func, program(once), {"R": 5, "C": 3})
    with pytest.raises(PatternMismatch, match="used across"):
        scheduled(program(call("sub", once, at(sums, r1))))

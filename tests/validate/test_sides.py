"""Both sides of what indices and sizes choose within a value are executed, at sizes and places that are solved for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.loop_ir.funcs import size
from tests.poly import programs
from tests.poly.support import SMALL
from tsc.errors import InternalError
from tsc.loop_ir.lower import lower
from tsc.loop_ir.nodes import Func, Store, map_exprs, walk
from tsc.poly.schedule import schedule_program
from tsc.te.compute import Compute, Program, SizeParam
from tsc.te.expr import Call, Cast, Const, Expr, Var, add, call, index, map_children, map_loads, mul, select
from tsc.validate import check_values
from tsc.validate.sides import MOST_IN_STORE, Sides

AT, ROWS, COUNT = Var("n"), size("M"), size("N")
ONE, TWO = (programs.at(programs.buffer(name, "N"), programs.axis("n", "N")) for name in "xz")
SEVEN, EIGHT = Const(7.0, "float32"), Const(8.0, "float32")


def chosen(value: Expr, extent: int | str = "N") -> Program:
    """`y[n] = value` for each n, of x and z."""
    x, z, y = (programs.buffer(name, extent) for name in "xzy")
    body = map_loads(lambda load: replace(load, buffer=x if load.buffer.name == "x" else z), value)
    sizes = (SizeParam("N"), SizeParam("M")) if extent == "N" else ()
    return Program((x, z), (y,), (Compute(y, (programs.axis("n", extent),), body),), sizes)


def scheduled(program: Program) -> tuple[Func, Program]:
    found = schedule_program(program, SMALL, None, None, "k", [b.name for b in program.inputs])
    assert found.scop is not None
    return lower(found.func, SMALL), found.scop.program


def broken(func: Func) -> Func:
    """Loops that give another number."""
    def visit(expr: Expr) -> Expr:
        return EIGHT if expr == SEVEN else map_children(visit, expr)

    return replace(func, body=map_exprs(visit, func.body))


CHOICES = {
    "an index beyond another size": select(call("eq", AT, add(mul(ROWS, index(3)), index(50))), SEVEN, ONE),
    "sizes alone": select(call("eq", call("mod", COUNT, index(331)), index(330)), SEVEN, ONE),
    "within another": select(call("lt", index(100), AT), select(call("eq", AT, add(ROWS, index(317))), SEVEN, TWO), ONE),
    "where data decide": select(call("lt", ONE, TWO), select(call("eq", AT, add(ROWS, index(317))), SEVEN, TWO), ONE),
    "two in one value": add(select(call("lt", AT, ROWS), ONE, TWO), select(call("eq", ROWS, add(AT, index(217))), SEVEN, TWO)),
}


@pytest.mark.parametrize("value", CHOICES.values(), ids=CHOICES)
def test_sizes_that_execute_a_side_are_solved_for(value: Expr) -> None:
    """Found by random programs: sizes were solved for that execute each Store, and not both sides of what one stores."""
    program = chosen(value)
    func, scop = scheduled(program)
    assert not check_values(program, func, scop).notes()
    for sampled in (None, scop):
        with pytest.raises(InternalError, match="another value"):
            check_values(program, broken(func), sampled)


def test_places_that_execute_a_side_are_solved_for() -> None:
    """Few elements of a long axis are looked at."""
    program = chosen(select(call("eq", AT, index(54_321)), SEVEN, ONE), 100_000)
    func, scop = scheduled(program)
    assert not check_values(program, func, scop).notes()
    with pytest.raises(InternalError, match="another value"):
        check_values(program, broken(func), scop)


def test_what_loops_do_not_choose_is_seen() -> None:
    """They have one side alone; or the condition lacks a part, which seldom decides."""
    far, near = call("eq", AT, add(ROWS, index(317))), call("lt", ROWS, AT)
    choice = select(far, SEVEN, ONE)
    for wanted, made in ((choice, ONE), (select(Call("and", (near, call("lt", AT, add(ROWS, index(317)))), "bool"), SEVEN, ONE),
                                         select(near, SEVEN, ONE)),
                         (select(Call("or", (near, call("eq", AT, call("sub", ROWS, index(317)))), "bool"), SEVEN, ONE),
                          select(near, SEVEN, ONE))):
        func, _ = scheduled(chosen(made))
        with pytest.raises(InternalError, match="another value"):
            check_values(chosen(wanted), func)


def test_either_side_of_an_extremum_is_tried() -> None:
    """A number that grows with an index, up to one that few sizes reach."""
    most = Cast(call("min", AT, add(ROWS, index(317))), "float32")
    func, _ = scheduled(chosen(Cast(AT, "float32")))
    with pytest.raises(InternalError, match="another value"):
        check_values(chosen(most), func)


def test_a_side_that_no_sizes_execute_is_no_fault() -> None:
    program = chosen(select(call("eq", AT, add(COUNT, index(1))), SEVEN, ONE))
    func, scop = scheduled(program)
    for loops in (func, broken(func)):
        found = check_values(program, loops, scop)
        assert found.undecided is None and not found.notes()


def test_of_many_choices_some_are_looked_at() -> None:
    value: Expr = ONE
    for number in range(20):
        value = select(call("lt", AT, add(ROWS, index(number))), Const(float(number), "float32"), value)
    program = chosen(value)
    func, _ = scheduled(program)
    stores = sum(isinstance(s, Store) for s in walk(func.body))
    assert len(Sides.of(func, program).marks) == 2 * MOST_IN_STORE * (stores + 1)

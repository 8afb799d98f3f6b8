"""Views of inputs: what is certified to stay within extents does so at every small size, what can leave is not certified."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import numpy as np
import pytest

from tests.poly.programs import at, axis, buffer, f32, v
from tsc.errors import InputError, InternalError
from tsc.poly.scop import Access, build_scop, check_held, with_checks
from tsc.sym import SymExpr, dim
from tsc.te.compute import Axis, Compute, Fact, Program, SizeParam
from tsc.te.evaluate import evaluate
from tsc.te.expr import BOOL, Call, Cast, CheckedIndex, Const, Expr, Size, add, call, index, mul, select

H, W, P, L = dim("H"), dim("W"), dim("P"), dim("L")
MERGED = (Fact(P, "==", H * W),)


def by(size: SymExpr | int) -> Expr:
    return index(SymExpr.of(size))


def rows(x: Expr | Axis, width: SymExpr) -> Expr:
    return call("floordiv", v(x) if isinstance(x, Axis) else x, by(width))


def columns(x: Expr | Axis, width: SymExpr) -> Expr:
    return call("mod", v(x) if isinstance(x, Axis) else x, by(width))


def sub(a: Expr, b: int | SymExpr) -> Expr:
    return call("sub", a, by(b))


def read(shape: tuple[SymExpr | int, ...], where: tuple[Expr, ...], extent: SymExpr, facts: tuple[Fact, ...] = MERGED,
         guard: Expr | None = None, hidden: str = "") -> Program:
    """out[p < extent] = x[where], 0 where there is a guard that does not hold; `hidden`: names in facts that are no sizes."""
    x, out = buffer("x", *shape), buffer("out", extent)
    value: Expr = at(x, *where)
    if guard is not None:
        value = select(guard, value, f32(0.0))
    names = sorted({n for e in (*map(SymExpr.of, shape), extent) for n in e.dims()} | {n for f in facts for n in f.names()})
    sizes = tuple(SizeParam(n) for n in names if n not in hidden)
    return Program((x,), (out,), (Compute(out, (axis("p", extent),), value),), sizes, facts)


def access(program: Program) -> Access:
    found, = build_scop(program).reads
    return found


def stays_within(program: Program, sizes: Mapping[str, int]) -> bool:
    """By trying: at these sizes, every read is of an element."""
    x, = program.inputs
    shape = tuple(e.evaluate(sizes) for e in x.shape)
    try:
        evaluate(program, {"x": np.zeros(shape, np.float32)}, sizes)
    except InternalError:
        return False
    except InputError:  # a checked index says so, and is clamped
        return True
    return True


_P = axis("p", P)
_UP = call("ge", sub(add(rows(_P, W), by(1)), 2), by(0))
_IMAGE = (H, W)
_DOUBLED = (Fact(P, "==", H * W), Fact(dim("R"), "==", (H + 1) // 2), Fact(dim("C"), "==", (W + 1) // 2),
            Fact(dim("Q"), "==", dim("R") * dim("C")))
_PATCHES = (Fact(dim("C"), "==", W // 2), Fact(dim("Q"), "==", dim("C") * (H // 2)))  # the rows of patches have no name
_Q = axis("p", dim("Q"))
_QUARTER, _BEHIND = dim("Q"), axis("p", H + 1)
_LATER_HALF = call("floordiv", add(v(axis("p", H)), by(H)), by(2))
S, K = dim("S"), dim("K")
_WIDER = (Fact(SymExpr.of(1), "<=", K), Fact(S, "==", K + 1), Fact(P, "==", K * H))  # rows of K + 1
_PAIRED = (Fact(S, "==", K + L), Fact(P, "==", K * H), Fact(dim("R"), "==", H * L))  # rows of K + L
_HALVES = (Fact(S, "==", W // 2 + 1), Fact(P, "==", H * (W // 2)))  # rows of the half of a dim and one more
_ROW = axis("p", H)
def _together(whole: SymExpr, rest: SymExpr) -> Expr:
    """What `p` is by its quotient and its remainder, if they are by the same."""
    return add(mul(call("floordiv", v(_P), by(whole)), by(whole)), call("mod", v(_P), by(rest)))


PROVED = {
    "merged": read(_IMAGE, (rows(_P, W), columns(_P, W)), P),
    "merged and turned": read((W, H), (columns(_P, W), rows(_P, W)), P),
    "constant times a size": read((H * 1, W * 2), (rows(_P, 2 * W), columns(_P, 2 * W)), 2 * P),
    "less than the whole": read((H - 1, W - 1), (rows(_P, W - 1), columns(_P, W - 1)), P - H - W + 1),
    "guarded": read(_IMAGE, (sub(rows(_P, W), 1), columns(_P, W)), P, guard=_UP),
    "strided": read(_IMAGE, (mul(rows(_Q, dim("C")), by(2)), mul(columns(_Q, dim("C")), by(2))), dim("Q"), _DOUBLED),
    "patches": read(_IMAGE, (mul(rows(_Q, dim("C")), by(2)), mul(columns(_Q, dim("C")), by(2))), dim("Q"), _PATCHES),
    "repeated rows": read((H, 3), (rows(_P, W), by(1)), P),
    "repeated columns": read((W,), (columns(_P, W),), P),
    "resized": read((H,), (call("min", call("max", rows(add(mul(v(_P), by(2 * H)), by(H)), 2 * P), by(0)), by(H - 1)),), P, ()),
    "diagonal": read((P,), (add(mul(v(axis("p", H)), by(H)), v(axis("p", H))),), H, (Fact(P, "==", H * H),)),
    "behind a guard": read((P,), (sub(mul(v(axis("p", H)), by(H)), 1),), H, (Fact(P, "==", H * H),),
                           call("ge", v(axis("p", H)), by(1))),
    "backwards": read((P,), (add(mul(v(axis("p", H)), by(1 - H)), by(P - H)),), H, (Fact(P, "==", H * H),)),
    "away from the end": read((P,), (add(mul(v(axis("p", H)), by(H + 1)), by(H)),), H, (Fact(P, "==", H * H),),
                              call("lt", add(v(axis("p", H)), by(1)), by(H))),
    "clamped and scaled": read((P,), (mul(call("min", add(v(_P), by(2)), by(H - 1)), by(W)),), P),
    "rows of a sum": read((P + H,), (add(mul(v(_ROW), by(S)), by(S - 1)),), H, _WIDER),
    "rows of a sum with a hidden part": read((P + H,), (add(mul(v(_ROW), by(S)), by(S - 1)),), H, _WIDER, hidden="K"),
    "rows of a sum of two": read((P + dim("R"),), (add(mul(v(_ROW), by(S)), by(S - 1)),), H, _PAIRED),
    "rows of a sum of two hidden parts": read((P + dim("R"),), (add(mul(v(_ROW), by(S)), by(S - 1)),), H, _PAIRED, hidden="KL"),
    "in rows of a sum": read((H, S), (rows(axis("p", P + H), S), columns(axis("p", P + H), S)), P + H, _WIDER, hidden="K"),
    "in rows of a sum with a part of any range": read((H, S), (rows(axis("p", P + H), S), columns(axis("p", P + H), S)), P + H,
                                                     _WIDER[1:], hidden="K"),
    "a third of the rows": read((P,), (add(mul(call("floordiv", v(axis("p", H)), by(3)), by(W)),
                                           call("min", v(axis("p", H)), by(W - 1))),), H),
    "the later half of the rows": read((P,), (add(mul(_LATER_HALF, by(W)), call("min", v(axis("p", H)), by(W - 1))),), H),
    "rows at a quotient that is a size": read(
        (P + H + _QUARTER + 1,), (add(mul(call("floordiv", v(_BEHIND), by(4)), by(H + 1)), v(_BEHIND)),), H + 1,
        (Fact(_QUARTER, "==", H // 4), Fact(P, "==", H * _QUARTER))),
    "within rows of a quotient and one more": read(
        (P + H,), (add(mul(v(_ROW), by(S)), call("min", call("floordiv", v(_ROW), by(2)), by(W // 2))),), H, _HALVES),
    "backwards, by quotients": read((2, H), (add(call("floordiv", mul(v(_BEHIND), by(-1)), by(H)), by(1)),
                                             call("mod", mul(v(_BEHIND), by(-1)), by(H))), H + 1, ()),
    "rows of a quotient and one more": read((P + H,), (add(mul(v(_ROW), by(S)), by(S - 1)),), H, _HALVES),
    "taken apart and put together": read((P,), (_together(W, W),), P),
    "a row of what is put together": read((P, 2), (_together(W, W), call("floordiv", _together(H, H), by(P))), P),
    "no more than what is divided": read((P,), (call("floordiv", v(_P), by(W)),), P),
    "no more than what leaves a rest": read((P + 1,), (add(call("mod", v(_P), by(W)), by(1)),), P),
    "rows of a sum of sizes": read((H, H + 1), (rows(axis("p", 3 * P + 3 * H), 3 * H + 3), call("mod", call(
        "floordiv", v(axis("p", 3 * P + 3 * H)), by(3)), by(H + 1))), 3 * P + 3 * H, (Fact(P, "==", H * H),)),
    "checked": read((H,), (CheckedIndex(mul(v(_P), by(W)), H, "x"),), P),
    "of floating point": read((3,), (call("max", call("min", Cast(mul(Cast(v(_P), "float32"), f32(0.5)), "int64"), by(2)),
                                          by(0)),), P),
}
REFUSED = {
    "put together and one more": read((P,), (add(_together(W, W), by(1)),), P),
    "put together of two": read((P,), (_together(W, H),), P),
    "one more than what is divided": read((P,), (add(call("floordiv", v(_P), by(W)), by(1)),), P),
    "rows of a sum of sizes, one too many": read((H,), (rows(axis("p", 3 * P + 3 * H + 1), 3 * H + 3),), 3 * P + 3 * H + 1,
                                                 (Fact(P, "==", H * H),)),
    "swapped": read(_IMAGE, (columns(_P, W), rows(_P, W)), P),
    "by the other extent": read(_IMAGE, (rows(_P, H), columns(_P, H)), P),
    "of no product": read(_IMAGE, (rows(_P, W), columns(_P, W)), P, ()),
    "one row down": read(_IMAGE, (add(rows(_P, W), by(1)), columns(_P, W)), P),
    "one row more": read(_IMAGE, (rows(_P, W), columns(_P, W)), P + W),
    "one column more": read((H, W - 1), (rows(_P, W), columns(_P, W)), P),
    "guarded by another": read(_IMAGE, (sub(rows(_P, W), 1), columns(_P, W)), P, guard=call("ge", columns(_P, W), by(1))),
    "resized without a clamp": read((H,), (call("max", rows(add(mul(v(_P), by(2 * H)), by(2 * P)), 2 * P), by(0)),), P, ()),
    "at the end": read((P,), (add(mul(v(axis("p", H)), by(H + 1)), by(H)),), H, (Fact(P, "==", H * H),)),
    "a row of a sum behind the last": read((P + H,), (add(mul(v(_ROW), by(S)), by(S)),), H, _WIDER),
    "a row of a sum behind the last, a part hidden": read((P + H,), (add(mul(v(_ROW), by(S)), by(S)),), H, _WIDER, hidden="K"),
    "behind the later half of the rows": read((P,), (add(mul(_LATER_HALF, by(W)), call("min", v(axis("p", H)), by(W))),), H),
    "a row of a quotient and one more behind the last": read((P + H,), (add(mul(v(_ROW), by(S)), by(S)),), H, _HALVES),
    "backwards, one too far": read((2, H), (add(call("floordiv", mul(v(_BEHIND), by(-1)), by(H)), by(2)),
                                            call("mod", mul(v(_BEHIND), by(-1)), by(H))), H + 1, ()),
    "clamped too late": read((P,), (mul(call("min", add(v(_P), by(2)), by(H)), by(W)),), P),
    "diagonal and one": read((P,), (add(add(mul(v(axis("p", H)), by(H)), v(axis("p", H))), by(1)),), H,
                             (Fact(P, "==", H * H),)),
}


@pytest.mark.defect(23)
@pytest.mark.parametrize("name", PROVED)
def test_an_index_that_is_not_affine_is_an_exact_cell_of_a_view(name: str) -> None:
    program = PROVED[name]
    found = access(program)
    assert found.exact and found.view is not None and not build_scop(program).notes
    assert all(stays_within(program, sizes) for sizes in every_size(program))
    cell = found.view.relation
    assert cell.is_single_valued() and found.relation.domain().is_subset(cell.domain())


@pytest.mark.defect(23)
@pytest.mark.parametrize("name", REFUSED)
def test_a_view_that_can_leave_its_input_is_not_certified(name: str) -> None:
    program = REFUSED[name]
    with pytest.raises(InternalError, match="at an index that nothing holds within its extents"):
        check_held(program)
    assert access(with_checks(program)).bounded
    if name != "of no product":  # which leaves at sizes that the Program does not rule out
        assert not all(stays_within(program, sizes) for sizes in every_size(program))


def every_size(program: Program) -> list[dict[str, int]]:
    """All sizes up to 7, products of them up to 49, at which the facts hold and no extent is negative."""
    names = sorted({s.name for s in program.sizes} | {n for fact in program.facts for n in fact.names()})
    made = {str(f.left): f.right for f in program.facts if f.relation == "=="}
    found = []
    for chosen in product(range(1, 8), repeat=len(names) - len(made)):
        sizes = dict(zip([n for n in names if n not in made], chosen))
        while len(sizes) < len(names):
            for name, expr in made.items():
                if expr.dims() <= sizes.keys():
                    sizes[name] = expr.evaluate(sizes)
        holds = all(f.left.evaluate(sizes) <= f.right.evaluate(sizes) for f in program.facts)
        if holds and all(e.evaluate(sizes) >= 0 for b in (*program.inputs, *program.outputs) for e in b.shape):
            found.append(sizes)
    return found


def test_the_layout_of_a_view_says_which_element_is_read() -> None:
    """By counting: at each cell of the view, the layout gives the element that the Program reads."""
    program = PROVED["merged and turned"]
    view = access(program).view
    assert view is not None and view.layout.box == (P,) and view.layout.storage == (W, H)
    sizes = {"H": 3, "P": 15, "W": 5}
    targets = [Compute(buffer("t", P, dtype="int64"), (axis("i0", P),), place) for place in view.layout.index]
    places = [evaluate(Program((), (c.target,), (c,), program.sizes), {}, sizes)["t"] for c in targets]
    x = np.arange(15.0).reshape(5, 3)
    np.testing.assert_array_equal(x[tuple(places)], evaluate(program, {"x": x}, sizes)["out"])


def test_an_index_of_data_stays_opaque() -> None:
    x, picks, out = buffer("x", H), buffer("picks", P, dtype="int64"), buffer("out", P)
    value = at(x, CheckedIndex(rows(at(picks, _P), W), H, "x"))
    scop = build_scop(Program((x, picks), (out,), (Compute(out, (_P,), value),), tuple(map(SizeParam, "HPW"))))
    assert [a.exact for a in scop.reads] == [False, True]
    assert len(scop.notes) == 1 and "of data" in scop.notes[0]


def test_a_condition_of_data_restricts_nothing() -> None:
    flag = buffer("flag", P, dtype=BOOL)
    x, out = buffer("x", H, W), buffer("out", P)
    value = select(at(flag, _P), at(x, rows(_P, W), columns(_P, W)), Const(0.0, "float32"))
    scop = build_scop(Program((flag, x), (out,), (Compute(out, (_P,), value),), tuple(map(SizeParam, "HPW")), MERGED))
    assert all(a.exact for a in scop.reads) and not scop.notes
    assert isinstance(value, Call) and Size(P).value == P

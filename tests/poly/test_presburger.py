"""isl decides what facts leave open: relations between sizes, and between variables, that no bound of one of them tells."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from tests.loop_ir.funcs import buffer, c32, store
from tsc.errors import InternalError
from tsc.loop_ir.nodes import Allocate, For, Func
from tsc.loop_ir.places import places_of
from tsc.loop_ir.verify_storage import verify_storage
from tsc.poly import isl
from tsc.poly.proof.presburger import prover
from tsc.sym import SymExpr, dim
from tsc.sym.expr import apply
from tsc.sym.facts import Known
from tsc.te.compute import SizeParam, facts_of
from tsc.te.expr import Size, Var, call

A, B, K, J = map(dim, "abij")
SIZES = (SizeParam("a", 0), SizeParam("b", 1))
NEAR = isl.Set("[a, b] -> { : 0 <= b <= a <= b + 4 }")


def bounds(low: SymExpr | int, high: SymExpr | int, divisor: int = 1) -> Known:
    return Known((SymExpr.of(low),), (SymExpr.of(high),), divisor, 1)


@pytest.mark.parametrize(("expr", "margins", "holds"), [
    (3 - (K - B), [], True),
    (2 - (K - B), [], False),
    (2 - (K - B), [A - K - 2], True),
    (J - 2 * K, [], True),                     # j is twice i, or more
    (J - 2 * K - 1, [], False),
    (A * B - B * A + K, [B], True),            # products are the same ones, whatever they are
    (A * B - K, [], False),                    # and may be anything
    (B - B % A, [], False),
    (apply("min", [A, K + 1]) - K - 1, [], True),
    (apply("//", [A - B, SymExpr.of(5)]), [], True),
    (-apply("//", [A - B, SymExpr.of(5)]), [], True),
    (-apply("//", [A - B, SymExpr.of(4)]), [], False),
    (dim("unknown") - dim("unknown") % B, [dim("unknown") - 3], False),
    (dim("unknown") - 3, [dim("unknown") - 4], True),
])
def test_what_is_known_together_decides(expr: SymExpr, margins: list[SymExpr], holds: bool) -> None:
    facts = facts_of(SIZES).bind("i", bounds(B, A - 1)).bind("j", bounds(2 * K, 99))
    assert prover(NEAR)(expr, margins, facts) == holds


def test_divisors_of_variables_count() -> None:
    facts = facts_of(SIZES).bind("i", bounds(0, 11, 4))
    assert prover(NEAR)(8 - K, [], facts) and not prover(NEAR)(7 - K, [], facts)


def test_nothing_is_proved_that_some_values_break() -> None:
    rng, proved = Random(7), 0
    for _ in range(300):
        facts = facts_of(SIZES).bind("i", bounds(rng.choice([0, B, -2]), rng.choice([A, B + 2, 5])))
        terms = [A, B, K, A * K, apply("min", [A, K]), apply("//", [K, SymExpr.of(3)]), apply("%", [K, B])]
        expr = sum((rng.randint(-2, 2) * t for t in rng.sample(terms, 3)), SymExpr.of(rng.randint(0, 6)))
        margin = rng.choice(terms) - rng.randint(0, 2)
        if prover(NEAR)(expr, [margin], facts):
            proved += 1
            for a, b, i in product(range(9), range(1, 9), range(-2, 12)):
                at = {"a": a, "b": b, "i": i}
                known = b <= a <= b + 4 and all(
                    low.evaluate(at) <= i <= high.evaluate(at)
                    for low, high in [(facts.known["i"].lows[0], facts.known["i"].highs[0])]) and margin.evaluate(at) >= 0
                assert not known or expr.evaluate(at) >= 0, (expr, margin, at)
    assert proved > 20


def test_a_tile_between_two_sizes_is_proved_to_hold_what_is_stored() -> None:
    def broken(width: int) -> tuple[Func, Func]:
        tile = buffer("tile", width)
        body = For("i", Size(B), Size(A), store(tile, (call("sub", Var("i"), Size(B)),), c32(0)))
        before = Func("kernel", (), (), SIZES, store(buffer("out", 1), (Size(SymExpr.of(0)),), c32(0)))
        return before, Func("kernel", (), (), SIZES, Allocate(tile, "register", body))

    before, after = broken(4)
    verify_storage(before, places_of(after), prover(NEAR))
    for pair, asked in ((broken(4), None), (broken(3), prover(NEAR))):
        with pytest.raises(InternalError, match="not proved that tile"):
            verify_storage(pair[0], places_of(pair[1]), *([asked] if asked else []))

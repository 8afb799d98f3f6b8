"""Nests of loops, iterated over as one, execute what loop after loop executes."""

from __future__ import annotations

from itertools import product
from random import Random

import numpy as np
import pytest

from tests.poly import programs
from tsc.loop_ir.nodes import For, Instance, Intrin, Stmt, Store
from tsc.te.expr import Buffer, Const, Expr, Load, Var, add, index, mul
from tsc.validate import sampled
from tsc.validate.algebra import Algebra, Value
from tsc.validate.frames import CASE, Frame, Reader, Sizes, TooMany, numbered
from tsc.validate.nest import iterations, nest_of
from tsc.validate.sampled import Marks, Pruning

OUT = Buffer("out", "float32", ())


class Nothing:
    """Memory of which nothing is read."""

    def load(self, load: Load, frame: Frame) -> Value:
        raise AssertionError(load)

    def passed(self, expr: Expr, frame: Frame) -> None:
        raise AssertionError(expr)


def affine(rng: Random, names: list[str]) -> Expr:
    total = index(rng.randrange(-2, 3))
    for name in rng.sample(names, rng.randint(1, len(names))):
        total = add(total, mul(index(rng.choice([1, 1, 2, -1])), Var(name)))
    return total


def evaluated(expr: Expr, values: dict[str, int]) -> int:
    match expr:
        case Var(name=name):
            return values[name]
        case Const(value=value):
            return int(value)
    a, b = (evaluated(e, values) for e in expr.args)  # type: ignore[union-attr]
    return {"add": a + b, "sub": a - b, "mul": a * b}[expr.fn]  # type: ignore[union-attr]


def bounds(rng: Random) -> tuple[int, Expr, int]:
    low = rng.randrange(3)
    return low, index(low + rng.choice([0, *range(1, 7), *range(1, 7)])), rng.randint(1, 3)


def some_nest(rng: Random, store: Store, known: dict[str, tuple[int, Expr, int]]) -> For:
    stmt: Stmt = store
    for name, (low, high, step) in reversed(known.items()):
        stmt = For(name, index(low), high, stmt, step, rng.choice(["serial", "unroll", "vector"]))
        stmt = Intrin("some", stmt) if rng.random() < 0.2 and name != next(iter(known)) else stmt
    assert isinstance(stmt, For)
    return stmt


@pytest.mark.parametrize("few", [0, 64])
@pytest.mark.parametrize("seed", range(40))
def test_iterations_are_those_of_loop_after_loop(seed: int, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is needed is there once, by the loops' own bounds, and what the Store's tests leave of it is that alone. Two nests
    at one place, which share what is alike, do not disturb each other."""
    monkeypatch.setattr(sampled, "_FEW", few)
    rng, random = Random(seed), np.random.default_rng(seed)
    extents = [np.array([rng.randint(1, 9), rng.randint(1, 9)]) for _ in range(3)]
    marks = [random.random(int(e.sum())) < 0.5 for e in extents]
    pruning = Pruning(programs.transpose(), statements={"t_store": tuple(map(Marks.of, extents, marks))})
    frame = Frame(4, known={CASE: np.array([0, 0, 1, 1]), "o": random.integers(0, 5, 4), "n": random.integers(0, 6, 4)})
    reader = Reader(Nothing(), Sizes({}, 2), Algebra())
    limits = {name: bounds(rng) for name in "kabc"}
    if rng.random() < 0.5:
        limits["k"] = limits["k"][0], Var("n"), limits["k"][2]
    common = [affine(rng, ["o", *"abc"]) for _ in extents[1:]]
    for names in ("abc", "kabc"):
        places = [*common, affine(rng, ["o", *names])]
        store = Store(OUT, (), Const(0.0, "float32"), Instance("t_store", tuple(places)))
        loops, body = nest_of(some_nest(rng, store, {n: limits[n] for n in names}))
        assert [x.var for x in loops] == list(names)
        assert body is store
        found = iterations(loops, body, frame, reader, pruning)
        kept, _ = pruning.kept(pruning.below(store), None, found.frame, reader)
        values = [np.broadcast_to(found.frame.get(n), (found.frame.count,)) for n in names]
        for loop, number, value in zip(loops, found.numbers, values):
            assert (np.asarray(found.frame.get(number)) * loop.step + evaluated(loop.lo, {}) == value).all()
        got = list(zip(found.places.tolist(), *(v.tolist() for v in values)))
        assert len(set(got)) == len(got)
        left = got if kept is None else [g for g, k in zip(got, kept) if k]
        wanted = []
        for at in range(frame.count):
            outside = {"o": int(frame.known["o"][at]), "n": int(frame.known["n"][at])}
            for point in product(*(range(evaluated(x.lo, outside), evaluated(x.hi, outside), x.step) for x in loops)):
                here = outside | dict(zip(names, point))
                case = int(frame.known[CASE][at])
                spots = [evaluated(p, here) for p in places]
                if all(not 0 <= s < e[case] or m[(e[0] if case else 0) + s] for s, e, m in zip(spots, extents, marks)):
                    wanted.append((at, *point))
        assert sorted(left) == wanted
        if wanted:
            assert all(most >= len({g[i + 1] for g in got}) for i, most in enumerate(found.most))


def test_no_more_iterations_are_numbered_than_memory_holds() -> None:
    """Found by random programs: 660 million of them, in 24 GB."""
    assert numbered(np.array([2, 0, 3])).tolist() == [0, 1, 0, 1, 2]
    with pytest.raises(TooMany, match="iterations would have to be looked at"):
        numbered(np.array([1 << 29, 1 << 29]))

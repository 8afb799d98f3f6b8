"""Tuple-valued monoids: several reductions of one row, each after the first made with the results of the earlier ones.

A TupleMonoid is declared by its components. What the elements of a part contribute, and how the parts' results make the
whole's, are both reductions by the component's own Monoid: over elements of `element`, over parts of `fold`. Combining two
parts, lifting one element and the identity follow from that. That it *is* a monoid (associative, commutative, with that
identity) is what the property tests hold every declaration to.

Expressions use these Vars: `x` the element that the first component reduces, `w` a weight, `place` the element's index,
`none` a value that is no index, `part.<component>` a part's results, `whole.<component>` the results of the earlier components.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tsc.te.compute import MAX, MIN, SUM, Monoid
from tsc.te.expr import COMMUTATIVE, INDEX, Call, Const, Expr, Var, add, call, map_children, mul, select, substitute


@dataclass(frozen=True, slots=True)
class Component:
    """One reduction of a TupleMonoid. `forms` are the ways in which a Program may write `element`; `shared` is a part of
    `element` worth storing where several reductions use it."""

    name: str
    dtype: str
    monoid: Monoid
    element: Expr
    fold: Expr
    forms: tuple[Expr, ...] = ()
    shared: Expr | None = None

    @property
    def counts(self) -> bool:
        """Whether it is the number of elements, which needs no reduction in a Program."""
        return self.monoid == SUM and isinstance(self.element, Const) and self.element.value == 1


@dataclass(frozen=True, slots=True)
class TupleMonoid:
    """Components in order: an `element` or `fold` uses `whole.<name>` of earlier ones only."""

    components: tuple[Component, ...]

    def lift(self) -> dict[str, Expr]:
        """What one element alone gives: every component's element, made with this very element's earlier components."""
        lifted: dict[str, Expr] = {}
        for c in self.components:
            lifted[c.name] = substitute(c.element, {f"whole.{n}": e for n, e in lifted.items()})
        return lifted

    def identity(self) -> dict[str, Const]:
        """The result of no elements."""
        return {c.name: Const(c.monoid.identity(c.dtype), c.dtype) for c in self.components}

    def combine(self, left: Mapping[str, Expr], right: Mapping[str, Expr]) -> dict[str, Expr]:
        """The result of two parts together."""
        whole: dict[str, Expr] = {}
        for c in self.components:
            earlier = {f"whole.{n}": e for n, e in whole.items()}
            folds = (substitute(c.fold, {f"part.{n}": e for n, e in part.items()} | earlier) for part in (left, right))
            whole[c.name] = Call(c.monoid.fn, tuple(folds), c.dtype)
        return whole


# -- declarations ----------------------------------------------------------------------------------------------

def max_and_sum(dtype: str) -> TupleMonoid:
    """The maximum of x and the sum of w * exp(x - maximum): softmax in one pass. Elements of -inf count nothing, so that the
    total over nothing but those is 0."""
    x, top, part = Var("x", dtype), Var("whole.top", dtype), Var("part.top", dtype)
    w, total = Var("w", dtype), Var("part.total", dtype)
    zero, least = Const(0.0, dtype), Const(float("-inf"), dtype)
    shifted = call("exp", call("sub", x, select(call("eq", top, least), zero, top)))
    rescaled = select(call("eq", part, least), zero, call("exp", call("sub", part, top)))
    written = call("exp", call("sub", x, top))
    return TupleMonoid((
        Component("top", dtype, MAX, x, part),
        Component("total", dtype, SUM, mul(w, shifted), mul(total, rescaled), (mul(w, written), written), shifted)))


def mean_and_spread(dtype: str) -> TupleMonoid:
    """The number of elements, their sum, and the sum of squares of their deviations from the mean (Chan et al. 1979)."""
    x, one, zero = Var("x", dtype), Const(1.0, dtype), Const(0.0, dtype)
    count, total = Var("whole.count", dtype), Var("whole.total", dtype)
    n, t, s = (Var(f"part.{name}", dtype) for name in ("count", "total", "spread"))
    centred = call("sub", x, call("div", total, count))
    apart = call("sub", call("div", t, n), call("div", total, count))
    moved = select(call("eq", n, zero), zero, add(s, mul(n, mul(apart, apart))))
    return TupleMonoid((
        Component("count", dtype, SUM, one, n), Component("total", dtype, SUM, x, t),
        Component("spread", dtype, SUM, mul(centred, centred), moved)))


def extreme_and_place(dtype: str, extreme: Monoid, last: bool) -> TupleMonoid:
    """The extreme of x and the first (or last) index at which it stands."""
    x, top, part = Var("x", dtype), Var("whole.top", dtype), Var("part.top", dtype)
    place, none = Var("place", INDEX), Var("none", INDEX)
    return TupleMonoid((
        Component("top", dtype, extreme, x, part),
        Component("place", INDEX, MAX if last else MIN, select(call("eq", x, top), place, none),
                  select(call("eq", part, top), Var("part.place", INDEX), none))))


def declared(dtype: str) -> tuple[TupleMonoid, ...]:
    """All TupleMonoids over elements of `dtype`."""
    places = tuple(extreme_and_place(dtype, extreme, last) for extreme in (MAX, MIN) for last in (False, True))
    return (max_and_sum(dtype), mean_and_spread(dtype), *places) if dtype.startswith(("float", "bfloat")) else places


# -- unification -----------------------------------------------------------------------------------------------

def unify(pattern: Expr, expr: Expr, known: Mapping[str, Expr]) -> Iterator[dict[str, Expr]]:
    """Every way to fill the Vars of `pattern` so that it becomes `expr`, those in `known` being filled already. Operands of
    commutative intrinsics may change places."""
    match pattern:
        case Var(name=name):
            if known.get(name, expr) == expr:
                yield {**known, name: expr}
        case Const():
            if isinstance(expr, Const) and expr.value == pattern.value:
                yield dict(known)
        case Call(fn=fn, args=args):
            if not isinstance(expr, Call) or expr.fn != fn or len(expr.args) != len(args):
                return
            orders = (expr.args, expr.args[::-1]) if fn in COMMUTATIVE else (expr.args,)
            for order in orders:
                yield from _unify_all(args, order, known)


def _unify_all(patterns: tuple[Expr, ...], exprs: tuple[Expr, ...], known: Mapping[str, Expr]) -> Iterator[dict[str, Expr]]:
    if not patterns:
        yield dict(known)
        return
    for found in unify(patterns[0], exprs[0], known):
        yield from _unify_all(patterns[1:], exprs[1:], found)


def replaced(expr: Expr, old: Expr, new: Expr) -> Expr:
    """`expr` with every occurrence of `old` replaced."""
    return new if expr == old else map_children(lambda e: replaced(e, old, new), expr)

"""bounds: whether an access stays within its buffer, where conditions hold beside the facts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tsc.sym import OversizeError, SymExpr, dim
from tsc.sym.expr import coefficient_of
from tsc.sym.facts import Facts
from tsc.te.expr import INDEX, Call, Expr, Load
from tsc.te.index import to_sym

#: Whether an expression is proved to be at least 0 wherever all of some others are: asked where facts leave that open.
Prover: TypeAlias = Callable[[SymExpr, Sequence[SymExpr], Facts], bool]

#: What bounds a place bounds one spaced, every second to fourth element.
_TIMES = range(1, 5)


def no_prover(expr: SymExpr, margins: Sequence[SymExpr], facts: Facts) -> bool:
    """Proves nothing beyond facts."""
    return False


def within(load: Load, facts: Facts, known: Collection[Expr] = (), dims: Collection[int] | None = None,
           prover: Prover = no_prover) -> bool:
    """Whether a load is proved to stay within the extents of (these `dims` of) its buffer where the conditions `known` hold, by
    facts or else by `prover`; an axis in panels has whole panels."""
    given = _Given.of(known)
    axis, width = load.buffer.panel or (-1, 1)
    for number, (place, extent) in enumerate(zip(load.index, load.buffer.shape)):
        if dims is not None and number not in dims:
            continue
        leaves: dict[str, Expr] = {}
        sym = to_sym(place, leaves)
        if leaves or not any(all(given.nonneg(e, facts) or prover(e, given.held(), facts) for e in needed)
                             for needed in _ways(sym, extent, width if number == axis else 1, facts)):
            return False
    return True


def _ways(place: SymExpr, extent: SymExpr, width: int, facts: Facts) -> Iterator[list[SymExpr]]:
    """What may be shown to be at least 0, each alone enough for a place to be within an extent rounded up to a `width`: that a
    part of it, of whole `step`s, is within the extent, and the rest within a step that divides the width."""
    for step in (width >> k for k in range(width.bit_length()) if width % (1 << k) == 0):
        first, rest = (place, SymExpr.of(0)) if step == 1 else facts.whole_part(place, step)
        yield [first, extent - 1 - first, rest, step - 1 - rest]


@dataclass(frozen=True, slots=True)
class _Given:
    """What conditions say of indices: expressions that are at least 0, and the values of variables."""

    margins: tuple[SymExpr, ...]
    values: Mapping[str, SymExpr]

    @staticmethod
    def of(conditions: Iterable[Expr]) -> _Given:
        parts = [p for c in conditions for p in _parts(c, True)]
        margins = [m for c, holds in parts for m in _margins(c, holds)]
        try:
            return _Given(tuple(margins), _solved([z for part in parts if (z := _zero(*part)) is not None]))
        except (ZeroDivisionError, OversizeError):  # no proof would come of it
            return _Given(tuple(margins), {})

    def held(self) -> list[SymExpr]:
        """All that is at least 0 where the conditions hold."""
        differences = [value - dim(name) for name, value in self.values.items()]
        return [*self.margins, *differences, *(-d for d in differences)]

    def nonneg(self, expr: SymExpr, facts: Facts) -> bool:
        """Whether `expr` is proved to be at least 0 where the conditions and `facts` hold."""
        if _at_least(expr, self.margins, facts):
            return True
        if not self.values.keys() & expr.dims():
            return False
        try:
            expr, *margins = (e.substitute(self.values) for e in (expr, *self.margins))
        except (ZeroDivisionError, OversizeError):
            return False
        return _at_least(expr, margins, facts)


def _at_least(expr: SymExpr, margins: Sequence[SymExpr], facts: Facts) -> bool:
    return (facts.nonneg(facts.reduce(expr)) or any(facts.nonneg(facts.reduce(expr - m * k)) for m in margins for k in _TIMES)
            or (bool(margins) and facts.nonneg_where(expr, margins)))


def _parts(condition: Expr, holds: bool) -> Iterator[tuple[Expr, bool]]:
    """The comparisons that hold, or do not, wherever `condition` does or does not."""
    match condition:
        case Call(fn="not", args=(inner,)):
            yield from _parts(inner, not holds)
        case Call(fn="and" | "or" as fn, args=args):
            if (fn == "and") == holds:
                for arg in args:
                    yield from _parts(arg, holds)
        case _:
            yield condition, holds


def _margins(condition: Expr, holds: bool) -> list[SymExpr]:
    """What a comparison makes at least 0 where it holds, or does not."""
    leaves: dict[str, Expr] = {}
    margin = margin_of(condition, leaves)
    return [] if margin is None or leaves else [margin - 1 if holds else -margin]


def _zero(condition: Expr, holds: bool) -> SymExpr | None:
    """What a comparison of indices makes 0 where it holds, or does not."""
    if not (isinstance(condition, Call) and condition.fn == ("eq" if holds else "ne") and condition.args[0].dtype == INDEX):
        return None
    leaves: dict[str, Expr] = {}
    a, b = (to_sym(x, leaves) for x in condition.args)
    return None if leaves else a - b


def _solved(zeros: Iterable[SymExpr]) -> dict[str, SymExpr]:
    """The values of variables, or sizes, that make all of them 0: of one that each is linear in, once."""
    values: dict[str, SymExpr] = {}
    for zero in zeros:
        zero = zero.substitute(values)
        for name in sorted(zero.dims()):
            factor = coefficient_of(zero, name)
            if factor is not None and factor.as_int() in (1, -1):
                value = dim(name) - zero * factor
                values = {**{n: v.substitute({name: value}) for n, v in values.items()}, name: value}
                break
    return values


def margin_of(condition: Expr, leaves: dict[str, Expr]) -> SymExpr | None:
    """`e` where the condition, a comparison of indices, is `e > 0`."""
    if not (isinstance(condition, Call) and condition.fn in ("lt", "le", "gt", "ge") and condition.args[0].dtype == INDEX):
        return None
    a, b = (to_sym(x, leaves) for x in condition.args)
    if condition.fn in ("gt", "ge"):
        a, b = b, a
    return b - a + (1 if condition.fn in ("le", "ge") else 0)

"""Points in scope: values of sizes and variables at which every fact holds. What is negative at one of them has no proof that
it never is, and none is searched for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tsc.sym.expr import SymExpr

#: At most so many points are kept (a power of two), and how far from its least value one without a greatest is tried.
_POINTS, _FAR = 8, 1009


class Point(dict[str, int]):
    """Values by name; what nothing is known of may be anything, 0 too."""

    def __missing__(self, name: str) -> int:
        return 0


def extended(points: Sequence[Point], name: str, lows: Sequence[SymExpr], highs: Sequence[SymExpr]) -> tuple[Point, ...]:
    """The points with a value of `name` between its bounds, at either end; without those that leave it none."""
    made: list[Point] = []
    for number, point in enumerate(points):
        low, high = _ends(point, lows, highs)
        if low > high:
            continue
        if 2 * len(points) > _POINTS:  # one end for half of the points, and another half for the next name
            made.append(Point({**point, name: high if number >> len(point) % 3 & 1 else low}))
        else:
            made += [Point({**point, name: end}) for end in dict.fromkeys((low, high))]
    return tuple(made)


def is_negative(expr: SymExpr, points: Iterable[Point]) -> bool:
    """Whether `expr` is below 0 at one of the points; it counts as not where it divides by 0."""
    for point in points:
        try:
            if expr.evaluate(point) < 0:
                return True
        except ZeroDivisionError:
            continue
    return False


def _ends(point: Point, lows: Sequence[SymExpr], highs: Sequence[SymExpr]) -> tuple[int, int]:
    """The least and the greatest value within bounds, some other far away where there is no such bound."""
    try:
        low = max((e.evaluate(point) for e in lows), default=None)
        high = min((e.evaluate(point) for e in highs), default=None)
    except ZeroDivisionError:
        return 1, 0
    if low is None:
        low = 0 if high is None else high - _FAR
    return low, low + _FAR if high is None else high

"""At which sizes, and at which of their elements, Programs and loops are compared.

Sizes lie around the edges of tiles (the steps and constant counts of the loops), as far as the Program's facts allow; from a
long axis the ends, what is around the edges of the first and last tiles, and some random values are taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from math import prod
from random import Random

import numpy as np

from tsc.loop_ir.nodes import For, Func, Stmt, children
from tsc.sym import SymExpr
from tsc.te.compute import Program, SizeParam
from tsc.te.expr import Const
from tsc.validate.algebra import Array

#: Cases of a kernel with sizes (each with random data of its own), at least and at most.
FEWEST, MOST = 12, 24
#: Points of the Program's grids that are evaluated for all Cases together, terms of a sum, and the least taken of any axis.
BUDGET, TERMS, LEAST = 40_000, 36, 3
#: With fewer points, the same sizes are taken several times.
FEW = 1_000
#: Sizes are no larger than twice the first, if they need not be, and targets hardly have more elements than the second.
LONGEST, LARGEST = 1024, 500_000
_TRIES = 40


def statements(func: Func) -> list[Stmt]:
    """Every statement of a Func."""
    found = [func.body]
    for stmt in found:
        found += children(stmt)
    return found


def steps_of(func: Func) -> list[int]:
    """The steps and constant trip counts of a Func's loops: its tiles."""
    loops = [s for s in statements(func) if isinstance(s, For)]
    found = {s.step for s in loops} | {int(s.hi.value) for s in loops if isinstance(s.hi, Const)}
    return sorted(n for n in found if n > 1)


def choose_sizes(program: Program, steps: Sequence[int], rng: Random) -> list[dict[str, int]]:
    """Different sizes at which the Program's facts hold, the least first; none where none were found."""
    if not program.sizes:
        work = max(prod(min(a.extent.evaluate({}), 64) for a in (*c.axes, *c.reduce_axes)) for c in program.computes)
        return [{}] * max(2, min(MOST, BUDGET // 8 // max(1, work)))
    orders = {s.name: _order(s, steps, rng) for s in program.sizes}
    extents = {a.extent for c in program.computes for a in (*c.axes, *c.reduce_axes)}
    extents |= {e for b in program.inputs for e in b.shape}
    found: dict[tuple[tuple[str, int], ...], dict[str, int]] = {}
    work, least = 0, 0
    for turn in range(3 * MOST):
        edge = program.sizes[turn % len(program.sizes)].name
        others = 4 if turn // len(orders) % 2 else 1  # of how many values the least is taken: the work is a product
        wish = {n: order[turn // len(orders) % len(order)] if n == edge else min(rng.choices(order, k=others))
                for n, order in orders.items()}
        sizes = _solved(program, wish, rng)
        if sizes is None:
            continue
        volume = max(prod(a.extent.evaluate(sizes) for a in c.axes) for c in program.computes)
        least = least or volume
        if volume <= max(LARGEST, 4 * least) and all(e.evaluate(sizes) >= 0 for e in extents) and (
                found.setdefault(tuple(sorted(sizes.items())), sizes) is sizes):
            work += max(prod(min(a.extent.evaluate(sizes), 64) for a in (*c.axes, *c.reduce_axes)) for c in program.computes)
        if len(found) >= (FEWEST if work > BUDGET else MOST):
            break
    cases = list(found.values())
    return cases * (MOST // len(cases)) if cases and work < FEW else cases  # of little data, more than once


def _order(size: SizeParam, steps: Sequence[int], rng: Random) -> list[int]:
    """The values of one size in the order in which they are tried: the least, those around one tile and behind two, the rest of
    the way to the first tile, the greatest."""
    low, most = max(size.lo, 0), 2**62 if size.hi is None else size.hi
    near = [s for s in steps if s <= LONGEST]
    edges = [s + 1 for s in near] + near + [s - 1 for s in near] + [2 * s + 1 for s in near]
    rng.shuffle(edges)
    short = [*range(1, 1 + (near[0] if near else 3)), 7, 12, 33]
    rng.shuffle(short)
    mixed = [n for some in zip_longest(short[::2], short[1::2], edges) for n in some if n is not None]
    values = [low, *(n if n >= low else low + n for n in mixed), *([most] if most < 4 * (low + 64) else [])]
    rounded = [-(-v // size.divisor) * size.divisor for v in values]
    return list(dict.fromkeys(v for v in rounded if low <= v <= most)) or [low]


def _solved(program: Program, wish: dict[str, int], rng: Random) -> dict[str, int] | None:
    """Sizes near a wish at which all facts hold, or None."""
    if not program.facts:
        return wish
    defined = {fact.left.as_dim(): fact.right for fact in program.facts if fact.relation == "==" and fact.left.as_dim()}
    names = sorted({n for fact in program.facts for n in fact.names()} - wish.keys())
    for attempt in range(_TRIES):
        values: dict[str, int] = dict(wish)
        if attempt:  # something else, less and less like it
            for size in program.sizes:
                if rng.random() < attempt / _TRIES:
                    high = size.lo + 1 + 3 * attempt if size.hi is None else min(size.hi, size.lo + 1 + 3 * attempt)
                    values[size.name] = -(-rng.randint(size.lo, max(size.lo, high)) // size.divisor) * size.divisor
        values |= {n: rng.choice([0, 1, 2, 3, 4, 8, 16, rng.randint(1, 100)]) for n in names}
        for _ in range(len(defined) + 1):
            for left, right in defined.items():
                if left is not None:
                    values[left.name] = _evaluated(right, values)
        if all(_holds(fact.left, fact.relation, fact.right, values) for fact in program.facts) and all(
                s.lo <= values[s.name] <= (2**62 if s.hi is None else s.hi) and values[s.name] % s.divisor == 0
                and values[s.name] <= s.lo + 4000 for s in program.sizes):
            return {s.name: values[s.name] for s in program.sizes}
    return None


def _evaluated(expr: SymExpr, values: dict[str, int]) -> int:
    try:
        return expr.evaluate(values)
    except ZeroDivisionError:
        return 0


def _holds(left: SymExpr, relation: str, right: SymExpr, values: dict[str, int]) -> bool:
    try:
        a, b = left.evaluate(values), right.evaluate(values)
    except ZeroDivisionError:
        return False
    return a == b if relation == "==" else a <= b


# -- what is taken of the axes ---------------------------------------------------------------------------------

def limits_of(program: Program, cases: Sequence[dict[str, int]]) -> list[tuple[int, int]]:
    """For each Case, how many values of an axis of elements, and of a reduce axis, are taken at most."""
    found = []
    for sizes in cases:
        grids = [([a.extent.evaluate(sizes) for a in c.axes], [a.extent.evaluate(sizes) for a in c.reduce_axes])
                 for c in program.computes]
        across, along = 128, 64
        while (across > LEAST or along > LEAST) and _work(grids, across, along) > BUDGET // len(cases):
            if along > LEAST and any(prod(min(n, along) for n in reduced) > TERMS for _, reduced in grids):
                along -= 1
            elif across > LEAST:
                across -= max(1, across // 8)
            else:
                along -= 1
        found.append((across, along))
    return found


def _work(grids: Sequence[tuple[list[int], list[int]]], across: int, along: int) -> int:
    return max(prod(min(n, across) for n in axes) * prod(min(n, along) for n in reduced) for axes, reduced in grids)


def taken(extent: int, limit: int, steps: Sequence[int], rng: Random) -> Array:
    """At most about `limit` values of an axis, in order: they lie in a few tiles, each with its ends."""
    if extent <= limit:
        return np.arange(extent)
    if limit == 1:
        return np.array([rng.randrange(extent)])
    width = max((s for s in steps if s <= 64), default=16)
    last = (extent - 1) // width * width
    middle = rng.choice([s - width // 2 for s in steps if s >= width and s < extent] or [rng.randrange(extent)])
    starts = [0, last, *([middle] if limit >= 16 else [])]
    windows = [(max(0, s), min(extent, max(0, s) + width)) for s in starts]
    found = {0, extent - 1}
    for edge in range(3):
        for low, high in windows:
            if len(found) < limit:
                found.add(min(extent - 1, (low, high - 1, low + 1)[edge]))
    for _ in range(4 * limit):
        if len(found) < limit:
            found.add(rng.randrange(*rng.choice(windows)))
    return np.array(sorted(found))

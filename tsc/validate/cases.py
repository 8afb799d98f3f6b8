"""At which sizes, and at which of their elements, Programs and loops are compared.

Sizes lie around the edges of tiles (the steps and constant counts of the loops), as far as the Program's facts allow, and are
chosen so that each Store of the loops is executed at some of them; from a long axis the ends, what is around the edges of the
first and last tiles, and some random values are taken.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice, zip_longest
from math import prod
from random import Random

import numpy as np

from tsc.loop_ir.nodes import For, Func, If, Let, Stmt, Store, children
from tsc.sym import ONE, OversizeError, SymExpr, dim
from tsc.sym.expr import Apply, coefficient_of
from tsc.te.compute import Axis, Program, SizeParam
from tsc.te.expr import BOOL, INDEX, Buffer, Call, Const, Expr, Size, walk
from tsc.validate.algebra import Array
from tsc.validate.frames import Sizes
from tsc.validate.reach import reached

#: Cases of a kernel with sizes (each with random data of its own), at least and at most.
FEWEST, MOST = 12, 24
#: Points of the Program's grids that are evaluated for all Cases together: at most, at first, and where Cases are solved for.
BUDGET, FIRST, OWN = 40_000, 10_000, 10_000
#: Terms of a sum, and the least taken of any axis.
TERMS, LEAST = 36, 3
#: With fewer points, the same sizes are taken several times, up to so many Cases: what two comparisons of data decide at one
#: element is hardly ever seen otherwise.
FEW, OFTEN = 2_500, 72
#: Sizes are no larger than twice the first, if they need not be, and targets hardly have more elements than the second.
LONGEST, LARGEST = 1024, 500_000
#: The most elements that the targets (or axes) of all Cases have together, but for the least Case, which may have more alone:
#: an element takes up to some fifty bytes.
ELEMENTS = 1 << 24
_TRIES = 40
#: More trips of a recurrence are tried where Stores are reached by no fewer.
LONGEST_RUN = 12
#: How many times the points that are taken of a recurrence are evaluated: they ask for those of each trip before.
_ASKED = 8
#: How many sizes are looked at to find some that execute each Store, and the points at which one of them counts as large.
_POOL, _HEAVY = 300, 3_000
#: Multiples of this, modulo 1, leave no large gaps.
_GOLDEN = 0.6180339887
#: How many of the least values of a size that indices are divided by are tried.
_DIVISORS = 3
#: How often sizes are taken where one fed truth decides: few of them execute a Store, and it may be the same in all.
_TRUTHS = 3
#: How far beyond its least value a size may be.
_FURTHEST = 4_000


def statements(func: Func) -> list[Stmt]:
    """Every statement of a Func."""
    found = [func.body]
    for stmt in found:
        found += children(stmt)
    return found


def steps_of(func: Func) -> list[int]:
    """The steps and the constant ends of a Func's loops, and what numbers of blocks are multiplied with: its tiles."""
    found: set[int] = set()
    for stmt in statements(func):
        match stmt:
            case For(hi=hi, step=step):
                found |= {step, *_ends(hi)}
            case Let(value=Call(fn="mul", args=(_, Const(value=width)))):
                found.add(int(width))
    return sorted(n for n in found if n > 1)


def _ends(hi: Expr) -> set[int]:
    """The numbers of which the end of a loop is one, or the least."""
    match hi:
        case Const(value=value):
            return {int(value)}
        case Call(fn="min", args=args):
            return {n for a in args for n in _ends(a)}
    return set()


def edges_of(func: Func) -> list[int]:
    """Where what is executed may change as a size grows: around the constants of a Func's loops, Lets and guards, and around
    their products (a tile counts vectors, a guard counts tiles)."""
    known = {1, *steps_of(func)}
    for stmt in statements(func):
        match stmt:
            case For(lo=lo, hi=hi):
                found: tuple[Expr, ...] = (lo, hi)
            case If(condition=one) | Let(value=one):
                found = (one,)
            case _:
                continue
        known |= {int(n.value) for e in found for n in walk(e) if isinstance(n, Const) and n.dtype == INDEX}
    known = {n for n in known if 0 < n <= LONGEST}
    products = {a * b for a in known for b in known if a * b <= LONGEST}
    return sorted({n + by for n in products for by in (-1, 0, 1)} | set(range(1, 2 + max(n for n in known if n <= 16))))


def choose_sizes(program: Program, func: Func, rng: Random) -> tuple[list[dict[str, int]], Collection[int]]:
    """Different sizes at which the Program's facts hold, the least first; none where none were found. What executes Stores of
    `func` that no other sizes do comes last, and so do the least values of sizes that indices are divided by, and more than
    one block in each direction. And the Stores, by `id`, that are executed."""
    if not program.sizes:
        most = max(prod(min(a.extent.evaluate({}), 64) for a in (*c.axes, *c.reduce_axes)) for c in program.computes)
        return [{}] * max(2, min(OFTEN, BUDGET // 8 // max(1, most))), reached(func, Sizes({}, 1))
    cases: list[dict[str, int]] = []
    work: list[int] = []
    least = elements = 0
    wishes = _wishes(program, steps_of(func), rng)
    while len(cases) < (FEWEST if sum(work) > BUDGET else MOST) and (some := list(islice(wishes, FEWEST))):
        solved = [sizes for wish in some if (sizes := _solved(program, wish, rng)) is not None]
        fresh = [sizes for i, sizes in enumerate(solved) if sizes not in cases and sizes not in solved[:i]
                 and _trips(program, sizes) <= max(LONGEST_RUN, _trips(program, (cases or solved)[0]))]
        for sizes, possible, points, volume in zip(fresh, *_looked_at(program, Sizes.of_cases(fresh), least)) if fresh else ():
            if possible and len(cases) < (FEWEST if sum(work) > BUDGET else MOST) and (
                    not cases or elements + int(volume) <= ELEMENTS):
                least = least or int(volume)
                elements += int(volume)
                cases.append(sizes)
                work.append(int(points))
    deciding: dict[int, frozenset[str]] = {}
    done = reached(func, Sizes.of_cases(cases), deciding) if cases else {}
    missed = {id(s) for s in statements(func) if isinstance(s, Store) or _divides(s)}
    missed -= {number for number, at in done.items() if at.any()}
    untried = [(name, value) for name, value in _least_divisors(program) if all(c[name] != value for c in cases)]
    alone = [count for count in _counts(func) if all(count.evaluate(c) < 2 for c in cases)]
    others, more = _pool(program, edges_of(func), least, rng) if missed or untried or alone else ([], [])
    if others:
        found = reached(func, Sizes.of_cases(others), deciding)
        rows = [at for number, at in found.items() if number in missed]
        rows += [np.array([o[name] == value for o in others]) for name, value in untried]
        rows += [np.array([count.evaluate(o) > 1 for o in others]) for count in alone]
        cases = cases + [others[i] for i in cover([row for row in rows if row.any()], more)]
        done |= found
    turns = max(min(OFTEN // len(cases), FEW // max(sum(work), 1)), 1) if cases else 1
    if cases and sum(work) <= BUDGET:
        turns = max(turns, -(-FEWEST // len(cases)))
    turns = max(turns, _TRUTHS) if any(_is_decision(b) for b in program.inputs) else turns
    if cases and 0 < sum(_folded_truths(program, c) for c in cases) < OFTEN:
        turns = max(turns, OFTEN // len(cases))
    return cases * max(1, min(turns, ELEMENTS // max(1, elements))), done


def _trips(program: Program, sizes: Mapping[str, int]) -> int:
    """How many trips the longest recurrence makes: one is evaluated after the other, and each needs all of those before it."""
    return max((a.extent.evaluate(sizes) for c in program.computes if c.carried is not None
                for a in c.axes if a.name == c.carried.axis), default=0)


def _folded_truths(program: Program, sizes: Mapping[str, int]) -> int:
    """How many truths are made of many by `and` or `or`: each tells little of them."""
    return sum(prod(e.evaluate(sizes) for e in c.target.shape)
               for c in program.computes if c.monoid is not None and c.monoid.fn in ("and", "or"))


def _counts(func: Func) -> list[SymExpr]:
    """How many blocks there are in each direction that depends on sizes."""
    (monomial, _), *more = func.blocks.terms or (((), 0),)
    return [] if more else [SymExpr((((atom,), 1),)) for atom in monomial]


def _is_decision(buffer: Buffer) -> bool:
    """Whether an input is one truth: what it decides is the same everywhere in a Case."""
    return buffer.dtype == BOOL and all(extent == ONE for extent in buffer.shape)


def _least_divisors(program: Program) -> list[tuple[str, int]]:
    """Each size that an index is divided by, with each of its least values: much of what quotients decide is the same for all
    others."""
    found = {name for c in program.computes for e in walk(c.body) if isinstance(e, Call) and e.fn in ("floordiv", "mod")
             for part in walk(e.args[1]) if isinstance(part, Size) for name in part.value.dims()}
    firsts = {s.name: range(_rounded(s, max(s.lo, 1)), 2**62, s.divisor)[:_DIVISORS] for s in program.sizes}
    return [(s.name, value) for s in program.sizes if s.name in found for value in firsts[s.name] if _within(s, value)]


def _divides(stmt: Stmt) -> bool:
    """Whether a statement is a loop whose bounds divide by a size: over runs of equal quotients, of which one is not enough."""
    def by_size(expr: Expr) -> bool:
        match expr:
            case Call(fn="floordiv" | "mod", args=(_, Size())):
                return True
            case Size(value=value):
                return any(isinstance(a, Apply) and a.fn == "//" and a.args[1].as_int() is None for a in value.atoms())
        return False

    return isinstance(stmt, For) and any(by_size(e) for bound in (stmt.lo, stmt.hi) for e in walk(bound))


def cover(rows: Sequence[Array], work: Sequence[int]) -> list[int]:
    """Cases such that in each of the rows one of them is marked: one by one those that are marked in most of what is left, with
    little work."""
    left, cost = np.array(rows).reshape(-1, len(work)), np.sqrt(1 + np.array(work) / _HEAVY)
    chosen: list[int] = []
    while len(left):
        chosen.append(int(np.argmax(left.sum(axis=0) / cost)))
        left = left[~left[:, chosen[-1]]]
    return chosen


def _pool(program: Program, edges: Sequence[int], least: int, rng: Random) -> tuple[list[dict[str, int]], list[int]]:
    """Sizes at random edges, most of them small, at which the Program's facts hold, with the points evaluated at each."""
    random, known = np.random.default_rng(rng.randrange(2**32)), np.array(edges)
    count = _POOL * (8 if program.facts else 2)

    def some() -> Array:
        return known[(len(known) * random.random(count) ** 2).astype(np.int64)]

    values: dict[str, Array] = {}
    for size in program.sizes:
        wish = -(-np.maximum(some(), size.lo) // size.divisor) * size.divisor
        values[size.name] = wish if size.hi is None else np.minimum(wish, min(size.hi, 2**62))
    defined, rounds = _definitions(program)
    for name, margins in _hidden(program, defined):
        values[name] = some() * 2 ** random.integers(0, 6, count)  # what sizes are made from, by halving as a rule
        if margins:
            low, high = _between(margins, Sizes(values, count))
            values[name] = np.where(low < high, low + values[name] % np.maximum(high - low + 1, 1), low)
    for name, _ in defined if rounds > 1 else ():  # in a circle each is made from what another was before
        values.setdefault(name, some())
    for _ in range(rounds):
        for name, right in defined:
            values[name] = np.broadcast_to(np.asarray(Sizes(values, count).of(right)), (count,))
    sizes = Sizes(values, count)
    possible, work, _ = _looked_at(program, sizes, least)
    for fact in program.facts:
        left, right = sizes.of(fact.left), sizes.of(fact.right)
        possible = possible & np.asarray(left == right if fact.relation == "==" else left <= right)
    for size in program.sizes:
        value = values[size.name]
        possible = possible & (value >= size.lo) & (value <= size.lo + _FURTHEST) & (value % size.divisor == 0)
        possible = possible if size.hi is None else possible & (value <= size.hi)
    places = np.flatnonzero(possible)[:_POOL].tolist()
    return [{s.name: int(values[s.name][i]) for s in program.sizes} for i in places], [int(work[i]) for i in places]


def _hidden(program: Program, defined: Sequence[tuple[str, SymExpr]]) -> list[tuple[str, list[tuple[SymExpr, SymExpr]]]]:
    """The names in a Program's facts that are neither sizes nor `defined`, in an order in which to choose them, each with the
    facts that bound it by those before it: pairs (a, b) such that a times it, and b, is at least 0. A quotient is one of few
    numbers, which nobody hits by chance."""
    def written_out(expr: SymExpr) -> SymExpr:
        for name, value in reversed(defined):
            expr = expr.substitute({name: value})
        return expr

    made = {name for name, _ in defined}
    left = sorted({n for fact in program.facts for n in fact.names()} - {s.name for s in program.sizes} - made)
    try:
        margins = [written_out(fact.right - fact.left) for fact in program.facts]
    except OversizeError:
        return [(name, []) for name in left]
    margins += [-m for m, fact in zip(margins, program.facts) if fact.relation == "=="]
    linear = {name: [(a, m - a * dim(name)) for m in margins if (a := coefficient_of(m, name))] for name in left}
    found: list[tuple[str, list[tuple[SymExpr, SymExpr]]]] = []
    while left:
        known = {name: [(a, b) for a, b in linear[name] if not (a.dims() | b.dims()) & set(left)] for name in left}
        name = next((n for n in left if len(known[n]) > 1), left[0])
        found.append((name, known[name] if len(known[name]) > 1 else []))
        left.remove(name)
    return found


def _between(margins: Sequence[tuple[SymExpr, SymExpr]], sizes: Sizes) -> tuple[Array, Array]:
    """The least and the greatest value, for each Case, at which all `a` times it, and `b`, are at least 0."""
    low, high = np.zeros(sizes.count, np.int64), np.full(sizes.count, LONGEST, np.int64)
    for factor, rest in margins:
        a, b = (np.broadcast_to(np.asarray(sizes.of(e)), (sizes.count,)) for e in (factor, rest))
        least = np.where(a == 0, 1, np.abs(a))
        low = np.where(a > 0, np.maximum(low, -(b // least)), low)
        high = np.where(a < 0, np.minimum(high, b // least), high)
    return low, high


def _looked_at(program: Program, sizes: Sizes, least: int) -> tuple[Array, Array, Array]:
    """For each Case whether all extents are possible and none too large, the points evaluated there, and the elements of the
    largest target or axis; `least` are those of the least Case, by default the first possible one."""
    work = volume = np.zeros(sizes.count, np.int64)
    possible = np.ones(sizes.count, bool)
    for compute in program.computes:
        axes = (*compute.axes, *compute.reduce_axes)
        extents = [np.broadcast_to(np.asarray(sizes.of(a.extent)), (sizes.count,)) for a in axes]
        for extent in extents:
            possible = possible & (extent >= 0)
            volume = np.maximum(volume, extent)
        points = [*extents[:len(compute.axes)], *(np.maximum(e, 1) for e in extents[len(compute.axes):])]
        work = np.maximum(work, np.prod([np.minimum(e, 64) for e in points] or [np.ones_like(work)], axis=0))
        own = [e.astype(np.float64) for e in extents[:len(compute.axes)]]
        volume = np.maximum(volume, np.minimum(np.prod(own or [np.ones(sizes.count)], axis=0), 2.0**62).astype(np.int64))
    for buffer in program.inputs:
        for one in buffer.shape:
            possible = possible & np.asarray(sizes.of(one) >= 0)
    least = least or next(iter(volume[possible].tolist()), 0)
    return possible & (volume <= max(LARGEST, 4 * least)), work, volume


def _wishes(program: Program, steps: Sequence[int], rng: Random) -> Iterator[dict[str, int]]:
    """Sizes to try, one after the other at the edges of tiles."""
    orders = {s.name: _order(s, steps, rng) for s in program.sizes}
    for turn in range(3 * MOST):
        edge = program.sizes[turn % len(program.sizes)].name
        others = 4 if turn // len(orders) % 2 else 1  # of how many values the least is taken: the work is a product
        yield {n: order[turn // len(orders) % len(order)] if n == edge else min(rng.choices(order, k=others))
               for n, order in orders.items()}


def _order(size: SizeParam, steps: Sequence[int], rng: Random) -> list[int]:
    """The values of one size in the order in which they are tried: the least, those around one tile and behind two, the rest of
    the way to the first tile, the greatest."""
    low, most = max(size.lo, 0), 2**62 if size.hi is None else size.hi
    near = [s for s in steps if s <= LONGEST]
    edges = [s + 1 for s in near] + near + [s - 1 for s in near] + [2 * s + 1 for s in near]
    rng.shuffle(edges)
    edges = [s + 1 for s in near[-2:]] + edges  # blocks are the largest tiles
    short = [*range(1, 1 + (near[0] if near else 3)), 7, 12, 33]
    rng.shuffle(short)
    mixed = [n for some in zip_longest(short[::2], short[1::2], edges) for n in some if n is not None]
    values = [low, *(n if n >= low else low + n for n in mixed), *([most] if most < 4 * (low + 64) else [])]
    return [v for v in dict.fromkeys(_rounded(size, v) for v in values) if _within(size, v)] or [low]


def _rounded(size: SizeParam, value: int) -> int:
    return -(-value // size.divisor) * size.divisor


def _within(size: SizeParam, value: int) -> bool:
    return max(size.lo, 0) <= value and (size.hi is None or value <= size.hi)


def _solved(program: Program, wish: dict[str, int], rng: Random) -> dict[str, int] | None:
    """Sizes near a wish at which all facts hold, or None."""
    if not program.facts:
        return wish
    defined, rounds = _definitions(program)
    names = sorted({n for fact in program.facts for n in fact.names()} - wish.keys())
    for attempt in range(_TRIES):
        values: dict[str, int] = dict(wish)
        if attempt:  # something else, less and less like it
            for size in program.sizes:
                if rng.random() < attempt / _TRIES:
                    high = size.lo + 1 + 3 * attempt if size.hi is None else min(size.hi, size.lo + 1 + 3 * attempt)
                    values[size.name] = -(-rng.randint(size.lo, max(size.lo, high)) // size.divisor) * size.divisor
        values |= {n: rng.choice([0, 1, 2, 3, 4, 8, 16, rng.randint(1, 100)]) for n in names}
        for _ in range(rounds):
            for left, right in defined:
                values[left] = _evaluated(right, values)
        if all(_holds(fact.left, fact.relation, fact.right, values) for fact in program.facts) and all(
                s.lo <= values[s.name] <= (2**62 if s.hi is None else s.hi) and values[s.name] % s.divisor == 0
                and values[s.name] <= s.lo + _FURTHEST for s in program.sizes):
            return {s.name: values[s.name] for s in program.sizes}
    return None


def admitted(program: Program, sizes: dict[str, int], rng: Random) -> dict[str, int] | None:
    """`sizes` that were solved for without the products among a Program's facts, or others near them where these do not hold;
    None where none were found."""
    return sizes if _may_hold(program, sizes) else _solved(program, sizes, rng)


def _may_hold(program: Program, sizes: dict[str, int]) -> bool:
    """Whether no fact is known to fail; of the names that are no sizes, those that one equation alone gives are solved for."""
    values, left = dict(sizes), list(program.facts)
    while True:
        later = []
        for fact in left:
            unknown = fact.names() - values.keys()
            if not unknown and not _holds(fact.left, fact.relation, fact.right, values):
                return False
            if len(unknown) == 1 and fact.relation == "==":
                (name,) = unknown
                margin = fact.right - fact.left
                factor = coefficient_of(margin, name)
                times = 0 if factor is None else _evaluated(factor, values)
                if times:
                    rest = _evaluated(margin, {**values, name: 0})
                    if rest % times:
                        return False
                    values[name] = -rest // times
                    continue
            if unknown:
                later.append(fact)
        if len(later) == len(left):
            return True
        left = later


def _definitions(program: Program) -> tuple[list[tuple[str, SymExpr]], int]:
    """The dims that facts define with their values, each behind those it is made from, as far as they go in no circle; and how
    many times all have to be evaluated. Where one is defined in several ways, the first that is in no circle counts."""
    given = [(name.name, fact.right) for fact in program.facts if fact.relation == "==" and (name := fact.left.as_dim())]
    left, found = {name for name, _ in given}, dict[str, SymExpr]()
    while ready := {name: value for name, value in reversed(given) if name in left and left.isdisjoint(value.dims())}:
        found |= ready
        left -= ready.keys()
    circles = {name: value for name, value in given if name in left}
    return [*found.items(), *circles.items()], 1 if not left else len(found) + len(left) + 1


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


def work_at(program: Program, sizes: dict[str, int]) -> int:
    """Terms of all sums, and elements of what is no sum."""
    return sum(_points_of(program, sizes))


def most_at(program: Program, sizes: dict[str, int]) -> int:
    """The same of the Compute that has most of them."""
    return max(_points_of(program, sizes), default=0)


def _points_of(program: Program, sizes: dict[str, int]) -> list[int]:
    return [prod(a.extent.evaluate(sizes) for a in (*c.axes, *c.reduce_axes)) for c in program.computes]


# -- what is taken of the axes ---------------------------------------------------------------------------------

def limits_of(program: Program, cases: Sequence[dict[str, int]], budget: int) -> list[tuple[int, int]]:
    """For each Case, how many values of an axis of elements, and of a reduce axis, are taken at most: about `budget` points."""
    sizes, count = Sizes.of_cases(cases), len(cases)

    def extents(every: Sequence[Sequence[Axis]]) -> Array:
        """Of each Compute, each of its axes (those that others have in addition are of extent 1), and each Case."""
        made = np.ones((len(every), max(map(len, every)), count), np.int64)
        for grid, axes in zip(made, every):
            for row, axis in zip(grid, axes):
                row[:] = sizes.of(axis.extent)
        return made

    budget //= _ASKED if any(c.carried is not None for c in program.computes) else 1
    grids, reduced = extents([c.axes for c in program.computes]), extents([c.reduce_axes for c in program.computes])
    across, along = np.full(count, 128), np.full(count, 64)
    while True:
        terms = np.maximum(np.minimum(reduced, along).prod(axis=1), 1)  # of none, the sum is a point
        work = (np.minimum(grids, across).prod(axis=1) * terms).max(axis=0)
        todo = ((across > LEAST) | (along > LEAST)) & (work > budget // count)
        if not todo.any():
            return list(zip(across.tolist(), along.tolist()))
        shorter = (along > LEAST) & ((terms.max(axis=0) > TERMS) | (across <= LEAST))
        across = np.where(todo & ~shorter, across - np.maximum(1, across // 8), across)
        along = np.where(todo & shorter, along - 1, along)


def taken(extent: int, limit: int, steps: Sequence[int], rng: Random, turn: int = 0, numbers: Collection[int] = ()) -> Array:
    """At most about `limit` values of an axis, in order: both ends, `numbers`, one that goes through the first tile with the
    `turn`, others in a few tiles, with their ends."""
    if extent <= limit:
        return np.arange(extent)
    if limit == 1:
        return np.array([rng.randrange(extent)])
    width = max((s for s in steps if s <= 64), default=16)
    last = (extent - 1) // width * width
    middle = rng.choice([s - width // 2 for s in steps if s >= width and s < extent] or [rng.randrange(extent)])
    starts = [0, last, *([middle] if limit >= 16 else [])]
    windows = [(max(0, s), min(extent, max(0, s) + width)) for s in starts]
    edges = [min(extent - 1, n) for low, high in windows for n in (low, high - 1, low + 1)]
    rng.shuffle(edges)
    found = {0, extent - 1, *[n for n in sorted(numbers) if 0 < n < extent][:limit - 2]}
    found.add(int(windows[0][1] * (turn * _GOLDEN % 1)) if len(found) < limit else 0)
    for attempt in range(5 * limit):
        if len(found) < limit:
            by_edge = edges and (attempt % 2 or limit >= 4 * len(starts))
            found.add(edges.pop() if by_edge else rng.randrange(*rng.choice(windows)))
    return np.array(sorted(found))

"""check_values: the loops of a kernel compute what its Program means, at random values."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from random import Random
from typing import TypeAlias

import numpy as np

from tsc.errors import InternalError
from tsc.loop_ir.gpu.registers import without_registers
from tsc.loop_ir.nodes import Func, Store
from tsc.sym import product
from tsc.te.compute import Program
from tsc.te.expr import Buffer, Call, Const, Expr, Load, map_loads, walk
from tsc.validate.algebra import Algebra, Array, Value
from tsc.validate.cases import BUDGET, FIRST, LEAST, OWN, choose_sizes, limits_of, most_at, statements, steps_of, taken, work_at
from tsc.validate.frames import ORDER, Fault, Sizes, TooMany, Undecided
from tsc.validate.loops import MOST_INSTANCES, Loops, evaluated
from tsc.validate.memory import Storage
from tsc.validate.program import Impossible, Inputs, Meaning, keys_of, reduce_axes
from tsc.validate.sampled import Pruning, Samples
from tsc.validate.sides import Side, Sides
from tsc.validate.witness import Case, completed

#: How often other numbers are fed at most, where those fed before did not decide both ways.
_FEEDINGS = 6
#: How often sizes and places that were solved for are taken where once is not enough: data may have to agree.
_TURNS = 8
#: How truths are folded, and how many more Cases there are then.
_TRUTHS, _OFTEN = ("and", "or"), 200
#: No statement is written out as more Stores than that, among which its instances are divided.
_WRITTEN_OUT = 16
#: So many of the integers that a Program compares with are fed more often than others.
_DECIDING = 64
#: The sizes of a Case, as a key.
_Sizes: TypeAlias = frozenset[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Points:
    """The elements of an output that are compared: their places, and the Case of each."""

    index: list[Array]
    cases: Array


@dataclass(slots=True)
class Executed:
    """The Stores of the loops that were executed, by `id`, the sides of their choices that were taken, and what came out of the
    conditions, by `id` and sizes, that data decide."""

    stores: set[int] = field(default_factory=set)
    sides: set[Side] = field(default_factory=set)
    outcomes: dict[tuple[int, _Sizes], set[bool]] = field(default_factory=dict)

    def add(self, other: Executed) -> None:
        """More of them."""
        self.stores |= other.stores
        self.sides |= other.sides
        for key, seen in other.outcomes.items():
            self.outcomes.setdefault(key, set()).update(seen)

    def undivided(self, cases: Sequence[Case]) -> list[int]:
        """The numbers of the Cases at whose sizes a condition always had the same outcome; all where that is so everywhere."""
        seen: dict[int, set[bool]] = {}
        for (condition, _), some in self.outcomes.items():
            seen.setdefault(condition, set()).update(some)
        everywhere = any(len(some) < 2 for some in seen.values())
        once = {sizes for (_, sizes), some in self.outcomes.items() if len(some) < 2}
        return [number for number, case in enumerate(cases) if everywhere or _key(case) in once]


@dataclass(frozen=True, slots=True)
class Compared:
    """How far values were compared: the reason why they were not, or the `sizes` at which they were. Of the loops' Stores, and
    the sides of choices in them, `missed` were executed at none of these; `dead` Stores not at any admissible sizes."""

    undecided: str | None = None
    sizes: tuple[Mapping[str, int], ...] = ()
    missed: tuple[str, ...] = ()
    dead: tuple[str, ...] = ()

    def notes(self) -> tuple[str, ...]:
        """What is to be said of it."""
        if self.undecided is not None:
            return (f"values were not compared: {self.undecided}",)
        return (f"no sizes tried execute {', '.join(self.missed)}",) if self.missed else ()


def check_values(program: Program, func: Func, scheduled: Program | None = None, sizes: Sequence[dict[str, int]] | None = None,
                 seed: int = 0) -> Compared:
    """Raise InternalError, naming an element, unless `func` computes what `program` means.

    `scheduled` is the Program of the Scop, whose statements the Stores of `func` name: with it, long axes and reductions are
    sampled; where it reduces over other axes (a GPU's lanes share one, or several are one), elements alone, where all of them
    are too many, be it for some Store. `sizes` are those to try, by default some around the edges of the loops' tiles, which
    execute every Store and both sides of choices. What registers hold for a while is looked at where it stands.
    """
    func = without_registers(func)
    if scheduled is None or _reduces_alike(program, scheduled):
        return _checked(program, func, scheduled, sizes, seed)
    whole = _checked(program, func, None, sizes, seed)
    if whole.undecided is None and not whole.missed:
        return whole
    found = _checked(program, func, scheduled, sizes, seed)
    if found.undecided is not None:
        return whole
    missed = found.missed if whole.undecided is not None else tuple(n for n in found.missed if n in whole.missed)
    return replace(found, sizes=(*whole.sizes, *found.sizes), missed=missed)


def _reduces_alike(program: Program, scheduled: Program) -> bool:
    """Whether what is scheduled reduces over axes of the Program alone."""
    return {a for a, _ in reduce_axes(scheduled)} <= {a for a, _ in reduce_axes(program)}


def _checked(program: Program, func: Func, scheduled: Program | None, sizes: Sequence[dict[str, int]] | None,
             seed: int) -> Compared:
    """The same in one way."""
    rng = Random(f"{seed}/{zlib.crc32(str(program).encode())}")
    tried, dead = [Case(one) for one in sizes or ()], set[int]()
    sides = Sides.of(func, program)
    if sizes is None:
        chosen, reached = choose_sizes(program, sides.func, rng)
        if not chosen:
            return Compared("no sizes were found at which the facts of the Program hold")
        tried, dead = completed(program, sides.func, chosen, reached, rng)
    if scheduled is None:
        tried = _affordable(program, tried)
        if all(most_at(program, case.sizes) > MOST_INSTANCES * _WRITTEN_OUT for case in tried):
            return Compared(f"more than {MOST_INSTANCES} instances would have to be looked at")
    marks, own = set(sides.marks.values()), {id(s) for s in statements(func)}
    stores = [s for s in statements(sides.func) if isinstance(s, Store) and id(s) in own | marks]
    with np.errstate(all="ignore"):
        try:
            while tried:
                try:
                    found, tried = _compared_in_rounds(
                        program, func, scheduled, tried, rng, sides, {id(s) for s in stores} - dead, sizes is None)
                except Impossible as impossible:
                    tried = [s for number, s in enumerate(tried) if number not in impossible.cases]
                except TooMany as reason:
                    if len(tried) == 1:
                        return Compared(str(reason))
                    tried = sorted(tried, key=lambda case: work_at(program, case.sizes))[:len(tried) // 2]
                else:
                    missed = [s for s in stores if id(s) not in dead | found]
                    unreachable = [s for s in stores if id(s) in dead - found and id(s) not in marks]
                    return Compared(None, tuple(case.sizes for case in tried), _names(missed, marks), _names(unreachable))
            return Compared("its Program reads outside its inputs at all sizes that were tried")
        except Fault as fault:
            raise InternalError(f"kernel {func.name} is not what its Program means: {fault}") from fault
        except Undecided as reason:
            return Compared(str(reason))


def _affordable(program: Program, cases: list[Case]) -> list[Case]:
    """Those of the least work, as many as may be done without samples: the loops take no fewer steps. At least one."""
    ordered = sorted(cases, key=lambda case: work_at(program, case.sizes))
    sums = accumulate(work_at(program, case.sizes) for case in ordered)
    return ordered[:max(1, sum(1 for total in sums if total <= MOST_INSTANCES))]


def _names(stores: Sequence[Store], marks: Collection[int] = ()) -> tuple[str, ...]:
    """The buffers and statements of some Stores, of which `marks`, by `id`, stand for one side of a choice."""
    return tuple(("a side of a choice in " if id(s) in marks else "") + f"a store to {s.buffer.name}"
                 + ("" if s.instance is None else f" of {s.instance.statement}") for s in stores)


def _compared_in_rounds(program: Program, func: Func, scheduled: Program | None, cases: Sequence[Case], rng: Random,
                        sides: Sides, wanted: set[int], solve: bool) -> tuple[set[int], list[Case]]:
    """The Stores and marks, by `id`, that were executed, and where; those `wanted` are among them, if BUDGET points can do it.

    What few points leave out is executed on its own, at sizes and places solved for (if asked to `solve`), often if need be, as
    data may have to agree; or else with all others again. Where data decide, and at some sizes always did the same, others are
    fed: what one element decides may be all that is computed. Where truths are folded, one term seldom tells: small sizes are
    taken often. Raises as `_compared`.
    """
    first = FIRST if scheduled is not None else BUDGET
    found, own = _compared(program, func, scheduled, cases, rng, first), list[Case]()

    def again(some: Sequence[int], budget: int) -> None:
        try:
            found.add(_compared(program, func, scheduled, [cases[n] for n in some], rng, budget))
        except Impossible as impossible:
            raise Impossible(frozenset(some[n] for n in impossible.cases)) from None

    for _ in range(_FEEDINGS):
        if not (alike := found.undivided(cases)):
            break
        again(alike, -(-first * len(alike) // len(cases)))
    if any(monoid.fn in _TRUTHS for _, monoid in reduce_axes(program)):
        light = sorted(range(len(cases)), key=lambda n: work_at(program, cases[n].sizes))[:-(-len(cases) // 2)]
        again(light * -(-_OFTEN // len(light)), first)
    if solve and (left := wanted - sides.executed(found.stores, found.sides)):
        own, _ = completed(program, sides.func, (), {id(s) for s in statements(sides.func)} - left, rng)
        try:
            for turns in (1, _TURNS):
                if own and (turns == 1 or found.undivided(own) or not left <= sides.executed(found.stores, found.sides)):
                    some = own * turns if scheduled is not None else _affordable(program, own * turns)
                    found.add(_compared(program, func, scheduled, some, rng, OWN))
        except (Impossible, TooMany):
            own = []
    if scheduled is not None and not wanted <= sides.executed(found.stores, found.sides):  # or else the same is executed
        try:
            found.add(_compared(program, func, scheduled, cases, rng, BUDGET))
        except TooMany:  # whole reductions may be; what was seen was seen
            if _reduces_alike(program, scheduled):
                raise
    return sides.executed(found.stores, found.sides), [*cases, *own]


def _compared(program: Program, func: Func, scheduled: Program | None, cases: Sequence[Case], rng: Random,
              budget: int) -> Executed:
    """What is executed for about `budget` points of the grids. Raises Fault, Undecided and Impossible."""
    tried = [case.sizes for case in cases]
    steps, sizes = steps_of(func), Sizes.of_cases(tried)
    inputs, algebra = Inputs(sizes, keys_of(sizes.count, rng.randrange(2**31)), deciding=_compared_with(program)), Algebra()
    limits = limits_of(program, tried, budget) if scheduled is not None else [(2**62, 2**62)] * len(tried)
    alike = scheduled is None or _reduces_alike(program, scheduled)
    if not alike:  # what one takes of its axes says nothing of the other's
        limits = [(min(across, LEAST), 2**62) for across, _ in limits]

    def sampled(one: Program) -> dict[str, Samples]:
        """What the reduce axes of one of the two take; they may call theirs by the same names."""
        found = {}
        for axis, monoid in reduce_axes(one):
            few = scheduled is not None and alike and monoid.fn in _TRUTHS  # of many terms, one is sure to decide
            taking = tuple(
                taken(axis.extent.evaluate(c.sizes), 1 if few and rng.random() < 0.7 else most, steps, rng, n, c.numbers)
                for n, (c, (_, most)) in enumerate(zip(cases, limits)))
            found[axis.name] = Samples(taking, np.array([axis.extent.evaluate(s) for s in tried]))
        return found

    samples = sampled(program)
    of_scheduled = samples if scheduled is None or alike else sampled(scheduled)
    points = {}
    for buffer in program.outputs:
        compute = next(c for c in program.computes if c.name == buffer.name)
        points[buffer.name] = _points([
            tuple(taken(a.extent.evaluate(c.sizes), most, steps, rng, n, c.numbers) for a in compute.axes)
            for n, (c, (most, _)) in enumerate(zip(cases, limits))])
    meaning = Meaning(program, sizes, inputs, algebra, {name: s.values for name, s in samples.items()})
    expected = {name: meaning.elements(name, at.index, at.cases) for name, at in points.items()}
    pruning = Pruning()
    if scheduled is not None:
        plain = _without_panels(scheduled)
        if plain.computes == program.computes:
            pruning = Pruning.of(func, scheduled, meaning.wanted, of_scheduled)
        else:
            again = Meaning(plain, sizes, inputs, algebra, {name: s.values for name, s in of_scheduled.items()})
            for name, at in points.items():
                if not len(at.cases) and name not in again.computes:  # it has no elements, so nothing computes it
                    continue
                _same(again.elements(name, at.index, at.cases), expected[name], name, at, tried, "the scheduled Program")
            pruning = Pruning.of(func, scheduled, again.wanted, of_scheduled)
    loops = Loops(func, sizes, inputs, algebra, pruning)
    found = evaluated(loops)
    for name, at in points.items():
        _same(_read(found[name], at, sizes), expected[name], name, at, tried, "the loops")
    outcomes: dict[tuple[int, _Sizes], set[bool]] = {}
    for condition, seen in loops.outcomes.items():
        for outcome, number in zip(*np.nonzero(seen)):
            outcomes.setdefault((condition, _key(cases[number])), set()).add(bool(outcome))
    return Executed({id(leaf.store) for leaf in loops.leaves}, loops.sides | meaning.sides, outcomes)


def _key(case: Case) -> _Sizes:
    return frozenset(case.sizes.items())


def _compared_with(program: Program) -> tuple[int, ...]:
    """The integers by which a Program's comparisons decide, the least in size first."""
    found = {int(c.value) for compute in program.computes for e in walk(compute.body) if isinstance(e, Call) and e.fn in ORDER
             for c in walk(e) if isinstance(c, Const) and np.dtype(c.dtype).kind in "iu" and abs(c.value) < 2**62}
    return tuple(sorted(found, key=lambda n: (abs(n), n))[:_DECIDING])


def _points(grids: Sequence[tuple[Array, ...]]) -> Points:
    rank = len(grids[0])
    meshes = [np.meshgrid(*axes, indexing="ij") if axes else [np.zeros(1, np.int64)] for axes in grids]
    index = [np.concatenate([mesh[d].ravel() for mesh in meshes]) for d in range(rank)]
    cases = np.concatenate([np.full(mesh[0].size, number) for number, mesh in enumerate(meshes)])
    return Points(index, cases)


def _read(storage: Storage, at: Points, sizes: Sizes) -> Value:
    counts = np.broadcast_to(np.asarray(sizes.of(product(storage.buffer.shape)), np.int64), (sizes.count,))
    flat = np.zeros(len(at.cases), np.int64)
    for place, extent in zip(at.index, storage.buffer.shape):
        flat = flat * np.broadcast_to(np.asarray(sizes.of(extent)), (sizes.count,))[at.cases] + place
    return storage.read((np.cumsum(counts) - counts)[at.cases] + flat, np.full(len(flat), storage.span - 1))


def _same(found: Value, expected: Value, name: str, at: Points, tried: Sequence[dict[str, int]], what: str) -> None:
    """Raise Fault at the first element that differs."""
    wrong = np.asarray(np.broadcast_to(found.data, at.cases.shape) != np.broadcast_to(expected.data, at.cases.shape))
    missing = np.zeros(wrong.shape, bool) if found.poison is None else np.broadcast_to(found.poison, wrong.shape)
    bad = np.flatnonzero(wrong | missing)
    if len(bad):
        first = int(bad[0])
        place = ", ".join(str(int(i[first])) for i in at.index)
        how = "is made from memory that nobody wrote" if missing[first] else "is another value"
        raise Fault(f"{name}[{place}] {how} in {what}, at sizes {tried[int(at.cases[first])]}; "
                    f"so are {len(bad)} of {len(wrong)} elements")


def _without_panels(program: Program) -> Program:
    def plain(load: Load) -> Expr:
        return Load(replace(load.buffer, layout=()), load.index)

    def unpacked(buffer: Buffer) -> Buffer:
        return replace(buffer, layout=())

    return replace(program, inputs=tuple(map(unpacked, program.inputs)),
                   computes=tuple(replace(c, body=map_loads(plain, c.body)) for c in program.computes))

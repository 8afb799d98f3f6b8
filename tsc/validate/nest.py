"""Nests of loops whose bounds do not depend on each other, iterated over as one.

Loops that no test of what is needed asks about together are iterated over each on its own, which takes few instances, and then
combined. What was found for one nest serves others at the same place: a register tile is filled, updated and copied by the same
rows, columns and lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tsc.loop_ir.nodes import For, Intrin, Stmt
from tsc.te.expr import Const
from tsc.validate.algebra import Array
from tsc.validate.frames import Frame, Ints, Reader, numbered, spread
from tsc.validate.sampled import Pruning, Tested, questions


@dataclass(frozen=True, slots=True)
class Iterations:
    """The instances of what is within some loops, at an instance of `places` each; of each loop its variable, the one that
    numbers its iterations, and how many there are at most."""

    frame: Frame
    places: Array
    variables: tuple[str, ...]
    numbers: tuple[str, ...]
    most: tuple[int, ...]


def nest_of(loop: For) -> tuple[list[For], Stmt]:
    """A loop and those directly within it whose bounds are constant, outermost first, and their body."""
    loops, body = [loop], loop.body
    while True:
        while isinstance(body, Intrin):
            body = body.meaning
        match body:
            case For(var=var, lo=Const(), hi=Const(), kind=kind) if (
                    "block" not in (loop.kind, kind) and all(x.var != var for x in loops)):
                loops.append(body)
                body = body.body
            case _:
                return loops, body


def iterations(loops: Sequence[For], body: Stmt, frame: Frame, reader: Reader, pruning: Pruning) -> Iterations:
    """The instances of `body` within a nest at a place, as far as they are needed."""
    tests = pruning.below(body)
    parts = [_of_group([x for x in loops if x.var in names], tests, frame, reader, pruning) for names in _groups(loops, tests)]
    whole = parts.pop()
    while parts:
        whole = _combined(frame, parts.pop(), whole)
    at = {name: (number, most) for name, number, most in zip(whole.variables, whole.numbers, whole.most)}
    numbers, most = zip(*(at[x.var] for x in loops))
    return Iterations(whole.frame, whole.places, tuple(x.var for x in loops), numbers, most)


def _number(frame: Frame, loop: For) -> str:
    return f"@trip {id(frame)} {loop.var}"


def _groups(loops: Sequence[For], tests: Sequence[Tested]) -> list[set[str]]:
    """The variables of the loops, together where a test depends on several, by the place of their first."""
    groups = [{x.var} for x in loops]
    for names in {n for one in tests for n in one.together()}:
        some = [g for g in groups if not g.isdisjoint(names)]
        for other in some[1:]:
            some[0] |= other
            groups.remove(other)
    return groups


def _of_group(group: Sequence[For], tests: Sequence[Tested], frame: Frame, reader: Reader, pruning: Pruning) -> Iterations:
    """The iterations of the loops of one group, all others left out."""
    levels = [(x, pruning.around(group[place + 1:], tests)) for place, x in enumerate(group)]
    key = tuple((x.var, x.lo, x.hi, x.step, questions(own, x.var)) for x, own in levels)
    known: Iterations | None = frame.nests.get(key)
    if known is None:
        inner, most = frame, list[int]()
        places = np.arange(frame.count)
        for loop, own in levels:
            inner, at, trips = _of_loop(loop, own, inner, _number(frame, loop), reader, pruning)
            places = places[at]
            most.append(trips)
        variables, numbers = tuple(x.var for x in group), tuple(_number(frame, x) for x in group)
        if len(group) > 1:
            inner = Frame(inner.count, frame, places, {n: inner.get(n) for n in variables + numbers}, inner.certain)
        known = frame.nests[key] = Iterations(inner, places, variables, numbers, tuple(most))
    return known


def _of_loop(loop: For, tests: Sequence[Tested], frame: Frame, variable: str, reader: Reader,
             pruning: Pruning) -> tuple[Frame, Array, int]:
    """The iterations of one loop, at which instance of `frame` each is, and how many there are at most; `tests` are those of
    the stores within it."""
    low, high = reader.ints(loop.lo, frame), reader.ints(loop.hi, frame)
    trips = spread(np.maximum(-((np.asarray(low) - high) // loop.step), 0), frame.count)
    places, number = pruning.iterations(loop, tests, frame, low, trips, reader)
    inner = Frame(len(places), frame, places, _variables(loop, low, places, number, variable), frame.certain)
    kept, certain = pruning.kept(tests, loop.var, inner, reader)
    if kept is not None:
        places, number = places[kept], number[kept]
        inner = Frame(len(places), frame, places, _variables(loop, low, places, number, variable))
    inner.certain = frame.certain | certain
    return inner, places, int(trips.max(initial=0))


def _variables(loop: For, low: Ints, places: Array, number: Array, variable: str) -> dict[str, Ints]:
    begin = low[places] if isinstance(low, np.ndarray) else low
    same = loop.step == 1 and isinstance(low, int) and low == 0
    return {loop.var: number if same else number * loop.step + begin, variable: number}


def _combined(frame: Frame, first: Iterations, second: Iterations) -> Iterations:
    """Each iteration of the first with each of the second, at each instance of `frame`."""
    key = id(first), id(second)  # both are kept as long as the frame
    known: Iterations | None = frame.nests.get(key)
    if known is None:
        counts = np.bincount(second.places, minlength=frame.count)
        own = counts[first.places]
        at = np.repeat(np.arange(len(first.places)), own)
        places, inner = first.places[at], dict[str, Ints]()
        for part, some in ((first, at), (second, numbered(own) + np.repeat((np.cumsum(counts) - counts)[first.places], own))):
            taken: dict[int, Array] = {}
            for name in part.variables + part.numbers:
                value = part.frame.known[name]
                if id(value) not in taken:
                    taken[id(value)] = value[some]
                inner[name] = taken[id(value)]
        known = frame.nests[key] = Iterations(
            Frame(len(places), frame, places, inner, first.frame.certain | second.frame.certain), places,
            first.variables + second.variables, first.numbers + second.numbers, first.most + second.most)
    return known

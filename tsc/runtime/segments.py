"""A Plan's steps as a run takes them: launches that follow each other are one Segment, a straight Plan is one in all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tsc.runtime.plan import (
    Bind,
    Copy,
    Element,
    Eval,
    If,
    Launch,
    Loop,
    Plan,
    Region,
    Step,
    expressions_of,
    static_names,
    storages_of,
)
from tsc.sym import ZERO, Guard


@dataclass(frozen=True, slots=True)
class Segment:
    """Launches that follow each other, the Plan's from number `first` on, then copies. Its numbers depend on `names`, but for
    where copies begin, and it touches `outputs` (numbers of the Plan's)."""

    number: int
    first: int
    launches: tuple[Launch, ...]
    copies: tuple[Copy, ...]
    names: tuple[str, ...]
    outputs: tuple[int, ...]

    @property
    def moves(self) -> bool:
        """Whether a copy begins within its target."""
        return any(copy.at != ZERO for copy in self.copies)


@dataclass(frozen=True, slots=True)
class Rows:
    """The calls of a Segment's launches, one Variant chosen for each. `calls` numbers them among those of all Variants of the
    Segment's launches, `launches` the launch of each; `sizes` says where the sizes of a row begin among those of all launches,
    `arguments` where its arguments do among the `storages`."""

    calls: NDArray[np.int64]
    launches: NDArray[np.int64]
    sizes: NDArray[np.int64]
    arguments: NDArray[np.int64]
    storages: NDArray[np.int64]


def rows_of(launches: Sequence[Launch], chosen: Sequence[int]) -> Rows:
    """The Rows where Variant number `chosen[i]` of launch i runs."""
    calls: list[int] = []
    rows: list[tuple[int, int, int]] = []
    storages: list[int] = []
    first = sizes = 0
    for number, (launch, choice) in enumerate(zip(launches, chosen, strict=True)):
        begin = first + sum(len(variant.calls) for variant in launch.variants[:choice])
        own = (*launch.args, *launch.temporaries)
        for position, call in enumerate(launch.variants[choice].calls, begin):
            calls.append(position)
            rows.append((number, sizes, len(storages)))
            storages += [own[a] for a in call.args]
        first += len(launch.calls)
        sizes += len(launch.sizes)
    columns = np.array(rows, np.int64).reshape(-1, 3)
    return Rows(np.array(calls, np.int64), columns[:, 0], columns[:, 1], columns[:, 2], np.array(storages, np.int64))


@dataclass(frozen=True, slots=True)
class Branch:
    """An If."""

    condition: str | Element
    then: Code
    otherwise: Code


@dataclass(frozen=True, slots=True)
class Repeat:
    """A Loop, whose own body is not looked at."""

    loop: Loop
    body: Code


Node: TypeAlias = Segment | Bind | Eval | Guard | Branch | Repeat
Code: TypeAlias = tuple[Node, ...]


def code_of(plan: Plan) -> Code:
    """The steps of a Plan, but for those of its root region that need no more than the shapes: a request is checked and sized
    by them before anything runs."""
    static = static_names(plan).keys()

    def needs_memory(step: Step) -> bool:
        match step:
            case Bind(source=source):
                return isinstance(source, Element)
            case Eval(name=name):
                return name not in static
            case Guard(left=left, right=right):
                return not left.dims() | right.dims() <= static
        return True

    return _Maker(plan).code(tuple(filter(needs_memory, plan.body)))


def segments_of(code: Code) -> Iterator[Segment]:
    """Every Segment, in the order of their launches."""
    for node in code:
        match node:
            case Segment():
                yield node
            case Branch(then=then, otherwise=otherwise):
                yield from segments_of(then)
                yield from segments_of(otherwise)
            case Repeat(body=body):
                yield from segments_of(body)


class _Maker:
    """Numbers segments and launches as it comes by them."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._segments = self._launches = 0

    def code(self, region: Region) -> Code:
        made: list[Node] = []
        launches: list[Launch] = []
        copies: list[Copy] = []

        def close() -> None:
            if launches or copies:
                made.append(self._segment(tuple(launches), tuple(copies)))
                launches.clear()
                copies.clear()

        for step in region:
            match step:
                case Launch():
                    if copies:
                        close()
                    launches.append(step)
                case Copy():
                    copies.append(step)
                case If(condition=condition, then=then, otherwise=otherwise):
                    close()
                    made.append(Branch(condition, self.code(then), self.code(otherwise)))
                case Loop(body=body):
                    close()
                    made.append(Repeat(step, self.code(body)))
                case _:
                    close()
                    made.append(step)
        close()
        return tuple(made)

    def _segment(self, launches: tuple[Launch, ...], copies: tuple[Copy, ...]) -> Segment:
        steps: tuple[Step, ...] = (*launches, *copies)
        used = {storage for step in steps for storage in storages_of(step)}
        outputs = sorted({place.index for place in (self._plan.storages[a] for a in used) if place.kind == "output"})
        exprs = [e for step in launches for e in expressions_of(step)] + [copy.bytes for copy in copies]
        exprs += [size for output in outputs for size in self._plan.outputs[output].shape]
        names = sorted(frozenset().union(*(e.dims() for e in exprs)))
        made = Segment(self._segments, self._launches, launches, copies, tuple(names), tuple(outputs))
        self._segments += 1
        self._launches += len(launches)
        return made

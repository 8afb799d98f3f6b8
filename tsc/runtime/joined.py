"""Several requests of different sizes as one run, without padding: what is made row by row runs once over the rows of all.

In every storage the requests lie one behind the other, so that the rows of all are those of one (`te/rows.py`); a launch of a
kernel that has such rows runs once for requests whose other sizes are equal, any other launch once for each request. What a
request gets is what it gets when it runs alone, to the last bit: no kernel sums up otherwise where there are more rows.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate, chain, pairwise

import numpy as np
from numpy.typing import NDArray

from tsc.errors import PackageError, ShapeError
from tsc.runtime.bind import Binder, grouped
from tsc.runtime.bounds import Bounds, Layout, Needs
from tsc.runtime.context import TableEngine
from tsc.runtime.host_program import Ready
from tsc.runtime.image import HEADER, PLACE, ROW, Image
from tsc.runtime.memory import round_up
from tsc.runtime.plan import HOST, Launch, Plan
from tsc.runtime.select import least
from tsc.runtime.tape import Tape

#: Shapes whose numbers are kept.
MEMO = 256
#: Requests that run as one take at most so many bytes of arena together, or are one: what more of them would share is little
#: (of BERT-base's time 1 %), and the memory stays with whoever serves.
MOST_BYTES = 16 << 20

Sizes = tuple[int, ...]
#: Requests from one number on, and the sizes at which a kernel runs for all of them.
Group = tuple[int, int, Sizes]
#: Where each storage of each request begins; after the last request, where those of it end.
Places = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Part:
    """What a request is of a run: the `values` of its dims, where each storage begins and how many bytes it has (none, where it
    is the same for all), the sizes of each launch and the number of its Variant, the bytes of each copy, and the shapes of its
    outputs."""

    values: tuple[int, ...]
    offsets: NDArray[np.int64]
    bytes: NDArray[np.int64]
    sizes: tuple[Sizes, ...]
    choices: tuple[int, ...]
    copies: tuple[int, ...]
    outputs: tuple[tuple[int, ...], ...]
    arena: int


@dataclass(frozen=True, slots=True)
class _Rows:
    """Of a launch what its requests have to have in common to run as one: `size` numbers the size that counts rows, at most
    `most` of them. The arguments at `own` are rows, others are the same for all."""

    size: int
    most: int | None
    own: tuple[int, ...]


def joinable(binder: Binder, bounds: Bounds) -> list[_Rows | None]:
    """Of each launch how requests can share it; of none where the Plan is not straight."""
    return [_rows_of(launch, binder.plan, bounds) for launch in binder.segments[0].launches] if (
        binder.straight and binder.segments) else []


def _rows_of(launch: Launch, plan: Plan, bounds: Bounds) -> _Rows | None:
    interface = bounds.kernels[launch.kernel]
    number = interface.row_size
    if number is None:
        return None
    own = tuple(k for k, buffer in enumerate(interface.buffers) if interface.rows in buffer.bytes.dims())
    others = (plan.storages[s] for k, s in enumerate(launch.args) if k not in own)
    return _Rows(number, interface.sizes[number][1].hi, own) if all(s.kind == "constant" for s in others) else None


class Joiner:
    """Makes one run of several requests to a Plan on a CPU of which some launch is `joinable`. `part` tells what a request is
    whose dims have these values; it raises as Binder.bind."""

    def __init__(self, binder: Binder, bounds: Bounds, engine: TableEngine) -> None:
        self._binder, self._bounds, self._engine = binder, bounds, engine
        segment, = binder.segments
        self._launches, self._copied = segment.launches, segment.copies
        self._functions: list[int] = engine.functions[0].tolist()
        self._base: list[int] = engine.base.tolist()
        self._fixed: list[int] = engine.fixed.tolist()
        self._rows = joinable(binder, bounds)
        self._shared = [k for k, storage in enumerate(binder.plan.storages) if storage.kind == "constant"]
        #: Where the calls of each Variant of each launch end, among those of all.
        firsts = accumulate((len(launch.calls) for launch in self._launches), initial=0)
        self._ends = [list(accumulate((len(variant.calls) for variant in launch.variants), initial=first))[1:]
                      for first, launch in zip(firsts, self._launches)]
        known: dict[object, int] = {}
        #: Launches with equal numbers have equal groups, and choose alike.
        self._forms = [known.setdefault((own.kernel, own.sizes, own.variants, rows), len(known))
                       for own, rows in zip(self._launches, self._rows)]
        self.part = lru_cache(MEMO)(self._part)

    # -- one request ---------------------------------------------------------------------------------------------------

    def _part(self, values: tuple[int, ...]) -> Part:
        binding = self._binder.bind(values)
        assert binding.whole is not None
        size = np.array(binding.layout.bytes, np.int64)
        size[self._shared] = 0
        sizes = grouped(binding.whole.sizes.tolist(), [len(launch.sizes) for launch in self._launches])
        calls = dict(zip(binding.whole.rows.launches.tolist(), binding.whole.rows.calls.tolist()))  # the last one of each
        choices = (bisect_right(ends, calls[k]) for k, ends in enumerate(self._ends))
        return Part(values, np.array(binding.layout.offsets, np.int64), size, tuple(map(tuple, sizes)), tuple(choices),
                    tuple(copy[-1] for copy in binding.whole.copies), tuple(shape or () for shape in binding.outputs),
                    binding.arena_bytes)

    # -- all of them ---------------------------------------------------------------------------------------------------

    def run(self, parts: Sequence[Part]) -> tuple[Ready, list[list[int]]] | None:
        """One run of all, whose inputs and outputs lie one behind the other, and the elements of each output that each request
        has; None where their storages lie in different orders, so that they must run apart."""
        sizes = np.stack([part.bytes for part in parts])
        ends = np.sum([part.offsets for part in parts], axis=0) + np.cumsum(sizes, axis=0)
        begins, total, arena = ends - sizes, sizes.sum(axis=0), sum(part.arena for part in parts)
        try:
            self._bounds.check_layout(Layout("", begins[0].tolist(), total.tolist(), {HOST: arena}))
        except PackageError:
            return None
        places = [*begins.tolist(), ends[-1].tolist()]
        table = _Table()
        for number, launch in enumerate(self._launches):
            form = self._forms[number]
            if form not in table.groups:
                table.groups[form] = list(self._groups(number, parts))
            for group in table.groups[form]:
                self._add(table, number, launch, group, parts, places)
        image, scratch = self._image(table, list(self._copies(parts, places))), round_up(table.scratch)
        elements = [[math.prod(part.outputs[k]) for part in parts] for k in range(len(self._binder.dtypes))]
        return Ready(tuple((sum(own),) for own in elements), arena, scratch, image), elements

    def _groups(self, number: int, parts: Sequence[Part]) -> Iterator[Group]:
        """Requests one after the other for which a launch may run once, as far as its sizes tell."""
        rows, sizes = self._rows[number], [part.sizes[number] for part in parts]
        if rows is None:
            yield from ((k, k + 1, own) for k, own in enumerate(sizes))
            return
        first, size = 0, rows.size
        count = sizes[0][size]
        for k, (before, own) in enumerate(pairwise(sizes), 1):
            alike = own[:size] == before[:size] and own[size + 1:] == before[size + 1:]
            if alike and (rows.most is None or count + own[size] <= rows.most):
                count += own[size]
                continue
            yield first, k, (*before[:size], count, *before[size + 1:])
            first, count = k, own[size]
        yield first, len(sizes), (*sizes[-1][:size], count, *sizes[-1][size + 1:])

    def _add(self, table: _Table, number: int, launch: Launch, group: Group, parts: Sequence[Part], places: Places) -> None:
        """The calls of a launch for a group or, where its kernel does not run for all of it at once, for each request."""
        first, last, sizes = group
        needs = self._fitting(table, number, launch, group, places)
        if needs is None:
            assert last - first > 1, "a request that may not run was bound"
            for k in range(first, last):
                self._add(table, number, launch, (k, k + 1, parts[k].sizes[number]), parts, places)
            return
        own, choice = (*launch.args, *launch.temporaries), parts[first].choices[number]
        if last - first > 1 and launch.selects:
            key = (self._forms[number], sizes)
            if key not in table.choices:
                table.choices[key] = self._choice(number, launch, group, needs, parts)
            choice = table.choices[key]
        calls = launch.variants[choice].calls
        for k, call in enumerate(calls, self._ends[number][choice] - len(calls)):
            blocks, scratch = needs.calls[call.function] if needs.writes else (0, 0)
            table.scratch = max(table.scratch, scratch)
            table.rows.append((self._functions[k], len(table.arguments), len(table.sizes), blocks, number))
            for a in call.args:  # what a launch's calls leave for each other is in nobody's way
                table.arguments.append(self._spot(own[a], places[first if a < len(launch.args) else 0]))
        table.sizes += sizes

    def _fitting(self, table: _Table, number: int, launch: Launch, group: Group, places: Places) -> Needs | None:
        """What a launch needs for a group; None where that is not what the group's requests have together."""
        (first, last, sizes), rows = group, self._rows[number]
        key = (launch.kernel, sizes)
        needs = table.needs[key] if key in table.needs else table.needs.setdefault(key, self._bounds.needs(*key))
        if isinstance(needs, str):
            return None
        if last - first > 1 and rows is not None and any(
                needs.buffers[k] != places[last][launch.args[k]] - places[first][launch.args[k]] for k in rows.own):
            return None
        room = [places[-1][s] - places[0][s] for s in launch.temporaries]
        return needs if all(n <= r for kept in needs.temporaries.values() for n, r in zip(kept, room)) else None

    def _spot(self, storage: int, places: Sequence[int]) -> tuple[int, int]:
        return self._base[storage], self._fixed[storage] + places[storage]

    def _copies(self, parts: Sequence[Part], places: Places) -> Iterator[tuple[int, ...]]:
        for k, copy in enumerate(self._copied):
            for own, part in zip(places, parts):
                yield *self._spot(copy.source, own), *self._spot(copy.target, own), part.copies[k]

    @staticmethod
    def _image(table: _Table, copies: Sequence[tuple[int, ...]]) -> Image:
        rows, arguments = HEADER + len(table.sizes), HEADER + len(table.sizes) + ROW * len(table.rows)
        end = arguments + PLACE * len(table.arguments)
        header = (0, 0, HEADER, rows, len(table.rows), arguments, len(table.arguments), end, len(copies))
        rest = chain.from_iterable((*table.rows, *table.arguments, *copies))
        return Image.of(np.array([*header, *table.sizes, *rest], np.int64))

    # -- Variants ------------------------------------------------------------------------------------------------------

    def _choice(self, number: int, launch: Launch, group: Group, needs: Needs, parts: Sequence[Part]) -> int:
        """The number of the Variant that runs for a group of several."""
        try:
            values = self._binder.static(self._stand_in(number, launch, group, parts))
            numbers = iter(self._counts[number].evaluate(values))
        except (ZeroDivisionError, ShapeError):  # of sizes that no request has; any Variant gives the same
            return parts[group[0]].choices[number]
        costs: list[float] = []
        for variant in launch.variants:
            time = 0.0
            for call in variant.calls:
                assert call.cost is not None
                counts = [next(numbers) for _ in call.cost.work]
                time += call.cost.femtoseconds(needs.calls[call.function][0], counts, self._engine.threads)
            costs.append(time)
        return least(costs)

    @cached_property
    def _counts(self) -> list[Tape]:
        """The work of all Calls of each launch."""
        names, known = self._binder.static_names, dict[object, Tape]()
        found = []
        for launch in self._launches:
            counts = tuple(work.count for call in launch.calls if call.cost is not None for work in call.cost.work)
            found.append(known.setdefault(counts, Tape(names, counts)))
        return found

    def _stand_in(self, number: int, launch: Launch, group: Group, parts: Sequence[Part]) -> list[int]:
        """Dims of which a launch's own expressions say what it does for a group, as near as may be: work is told of dims, and
        those of no request have so many rows."""
        (first, _, sizes), rows = group, self._rows[number]
        values = list(parts[first].values)
        assert rows is not None
        row, dims = launch.sizes[rows.size], self._binder.dims
        others = {name for k, size in enumerate(launch.sizes) if k != rows.size for name in size.dims()}
        for k, name in enumerate(dims):
            if name in row.dims() and name not in others and row.dims() <= {*dims}:
                at = dict(zip(dims, values))
                rest, slope = (row.evaluate({**at, name: value}) for value in (0, 1))
                if slope > rest:
                    values[k] = max(1, -(-(sizes[rows.size] - rest) // (slope - rest)))
                    break
        return values


@dataclass(slots=True)
class _Table:
    """What runs, in the making: (function, first argument, first size, blocks, launch) of each call, the sizes, (base, offset)
    of each argument; and the most scratch of a worker. `groups` by form, `needs` by kernel and sizes and `choices` by form and
    sizes are those that were asked for."""

    rows: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    arguments: list[tuple[int, int]] = field(default_factory=list)
    scratch: int = 0
    groups: dict[int, list[Group]] = field(default_factory=dict)
    needs: dict[tuple[str, Sizes], str | Needs] = field(default_factory=dict)
    choices: dict[tuple[int, Sizes], int] = field(default_factory=dict)


def runs_of(parts: Mapping[int, Part]) -> Iterator[list[int]]:
    """The numbers of requests that run as one, those of equal sizes next to each other."""
    run, arena = list[int](), 0
    for number, part in sorted(parts.items(), key=lambda own: own[1].values):
        if run and arena + part.arena > MOST_BYTES:
            yield run
            run, arena = [], 0
        run.append(number)
        arena += part.arena
    if run:
        yield run

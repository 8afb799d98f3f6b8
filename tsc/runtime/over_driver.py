"""A Plan run over any Driver: memory of the device, launches put in a stream, data copied there and back.

A kernel's arguments are the addresses of its buffers, its sizes (int64), and the address of its status word (int32), 0 unless
it found the data wrong. Its blocks are the grid. On the CPU its scratch is the dynamic shared memory; on a GPU it is memory of
the device, whose address comes before that of the status word.

The launches of a Segment are a graph, which is launched as it is while a shape and its memory stay the same. At another shape
its nodes get other kernels, grids and arguments: one graph for each number of launches, whatever the shapes (Grape, section 4).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tsc.errors import InternalError
from tsc.runtime.bind import Binding, Bound, Shapes
from tsc.runtime.context import Spot
from tsc.runtime.drivers.protocol import ONE, Arguments, Driver, Function, GraphExec, Launch, Memory, Module
from tsc.runtime.host_program import Ready
from tsc.runtime.image import Image
from tsc.runtime.memory import Array
from tsc.runtime.plan import Plan
from tsc.runtime.segments import Segment

#: A GPU's block has whole warps.
WARP = 32


class DriverEngine:
    """A module's kernels and the constants, on a device; `in_turn` says that its kernels wait for the launch before them."""

    def __init__(self, plan: Plan, segments: Sequence[Segment], driver: Driver, module: Module,
                 constants: Sequence[Array], in_turn: bool = False) -> None:
        self.in_turn = in_turn
        self.plan, self.driver, self.is_gpu = plan, driver, driver.info.arch.startswith("sm_")
        names = {call.function for segment in segments for launch in segment.launches for call in launch.calls}
        #: The status words.
        self.table_bytes = 4 * max((sum(launch.most_calls for launch in s.launches) for s in segments), default=0)
        self.functions: Mapping[str, Function] = {name: driver.function(module, name) for name in sorted(names)}
        self.constants = [driver.allocate(max(1, a.nbytes)) for a in constants]
        for memory, array in zip(self.constants, constants):
            driver.upload(memory, array, driver.default_stream)
        driver.synchronize()

    def bind(self, shapes: Shapes) -> Ready | None:
        """Nothing: the Binder has to."""
        return None

    def context(self) -> DriverContext:
        """What one run at a time uses."""
        return DriverContext(self)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """The launches of `bound`, with the address of each storage, the scratch memory and the status words in them; `graph` is
    None where there are none. `numbers` are those that the launches have in their Segment."""

    bound: Bound
    addresses: tuple[int, ...]
    launches: list[Launch]
    numbers: list[int]
    graph: GraphExec | None


class DriverContext:
    """The Context of a Driver: a stream, an arena, and the feeds and results of the last run, whose memory the next one uses
    where they are of the same sizes."""

    def __init__(self, engine: DriverEngine) -> None:
        self.seconds: list[float] | None = None
        self._engine, self._driver = engine, engine.driver
        self._stream = engine.driver.create_stream()
        self._arena: Memory | None = None
        self._scratch: Memory | None = None
        self._words: Memory | None = None
        self._feeds: dict[int, Memory] = {}
        self._results: dict[int, Memory] = {}
        self._filled: dict[int, Array] = {}
        self._prepared: dict[int, _Prepared] = {}
        self._graphs: dict[tuple[int, int], GraphExec] = {}

    @property
    def held_bytes(self) -> int:
        """Of the arena, scratch, feeds and results."""
        kept = (self._arena, self._scratch, *self._feeds.values(), *self._results.values())
        return sum(memory.size for memory in kept if memory is not None)

    def reserve(self, arena: int, scratch: int) -> None:
        """As a Context does; on a GPU `scratch` is that of all blocks, and elsewhere it belongs to launches."""
        if arena > (0 if self._arena is None else self._arena.size):
            self._arena = None  # give the old one back first
            self._arena = self._driver.allocate(arena, self._stream)
        if scratch:
            self._scratch_of(scratch)

    def begin(self, binding: Binding | Ready, feeds: Sequence[Array], results: Sequence[Array | None],
              places: Sequence[int]) -> None:
        """As a Context does."""
        self._filled.clear()
        self.reserve(binding.arena_bytes, 0)
        for index, array in enumerate(feeds):
            self._driver.upload(self._like(self._feeds, index, array), array, self._stream)
        for number, (result, place) in enumerate(zip(results, places)):
            if result is not None:
                self.made(number, result, place)

    def made(self, output: int, result: Array, place: int) -> None:
        """As a Context does."""
        self._like(self._results, output, result)
        self._filled[output] = result

    def launch(self, segment: Segment, bound: Bound | Image) -> tuple[int, int] | None:
        """As a Context does: one after the other in the stream, each with a status word of its own."""
        if isinstance(bound, Image):
            raise InternalError("an image runs on the CPU only")
        driver, status = self._driver, np.zeros(len(bound.rows.calls), np.int32)
        if not len(status):
            return None
        words = self._words if self._words is not None and self._words.size >= status.nbytes else self._no_words(status.nbytes)
        self._words = None  # a run that fails leaves no word that may be set
        prepared = self._prepare(segment, bound, words)
        if self.seconds is not None:
            for number, launch in zip(prepared.numbers, prepared.launches):
                start = time.perf_counter()
                driver.launch(launch, self._stream)
                driver.synchronize(self._stream)
                self.seconds[segment.first + number] += time.perf_counter() - start
        elif prepared.graph is not None:
            driver.launch_graph(prepared.graph, self._stream)
        driver.download(status, words, self._stream)
        driver.synchronize(self._stream)
        if not status.any():
            self._words = words
            return None
        wrong = int(status.nonzero()[0][0])
        return int(bound.rows.launches[wrong]), int(status[wrong])

    def copy(self, target: Spot, source: Spot, size: int) -> None:
        """As a Context does."""
        if size:
            self._driver.copy(self._memory(target[0]), self._memory(source[0]), size, self._stream, (target[1], source[1]))

    def read(self, place: Spot, width: int) -> bytes:
        """As a Context does."""
        found = np.empty(width, np.uint8)
        self._driver.download(found, self._memory(place[0]), self._stream, place[1])
        self._driver.synchronize(self._stream)
        return found.tobytes()

    def end(self) -> None:
        """As a Context does."""
        for output, result in self._filled.items():
            if result.nbytes:
                self._driver.download(result, self._results[output], self._stream)
        self._driver.synchronize(self._stream)
        self._filled.clear()

    def _prepare(self, segment: Segment, bound: Bound, words: Memory) -> _Prepared:
        """The launches of a Segment, and its graph set to them: those of the last run where nothing has changed."""
        scratch = self._scratch_of(bound.together_bytes)
        addresses = (words.value, scratch, 0 if self._arena is None else self._arena.value,
                     *(held[index].value for held in (self._feeds, self._results) for index in sorted(held)))
        prepared = self._prepared.get(segment.first)
        if prepared is None or prepared.bound is not bound or prepared.addresses != addresses:
            launches, numbers = self._launches(segment, bound, scratch, words)
            graph = self._graph(segment, launches) if launches and self.seconds is None else None
            prepared = _Prepared(bound, addresses, launches, numbers, graph)
            if self.seconds is None:
                self._prepared[segment.first] = prepared
        return prepared

    def _launches(self, segment: Segment, bound: Bound, scratch: int, words: Memory) -> tuple[list[Launch], list[int]]:
        """Those with blocks, and their numbers in the Segment."""
        rows, launches, numbers = bound.rows, [], []
        calls = [call for launch in segment.launches for call in launch.calls]
        places = [self._place((int(s), int(o))) for s, o in zip(rows.storages, bound.offsets)]
        for row, (call, number, first, begin, blocks) in enumerate(zip(
                rows.calls.tolist(), rows.launches.tolist(), rows.sizes.tolist(), rows.arguments.tolist(),
                bound.blocks.tolist())):
            if not blocks:
                continue
            own = calls[call]
            given = [*places[begin:begin + len(own.args)], *bound.sizes[first:first + len(segment.launches[number].sizes)]]
            block, shared = ONE, bound.scratch_bytes
            if self._engine.is_gpu:
                given.append(np.uint64(scratch))
                block, shared = (max(own.threads, WARP), 1, 1), own.shared
            arguments = Arguments([*given, np.uint64(words.value + 4 * row)])
            launches.append(Launch(self._engine.functions[own.function], (blocks, 1, 1), block, arguments, shared,
                                   in_turn=self._engine.in_turn))
            numbers.append(number)
        return launches, numbers

    def _graph(self, segment: Segment, launches: list[Launch]) -> GraphExec:
        key = segment.first, len(launches)
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._graphs[key] = self._driver.instantiate(self._driver.build_graph(launches))
        else:
            self._prepared.pop(segment.first, None)  # its nodes are no longer those
            for node, launch in enumerate(launches):
                self._driver.set_kernel(graph, node, launch)
        return graph

    def _no_words(self, size: int) -> Memory:
        """Status words that say nothing."""
        words = self._driver.allocate(size, self._stream)
        self._driver.fill(words, 0, self._stream)
        return words

    def _scratch_of(self, size: int) -> int:
        """The address of so many bytes for all blocks of a launch; launches use them one after the other."""
        if not self._engine.is_gpu:
            return 0
        if self._scratch is None or self._scratch.size < size:
            self._scratch = self._driver.allocate(max(1, size), self._stream)
        return self._scratch.value

    def _like(self, held: dict[int, Memory], index: int, array: Array) -> Memory:
        """Memory of exactly an array's size: what reads past its end is then seen to."""
        size = max(1, array.nbytes)
        if index not in held or held[index].size != size:
            held.pop(index, None)
            held[index] = self._driver.allocate(size, self._stream)
        return held[index]

    def _memory(self, storage: int) -> Memory:
        place = self._engine.plan.storages[storage]
        match place.kind:
            case "input":
                return self._feeds[place.index]
            case "output":
                return self._results[place.index]
            case "constant":
                return self._engine.constants[place.index]
        self.reserve(1, 0)
        assert self._arena is not None
        return self._arena

    def _place(self, spot: Spot) -> np.uint64:
        return np.uint64(self._memory(spot[0]).value + spot[1])

"""A Plan run over any Driver: memory of the device, launches put in a stream, data copied there and back.

A kernel's arguments are the addresses of its buffers, its sizes (int64), and the address of its status word (int32), 0 unless
it found the data wrong. Its blocks are the grid. On the CPU its scratch is the dynamic shared memory; on a GPU it is memory of
the device, whose address comes before that of the status word.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np

from tsc.errors import InternalError
from tsc.runtime.bind import Binding, Bound, Shapes
from tsc.runtime.context import Spot
from tsc.runtime.drivers.protocol import ONE, Arguments, Driver, Function, Launch, Memory, Module
from tsc.runtime.host_program import Ready
from tsc.runtime.image import Image
from tsc.runtime.memory import Array
from tsc.runtime.plan import Plan
from tsc.runtime.segments import Segment

#: A GPU's block has whole warps.
WARP = 32


class DriverEngine:
    """A module's kernels and the constants, on a device."""

    table_bytes = 0

    def __init__(self, plan: Plan, segments: Sequence[Segment], driver: Driver, module: Module,
                 constants: Sequence[Array]) -> None:
        self.plan, self.driver, self.on_gpu = plan, driver, driver.info.arch.startswith("sm_")
        names = {call.function for segment in segments for launch in segment.launches for call in launch.calls}
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


class DriverContext:
    """The Context of a Driver: a stream, an arena, and the feeds and results of the run that is under way."""

    def __init__(self, engine: DriverEngine) -> None:
        self.seconds: list[float] | None = None
        self._engine, self._driver = engine, engine.driver
        self._stream = engine.driver.create_stream()
        self._arena: Memory | None = None
        self._scratch: Memory | None = None
        self._feeds: list[Memory] = []
        self._results: dict[int, tuple[Memory, Array]] = {}

    @property
    def held_bytes(self) -> int:
        """The arena's."""
        return 0 if self._arena is None else self._arena.size

    def reserve(self, arena: int, scratch: int) -> None:
        """As a Context does; scratch belongs to launches."""
        if arena > self.held_bytes:
            self._arena = None  # give the old one back first
            self._arena = self._driver.allocate(arena, self._stream)

    def begin(self, binding: Binding | Ready, feeds: Sequence[Array], results: Sequence[Array | None],
              places: Sequence[int]) -> None:
        """As a Context does."""
        self._results.clear()
        self._feeds.clear()
        self.reserve(binding.arena_bytes, 0)
        for array in feeds:
            self._feeds.append(self._allocated(array))
            self._driver.upload(self._feeds[-1], array, self._stream)
        for number, (result, place) in enumerate(zip(results, places)):
            if result is not None:
                self.made(number, result, place)

    def made(self, output: int, result: Array, place: int) -> None:
        """As a Context does."""
        self._results[output] = self._allocated(result), result

    def launch(self, segment: Segment, bound: Bound | Image) -> tuple[int, int] | None:
        """As a Context does: one after the other in the stream, each with a status word of its own."""
        if isinstance(bound, Image):
            raise InternalError("an image runs on the CPU only")
        driver, rows = self._driver, bound.rows
        status = np.zeros(len(rows.calls), np.int32)
        if not len(status):
            return None
        words = driver.allocate(status.nbytes, self._stream)
        driver.fill(words, 0, self._stream)
        calls = [call for launch in segment.launches for call in launch.calls]
        places = [self._place((int(s), int(o))) for s, o in zip(rows.storages, bound.offsets)]
        for row, (call, number, first, begin, blocks) in enumerate(zip(
                rows.calls.tolist(), rows.launches.tolist(), rows.sizes.tolist(), rows.arguments.tolist(),
                bound.blocks.tolist())):
            if not blocks:
                continue
            own = calls[call]
            sizes = bound.sizes[first:first + len(segment.launches[number].sizes)]
            given = [*places[begin:begin + len(own.args)], *sizes]
            block, shared = ONE, bound.scratch_bytes
            if self._engine.on_gpu:
                given.append(np.uint64(self._scratch_of(blocks * bound.scratch_bytes)))
                block, shared = (max(own.threads, WARP), 1, 1), own.shared
            arguments = Arguments([*given, np.uint64(words.value + 4 * row)])
            start = time.perf_counter()
            driver.launch(Launch(self._engine.functions[own.function], (blocks, 1, 1), block, arguments, shared), self._stream)
            if self.seconds is not None:
                driver.synchronize(self._stream)
                self.seconds[segment.first + number] += time.perf_counter() - start
        driver.download(status, words, self._stream)
        driver.synchronize(self._stream)
        wrong = next((row for row, code in enumerate(status.tolist()) if code), None)
        return None if wrong is None else (int(rows.launches[wrong]), int(status[wrong]))

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
        for memory, result in self._results.values():
            if result.nbytes:
                self._driver.download(result, memory, self._stream)
        self._driver.synchronize(self._stream)
        self._results.clear()
        self._feeds.clear()

    def _scratch_of(self, size: int) -> int:
        """The address of so many bytes for all blocks of a launch."""
        if self._scratch is None or self._scratch.size < size:
            self._scratch = self._driver.allocate(max(1, size), self._stream)
        return self._scratch.value

    def _allocated(self, array: Array) -> Memory:
        return self._driver.allocate(max(1, array.nbytes), self._stream)

    def _memory(self, storage: int) -> Memory:
        place = self._engine.plan.storages[storage]
        match place.kind:
            case "input":
                return self._feeds[place.index]
            case "output":
                return self._results[place.index][0]
            case "constant":
                return self._engine.constants[place.index]
        self.reserve(1, 0)
        assert self._arena is not None
        return self._arena

    def _place(self, spot: Spot) -> np.uint64:
        return np.uint64(self._memory(spot[0]).value + spot[1])

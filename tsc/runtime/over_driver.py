"""A Plan run over any Driver: memory of the device, launches put in a stream, data copied there and back.

A kernel's arguments are the addresses of its buffers, its sizes (int64), and the address of its status word (int32), 0 unless
it found the data wrong. Its blocks are the grid. On the CPU its scratch is the dynamic shared memory; on a GPU it is memory of
the device, whose address comes before that of the status word.

The launches of a Segment are a graph, which is launched as it is while a shape and its memory stay the same. At another shape
its nodes get other kernels, grids and arguments: one graph for each number of launches, whatever the shapes (Grape, section 4),
and one more where these go in turn.

Arrays of the caller's that lie in the device's memory are used there: they are *borrowed* for a run, and let go when it ends.
Memory that NumPy's arrays are copied to and from is a Context's own, and never handed out.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from tsc.errors import InputError, InternalError, LaunchError
from tsc.runtime.arrays import AnyArray, DeviceArray, import_array, item_size
from tsc.runtime.bind import Binder, Binding, Bound, Shapes
from tsc.runtime.bounds import Bounds
from tsc.runtime.context import Spot
from tsc.runtime.dlpack import CUDA, DTYPES, HOST_DEVICES
from tsc.runtime.drivers.protocol import Driver, Function, GraphExec, LaunchTable, Memory, Module, Stream
from tsc.runtime.host_numpy import NumpyProgram
from tsc.runtime.host_program import Ready
from tsc.runtime.image import Image
from tsc.runtime.launch_frame import Frame, frame_of
from tsc.runtime.memory import Array, allocate_array, as_array, contiguous
from tsc.runtime.segments import Segment

#: Layouts of launches that are kept.
MOST_FRAMES = 64


class _Incoming(threading.local):
    """A stream for each thread, which waits for what its borrowed arrays wait for."""

    def __init__(self, driver: Driver) -> None:
        self.stream = driver.create_stream()


class DriverEngine:
    """A module's kernels and the constants, on a device; `in_turn` says that its kernels wait for the launch before them."""

    def __init__(self, binder: Binder, bounds: Bounds, driver: Driver, module: Module, constants: Sequence[Array],
                 in_turn: bool = False) -> None:
        self._units, self._in_turn = driver.info.multiprocessors, in_turn
        self._host = NumpyProgram(binder, bounds, self._units) if binder.straight else None
        self._frames: dict[tuple[int, int, bytes], Frame] = {}
        plan, segments = binder.plan, binder.segments
        self.plan, self.driver, self.is_gpu = plan, driver, driver.info.arch.startswith("sm_")
        names = {call.function for segment in segments for launch in segment.launches for call in launch.calls}
        #: The status words.
        self.table_bytes = 4 * max((sum(launch.most_calls for launch in s.launches) for s in segments), default=0)
        self.functions: Mapping[str, Function] = {name: driver.function(module, name) for name in sorted(names)}
        self.constants = [driver.allocate(max(1, a.nbytes)) for a in constants]
        for memory, array in zip(self.constants, constants):
            driver.upload(memory, array, driver.default_stream)
        driver.synchronize()
        #: Where the memory of each storage is among the arena, the inputs, the outputs and the constants, one after the other.
        first = {"arena": 0, "input": 1, "output": 1 + len(plan.inputs), "constant": 1 + len(plan.inputs) + len(plan.outputs)}
        self.slots = np.array([first[s.kind] + (s.index if s.kind != "arena" else 0) for s in plan.storages], np.int64)
        self.fixed = np.array([memory.value for memory in self.constants], np.uint64)
        self._incoming = _Incoming(driver)

    def take(self, source: Any, what: str) -> AnyArray:
        """The caller's array, where it lies: in the device's memory or the host's. Raises InputError naming `what` where it can
        be used in neither."""
        if isinstance(source, np.ndarray) or not self._is_near(source):
            return as_array(source, what)
        if isinstance(source, DeviceArray) and source.driver is self.driver:
            source.let_wait(self._incoming.stream)
            return source
        return import_array(source, self.driver, self._incoming.stream, what)

    def _is_near(self, source: Any) -> bool:
        """Whether an array says that it lies in a device's memory, this one's or another's."""
        if isinstance(source, DeviceArray) and source.driver is self.driver:
            return True
        if hasattr(source, "__dlpack_device__"):
            with suppress(AttributeError, BufferError, RuntimeError, TypeError, ValueError):
                return int(source.__dlpack_device__()[0]) not in HOST_DEVICES
            return False
        return self.driver.dlpack_device[0] == CUDA and hasattr(source, "__cuda_array_interface__")

    def put(self, array: Any) -> DeviceArray:
        """A copy of an array of the host's. Raises InputError for one of no numbers, LaunchError where memory is short."""
        values = contiguous(as_array(array, "the array"), "a copy of the array")
        if values.dtype.name not in DTYPES or not values.dtype.isnative:
            raise InputError(f"the array has dtype {values.dtype}; a device has {', '.join(DTYPES)}, in the host's byte order")
        stream = self._incoming.stream
        made = self.empty(values.shape, values.dtype.name, stream)
        self.driver.upload(made.memory, values, stream)
        self.driver.synchronize(stream)
        return made

    def empty(self, shape: tuple[int, ...], dtype: str, stream: Stream) -> DeviceArray:
        """An array to hand out, which is used in `stream` until then. What others do with it is in the default stream at last,
        unless they say otherwise, so that its memory is given back there."""
        size = math.prod(shape) * item_size(dtype)
        memory = self.driver.allocate(size, stream, self.driver.default_stream)
        return DeviceArray(memory, shape, dtype, self.driver, None)

    def let_wait(self, stream: Stream) -> None:
        """Make a stream wait for what this thread's borrowed arrays wait for."""
        event = self.driver.create_event()
        self.driver.record(event, self._incoming.stream)
        self.driver.wait(stream, event)

    def bind(self, shapes: Shapes) -> Ready | None:
        """What the host program says of inputs of these shapes; None where there is none, or it gives up."""
        return None if self._host is None else self._host.bind(shapes)

    def frame(self, segment: Segment, bound: Bound) -> Frame:
        """How the launches that `bound` has blocks for are laid out."""
        key = segment.number, id(bound.rows), bound.blocks.astype(bool).tobytes()
        found = self._frames.get(key)
        if found is None:
            if len(self._frames) >= MOST_FRAMES:
                self._frames.clear()
            found = self._frames[key] = frame_of(segment, bound, self.functions, self.is_gpu)  # which keeps the rows
        return found

    def is_in_turn(self, bound: Bound) -> bool:
        """Whether launches are put on the device while those before them run: where each block has a multiprocessor to itself.
        More of them would pile up on those that are free already (an H200, `dev.py gpu --run` on 85caf0a: BERT-base of 5x83
        tokens 1.01 ms for 0.78, of 2x2 0.43 for 0.49)."""
        return self._in_turn and int(bound.blocks.max(initial=0)) <= self._units

    def context(self) -> DriverContext:
        """What one run at a time uses."""
        return DriverContext(self)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """The launches of `bound`, and the addresses that are in them: of status words and scratch memory, and of the memory that
    storages are in. `graph` is None where there are none."""

    bound: Bound
    own: tuple[int, int]
    memory: tuple[int, ...]
    frame: Frame
    table: LaunchTable
    graph: GraphExec | None


class DriverContext:
    """The Context of a Driver: a stream, an arena, and memory for feeds and results of NumPy's, which the next run uses where
    they are of the same sizes. `_feeds` and `_results` are those of the run that is under way, own memory or borrowed."""

    def __init__(self, engine: DriverEngine) -> None:
        self.seconds: list[float] | None = None
        self._engine, self._driver = engine, engine.driver
        self._stream = engine.driver.create_stream()
        self._arena: Memory | None = None
        self._scratch: Memory | None = None
        self._words: Memory | None = None
        self._own_feeds: dict[int, Memory] = {}
        self._own_results: dict[int, Memory] = {}
        self._feeds: dict[int, Memory] = {}
        self._results: dict[int, Memory] = {}
        self._near = False
        self._filled: dict[int, Array] = {}
        self._prepared: dict[int, _Prepared] = {}
        self._graphs: dict[tuple[int, int, bool], GraphExec] = {}
        self._tables: dict[tuple[int, int, bool], LaunchTable] = {}  # what the nodes of each graph are set to

    @property
    def held_bytes(self) -> int:
        """Of the arena, scratch, and what feeds and results are copied to and from."""
        kept = (self._arena, self._scratch, *self._own_feeds.values(), *self._own_results.values())
        return sum(memory.size for memory in kept if memory is not None)

    def reserve(self, arena: int, scratch: int) -> None:
        """As a Context does; on a GPU `scratch` is that of all blocks, and elsewhere it belongs to launches."""
        if arena > (0 if self._arena is None else self._arena.size):
            self._arena = None  # give the old one back first
            self._arena = self._driver.allocate(arena, self._stream)
        if scratch:
            self._scratch_of(scratch)

    def begin(self, binding: Binding | Ready, feeds: Sequence[AnyArray], results: list[AnyArray | None],
              places: Sequence[int]) -> None:
        """As a Context does. New results are on the device if any feed is."""
        self._let_go()
        self.reserve(binding.arena_bytes, 0)
        self._near = any(isinstance(feed, DeviceArray) for feed in feeds)
        if self._near or any(isinstance(result, DeviceArray) for result in results):
            self._engine.let_wait(self._stream)
        for index, feed in enumerate(feeds):
            self._feeds[index] = self._fed(index, feed)
        for number, (result, shape) in enumerate(zip(results, binding.outputs)):
            if result is not None:
                self._hold(number, result)
            elif shape is not None:
                results[number] = self.make(number, shape, self._engine.plan.outputs[number].numpy)

    def _fed(self, index: int, feed: AnyArray) -> Memory:
        """Memory that holds a feed: its own, where kernels can use that, or a copy."""
        if not isinstance(feed, DeviceArray):
            memory = self._like(self._own_feeds, index, feed.nbytes)
            self._driver.upload(memory, contiguous(feed, "a copy of an input"), self._stream)
        elif feed.aligned:
            memory = feed.memory
        else:
            memory = self._like(self._own_feeds, index, feed.nbytes)
            self._driver.copy(memory, feed.memory, feed.nbytes, self._stream)
        return memory

    def make(self, output: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> AnyArray:
        """As a Context does."""
        result = (self._engine.empty(shape, self._engine.plan.outputs[output].dtype, self._stream) if self._near else
                  allocate_array(shape, dtype, "an output"))
        self._hold(output, result)
        return result

    def _hold(self, output: int, result: AnyArray) -> None:
        """Let kernels write a result: where it is, or where it is copied from at the end."""
        if isinstance(result, DeviceArray):
            self._results[output] = result.memory
        else:
            self._results[output] = self._like(self._own_results, output, result.nbytes)
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
            for number, row in enumerate(prepared.frame.rows.tolist()):
                start = time.perf_counter()
                driver.launch(prepared.table.launch(number), self._stream)
                driver.synchronize(self._stream)
                self.seconds[segment.first + int(bound.rows.launches[row])] += time.perf_counter() - start
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
        self._let_go()

    def leave(self) -> None:
        """As a Context does; what still uses the caller's arrays ends first."""
        with suppress(LaunchError):
            self._driver.synchronize(self._stream)
        self._let_go()

    def _let_go(self) -> None:
        for held in (self._feeds, self._results, self._filled):
            held.clear()

    def _prepare(self, segment: Segment, bound: Bound, words: Memory) -> _Prepared:
        """The launches of a Segment, and its graph set to them: those of the last run where nothing has changed."""
        own = words.value, self._scratch_of(bound.together_bytes)
        plan, known = self._engine.plan, self._prepared.get(segment.first)
        if self._arena is None and not self._engine.slots[bound.rows.storages].all():
            self.reserve(1, 0)
        memory = (0 if self._arena is None else self._arena.value, *(self._feeds[i].value for i in range(len(plan.inputs))),
                  *(self._results[i].value if i in self._results else 0 for i in range(len(plan.outputs))))
        if known is not None and known.bound is bound and known.own == own and known.memory == memory:
            return known
        frame = self._engine.frame(segment, bound)
        begins = np.concatenate([np.array(memory, np.uint64), self._engine.fixed])
        places = begins[self._engine.slots[bound.rows.storages]] + bound.offsets.astype(np.uint64)
        table = frame.table(bound, places, own[1], own[0], self._engine.is_in_turn(bound))
        if self.seconds is not None:
            return _Prepared(bound, own, memory, frame, table, None)
        self._prepared.pop(segment.first, None)  # until all nodes are set
        self._prepared[segment.first] = prepared = _Prepared(bound, own, memory, frame, table, self._graph(segment, table))
        return prepared

    def _graph(self, segment: Segment, table: LaunchTable) -> GraphExec | None:
        """A graph of these launches, if there are any."""
        if not len(table):
            return None
        key = segment.first, len(table), table.in_turn
        graph, before = self._graphs.get(key), self._tables.pop(key, None)  # what fails leaves nodes that nobody knows
        if graph is None:
            graph = self._graphs[key] = self._driver.instantiate(self._driver.build_graph(
                [table.launch(row) for row in range(len(table))]))
        else:
            self._driver.set_kernels(graph, table, table.changed(before))
        self._tables[key] = table
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

    def _like(self, held: dict[int, Memory], index: int, size: int) -> Memory:
        """Own memory of exactly an array's size: what reads past its end is then seen to."""
        size = max(1, size)
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

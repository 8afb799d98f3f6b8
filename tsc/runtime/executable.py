"""Executable: a compiled model, ready to run at any shape."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from tsc.config import default_threads
from tsc.errors import InputError, LaunchError, ShapeError, TscError
from tsc.runtime.arrays import AnyArray, DeviceArray
from tsc.runtime.bind import Binder, Binding, Shapes
from tsc.runtime.bounds import Bounds
from tsc.runtime.context import Context, ContextPool, Engine, TableEngine, forget_locks_after_fork
from tsc.runtime.drivers.cpu import CpuModule, is_cpu
from tsc.runtime.drivers.platform import open_platform
from tsc.runtime.drivers.protocol import Driver
from tsc.runtime.explain import explain, summary
from tsc.runtime.fitting import fitting
from tsc.runtime.host_program import Ready
from tsc.runtime.interpret import perform
from tsc.runtime.joined import Joiner, Part, joinable, runs_of
from tsc.runtime.memory import address, allocate_at, contiguous, footprint, give_back, placed
from tsc.runtime.notebook import executable_html
from tsc.runtime.outputs import targets_of
from tsc.runtime.over_driver import DriverEngine
from tsc.runtime.package import Package
from tsc.runtime.peak import pages, scratch_bytes, upper_bound
from tsc.runtime.plan import Launch, TensorSpec
from tsc.runtime.profile import Profile, profile_of
from tsc.runtime.schema import shown
from tsc.sym import SymExpr

MEMO = 64  # shapes whose sizes are kept
MOST_THREADS = 257  # the caller's and those that cpu_runtime.c starts


def _driver_of(target: str) -> Driver | None:
    """The device that a target's code is for, opened; None for a CPU's."""
    return None if is_cpu(target) else open_platform(target).open()


def thread_count(threads: object) -> int:
    """How many threads a run may use: `threads`, or where that is None as many as this process has cores. Raises InputError for
    what is no whole number or below 1."""
    if threads is None:
        return default_threads()
    if not isinstance(threads, Integral) or isinstance(threads, bool):
        raise InputError(f"threads is a {type(threads).__name__}, expected a whole number, or None for all cores")
    if threads < 1:
        raise InputError(f"threads is {threads}, expected at least 1, or None for all cores")
    return min(int(threads), MOST_THREADS)


class Executable:
    """A compiled model, which `tsc.compile`, `tsc.build` and `tsc.load` make. `run` may be called from many threads at once.

    Args:
        package: Everything that it needs.
        threads: How many cores one run may use (None: all that this process may use).
        driver: The device whose memory and launches to use (None: the target's own).

    Constants that are not yet laid out for kernels are copied into private memory on 2 MB pages. Raises InputError for
    `threads` that are no count, PackageError when no binary of the Package suits this machine or its parts contradict each
    other, LaunchError when the binary does not load.
    """

    def __init__(self, package: Package, threads: int | None = None, driver: Driver | None = None) -> None:
        self._threads = thread_count(threads)
        found = fitting(package)
        self._target, self._plan = found.target, found.plan
        driver = driver or _driver_of(self._target)
        units = self._threads if driver is None else driver.info.multiprocessors
        self._binder, self._bounds = Binder(self._plan, found.bounds, units), found.bounds
        own = placed({name: package.constants[name] for name in self._plan.constants})
        self._package = replace(package, constants={**package.constants, **own})
        self._constants = tuple(self._package.constants[name] for name in self._plan.constants)
        self._engine = self._loaded(driver, found.bounds, found.interface.in_turn)
        self._device = self._engine if isinstance(self._engine, DriverEngine) else None
        self._contexts = ContextPool(self._engine, max(4, 2 * default_threads()))
        self._output_index = {spec.name: i for i, spec in enumerate(self._plan.outputs)}
        self._memo: OrderedDict[Shapes, Binding | Ready] = OrderedDict()
        self._lock = threading.Lock()
        self._runs = self._shapes = self._hits = 0
        forget_locks_after_fork(self)

    def _loaded(self, driver: Driver | None, bounds: Bounds, in_turn: bool) -> Engine:
        """The module, loaded: from here on its code runs."""
        binary = self._package.modules[self._target].binary
        if driver is not None:
            module = driver.load(binary, self._target)
            return DriverEngine(self._binder, bounds, driver, module, self._constants, in_turn)
        places = [address(a) for a in self._constants]
        return TableEngine(self._binder, bounds, CpuModule(binary, self._target), places, self._threads)

    # -- what it is ----------------------------------------------------------------------------------------------------

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Name, dtype and symbolic shape of every input."""
        return self._plan.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Name, dtype and symbolic shape of every output."""
        return self._plan.outputs

    @property
    def launches(self) -> tuple[Launch, ...]:
        """The launches of kernels, in order, with the nodes that each computes."""
        return self._plan.launches

    @property
    def stats(self) -> dict[str, int]:
        """Counts. `groups`: what fusion proposed, of which `split` fitted no schedule and were cut; `compiles`: how often this
        process compiled it (1, or 0 when it was loaded; running never adds one); `shapes` and `memo_hits`: runs whose shape was
        new, or remembered."""
        return {
            **self._package.stats, "compiles": int(self._package.path is None),
            "kernels": len({launch.kernel for launch in self._plan.launches}), "launches": len(self._plan.launches),
            "constant_bytes": sum(a.nbytes for a in self._constants), "threads": self._threads,
            "runs": self._runs, "shapes": self._shapes, "memo_hits": self._hits}

    # -- running -------------------------------------------------------------------------------------------------------

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], out: Mapping[str, Any] | None = None,
            seconds: list[float] | None = None) -> list[Any]:
        """Compute outputs from arrays by input name, as `onnxruntime.InferenceSession.run` does.

        On a GPU feeds, and arrays of `out`, may lie in its memory (DeviceArray, DLPack, CUDA's array interface), among others
        that do not: they are read and written there, and copied only where they begin at no multiple of 16 bytes. If any feed
        does, new results are DeviceArrays, else NumPy's. All is done when this returns, whatever the streams.

        Args:
            output_names: Which outputs, in order (None: all).
            feeds: Arrays by input name. Contiguous ones are read in place, others are copied first; nothing is cast.
            out: Arrays by output name, to write these results into: in place where they are contiguous and no feed lies there.
                They hold anything if the run raises.
            seconds: A zero for each launch: each runs alone and adds its time there.

        Returns:
            The results in order, new arrays but for those of `out`.

        Raises:
            InputError: An input, an output or an array of `out` is wrong, before anything runs; or the data are (an index out
                of bounds).
            ShapeError: A size is, before anything runs.
            LaunchError: Memory is short.
        """
        if self._device is not None:
            return self._run_on(self._device, output_names, feeds, {} if out is None else out, seconds)
        chosen = self._choose(output_names)
        given: list[Any] = self._binder.arrays(feeds)
        binding = self._binding(self._binder.shapes(given))
        arrays: list[AnyArray] = [contiguous(a, "a copy of an input") for a in given]
        targets = None if out is None else targets_of(out, self._plan.outputs, self._binder.dtypes, binding.outputs, given)
        if self._package.mapped is not None:
            self._package.mapped.check()
        results, places = self._results(binding, arrays, {} if targets is None else targets.direct)
        context = self._contexts.take()
        try:
            self._begin(context, binding, arrays, results, places)
            context.seconds = seconds
            perform(self._binder, context, binding, results)
        finally:
            context.seconds = None
            self._contexts.give(context)
        if targets is not None:
            targets.finish(results, self._plan.outputs)
        made = [result for result in results if result is not None]
        return made if chosen is None else [made[i] for i in chosen]

    def run_many(self, output_names: Sequence[str] | None, requests: Sequence[Mapping[str, Any]],
                 return_exceptions: bool = False) -> list[Any]:
        """Compute outputs for several requests of any sizes at once, each as though it ran alone, to the last bit.

        Nothing is padded: kernels that compute row by row run once over the rows of all requests, others once for each, or for
        those of equal sizes (`runtime/joined.py`). That pays where requests are small; on a GPU, and where a model branches or
        loops, they run one after the other.

        Args:
            output_names: Which outputs, in order (None: all).
            requests: Feeds, as `run` takes them.
            return_exceptions: Whether the error of a request stands in the place of its results, the others having theirs.

        Returns:
            What `run` returns, for each request: a list of arrays, which may be parts of larger ones.

        Raises:
            InputError: A request is wrong, or its data are; it is named by its number, from 0.
            ShapeError: As `run`.
            LaunchError: As `run`.
        """
        chosen, joiner = self._choose(output_names), self._joiner
        if not isinstance(requests, Sequence) or isinstance(requests, str | bytes):
            raise InputError(f"requests are a list of dicts from input names to arrays, not a {type(requests).__name__}")
        found: list[Any] = [None] * len(requests)

        def each(numbers: Iterable[int], do: Callable[[int], Any]) -> None:
            for number in numbers:
                try:
                    found[number] = do(number)
                except TscError as error:
                    if not return_exceptions:
                        raise type(error)(f"request {number}: {error}") from error
                    found[number] = error

        given, parts = dict[int, list[AnyArray]](), dict[int, Part]()

        def taken(number: int) -> None:
            if joiner is not None:
                own = self._binder.arrays(requests[number])
                given[number], parts[number] = own, joiner.part(self._sizes(own))

        each(range(len(requests)), taken)
        for numbers in runs_of(parts):
            own = self._run_joined(joiner, [parts[k] for k in numbers], [given[k] for k in numbers]) if joiner else None
            for number, results in zip(numbers, own or ()):
                found[number] = results if chosen is None else [results[i] for i in chosen]
        each((k for k, own in enumerate(found) if own is None), lambda k: self.run(output_names, requests[k]))
        return found

    @cached_property
    def _joiner(self) -> Joiner | None:
        """What makes one run of several requests; None where that gains nothing."""
        engine = self._engine
        gains = any(joinable(self._binder, self._bounds))
        return Joiner(self._binder, self._bounds, engine) if gains and isinstance(engine, TableEngine) else None

    def _run_joined(self, joiner: Joiner, parts: Sequence[Part], given: Sequence[Sequence[Any]]) -> list[list[Any]] | None:
        """The results of several requests as one run; None where they have to run apart, or one of them is wrong."""
        joined = joiner.run(parts) if len(parts) > 1 else None
        if joined is None:
            return None
        ready, elements = joined
        if self._package.mapped is not None:
            self._package.mapped.check()
        context = self._contexts.take()
        try:
            feeds: list[AnyArray] = [np.concatenate([np.ravel(own[k]) for own in given]) for k in range(len(self.inputs))]
            made = [allocate_at(shape, dtype, "an output") for shape, dtype in zip(ready.outputs, self._binder.dtypes)]
            results: list[AnyArray | None] = [array for array, _ in made]
            context.begin(ready, feeds, results, [place for _, place in made])
            perform(self._binder, context, ready, results)
        except (InputError, LaunchError, MemoryError):  # whose data are wrong, what is too large: each says so for itself
            return None
        finally:
            self._contexts.give(context)
        with self._lock:
            self._runs += len(parts)
        cut = [np.split(np.asarray(result), np.cumsum(own)[:-1]) for result, own in zip(results, elements)]
        return [[own[k].reshape(shape) for own, shape in zip(cut, part.outputs)] for k, part in enumerate(parts)]

    def _run_on(self, device: DriverEngine, output_names: Sequence[str] | None, feeds: Mapping[str, Any],
                out: Mapping[str, Any], seconds: list[float] | None) -> list[AnyArray]:
        """The same on a device: a Context copies what is not there, and makes the results."""
        chosen = self._choose(output_names)
        given = self._binder.arrays(feeds, device.take)
        binding = self._binding(self._binder.shapes(given))
        targets = targets_of(out, self._plan.outputs, self._binder.dtypes, binding.outputs, given, device.take)
        if self._package.mapped is not None:
            self._package.mapped.check()
        results = [targets.direct.get(number) for number in range(len(binding.outputs))]
        context = self._contexts.take()
        try:
            self._begin(context, binding, given, results, [])
            context.seconds = seconds
            perform(self._binder, context, binding, results)
        except BaseException:
            context.leave()
            raise
        finally:
            context.seconds = None
            self._contexts.give(context)
        targets.finish(results, self._plan.outputs)
        made = [result for result in results if result is not None]
        return made if chosen is None else [made[i] for i in chosen]

    def _begin(self, context: Context, binding: Binding | Ready, feeds: list[AnyArray], results: list[AnyArray | None],
               places: list[int]) -> None:
        try:
            context.begin(binding, feeds, results, places)
        except LaunchError as error:
            needed = f"{binding.arena_bytes} bytes are needed, and {binding.scratch_bytes} for each thread,"
            raise self._binder.short(needed, self._dims(feeds)) from error

    def _dims(self, feeds: Sequence[AnyArray]) -> dict[str, int]:
        return dict(zip(self._binder.dims, self._sizes(feeds)))

    def _sizes(self, feeds: Sequence[AnyArray]) -> tuple[int, ...]:
        return tuple(self._binder.sizes(self._binder.shapes(feeds)))

    def _results(self, binding: Binding | Ready, feeds: Sequence[AnyArray],
                 given: Mapping[int, Any]) -> tuple[list[AnyArray | None], list[int]]:
        """The outputs and where they lie, as far as their shapes are known: those that are `given`, and new ones."""
        results: list[AnyArray | None] = []
        places: list[int] = []
        try:
            for shape, dtype in zip(binding.outputs, self._binder.dtypes):
                target = given.get(len(results)) if given else None
                made, place = ((target, address(target)) if target is not None else
                               (None, 0) if shape is None else allocate_at(shape, dtype, "an output"))
                results.append(made)
                places.append(place)
            return results, places
        except LaunchError as error:
            size = sum(math.prod(shape or (0,)) * dtype.itemsize for shape, dtype in zip(binding.outputs, self._binder.dtypes))
            raise self._binder.short(f"the outputs need {size} bytes", self._dims(feeds)) from error

    def to_device(self, array: Any) -> DeviceArray:
        """A copy of an array in the GPU's memory, to feed runs with. Raises InputError where this runs on a CPU, or that is no
        array of numbers; LaunchError when memory is short."""
        if self._device is None:
            raise InputError(f"this model runs on '{self._target}', where NumPy's arrays are used where they are; feed them")
        return self._device.put(array)

    def profile(self, feeds: Mapping[str, Any], repeat: int = 5) -> Profile:
        """Time each launch alone, `repeat` times over, and keep each one's best. Printed, the result is a table: kernels, the
        nodes they compute, calls, milliseconds, share. Other runs are not slowed. Raises as `run` does."""
        if repeat < 1:
            raise InputError(f"repeat is {repeat}, expected at least 1")
        self.run(None, feeds)  # errors, and memory touched for the first time
        launches = self._plan.launches
        best, whole = [float("inf")] * len(launches), float("inf")
        for _ in range(repeat):
            begin = time.perf_counter()
            self.run(None, feeds)
            whole = min(whole, time.perf_counter() - begin)
            seconds = [0.0] * len(launches)
            self.run(None, feeds, seconds=seconds)
            best = list(map(min, best, seconds))
        return profile_of(launches, best, whole, self._threads)

    def _choose(self, names: Sequence[str] | None) -> list[int] | None:
        if names is None or (isinstance(names, list | tuple) and not names):
            return None
        if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
            given = f"['{names}']" if isinstance(names, str) else f"['{next(iter(self._output_index), 'y')}'] or None for all"
            raise InputError(f"output names are a list of strings: give {given}, not {shown(names)}")
        for name in names:
            if name not in self._output_index:
                known = ", ".join(f"'{n}'" for n in self._output_index)
                raise InputError(f"there is no output '{name}'; this model's outputs are {known}")
        return [self._output_index[name] for name in names]

    def _binding(self, shapes: Shapes) -> Binding | Ready:
        with self._lock:
            self._runs += 1
            known = self._memo.get(shapes)
            if known is not None:
                self._memo.move_to_end(shapes)
                self._hits += 1
                return known
        binding = self._engine.bind(shapes) or self._binder.bind(self._binder.sizes(shapes))
        with self._lock:
            self._shapes += 1
            self._memo[shapes] = binding
            if len(self._memo) > MEMO:
                self._memo.popitem(last=False)
        return binding

    def prepare(self, concurrency: int = 1, **dims: int) -> None:
        """Allocate memory for `concurrency` runs at once, at the sizes `dims` or, without any, at the upper ends of the
        declared ranges. Raises ShapeError when a range has no upper end."""
        if not dims:
            arena, scratch = self._bound(self._plan.arena_bytes), self._bound(self._scratch_bytes)
        else:
            binding = self._binder.bind(self._binder.given(dims))
            arena, scratch = binding.arena_bytes, self._scratch(binding)
        contexts = [self._contexts.take() for _ in range(min(concurrency, self._contexts.limit))]
        try:
            for context in contexts:
                context.reserve(arena, scratch)
        finally:
            for context in contexts:
                self._contexts.give(context)

    def _scratch(self, binding: Binding) -> int:
        """The most scratch that a worker needs at one shape; a GPU is one."""
        known = binding.whole is not None and not self._engine.is_gpu
        return binding.scratch_bytes if known else self._bound(self._scratch_bytes, binding.dims)

    @property
    def _scratch_bytes(self) -> SymExpr:
        return scratch_bytes(self._plan, together=self._engine.is_gpu)

    @property
    def _workers(self) -> int:
        return 1 if self._engine.is_gpu else self._threads

    def _bound(self, expr: SymExpr, dims: Mapping[str, int] | None = None) -> int:
        high = upper_bound(self._plan, expr, dims)
        if high is None:
            known = {name for name, size in self._plan.ranges.items() if size.hi is not None} if dims is None else dims.keys()
            loose = ", ".join(sorted(expr.dims() - known))
            raise ShapeError(f"no upper end is declared for {loose}; give sizes to prepare() or compile with ranges")
        return high

    def trim(self) -> int:
        """Give back the memory that runs have left for later runs, and forget the sizes of all shapes; runs that are under way
        keep theirs. Returns the bytes given back; the next run allocates what it needs again."""
        with self._lock:
            self._memo.clear()
        if self._joiner is not None:
            self._joiner.part.cache_clear()
        total = self._contexts.trim()
        give_back()
        return total

    def after_fork(self) -> None:
        """In a child: the thread that held the lock, if any did, is not there."""
        self._lock = threading.Lock()

    # -- questions -----------------------------------------------------------------------------------------------------

    def peak_bytes(self, **dims: int) -> int | str:
        """The most bytes that one run allocates beside weights, inputs, outputs and the stacks of threads: the arena and
        scratch for each thread (on a GPU for all blocks), in whole pages, and the table of launches.

        With the size of every Dim, an int; without any, the upper bound over the declared ranges, or the expression as text
        when a range is open. Raises ShapeError for a missing, unknown or out-of-range Dim, and where a computed size is open.
        """
        if dims:
            binding = self._binder.bind(self._binder.given(dims))
            arena, scratch = footprint(binding.arena_bytes), footprint(self._workers * self._scratch(binding))
            return arena + scratch + self._engine.table_bytes + 8 * self._threads
        total = (pages(self._plan.arena_bytes) + pages(self._workers * self._scratch_bytes) + self._engine.table_bytes
                 + 8 * self._threads)
        high = upper_bound(self._plan, total)
        return str(total) if high is None else high

    def explain(self, **dims: int) -> str:
        """What runs, where its memory is, and what was decided at compile time and why; with sizes, at that shape."""
        binding = self._binder.bind(self._binder.given(dims)) if dims else None
        return explain(self._package, self._target, self._threads, binding, self.peak_bytes(**dims))

    def __repr__(self) -> str:
        """What it takes and gives, and what it is made of, in a few lines."""
        return f"<{summary(self._package, self._target, self._threads)}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: inputs, outputs, memory, and the kernels with what flows between them, as inline SVG."""
        return executable_html(self._package, self._target, self._threads, self.peak_bytes())

    def save(self, path: str | Path) -> None:
        """Write the Package, whole or not at all. Raises PackageError when the place cannot be written."""
        self._package.write(path)

"""Times of a kernel's Variants on a device, through the Driver protocol: on random data, interleaved, robust against outliers.

Before any time counts, a Variant's values are compared with those that te gives, in float64, at small sizes; at the sizes that
are measured all Variants that sum in one order have to give the same bits, and others what is near.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tsc.errors import InternalError, LaunchError
from tsc.plan.kernel import Kernel
from tsc.plan.pack import lay_out
from tsc.runtime.drivers.protocol import ONE, Arguments, Driver, Function, GraphExec, Launch, Memory
from tsc.runtime.memory import HUGE_PAGE, Array, address, layout, reserve, view
from tsc.sym import SymExpr
from tsc.te.compute import Compute, Program
from tsc.te.evaluate import evaluate
from tsc.te.expr import Buffer

#: Rounds in which each Variant is timed once, at most and, of one that took so many seconds in them, at least.
ROUNDS, FEWEST, ENOUGH = 9, 3, 0.05
#: How often what a round and a Variant add to a time is told anew.
_SWEEPS = 10
#: Seconds that such a time takes at least, and the most launches of one.
LEAST, MOST_LAUNCHES = 3e-4, 2000
#: Constants are read from copies in turn that together are larger than caches: in a model others are read between two launches.
COLD_BYTES = 1 << 26
#: A Variant that takes so many times as long as the fastest, and so each of so many times, is timed no further.
HOPELESS, TRIES = 8.0, 3
#: Of an error, relative to the largest value.
TOLERANCE = 1e-4
#: Instances that te evaluates in some seconds.
MOST_EVALUATED = 1 << 26

Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Trial:
    """What is measured: the Variants of a `kernel` that was built into a `binary` for a `target`, and the Program they compute.
    `constants` are the buffers that stay as they are from run to run."""

    program: Program
    kernel: Kernel
    binary: bytes
    target: str
    constants: frozenset[str] = frozenset()


class Bench:
    """A Trial's kernel at some sizes, with data, on a device. Raises LaunchError where the device has no room for it."""

    def __init__(self, driver: Driver, trial: Trial, functions: Mapping[str, Function], sizes: Sizes, seed: int = 0) -> None:
        self._driver, self._kernel, self._functions, self._sizes = driver, trial.kernel, functions, sizes
        self.configs = trial.kernel.configs
        rng = np.random.default_rng(seed)
        self.inputs = {b.name: _random(_at(b, sizes), rng) for b in trial.program.inputs}
        read = [_at(b, sizes) for b in trial.kernel.buffers if b.name not in trial.kernel.outputs]
        laid = {b.name: lay_out(b.name, self.inputs[b.name].reshape(_numbers(b.shape)), b) for b in read}
        fixed = {name: array for name, array in laid.items() if name in trial.constants}
        size = sum(array.nbytes for array in fixed.values())
        turns = max(1, min(64, -(-COLD_BYTES // size))) if size else 1
        weights = self._held({f"{turn} {name}": array for turn in range(turns) for name, array in fixed.items()})
        self._outputs = {b.name: _at(b, sizes) for b in trial.kernel.buffers if b.name in trial.kernel.outputs}
        others = self._held({name: array for name, array in laid.items() if name not in fixed} | {
            b.name: np.zeros(_bytes(b), np.uint8) for b in self._outputs.values()})
        self._written = {name: others[name] for name in self._outputs}
        self._copies = [others | {name: weights[f"{turn} {name}"] for name in fixed} for turn in range(turns)]
        self._temporaries = [[driver.allocate(max(1, size.evaluate(sizes))) for size in variant.temporaries]
                             for variant in trial.kernel.interface.variants]
        self._status = driver.allocate(4)
        self._stream = driver.create_stream()
        self._start, self._stop = (driver.create_event(timing=True) for _ in range(2))

    def values(self, variant: int) -> dict[str, Array]:
        """What a Variant writes. Raises LaunchError where it finds the data wrong, which they are not."""
        driver, stream = self._driver, self._stream
        for memory in (*self._written.values(), self._status):
            driver.fill(memory, 0, stream)
        for launch in self._launches(variant, 0):
            driver.launch(launch, stream)
        status = np.zeros(1, np.int32)
        driver.download(status, self._status, stream)
        found = {b.name: np.empty(_numbers(b.shape), b.dtype) for b in self._outputs.values()}
        for name, array in found.items():
            if array.nbytes:
                driver.download(array, self._written[name], stream)
        driver.synchronize(stream)
        if status[0]:
            raise LaunchError(f"it finds its data wrong (status {status[0]})")
        return found

    def times(self, variants: Sequence[int], begins: Callable[[int], None], enough: float = ENOUGH) -> dict[int, float]:
        """The seconds that each of the Variants takes; `begins` is told which one runs. One that took `enough` seconds is timed
        in the fewest rounds."""
        graphs: dict[int, tuple[GraphExec, int]] = {}
        once: dict[int, float] = {}
        for variant in variants:
            begins(variant)
            graph = self._graph(variant, 1)
            self._timed(graph)
            once[variant] = self._timed(graph)
        within = HOPELESS * min(once.values(), default=0)
        for variant in (v for _ in range(1, TRIES) for v in variants if once[v] > within):
            begins(variant)
            once[variant] = min(once[variant], self._timed(self._graph(variant, 1)))
        lasting = [variant for variant in variants if once[variant] <= within]
        for variant in lasting:
            count = max(1, min(MOST_LAUNCHES, math.ceil(LEAST / max(once[variant], 1e-9))))
            graphs[variant] = self._graph(variant, count), count
        found = np.full((ROUNDS, len(lasting)), np.nan)
        for number in range(ROUNDS):
            for turn in range(len(lasting)):
                place = (number + turn) % len(lasting)
                graph, count = graphs[lasting[place]]
                if number >= FEWEST and np.nansum(found[:, place]) * count > enough:
                    continue
                begins(lasting[place])
                found[number, place] = self._timed(graph) / count
        return once | dict(zip(lasting, settled(found).tolist()))

    def _timed(self, graph: GraphExec) -> float:
        driver, stream = self._driver, self._stream
        driver.record(self._start, stream)
        driver.launch_graph(graph, stream)
        driver.record(self._stop, stream)
        driver.synchronize(self._stop)
        return driver.elapsed(self._start, self._stop) / 1e3

    def _graph(self, variant: int, count: int) -> GraphExec:
        launches = [launch for turn in range(count) for launch in self._launches(variant, turn)]
        return self._driver.instantiate(self._driver.build_graph(launches))

    def _launches(self, variant: int, turn: int) -> Iterator[Launch]:
        kernel, chosen = self._kernel, self._kernel.interface.variants[variant]
        copy = self._copies[turn % len(self._copies)]
        memories = [copy[b.name] for b in kernel.buffers] + self._temporaries[variant]
        numbers = [np.int64(self._sizes[name]) for name in kernel.sizes]
        for call in chosen.calls:
            own = [np.uint64(memories[number].value) for number in call.args]
            args = Arguments([*own, *numbers, np.uint64(self._status.value)])
            blocks = call.blocks.evaluate(self._sizes)
            if blocks:
                yield Launch(self._functions[call.function], (blocks, 1, 1), ONE, args, call.scratch.evaluate(self._sizes))

    def _held(self, arrays: Mapping[str, Array]) -> dict[str, Memory]:
        """Memory of the device with these contents. Where the device is the host it is one block on 2 MB pages, as weights and
        the arenas of large models are: on small ones a kernel that walks far is slower than it would be there."""
        driver = self._driver
        if driver.dlpack_device == (1, 0):
            offsets, total = layout(arrays)
            block, held = reserve(max(total, 2 * HUGE_PAGE), "what is measured"), {}
            for name, array in arrays.items():
                place = view(block, offsets[name], array.dtype, array.shape)
                place[...] = array
                held[name] = driver.adopt(address(place), max(1, array.nbytes), block)
            return held
        held = {name: driver.allocate(max(1, array.nbytes)) for name, array in arrays.items()}
        for name, memory in held.items():
            driver.upload(memory, np.ascontiguousarray(arrays[name]), driver.default_stream)
        driver.synchronize()
        return held


def settled(times: NDArray[np.float64]) -> NDArray[np.float64]:
    """The time of each Variant (a column) from rounds (rows) in which it was timed, or was not (NaN). A machine that does other
    things beside has slow spells, which slow what runs in a round alike: a time is its Variant's times its round's. In turn
    lower quartiles tell what is the rounds', since spells only slow, and medians what is the Variants' (a polish as in Tukey,
    Exploratory Data Analysis, 1977)."""
    rest = np.log(times[~np.isnan(times).all(axis=1)])
    if not rest.size:
        return np.empty(times.shape[1])
    own, spells = np.zeros(rest.shape[1]), np.zeros(rest.shape[0])
    for _ in range(_SWEEPS):
        for sums, axis, share in ((spells, 1, 0.25), (own, 0, 0.5)):
            part = np.nanquantile(rest, share, axis=axis, keepdims=True)
            sums += part.ravel()
            rest = rest - part
    return np.exp(own + np.quantile(spells, 0.25))


def functions_of(driver: Driver, trial: Trial) -> dict[str, Function]:
    """The functions of a Trial's binary, loaded."""
    module = driver.load(trial.binary, trial.target)
    return {name: driver.function(module, name) for name in trial.kernel.sources}


def wrong_values(driver: Driver, trial: Trial, functions: Mapping[str, Function], sizes: Sizes, variants: Sequence[int],
                 begins: Callable[[int], None]) -> dict[int, str]:
    """Why some of the Variants cannot be used, by their numbers: what is wrong with their values at some sizes. Where te would
    take minutes nothing is said: all of them are compared with the first, whose loops were validated when it was compiled."""
    if sum(_instances(compute, sizes) for compute in trial.program.computes) > MOST_EVALUATED:
        return {}
    bench = Bench(driver, trial, functions, sizes)
    expected = evaluate(trial.program, bench.inputs, sizes, "float64")
    found: dict[int, str] = {}
    for variant in variants:
        begins(variant)
        try:
            values = bench.values(variant)
        except LaunchError as error:
            found[variant] = str(error)
            continue
        for name, array in values.items():
            if not _close(array, expected[name]):
                found[variant] = f"wrong values of {name} at {', '.join(f'{k}={v}' for k, v in sizes.items())}"
    return found


def other_bits(bench: Bench, variants: Sequence[int], begins: Callable[[int], None]) -> dict[int, str]:
    """Which of the Variants give other bits than the first that sums in the same order, or values not near the first's."""
    found: dict[int, str] = {}
    firsts: dict[int, dict[str, Array]] = {}
    for variant in variants:
        begins(variant)
        values = bench.values(variant)
        first = firsts.setdefault(bench.configs[variant].chunk, values)
        for name, array in values.items():
            if array.tobytes() != first[name].tobytes():
                found[variant] = f"other bits of {name} than the first Variant that sums in the same order"
            elif not _close(array, next(iter(firsts.values()))[name]):
                found[variant] = f"other values of {name} than the first Variant"
    return found


def _instances(compute: Compute, sizes: Sizes) -> int:
    return math.prod(axis.extent.evaluate(sizes) for axis in (*compute.axes, *compute.reduce_axes))


def _close(found: Array, expected: Array) -> bool:
    if found.shape != expected.shape:
        return False
    if found.dtype.kind != "f":
        return np.array_equal(found, expected)
    scale = float(np.abs(expected[np.isfinite(expected)]).max(initial=1e-3))
    with np.errstate(invalid="ignore"):
        near = np.abs(found.astype(np.float64) - expected) <= TOLERANCE * scale
    return bool((near | (found == expected) | (np.isnan(found) & np.isnan(expected))).all())


def _random(buffer: Buffer, rng: np.random.Generator) -> Array:
    """Data of a buffer: normal numbers; whole numbers are 0 or 1, since they may be indices."""
    shape = _numbers(buffer.shape)
    if np.dtype(buffer.dtype).kind == "f":
        return rng.standard_normal(shape, np.float32).astype(buffer.dtype, copy=False)
    return rng.integers(0, 2, shape).astype(buffer.dtype)


def _at(buffer: Buffer, sizes: Sizes) -> Buffer:
    return replace(buffer, shape=tuple(SymExpr.of(extent.evaluate(sizes)) for extent in buffer.shape))


def _numbers(shape: Sequence[SymExpr]) -> tuple[int, ...]:
    numbers = [extent.as_int() for extent in shape]
    if None in numbers:
        raise InternalError(f"a measured buffer has the shape {shape}, which has no numbers")
    return tuple(n or 0 for n in numbers)


def _bytes(buffer: Buffer) -> int:
    return math.prod(_numbers(buffer.stored)) * np.dtype(buffer.dtype).itemsize

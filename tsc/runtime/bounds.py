"""A checked plan's conditions on its numbers: at each new shape those of its memory, at each new size those of its launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tsc.errors import PackageError
from tsc.runtime.interface import KernelInterface, wrong_sizes
from tsc.runtime.lifetimes import lifetimes
from tsc.runtime.memory import ALIGNMENT
from tsc.runtime.plan import Launch, Plan
from tsc.runtime.schema import MAX_NUMBER
from tsc.runtime.segments import Segment
from tsc.runtime.tape import Tape

#: At most so many pairs of values may be in the arena at the same time.
MAX_PAIRS = 1 << 22


@dataclass(frozen=True, slots=True)
class Layout:
    """The memory plan at one shape: offset and bytes of each storage (bytes of inputs, outputs and constants too, 0 of outputs
    whose shape is not known before they are made), and the bytes of each arena. `at` is the shape, for errors."""

    at: str
    offsets: Sequence[int]
    bytes: Sequence[int]
    arenas: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Numbers:
    """A Segment at its sizes: `sizes` of each launch, `blocks` and `scratch` of each of its calls, bytes of each copy, and of
    every storage."""

    at: str
    sizes: Sequence[Sequence[int]]
    blocks: Sequence[Sequence[int]]
    scratch: Sequence[Sequence[int]]
    copies: Sequence[int]
    bytes: Sequence[int]


class Bounds:
    """A checked plan's conditions on its numbers. `constants` are the bytes of each constant, in the plan's order."""

    def __init__(self, plan: Plan, constants: Sequence[int], kernels: Mapping[str, KernelInterface], where: str) -> None:
        self._plan, self._where = plan, where
        self.constants = tuple(constants)
        self.kernels = kernels
        self._calls = {name: _Call(kernels[name]) for name in {launch.kernel for launch in plan.launches}}
        self.first, self.second = _live_together(plan, where)
        self._in_arena = [i for i, storage in enumerate(plan.storages) if storage.kind == "arena"]

    def wrong(self, problem: str, at: str) -> PackageError:
        """That the plan has a problem at these sizes."""
        return PackageError(f"{self._where} {problem}{f' at {at}' if at else ''}; compile it again")

    def check_layout(self, at: Layout) -> None:
        """Raise PackageError where a storage does not lie in its arena, or two that are alive at once share memory."""
        if not _sizes_of_memory((*at.offsets, *at.bytes, *at.arenas.values())):
            raise self.wrong("has a size that no memory has", at.at)
        for index in self._in_arena:
            size = at.arenas[self._plan.storages[index].space]
            if at.offsets[index] % ALIGNMENT or at.offsets[index] + at.bytes[index] > size:
                raise self.wrong(f"has storage {index} outside the arena", at.at)
        begins, lengths = np.array(at.offsets, np.int64), np.array(at.bytes, np.int64)
        ends = begins + lengths
        a, b = self.first, self.second
        if ((begins[a] < ends[b]) & (begins[b] < ends[a]) & (lengths[a] > 0) & (lengths[b] > 0)).any():
            raise self.wrong("keeps two values in the same place at once", at.at)

    def check(self, segment: Segment, at: Numbers) -> list[bool]:
        """Which launches have anything to write. Raises PackageError where a launch or copy would touch what is not its own at
        these numbers."""
        if not _sizes_of_memory((*(n for each in (*at.blocks, *at.scratch) for n in each), *at.copies, *at.bytes)):
            raise self.wrong("has a size that no memory has", at.at)
        known: dict[tuple[str, tuple[int, ...]], str | Needs] = {}
        writes: list[bool] = []
        for number, launch in enumerate(segment.launches):
            key = (launch.kernel, tuple(at.sizes[number]))
            if key not in known:
                known[key] = self.needs(*key)
            needs = known[key]
            problem = needs if isinstance(needs, str) else self._misfit(launch, number, needs, at)
            if isinstance(needs, str) or problem:
                raise self.wrong(f"launches '{launch.kernel}' for node '{launch.node}', but {problem}", at.at)
            writes.append(needs.writes)
        for copy, size in zip(segment.copies, at.copies):
            exact = self._plan.storages[copy.target].kind == "output"
            if size > min(at.bytes[copy.source], at.bytes[copy.target]) or (exact and size != at.bytes[copy.target]):
                raise self.wrong(f"copies {size} bytes from {at.bytes[copy.source]} to {at.bytes[copy.target]}", at.at)
        return writes

    def needs(self, kernel: str, sizes: tuple[int, ...]) -> str | Needs:
        """What a kernel needs at these sizes, or why it must not be called with them."""
        return self._calls[kernel].needs(sizes)

    def _misfit(self, launch: Launch, number: int, needs: Needs, at: Numbers) -> str | None:
        for call, blocks, scratch in zip(launch.calls, at.blocks[number], at.scratch[number]):
            right, least = needs.calls[call.function]
            if blocks != right or scratch < least:
                return f"with {blocks} blocks and {scratch} bytes of scratch, not {right} and {least}"
        for variant in launch.variants:
            for index, needed in zip(launch.temporaries, needs.temporaries[variant.calls[0].function]):
                if needed > at.bytes[index]:
                    return f"a temporary of it has {needed} bytes and storage {index} {at.bytes[index]}"
        for index, needed in zip(launch.args, needs.buffers):
            exact = self._plan.storages[index].kind == "output"
            if needed > at.bytes[index] or (exact and needed != at.bytes[index]):
                return f"its buffer has {needed} bytes and storage {index} {at.bytes[index]}"
        return None


@dataclass(frozen=True, slots=True)
class Needs:
    """The blocks and the scratch of each call of a kernel by its function, the bytes of the temporaries of each variant by its
    first function, and those of each buffer. `writes`: one that the kernel writes has an element."""

    calls: Mapping[str, tuple[int, int]]
    temporaries: Mapping[str, tuple[int, ...]]
    buffers: tuple[int, ...]
    writes: bool


class _Call:
    """What one kernel needs at given sizes."""

    def __init__(self, interface: KernelInterface) -> None:
        self._interface = interface
        self._functions = [call for variant in interface.variants for call in variant.calls]
        calls = [size for call in self._functions for size in (call.blocks, call.scratch)]
        temporaries = [size for variant in interface.variants for size in variant.temporaries]
        self._tape = Tape([name for name, _ in interface.sizes], (*calls, *temporaries, *(b.bytes for b in interface.buffers)))

    def needs(self, sizes: tuple[int, ...]) -> str | Needs:
        """What it needs, or why it must not be called with these sizes."""
        wrong = wrong_sizes(self._interface, sizes)
        if wrong:
            return wrong
        numbers = iter(self._tape.evaluate(sizes))
        calls = {call.function: (next(numbers), next(numbers)) for call in self._functions}
        temporaries = {variant.calls[0].function: tuple(next(numbers) for _ in variant.temporaries)
                       for variant in self._interface.variants}
        buffers = tuple(numbers)
        return Needs(calls, temporaries, buffers, any(b.written and n for b, n in zip(self._interface.buffers, buffers)))


def _sizes_of_memory(values: Sequence[int]) -> bool:
    return min(values, default=0) >= 0 and max(values, default=0) <= MAX_NUMBER


def _live_together(plan: Plan, where: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pairs of storages of one arena that hold a value at the same time."""
    spans = lifetimes(plan.body)
    known = sorted(s for s in spans if plan.storages[s].kind == "arena")
    spaces = {space: number for number, space in enumerate(plan.arenas)}
    space = np.array([spaces[plan.storages[i].space] for i in known], np.int64)
    index = np.array(known, np.int64)
    begins, ends = (np.array([spans[i][k] for i in known], np.int64) for k in (0, 1))
    rows: list[NDArray[np.int64]] = [np.empty((2, 0), np.int64)]
    count = 0
    for k in range(len(index)):
        together = (begins[k] <= ends[k + 1:]) & (begins[k + 1:] <= ends[k]) & (space[k + 1:] == space[k])
        others = index[k + 1:][together]
        count += len(others)
        if count > MAX_PAIRS:
            raise PackageError(f"{where} keeps too many values at once; compile it again")
        rows.append(np.stack([np.full_like(others, index[k]), others]))
    first, second = np.concatenate(rows, axis=1)
    return first, second


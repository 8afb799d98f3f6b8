"""Whether a plan may run: once for its structure, before any code is mapped, and at each new shape for its numbers.

What holds here keeps every access of a kernel inside memory that is its own, as far as the kernels are those that the module's
own table describes: a plan from a stranger can then compute something else, but touch nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from tsc.errors import PackageError, ShapeError
from tsc.runtime.interface import KernelInterface, ModuleInterface, wrong_sizes
from tsc.runtime.memory import ALIGNMENT, Array
from tsc.runtime.places import binding_places
from tsc.runtime.plan import Launch, Plan
from tsc.runtime.schema import MAX_NUMBER
from tsc.runtime.tape import Tape
from tsc.sym import ZERO, SymExpr

#: At most so many pairs of values may be in the arena at the same time.
MAX_PAIRS = 1 << 22


@dataclass(frozen=True, slots=True)
class Numbers:
    """A plan at one shape: `sizes`, `blocks` and `scratch` of each launch, `offsets` and `bytes` of each storage (bytes of
    inputs, outputs and constants too), bytes of each copy and of the arena. `at` is the shape, for errors."""

    at: str
    sizes: Sequence[Sequence[int]]
    blocks: Sequence[int]
    scratch: Sequence[int]
    offsets: Sequence[int]
    bytes: Sequence[int]
    copies: Sequence[int]
    arena: int


# -- structure -------------------------------------------------------------------------------------------------------

def check_plan(plan: Plan, constants: Mapping[str, Array], module: ModuleInterface, where: str) -> None:
    """Raise PackageError, naming `where`, for a plan that refers to what is not there, writes what it must not, reads what
    nobody wrote, or calls a kernel otherwise than the module's table says."""
    for problem in _problems(plan, constants, module):
        raise PackageError(f"{where} {problem}; compile it again")


def _problems(plan: Plan, constants: Mapping[str, Array], module: ModuleInterface) -> Iterator[str]:
    yield from (f"lacks constant '{name}'" for name in plan.constants if name not in constants)
    if len({spec.name for spec in plan.inputs}) < len(plan.inputs):
        yield "has two inputs of one name"
    limits = {"input": len(plan.inputs), "output": len(plan.outputs), "constant": len(plan.constants), "arena": 1}
    for storage in plan.storages:
        if not 0 <= storage.index < limits.get(storage.kind, 0):
            yield f"has a storage {storage.kind} {storage.index} that does not exist"
        if storage.kind != "arena" and storage.offset != ZERO:
            yield f"begins {storage.kind} {storage.index} somewhere inside"
    used = [a for launch in plan.launches for a in launch.args] + [i for c in plan.copies for i in (c.source, c.target)]
    if any(not 0 <= index < len(plan.storages) for index in used):
        yield "has a launch or copy of a storage that does not exist"
    for name, known in plan.ranges.items():
        if known.lo < 0:
            yield f"lets dim '{name}' be negative"
    loose = frozenset().union(*(expr.dims() for expr in _expressions(plan))) - plan.ranges.keys()
    if loose:
        yield f"has a size '{min(loose)}' that is no dim of it"
    try:
        bound = frozenset().union(*(place.size.dims() for place in binding_places(plan)))
    except ShapeError as error:
        yield f"cannot be run ({error})"
    else:
        unbound = plan.ranges.keys() - bound
        if unbound:
            yield f"has a dim '{min(unbound)}' that no input has"
    for launch in plan.launches:
        yield from _misfits(plan, launch, constants, module)
    yield from _unwritten(plan, module)


def _expressions(plan: Plan) -> Iterator[SymExpr]:
    for spec in (*plan.inputs, *plan.outputs):
        yield from spec.shape
    for guard in plan.guards:
        yield from (guard.left, guard.right)
    for storage in plan.storages:
        yield from (storage.offset, storage.bytes)
    for launch in plan.launches:
        yield from (*launch.sizes, launch.blocks, launch.scratch)
    yield from (copy.bytes for copy in plan.copies)
    yield plan.arena_bytes


def _misfits(plan: Plan, launch: Launch, constants: Mapping[str, Array], module: ModuleInterface) -> Iterator[str]:
    """What a launch gives its kernel that the kernel does not take."""
    interface = module.kernels.get(launch.kernel)
    if interface is None:
        yield f"calls '{launch.kernel}', which is no kernel of its module"
        return
    if len(launch.args) != len(interface.buffers) or len(launch.sizes) != len(interface.sizes):
        yield (f"calls '{launch.kernel}' with {len(launch.args)} buffers and {len(launch.sizes)} sizes, not "
               f"{len(interface.buffers)} and {len(interface.sizes)}")
        return
    for index, use in zip(launch.args, interface.buffers):
        storage = plan.storages[index]
        if use.written and storage.kind not in ("arena", "output"):
            yield f"lets '{launch.kernel}' write into {storage.kind} {storage.index}"
        match storage.kind:
            case "input":
                known = plan.inputs[storage.index].dtype
            case "output":
                known = plan.outputs[storage.index].dtype
            case "constant":
                known = constants[plan.constants[storage.index]].dtype.name
            case _:
                continue
        if known != use.dtype:
            yield f"gives '{launch.kernel}' {storage.kind} {storage.index} of {known} for {use.dtype}"


def _unwritten(plan: Plan, module: ModuleInterface) -> Iterator[str]:
    """Storages that are read before, or outputs that are given without, having been written."""
    written = {i for i, storage in enumerate(plan.storages) if storage.kind in ("input", "constant")}
    for launch in plan.launches:
        uses = module.kernels[launch.kernel].buffers
        if any(index not in written for index, use in zip(launch.args, uses) if not use.written):
            yield f"lets '{launch.kernel}' read what nobody has written"
        written |= {index for index, use in zip(launch.args, uses) if use.written}
    for copy in plan.copies:
        if copy.source not in written or plan.storages[copy.target].kind != "output":
            yield "has a copy of what nobody has written, or to what is no output"
        written.add(copy.target)
    given = {plan.storages[i].index for i in written if plan.storages[i].kind == "output"}
    for index, spec in enumerate(plan.outputs):
        if index not in given:
            yield f"never writes output '{spec.name}'"


# -- numbers ---------------------------------------------------------------------------------------------------------

class Bounds:
    """A checked plan's conditions on its numbers. `constants` are the bytes of each constant, in the plan's order."""

    def __init__(self, plan: Plan, constants: Sequence[int], kernels: Mapping[str, KernelInterface], where: str) -> None:
        self._plan, self._where = plan, where
        self.constants = tuple(constants)
        self._calls = {name: _Call(kernels[name]) for name in {launch.kernel for launch in plan.launches}}
        self._first, self._second = _live_together(plan, where)
        self._in_arena = [i for i, storage in enumerate(plan.storages) if storage.kind == "arena"]

    def check(self, at: Numbers) -> None:
        """Raise PackageError where a launch or copy would touch what is not its own at these numbers."""
        for problem in self._problems(at):
            where = f" at {at.at}" if at.at else ""
            raise PackageError(f"{self._where} {problem}{where}; compile it again")

    def _problems(self, at: Numbers) -> Iterator[str]:
        every = (*at.blocks, *at.scratch, *at.offsets, *at.bytes, *at.copies, at.arena)
        if min(every) < 0 or max(every) > MAX_NUMBER:
            yield "has a size that no memory has"
            return
        for index in self._in_arena:
            if at.offsets[index] % ALIGNMENT or at.offsets[index] + at.bytes[index] > at.arena:
                yield f"has storage {index} outside the arena"
        begins, lengths = np.array(at.offsets, np.int64), np.array(at.bytes, np.int64)
        ends = begins + lengths
        a, b = self._first, self._second
        if ((begins[a] < ends[b]) & (begins[b] < ends[a]) & (lengths[a] > 0) & (lengths[b] > 0)).any():
            yield "keeps two values in the same place at once"
        known: dict[tuple[str, tuple[int, ...]], str | tuple[int, ...]] = {}
        for number, launch in enumerate(self._plan.launches):
            key = (launch.kernel, tuple(at.sizes[number]))
            if key not in known:
                known[key] = self._calls[launch.kernel].needs(key[1])
            problem = self._misfit(launch, number, known[key], at)
            if problem:
                yield f"launches '{launch.kernel}' for node '{launch.node}', but {problem}"
        for copy, size in zip(self._plan.copies, at.copies):
            if size != at.bytes[copy.target] or size > at.bytes[copy.source]:
                yield f"copies {size} bytes from {at.bytes[copy.source]} to {at.bytes[copy.target]}"

    def _misfit(self, launch: Launch, number: int, needs: str | tuple[int, ...], at: Numbers) -> str | None:
        if isinstance(needs, str):
            return needs
        blocks, scratch, *buffers = needs
        if at.blocks[number] != blocks or at.scratch[number] < scratch:
            return f"with {at.blocks[number]} blocks and {at.scratch[number]} bytes of scratch, not {blocks} and {scratch}"
        for index, needed in zip(launch.args, buffers):
            exact = self._plan.storages[index].kind == "output"
            if needed > at.bytes[index] or (exact and needed != at.bytes[index]):
                return f"its buffer has {needed} bytes and storage {index} {at.bytes[index]}"
        return None


class _Call:
    """What one kernel needs at given sizes."""

    def __init__(self, interface: KernelInterface) -> None:
        self._interface = interface
        roots = (interface.blocks, interface.scratch, *(b.bytes for b in interface.buffers))
        self._tape = Tape([name for name, _ in interface.sizes], roots)

    def needs(self, sizes: tuple[int, ...]) -> str | tuple[int, ...]:
        """Its blocks, scratch, and the bytes of each buffer; or why it must not be called with these sizes."""
        return wrong_sizes(self._interface, sizes) or tuple(self._tape.evaluate(sizes))


def _live_together(plan: Plan, where: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pairs of storages of the arena that hold a value at the same time: from the launch that writes it first to the one that
    reads it last."""
    spans: dict[int, tuple[int, int]] = {}
    steps: Iterable[tuple[int, ...]] = (*(launch.args for launch in plan.launches), *((c.source,) for c in plan.copies))
    for step, used in enumerate(steps):
        for storage in used:
            if plan.storages[storage].kind == "arena":
                spans[storage] = (spans.get(storage, (step, step))[0], step)
    known = sorted(spans)
    index = np.array(known, np.int64)
    begins, ends = (np.array([spans[i][k] for i in known], np.int64) for k in (0, 1))
    rows: list[NDArray[np.int64]] = [np.empty((2, 0), np.int64)]
    count = 0
    for k in range(len(index)):
        others = index[k + 1:][(begins[k] <= ends[k + 1:]) & (begins[k + 1:] <= ends[k])]
        count += len(others)
        if count > MAX_PAIRS:
            raise PackageError(f"{where} keeps too many values at once; compile it again")
        rows.append(np.stack([np.full_like(others, index[k]), others]))
    first, second = np.concatenate(rows, axis=1)
    return first, second


def grouped(values: Iterable[int], counts: Iterable[int]) -> list[list[int]]:
    """`values` cut into runs of the given lengths."""
    rest = iter(values)
    return [list(islice(rest, count)) for count in counts]

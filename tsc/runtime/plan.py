"""Plan: what an Executable does for any shape: regions of steps over storages. Types only; all sizes are SymExprs.

A region is a sequence of steps that run one after the other, as far as they wait for each other. A name is bound once (a Dim by
the shape of an input or what it holds, others by what is computed) and is known from there to the end of its region. Names that
these alone tell are *static*: they are bound before anything runs, and the memory plan is made of them only, so that every
storage has one place during a run. What a branch or a trip leaves behind is in storages. A branch's storages may lie where the
other branch's do; what is alive before a Loop and used in it keeps its place until the Loop's end, and so do both halves of
what it carries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Literal, TypeAlias

import numpy as np

from tsc.runtime.cost import Cost
from tsc.sym import ZERO, Guard, Range, SymExpr

PLAN_VERSION = 12
#: No Plan has more steps or storages; nor more inputs, outputs or regions; nor regions so deep in each other.
MAX_STEPS, MAX_NAMES, MAX_NESTING = 1 << 16, 1 << 12, 8
#: No kernel has more variants, and no variant more calls or temporaries.
MAX_VARIANTS, MAX_CALLS = 256, 16
#: No block has more threads, nor bytes of shared memory, on any GPU.
MAX_THREADS, MAX_SHARED = 1024, 1 << 20
#: The memory and the device that are always there.
HOST, CPU = "host", "cpu"

#: The sizes that a Dim may have where nothing is declared of it.
ANY_SIZE = Range(0)

Kind = Literal["input", "output", "constant", "arena"]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A named model input or output. An output's shape may have names that the root region binds while it runs. `contents` are
    the elements of an input that sizes depend on, in steps of 1 / `steps`: they are told before anything runs, as its shape
    is."""

    name: str
    dtype: str
    shape: tuple[SymExpr, ...]
    contents: tuple[SymExpr, ...] = ()
    steps: int = 1

    @property
    def numpy(self) -> np.dtype[Any]:
        """The dtype of its arrays."""
        return numpy_dtype(self.dtype)

    @property
    def stored(self) -> str:
        """The dtype that kernels see."""
        return "uint16" if self.dtype == "bfloat16" else self.dtype


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The dtype of that name. NumPy has no bfloat16: that is ml_dtypes' or, where that is not installed, uint16 for its
    bits."""
    if name == "bfloat16":
        with suppress(ImportError):
            found: np.dtype[Any] = np.dtype(import_module("ml_dtypes").bfloat16)
            return found
        return np.dtype(np.uint16)
    return np.dtype(name)


@dataclass(frozen=True, slots=True)
class Storage:
    """Where a value lives, in the memory `space`: the feed or result number `index`, constant number `index`, or `bytes` bytes
    of the space's arena from `offset` on. Only the arena's need both, of static names."""

    kind: Kind
    index: int = 0
    offset: SymExpr = ZERO
    bytes: SymExpr = ZERO
    space: str = HOST


@dataclass(frozen=True, slots=True)
class Axis:
    """The size of an axis of an input's shape or, behind its axes, an element of its contents."""

    input: int
    axis: int


@dataclass(frozen=True, slots=True)
class Element:
    """Number `index` of the elements of a storage, which are whole numbers or bools (`dtype`)."""

    storage: int
    dtype: str
    index: SymExpr = ZERO


@dataclass(frozen=True, slots=True)
class Bind:
    """A size from outside: the one at which the shape's expression is the Axis's size, or the value of an Element. It must lie
    in `range`, and below `bound` or at it where there is one; `reason` says whose size it is."""

    name: str
    source: Axis | Element
    range: Range = ANY_SIZE
    bound: SymExpr | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Eval:
    """A name for the value of an expression."""

    name: str
    value: SymExpr


@dataclass(frozen=True, slots=True)
class Call:
    """A `function` of a module, run on `blocks` blocks, with `scratch` bytes for each worker. `args` number the kernel's
    buffers, and on from these the temporaries of its Variant. `cost` is what it is expected to take (None: nobody knows). On a
    GPU a block has so many `threads`, and bytes of `shared` memory."""

    function: str
    blocks: SymExpr
    args: tuple[int, ...]
    scratch: SymExpr = ZERO
    cost: Cost | None = None
    threads: int = 1
    shared: int = 0


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run a kernel: `calls`, one after the other, and the bytes of each of the `temporaries` in which they leave
    values for each other."""

    calls: tuple[Call, ...]
    temporaries: tuple[SymExpr, ...] = ()

    def over(self, change: Callable[[SymExpr], SymExpr]) -> Variant:
        """The same with other expressions."""
        calls = (replace(call, blocks=change(call.blocks), scratch=change(call.scratch),
                         cost=None if call.cost is None else call.cost.over(change)) for call in self.calls)
        return Variant(tuple(calls), tuple(map(change, self.temporaries)))


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel on a device. `args` index `Plan.storages`; `sizes` are the kernel's integer parameters in order; `variants` are
    those of the kernel that may run, of which each run takes the one of the least cost (the first, where one has none); storage
    `temporaries[i]` holds number i of the temporaries of whichever that is; `messages[i]` is the data error that status code
    i+1 stands for, in all of them; `nodes` are all that the kernel computes, `node` the one that it is named after. It waits
    for the steps of its own region that `after` numbers (None: for all before it); for a Bind of an Element, an If or a Loop
    before it always."""

    kernel: str
    args: tuple[int, ...]
    sizes: tuple[SymExpr, ...]
    variants: tuple[Variant, ...]
    node: str
    messages: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    device: str = CPU
    after: tuple[int, ...] | None = None
    temporaries: tuple[int, ...] = ()

    @property
    def calls(self) -> tuple[Call, ...]:
        """The Calls of all Variants, one after the other."""
        return tuple(call for variant in self.variants for call in variant.calls)

    @property
    def most_calls(self) -> int:
        """How many Calls the Variant with the most has."""
        return max(len(variant.calls) for variant in self.variants)

    @property
    def most_arguments(self) -> int:
        """How many arguments the Calls of the Variant with the most have."""
        return max(sum(len(call.args) for call in variant.calls) for variant in self.variants)

    @property
    def selects(self) -> bool:
        """Whether there is a choice of Variants."""
        return len(self.variants) > 1 and all(call.cost is not None for call in self.calls)


@dataclass(frozen=True, slots=True)
class Copy:
    """The first `bytes` bytes of one storage to another, which may lie in another memory, from byte `at` of that on. It waits
    as a Launch does."""

    source: int
    target: int
    bytes: SymExpr
    after: tuple[int, ...] | None = None
    at: SymExpr = ZERO


@dataclass(frozen=True, slots=True)
class If:
    """`then` where the condition (a name, or an Element) is not zero, else `otherwise`."""

    condition: str | Element
    then: Region
    otherwise: Region = ()


@dataclass(frozen=True, slots=True)
class Carried:
    """What a Loop hands from trip to trip, in three storages of one size, the last two in the same arena: `current` is a copy
    of `start` before the first trip (both may be the same storage) and is read; every trip writes `next`, which is `current` in
    the trip to follow and after the Loop: the two change places, what is in them does not move but once at the end."""

    start: int
    current: int
    next: int


@dataclass(frozen=True, slots=True)
class Loop:
    """`body`, `trips` times (not at all where that is not positive) or until the Element `condition` is zero, which is looked
    at before each trip. The name `index` counts the trips from 0. What a trip writes is unwritten after it, unless it was
    written before the Loop or is carried; but what the trips together have `filled`, each a part, is written after the Loop."""

    index: str
    trips: SymExpr
    body: Region
    carried: tuple[Carried, ...] = ()
    condition: Element | None = None
    filled: tuple[int, ...] = ()


Step: TypeAlias = Bind | Eval | Guard | Launch | Copy | If | Loop
Region: TypeAlias = tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything needed to run: names and types, the memory plan (the bytes of each space's arena among it), and the steps."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    storages: tuple[Storage, ...]
    constants: tuple[str, ...]
    arenas: dict[str, SymExpr]
    body: Region

    @property
    def ranges(self) -> dict[str, Range]:
        """The Dims: the names that the inputs' shapes tell, with the sizes that each may have."""
        return {step.name: step.range for step in self.body if isinstance(step, Bind) and isinstance(step.source, Axis)}

    @property
    def guards(self) -> tuple[Guard, ...]:
        """The Guards of the root region."""
        return tuple(step for step in self.body if isinstance(step, Guard))

    @property
    def launches(self) -> tuple[Launch, ...]:
        """Every Launch of every region, in the order in which they stand."""
        return tuple(step for step in steps_of(self.body) if isinstance(step, Launch))

    @property
    def functions(self) -> tuple[str, ...]:
        """The functions of all `calls` of `launches`, one after the other."""
        return tuple(call.function for launch in self.launches for call in launch.calls)

    @property
    def copies(self) -> tuple[Copy, ...]:
        """Every Copy of every region, in the order in which they stand."""
        return tuple(step for step in steps_of(self.body) if isinstance(step, Copy))

    @property
    def arena_bytes(self) -> SymExpr:
        """The bytes of the host's arena."""
        return self.arenas.get(HOST, ZERO)


def steps_of(region: Region) -> Iterator[Step]:
    """Every step of a region, each before those inside it."""
    for step in region:
        yield step
        for inner in regions_in(step):
            yield from steps_of(inner)


def regions_in(step: Step) -> tuple[Region, ...]:
    """The regions that a step has: none, a Loop's body, or both of an If."""
    match step:
        case If(then=then, otherwise=otherwise):
            return then, otherwise
        case Loop(body=body):
            return (body,)
    return ()


def is_barrier(step: Step) -> bool:
    """Whether a step waits for all before it, and all after it for it."""
    return isinstance(step, If | Loop) or (isinstance(step, Bind) and isinstance(step.source, Element))


def expressions_of(step: Step) -> Iterator[SymExpr]:
    """The expressions of a step itself, without what is inside it."""
    match step:
        case Bind(source=source, bound=bound):
            yield from _indices(source)
            yield from () if bound is None else (bound,)
        case Eval(value=value):
            yield value
        case Guard(left=left, right=right):
            yield from (left, right)
        case Launch(sizes=sizes, variants=variants, calls=calls):
            yield from sizes
            for call in calls:
                yield from (call.blocks, call.scratch)
                yield from () if call.cost is None else (work.count for work in call.cost.work)
            for variant in variants:
                yield from variant.temporaries
        case Copy(bytes=size, at=at):
            yield from (size, at)
        case If(condition=condition):
            yield from _indices(condition)
        case Loop(trips=trips, condition=ends):
            yield trips
            yield from _indices(ends)


def storages_of(step: Step) -> tuple[int, ...]:
    """The storages that a step itself names."""
    match step:
        case Launch(args=args, temporaries=temporaries):
            return (*args, *temporaries)
        case Copy(source=source, target=target):
            return source, target
        case Bind(source=Element(storage=storage)) | If(condition=Element(storage=storage)):
            return (storage,)
        case Loop(carried=carried, condition=ends, filled=filled):
            read = () if ends is None else (ends.storage,)
            return (*(s for c in carried for s in (c.start, c.current, c.next)), *read, *filled)
    return ()


def _indices(source: object) -> Iterator[SymExpr]:
    if isinstance(source, Element):
        yield source.index


def static_names(plan: Plan) -> dict[str, SymExpr | None]:
    """The names that the inputs' shapes alone tell, in the order in which they are bound: None for a Dim, else its value."""
    found: dict[str, SymExpr | None] = dict.fromkeys(plan.ranges)
    for step in plan.body:
        if isinstance(step, Eval) and step.value.dims() <= found.keys():
            found[step.name] = step.value
    return found

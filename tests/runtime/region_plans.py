"""Plans with regions, written by hand over small kernels, and what they compute according to NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tests.runtime.plans import interface, launched
from tsc.runtime.executable import Executable
from tsc.runtime.plan import (
    HOST,
    Axis,
    Bind,
    Call,
    Carried,
    Copy,
    Element,
    Eval,
    If,
    Launch,
    Loop,
    Plan,
    Region,
    Storage,
    TensorSpec,
    Variant,
)
from tsc.sym import ONE, ZERO, Guard, Range, SymExpr, ceildiv, dim, parse

KERNELS = r"""
#include <stdint.h>
typedef struct { void *const *buffers; const int64_t *sizes; } tsc_args;
#define FLOATS(i) ((float *)a->buffers[i])
#define KERNEL(name) int32_t name(const tsc_args *a, int64_t begin, int64_t end, void *scratch)
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* eight elements a block: y = 2 x + 1; z = x + y; y = x + k */
KERNEL(twice) {
    (void)scratch;
    for (int64_t i = 8 * begin; i < least(8 * end, a->sizes[0]); ++i) FLOATS(1)[i] = 2 * FLOATS(0)[i] + 1;
    return 0;
}
KERNEL(sum) {
    (void)scratch;
    for (int64_t i = 8 * begin; i < least(8 * end, a->sizes[0]); ++i) FLOATS(2)[i] = FLOATS(0)[i] + FLOATS(1)[i];
    return 0;
}
KERNEL(shift) {
    (void)scratch;
    for (int64_t i = 8 * begin; i < least(8 * end, a->sizes[0]); ++i) FLOATS(1)[i] = FLOATS(0)[i] + (float)a->sizes[1];
    return 0;
}
/* the same as twice in two steps */
KERNEL(doubled) {
    (void)scratch;
    for (int64_t i = 8 * begin; i < least(8 * end, a->sizes[0]); ++i) FLOATS(1)[i] = 2 * FLOATS(0)[i];
    return 0;
}
KERNEL(one_more) {
    *(float *)scratch = 1;
    for (int64_t i = begin; i < least(end, a->sizes[0]); ++i) FLOATS(1)[i] = FLOATS(0)[i] + *(float *)scratch;
    return 0;
}
/* how many elements are positive; the first m of them, then zeros; by way of scratch */
KERNEL(count) {
    int64_t *found = scratch;
    *found = 0;
    for (int64_t i = 0; begin < end && i < a->sizes[0]; ++i) *found += FLOATS(0)[i] > 0;
    if (begin < end) *(int64_t *)a->buffers[1] = *found;
    return 0;
}
KERNEL(compact) {
    (void)scratch;
    int64_t j = 0;
    for (int64_t i = 0; begin < end && i < a->sizes[0] && j < a->sizes[1]; ++i)
        if (FLOATS(0)[i] > 0) FLOATS(1)[j++] = FLOATS(0)[i];
    for (; begin < end && j < a->sizes[1]; ++j) FLOATS(1)[j] = 0;
    return 0;
}
/* whether the sum is below a limit; status 1 where the first element is not a number */
KERNEL(below) {
    (void)scratch;
    double sum = 0;
    for (int64_t i = 0; begin < end && i < a->sizes[0]; ++i) sum += FLOATS(0)[i];
    if (begin < end) *(uint8_t *)a->buffers[1] = sum < (double)a->sizes[1];
    return begin < end && a->sizes[0] > 0 && FLOATS(0)[0] != FLOATS(0)[0];
}
"""
N, K, M = dim("n"), dim("k"), dim("m")
EIGHTS = ceildiv(N, 8)

#: Another way to run `twice`, by way of a temporary.
IN_STEPS = Variant((Call("doubled", EIGHTS, (0, 2)), Call("one_more", N, (2, 1), SymExpr.of(4))), (4 * N,))
TWICE = interface("twice", ("float32", N, False), ("float32", N, True), sizes=("n",), blocks=EIGHTS)
INTERFACES = {
    "twice": replace(TWICE, variants=(*TWICE.variants, IN_STEPS)),
    "sum": interface("sum", ("float32", N, False), ("float32", N, False), ("float32", N, True), sizes=("n",), blocks=EIGHTS),
    "shift": interface("shift", ("float32", N, False), ("float32", N, True), sizes=("n", "k"), blocks=EIGHTS),
    "count": interface("count", ("float32", N, False), ("int64", ONE, True), sizes=("n",), scratch=SymExpr.of(8)),
    "compact": interface("compact", ("float32", N, False), ("float32", K, True), sizes=("n", "k")),
    "below": interface("below", ("float32", N, False), ("bool", ONE, True), sizes=("n", "k")),
}
BLOCKS = {"twice": 8, "sum": 8, "shift": 8}


def writes(launch: Launch) -> set[int]:
    """The storages that a Launch writes."""
    return {a for a, use in zip(launch.args, INTERFACES[launch.kernel].buffers) if use.written}


# -- by hand ---------------------------------------------------------------------------------------------------------

def call(kernel: str, *args: int, sizes: Sequence[Any] = (), n: SymExpr = N, **more: Any) -> Launch:
    """A Launch of a kernel over n elements."""
    blocks = ceildiv(n, BLOCKS[kernel]) if kernel in BLOCKS else ONE
    return launched(kernel, args, (n, *map(SymExpr.of, sizes)), blocks, SymExpr.of(8 if kernel == "count" else 0),
                  f"the {kernel}", ("not a number",) if kernel == "below" else (), **more)


@dataclass(slots=True)
class Making:
    """A Plan over x: float32[n], being written: its storages, each of the arena's in a place of its own."""

    outputs: list[TensorSpec] = field(default_factory=list)
    storages: list[Storage] = field(default_factory=lambda: [Storage("input"), Storage("input", 1)])
    end: SymExpr = ZERO

    def arena(self, size: SymExpr = 4 * N) -> int:
        """A storage of the arena: four bytes an element of x, or `size`."""
        self.storages.append(Storage("arena", 0, self.end, size))
        self.end = self.end + 64 * ceildiv(size, 64)
        return len(self.storages) - 1

    def output(self, *shape: SymExpr, dtype: str = "float32") -> int:
        """A storage that is an output."""
        self.outputs.append(TensorSpec(f"y{len(self.outputs)}", dtype, shape or (N,)))
        self.storages.append(Storage("output", len(self.outputs) - 1))
        return len(self.storages) - 1

    def in_steps(self, source: int, target: int) -> Launch:
        """A Launch of `twice` by way of a temporary."""
        return replace(call("twice", source, target), variants=(IN_STEPS,), temporaries=(self.arena(),))

    def plan(self, *body: Any, most: int = 1000) -> Plan:
        """The Plan; its second input is `ids`: int64[2]."""
        inputs = (TensorSpec("x", "float32", (N,)), TensorSpec("ids", "int64", (SymExpr.of(2),)))
        return Plan(inputs, tuple(self.outputs), tuple(self.storages), (), {HOST: self.end},
                    (Bind("n", Axis(0, 0), Range(0, most)), *body))


X, IDS = 0, 1


def if_plan() -> Plan:
    """y0 = 2x + 1 where n is at least 5 and the sum is below 10, x + 7 where it is not below, else x + x + n."""
    p = Making()
    y, t, flag = p.output(), p.arena(), p.arena(ONE)
    inner = If(Element(flag, "bool"), (call("twice", X, y),), (call("shift", X, y, sizes=[7]),))
    return p.plan(
        Eval("big", parse("min(n // 5, 1)")),
        If("big", (call("below", X, flag, sizes=[10]), inner), (call("sum", X, X, t), call("shift", t, y, sizes=[N]))))


def loop_plan() -> Plan:
    """The first of ids times: every third trip twice, else plus the trip's number; then y0 is that plus x."""
    p = Making()
    y, a, b = p.output(), p.arena(), p.arena()
    return p.plan(
        Bind("k", Element(IDS, "int64"), Range(0, 100), None, "the trips"),
        Loop("i", K, (Eval("third", parse("(i + 1) % 3")),
                      If("third", (call("shift", a, b, sizes=[dim("i")]),), (p.in_steps(a, b),))),
             (Carried(X, a, b),)),
        call("sum", a, X, y))


def while_plan() -> Plan:
    """2x + 1 while the sum is below 1000, a hundred times at most; y1 is whether it still is."""
    p = Making()
    y, still, a, b, flag = p.output(), p.output(ONE, dtype="bool"), p.arena(), p.arena(), p.arena(ONE)
    return p.plan(
        call("below", X, flag, sizes=[1000]),
        Loop("i", SymExpr.of(100), (call("twice", a, b), call("below", b, flag, sizes=[1000])), (Carried(X, a, b),),
             Element(flag, "bool")),
        Copy(a, y, 4 * N), Copy(flag, still, ONE))


def carried_flag_plan() -> Plan:
    """2x + 1 as often as the sum was below 1000 before: whether it was is carried, too, and each trip adds one of ids."""
    p = Making()
    y, a, b, flag, new = p.output(), p.arena(), p.arena(), p.arena(ONE), p.arena(ONE)
    t = p.arena()
    trip = (Bind("v", Element(IDS, "int64", dim("i") % 2), Range(0, 99)), call("shift", a, t, sizes=[dim("v")]),
            call("twice", t, b), call("below", a, new, sizes=[1000]))
    return p.plan(
        call("below", X, flag, sizes=[1000]),
        Loop("i", SymExpr.of(50), trip, (Carried(X, a, b), Carried(flag, flag, new)), Element(flag, "bool")),
        Copy(a, y, 4 * N))


def content_plan(bound: SymExpr | None = None, known: Range = Range(0)) -> Plan:  # noqa: B008
    """y0 are the positive elements, of which there may be `bound` (all of x), as `known` says, and 40; y1 is 2 (x + how many
    are not positive) + 1."""
    p = Making()
    y, z, found, t = p.output(M), p.output(), p.arena(SymExpr.of(8)), p.arena()
    return p.plan(
        call("count", X, found),
        Bind("m", Element(found, "int64"), known, N if bound is None else bound, "the positive elements"),
        Eval("rest", N - M),
        If("m", (Guard("<=", M, SymExpr.of(40), "the slice of node 'cut'"),)),
        call("compact", X, y, sizes=[M]), call("shift", X, t, sizes=[parse("max(rest, 0)")]), call("twice", t, z))


def guard_plan() -> Plan:
    """y0 = x + x; where the first of ids is not 0, the second is at most the first, for "the slice of node 'cut'"."""
    p = Making()
    y = p.output()
    return p.plan(
        Bind("k", Element(IDS, "int64"), Range(0, 100)),
        Bind("l", Element(IDS, "int64", ONE), Range(0, 100)),
        If("k", (Guard("<=", dim("l"), K, "the slice of node 'cut'"),)),
        call("sum", X, X, y))


def nested_plan() -> Plan:
    """k trips, in each l trips, and the inner loop carries what the outer hands on; y0 is what it ends with."""
    p = Making()
    y, a, b, c = p.output(), p.arena(), p.arena(), p.arena()
    inner = Loop("j", dim("l"), (call("sum", b, X, c), If("j", (call("shift", b, c, sizes=[dim("j") + dim("i")]),))),
                 (Carried(a, b, c),))
    return p.plan(
        Bind("k", Element(IDS, "int64"), Range(0, 100)), Bind("l", Element(IDS, "int64", ONE), Range(0, 100)),
        Loop("i", K, (inner,), (Carried(X, a, b),)),
        Copy(a, y, 4 * N))


def copy_plan() -> Plan:
    """Bytes through the arena, into a branch, and of an output into another."""
    p = Making()
    y, z, t, u = p.output(), p.output(), p.arena(), p.arena()
    return p.plan(
        Copy(X, t, 4 * N), call("twice", t, u),
        Bind("k", Element(IDS, "int64"), Range(0, 1)),
        If("k", (Copy(u, y, 4 * N),), (Copy(t, y, 4 * N), Copy(y, u, 4 * N))),
        call("sum", u, t, t), Copy(t, z, 4 * N))


def everything_plan() -> Plan:
    """Every kind of step, one inside the other."""
    p = Making()
    y, z, flag, found = p.output(), p.output(M), p.arena(ONE), p.arena(SymExpr.of(8))
    t, a, b, c, d = (p.arena() for _ in range(5))
    again = Element(flag, "bool")
    inner = Loop("j", dim("l"), (call("sum", c, X, d), If("j", (call("shift", c, d, sizes=[dim("i") + dim("j")]),))),
                 (Carried(b, c, d),), again)
    return p.plan(
        call("count", X, found), call("below", X, flag, sizes=[40]),
        Bind("m", Element(found, "int64"), Range(0), N, "the positive elements"), call("compact", X, z, sizes=[M]),
        Bind("k", Element(IDS, "int64"), Range(0, 20), None, "the trips"), Bind("l", Element(IDS, "int64", ONE), Range(0, 5)),
        Eval("big", parse("min(n // 5, 1)")),
        If("big", (If(again, (Copy(X, t, 4 * N),), (call("shift", X, t, sizes=[M]),)),),
           (Guard("<=", K, SymExpr.of(15), "the slice of node 'cut'"), p.in_steps(X, t))),
        Loop("i", K, (Eval("third", parse("(i + 1) % 3")),
                      If("third", (call("shift", a, b, sizes=[dim("i")]), inner, Copy(c, b, 4 * N)), (call("twice", a, b),))),
             (Carried(t, a, b),)),
        call("sum", a, X, y))


PLANS: dict[str, Callable[[], Plan]] = {
    "everything": everything_plan, "carried flag": carried_flag_plan,
    "if": if_plan, "loop": loop_plan, "while": while_plan, "content": content_plan, "guard": guard_plan, "nested": nested_plan,
    "copy": copy_plan}


# -- according to NumPy ----------------------------------------------------------------------------------------------

def _compact(x: np.ndarray, y: np.ndarray) -> None:
    found = x[x > 0][:y.size]
    y[:] = np.concatenate([found, np.zeros(y.size - found.size, x.dtype)])


NUMPY: dict[str, Callable[..., None]] = {
    "twice": lambda x, y, n: y.__setitem__(slice(n), 2 * x[:n] + 1),
    "sum": lambda x, y, z, n: z.__setitem__(slice(n), x[:n] + y[:n]),
    "shift": lambda x, y, n, k: y.__setitem__(slice(n), x[:n] + np.float32(k)),
    "count": lambda x, y, n: y.__setitem__(0, (x[:n] > 0).sum()),
    "compact": lambda x, y, n, k: _compact(x[:n], y[:k]),
    "below": lambda x, y, n, k: y.__setitem__(0, x[:n].astype(np.float64).sum() < k),
}


class Broken(Exception):
    """A Guard or a range that does not hold, with its reason."""


class Evaluation:
    """What a Plan computes, each storage an array of its own, expressions by Python itself."""

    def __init__(self, plan: Plan, feeds: Mapping[str, np.ndarray]) -> None:
        self.plan, self.names = plan, dict[str, int]()
        self.feeds = [feeds[spec.name] for spec in plan.inputs]
        self.memory: dict[int, np.ndarray] = {}
        self.region(plan.body)
        self.results = [self.bytes(next(i for i, s in enumerate(plan.storages) if (s.kind, s.index) == ("output", number)))
                        .view(spec.dtype).reshape([self.value(size) for size in spec.shape])
                        for number, spec in enumerate(plan.outputs)]

    def value(self, expr: SymExpr) -> int:
        return int(eval(str(expr), {"max": max, "min": min}, self.names))

    def bytes(self, number: int) -> np.ndarray:
        storage = self.plan.storages[number]
        if number not in self.memory:
            match storage.kind:
                case "input":
                    made = np.ascontiguousarray(self.feeds[storage.index]).reshape(-1).view(np.uint8)
                case "output":
                    spec = self.plan.outputs[storage.index]
                    made = np.full([self.value(s) for s in spec.shape], 0xEE, np.uint8).reshape(-1)
                    made = np.repeat(made, np.dtype(spec.dtype).itemsize)
                case _:
                    made = np.full(self.value(storage.bytes), 0xEE, np.uint8)
            self.memory[number] = made
        return self.memory[number]

    def element(self, element: Element) -> int:
        return int(self.bytes(element.storage).view(element.dtype)[self.value(element.index)])

    def region(self, region: Region) -> None:
        for step in region:
            match step:
                case Bind(source=Axis(input=number, axis=axis)):
                    self.names[step.name] = self.feeds[number].shape[axis]  # plain dims alone
                case Bind(source=Element() as source):
                    value, known = self.element(source), step.range
                    ends = [known.hi, None if step.bound is None else self.value(step.bound)]
                    if value < known.lo or value % known.divisor or any(end is not None and value > end for end in ends):
                        raise Broken(step.reason)
                    self.names[step.name] = value
                case Eval():
                    self.names[step.name] = self.value(step.value)
                case Guard():
                    left, right = self.value(step.left), self.value(step.right)
                    if left != right if step.relation == "==" else left > right:
                        raise Broken(step.reason)
                case Launch():
                    buffers = [self.bytes(a) for a in step.args]
                    views = [b[:b.size // np.dtype(use.dtype).itemsize * np.dtype(use.dtype).itemsize].view(use.dtype)
                             for b, use in zip(buffers, INTERFACES[step.kernel].buffers)]
                    NUMPY[step.kernel](*views, *map(self.value, step.sizes))
                case Copy():
                    size = self.value(step.bytes)
                    self.bytes(step.target)[:size] = self.bytes(step.source)[:size]
                case If(condition=condition):
                    chosen = self.names[condition] if isinstance(condition, str) else self.element(condition)
                    self.region(step.then if chosen else step.otherwise)
                case Loop():
                    self.loop(step)

    def loop(self, step: Loop) -> None:
        for c in step.carried:
            self.bytes(c.current)[:] = self.bytes(c.start)
        trip, trips = 0, self.value(step.trips)
        while trip < trips and (step.condition is None or self.element(step.condition)):
            self.names[step.index] = trip
            self.region(step.body)
            for c in step.carried:
                self.bytes(c.current)[:] = self.bytes(c.next)
                self.bytes(c.next)[:] = 0xEE
            trip += 1


def request(n: int, ids: Sequence[int] = (0, 0), seed: int = 0) -> dict[str, np.ndarray]:
    """Whole numbers, so that no order of summation matters."""
    x = np.random.default_rng(seed).integers(-9, 10, n).astype(np.float32)
    return {"x": x, "ids": np.array(ids, np.int64)}


def check(executable: Executable, plan: Plan, feeds: dict[str, np.ndarray]) -> None:
    """The results are those of NumPy, bit for bit: all numbers are whole."""
    expected = Evaluation(plan, feeds).results
    found = executable.run(None, feeds)
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype and one.shape == other.shape

"""Plans with branches, loops and sizes that are computed, against NumPy; what the verifier refuses of them; their JSON."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.runtime import region_plans
from tests.runtime.random_regions import random_plan
from tests.runtime.region_plans import (
    IDS,
    INTERFACES,
    KERNELS,
    PLANS,
    K,
    M,
    Making,
    N,
    X,
    call,
    content_plan,
    guard_plan,
    loop_plan,
    request,
)
from tsc.codegen_c.build import build_module
from tsc.codegen_c.specs import CPU_SPECS
from tsc.config import Options
from tsc.errors import InputError, PackageError, ShapeError
from tsc.runtime import interpret
from tsc.runtime.check import check_plan
from tsc.runtime.executable import Executable
from tsc.runtime.interface import ModuleInterface
from tsc.runtime.package import Module, Package
from tsc.runtime.plan import (
    HOST,
    MAX_NESTING,
    Axis,
    Bind,
    Carried,
    Copy,
    Element,
    Eval,
    If,
    Loop,
    Plan,
    Step,
    Storage,
)
from tsc.runtime.plan_json import plan_from_json, plan_to_json
from tsc.sym import ONE, ZERO, Guard, Range, SymExpr, dim, parse

FLAG = Element(2, "bool")


@pytest.fixture(scope="module")
def made() -> Callable[..., Executable]:
    """An Executable of a Plan."""
    binary = build_module({"kernels": KERNELS}, CPU_SPECS["cpu-generic"], Options(), INTERFACES)
    return lambda plan, threads=1: Executable(Package({"cpu-generic": plan}, {}, {"cpu-generic": Module(binary)}), threads)


def check(executable: Executable, plan: Plan, feeds: dict[str, np.ndarray]) -> None:
    """The results are those of NumPy, bit for bit: all numbers are whole."""
    expected = region_plans.Evaluation(plan, feeds).results
    found = executable.run(None, feeds)
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype and one.shape == other.shape


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", PLANS)
def test_as_numpy_says(made: Callable[..., Executable], name: str, threads: int) -> None:
    plan = PLANS[name]()
    executable = made(plan, threads)
    for n in (0, 1, 4, 5, 7, 8, 9, 17, 33):
        for ids in ((0, 0), (1, 0), (1, 1)) if name == "copy" else ((0, 0), (1, 1), (2, 1), (3, 2), (7, 5), (12, 0)):
            check(executable, plan, request(n, ids, seed=n))


def test_each_branch_is_taken(made: Callable[..., Executable]) -> None:
    x = np.array([3, 3, 3, -5, 1], np.float32)
    run = lambda x: made(PLANS["if"]()).run(None, {"x": x, "ids": np.zeros(2, np.int64)})[0]  # noqa: E731
    np.testing.assert_array_equal(run(x), 2 * x + 1)
    np.testing.assert_array_equal(run(x + 1), x + 8)  # a sum of 10
    np.testing.assert_array_equal(run(x[:4]), 2 * x[:4] + 4)


def test_trips(made: Callable[..., Executable]) -> None:
    x = np.arange(5, dtype=np.float32)
    executable = made(loop_plan())
    state = x
    for trips in range(12):
        found = executable.run(None, {"x": x, "ids": np.array([trips, 0])})[0]
        np.testing.assert_array_equal(found, state + x)
        state = 2 * state + 1 if trips % 3 == 2 else state + trips


def test_a_loop_ends_by_its_condition_or_its_trips(made: Callable[..., Executable]) -> None:
    executable = made(PLANS["while"]())
    ids = np.zeros(2, np.int64)
    for x, trips, still in (([999.0], 1, False), ([1000.0], 0, False), ([0.0], 10, False), ([-1.0], 100, True)):
        y, flag = executable.run(None, {"x": np.array(x, np.float32), "ids": ids})
        state = np.float32(x[0])
        for _ in range(trips):
            state = 2 * state + 1
        assert (y[0], bool(flag[0])) == (state, still)
    with pytest.raises(InputError, match=r"not a number \(in the kernel of node 'the below'\)"):
        executable.run(None, {"x": np.array([np.nan], np.float32), "ids": ids})
    executable.run(None, {"x": np.array([1.0], np.float32), "ids": ids})  # still works


def test_loops_that_never_end(made: Callable[..., Executable], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpret, "MAX_TRIPS", 50)
    with pytest.raises(InputError, match="more than 50 trips"):
        made(PLANS["while"]()).run(None, request(1) | {"x": np.array([-1], np.float32)})
    with pytest.raises(InputError, match="more than 50 trips"):  # all loops together
        made(PLANS["nested"]()).run(None, request(3, (9, 9)))


def launched(executable: Executable, feeds: dict[str, np.ndarray]) -> tuple[int, Exception | None]:
    """How many launches a request makes, and how it ends."""
    real, count = executable._module.run, 0

    def run(table: int, launches: int, *rest: int) -> int:
        nonlocal count
        count += launches
        return int(real(table, launches, *rest))

    executable._module.run = run
    try:
        executable.run(None, feeds)
    except (ShapeError, PackageError) as error:
        return count, error
    finally:
        executable._module.run = real
    return count, None


@pytest.mark.parametrize("positive", [0, 1, 3, 4])
def test_a_size_from_memory(made: Callable[..., Executable], positive: int) -> None:
    """None, at the bound, and above it: then nothing is launched that comes later."""
    x = np.array([1.0] * positive + [-1.0] * (7 - positive), np.float32)
    feeds = {"x": x, "ids": np.zeros(2, np.int64)}
    for plan, words in ((content_plan(SymExpr.of(3)), r"'m' is 4, above 3 = 3 \(the positive elements\)"),
                        (content_plan(N // 2), r"'m' is 4, above \(n // 2\) = 3 \(the positive elements\)"),
                        (content_plan(None, Range(0, 3)), r"'m' is 4, outside 0..3 \(the positive elements\)")):
        count, error = launched(made(plan), feeds)
        if positive <= 3:
            assert error is None and count == 4
            y, _ = made(plan).run(None, feeds)
            np.testing.assert_array_equal(y, np.ones(positive, np.float32))
        else:
            assert isinstance(error, ShapeError) and count == 1
            with pytest.raises(ShapeError, match=words):
                made(plan).run(None, feeds)


def test_a_guard_in_a_region(made: Callable[..., Executable]) -> None:
    executable = made(guard_plan())
    for ids in ((0, 9), (9, 9), (9, 0), (1, 1)):
        assert launched(executable, request(5, ids)) == (1, None)
    count, error = launched(executable, request(5, (4, 5)))
    assert count == 0 and isinstance(error, ShapeError)
    assert "the model needs l <= k (the slice of node 'cut'), but 5 <= 4 does not hold at k=4, l=5" in str(error)
    many = request(60)
    many["x"][:] = 1
    with pytest.raises(ShapeError, match="the slice of node 'cut'"):
        made(content_plan()).run(None, many)


@pytest.mark.parametrize("content", [-1, 101, -(1 << 63), (1 << 63) - 1])
def test_contents_out_of_range(made: Callable[..., Executable], content: int) -> None:
    with pytest.raises(ShapeError, match=r"'k' is -?\d+, outside 0..100 \(the trips\)"):
        made(loop_plan()).run(None, request(4, (content, 0)))


def test_an_element_that_is_not_there(made: Callable[..., Executable]) -> None:
    p = Making()
    y = p.output()
    plan = p.plan(Bind("k", Element(IDS, "int64", N)), If("k", (call("sum", X, X, y),), (call("twice", X, y),)))
    executable = made(plan)
    for n in (0, 1):
        check(executable, plan, request(n, (3, 0)))
    for n in (2, 3):
        with pytest.raises(PackageError, match=f"looks at element {n} of 16 bytes of int64"):
            executable.run(None, request(n))


@pytest.mark.parametrize("value, words", [
    ("n // (k - 1)", "divided by zero at k=1"), ("k*k*k*k*k*k*k*k*k*k*k*k", "beyond any")])
def test_values_that_are_none(made: Callable[..., Executable], value: str, words: str) -> None:
    p = Making()
    y = p.output()
    k = Bind("k", Element(IDS, "int64"))
    plan = p.plan(k, Eval("e", parse(value)), call("shift", X, y, sizes=[parse("max(e, 0)")]))
    check(made(plan), plan, request(4, (3, 0)))
    with pytest.raises(ShapeError, match=words):
        made(plan).run(None, request(4, (1 if "//" in value else 1 << 40, 0)))
    executable = made(p.plan(Eval("f", parse("10 // (n - 1)")), k, call("shift", X, y, sizes=[parse("f")])))
    executable.run(None, request(4))
    with pytest.raises(ShapeError, match="divided by zero at n=1"):
        executable.run(None, request(1))


@pytest.mark.parametrize("size", [N - 4, K - 4])
def test_shapes_that_are_none(made: Callable[..., Executable], size: SymExpr) -> None:
    """Two sizes below nothing would make a product that is a number of bytes; a reshape to them is an error of NumPy's."""
    p = Making()
    y = p.output(size, size)
    plan = p.plan(FIRST, call("twice", X, y, n=size * size))
    executable = made(plan)
    for n in (1, 3):
        with pytest.raises(ShapeError, match=r"output 'y0' would have the shape \[-"):
            executable.run(None, request(n, (n, 0)))


def test_many_threads(made: Callable[..., Executable]) -> None:
    """Each run has its own names, places and memory."""
    plans = {name: PLANS[name]() for name in ("loop", "content", "nested")}
    executables = {name: made(plan, 2) for name, plan in plans.items()}
    wrong: list[object] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(25):
            name = str(rng.choice(list(plans)))
            feeds = request(int(rng.integers(0, 40)), rng.integers(0, 6, 2).tolist(), seed)
            try:
                check(executables[name], plans[name], feeds)
            except Exception as error:
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


EXPLAINED = """\
  bind k in 0..100: int64 0 of input 'ids' (the trips)
  loop i < k
    carry arena+0 from input 'x', next in arena+64
    let third = ((i + 1) % 3)
    if third
        0 shift (node 'the shift'): blocks 2, sizes 9, i, scratch 0
          arena+0, arena+64
    else
        1 twice (node 'the twice'): blocks 2, sizes 9, scratch 0
          arena+0, arena+64
    2 sum (node 'the sum'): blocks 2, sizes 9, scratch 0
      arena+0, input 'x', output 'y0'"""


def test_what_is_explained(made: Callable[..., Executable]) -> None:
    assert EXPLAINED in made(loop_plan()).explain(n=9)


def test_what_an_executable_says_of_regions(made: Callable[..., Executable]) -> None:
    for name in PLANS:
        executable = made(PLANS[name](), 2)
        high = executable.peak_bytes()
        assert isinstance(high, int) and high >= int(executable.peak_bytes(n=9)) > 0
        executable.prepare()
        executable.prepare(2, n=33)
        assert executable.explain() and executable.explain(n=9) and executable._repr_html_() and repr(executable)
        times = executable.profile(request(9, (1, 1)), 2)
        assert {row.kernel for row in times.kernels} == {launch.kernel for launch in executable._plan.launches}


# -- JSON ------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", PLANS)
def test_json_round_trip(name: str) -> None:
    plan = PLANS[name]()
    plan = replace(plan, body=(*plan.body, replace(plan.launches[0], after=(1, 0), nodes=("a", "b"))))
    plan = replace(plan, arenas={HOST: N, "gpu": K})
    plan = replace(plan, storages=(*plan.storages, Storage("arena", 0, N, K, "gpu")))
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan


def test_json_round_trip_of_random_plans() -> None:
    for seed in range(60):
        plan = random_plan(seed)
        assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan


def test_json_that_is_no_plan() -> None:
    good = plan_to_json(loop_plan())
    loop = next(step for step in good["body"] if step["step"] == "loop")
    changes: list[tuple[dict[str, Any], str, Any, str]] = [
        (good, "version", 3, "plan version 3, expected 4"), (good, "body", None, "body"),
        (loop, "step", "while", "a step is 'while', expected one of bind, eval"), (loop, "trips", "n*", "trips"),
        (loop, "condition", [1, "int64"], "an element"), (loop, "carried", [[1, 2]], "carries"), (loop, "extra", 1, "extra"),
        (loop, "body", [loop], "nested deeper"), (good, "arenas", {"host": -1.5}, "arena"), (loop, "index", 3, "index")]
    for holder, key, value, words in changes:
        old = holder.get(key)
        holder[key] = value
        with pytest.raises(ValueError, match=words):
            plan_from_json(good)
        holder[key] = old
        if old is None:
            del holder[key]
            if key == "condition":
                holder[key] = None
    assert plan_from_json(good) == loop_plan()


# -- what is refused -------------------------------------------------------------------------------------------------

def refused(*body: Any, **changes: Any) -> Plan:
    """A Plan with an output y0 (storage 2) and three storages of the arena (3 to 5), two of them of x's size."""
    p = Making()
    p.output(), p.arena(), p.arena(), p.arena(8 * N)
    plan = p.plan(*body)
    return replace(plan, **changes) if changes else plan


Y, A, B, WIDE = 2, 3, 4, 5
DONE = call("sum", X, X, Y)
FIRST = Bind("k", Element(IDS, "int64"), Range(0, 9))
COPIES = call("twice", A, B)


def loop(*body: Step, trips: SymExpr = N, carried: tuple[Carried, ...] = (), ends: Element | None = None) -> Loop:
    return Loop("i", trips, body, carried, ends)


def nested(levels: int) -> Step:
    step: Step = Eval("deep", N)
    for _ in range(levels):
        step = If("n", (step,))
    return step


REFUSED: dict[str, tuple[Plan, str]] = {
    "a name that nothing binds": (refused(DONE, call("shift", X, A, sizes=[K])), "'k' that is no dim"),
    "a name before it is bound": (
        refused(call("shift", X, Y, sizes=[K]), FIRST),
        "'k' that is no dim of it, or is bound later"),
    "a name of a branch after it": (refused(If("n", (FIRST,)), call("shift", X, Y, sizes=[K])), "'k' that is no dim"),
    "a name of the other branch": (refused(If("n", (FIRST,), (Eval("l", K),)), DONE), "'k' that is no dim"),
    "a trip's number after the loop": (refused(loop(), call("shift", X, Y, sizes=[dim("i")])), "'i' that is no dim"),
    "a trip's number as how many": (refused(loop(trips=dim("i")), DONE), "'i' that is no dim"),
    "a name that is bound twice": (refused(FIRST, FIRST, DONE), "binds 'k' twice"),
    "a name that a loop binds again": (refused(Eval("i", N), loop(), DONE), "binds 'i' twice"),
    "a name that both branches bind": (refused(If("n", (Eval("e", N),), (Eval("e", N),)), DONE), "binds 'e' twice"),
    "a decision by no name": (refused(If("q", ()), DONE), "decides by 'q'"),
    "a guard of an unknown name": (refused(Guard("<=", K, N, ""), DONE), "'k' that is no dim"),
    "a bound of an unknown name": (refused(replace(FIRST, bound=M), DONE), "'m' that is no dim"),
    "an element's number of an unknown name": (refused(Bind("k", Element(IDS, "int64", M)), DONE), "'m' that is no dim"),
    "a shape in a region": (refused(If("n", (Bind("m", Axis(0, 0)),)), DONE), "within an If or a Loop"),
    "a shape of an axis that is not there": (refused(Bind("m", Axis(0, 1)), DONE), "an axis that does not exist"),
    "a size below nothing": (refused(replace(FIRST, range=Range(-1)), DONE), "'k' be negative"),
    "a place that is computed": (
        refused(FIRST, DONE, storages=(*refused().storages[:3], Storage("arena", 0, 64 * K, 4 * N), *refused().storages[4:])),
        "'k' that is no dim of it, or is bound later than the size of a place"),
    "an arena that is computed": (refused(FIRST, DONE, arenas={HOST: K}), "the size of an arena"),
    "an output's shape of a branch": (
        replace(refused(If("n", (FIRST,)), DONE), outputs=(replace(refused().outputs[0], shape=(K,)),)), "'k' that is no dim"),
    "a value that nobody wrote": (refused(call("twice", A, Y)), "read what nobody has written"),
    "a value of one branch": (refused(If("n", (call("twice", X, A),)), call("twice", A, Y)), "read what nobody has written"),
    "a value of the other branch": (
        refused(If("n", (call("twice", X, A),), (call("twice", A, B),)), DONE), "read what nobody has written"),
    "a value of a trip after it": (refused(loop(call("twice", X, A)), call("twice", A, Y)), "read what nobody has written"),
    "a value of the trip before": (refused(loop(COPIES, call("twice", X, A)), DONE), "read what nobody has written"),
    "a copy of what nobody wrote": (refused(Copy(A, Y, 4 * N)), "copy of what nobody has written"),
    "a decision by what nobody wrote": (refused(If(Element(A, "bool"), ()), DONE), "looks at storage 3, which nobody"),
    "a size that nobody wrote": (refused(Bind("k", Element(A, "int64")), DONE), "looks at storage 3, which nobody"),
    "a condition that nobody wrote": (refused(loop(ends=Element(A, "bool")), DONE), "looks at storage 3, which nobody"),
    "a size that is no whole number": (refused(Bind("k", Element(X, "float32")), DONE), "no such whole numbers"),
    "a size of another type": (refused(Bind("k", Element(IDS, "int32")), DONE), "takes input 1 for int32"),
    "an output of one branch": (refused(If("n", (DONE,))), "never writes output 'y0'"),
    "an output of a loop": (refused(loop(DONE)), "never writes output 'y0'"),
    "carried storages of two sizes": (
        refused(loop(call("twice", A, WIDE), carried=(Carried(X, A, WIDE),)), DONE),
        r"carries storages of 4\*n, 4\*n, 8\*n bytes"),
    "a carried storage that begins with less": (
        refused(loop(call("twice", A, B), carried=(Carried(IDS, A, B),)), DONE), r"carries storages of 16, 4\*n, 4\*n bytes"),
    "a carried output": (refused(loop(call("twice", Y, A), carried=(Carried(X, Y, A),))), "not both of one arena"),
    "a carried value that begins as nothing": (
        refused(loop(COPIES, carried=(Carried(A, A, B),)), DONE),
        "begins with storage 3"),
    "one storage for both halves": (refused(loop(call("twice", A, A), carried=(Carried(X, A, A),)), DONE), "two values in one"),
    "a start that is carried": (

               refused(loop(carried=(Carried(X, A, B), Carried(B, WIDE, Y))), DONE), "begins with storage 4, which it carries"),
    "a trip that writes nothing for the next": (refused(loop(carried=(Carried(X, A, B),)), DONE), "does not write storage 4"),
    "what the next trip has, read": (
        refused(loop(call("twice", B, B), carried=(Carried(X, A, B),)), DONE), "read what nobody has written"),
    "half of what was carried, after the loop": (
        refused(loop(COPIES, carried=(Carried(X, A, B),)), call("twice", B, Y)), "read what nobody has written"),
    "a device that is not there": (refused(replace(DONE, device="cuda:1")), "on device 'cuda:1', which is not there"),
    "a device in a region that is not there": (
        refused(If("n", (replace(DONE, device="gpu"),), (DONE,))), "on device 'gpu', which is not there"),
    "a memory that is not there": (
        refused(DONE, storages=(*refused().storages, Storage("arena", 0, ZERO, ONE, "gpu"))), "in memory 'gpu', which is not"),
    "an arena of a memory that is not there": (refused(DONE, arenas={HOST: N, "gpu": N}), "an arena in memory 'gpu'"),
    "no arena": (refused(DONE, arenas={}), "an arena of 'host', which it does not have"),
    "a step that waits for a later one": (
        refused(replace(DONE, after=(2,)), call("twice", X, A)), "wait for one that is not before it"),
    "a step that waits for itself": (refused(replace(DONE, after=(1,))), "wait for one that is not before it"),
    "a step that does not wait for a value": (
        refused(call("twice", X, A), replace(call("twice", A, Y), after=(0,))), "not wait for step 1, whose storages"),
    "a write that does not wait for a reader": (
        refused(call("twice", X, A), call("twice", A, Y), replace(call("twice", X, A), after=(1,))), "not wait for step 2"),
    "a copy that does not wait": (refused(call("twice", X, A), Copy(A, Y, 4 * N, after=())), "not wait for step 1"),
    "regions too deep": (refused(nested(MAX_NESTING), DONE), "nested deeper than 8"),
    "an argument in a region that is not there": (
        refused(If("n", (call("twice", X, 99),)), DONE),
        "storage that does not exist"),
    "a carried storage that is not there": (refused(loop(carried=(Carried(99, A, B),)), DONE), "storage that does not exist"),
    "a kernel in a region that is not there": (
        refused(loop(replace(COPIES, kernel="abort")), DONE), "'abort', which is no kernel"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_structure_is_checked(made: Callable[..., Executable], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, words = REFUSED[name]
    monkeypatch.setattr("tsc.runtime.executable.CpuModule", lambda *a: pytest.fail("the binary was loaded"))
    with pytest.raises(PackageError, match=words) as caught:
        made(plan)
    assert "\n" not in str(caught.value)


def test_devices_and_memories_that_are_there() -> None:
    """A plan for two devices, with an arena for each and copies between: nothing runs it yet, but it can be said."""
    p = Making()
    y, t, u = p.output(), p.arena(), p.arena()
    storages = [replace(s, space="gpu", offset=ZERO) if i == t else s for i, s in enumerate(p.storages)]

    def plan(*body: Step) -> Plan:
        return replace(p.plan(*body), storages=tuple(storages), arenas={HOST: p.end, "gpu": 4 * N})

    there, twice, back = Copy(X, t, 4 * N), call("twice", t, t, device="gpu"), Copy(t, y, 4 * N)
    module = ModuleInterface("cpu-generic", (), INTERFACES)
    devices = {"cpu": HOST, "gpu": "gpu"}
    check_plan(plan(there, twice, back), {}, module, "it", devices)
    with pytest.raises(PackageError, match="in memory 'gpu', which is not there"):
        check_plan(plan(there, twice, back), {}, module, "it")
    wrong: list[tuple[tuple[Step, ...], str]] = [
        ((there, call("twice", t, u), back), "on 'cpu' a storage in memory 'gpu'"),
        ((there, call("twice", X, t, device="gpu"), back), "on 'gpu' a storage in memory 'host'"),
        ((there, twice, back, If(Element(t, "bool"), ())), "in memory 'gpu'; copy it to 'host' first"),
        ((there, back, loop(COPIES, carried=(Carried(X, t, u),))), "not both of one arena")]
    for body, words in wrong:
        with pytest.raises(PackageError, match=words):
            check_plan(plan(*body), {}, module, "it", devices)


def test_too_many_regions() -> None:
    many = refused(DONE, *(If("n", ()) for _ in range(2100)))
    with pytest.raises(PackageError, match="more than 4096 regions"):
        check_plan(many, {}, ModuleInterface("cpu-generic", (), INTERFACES), "it")


def test_a_plan_that_is_not_refused(made: Callable[..., Executable]) -> None:
    """What the refused ones are made of is right by itself; dependences may be named."""
    step = call("twice", X, A)
    for body in ((DONE,), (FIRST, DONE), (nested(MAX_NESTING - 1), DONE),
                 (step, replace(call("twice", A, Y), after=(1,))),
                 (step, call("twice", A, Y), replace(call("twice", X, A), after=(1, 2))),
                 (step, FIRST, replace(call("twice", A, Y), after=())),
                 (loop(COPIES, carried=(Carried(X, A, B),)), call("twice", A, Y)),
                 (step, loop(COPIES, carried=(Carried(A, A, B),)), call("twice", A, Y))):
        plan = refused(*body)
        for n in (0, 1, 2, 5):
            check(made(plan), plan, request(n))


NUMBERS: dict[str, tuple[Plan, str]] = {
    "too many elements in a branch": (refused(If("n", (call("twice", X, A, n=N + 1),)), DONE), "its buffer has"),
    "too many elements in some trip": (
        refused(Bind("k", Element(IDS, "int64")), loop(call("twice", X, A, n=dim("i") * K), trips=SymExpr.of(9)), DONE),
        "its buffer"),
    "a computed size that is too large": (refused(FIRST, call("twice", X, A, n=N + K - 2), DONE), "its buffer has"),
    "a copy of too much": (refused(FIRST, If("n", (Copy(X, A, 4 * N + K),)), DONE), "copies 23 bytes from 20 to 20"),
    "a storage in a region out of the arena": (
        refused(If("n", (call("twice", X, A),)), DONE, arenas={HOST: SymExpr.of(64)}), "outside the arena"),
    "what is carried beside what a trip makes": (
        refused(loop(call("twice", A, WIDE), call("twice", WIDE, B), carried=(Carried(X, A, B),)), DONE,
                storages=(*refused().storages[:5], Storage("arena", 0, ZERO, 8 * N))), "two values in the same place"),
    "what a loop reads beside what a trip makes after that": (
        refused(call("twice", X, A), loop(call("twice", A, Y), call("twice", X, B)), DONE,
                storages=(*refused().storages[:4], Storage("arena", 0, ZERO, 4 * N), refused().storages[5])),
        "two values in the same"),
}

@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_checked(made: Callable[..., Executable], name: str) -> None:
    plan, words = NUMBERS[name]
    executable = made(plan)
    with pytest.raises(PackageError, match=words) as caught:
        executable.run(None, request(5, (3, 0)))
    assert "n=5" in str(caught.value)


def test_branches_may_share_memory(made: Callable[..., Executable]) -> None:
    """What one branch has may lie where the other has its own, and where what is no longer used did."""
    plan = refused(
        call("twice", X, WIDE), call("sum", X, WIDE, Y),
        If("n", (call("twice", X, A), call("twice", A, Y)), (call("twice", X, B), call("twice", B, Y))))
    same = [replace(s, offset=ZERO) if s.kind == "arena" else s for s in plan.storages]
    plan = replace(plan, storages=tuple(same))
    for n in (0, 1, 9):
        check(made(plan), plan, request(n))
